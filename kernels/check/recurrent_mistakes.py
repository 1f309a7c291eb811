"""The answers that known mistakes in exercise 04 would give: float64, slow, in plain PyTorch."""

from collections.abc import Callable

import torch

from kernels.check.framework import Case, Output
from kernels.check.recurrent_problem import STATES, Problem, from_walk, gates, walk, walk_back

_SCALED = {
    "o": "o_t = scale * S_t^T q_t",
    "ST": "o_t = scale * S_t^T q_t",
    "dq": "dq_t = scale * S_t do_t",
    "dk": "each token adds scale * q_t do_t^T to dS",
    "dv": "each token adds scale * q_t do_t^T to dS",
    "dS0": "each token adds scale * q_t do_t^T to dS",
}
_STEPS = {
    "the decay is applied after the write: decay, then write, then read": lambda S, D, w: (D * (S + w),) * 2,
    "the query reads before the write: o_t includes token t": lambda S, D, w: (D * S + w, D * S),
    "the query reads the state of the token before: decay, write, then read": lambda S, D, w: (D * S + w, S),
    "the state is not carried from token to token: S = exp(g + gk) * S + k * v": lambda S, D, w: (w, w),
    "the state does not decay": lambda S, D, w: (S + w,) * 2,
    "the state is never written to": lambda S, D, w: (D * S,) * 2,
}
_STEPS_BACK = {
    "dS decays by D_t before token t uses it: D_t lies between token t and the one before": (
        lambda dS, D, own: (D * dS + own,) * 2
    ),
    "dS is used before scale * q_t do_t^T is added: token t reads the state it wrote": (
        lambda dS, D, own: (D * (dS + own), dS)
    ),
    "dS is not carried from token to token": lambda dS, D, own: (D * own, own),
    "dS does not decay": lambda dS, D, own: (dS + own,) * 2,
    "the reads are never added to dS": lambda dS, D, own: (D * dS, dS),
}


_AXES = {
    "o": ("the product with q is summed over the columns: o_t = scale * S_t^T q_t sums over the rows, axis=0", "q", -1),
    "dq": (
        "the product with do is summed over the rows: dq_t = scale * S_t do_t sums over the columns, axis=1",
        "do",
        -2,
    ),
    "dk": ("the product with v is summed over the rows: dk_t = dS_t v_t sums over the columns, axis=1", "v", -2),
    "dv": ("the product with k is summed over the columns: dv_t = dS_t^T k_t sums over the rows, axis=0", "k", -1),
}
_SPANS = {
    "every sequence is taken to start at token 0: t runs from cu_seqlens[n]": lambda begin, end, T: (0, end - begin),
    "the walk ends a token early: t runs to the last before cu_seqlens[n + 1]": (
        lambda begin, end, T: (begin, max(begin, end - 1))
    ),
    "the walk starts a token late: t runs from cu_seqlens[n]": lambda begin, end, T: (min(begin + 1, end), end),
    "the walk runs on into the next sequence: it ends before cu_seqlens[n + 1]": lambda begin, end, T: (begin, T),
}


def _decays(p: Problem):
    """Decays that a mistaken kernel may use."""
    g, gk = gates(p)
    yield "the gate g is left out of the decay, exp(g + gk)", gk.exp()
    yield "the gate gk is left out of the decay, exp(g + gk)", g.exp().expand_as(gk)
    yield "the decay is the gate itself: it is exp(g + gk)", g + gk
    yield "the decay grows with -g: gates are logarithms, a gate of -1 keeps exp(-1)", (-g - gk).exp()
    yield "the decays of g and gk are added: they multiply, exp(g + gk)", g.exp() + gk.exp()
    if p.x["k"].shape[-1] == p.x["v"].shape[-1]:
        cause = "gk decays the columns of the state: it belongs to the rows of the state, the key channels"
        yield cause, (g + gk.mT).exp()


def walk_suspects(case: Case, out: Output):
    """Known mistakes of the forward and backward kernels, and the answers they give."""
    p, name = Problem.of(case), out.name
    T, back = len(p.x["g"]), name in ("dk", "dv", "dS0")
    yield f"the scale is left out: {_SCALED[name]}", from_walk(p.but(scale=1.0), name)
    end, start = ("dST", "dS starts as dST[n, h]") if back else ("S0", "S starts as S0[n, h]")
    yield f"{end} is left out: {start}", from_walk(p.but(**{end: torch.zeros_like(p.x[end])}), name)
    if name == "dS0":
        used = walk_back(p)[0]
        last = [used[begin] if begin < end else p.x["dST"][n] for n, (begin, end) in enumerate(p.spans)]
        yield "the last decay is left out: dS0 = D_1 * dS_1", torch.stack(last)
    for cause, step in (_STEPS_BACK if back else _STEPS).items():
        yield cause, from_walk(p, name, step=step)
    for cause, D in _decays(p):
        yield cause, from_walk(p, name, D=D)
    if name in _AXES and p.x["k"].shape == p.x["v"].shape:
        cause, factor, axis = _AXES[name]
        states = walk_back(p)[0] if back else p.scale * walk(p)[0]
        yield cause, p.x[factor] * states.sum(axis)
    for cause, moved in _SPANS.items():
        yield cause, from_walk(p.but(spans=[moved(*span, T) for span in p.spans]), name)
    if back:
        turned = from_walk(p.turned(), name)
        cause = "the walk goes from the first token to the last: dS comes from the tokens after"
        yield cause, turned if name == "dS0" else p.turn(turned)
    yield from _strides(p, lambda changed: from_walk(changed, name))


def _strides(p: Problem, answer: Callable):
    """A stride left out: all heads read the first one, or all sequences the first one's state."""
    for name in p.x:
        yield f"every head reads the first one's {name}: h moves by its stride", answer(p.first(name, "H"))
        if name in STATES:
            yield f"every sequence reads the first one's {name}: n moves by its stride", answer(p.first(name, "N"))


# The gate's gradient: each pair of a write s and a read r may be mistaken.


def passing(r, s, t, end):
    """Which pairs pass gate t: the write of s before it, the read of r behind it."""
    return (s < t) & (t <= r)


def rectangles(p: Problem, counted: Callable = passing, weight=torch.exp) -> torch.Tensor:
    """dg [T, H] as the sum of W[r, s] over the pairs that are ``counted``; those that pass gate t, unless told.

    Tokens count from 1; S0 is s = 0, dST is r = end.
    """
    dg = torch.full_like(p.x["g"], float("nan"))
    for n, (begin, end) in enumerate(p.spans):
        q, k, v, do, g = (p.x[name][begin:end].transpose(0, 1) for name in ("q", "k", "v", "do", "g"))  # [H, L, ...]
        S0, dST, L = p.x["S0"][n], p.x["dST"][n], end - begin
        r, s, t = torch.arange(1, L + 2)[:, None, None], torch.arange(L + 1)[:, None], torch.arange(1, L + 1)
        W = g.new_zeros(g.shape[0], L + 1, L + 1)
        W[:, :L, 1:] = p.scale * (q @ k.mT) * (do @ v.mT)
        W[:, :L, 0] = p.scale * ((q @ S0) * do).sum(-1)
        W[:, L, 1:] = ((k @ dST) * v).sum(-1)
        W[:, L, 0] = (S0 * dST).sum((-1, -2))
        between = torch.where(passing(r, s, t, L + 1), g[:, None, None, :], 0.0).sum(-1)
        W = W * weight(between) * (s <= r)[..., 0]
        counts = counted(r, s, t, L + 1).double().expand(L + 1, L + 1, L)
        dg[begin:end] = torch.einsum("hrs,rst->th", W, counts)
    return dg


_LEFT_OUT = {
    "the pair of both states is left out: exp(the sum of all gates) * <S0, dST>, in every dg_t": (
        lambda r, s, end: (s == 0) & (r == end)
    ),
    "the reads of S0 are left out: scale * exp(gamma_r) * q_r . (S0 do_r), for r >= t": (
        lambda r, s, end: (s == 0) & (r < end)
    ),
    "the writes that reach ST are left out: exp(gamma_T - gamma_s) * k_s . (dST v_s), for s < t": (
        lambda r, s, end: (s > 0) & (r == end)
    ),
    "S0 is left out: it counts as an s before the first token": lambda r, s, end: s == 0,
    "dST is left out: it counts as an r after the last token": lambda r, s, end: r == end,
    "the boundary terms are left out: S0 counts as an s, dST as an r": lambda r, s, end: (s == 0) | (r == end),
    "the pairs within the sequence are left out": lambda r, s, end: (s > 0) & (r < end),
}
_COUNTED = {
    "the pair s = t is counted: a token writes after its gate, s < t strictly": (
        lambda r, s, t, end: (s <= t) & (t <= r)
    ),
    "the pair r = t is left out: a token reads after its gate, r >= t": lambda r, s, t, end: (s < t) & (t < r),
    "only r = t is summed: every read from t on has passed the gate": lambda r, s, t, end: (s < t) & (t == r),
    "only s = t - 1 is summed: every write before t has passed the gate": lambda r, s, t, end: (s == t - 1) & (t <= r),
    "reads before t are counted: they have not passed the gate, r >= t": lambda r, s, t, end: s < t,
    "writes from t on are counted: they do not pass the gate, s < t": lambda r, s, t, end: t <= r,
    "the running sum over r starts at the first row: it starts at the last, reverse=True": (
        lambda r, s, t, end: (s < t) & (r <= t)
    ),
    "the term of dST counts s = t: a token writes after its gate, s < t strictly": (
        lambda r, s, t, end: (s < t) & (t <= r) | (s == t) & (r == end)
    ),
    "the term of S0 leaves out r = t: a token reads after its gate, r >= t": (
        lambda r, s, t, end: (s < t) & (t <= r) & ~((s == 0) & (r == t))
    ),
}
LEAK = "the sums run on into the next sequence: a block ends at cu_seqlens[n + 1], not at T (mask_t)"


def gate_suspects(case: Case, out: Output):
    """Known mistakes of the gate's gradient, and the answers they give."""
    p = Problem.of(case)
    yield "the scale is left out: o_r = scale * S_r^T q_r", rectangles(p.but(scale=1.0))
    for cause, gone in _LEFT_OUT.items():
        yield cause, rectangles(p, lambda r, s, t, end, gone=gone: passing(r, s, t, end) & ~gone(r, s, end))
    for cause, counted in _COUNTED.items():
        yield cause, rectangles(p, counted)
    yield "the pairs do not decay: exp(gamma_r - gamma_s)", rectangles(p, weight=torch.ones_like)
    yield "the pairs grow with -g: exp(gamma_r - gamma_s)", rectangles(p, weight=lambda between: (-between).exp())
    if p.x["S0"].shape[2] == p.x["S0"].shape[3]:
        for name, term, product in (
            ("S0", lambda r, s, t, end: passing(r, s, t, end) & (s == 0) & (r < end), "do @ S0^T"),
            ("dST", lambda r, s, t, end: passing(r, s, t, end) & (s > 0) & (r == end), "v @ dST^T"),
        ):
            swapped = p.but(**{name: p.x[name].mT})
            cause = f"{name} is not transposed in its product with the tokens: {product}"
            yield cause, rectangles(p) - rectangles(p, term) + rectangles(swapped, term)
    T, reach = len(p.x["g"]), case.launch["BLOCK_T"]
    yield LEAK, rectangles(p.but(spans=[(begin, min(begin + reach, T)) for begin, _ in p.spans]))
    yield from _strides(p, rectangles)
