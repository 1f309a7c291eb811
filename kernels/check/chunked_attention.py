"""The checks of exercise 05: attention with a value gate in chunks, the states between them and the outputs inside them.

``chunk_states(k, v, g, S0, states)`` writes the state that enters each of the N - 1 chunks of C tokens, and the one
after the last; ``chunk_outputs(q, k, v, g, states, o, scale)`` reads them. Both take ``C=, BLOCK_V=``; q, k
[B, T, H, K], v, o, g [B, T, H, V], S0 [B, H, K, V], states [B, H, N, K, V].
"""

import functools
from dataclasses import dataclass

import torch

from kernels.check.chunked_mistakes import AXES, by_reference, suspects
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Tier
from kernels.check.tensors import both_ends

INF = float("inf")
CUT, KERNEL = "Lesson 24, step 2", "Lesson 24, step 5"


@dataclass(frozen=True)
class Function:
    """One of the two functions: its inputs and its output."""

    inputs: tuple[str, ...]
    out: str

    def case(self, draw: Draw, *, B=1, T=32, H=1, K=16, V=16, C=16, BLOCK_V=16, poison=(), **how) -> Case:
        """One call of these sizes.

        ``how``: ``gates(shape)`` makes g, ``state=False`` leaves the states zero, ``half`` is the dtype of q, k and v,
        ``magnitude`` multiplies them; ``orders``, ``shared``, ``out_orders`` and ``packed`` say how tensors lie in
        memory.
        """
        sizes = {"B": B, "T": T, "H": H, "K": K, "V": V, "N": -(-T // C) + 1}
        fence = None if how.get("packed") else {"T": C, "K": 32, "V": max(32, BLOCK_V), "B": 1, "H": 1, "N": 1}

        def values(name, *shape):
            if name == "g":
                return how["gates"](shape) if "gates" in how else -0.25 * draw.normal(*shape).abs()
            if name in ("S0", "states"):
                return draw.normal(*shape) if how.get("state", True) else torch.zeros(shape)
            return draw.normal(*shape, dtype=how.get("half", torch.float32), scale=how.get("magnitude", 1.0))

        tensors = []
        for name in self.inputs:
            axes, still = AXES[name], how.get("shared", {}).get(name, "")
            order, make = how.get("orders", {}).get(axes, ""), functools.partial(values, name)
            tensors.append(Fenced.of(name, axes, sizes, make, fence=fence, order=order, shared=still))
        launch = {"C": C, "BLOCK_V": BLOCK_V} | ({"scale": K**-0.5} if self.out == "o" else {})
        out = Fenced.of(self.out, AXES[self.out], sizes, torch.empty, fence=fence, order=how.get("out_order", ""))
        expected = by_reference({t.name: t.values.double() for t in tensors}, C, K**-0.5)
        # The precision property alone looks at the last digits.
        return Case(tensors, [Output(out, expected, tolerance=how.get("tolerance", 5e-3))], launch, poison=poison)

    # What only one of the two is held to: the first two are the states', the others the outputs'.

    def whole(self, draw):
        """Whole chunks without a first state."""
        yield self.case(draw, T=draw.size(48, 32, 64, multiple_of=16), H=3, K=32, V=32, state=False, packed=True)
        yield self.case(draw, T=draw.size(48, 32, 64, multiple_of=16), state=False, packed=True)

    def first_state(self, draw):
        """A first state, also where no token follows."""
        yield self.case(draw, T=draw.size(32, 16, 48, multiple_of=16), H=2)
        yield self.case(draw, T=0)

    def inside(self, draw):
        """A chunk that nothing enters."""
        yield self.case(draw, T=16, H=3, K=32, V=32, state=False, packed=True)
        yield self.case(draw, T=16, state=False, packed=True)

    def entering(self, draw):
        """Chunks with states."""
        yield self.case(draw, T=draw.size(32, 32, 64, multiple_of=16))

    # Both functions are held to these. Where a head or a sequence of the batch ends is no mask's business.

    def strides(self, draw):
        """Heads and a batch; axes in other orders; keys and gates that all heads share, values that stand still."""
        T = draw.size(32, 16, 48, multiple_of=16)
        yield self.case(draw, B=2, H=2, T=T)
        yield self.case(draw, B=2, H=2, T=T, orders={"BTHK": "HKBT", "BTHV": "VTHB", "BHKV": "VKHB", "BHNKV": "NHBVK"})
        yield self.case(draw, B=2, H=2, T=T, out_order={"o": "HVBT", "states": "VNBKH"}[self.out])
        for still in ("HB", "HV"):
            yield self.case(draw, B=2, H=2, T=T, shared={"k": "H", "g": still, "v": "T", "S0": "BH", "states": "B"})
        case = self.case(draw, B=3, T=16)
        yield case.stretched(**{tensor.name: "B" for tensor in case.tensors})

    def length(self, draw):
        """Lengths that fill no chunk, one token beyond a chunk, a single one, and fewer tokens than a chunk has."""
        for shown, low, high in ((37, 33, 47), (17, 17, 17), (5, 2, 15), (1, 1, 1)):
            yield self.case(draw, T=draw.size(shown, low, high), poison=both_ends("T"))

    def channels(self, draw):
        """Numbers of channels that fill no block, fewer than a block has, and more than one may have."""
        ends = both_ends("KV")
        for K, V in (((20, 17, 31), (5, 1, 15)), ((3, 1, 15), (20, 17, 31)), ((140, 129, 160), (17, 17, 17))):
            yield self.case(draw, K=draw.size(*K), V=draw.size(*V), poison=ends)

    def lengths_of_chunks(self, draw):
        """The same number of tokens in chunks of several lengths."""
        T = draw.size(70, 65, 95)
        for C, BLOCK_V in ((32, 16), (64, 32), (16, 64), (128, 16)):
            yield self.case(draw, T=T, V=32, C=C, BLOCK_V=BLOCK_V)
        yield self.case(draw, T=draw.size(300, 280, 340), C=16)

    def strong(self, draw):
        """Gates that sum to less than -88 in a chunk: one in four at -20, all at -20, anything down to -25."""
        spread = -25 * torch.distributions.Normal(0, 1).cdf(draw.normal(1, 32, 1, 16))
        for gates in (_one_in_four(-20.0), lambda shape: torch.full(shape, -20.0), lambda shape: spread):
            yield self.case(draw, gates=gates)

    def resets(self, draw):
        """Gates of -inf, not in all channels: the first token of all, two in a row, the first and the last of a chunk."""
        yield self.case(draw, gates=_one_in_four(-INF))
        yield self.case(draw, T=48, gates=_awkward)

    def half(self, draw):
        """float16 values, whose products float16 cannot hold, then some whose last digits it cannot."""
        yield self.case(draw, half=torch.float16, magnitude=300.0, tolerance=2e-5)
        yield self.case(draw, half=torch.float16, tolerance=2e-5)

    def bfloat(self, draw):
        """bfloat16 values."""
        yield self.case(draw, half=torch.bfloat16)

    def everything(self, draw):
        """Everything ragged at once, for the addresses."""
        sizes = {"T": draw.size(37, 17, 47), "K": draw.size(20, 17, 31), "V": draw.size(5, 3, 15)}
        yield self.case(draw, B=2, H=2, **sizes)

    def usual(self, draw):
        """Several chunks whose products in float32 stay in registers."""
        yield self.case(draw, T=64, K=32, V=64, C=16, BLOCK_V=32, half=torch.float16, packed=True)

    def costed(self, draw):
        """Two heads, three chunks, two blocks of V."""
        yield self.case(draw, H=2, T=48, V=32, packed=True)

    def steps(self, case: Case) -> int:
        """Three loads and a store for each chunk, and two more accesses; or five loads and a store for each."""
        (B, T, H, _), V = case.inputs[0].shape, case.outs[0].tensor.size("V")
        programs, chunks = B * H * -(-V // case.launch["BLOCK_V"]), -(-T // case.launch["C"])
        return programs * (6 * chunks if self.out == "o" else 4 * chunks + 2)

    def exercise(self, name: str, missing: str, cheap: tuple, *first: Property) -> Exercise:
        """The exercise of this function: its ``first`` properties, then what both are held to."""
        masks = {(tensor, axis, "after"): "" for tensor in AXES for axis in "BHN"}
        return Exercise(
            name,
            missing,
            (
                *first,
                Property(
                    "strides",
                    1,
                    "Lesson 01, step 4",
                    self.strides,
                    "each tensor has its own strides, and some are 0: at(stride_x, ...) takes those of x",
                ),
                Property("ragged length", 1, KERNEL, self.length, "the last chunk may be partial (mask_t)"),
                Property("ragged K and V", 1, KERNEL, self.channels, "rows beyond K, columns beyond V stay 0"),
                Property(
                    "chunk lengths",
                    1,
                    CUT,
                    self.lengths_of_chunks,
                    "the answer depends on C or BLOCK_V: tokens of chunk n are n * C + tl.arange(0, C)",
                ),
                Property(
                    "strong decay",
                    1,
                    "Lesson 24, step 3",
                    self.strong,
                    "exponentiate only gamma_t, gamma_C - gamma_s, and gamma_t - gamma_s for s <= t",
                    not_finite="a positive number is exponentiated: only differences of gates that are <= 0 may be",
                    exponents=True,
                ),
                Property(
                    "resets",
                    1,
                    "Lesson 24, step 3",
                    self.resets,
                    "nothing crosses a gate of -inf: where the counts of resets differ, the factor is exactly 0",
                    not_finite="-inf - -inf is NaN: take gamma and the counts of resets from cumulated",
                ),
                Property(
                    "float16",
                    1,
                    KERNEL,
                    self.half,
                    "something is rounded to float16: convert right after each load, keep S and every sum float32",
                ),
                Property.stays_inside(KERNEL, self.everything),
                Property.in_bfloat16(KERNEL, self.bfloat),
            ),
            suspects,
            masks,
            given=("at", "cumulated"),
            compiles=Compiles(self.usual, KERNEL),
            cheap=Cheap(self.costed, self.steps, *cheap, KERNEL, sectors=2.0),
        )


def _one_in_four(gate):
    def gates(shape):
        values = torch.full(shape, -0.05)
        values[:, 2::4] = gate
        return values

    return gates


def _awkward(shape):
    values = torch.full(shape, -0.5)
    for place, t in enumerate((0, 15, 16, 20, 21, 32)):
        values[:, t, :, place % 3 :: 2] = -INF
    return values


_states = Function(("k", "v", "g", "S0"), "states")
STATES = _states.exercise(
    "chunk_states",
    "the kernel stores nothing yet. It needs a store of the state that enters each chunk, and of the last one.",
    (
        (Tier(3, read=1.18, steps=1.1), Tier(1, read=2.4, written=2.0, steps=2.0)),
        "each chunk's tokens are loaded once for a block of V, and the state stays in registers from chunk to chunk",
    ),
    Property(
        "whole chunks", 1, CUT, _states.whole, "S = exp(gamma_C) * S + sum over s of k_s (exp(gamma_C - gamma_s) v_s)^T"
    ),
    Property(
        "initial state", 1, CUT, _states.first_state, "states[b, h, 0] is S0[b, h], and without tokens the last one too"
    ),
)

_outputs = Function(("q", "k", "v", "g", "states"), "o")
OUTPUTS = _outputs.exercise(
    "chunk_outputs",
    "the kernel stores nothing yet. It needs the chunk's scores, what reads with them and what reads the state, "
    "and a store of o.",
    (
        (Tier(3, read=1.16, steps=1.1), Tier(1, read=2.3, written=2.0, steps=2.0)),
        "a program loads its chunk and the state that enters it once, and nothing of another chunk",
    ),
    Property(
        "one chunk",
        1,
        "Lesson 24, step 1",
        _outputs.inside,
        "o_t = scale * sum over s <= t of (q_t · k_s) exp(gamma_t - gamma_s) v_s, for each channel",
    ),
    Property(
        "the state that enters",
        1,
        CUT,
        _outputs.entering,
        "token t reads exp(gamma_t) * S^T q_t of the state that enters its chunk",
    ),
)
