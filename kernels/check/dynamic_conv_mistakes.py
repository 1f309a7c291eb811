"""What the three functions of exercise 03 compute, and what known mistakes in them give."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.check.framework import Case, Draw, Fenced, Output
from kernels.dynamic_conv.reference import dynamic_conv_reference

AXES = {"x": "BTD", "y": "BTD", "dx": "BTD", "dy": "BTD", "weight": "BTDW", "dweight": "BTDW"}


def at(x: torch.Tensor, offset: int) -> torch.Tensor:
    """``x[:, t + offset]`` at every t, zero where t + offset is outside 0..T-1."""
    T, shifted = x.shape[1], torch.zeros_like(x)
    first, last = max(0, -offset), min(T, T - offset)
    if first < last:
        shifted[:, first:last] = x[:, first + offset : last + offset]
    return shifted


def running_on(x: torch.Tensor, offset: int) -> torch.Tensor:
    """The same without a mask on the time: past its end, a sequence runs on into the next one of the batch."""
    return at(x.flatten(0, 1)[None], offset)[0].view_as(x)


def spread(weight: torch.Tensor, dilation: int) -> torch.Tensor:
    """The weights of a window without dilation that reads the same: zeros between neighbouring taps."""
    W = weight.shape[-1]
    wide = weight.new_zeros(*weight.shape[:-1], (W - 1) * dilation + 1)
    wide[..., ::dilation] = weight
    return wide


@dataclass(frozen=True)
class Operator:
    """One of the three functions: its two inputs p and q, its output, its equation, its usual mistakes.

    ``answer(p, q, W, dilation)`` is the equation by the reference and autograd. ``tap(p, q, w, back, at)`` is what tap w
    contributes, which reads ``back`` tokens back; ``formula`` says where that is, ``backs`` gives by cause how many tokens
    back a mistaken kernel reads, from w, W and the dilation, and ``mistakes`` what its tap contributes otherwise, from p, q
    and ``back``. ``shared`` are the axes that the strides property gives stride 0, for p and for q; ``masks`` names the
    masks that are not mask_t or mask_d.
    """

    inputs: tuple[str, str]
    out: str
    answer: Callable
    tap: Callable
    formula: str
    backs: dict[str, Callable]
    mistakes: dict[str, Callable]
    shared: tuple[str, str]
    masks: dict

    def combine(self, taps: list[torch.Tensor]) -> torch.Tensor:
        """The output from the taps' contributions: dweight keeps each in its slot, the others add them."""
        return torch.stack(taps, dim=-1) if self.out == "dweight" else sum(taps)

    def case(self, draw: Draw, *, B=2, T=16, D=16, W=4, dilation=2, BLOCK_T=16, BLOCK_D=16, **how) -> Case:
        """One call of these sizes on normal values; ``how`` says how the tensors lie in memory (see the code)."""
        sizes = {"B": B, "T": T, "D": D, "W": W}
        packed, orders = how.get("packed", False), how.get("orders", {})
        dtypes, shared = how.get("dtypes", (torch.float32, torch.float32)), how.get("shared", ("", ""))
        fence = None if packed else {"B": 1, "T": BLOCK_T + W * dilation, "D": BLOCK_D, "W": 6}
        tensors = []
        for name, dtype, still in zip(self.inputs, dtypes, shared):
            axes, make = AXES[name], functools.partial(draw.normal, dtype=dtype, scale=how.get("scale", 1.0))
            tensors.append(Fenced.of(name, axes, sizes, make, fence=fence, order=orders.get(axes, ""), shared=still))
        order = how.get("out_order", {}).get(AXES[self.out], "")
        out = Fenced.of(self.out, AXES[self.out], sizes, torch.empty, fence=fence, order=order)
        answer = self.answer(*(tensor.values.double() for tensor in tensors), W, dilation)
        return Case(
            inputs=tensors,
            # The precision property alone looks at the last digits.
            outs=[Output(out, answer, tolerance=how.get("tolerance", 5e-3))],
            launch={"dilation": dilation, "BLOCK_T": BLOCK_T, "BLOCK_D": BLOCK_D},
            poison=how.get("poison", ()),
        )

    def suspects(self, case: Case, out: Output):
        """Known mistakes, as formulas."""
        p, q = (tensor.values.double() for tensor in case.inputs)
        W = next(tensor.size("W") for tensor in case.tensors if "W" in tensor.axes)
        dilation = case.launch["dilation"]

        def taps(tap, p=p, q=q, back=lambda w, W, n: (W - 1 - w) * n, at=at):
            return [tap(p, q, w, back(w, W, dilation), at) for w in range(W)]

        right = taps(self.tap)
        for cause, back in self.backs.items():
            yield f"{cause}: {self.formula}", self.combine(taps(self.tap, back=back))
        for cause, tap in self.mistakes.items():
            yield cause, self.combine(taps(tap))
        for name, first in zip(self.inputs, ({"p": p[:1].expand_as(p)}, {"q": q[:1].expand_as(q)})):
            cause = f"every sequence reads the first one's {name}: add b times its stride"
            yield cause, self.combine(taps(self.tap, **first))
        yield "a neighbouring sequence of the batch is read", self.combine(taps(self.tap, at=running_on))
        if self.out == "dweight":
            holes = self.combine(taps(self.tap, torch.ones_like(p), torch.ones_like(q))) == 0
            cause = "slots whose tap lies before the first token hold 0, and they are stored too"
            yield cause, self.combine(right).masked_fill(holes, float("nan"))
        else:
            yield "only the last tap is left: add to the accumulator, do not replace it", right[-1]
            for n in range(1, W):
                yield f"only the first {n} of the {W} taps are added: loop over W", sum(right[:n])
                yield f"only the last {W - n} of the {W} taps are added: loop over W", sum(right[n:])


def _forward(x, weight, W, dilation):
    return dynamic_conv_reference(x, spread(weight, dilation))


def _dx(dy, weight, W, dilation):
    x = torch.zeros_like(dy).requires_grad_()
    return torch.autograd.grad(_forward(x, weight, W, dilation), x, dy)[0]


def _dweight(dy, x, W, dilation):
    weight = x.new_zeros(*x.shape, W).requires_grad_()
    return torch.autograd.grad(_forward(x, weight, W, dilation), weight, dy)[0]


_PAST = {("x", "T", "before"): "time >= 0"}
_TAPS = {(name, "W", side): "w runs over 0..W-1" for name in ("weight", "dweight") for side in ("before", "after")}

_BACKS = {
    "the dilation is left out": lambda w, W, n: W - 1 - w,
    "the dilation multiplies w alone": lambda w, W, n: W - 1 - w * n,
    "the dilation multiplies W - 1 alone": lambda w, W, n: (W - 1) * n - w,
}
_READ = _BACKS | {
    "the taps are reversed": lambda w, W, n: w * n,
    "the window is one tap late": lambda w, W, n: (W - 2 - w) * n,
    "the window is one tap early": lambda w, W, n: (W - w) * n,
    "the window looks ahead": lambda w, W, n: -w * n,
}

_FORWARD = Operator(
    inputs=("x", "weight"),
    out="y",
    answer=_forward,
    tap=lambda x, weight, w, back, at: at(x, -back) * weight[..., w],
    formula="tap w reads time t - (W - 1 - w) * dilation",
    backs=_READ,
    mistakes={
        "weight is read at the time of x: it must be read at time t": lambda x, k, w, back, at: at(x * k[..., w], -back)
    },
    shared=("B", "BT"),
    masks=_PAST | _TAPS,
)

_DX = Operator(
    inputs=("dy", "weight"),
    out="dx",
    answer=_dx,
    tap=lambda dy, weight, w, back, at: at(dy * weight[..., w], back),
    formula="tap w saw x[t] at time t + (W - 1 - w) * dilation",
    backs=_BACKS
    | {
        "the diagonal is reversed": lambda w, W, n: w * n,
        "the past is gathered, dx needs the future": lambda w, W, n: (w - W + 1) * n,
        "the window is one tap late": lambda w, W, n: (W - w) * n,
        "the window is one tap early": lambda w, W, n: (W - 2 - w) * n,
    },
    mistakes={
        "weight is read at time t: it must be read where tap w saw x[t], at t + (W - 1 - w) * dilation": (
            lambda dy, k, w, back, at: at(dy, back) * k[..., w]
        ),
        "dy is read at time t: it must be read at t + (W - 1 - w) * dilation": (
            lambda dy, k, w, back, at: dy * at(k[..., w], back)
        ),
    },
    shared=("BTD", "BT"),
    masks={(name, "T", "after"): "time < T" for name in ("dy", "weight")} | _TAPS,
)

_DWEIGHT = Operator(
    inputs=("dy", "x"),
    out="dweight",
    answer=_dweight,
    tap=lambda dy, x, w, back, at: dy * at(x, -back),
    formula="slot w holds dy[t] * x[t - (W - 1 - w) * dilation]",
    backs=_READ,
    mistakes={"dy is read at the time of x: it must be read at time t": lambda dy, x, w, back, at: at(dy * x, -back)},
    shared=("BTD", "B"),
    masks=_PAST | _TAPS,
)


OPERATORS = {"dynamic_conv_forward": _FORWARD, "dynamic_conv_dx": _DX, "dynamic_conv_dweight": _DWEIGHT}
