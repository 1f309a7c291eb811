"""The answers that known mistakes in exercise 06 would give: float64, dense, in plain PyTorch."""

from collections.abc import Callable

import torch

from kernels.check.flash_lists import EMPTY, FULL, PARTIAL
from kernels.check.flash_mods import SCORES
from kernels.check.flash_problem import INF, Problem, attend
from kernels.check.framework import Case, Output

# Forward: the walk over the blocks, each step of which may be mistaken.


def walk(p: Problem, step: Callable) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse by ``step(acc, l, top, z, v) -> acc, l, top`` over the listed blocks, partial ones first."""
    z, v, (BLOCK_M, BLOCK_N) = p.z(p.scores()), p.x["v"][p.heads], p.blocks
    o, lse = z.new_zeros(*z.shape[:2], v.shape[-1]), z.new_zeros(z.shape[:2])
    for r, row in enumerate(p.kinds):
        rows = slice(r * BLOCK_M, (r + 1) * BLOCK_M)
        acc, l, top = 0 * o[:, rows], 0 * lse[:, rows], lse[:, rows] - INF
        for c in [*torch.nonzero(row == PARTIAL).flatten().tolist(), *torch.nonzero(row == FULL).flatten().tolist()]:
            columns = slice(c * BLOCK_N, (c + 1) * BLOCK_N)
            acc, l, top = step(acc, l, top, z[:, rows, columns], v[:, columns])
        o[:, rows] = acc / torch.where(l == 0, 1, l)[..., None]
        lse[:, rows] = top + torch.where(l == 0, 1, l).log()
    return o, lse


def _parts(top, z):
    new_top = torch.maximum(top, z.amax(-1))
    shift = torch.where(new_top == -INF, 0, new_top)
    return new_top, (z - shift[..., None]).exp(), (top - shift).exp()


def _no_rescale(acc, l, top, z, v):
    new_top, p, alpha = _parts(top, z)
    return acc + p @ v, l * alpha + p.sum(-1), new_top


def _no_rescaled_sum(acc, l, top, z, v):
    new_top, p, alpha = _parts(top, z)
    return acc * alpha[..., None] + p @ v, l + p.sum(-1), new_top


def _none_rescaled(acc, l, top, z, v):
    new_top, p, _ = _parts(top, z)
    return acc + p @ v, l + p.sum(-1), new_top


def _last_block(acc, l, top, z, v):
    new_top, p, _ = _parts(top - INF, z)
    return p @ v, p.sum(-1), new_top


def _first_block(acc, l, top, z, v):
    return *_last_block(acc, l, top, z, v)[:2], top


_STEPS = {
    "the numerator is not rescaled: acc = acc * alpha + p v, alpha = exp(top - new_top)": _no_rescale,
    "the denominator is not rescaled: l = l * alpha + sum of p, alpha = exp(top - new_top)": _no_rescaled_sum,
    "neither sum is rescaled: both are multiplied by alpha = exp(top - new_top) first": _none_rescaled,
    "only the last block counts: acc, l and top are carried from block to block": _last_block,
    "top is not carried from block to block: a step returns new_top": _first_block,
}
LISTS = {
    "the mask is not applied in partial blocks": (PARTIAL, FULL),
    "the mask is applied in full blocks: there every pair counts": (FULL, PARTIAL),
    "the partial blocks are left out": (PARTIAL, EMPTY),
    "the full blocks are left out: list 1 comes after list 0": (FULL, EMPTY),
    "blocks that no list names are visited": (EMPTY, PARTIAL),
}
NO_MOD = "the score mod is left out: z = SCORE_MOD(s, m, n)"
HEADS = "query head h reads key head h % J: heads that share keys are neighbours, h // G"
FIRST_HEAD = "every query head reads the first key head: h // G"


def _changed(p: Problem):
    """Problems that a mistaken kernel may solve instead."""
    tau = p.x["tau"]
    neutral = p.x | {"tau": torch.ones_like(tau)}
    yield "the temperature is left out: s = tau * scale * q k^T", p.but(x=neutral)
    yield (
        "the temperature is applied after the score mod: the mod takes tau * scale * q k^T",
        p.but(x=neutral, score=lambda s, m, n: tau[..., None] * p.score(s, m, n)),
    )
    yield "the temperature is multiplied twice: onto q, or onto s", p.but(x=p.x | {"tau": tau * tau})
    divided = torch.where(tau == 0, 0, 1 / tau)
    yield "the temperature divides: s = tau * scale * q k^T", p.but(x=p.x | {"tau": divided})
    yield "every head takes the first one's temperatures", p.but(x=p.x | {"tau": tau[:1].expand_as(tau)})
    yield "the scale is left out: s = scale * q k^T", p.but(scale=1.0)
    yield (
        "the scale is applied after the score mod: the mod takes scale * q k^T",
        p.but(scale=1.0, score=lambda s, m, n: p.scale * p.score(s, m, n)),
    )
    yield NO_MOD, p.but(score=SCORES["same"])
    for cause, change in LISTS.items():
        yield cause, p.where(*change)
    yield (
        "every row of blocks walks along the first one's lists: row r of either list",
        p.but(kinds=p.kinds[:1].expand_as(p.kinds)),
    )
    yield HEADS, p.but(key_head=lambda h, J, G: h % J)
    yield FIRST_HEAD, p.but(key_head=lambda h, J, G: 0)


def _padded(p: Problem) -> Problem:
    """The problem where the keys that the last block lacks are there, as zeros."""
    short = (0, 0, 0, -p.x["k"].shape[1] % p.blocks[1])
    return p.but(x=p.x | {name: torch.nn.functional.pad(p.x[name], short) for name in "kv"})


def _forward(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    return attend(p.z(p.scores()), p.x["v"][p.heads])


def forward_suspects(case: Case, out: Output):
    """Known mistakes of the forward kernel, and the o or lse they give."""
    p, which = Problem.of(case), ("o", "lse").index(out.name)
    o, lse = attend(z := p.z(p.scores()), p.x["v"][p.heads])
    if out.name == "o":
        top = torch.where(z.amax(-1) == -INF, 0, z.amax(-1)) if z.shape[-1] else lse
        yield "the numerator is not divided by l: o = acc / l", o * (lse - top).exp().nan_to_num(0)[..., None]
    else:
        top = z.amax(-1) if z.shape[-1] else lse
        yield "log l is left out: lse = top + log l", top
        yield "the maximum is left out: lse = top + log l", torch.where(lse == -INF, 0, lse - top)
        yield "lse is in base 2: it is natural, top + log l", lse / torch.tensor(2.0, dtype=lse.dtype).log()
        yield "rows without keys have an lse of -inf: top stays -inf there", torch.where(lse == -INF, 0, lse)
    for cause, step in _STEPS.items():
        yield cause, walk(p, step)[which]
    for cause, changed in (*_changed(p), ("keys beyond N count: where n >= N, z is -inf", _padded(p))):
        yield cause, _forward(changed)[which]


# Backward: the formulas, each factor of which may be mistaken.


def gradients(p: Problem, kinds_t: torch.Tensor | None = None, **mistake) -> dict[str, torch.Tensor]:
    """dq, dk, dv, dtau by the formulas of lesson 34; ``kinds_t`` [C, R] is what the keys' lists say, if not the transpose.

    ``mistake``: ``lse`` and ``prime`` (the score mod's derivative) in place of the right ones, ``through(P, dP, delta)``
    the softmax's, ``scaled`` which gradients are multiplied by the scale, ``warm`` which of dq and dk by the temperature,
    ``group(grouped)`` how query heads are added.
    """
    if kinds_t is not None:
        own = gradients(p.but(kinds=kinds_t.T), **mistake)
        return gradients(p, **mistake) | {name: own[name] for name in ("dk", "dv")}
    q, k, v, do, tau = (p.x[name] for name in ("q", "k", "v", "do", "tau"))
    k, v, tau = k[p.heads], v[p.heads], tau[..., None]
    s = p.scores().requires_grad_()
    t = p.modified(s)
    prime = mistake.get("prime", torch.autograd.grad(t.sum(), s)[0] if t.requires_grad else torch.zeros_like(s))
    counts, s, t = p.counts(), s.detach(), t.detach()
    lse, delta = mistake.get("lse", p.x["lse"]), (p.x["o"] * do).sum(-1, keepdim=True)
    P = (t.masked_fill(~counts, -INF) - torch.where(lse == -INF, 0, lse)[..., None]).exp()
    dz = mistake.get("through", lambda P, dP, delta: P * (dP - delta))(P, do @ v.mT, delta)
    ds = (prime * dz).masked_fill(~counts, 0)
    scaled, warm = mistake.get("scaled", ("dq", "dk", "dtau")), mistake.get("warm", ("dq", "dk"))
    seen = tau * q if "dk" in warm else q
    group = mistake.get("group", lambda grouped: grouped.sum(1))
    found = {"dq": ds @ k, "dk": group(p.by_key_head(ds.mT @ seen)), "dv": group(p.by_key_head(P.mT @ do))}
    found["dtau"] = (ds * (q @ k.mT)).sum(-1)
    found["dq"] = tau * found["dq"] if "dq" in warm else found["dq"]
    return {name: value * (p.scale if name in scaled else 1) for name, value in found.items()}


def backward_suspects(case: Case, out: Output):
    """Known mistakes of the backward kernels, and the gradients they give."""
    p, name = Problem.of(case), out.name
    if name == "delta":
        o, do = p.x["o"], p.x["do"]
        yield "delta is the sum of o * do, not of do * do", (do * do).sum(-1)
        yield "delta is the sum of o * do, not of o * o", (o * o).sum(-1)
        yield "delta is a sum over the value channels, not their mean", (o * do).mean(-1)
        return
    if name == "dtau":
        dtau, tau = gradients(p)[name], p.x["tau"]
        yield "dtau is the sum of q * dq, which holds tau already: leave it out there", tau * dtau
        yield "dtau is divided by tau, and where that is 0 it is NaN: sum q * (ds k) itself", dtau / tau * tau
        yield "dtau is a sum over the channels, not their mean", dtau / p.x["q"].shape[-1]
    if name in ("dq", "dk", "dtau"):
        if name != "dtau":
            whose = {"dq": "dq = tau * scale * ds k", "dk": "dk adds up ds^T (tau * q)"}[name]
            yield f"the temperature is left out of {name}: {whose}", gradients(p, warm={"dq", "dk"} - {name})[name]
        yield f"the scale is left out: {name} is scale * the product with ds", gradients(p, scaled=())[name]
        yield "delta is left out: dz = p * (do v^T - delta)", gradients(p, through=lambda P, dP, delta: P * dP)[name]
        yield (
            "delta is added: dz = p * (do v^T - delta)",
            gradients(p, through=lambda P, dP, delta: P * (dP + delta))[name],
        )
        yield "p is left out: dz = p * (do v^T - delta)", gradients(p, through=lambda P, dP, delta: dP - delta)[name]
        yield (
            "the score mod's derivative is left out: ds = SCORE_GRADIENT(s, m, n, dz)",
            gradients(p, prime=torch.ones_like(p.scores()))[name],
        )
    else:
        yield "dv is scaled: dv = p^T do", gradients(p, scaled=("dv",))[name]
    yield "lse is left out: p = exp(z - lse)", gradients(p, lse=torch.zeros_like(p.x["lse"]))[name]
    if name in ("dk", "dv") and p.kinds.shape[0] == p.kinds.shape[1]:
        yield (
            "the keys' kernel walks along the queries' lists: row c of num_t and idx_t lists blocks of queries",
            gradients(p, kinds_t=p.kinds)[name],
        )
    for cause, which in (
        ("only the last of the heads that share keys counts: add up all G", -1),
        ("only the first of the heads that share keys counts: add up all G", 0),
    ):
        yield cause, gradients(p, group=lambda grouped, which=which: grouped[:, which])[name]
    for cause, changed in _changed(p):
        if cause not in (NO_MOD, FIRST_HEAD, HEADS):
            yield cause, gradients(changed)[name]


def temperature(x: dict[str, torch.Tensor], scale: float, factor: Callable | None = None) -> torch.Tensor:
    """dtau of dense attention without a mask, a head of keys for each of queries: autograd's, or with a mistaken formula.

    ``factor(bare, tau)`` stands in for what multiplies dz, the gradient of the logits.
    """
    tau, bare = x["tau"].clone().requires_grad_(), scale * x["q"] @ x["k"].mT
    s = tau[..., None] * bare
    dtau, dz = torch.autograd.grad((s.softmax(-1) @ x["v"] * x["do"]).sum(), (tau, s))
    return dtau if factor is None else (dz * factor(bare, x["tau"][..., None])).sum(-1)


def temperature_suspects(case: Case, out: Output):
    """Known mistakes of the derivation of dtau."""
    x, scale = {tensor.name: tensor.values.double() for tensor in case.inputs}, case.launch["scale"]
    bare, dp = scale * x["q"] @ x["k"].mT, x["do"] @ x["v"].mT
    p, cold = (x["tau"][..., None] * bare).softmax(-1), bare.softmax(-1)
    yield (
        "the factor is the bare score, scale * q k^T: here the temperature is in it",
        temperature(x, scale, torch.mul),
    )
    yield "the scale is left out of the factor: it is scale * q k^T", temperature(x, scale) / scale
    yield "the softmax's denominator depends on tau, too: dz = p * (do v^T - delta)", (p * dp * bare).sum(-1)
    yield "p is left out of dz = p * (do v^T - delta)", ((dp - (p * dp).sum(-1, keepdim=True)) * bare).sum(-1)
    dz = cold * (dp - (cold * dp).sum(-1, keepdim=True))
    yield "the probabilities are those without a temperature", (dz * bare).sum(-1)
