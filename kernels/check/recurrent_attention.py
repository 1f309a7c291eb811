"""The checks of exercise 04: gated recurrent attention, forward, backward, and the gradient of the scalar gate.

``recurrent_forward(q, k, v, g, gk, S0, o, ST)``, ``recurrent_backward(q, k, v, g, gk,
S0, do, dST, dq, dk, dv, dS0)`` and ``recurrent_gate_gradient(q, k, v, g, S0,
do, dST, dg)`` write the last of their tensors; all take ``cu_seqlens=, scale=``. The sequences lie end to end
along T: q, k, gk [T, H, K], v, o [T, H, V], g [T, H], states [N, H, K, V]. A variation decays, writes and reads in another
order, has gates to the base 2, or gv [T, H, V] in the place of gk.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from kernels import runtime
from kernels.check.framework import (
    Case,
    Cheap,
    Compiles,
    Draw,
    Exercise,
    Fenced,
    Output,
    Property,
    Tier,
)
from kernels.check.recurrence import READ_FIRST, WRITE_FIRST, Gated
from kernels.check.recurrent_mistakes import AXES, STATES, Problem, answers, gate_suspects, walk_suspects

INF = float("inf")

_SHARED = {"k": "H", "g": "H", "gk": "TH", "gv": "TH", "do": "THV", "v": "T"}
ENDS = {axis: ((axis, "before"), (axis, "after")) for axis in "TKV"}


@dataclass(frozen=True)
class Function:
    """One of the three functions: its tensors, its block size if it has one, the known mistakes, what is asked of it."""

    inputs: tuple[str, ...]
    outs: tuple[str, ...]
    block: str
    suspects: Callable
    task: Gated

    def case(self, draw: Draw, *, lengths=(6,), H=1, K=16, V=16, BLOCK=16, poison=(), judge=None, **how) -> Case:
        """One call of these sizes; ``judge`` names the outputs that are judged, all unless told.

        ``how``: ``gates(name, shape)`` makes g and the channels' gates, ``states`` names those that are not zero, ``half``
        is the dtype of q, k, v and do, ``magnitude`` multiplies them; ``orders``, ``shared`` and ``packed`` say how tensors
        lie in memory; ``tolerance`` and ``apart``, gates whose gradients are judged among themselves, go to the outputs.
        """
        sizes = {"T": sum(lengths), "H": H, "K": K, "V": V, "N": len(lengths)}
        fence = None if how.get("packed") else {"T": BLOCK, "K": 32, "V": 32, "H": 1, "N": 1}
        tensors = []
        for name in self.inputs:
            axes, still = AXES[name], how.get("shared", {}).get(name, "")
            shape = [sizes[axis] for axis in axes]
            one = [1 if axis in still else sizes[axis] for axis in axes]
            if name in ("g", "gk", "gv"):
                values = how["gates"](name, one) if "gates" in how else -0.25 * draw.normal(*one).abs()
            elif name in STATES:
                values = draw.normal(*one) if name in how.get("states", STATES) else torch.zeros(one)
            else:
                values = draw.normal(*one, dtype=how.get("half", torch.float32), scale=how.get("magnitude", 1.0))
            order = how.get("orders", {}).get(axes, "")
            tensors.append(Fenced(name, axes, values.expand(shape), fence=fence, order=order, shared=still))
        ends = torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], dtype=torch.int32)
        launch = {"cu_seqlens": ends.to(runtime.device), "scale": how.get("scale", K**-0.5)}
        case = Case(tensors, [], launch | ({self.block: BLOCK} if self.block else {}), poison=poison)
        expected = answers(Problem.of(case, self.task))
        groups = how["apart"](Problem.of(case, self.task).x["g"]).int() if "apart" in how else None
        for name in self.outs:
            empty = torch.empty([sizes[axis] for axis in AXES[name]])
            tensor = Fenced(name, AXES[name], empty, fence=fence, order=how.get("out_orders", {}).get(AXES[name], ""))
            answer = expected[name] if judge is None or name in judge else None
            # The precision property alone looks at the last digits.
            case.outs.append(Output(tensor, answer, groups, how.get("tolerance", 5e-3)))
        return case

    # What all three have in common. A head's or a sequence's end is no mask's business.

    def exercise(self, name: str, missing: str, *properties: Property, cheap: Cheap, vary: Callable) -> Exercise:
        """The exercise of this function."""
        suspects = functools.partial(self.suspects, task=self.task)
        masks = {(tensor, axis, "after"): "" for tensor in AXES for axis in "HN"}
        compiles = Compiles(self.usual, properties[0].lesson)
        return Exercise(
            name, missing, properties, suspects, masks, given=("at",), compiles=compiles, cheap=cheap, vary=vary
        )

    @property
    def plain(self) -> dict:
        """No gates, where a variation would be the published exercise without them."""
        return {} if self.task.varied else {"gates": no_gates}

    def usual(self, draw):
        """Channels as a GPU has them; a block of tokens, where there is one, that leaves its products in registers."""
        block, wide = (16, 32) if self.block == "BLOCK_T" else (32, 64)
        yield self.case(draw, lengths=(16,), K=wide, V=wide, BLOCK=block, half=torch.float16, packed=True)

    def costed(self, draw):
        """Two heads and two sequences; where there are blocks of V, two of them."""
        V = 32 if self.block == "BLOCK_V" else 16
        yield self.case(draw, lengths=(9, 7), H=2, V=V, packed=True)

    def strides(self, draw):
        """Several heads and sequences; axes in other orders; keys and gates that all heads share, one gradient."""
        lengths = (draw.size(3, 2, 5), draw.size(2, 2, 5))
        yield self.case(draw, lengths=lengths, H=2)
        yield self.case(draw, lengths=lengths, H=2, orders={"THK": "HTK", "THV": "VHT", "TH": "HT", "NHKV": "HVNK"})
        yield self.case(draw, lengths=lengths, H=2, out_orders={"THK": "KTH", "THV": "HVT", "TH": "HT", "NHKV": "VNHK"})
        yield self.case(draw, lengths=lengths, H=2, shared=_SHARED)

    def sequences(self, draw):
        """Sequences end to end, empty ones first, last and in between; nothing but empty ones."""
        yield self.case(draw, lengths=(draw.size(3, 2, 5), draw.size(2, 1, 4)))
        yield self.case(draw, lengths=(0, draw.size(2, 1, 4), 0, 0, draw.size(3, 1, 4), 0), H=1)
        yield self.case(draw, lengths=(0, 0))

    def keys(self, draw):
        """Numbers of key channels that fill no block, and fewer than a block has."""
        for shown, low, high in ((20, 17, 31), (3, 1, 7)):
            yield self.case(draw, lengths=(3,), K=draw.size(shown, low, high), poison=ENDS["K"])

    def values(self, draw):
        """The same for value channels."""
        for shown, low, high in ((20, 17, 31), (3, 1, 7)):
            yield self.case(draw, lengths=(3,), V=draw.size(shown, low, high), poison=ENDS["V"])

    def half(self, draw):
        """float16 values, whose products float16 cannot hold, then some whose last digits it cannot."""
        yield self.case(draw, half=torch.float16, magnitude=300.0, tolerance=2e-5)
        yield self.case(draw, half=torch.float16, tolerance=2e-5)

    def bfloat(self, draw):
        """bfloat16 values."""
        yield self.case(draw, half=torch.bfloat16)

    def everything(self, draw):
        """Everything ragged at once, for the addresses."""
        lengths = (draw.size(5, 2, 7), 0, draw.size(3, 2, 7))
        yield self.case(draw, lengths=lengths, H=2, K=draw.size(20, 17, 31), V=draw.size(5, 3, 15))


def no_gates(name, shape):
    """Gates that keep everything."""
    return torch.zeros(shape)


def strong_gates(name, shape):
    """Every third token at -20, every fourth at -inf, but not the first; of the channels' gates, some at -inf."""
    gates = torch.full(shape, -0.05)
    if name == "g":
        gates[2::3], gates[1::4] = -20.0, -INF
    else:
        gates[:, :, ::5] = -INF
    return gates


F16 = "products or sums are taken in float16: convert to tl.float32 right after each load"
STRIDES = "each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x"
READ_STRIDES, READ_PACKED = "Lesson 01, step 4", "Lesson 20, step 7"


def _plain(f, draw):
    yield f.case(draw, lengths=(5,), H=3, K=32, V=32, **f.plain, states=(), judge=("o",), packed=True)
    yield f.case(draw, lengths=(draw.size(6, 4, 8),), **f.plain, states=(), judge=("o",), packed=True)


def _gates(f, draw):
    yield f.case(draw, states=(), judge=("o",))
    yield f.case(draw, states=(), judge=("o",), gates=strong_gates)


def _ends(f, draw):
    yield f.case(draw, lengths=(draw.size(4, 3, 6),), H=2)


def _blocks(f, draw):
    for BLOCK_V in (8, 32, 64):
        yield f.case(draw, lengths=(3,), V=32, BLOCK=BLOCK_V)


def _tokens(case: Case) -> tuple[int, int]:
    """Programs of a kernel with one for each sequence and head, and their tokens in all."""
    tensors = {tensor.name: tensor for tensor in case.tensors}
    H = tensors["g"].size("H")
    return tensors["S0"].size("N") * H, tensors["g"].size("T") * H


def _forward_steps(case: Case) -> int:
    """Five loads and a store for each token of each block of V; four more accesses for each of the programs."""
    programs, tokens = _tokens(case)
    blocks = -(-case.outs[0].tensor.size("V") // case.launch["BLOCK_V"])
    return blocks * (4 * programs + 6 * tokens)


def _backward_steps(case: Case) -> int:
    """On the way there five loads and a store for each token, on the way back six and two."""
    programs, tokens = _tokens(case)
    return 3 * programs + 6 * tokens + 4 * programs + 8 * tokens


def _forward_exercise(task: Gated) -> Exercise:
    f = Function(("q", "k", "v", "g", task.gates, "S0"), ("o", "ST"), "BLOCK_V", walk_suspects, task)
    rows = "every row i of the state decays by exp(g_t + gk_t[i])"
    if task.varied:
        rows = f"the state decays by D = {task.decays}, in the order {task.order}: {task.equation}"
    return f.exercise(
        "recurrent_forward",
        "the kernel stores nothing yet. It needs a state, a walk along the tokens, and a store of o.",
        Property("whole blocks", 1, "Lesson 20, step 2", functools.partial(_plain, f)),
        Property("gates", 1, "Lesson 20, step 3", functools.partial(_gates, f), rows),
        Property(
            "a state at both ends",
            1,
            "Lesson 20, step 6",
            functools.partial(_ends, f),
            "S starts as S0[n, h]; after the last token it is ST[n, h]",
        ),
        Property(
            "packed sequences",
            1,
            READ_PACKED,
            f.sequences,
            "sequence n has the tokens from cu_seqlens[n] up to cu_seqlens[n + 1], perhaps none",
        ),
        Property("strides", 1, READ_STRIDES, f.strides, STRIDES),
        Property("ragged K", 1, "Lesson 20, step 4", f.keys, "rows beyond K must stay 0 (mask_k)"),
        Property("ragged V", 1, "Lesson 20, step 4", f.values, "mask_v must cut the last, partial block of V"),
        Property(
            "block sizes",
            1,
            "Lesson 20, step 4",
            functools.partial(_blocks, f),
            "the answer depends on BLOCK_V, it must not",
        ),
        Property("float16", 1, "Lesson 20, step 4", f.half, F16),
        Property.stays_inside("Lesson 20, step 4", f.everything),
        Property.in_bfloat16("Lesson 20, step 4", f.bfloat),
        vary=functools.partial(_varied, 0),
        cheap=Cheap(
            f.costed,
            _forward_steps,
            (Tier(3, read=1.35, steps=1.1), Tier(1, read=2.7, written=3.0, steps=2.0)),
            "the state stays in registers from token to token: each token is loaded once for each block of V",
            "Lesson 20, step 4",
            sectors=2.0,
        ),
    )


def _queries(f, draw):
    yield f.case(draw, **f.plain, states=(), judge=("dq",), packed=True)


def _keys_and_values(f, draw):
    yield f.case(draw, **f.plain, states=(), judge=("dk", "dv"), packed=True)


def _gates_back(f, draw):
    yield f.case(draw, states=())
    yield f.case(draw, states=(), gates=strong_gates)


def _ends_back(f, draw):
    yield f.case(draw, lengths=(draw.size(4, 3, 6),), H=2)


def _backward_exercise(task: Gated) -> Exercise:
    inputs = ("q", "k", "v", "g", task.gates, "S0", "do", "dST")
    f = Function(inputs, ("dq", "dk", "dv", "dS0"), "", walk_suspects, task)
    between = "D_t = exp(g_t + gk_t) lies between token t and the one before it, on the way back too"
    if task.varied:
        between = f"with {task.equation}, each step back is that step's gradient; D = {task.decays}"
    return f.exercise(
        "recurrent_backward",
        "the kernels store nothing yet. They need a walk forward that stores dq, and one back that stores dk and dv.",
        Property("queries", 1, "Lesson 22, step 2", functools.partial(_queries, f)),
        Property("keys and values", 1, "Lesson 22, step 2", functools.partial(_keys_and_values, f)),
        Property(
            "gates",
            1,
            "Lesson 22, step 1",
            functools.partial(_gates_back, f),
            between,
        ),
        Property(
            "a state at both ends",
            1,
            "Lesson 22, step 1",
            functools.partial(_ends_back, f),
            "dS starts as dST[n, h]; what is left before the first token is dS0[n, h]",
        ),
        Property(
            "packed sequences",
            1,
            "Lesson 22, step 9",
            f.sequences,
            "sequence n has the tokens from cu_seqlens[n] up to cu_seqlens[n + 1], perhaps none",
        ),
        Property("strides", 1, READ_STRIDES, f.strides, STRIDES),
        Property("ragged K", 1, "Lesson 22, step 4", f.keys, "rows beyond K must stay 0 (mask_k)"),
        Property("ragged V", 1, "Lesson 22, step 4", f.values, "columns beyond V must stay 0 (mask_v)"),
        Property("float16", 1, "Lesson 22, step 4", f.half, F16),
        Property.stays_inside("Lesson 22, step 4", f.everything),
        Property.in_bfloat16("Lesson 22, step 4", f.bfloat),
        vary=functools.partial(_varied, 1),
        cheap=Cheap(
            f.costed,
            _backward_steps,
            (Tier(3, read=1.46, steps=1.1), Tier(1, read=2.9, written=3.0, steps=2.0)),
            "two walks load each token twice: states are made anew, not stored, and each gradient is stored once",
            "Lesson 22, step 4",
            sectors=2.0,
        ),
    )


def _one_block(f, draw):
    yield f.case(draw, lengths=(16,), states=(), packed=True)


def _boundary(f, draw):
    yield f.case(draw, lengths=(16,))


def _constant(name, shape):
    return torch.full(shape, -20.0)


def _one_in_four(gate):
    def gates(name, shape):
        values = torch.full(shape, -0.05)
        values[2::4] = gate
        return values

    return gates


def _strong(f, draw):
    """Each strong gate is judged among strong gates: their gradients are smaller than the others' rounding."""
    spread = -25 * torch.distributions.Normal(0, 1).cdf(draw.normal(16, 1))
    for gates in (_one_in_four(-20.0), lambda name, shape: spread, _constant):
        yield f.case(draw, lengths=(16,), gates=gates, apart=lambda g: g <= -15, tolerance=1e-3)


def _resets(f, draw):
    """A reset's gradient is exactly 0: among themselves, resets leave no room for rounding."""
    for place in (2, 3):
        gates = _one_in_four(-INF) if place == 2 else _two_in_a_row
        yield f.case(draw, lengths=(16,), gates=gates, apart=lambda g: g == -INF)


def _two_in_a_row(name, shape):
    values = torch.full(shape, -0.5)
    values[0], values[5:7] = -INF, -INF
    return values


def _packed(f, draw):
    short = draw.size(5, 2, 7)
    yield f.case(draw, lengths=(short, 16 - short))
    yield f.case(draw, lengths=(0, draw.size(11, 9, 15), 0, draw.size(3, 1, 4), 0))


def _ragged(f, draw):
    for lengths, K, V, BLOCK in (((13, 9, 15), 20, 5, 16), ((3, 1, 4), 3, 20, 16), ((20, 17, 31), 16, 16, 32)):
        yield f.case(draw, lengths=(draw.size(*lengths),), K=K, V=V, BLOCK=BLOCK, poison=None)


def _gate_exercise(task: Gated) -> Exercise:
    f = Function(("q", "k", "v", "g", "S0", "do", "dST"), ("dg",), "BLOCK_T", gate_suspects, task)
    pairs = {WRITE_FIRST: "s <= t <= r", READ_FIRST: "s < t < r"}.get(task.order, "s < t <= r")
    factor = "log 2 times " * (task.base == "2")
    return f.exercise(
        "recurrent_gate_gradient",
        "the kernel stores nothing yet. It needs W, its sums over s < t <= r, the two states' terms, and a store of dg.",
        Property(
            "one block",
            1,
            "Lesson 22, step 7",
            functools.partial(_one_block, f),
            f"dg_t is {factor}the sum of W[r, s] over {pairs}",
        ),
        Property(
            "the states' terms",
            2,
            "Lesson 22, step 7",
            functools.partial(_boundary, f),
            "S_0 counts as an s before the first token, the gradient of S_T as an r after the last",
        ),
        Property(
            "strong decay",
            1,
            "Lesson 22, step 6",
            functools.partial(_strong, f),
            f"large terms cancel: add up the pairs with {pairs} and subtract nothing",
            not_finite="a positive number is exponentiated: only differences gamma_r - gamma_s <= 0 may be",
            exponents=True,
        ),
        Property(
            "resets",
            1,
            "Lesson 22, step 8",
            functools.partial(_resets, f),
            "a pair with a gate of -inf between its tokens gives exactly 0: their counts of resets differ",
            not_finite="-inf - -inf is NaN: put 0 for a gate of -inf into gamma, and count the resets instead",
        ),
        Property(
            "packed sequences",
            1,
            "Lesson 22, step 9",
            functools.partial(_packed, f),
            "each sequence has its own sums and its own states",
        ),
        Property(
            "ragged sizes",
            1,
            "Lesson 22, step 7",
            functools.partial(_ragged, f),
            "rows beyond the end add nothing, and are not stored",
        ),
        Property("strides", 1, READ_STRIDES, f.strides, STRIDES),
        Property("float16", 1, "Lesson 22, step 7", f.half, F16),
        Property.stays_inside("Lesson 22, step 7", f.everything),
        Property.in_bfloat16("Lesson 22, step 7", f.bfloat),
        vary=functools.partial(_varied, 2),
        cheap=Cheap(
            f.costed,
            lambda case: 10 * _tokens(case)[0],
            (Tier(3, read=1.0, steps=1.2), Tier(1, read=2.0, written=2.0, steps=3.0)),
            "one block has the whole sequence: each tensor is loaded once, and dg stored once",
            "Lesson 22, step 7",
            sectors=2.0,
        ),
    )


@functools.cache
def exercises(task: Gated) -> tuple[Exercise, Exercise, Exercise]:
    """The three exercises where ``task`` is asked."""
    return _forward_exercise(task), _backward_exercise(task), _gate_exercise(task)


def _varied(which: int, varied: Mapping) -> Exercise:
    return exercises(Gated.of(varied))[which]


FORWARD, BACKWARD, GATE = exercises(Gated())
