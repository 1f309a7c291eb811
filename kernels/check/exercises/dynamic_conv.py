"""Exercise 03: the dilated dynamic convolution, forward, dx and dweight.

``dynamic_conv_forward(x, weight, y)``, ``dynamic_conv_dx(dy, weight, dx)``, ``dynamic_conv_dweight(dy, x, dweight)``,
each with ``dilation=, BLOCK_T=, BLOCK_D=``, write their last tensor: x, y, dx, dy [B, T, D], weight, dweight
[B, T, D, W]. Tap w of token t reads time t - (W - 1 - w) * dilation.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Output, Property, Size, Tier, calls
from kernels.check.shared import READ_STRIDES, made
from kernels.check.tensors import SIDES, both_ends
from kernels.dynamic_conv.reference import dynamic_conv_reference

AXES = {"x": "BTD", "y": "BTD", "dx": "BTD", "dy": "BTD", "weight": "BTDW", "dweight": "BTDW"}


def at(x: torch.Tensor, offset: int) -> torch.Tensor:
    """``x[:, t + offset]`` at every t, zero where t + offset is outside 0..T-1."""
    offset = max(-x.shape[1], min(offset, x.shape[1]))
    return torch.nn.functional.pad(x, (0, 0, -offset, offset))


def running_on(x: torch.Tensor, offset: int) -> torch.Tensor:
    """The same without a mask on the time: past its end, a sequence runs on into the next one of the batch."""
    return at(x.flatten(0, 1)[None], offset)[0].view_as(x)


def forward(x: torch.Tensor, weight: torch.Tensor, dilation: int) -> torch.Tensor:
    """y by the reference: a window without dilation reads the same with zeros between neighbouring taps."""
    wide = weight.new_zeros(*weight.shape[:-1], (weight.shape[-1] - 1) * dilation + 1)
    wide[..., ::dilation] = weight
    return dynamic_conv_reference(x, wide)


@dataclass(frozen=True)
class Operator:
    """One of the three functions: its two inputs p and q, its output, its equation, its usual mistakes.

    ``tap(p, q, w, back, at)`` is what tap w contributes, which reads ``back`` tokens back; ``formula`` says where that is,
    ``backs`` gives by cause how many tokens back a mistaken kernel reads, from w, W and the dilation n, and ``mistakes`` what
    its tap contributes otherwise. ``shared`` are the axes that the strides property gives stride 0, for p and for q;
    ``masks`` names the masks that are not mask_t or mask_d, ``lessons`` where the equation, its masks, the use of its
    strides and its kernel are explained.
    """

    inputs: tuple[str, str]
    out: str
    tap: Callable
    formula: str
    backs: dict[str, Callable]
    mistakes: dict[str, Callable]
    shared: tuple[str, str]
    masks: dict
    lessons: tuple[str, str, str, str]
    advice: str
    # What the lessons' scheme asks for, and the naive one: x once a tap, a weight once.
    tiers: tuple[Tier, ...] = (Tier(3, read=1.6, steps=1.1), Tier(1, read=3.2, written=5.0, steps=2.0))
    ends: tuple[str, str] = ("the first tokens", "before the first token")
    own: dict = field(default_factory=dict)  # of a call with the learner's own blocks

    def answer(self, p: torch.Tensor, q: torch.Tensor, W: int, dilation: int) -> torch.Tensor:
        """The output by the reference and autograd."""
        if self.out == "y":
            return forward(p, q, dilation)
        leaf = torch.zeros_like(p) if self.out == "dx" else q.new_zeros(*q.shape, W)
        leaf.requires_grad_()
        y = forward(leaf, q, dilation) if self.out == "dx" else forward(q, leaf, dilation)
        return torch.autograd.grad(y, leaf, p)[0]

    def case(
        self, draw: Draw, B=2, T=16, D=16, W=4, dilation=2, BLOCK_T=16, BLOCK_D=16, *, dtypes=(torch.float32,) * 2, scale=1.0,
        **how,
    ) -> Case:  # fmt: skip
        """One call of these sizes on normal values, within fences as wide as what a block may read; ``how`` is ``made``'s."""
        dtype = dict(zip(self.inputs, dtypes))
        return made(
            (self.inputs, (self.out,)),
            AXES,
            {"B": B, "T": T, "D": D, "W": W},
            lambda name, *shape: draw.normal(*shape, dtype=dtype[name], scale=scale),
            {"dilation": dilation, "BLOCK_T": BLOCK_T, "BLOCK_D": BLOCK_D},
            lambda case: {self.out: {"expected": self.answer(*(x.values.double() for x in case.inputs), W, dilation)}},
            fence={"B": 1, "T": BLOCK_T + W * dilation, "D": BLOCK_D, "W": 6},
            **how,
        )

    def suspects(self, case: Case, out: Output):
        """Known mistakes, as other taps in the equation, and the outputs they give."""
        p, q = (tensor.values.double() for tensor in case.inputs)
        W = next(tensor.size("W") for tensor in case.tensors if "W" in tensor.axes)

        def taps(tap=self.tap, p=p, q=q, back=lambda w, W, n: (W - 1 - w) * n, at=at):
            return [tap(p, q, w, back(w, W, case.launch["dilation"]), at) for w in range(W)]

        def combine(taps):
            return torch.stack(taps, dim=-1) if self.out == "dweight" else sum(taps)

        right = taps()
        for cause, back in self.backs.items():
            yield f"{cause}: {self.formula}", combine(taps(back=back))
        for cause, tap in self.mistakes.items():
            yield cause, combine(taps(tap))
        for name, first in zip(self.inputs, ({"p": p[:1].expand_as(p)}, {"q": q[:1].expand_as(q)})):
            yield f"every sequence reads the first one's {name}: add b times its stride", combine(taps(**first))
        yield "a neighbouring sequence of the batch is read", combine(taps(at=running_on))
        if self.out == "dweight":
            holes = combine(taps(p=torch.ones_like(p), q=torch.ones_like(q))) == 0
            cause = "slots whose tap lies before the first token hold 0, and they are stored too"
            yield cause, combine(right).masked_fill(holes, float("nan"))
        else:
            yield "only the last tap is left: add to the accumulator, do not replace it", right[-1]
            for n in range(1, W):
                yield f"only the first {n} of the {W} taps are added: loop over W", sum(right[:n])
                yield f"only the last {W - n} of the {W} taps are added: loop over W", sum(right[n:])

    def steps(self, case: Case) -> int:
        """Two loads for each tap and a store; or one load before the loop, and a load and a store for each tap."""
        sizes = {axis: n for tensor in case.tensors for axis, n in zip(tensor.axes, tensor.shape)}
        programs = sizes["B"] * -(-sizes["T"] // case.launch["BLOCK_T"]) * -(-sizes["D"] // case.launch["BLOCK_D"])
        return programs * (2 * sizes["W"] + 1)


BACKS = {
    "the dilation is left out": lambda w, W, n: W - 1 - w,
    "the dilation multiplies w alone": lambda w, W, n: W - 1 - w * n,
    "the dilation multiplies W - 1 alone": lambda w, W, n: (W - 1) * n - w,
}
READ = BACKS | {
    "the taps are reversed": lambda w, W, n: w * n,
    "the window is one tap late": lambda w, W, n: (W - 2 - w) * n,
    "the window is one tap early": lambda w, W, n: (W - w) * n,
    "the window looks ahead": lambda w, W, n: -w * n,
}
PAST = {("x", "T", "before"): "time >= 0"}
TAPS = {(name, "W", side): "w runs over 0..W-1" for name in ("weight", "dweight") for side in SIDES}
SUM = "each tap loads {} and its weight once, the sum stays in registers, and {} is stored once, after the loop"

OPERATORS = {
    "FORWARD": Operator(
        inputs=("x", "weight"),
        out="y",
        tap=lambda x, weight, w, back, at: at(x, -back) * weight[..., w],
        formula="tap w reads time t - (W - 1 - w) * dilation",
        backs=READ,
        mistakes={
            "weight is read at the time of x: it must be read at time t": (
                lambda x, weight, w, back, at: at(x * weight[..., w], -back)
            )
        },
        shared=("B", "BT"),
        masks=PAST | TAPS,
        lessons=("Lesson 10, step 1", "Lesson 10, step 2", READ_STRIDES, "Lesson 10, step 2"),
        advice=SUM.format("x", "y"),
    ),
    "DX": Operator(
        inputs=("dy", "weight"),
        out="dx",
        tap=lambda dy, weight, w, back, at: at(dy * weight[..., w], back),
        formula="tap w saw x[t] at time t + (W - 1 - w) * dilation",
        backs=BACKS
        | {
            "the diagonal is reversed": lambda w, W, n: w * n,
            "the past is gathered, dx needs the future": lambda w, W, n: (w - W + 1) * n,
            "the window is one tap late": lambda w, W, n: (W - w) * n,
            "the window is one tap early": lambda w, W, n: (W - 2 - w) * n,
        },
        mistakes={
            "weight is read at time t: it must be read where tap w saw x[t], at t + (W - 1 - w) * dilation": (
                lambda dy, weight, w, back, at: at(dy, back) * weight[..., w]
            ),
            "dy is read at time t: it must be read at t + (W - 1 - w) * dilation": (
                lambda dy, weight, w, back, at: dy * at(weight[..., w], back)
            ),
        },
        shared=("BTD", "BT"),
        masks={(name, "T", "after"): "time < T" for name in ("dy", "weight")} | TAPS,
        lessons=("Lesson 12, step 3", "Lesson 12, step 3", READ_STRIDES, "Lesson 12, step 4"),
        advice=SUM.format("dy", "dx"),
        ends=("the last tokens", "after the last token"),
    ),
    "DWEIGHT": Operator(
        inputs=("dy", "x"),
        out="dweight",
        tap=lambda dy, x, w, back, at: dy * at(x, -back),
        formula="slot w holds dy[t] * x[t - (W - 1 - w) * dilation]",
        backs=READ,
        mistakes={"dy is read at the time of x: it must be read at time t": lambda dy, x, w, back, at: at(dy * x, -back)},
        shared=("BTD", "B"),
        masks=PAST | TAPS,
        lessons=("Lesson 12, step 2", "Lesson 10, step 2", READ_STRIDES, "Lesson 12, step 4"),
        advice="dy is the same for every tap: load it once, before the loop, and store each slot once",
        # Dy once, or once a tap, too.
        tiers=(Tier(3, read=2.5, steps=1.1), Tier(1, read=4.5, written=2.0, steps=2.0)),
        own={"B": 1, "T": 32, "D": 64},
    ),
}

WHOLE, LONG = Size(16, 16, 32, 16), Size(16, 16, 48, 16)
HALF, READ_FP32 = (torch.float16, torch.float16), "Lesson 10, step 2"


def exercise(name: str, op: Operator) -> Exercise:
    """What the kernel of one operator is held to."""
    of, (equation, masks, memory, kernel), (reach, past) = functools.partial(calls, op.case), op.lessons, op.ends
    shared = dict(zip(op.inputs, op.shared))
    return Exercise(
        name=name,
        missing=f"the kernel stores nothing yet. It needs a loop over the W taps, and a store of {op.out}.",
        properties=(
            # No square: an accumulator with its axes swapped has the wrong shape at once.
            Property("whole blocks", 1, equation, of(B=1, T=LONG, D=64, BLOCK_D=32, packed=True)),
            Property(  # with the last dilation, few taps read anything
                "dilation", 1, equation,
                of(*({"dilation": n} for n in (1, Size(3, 3, 4), Size(9, 8, 20))), B=1, T=LONG, W=3, packed=True),
                "neighbouring taps read times that lie dilation apart",
            ),
            Property(
                "strides", 1, memory,
                of(
                    {},
                    {"orders": {"BTD": "BDT", "BTDW": "BTWD"}},
                    {"out_orders": {"BTD": "TBD", "BTDW": "WBTD"}},
                    # Along T, a repeated token looks right or wrong by the mask on the time: that is the next property's.
                    {"shared": {name: axes.replace("T", "") for name, axes in shared.items()}},
                    {"B": 3, "T": 16, "far": dict.fromkeys((*op.inputs, op.out), "B")},
                    T=WHOLE,
                ),
                "each axis of each tensor has its own stride, and some strides are 0",
            ),
            Property(
                reach, 1, masks, of({"W": Size(4, 3, 6), "poison": None}, {"shared": shared}, T=WHOLE),
                f"a tap {past} adds nothing",
            ),
            Property(
                "ragged length", 1, masks,
                of(*({"T": T} for T in (Size(13, 9, 15), Size(2, 1, 3), Size(37, 33, 47), 17, Size(300, 260, 350)))),
                "the grid must cover the last, partial block of T, and mask_t must cut it",
            ),
            Property(
                "ragged channels", 1, masks,
                of(*({"D": D} for D in (Size(20, 18, 31), Size(3, 1, 7), 17, Size(150, 130, 170)))),
                "the grid must cover the last, partial block of D, and mask_d must cut it",
            ),
            Property(
                "number of taps", 1, kernel, of(*({"W": W} for W in (1, 2, 3, Size(6, 5, 9))), poison=both_ends("W")),
                "the loop must run over W taps, no more",
            ),
            Property(
                "block sizes", 1, kernel,
                of(
                    *({"BLOCK_T": T, "BLOCK_D": D} for T, D in ((8, 32), (32, 8), (64, 16))),
                    B=1, T=Size(64, 64, 128, 64), D=32,
                ),
                "the answer depends on the block sizes: offs_t takes BLOCK_T, offs_d BLOCK_D",
            ),
            Property(
                "float16", 1, READ_FP32,
                of({"dtypes": HALF, "scale": 300.0}, {"dtypes": (torch.float32, torch.float16)}, tolerance=2e-5),
                "products or sums are taken in float16: convert to tl.float32 right after each load",
            ),
            Property.stays_inside(masks, of(T=Size(37, 17, 47), D=Size(20, 17, 31), W=Size(4, 3, 6))),
            Property.in_bfloat16(READ_FP32, of(dtypes=(torch.bfloat16, torch.bfloat16))),
        ),
        suspects=op.suspects,
        masks=op.masks,
        compiles=Compiles(
            of(B=1, T=128, D=128, BLOCK_D=64, dtypes=HALF, packed=True), kernel,
            own_blocks=functools.partial(op.case, **op.own, dtypes=HALF, packed=True) if op.own else None,
        ),
        cheap=Cheap(of(T=64, D=32, dilation=1, packed=True), op.steps, op.tiers, op.advice, kernel, sectors=2.5),
    )  # fmt: skip


FORWARD, DX, DWEIGHT = (exercise(f"dynamic_conv_{name.lower()}", op) for name, op in OPERATORS.items())
