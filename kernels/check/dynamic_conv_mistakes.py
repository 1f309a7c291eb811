"""What the three functions of exercise 03 compute, in each of its variations, and what known mistakes in them give."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.check.framework import Case, Draw, Fenced, Output
from kernels.check.variations import Variation, among
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
class Window(Variation):
    """Where taps read: tap 0 the farthest token or the nearest, in the past or the future, each of them ``lag`` further."""

    first: str = among("farthest", "nearest")
    reads: str = among("past", "future")
    lag: int = among(0, 1, 2)

    @property
    def time(self) -> str:
        """When tap w reads, for the output at time t."""
        sign = "-" if self.reads == "past" else "+"
        steps = "(W - 1 - w)" if self.first == "farthest" else "w"
        return f"t {sign} {steps} * dilation" + f" {sign} {self.lag}" * bool(self.lag)

    @property
    def asked(self) -> str:
        """In words."""
        return f"the window whose tap w reads time {self.time}"

    def back(self, w: int, W: int, dilation: int, more: int = 0) -> int:
        """How many tokens back tap w reads, or the tap ``more`` further away."""
        steps = (W - 1 - w if self.first == "farthest" else w) + more
        return (steps * dilation + self.lag) * (1 if self.reads == "past" else -1)

    def forward(self, x, weight, dilation: int):
        """The equation, by the package's reference, which reads the past and its farthest token first."""
        if self.first == "nearest":
            weight = weight.flip(-1)
        if self.reads == "future":
            x, weight = x.flip(1), weight.flip(1)
        late = torch.cat([x.new_zeros(x.shape[0], self.lag, x.shape[2]), x], dim=1)[:, : x.shape[1]]
        y = dynamic_conv_reference(late, spread(weight, dilation))
        return y.flip(1) if self.reads == "future" else y

    def mistakes(self, op: "Operator") -> dict[str, Callable]:
        """What is usually mistaken in a variation, by cause, as ``Operator.mistakes`` has it."""

        def tapped(back: Callable) -> Callable:
            return lambda p, q, w, W, n: op.tap(p, q, w, back(w, W, n), at)

        wrong = {
            "the dilation is left out": tapped(lambda w, W, n: self.back(w, W, 1)),
            "the window is one tap too near": tapped(lambda w, W, n: self.back(w, W, n, -1)),
            "the window is one tap too far away": tapped(lambda w, W, n: self.back(w, W, n, 1)),
            "the lag is multiplied by the dilation": tapped(
                lambda w, W, n: replace(self, lag=0).back(w, W, n, self.lag)
            ),
        }
        if op.out == "dx":
            wrong["dx is gathered where the tap reads, not where it was read"] = tapped(
                lambda w, W, n: -self.back(w, W, n)
            )
        wrong = {f"{cause}: tap w reads time {self.time}": tap for cause, tap in wrong.items()}
        if op.out == "y":
            wrong["weight is read at the time of x: it must be read at time t"] = lambda x, k, w, W, n: at(
                x * k[..., w], -self.back(w, W, n)
            )
        elif op.out == "dx":
            wrong["weight is read at time t: it must be read where tap w saw x[t]"] = lambda dy, k, w, W, n: (
                at(dy, self.back(w, W, n)) * k[..., w]
            )
            wrong["dy is read at time t: it must be read where tap w saw x[t]"] = lambda dy, k, w, W, n: (
                dy * at(k[..., w], self.back(w, W, n))
            )
        else:
            wrong["dy is read at the time of x: it must be read at time t"] = lambda dy, x, w, W, n: at(
                dy * x, -self.back(w, W, n)
            )
        return wrong


@dataclass(frozen=True)
class Operator:
    """One of the three functions: its two inputs p and q, its output, its equation, its usual mistakes.

    ``answer(p, q, W, dilation, task)`` is the equation by the reference and autograd. ``tap(p, q, w, back, at)`` is what tap
    w contributes, which reads ``back`` tokens back; ``mistakes`` gives, by cause, what tap w of a mistaken kernel does
    from p, q, w, W and the dilation. ``shared`` are the axes that the strides property gives stride 0, for p and for q;
    ``masks`` names the masks that are not mask_t or mask_d.
    """

    inputs: tuple[str, str]
    out: str
    answer: Callable
    tap: Callable
    mistakes: dict[str, Callable]
    shared: tuple[str, str]
    masks: dict
    task: Window = Window()

    def asked_as(self, task: Window) -> "Operator":
        """The same function in a variation."""
        if not task.varied:
            return self
        masks = {end: name for end, name in self.masks.items() if end[1] != "T"}
        end, name = ("before", "time >= 0") if (task.reads == "past") == (self.out != "dx") else ("after", "time < T")
        masks |= {(tensor, "T", end): name for tensor, axis, _ in self.masks if axis == "T"}
        return replace(self, mistakes=task.mistakes(self), masks=masks, task=task)

    def shape(self, name: str, sizes: dict[str, int]) -> list[int]:
        """The shape of one of the tensors."""
        return [sizes[axis] for axis in AXES[name]]

    def combine(self, taps: list[torch.Tensor]) -> torch.Tensor:
        """The output from the taps' contributions: dweight keeps each in its slot, the others add them."""
        return torch.stack(taps, dim=-1) if self.out == "dweight" else sum(taps)

    def case(self, draw: Draw, *, B=2, T=16, D=16, W=4, dilation=2, BLOCK_T=16, BLOCK_D=16, **how) -> Case:
        """One call of these sizes on normal values; ``how`` says how the tensors lie in memory (see the code)."""
        sizes = {"B": B, "T": T, "D": D, "W": W}
        packed, orders = how.get("packed", False), how.get("orders", {})
        dtypes, shared = how.get("dtypes", (torch.float32, torch.float32)), how.get("shared", ("", ""))
        fence = None if packed else {"B": 1, "T": BLOCK_T + W * dilation + self.task.lag, "D": BLOCK_D, "W": 6}
        tensors = []
        for name, dtype, axes in zip(self.inputs, dtypes, shared):
            one = [1 if axis in axes else sizes[axis] for axis in AXES[name]]
            values = draw.normal(*one, dtype=dtype, scale=how.get("scale", 1.0)).expand(self.shape(name, sizes))
            tensors.append(Fenced(name, AXES[name], values, fence=fence, order=orders.get(AXES[name], ""), shared=axes))
        order = how.get("out_order", {}).get(AXES[self.out], "")
        out = Fenced(self.out, AXES[self.out], torch.empty(self.shape(self.out, sizes)), fence=fence, order=order)
        answer = self.answer(*(tensor.values.double() for tensor in tensors), W, dilation, self.task)
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
        yield from self.task.instead(lambda other: self.answer(p, q, W, dilation, other))
        back = [self.task.back(w, W, dilation) for w in range(W)]
        taps = [self.tap(p, q, w, back[w], at) for w in range(W)]
        for cause, tap in self.mistakes.items():
            yield cause, self.combine([tap(p, q, w, W, dilation) for w in range(W)])
        for name, first in zip(self.inputs, ((p[:1].expand_as(p), q), (p, q[:1].expand_as(q)))):
            cause = f"every sequence reads the first one's {name}: add b times its stride"
            yield cause, self.combine([self.tap(*first, w, back[w], at) for w in range(W)])
        yield (
            "a neighbouring sequence of the batch is read",
            self.combine([self.tap(p, q, w, back[w], running_on) for w in range(W)]),
        )
        if self.out == "dweight":
            holes = torch.stack([at(torch.ones_like(q), -back[w]) == 0 for w in range(W)], dim=-1)
            outside = "before the first" if self.task.reads == "past" else "after the last"
            cause = f"slots whose tap lies {outside} token hold 0, and they are stored too"
            yield cause, self.combine(taps).masked_fill(holes, float("nan"))
        else:
            yield "only the last tap is left: add to the accumulator, do not replace it", taps[-1]
            for n in range(1, W):
                yield f"only the first {n} of the {W} taps are added: loop over W", sum(taps[:n])
                yield f"only the last {W - n} of the {W} taps are added: loop over W", sum(taps[n:])


def _forward(x, weight, W, dilation, task):
    return task.forward(x, weight, dilation)


def _dx(dy, weight, W, dilation, task):
    x = torch.zeros_like(dy).requires_grad_()
    return torch.autograd.grad(_forward(x, weight, W, dilation, task), x, dy)[0]


def _dweight(dy, x, W, dilation, task):
    weight = x.new_zeros(*x.shape, W).requires_grad_()
    return torch.autograd.grad(_forward(x, weight, W, dilation, task), weight, dy)[0]


_PAST = {("x", "T", "before"): "time >= 0"}
_TAPS = {(name, "W", side): "w runs over 0..W-1" for name in ("weight", "dweight") for side in ("before", "after")}

_READS = "tap w reads time t - (W - 1 - w) * dilation"
_HOLDS = "slot w holds dy[t] * x[t - (W - 1 - w) * dilation]"
_SAW = "tap w saw x[t] at time t + (W - 1 - w) * dilation"


def _undilated(w, W, n):
    return W - 1 - w


def _half_dilated(w, W, n):
    return W - 1 - w * n


def _other_half(w, W, n):
    return (W - 1) * n - w


_FORWARD = Operator(
    inputs=("x", "weight"),
    out="y",
    answer=_forward,
    tap=lambda x, weight, w, back, at: at(x, -back) * weight[..., w],
    mistakes={
        f"the dilation is left out: {_READS}": lambda x, k, w, W, n: at(x, -_undilated(w, W, n)) * k[..., w],
        f"the dilation multiplies w alone: {_READS}": lambda x, k, w, W, n: at(x, -_half_dilated(w, W, n)) * k[..., w],
        f"the dilation multiplies W - 1 alone: {_READS}": lambda x, k, w, W, n: (
            at(x, -_other_half(w, W, n)) * k[..., w]
        ),
        f"the taps are reversed: {_READS}": lambda x, k, w, W, n: at(x, -w * n) * k[..., w],
        f"the window is one tap late: {_READS}": lambda x, k, w, W, n: at(x, (w - W + 2) * n) * k[..., w],
        f"the window is one tap early: {_READS}": lambda x, k, w, W, n: at(x, (w - W) * n) * k[..., w],
        f"the window looks ahead: {_READS}": lambda x, k, w, W, n: at(x, w * n) * k[..., w],
        "weight is read at the time of x: it must be read at time t": (
            lambda x, k, w, W, n: at(x * k[..., w], (w - W + 1) * n)
        ),
    },
    shared=("B", "BT"),
    masks=_PAST | _TAPS,
)

_DX = Operator(
    inputs=("dy", "weight"),
    out="dx",
    answer=_dx,
    tap=lambda dy, weight, w, back, at: at(dy * weight[..., w], back),
    mistakes={
        "weight is read at time t: it must be read where tap w saw x[t], at t + (W - 1 - w) * dilation": (
            lambda dy, k, w, W, n: at(dy, (W - 1 - w) * n) * k[..., w]
        ),
        f"the dilation is left out: {_SAW}": lambda dy, k, w, W, n: at(dy * k[..., w], _undilated(w, W, n)),
        f"the dilation multiplies w alone: {_SAW}": lambda dy, k, w, W, n: at(dy * k[..., w], _half_dilated(w, W, n)),
        f"the dilation multiplies W - 1 alone: {_SAW}": lambda dy, k, w, W, n: at(dy * k[..., w], _other_half(w, W, n)),
        f"the diagonal is reversed: {_SAW}": lambda dy, k, w, W, n: at(dy * k[..., w], w * n),
        f"the past is gathered, dx needs the future: {_SAW}": lambda dy, k, w, W, n: at(
            dy * k[..., w], (w - W + 1) * n
        ),
        f"the window is one tap late: {_SAW}": lambda dy, k, w, W, n: at(dy * k[..., w], (W - w) * n),
        f"the window is one tap early: {_SAW}": lambda dy, k, w, W, n: at(dy * k[..., w], (W - 2 - w) * n),
        "dy is read at time t: it must be read at t + (W - 1 - w) * dilation": (
            lambda dy, k, w, W, n: dy * at(k[..., w], (W - 1 - w) * n)
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
    mistakes={
        f"the dilation is left out: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, -_undilated(w, W, n)),
        f"the dilation multiplies w alone: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, -_half_dilated(w, W, n)),
        f"the dilation multiplies W - 1 alone: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, -_other_half(w, W, n)),
        f"the taps are reversed: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, -w * n),
        f"the window is one tap late: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, (w - W + 2) * n),
        f"the window is one tap early: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, (w - W) * n),
        f"the window looks ahead: {_HOLDS}": lambda dy, x, w, W, n: dy * at(x, w * n),
        "dy is read at the time of x: it must be read at time t": lambda dy, x, w, W, n: at(dy * x, (w - W + 1) * n),
    },
    shared=("BTD", "B"),
    masks=_PAST | _TAPS,
)


OPERATORS = {"dynamic_conv_forward": _FORWARD, "dynamic_conv_dx": _DX, "dynamic_conv_dweight": _DWEIGHT}
