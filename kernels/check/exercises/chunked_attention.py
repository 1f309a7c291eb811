"""Exercise 05: attention with a value gate in chunks, the states between them and the outputs inside them.

``chunk_states(k, v, g, S0, states)`` writes the state that enters each of the N - 1 chunks of C tokens, and the one
after the last; ``chunk_outputs(q, k, v, g, states, o, scale)`` reads them. Both take ``C=, BLOCK_V=``; q, k
[B, T, H, K], v, o, g [B, T, H, V], S0 [B, H, K, V], states [B, H, N, K, V].
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import torch
from numpy import s_

from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Output, Property, Size, Tier, calls
from kernels.check.shared import READ_STRIDES, STRIDES, firsts, gate_values, made, rounded_and_inside
from kernels.check.tensors import both_ends
from kernels.recurrent_attention.reference import recurrent_attention_reference

INF = float("inf")
AXES = {"q": "BTHK", "k": "BTHK", "v": "BTHV", "o": "BTHV", "g": "BTHV", "S0": "BHKV", "states": "BHNKV"}
CUT, KERNEL = "Lesson 24, step 2", "Lesson 24, step 5"

# The equation.


def by_reference(x: dict[str, torch.Tensor], C: int, scale: float) -> torch.Tensor:
    """The right answer: states where S0 is given, o where the states are."""
    S, states, outputs = x.get("S0"), [x.get("S0")], []
    for n, begin in enumerate(range(0, x["k"].shape[1], C)):
        k, v, g = (x[name][:, begin : begin + C] for name in ("k", "v", "g"))
        q = x["q"][:, begin : begin + C] if "q" in x else k
        S = x["states"][:, :, n] if "states" in x else S
        o, S = recurrent_attention_reference(q, k, v, gv=g, scale=scale, initial_state=S, output_final_state=True)
        outputs.append(o)
        states.append(S)
    return torch.cat(outputs, dim=1) if "states" in x else torch.stack(states, dim=2)


def leave(c) -> torch.Tensor:
    """The state that leaves a chunk."""
    return c.through * c.S + c.k.mT @ (c.v * c.to_end)


def pairs(between: torch.Tensor, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The sum over s of these decays [t, s, v], scores [t, s] and values [s, v]."""
    return torch.einsum("bhtsv,bhts,bhsv->bhtv", between, scores, v)


def inside(c) -> torch.Tensor:
    """What the tokens read of their own chunk."""
    return pairs(c.between, c.q @ c.k.mT, c.v)


def before(c) -> torch.Tensor:
    """What they read of the state that enters."""
    return c.from_start * (c.q @ c.S)


def read(c) -> torch.Tensor:
    """What they read."""
    return inside(c) + before(c)


def equation(x: dict[str, torch.Tensor], C: int, scale: float, part: Callable) -> torch.Tensor:
    """The states where S0 is given, o where the states are; ``part`` stands for ``leave`` or ``read``.

    It gets a chunk, heads before tokens: q, k [B, H, C, K], v [B, H, C, V], S [B, H, K, V], and the decays of each channel:
    ``between`` [.., t, s, v] from the write of token s to the read of token t, 0 where s > t; ``from_start`` and ``to_end``
    from the chunk's start to each read and from each write to its end, ``through`` that of all gates, ``own`` each gate's.
    """
    T, found = x["k"].shape[1], [x["S0"]] if "S0" in x else []
    for n, begin in enumerate(range(0, T, C)):
        c = {name: x[name][:, begin : begin + C].transpose(1, 2) for name in ("q", "k", "v", "g") if name in x}
        g, t = c["g"], torch.arange(min(C, T - begin))
        gamma, resets = g.masked_fill(g == -INF, 0).cumsum(2), (g == -INF).long().cumsum(2)
        seen = (t <= t[:, None])[..., None] & (resets[:, :, :, None] == resets[:, :, None])
        chunk = SimpleNamespace(
            **c,
            S=x["states"][:, :, n] if "states" in x else found[-1],
            between=(gamma[:, :, :, None] - gamma[:, :, None]).masked_fill(~seen, -INF).exp(),
            from_start=gamma.masked_fill(resets > 0, -INF).exp(),
            to_end=(gamma[:, :, -1:] - gamma).masked_fill(resets != resets[:, :, -1:], -INF).exp(),
            through=g.sum(2, keepdim=True).exp(),
            own=g.exp(),
        )
        found.append(part(chunk))
    return torch.stack(found, dim=2) if "S0" in x else scale * torch.cat(found, dim=2).transpose(1, 2)


# The calls.


def _call(
    inputs: str, out: str, draw: Draw, *, B=1, T=32, H=1, K=16, V=16, C=16, BLOCK_V=16, gates=None, state=True,
    half=torch.float32, magnitude=1.0, **how,
) -> Case:  # fmt: skip
    """One call of these sizes.

    ``gates`` says what g is, ``state=False`` leaves the states zero, ``half`` is the dtype of q, k and v, ``magnitude``
    multiplies them.
    """
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": V, "N": -(-T // C) + 1}

    def values(name, *shape):
        if name == "g":
            return gate_values(draw, shape, *gates) if gates else -0.25 * draw.normal(*shape).abs()
        if name in ("S0", "states"):
            return draw.normal(*shape) if state else torch.zeros(shape)
        return draw.normal(*shape, dtype=half, scale=magnitude)

    def known(case):
        x = {tensor.name: tensor.values.double() for tensor in case.inputs}
        return {out: {"expected": by_reference(x, C, K**-0.5)}}

    launch = {"C": C, "BLOCK_V": BLOCK_V} | ({"scale": K**-0.5} if out == "o" else {})
    fence = {"T": C, "K": 32, "V": max(32, BLOCK_V), "B": 1, "H": 1, "N": 1}
    return made((inputs.split(), (out,)), AXES, sizes, values, launch, known, fence=fence, **how)


def _steps(case: Case) -> int:
    """Three loads and a store for each chunk, and two more accesses; or five loads and a store for each."""
    (B, T, H, _), V = case.inputs[0].shape, case.outs[0].tensor.size("V")
    programs, chunks = B * H * -(-V // case.launch["BLOCK_V"]), -(-T // case.launch["C"])
    return programs * (6 * chunks if case.outs[0].name == "o" else 4 * chunks + 2)


def _exercise(name: str, call: Callable, missing: str, cheap: tuple, *own: Property) -> Exercise:
    """One of the two exercises: its ``own`` properties, then what both are held to. Heads and sequences have no mask."""
    still = {"k": "H", "v": "T", "S0": "BH", "states": "B"}
    strides = calls(
        call,
        {},
        {"orders": {"BTHK": "HKBT", "BTHV": "VTHB", "BHKV": "VKHB", "BHNKV": "NHBVK"}},
        {"out_orders": {"BTHV": "HVBT", "BHNKV": "VNBKH"}},
        {"shared": still | {"g": "HB"}},
        {"shared": still | {"g": "HV"}},
        {"B": 3, "H": 1, "T": 16, "far": dict.fromkeys(AXES, "B")},
        **{"B": 2, "H": 2, "T": Size(32, 16, 48, 16)},
    )
    lengths = [{"T": T} for T in (Size(37, 33, 47), 17, Size(5, 2, 15), 1)]
    # Numbers of channels that fill no block, fewer than a block has, and more than one may have.
    few, some = Size(5, 1, 15), Size(20, 17, 31)
    channels = ({"K": some, "V": few}, {"K": Size(3, 1, 15), "V": some}, {"K": Size(140, 129, 160), "V": 17})
    sizes = ((32, 16), (64, 32), (16, 64), (128, 16))
    chunks = [{"C": C, "BLOCK_V": BLOCK_V, "T": Size(70, 65, 95), "V": 32} for C, BLOCK_V in sizes]
    strong = ((-0.05, (s_[:, 2::4], -20.0)), (-20.0,), (None,))  # gates that sum to less than -88 in a chunk
    # The first token of all, two in a row, the first and the last of a chunk, not in all channels.
    awkward = (-0.5, *((s_[:, t, :, i % 3 :: 2], -INF) for i, t in enumerate((0, 15, 16, 20, 21, 32))))
    f16 = "something is rounded to float16: convert right after each load, keep S and every sum float32"
    ragged = {"B": 2, "H": 2, "T": Size(37, 17, 47), "K": Size(20, 17, 31), "V": Size(5, 3, 15)}
    return Exercise(
        name,
        missing,
        (
            *own,
            Property("strides", 1, READ_STRIDES, strides, STRIDES),
            Property(
                "ragged length", 1, KERNEL, calls(call, *lengths, poison=both_ends("T")),
                "the last chunk may be partial (mask_t)",
            ),
            Property(
                "ragged K and V", 1, KERNEL, calls(call, *channels, poison=both_ends("KV")),
                "rows beyond K, columns beyond V stay 0",
            ),
            Property(
                "chunk lengths", 1, CUT, calls(call, *chunks, {"T": Size(300, 280, 340)}),
                "the answer depends on C or BLOCK_V: tokens of chunk n are n * C + tl.arange(0, C)",
            ),
            Property(
                "strong decay", 1, "Lesson 24, step 3", calls(call, *({"gates": gates} for gates in strong)),
                "exponentiate only gamma_t, gamma_C - gamma_s, and gamma_t - gamma_s for s <= t",
                not_finite="a positive number is exponentiated: only differences of gates that are <= 0 may be",
                exponents=True,
            ),
            Property(
                "resets", 1, "Lesson 24, step 3",
                calls(call, {"gates": (-0.05, (s_[:, 2::4], -INF))}, {"T": 48, "gates": awkward}),
                "nothing crosses a gate of -inf: where the counts of resets differ, the factor is exactly 0",
                not_finite="-inf - -inf is NaN: take gamma and the counts of resets from cumulated",
            ),
            *rounded_and_inside(call, KERNEL, f16, ragged),
        ),
        suspects,
        {(tensor, axis, "after"): "" for tensor in AXES for axis in "BHN"},
        given=("at", "cumulated"),
        compiles=Compiles(calls(call, T=64, K=32, V=64, BLOCK_V=32, half=torch.float16, packed=True), KERNEL),
        cheap=Cheap(calls(call, H=2, T=48, V=32, packed=True), _steps, *cheap, KERNEL, sectors=2.0),
    )  # fmt: skip


# What known mistakes give.


def _turned(c, past: bool) -> torch.Tensor:
    """What the tokens read where the exponent has the wrong sign, for s <= t; or for s >= t instead."""
    inverse = torch.where(c.between > 0, 1 / c.between, 0.0)  # exp(gamma_s - gamma_t)
    return pairs(inverse if past else inverse.transpose(2, 3), c.q @ c.k.mT, c.v) + before(c)


_LEAVE = {
    "the state is not carried on: S = through * S + ...": lambda c: c.k.mT @ (c.v * c.to_end),
    "the old state does not decay: through = exp(gamma_C)": lambda c: c.S + c.k.mT @ (c.v * c.to_end),
    "the writes do not decay: to_end = exp(gamma_C - gamma_s)": lambda c: c.through * c.S + c.k.mT @ c.v,
    "a write decays by its own gate too: to_end = exp(gamma_C - gamma_s), gamma_s includes it": (
        lambda c: c.through * c.S + c.k.mT @ (c.v * c.to_end * c.own)
    ),
}
_LEAVE_SQUARE = {  # where K = V
    "the gates decay rows of the state, as a key's would: each column has its own, to_end * v": (
        lambda c: c.through.mT * c.S + (c.k * c.to_end).mT @ c.v
    ),
}
_READ = {
    "the state that enters is left out: from_start * (q @ S)": inside,
    "the chunk's own tokens are left out: the sum over s <= t": before,
    "the token's own pair is left out: s <= t": lambda c: pairs(c.between, (c.q @ c.k.mT).tril(-1), c.v) + before(c),
    "the pairs do not decay: exp(gamma_t - gamma_s)": lambda c: (c.q @ c.k.mT).tril() @ c.v + before(c),
    "a write decays by its own gate too: exp(gamma_t - gamma_s), gamma_s includes it": (
        lambda c: pairs(c.between, c.q @ c.k.mT, c.v * c.own) + before(c)
    ),
    "the triangle is turned over: a token reads itself and those before it, s <= t": lambda c: _turned(c, past=False),
    "gamma is turned over: the decay from s to t is exp(gamma_t - gamma_s)": lambda c: _turned(c, past=True),
    "the pairs are turned over: the sum runs over the tokens s that are read, for each token t that reads": (
        lambda c: pairs(c.between.transpose(2, 3), (c.q @ c.k.mT).mT, c.v) + before(c)
    ),
    "q and k are exchanged: the score of t and s is q_t · k_s": lambda c: (
        pairs(c.between, c.k @ c.q.mT, c.v) + before(c)
    ),
    "the state that enters does not decay: from_start = exp(gamma_t)": lambda c: inside(c) + c.q @ c.S,
}
_READ_SQUARE = {
    "the state is read transposed: q @ S sums over its rows, the key channels": (
        lambda c: inside(c) + c.from_start * (c.q @ c.S.mT)
    ),
}


def _states(x: dict[str, torch.Tensor], C: int):
    """Known mistakes of the states beside those of one chunk."""
    right = equation(x, C, 1.0, leave)
    yield "S0 is left out: S starts as S0[b, h]", equation(x | {"S0": 0 * x["S0"]}, C, 1.0, leave)
    cause = "each slot holds the state that leaves its chunk: states[b, h, n] enters chunk n"
    yield cause, torch.cat([right[:, :, 1:], right[:, :, -1:]], dim=2)
    if whole := right.shape[2] - 2 if x["k"].shape[1] % C else 0:
        dropped = right.clone()
        dropped[:, :, whole], dropped[:, :, -1] = float("nan"), right[:, :, whole]
        yield "the last, partial chunk is left out: there are cdiv(T, C) chunks", dropped


def _outputs(x: dict[str, torch.Tensor], C: int, scale: float):
    """Known mistakes of the outputs beside those of one chunk."""
    yield "the scale is left out: o_t = scale * (...)", equation(x, C, 1.0, read)
    cause = "part is not scaled: scale * (both parts)"
    yield f"the chunk's own {cause}", equation(x, C, 1.0, lambda c: inside(c) + scale * before(c))
    yield f"the entering state's {cause}", equation(x, C, 1.0, lambda c: scale * inside(c) + before(c))
    slots = x["states"]
    first = x | {"states": slots[:, :, :1].expand_as(slots)}
    yield "every chunk reads states[b, h, 0]: n moves by its stride", equation(first, C, scale, read)
    later = x | {"states": slots.roll(-1, dims=2)}
    yield "the states of slot n + 1 are read: states[b, h, n] enters chunk n", equation(later, C, scale, read)


def suspects(case: Case, out: Output):
    """Known mistakes of either function, and the answers they give."""
    x = {tensor.name: tensor.values.double() for tensor in case.inputs}
    C, scale, states = case.launch["C"], case.launch.get("scale", 1.0), out.name == "states"
    if x["k"].shape[1] == 0 and not states:
        return
    yield from _states(x, C) if states else _outputs(x, C, scale)
    mistaken = _LEAVE if states else _READ
    if x["k"].shape[-1] == x["v"].shape[-1]:
        mistaken = mistaken | (_LEAVE_SQUARE if states else _READ_SQUARE)
    for cause, part in mistaken.items():
        yield cause, equation(x, C, scale, part)
    for cause, changed in firsts(x, AXES, H=("head", "h"), B=("sequence", "b"), V=("value channel", "offs_v")):
        yield cause, equation(changed, C, scale, leave if states else read)


# The two exercises.

_call_states = functools.partial(_call, "k v g S0", "states")
STATES = _exercise(
    "chunk_states",
    _call_states,
    "the kernel stores nothing yet. It needs a store of the state that enters each chunk, and of the last one.",
    (
        (Tier(3, read=1.18, steps=1.1), Tier(1, read=2.4, written=2.0, steps=2.0)),
        "each chunk's tokens are loaded once for a block of V, and the state stays in registers from chunk to chunk",
    ),
    Property(
        "whole chunks", 1, CUT,
        calls(_call_states, {"H": 3, "K": 32, "V": 32}, {}, T=Size(48, 32, 64, 16), state=False, packed=True),
        "S = exp(gamma_C) * S + sum over s of k_s (exp(gamma_C - gamma_s) v_s)^T",
    ),
    Property(
        "initial state", 1, CUT, calls(_call_states, {"T": Size(32, 16, 48, 16), "H": 2}, {"T": 0}),
        "states[b, h, 0] is S0[b, h], and without tokens the last one too",
    ),
)  # fmt: skip
_call_outputs = functools.partial(_call, "q k v g states", "o")
OUTPUTS = _exercise(
    "chunk_outputs",
    _call_outputs,
    "the kernel stores nothing yet. It needs the chunk's scores, what reads with them and what reads the state, "
    "and a store of o.",
    (
        (Tier(3, read=1.16, steps=1.1), Tier(1, read=2.3, written=2.0, steps=2.0)),
        "a program loads its chunk and the state that enters it once, and nothing of another chunk",
    ),
    Property(
        "one chunk", 1, "Lesson 24, step 1",
        calls(_call_outputs, {"H": 3, "K": 32, "V": 32}, {}, T=16, state=False, packed=True),
        "o_t = scale * sum over s <= t of (q_t · k_s) exp(gamma_t - gamma_s) v_s, for each channel",
    ),
    Property(
        "the state that enters", 1, CUT, calls(_call_outputs, T=Size(32, 32, 64, 16)),
        "token t reads exp(gamma_t) * S^T q_t of the state that enters its chunk",
    ),
)  # fmt: skip
