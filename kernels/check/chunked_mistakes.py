"""Exercise 05's answers, and the answers that known mistakes would give: float64, slow, in plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.check.framework import Case, Output
from kernels.recurrent_attention.reference import recurrent_attention_reference

INF = float("inf")
AXES = {"q": "BTHK", "k": "BTHK", "v": "BTHV", "o": "BTHV", "g": "BTHV", "S0": "BHKV", "states": "BHNKV"}


@dataclass(frozen=True)
class Chunk:
    """One chunk's tensors in float64, heads before tokens: q, k [B, H, C, K], v [B, H, C, V], S [B, H, K, V].

    ``between[t, s, v]`` is channel v's decay from the write of token s to the read of token t, 0 where s > t; ``from_start``
    and ``to_end`` [C, V] are those from the chunk's start to each read and from each write to its end, ``through`` [1, V]
    that of all its gates, ``own`` each gate's own.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    S: torch.Tensor
    after: torch.Tensor  # the state that leaves
    between: torch.Tensor
    from_start: torch.Tensor
    to_end: torch.Tensor
    through: torch.Tensor
    own: torch.Tensor


def chunks(x: dict[str, torch.Tensor], C: int, entering: Callable):
    """Every chunk of one call; ``entering(n, S)`` is the state that enters chunk n, where chunk n - 1 left S."""
    T, S = x["k"].shape[1], None
    for n, begin in enumerate(range(0, T, C)):
        part = {name: x[name][:, begin : begin + C].transpose(1, 2) for name in ("q", "k", "v", "g") if name in x}
        g, t = part["g"], torch.arange(min(C, T - begin))
        gamma, resets = g.masked_fill(g == -INF, 0).cumsum(2), (g == -INF).long().cumsum(2)
        seen = (t <= t[:, None])[..., None] & (resets[:, :, :, None] == resets[:, :, None])
        between = (gamma[:, :, :, None] - gamma[:, :, None]).masked_fill(~seen, -INF).exp()
        from_start = gamma.masked_fill(resets > 0, -INF).exp()
        to_end = (gamma[:, :, -1:] - gamma).masked_fill(resets != resets[:, :, -1:], -INF).exp()
        S, through = entering(n, S), g.sum(2, keepdim=True).exp()
        after = through * S + part["k"].mT @ (part["v"] * to_end)
        decays = (between, from_start, to_end, through, g.exp())
        yield Chunk(part.get("q"), part["k"], part["v"], S, after, *decays)
        S = after


def states_of(x: dict[str, torch.Tensor], C: int, leave: Callable = lambda c, S: None) -> torch.Tensor:
    """The states that enter each chunk and the last one; ``leave(chunk, S)`` may say what leaves it instead."""
    S, states = x["S0"], [x["S0"]]
    for c in chunks(x, C, lambda n, _: states[n]):
        S = leave(c, S)
        states.append(c.after if S is None else S)
    return torch.stack(states, dim=2)


def outputs_of(x: dict[str, torch.Tensor], C: int, scale: float, read: Callable) -> torch.Tensor:
    """o of a call where ``read(chunk)`` is what the tokens of a chunk read, [B, H, C, V]."""
    read_all = [read(c) for c in chunks(x, C, lambda n, _: x["states"][:, :, n])]
    return scale * torch.cat(read_all, dim=2).transpose(1, 2)


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


def pairs(between: torch.Tensor, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The sum over s of these decays [t, s, v], scores [t, s] and values [s, v]."""
    return torch.einsum("bhtsv,bhts,bhsv->bhtv", between, scores, v)


def inside(c: Chunk) -> torch.Tensor:
    """What the tokens read of their own chunk."""
    return pairs(c.between, c.q @ c.k.mT, c.v)


def before(c: Chunk) -> torch.Tensor:
    """What they read of the state that enters."""
    return c.from_start * (c.q @ c.S)


def _turned(c: Chunk, past: bool) -> torch.Tensor:
    """What the tokens read where the exponent has the wrong sign, for s <= t; or for s >= t instead."""
    inverse = torch.where(c.between > 0, 1 / c.between, 0.0)  # exp(gamma_s - gamma_t)
    return pairs(inverse if past else inverse.transpose(2, 3), c.q @ c.k.mT, c.v)


_LEAVE = {
    "the state is not carried on: S = through * S + ...": lambda c, S: c.k.mT @ (c.v * c.to_end),
    "the old state does not decay: through = exp(gamma_C)": lambda c, S: c.S + c.k.mT @ (c.v * c.to_end),
    "the writes do not decay: to_end = exp(gamma_C - gamma_s)": lambda c, S: c.through * c.S + c.k.mT @ c.v,
    "a write decays by its own gate too: to_end = exp(gamma_C - gamma_s), gamma_s includes it": (
        lambda c, S: c.through * c.S + c.k.mT @ (c.v * c.to_end * c.own)
    ),
    "the writes decay from the chunk's start: they decay to its end, exp(gamma_C - gamma_s)": (
        lambda c, S: c.through * c.S + c.k.mT @ (c.v * c.from_start)
    ),
    "the new writes decay through the whole chunk": lambda c, S: c.through * (c.S + c.k.mT @ c.v),
    "nothing is written to the state": lambda c, S: c.through * c.S,
}
_READ = {
    "the state that enters is left out: from_start * (q @ S)": inside,
    "the chunk's own tokens are left out: the sum over s <= t": before,
    "the token's own pair is left out: s <= t": lambda c: pairs(c.between, (c.q @ c.k.mT).tril(-1), c.v) + before(c),
    "the pairs do not decay: exp(gamma_t - gamma_s)": lambda c: (c.q @ c.k.mT).tril() @ c.v + before(c),
    "a write decays by its own gate too: exp(gamma_t - gamma_s), gamma_s includes it": (
        lambda c: pairs(c.between, c.q @ c.k.mT, c.v * c.own) + before(c)
    ),
    "the triangle is turned over: a token reads itself and those before it, s <= t": (
        lambda c: _turned(c, past=False) + before(c)
    ),
    "gamma is turned over: the decay from s to t is exp(gamma_t - gamma_s)": lambda c: (
        _turned(c, past=True) + before(c)
    ),
    "the pairs are turned over: the sum runs over the tokens s that are read, for each token t that reads": (
        lambda c: pairs(c.between.transpose(2, 3), (c.q @ c.k.mT).mT, c.v) + before(c)
    ),
    "q and k are exchanged: the score of t and s is q_t · k_s": lambda c: (
        pairs(c.between, c.k @ c.q.mT, c.v) + before(c)
    ),
    "tokens read the future: nothing of s > t": lambda c: (c.q @ c.k.mT) @ c.v + before(c),
    "the state that enters does not decay: from_start = exp(gamma_t)": lambda c: inside(c) + c.q @ c.S,
    "the state that enters decays to the chunk's end: to token t, exp(gamma_t)": (
        lambda c: inside(c) + c.through * (c.q @ c.S)
    ),
    "token t's own gate is not on the way of the state that enters: gamma_t includes it": (
        lambda c: inside(c) + c.from_start / c.own * (c.q @ c.S)
    ),
}


def _firsts(x: dict[str, torch.Tensor]):
    """A stride left out: the first head, or batch entry, of one input stands for all."""
    for name, value in x.items():
        axes = (
            ("H", "head", "h"),
            ("B", "sequence", "b"),
            *([("V", "value channel", "offs_v")] if name == "g" else []),
        )
        for axis, who, index in axes:
            i = AXES[name].index(axis)
            cause = f"every {who} reads the first one's {name}: {index} moves by its stride"
            yield cause, x | {name: value.narrow(i, 0, 1).expand_as(value)}


def suspects(case: Case, out: Output):
    """Known mistakes of either function, and the answers they give."""
    x = {tensor.name: tensor.values.double() for tensor in case.inputs}
    C, scale = case.launch["C"], case.launch.get("scale", 1.0)
    square, empty = x["k"].shape[-1] == x["v"].shape[-1], x["k"].shape[1] == 0
    if out.name == "states":
        right = states_of(x, C)
        yield "S0 is left out: S starts as S0[b, h]", states_of(x | {"S0": 0 * x["S0"]}, C)
        yield (
            "each slot holds the state that leaves its chunk: states[b, h, n] enters chunk n",
            torch.cat([right[:, :, 1:], right[:, :, -1:]], dim=2),
        )
        if whole := right.shape[2] - 2 if x["k"].shape[1] % C else 0:
            dropped = right.clone()
            dropped[:, :, whole], dropped[:, :, -1] = float("nan"), right[:, :, whole]
            yield "the last, partial chunk is left out: there are cdiv(T, C) chunks", dropped
        for cause, leave in _LEAVE.items():
            yield cause, states_of(x, C, leave)
        if square:
            yield (
                "k^T v is transposed: rows of the state are key channels",
                states_of(x, C, lambda c, S: c.through * c.S + (c.v * c.to_end).mT @ c.k),
            )
            yield (
                "the gates decay rows of the state, as a key's would: each column has its own, to_end * v",
                states_of(x, C, lambda c, S: c.through.mT * c.S + (c.k * c.to_end).mT @ c.v),
            )
        yield (
            "every chunk reads the first one's tokens: t = n * C + ...",
            states_of({name: value if name == "S0" else _first_chunk(value, C) for name, value in x.items()}, C),
        )
        for cause, changed in _firsts(x):
            yield cause, states_of(changed, C)
    elif not empty:
        for cause, read in _READ.items():
            yield cause, outputs_of(x, C, scale, read)
        yield "the scale is left out: o_t = scale * (...)", outputs_of(x, C, 1.0, lambda c: inside(c) + before(c))
        yield (
            "the chunk's own part is not scaled: scale * (both parts)",
            outputs_of(x, C, 1.0, lambda c: inside(c) + scale * before(c)),
        )
        yield (
            "the entering state's part is not scaled: scale * (both parts)",
            outputs_of(x, C, 1.0, lambda c: scale * inside(c) + before(c)),
        )
        if square:
            yield (
                "the state is read transposed: q @ S sums over its rows, the key channels",
                outputs_of(x, C, scale, lambda c: inside(c) + c.from_start * (c.q @ c.S.mT)),
            )
        slots = x["states"]
        moved = {
            "every chunk reads states[b, h, 0]: n moves by its stride": slots[:, :, :1].expand_as(slots),
            "the states of slot n + 1 are read: states[b, h, n] enters chunk n": slots.roll(-1, dims=2),
        }
        for cause, changed in [*((cause, x | {"states": value}) for cause, value in moved.items()), *_firsts(x)]:
            yield cause, outputs_of(changed, C, scale, lambda c: inside(c) + before(c))


def _first_chunk(value: torch.Tensor, C: int) -> torch.Tensor:
    """Tokens of the first chunk wherever there should be those of a later one."""
    T = value.shape[1]
    return value[:, torch.arange(T) % C] if T else value
