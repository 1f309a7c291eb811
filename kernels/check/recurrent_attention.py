"""The checks of exercise 04: gated recurrent attention, forward, backward, and the gradient of the scalar gate.

``recurrent_forward(q, k, v, g, gk, S0, o, ST)``, ``recurrent_backward(q, k, v, g, gk,
S0, do, dST, dq, dk, dv, dS0)`` and ``recurrent_gate_gradient(q, k, v, g, S0,
do, dST, dg)`` write the last of their tensors; all take ``cu_seqlens=, scale=``. The sequences lie end to end
along T: q, k, gk [T, H, K], v, o [T, H, V], g [T, H], states [N, H, K, V].
"""

from collections.abc import Callable

from kernels.check.framework import Cheap, Compiles, Exercise, Property, Tier
from kernels.check.recurrent_cases import Backward, Forward, Function, Gate, backward_steps, forward_steps, gate_steps
from kernels.check.recurrent_mistakes import gate_suspects, walk_suspects
from kernels.check.recurrent_problem import AXES

F16 = "products or sums are taken in float16: convert to tl.float32 right after each load"
STRIDES = "each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x"
READ_STRIDES, READ_PACKED = "Lesson 01, step 4", "Lesson 21, step 5"


# What all three have in common. A head's or a sequence's end is no mask's business.


def _exercise(
    f: Function, name: str, missing: str, *properties: Property, suspects: Callable, cheap: tuple
) -> Exercise:
    """The exercise of this function."""
    masks = {(tensor, axis, "after"): "" for tensor in AXES for axis in "HN"}
    return Exercise(
        name,
        missing,
        properties,
        suspects,
        masks,
        given=("at",),
        compiles=Compiles(f.usual, properties[0].lesson),
        cheap=Cheap(f.costed, *cheap, sectors=2.0),
    )


def _packed_and_strided(f: Function, packed: str, masks: str) -> tuple[Property, ...]:
    """What both walks are held to; ``packed`` and ``masks`` are the steps that explain sequences and masks."""
    sequences = "sequence n has the tokens from cu_seqlens[n] up to cu_seqlens[n + 1], perhaps none"
    return (
        Property("packed sequences", 1, packed, f.sequences, sequences),
        Property("strides", 1, READ_STRIDES, f.strides, STRIDES),
        Property("ragged K", 1, masks, f.keys, "rows beyond K must stay 0 (mask_k)"),
    )


def _rounded_and_inside(f: Function, lesson: str) -> tuple[Property, ...]:
    """The last properties of all three."""
    return (
        Property("float16", 1, lesson, f.half, F16),
        Property.stays_inside(lesson, f.everything),
        Property.in_bfloat16(lesson, f.bfloat),
    )


_forward = Forward(("q", "k", "v", "g", "gk", "S0"), ("o", "ST"), "BLOCK_V")
FORWARD = _exercise(
    _forward,
    "recurrent_forward",
    "the kernel stores nothing yet. It needs a state, a walk along the tokens, and a store of o.",
    Property("whole blocks", 1, "Lesson 20, step 2", _forward.whole),
    Property("gates", 1, "Lesson 21, step 1", _forward.gated, "every row i of the state decays by exp(g_t + gk_t[i])"),
    Property(
        "a state at both ends",
        1,
        "Lesson 21, step 3",
        _forward.ends,
        "S starts as S0[n, h]; after the last token it is ST[n, h]",
    ),
    *_packed_and_strided(_forward, READ_PACKED, "Lesson 20, step 3"),
    Property("ragged V", 1, "Lesson 20, step 3", _forward.values, "mask_v must cut the last, partial block of V"),
    Property("block sizes", 1, "Lesson 20, step 3", _forward.blocks, "the answer depends on BLOCK_V, it must not"),
    *_rounded_and_inside(_forward, "Lesson 20, step 3"),
    suspects=walk_suspects,
    cheap=(
        forward_steps,
        (Tier(3, read=1.35, steps=1.1), Tier(1, read=2.7, written=3.0, steps=2.0)),
        "the state stays in registers from token to token: each token is loaded once for each block of V",
        "Lesson 20, step 3",
    ),
)

_backward = Backward(("q", "k", "v", "g", "gk", "S0", "do", "dST"), ("dq", "dk", "dv", "dS0"))
BACKWARD = _exercise(
    _backward,
    "recurrent_backward",
    "the kernels store nothing yet. They need a walk forward that stores dq, and one back that stores dk and dv.",
    Property("queries", 1, "Lesson 22, step 2", _backward.queries),
    Property("keys and values", 1, "Lesson 22, step 2", _backward.keys_and_values),
    Property(
        "gates",
        1,
        "Lesson 22, step 1",
        _backward.gated,
        "D_t = exp(g_t + gk_t) lies between token t and the one before it, on the way back too",
    ),
    Property(
        "a state at both ends",
        1,
        "Lesson 22, step 1",
        _backward.ends,
        "dS starts as dST[n, h]; what is left before the first token is dS0[n, h]",
    ),
    *_packed_and_strided(_backward, "Lesson 22, step 3", "Lesson 22, step 3"),
    Property("ragged V", 1, "Lesson 22, step 3", _backward.values, "columns beyond V must stay 0 (mask_v)"),
    *_rounded_and_inside(_backward, "Lesson 22, step 3"),
    suspects=walk_suspects,
    cheap=(
        backward_steps,
        (Tier(3, read=1.46, steps=1.1), Tier(1, read=2.9, written=3.0, steps=2.0)),
        "two walks load each token twice: states are made anew, not stored, and each gradient is stored once",
        "Lesson 22, step 3",
    ),
)

_gate = Gate(("q", "k", "v", "g", "S0", "do", "dST"), ("dg",), "BLOCK_T")
GATE = _exercise(
    _gate,
    "recurrent_gate_gradient",
    "the kernel stores nothing yet. It needs W, its sums over s < t <= r, the two states' terms, and a store of dg.",
    Property("one block", 1, "Lesson 23, step 4", _gate.one_block, "dg_t is the sum of W[r, s] over s < t <= r"),
    Property(
        "the states' terms",
        2,
        "Lesson 23, step 5",
        _gate.both_states,
        "S_0 counts as an s before the first token, the gradient of S_T as an r after the last",
    ),
    Property(
        "strong decay",
        1,
        "Lesson 23, step 3",
        _gate.strong,
        "large terms cancel: add up the pairs with s < t <= r and subtract nothing",
        not_finite="a positive number is exponentiated: only differences gamma_r - gamma_s <= 0 may be",
        exponents=True,
    ),
    Property(
        "resets",
        1,
        "Lesson 23, step 6",
        _gate.resets,
        "a pair with a gate of -inf between its tokens gives exactly 0: their counts of resets differ",
        not_finite="-inf - -inf is NaN: put 0 for a gate of -inf into gamma, and count the resets instead",
    ),
    Property(
        "packed sequences", 1, "Lesson 23, step 5", _gate.packed, "each sequence has its own sums and its own states"
    ),
    Property(
        "ragged sizes", 1, "Lesson 23, step 7", _gate.ragged, "rows beyond the end add nothing, and are not stored"
    ),
    Property("strides", 1, READ_STRIDES, _gate.strides, STRIDES),
    *_rounded_and_inside(_gate, "Lesson 23, step 7"),
    suspects=gate_suspects,
    cheap=(
        gate_steps,
        (Tier(3, read=1.0, steps=1.2), Tier(1, read=2.0, written=2.0, steps=3.0)),
        "one block has the whole sequence: each tensor is loaded once, and dg stored once",
        "Lesson 23, step 7",
    ),
)
