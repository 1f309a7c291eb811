"""Exercise 06: lists of blocks, attention forward over them, and its gradients.

``block_lists(mask, num, idx, num_t, idx_t)`` takes ``BLOCK_M=, BLOCK_N=``: mask bool [M, N], and int32 num [2, R],
idx [2, R, C], num_t [2, C], idx_t [2, C, R]: list 0 holds the partial blocks, list 1 the full ones.
``flash_forward(q, k, v, tau, num, idx, o, lse)`` and ``flash_backward(q, k, v, tau, o, lse, do, num, idx, num_t, idx_t,
delta, dq, dk, dv, dtau)`` also take ``scale=, score_mod=, mask_mod=``, and the latter ``score_gradient=``. q, o
[H, M, D or V], k, v [J, N, D or V], tau, lse, delta, dtau [H, M]. Each writes the last of its tensors.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.check import flash_mods as fm
from kernels.check.cases import ROUNDED
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Size, Tier, calls
from kernels.check.shared import READ_STRIDES, made, rounded_and_inside
from kernels.check.tensors import UNTOUCHED, both_ends

INF = float("inf")
EMPTY, PARTIAL, FULL = 0, 1, 2
LISTS_AXES = {"num": "LR", "idx": "LRC", "num_t": "LC", "idx_t": "LCR", "mask": "MN"}
AXES = (
    dict.fromkeys(("q", "dq"), "HMD")
    | dict.fromkeys(("k", "dk"), "JND")
    | dict.fromkeys(("v", "dv"), "JNV")
    | dict.fromkeys(("o", "do"), "HMV")
    | dict.fromkeys(("lse", "delta", "tau", "dtau"), "HM")
)
ROWS = {(tensor, axis, "after"): "" for tensor in LISTS_AXES for axis in "LRC"}
MASKLESS = ROWS | {(tensor, axis, "after"): "" for tensor in AXES for axis in "HJ"}

# Lists of blocks.


def pairs(mask: torch.Tensor, BLOCK_M: int, BLOCK_N: int) -> torch.Tensor:
    """How many pairs of each block are allowed, int [R, C]."""
    M, N = mask.shape
    padded = torch.nn.functional.pad(mask.int(), (0, -N % BLOCK_N, 0, -M % BLOCK_M))
    return padded.view(-(-M // BLOCK_M), BLOCK_M, -(-N // BLOCK_N), BLOCK_N).sum((1, 3))


def kinds_of(mask: torch.Tensor, BLOCK_M: int, BLOCK_N: int) -> torch.Tensor:
    """What each block is, int [R, C]; one that reaches past M or N is never full."""
    counts = pairs(mask, BLOCK_M, BLOCK_N)
    return torch.where(counts == BLOCK_M * BLOCK_N, FULL, (counts > 0).int())


def lists_of(kinds: torch.Tensor) -> dict[str, torch.Tensor]:
    """num, idx, num_t and idx_t, 0 in the entries that no count reaches."""
    found = {}
    for suffix, rows in (("", kinds), ("_t", kinds.T)):
        num, idx = torch.zeros(2, len(rows), dtype=torch.int32), torch.zeros(2, *rows.shape, dtype=torch.int32)
        for which, kind in enumerate((PARTIAL, FULL)):
            for r, row in enumerate(rows):
                listed = torch.nonzero(row == kind).flatten()
                num[which, r], idx[which, r, : len(listed)] = len(listed), listed
        found |= {f"num{suffix}": num, f"idx{suffix}": idx}
    return found


def dense(mask_mod, M: int, N: int) -> torch.Tensor:
    """The mask mod at every pair, bool [M, N]."""
    return mask_mod.fn(torch.arange(M)[:, None], torch.arange(N))


def _sketch(draw: Draw, *kinds: str) -> torch.Tensor:
    """A mask whose blocks, of 16 by 16, are partial, full, or neither; partial ones lack or have a single pair, in turn."""
    mask = torch.zeros(16 * len(kinds), 16 * len(kinds[0]), dtype=torch.bool)
    for r, row in enumerate(kinds):
        for c, kind in enumerate(row):
            block = mask[16 * r : 16 * r + 16, 16 * c : 16 * c + 16]
            block[:] = kind == "F" or (kind == "P" and (r + c) % 2 == 0)
            if kind == "P":
                i, j = draw.size(3, 0, 15), draw.size(5, 0, 15)
                block[i, j] = ~block[i, j]
    return mask


def _lists(
    draw: Draw, M=32, N=32, mask=True, *, kinds=(), blocks=(16, 16), order="", shared="", packed=False, poison=()
) -> Case:
    """One call of the builder on a mask of these ``kinds`` of blocks, or a mask mod's, or of all pairs or none.

    What is recorded is recorded on its opposite, too.
    """
    given = _sketch(draw, *kinds) if kinds else dense(mask, M, N) if callable(mask) else torch.full((M, N), mask)
    given = given[:1].expand(len(given), -1) if shared else given
    given = ~given if draw.turn == 2 else given
    fence = None if packed else dict(zip("MN", blocks))
    tensor = Fenced("mask", "MN", given, fence=fence, order=order, shared=shared)
    answers, outs = lists_of(kinds_of(given, *blocks)), []
    for name, values in answers.items():
        count = answers[f"num{name[3:]}"]
        free = torch.arange(values.shape[-1]) >= count[..., None] if name.startswith("idx") else None
        outs.append(Output(Fenced(name, LISTS_AXES[name], torch.empty_like(values)), values.double(), free=free))
    return Case([tensor], outs, dict(zip(("BLOCK_M", "BLOCK_N"), blocks)), poison=poison)


def _list_steps(case: Case) -> int:
    """One load for each block and one store for each that is not empty, in both kernels; two counts for each list."""
    num, _, num_t, _ = (out.expected for out in case.outs)
    (_, R), (_, C) = num.shape, num_t.shape
    return 2 * (R * C + int(num.sum())) + 2 * R + 2 * C


def list_suspects(case: Case, out: Output):
    """Known mistakes of the lists, and what they hold then."""
    mask, blocks = case.inputs[0].values, tuple(case.launch.values())
    counts, there = (pairs(x, *blocks) for x in (mask, torch.ones_like(mask)))
    right, some = kinds_of(mask, *blocks), (counts > 0).int()

    def listed(kinds):
        return lists_of(kinds)[out.name]

    cause = "a block that reaches past M or N is taken for full: all BLOCK_M * BLOCK_N pairs must be allowed"
    yield cause, listed(torch.where(counts == there, FULL, some))
    yield "empty blocks are listed", listed(torch.where(right == FULL, FULL, PARTIAL))
    yield "full blocks are listed as partial", listed(some)
    yield "list 0 holds the partial blocks, list 1 the full ones", listed((3 - right) % 3)
    both = listed(some).clone()
    both[1] = listed(right)[1]
    yield "full blocks are listed as partial too: a block is in one list", both
    if out.name.startswith("idx"):
        lengths, descending = lists_of(right)[f"num{out.name[3:]}"].flatten().tolist(), listed(right).clone()
        holes = torch.full_like(both, UNTOUCHED)  # what is never stored
        for entries, places, length in zip(descending.flatten(0, 1), holes.flatten(0, 1), lengths):
            places[entries[:length].long()] = entries[:length]
            entries[:length] = entries[:length].flip(0)
        yield "the blocks of a list are in ascending order", descending
        cause = "block c stands at place c: blocks stand side by side, each at the place that counts those before it"
        yield cause, holes
    if out.name.endswith("_t") and right.shape[0] == right.shape[1]:
        yield "the keys' lists are the queries' once more: swap the strides, and the sizes", listed(right.T)


# The equation, dense.

_IN_TORCH = {  # the mods that are no plain arithmetic
    fm.softcap: lambda s, m, n: 2 * torch.tanh(s / 2),
    fm.ahead: lambda s, m, n: s.masked_fill(n <= m, -INF),
    fm.log_abs: lambda s, m, n: s.abs().log(),
}


@dataclass(frozen=True)
class Problem:
    """One call's tensors in float64 by name, what its mods are in PyTorch, what its lists say each block is."""

    x: dict[str, torch.Tensor]
    kinds: torch.Tensor  # [R, C]
    scale: float
    score: Callable
    mask: Callable
    blocks: tuple[int, int]
    key_head: Callable = lambda h, J, G: h // G

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """The problem that ``case`` sets."""
        x = {tensor.name: tensor.values for tensor in case.inputs}
        num, idx = x["num"], x["idx"]
        kinds = torch.zeros(idx.shape[1:], dtype=torch.int32)
        for which, kind in enumerate((PARTIAL, FULL)):
            for r, count in enumerate(num[which].tolist()):
                kinds[r, idx[which, r, :count].long()] = kind
        x = {name: value.double() for name, value in x.items() if name not in LISTS_AXES}
        mod, mask, blocks = case.launch["score_mod"], case.launch["mask_mod"].fn, case.launch["BLOCK_M"]
        score, blocks = _IN_TORCH.get(mod, mod.fn), (blocks, case.launch["BLOCK_N"])
        return cls(x, kinds, case.launch["scale"], score, mask, blocks)

    def but(self, **changed) -> "Problem":
        """The same with something changed."""
        return replace(self, **changed)

    @property
    def heads(self) -> list[int]:
        """The key head of each query head."""
        H, J = self.x["q"].shape[0], self.x["k"].shape[0]
        return [self.key_head(h, J, H // J) for h in range(H)]

    @property
    def positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """m [M, 1] and n [N]."""
        return torch.arange(self.x["q"].shape[1])[:, None], torch.arange(self.x["k"].shape[1])

    def counts(self) -> torch.Tensor:
        """Which pairs count, bool [M, N]."""
        m, n = self.positions
        kinds = self.kinds.repeat_interleave(self.blocks[0], 0).repeat_interleave(self.blocks[1], 1)
        kinds = kinds[: len(m), : len(n)]
        return (kinds == FULL) | ((kinds == PARTIAL) & self.mask(m, n))

    def scores(self) -> torch.Tensor:
        """s [H, M, N]."""
        return self.x["tau"][..., None] * (self.scale * self.x["q"] @ self.x["k"][self.heads].mT)

    def modified(self, s: torch.Tensor) -> torch.Tensor:
        """The score mod's value at every pair."""
        return self.score(s, *self.positions)

    def z(self) -> torch.Tensor:
        """The logits, -inf where a pair does not count."""
        return self.modified(self.scores()).masked_fill(~self.counts(), -INF)

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """o and lse; 0 and -inf for rows without keys."""
        z = self.z()
        dead = (z == -INF).all(-1, keepdim=True)
        alive = z.masked_fill(dead, 0)
        lse = alive.logsumexp(-1) if z.shape[-1] else z.new_zeros(z.shape[:-1])
        o = (alive.softmax(-1) @ self.x["v"][self.heads]).masked_fill(dead, 0)
        return o, lse.masked_fill(dead[..., 0], -INF)

    def by_key_head(self, value: torch.Tensor) -> torch.Tensor:
        """[H, ...] as [J, G, ...]."""
        return value.unflatten(0, (self.x["k"].shape[0], -1))


def answers(p: Problem) -> dict[str, torch.Tensor]:
    """o and lse, and where the problem has do the gradients, by autograd on the dense equation."""
    x = {name: p.x[name].clone().requires_grad_() for name in ("q", "k", "v", "tau")}
    o, lse = p.but(x=x).attend()
    found = {"o": o.detach(), "lse": lse.detach()}
    if "do" in p.x:
        wanted = torch.autograd.grad((o * p.x["do"]).sum(), tuple(x.values()))
        found |= {f"d{name}": gradient for name, gradient in zip(x, wanted)}
        found["delta"] = (found["o"] * p.x["do"]).sum(-1)
    return found


def rounding(p: Problem) -> dict[str, torch.Tensor]:
    """What float32 may lose of each gradient: the terms of its formula, taken absolute, times ``ROUNDED``.

    Terms cancel: rows of ds add up to 0, so dtau may be a thousandth of what is summed, and no share of dtau itself bounds
    what rounding leaves there. A logit's error counts by the logit's size, through p and the score mod's derivative; what
    the mod itself rounds is left out.
    """
    q, k, v, do, tau = (p.x[name] for name in ("q", "k", "v", "do", "tau"))
    k, v, tau, od = k[p.heads], v[p.heads], tau[..., None], p.x["o"] * do
    warmth, bare = tau.abs(), p.scale * q @ k.mT
    size = (p.scale * q).abs() @ k.abs().mT  # of the terms of a bare score
    s, lse = p.scores().requires_grad_(), p.x["lse"].masked_fill(p.x["lse"] == -INF, 0)[..., None]
    t = p.modified(s)
    (prime,) = torch.autograd.grad(t.sum(), s, create_graph=True)
    P, dp = (t - lse).exp(), do @ v.mT - od.sum(-1, keepdim=True)
    ds = prime * P * dp
    (slope,) = torch.autograd.grad(ds.sum(), s)
    s, t, prime, P, ds = (x.detach() for x in (s, t, prime, P, ds))
    apart = s.abs() + warmth * size  # how far s may be off, in roundings
    logit = 1 + t.abs() + lse.abs()
    dp = do.abs() @ v.abs().mT + od.abs().sum(-1, keepdim=True)
    off = slope.abs() * apart + ds.abs() * logit + prime.abs() * P * dp
    off, ds, by_p = (
        x.masked_fill(~p.counts(), 0).nan_to_num(0, 0) for x in (off, ds, P * (logit + prime.abs() * apart))
    )
    terms = {"delta": od.abs().sum(-1), "dq": p.scale * warmth * (off @ k.abs())}
    terms["dk"] = p.by_key_head(p.scale * off.mT @ (tau * q).abs()).sum(1)
    terms["dv"] = p.by_key_head(by_p.mT @ do.abs()).sum(1)
    terms["dtau"] = (off * bare.abs() + ds.abs() * size).sum(-1)
    return {name: ROUNDED * value for name, value in terms.items()}


# The calls.


def _call(
    inputs: str, outs: str, draw: Draw, *, M=32, N: int | None = 32, H=1, G=1, D=16, V=16, blocks=(16, 16), mask=fm.causal,
    mod=fm.same, scale=None, kinds=None, half=torch.float32, magnitude=1.0, **how,
) -> Case:  # fmt: skip
    """One call of the forward or backward launcher, with as many keys as queries where ``N`` is None.

    ``kinds(kinds)`` changes what the lists say each block is; ``half`` is the dtype of q, k, v and do, ``magnitude``
    multiplies q and k.
    """
    N, backward = M if N is None else N, "do" in inputs.split()
    sizes = {"H": H, "J": H // G, "M": M, "N": N, "D": D, "V": V}
    kind = kinds_of(dense(mask, M, N), *blocks)
    named = lists_of(kinds(kind) if kinds else kind)
    lists = [Fenced(name, LISTS_AXES[name], named[name]) for name in named if backward or not name.endswith("_t")]
    launch = {"scale": scale or D**-0.5, "score_mod": mod, "mask_mod": mask}
    launch |= {"score_gradient": fm.GRADIENTS.get(mod, fm.same_gradient)} if backward else {}
    launch |= {"BLOCK_M": blocks[0], "BLOCK_N": blocks[1]}
    given = {}

    def values(name, *shape):
        if name in ("o", "lse"):
            return answers(Problem.of(Case([*given.values(), *lists], [], launch)))[name].float()
        if name == "tau":
            made = 1 + 0.5 * draw.normal(*shape)
            made[..., 1::7] = 1.0 if mod is fm.log_abs else 0.0  # 0 has no logarithm
        else:
            made = draw.normal(*shape, dtype=half, scale=magnitude if name in ("q", "k") else 1.0)
        given[name] = Fenced(name, AXES[name], made.expand([sizes[axis] for axis in AXES[name]]))
        return made

    def known(case):
        p = Problem.of(case)
        slack = rounding(p) if backward else {}
        found = {name: {"expected": answer, "slack": slack.get(name)} for name, answer in answers(p).items()}
        if mod is fm.log_abs and backward:  # log |tau s| moves all logits of a row alike, so that its dtau is rounding alone
            found["dtau"]["expected"] = None
        return found

    fence = {"M": blocks[0], "N": blocks[1], "D": 32, "V": 32, "H": 1, "J": 1}
    return made((inputs.split(), outs.split()), AXES, sizes, values, launch, known, fence=fence, more=lists, **how)


def _turned(kinds):
    """What no mask would give: empty blocks are full, full ones empty or partial, partial ones full or left out."""
    R, C = kinds.shape
    turn = (torch.arange(R)[:, None] + torch.arange(C)) % 3
    return torch.where(turn == 0, FULL, torch.where(turn == 1, PARTIAL, EMPTY)).int()


def _in_turn(kinds):
    """Every block is in a list, partial and full ones in turn."""
    return 1 + torch.arange(kinds.numel()).view(kinds.shape) % 2


def _forward_steps(case: Case) -> int:
    """For each block of queries q, tau, two counts, o and lse; for each listed block its number, keys and values."""
    H, _, R, _, listed = _listed(case)
    return H * (6 * R + 3 * listed)


def _backward_steps(case: Case) -> int:
    """For dq also o, do, lse, delta and dtau; for dk and dv each listed block's number, q, tau, do, lse and delta."""
    H, J, R, C, listed = _listed(case)
    return H * (10 * R + 3 * listed) + J * 4 * C + H * (2 * C + 6 * listed)


def _listed(case: Case) -> tuple[int, int, int, int, int]:
    """Query heads, key heads, blocks of queries and of keys, and the blocks that the lists name."""
    sizes = {axis: n for tensor in case.inputs for axis, n in zip(tensor.axes, tensor.shape)}
    num = next(tensor for tensor in case.inputs if tensor.name == "num")
    return *(sizes[axis] for axis in "HJRC"), int(num.values.sum())


# What known mistakes give: forward, where a step over the listed blocks may be mistaken, or another problem is solved.

LISTS_MISTAKEN = {
    "the mask is not applied in partial blocks": (PARTIAL, FULL),
    "the mask is applied in full blocks: there every pair counts": (FULL, PARTIAL),
    "the partial blocks are left out": (PARTIAL, EMPTY),
    "the full blocks are left out: list 1 comes after list 0": (FULL, EMPTY),
    "blocks that no list names are visited": (EMPTY, PARTIAL),
}
_STEPS = {
    "the numerator is not rescaled: acc = acc * alpha + p v, alpha = exp(top - new_top)": {"rescaled": "l"},
    "the denominator is not rescaled: l = l * alpha + sum of p, alpha = exp(top - new_top)": {"rescaled": "acc"},
    "top is not carried from block to block: a step returns new_top": {"carried": False},
}


def walk(p: Problem, rescaled="acc l", carried=True) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse over the listed blocks, partial ones first: which sums are rescaled, and whether the maximum is carried."""
    z, v, (BLOCK_M, BLOCK_N) = p.z(), p.x["v"][p.heads], p.blocks
    o, lse = z.new_zeros(*z.shape[:2], v.shape[-1]), z.new_zeros(z.shape[:2])
    for r, row in enumerate(p.kinds):
        rows = slice(r * BLOCK_M, (r + 1) * BLOCK_M)
        acc, l, top = 0 * o[:, rows], 0 * lse[:, rows], lse[:, rows] - INF
        for c in [*torch.nonzero(row == PARTIAL).flatten().tolist(), *torch.nonzero(row == FULL).flatten().tolist()]:
            columns = slice(c * BLOCK_N, (c + 1) * BLOCK_N)
            new_top = torch.maximum(top, z[:, rows, columns].amax(-1))
            shift = torch.where(new_top == -INF, 0, new_top)
            P, alpha = (z[:, rows, columns] - shift[..., None]).exp(), (top - shift).exp()
            acc = acc * (alpha[..., None] if "acc" in rescaled else 1) + P @ v[:, columns]
            l = l * (alpha if "l" in rescaled else 1) + P.sum(-1)
            top = new_top if carried else top
        o[:, rows] = acc / torch.where(l == 0, 1, l)[..., None]
        lse[:, rows] = top + torch.where(l == 0, 1, l).log()
    return o, lse


def _changed(p: Problem):
    """Problems that a mistaken kernel may solve instead, and whether the backward kernels may, too."""
    tau = p.x["tau"]
    neutral = p.x | {"tau": torch.ones_like(tau)}
    yield "the temperature is left out: s = tau * scale * q k^T", p.but(x=neutral), True
    late = p.but(x=neutral, score=lambda s, m, n: tau[..., None] * p.score(s, m, n))
    yield "the temperature is applied after the score mod: the mod takes tau * scale * q k^T", late, True
    yield "the temperature is multiplied twice: onto q, or onto s", p.but(x=p.x | {"tau": tau * tau}), True
    yield "every head takes the first one's temperatures", p.but(x=p.x | {"tau": tau[:1].expand_as(tau)}), True
    yield "the scale is left out: s = scale * q k^T", p.but(scale=1.0), True
    late = p.but(scale=1.0, score=lambda s, m, n: p.scale * p.score(s, m, n))
    yield "the scale is applied after the score mod: the mod takes scale * q k^T", late, True
    yield "the score mod is left out: z = SCORE_MOD(s, m, n)", p.but(score=fm.same.fn), False
    for cause, (kind, becomes) in LISTS_MISTAKEN.items():
        yield cause, p.but(kinds=torch.where(p.kinds == kind, becomes, p.kinds)), True
    first = p.but(kinds=p.kinds[:1].expand_as(p.kinds))
    yield "every row of blocks walks along the first one's lists: row r of either list", first, True
    modulo = p.but(key_head=lambda h, J, G: h % J)
    yield "query head h reads key head h % J: heads that share keys are neighbours, h // G", modulo, False
    yield "every query head reads the first key head: h // G", p.but(key_head=lambda h, J, G: 0), False


def forward_suspects(case: Case, out: Output):
    """Known mistakes of the forward kernel, and the o or lse they give."""
    p, which = Problem.of(case), ("o", "lse").index(out.name)
    (o, lse), z = p.attend(), p.z()
    top = z.amax(-1) if z.shape[-1] else lse
    if out.name == "o":
        alone = o * (lse - torch.where(top == -INF, 0, top)).exp().nan_to_num(0)[..., None]
        yield "the numerator is not divided by l: o = acc / l", alone
    else:
        yield "log l is left out: lse = top + log l", top
        yield "the maximum is left out: lse = top + log l", torch.where(lse == -INF, 0, lse - top)
        yield "lse is in base 2: it is natural, top + log l", lse / torch.tensor(2.0, dtype=lse.dtype).log()
        yield "rows without keys have an lse of -inf: top stays -inf there", torch.where(lse == -INF, 0, lse)
    for cause, mistaken in _STEPS.items():
        yield cause, walk(p, **mistaken)[which]
    for cause, changed, _ in _changed(p):
        yield cause, changed.attend()[which]
    short = (0, 0, 0, -p.x["k"].shape[1] % p.blocks[1])  # the keys that the last block lacks are there, as zeros
    padded = p.but(x=p.x | {name: torch.nn.functional.pad(p.x[name], short) for name in "kv"})
    yield "keys beyond N count: where n >= N, z is -inf", padded.attend()[which]


# Backward: the formulas, each factor of which may be mistaken.


def gradients(
    p: Problem, *, lse=None, prime=None, through=lambda P, dP, delta: P * (dP - delta),
    scaled=("dq", "dk", "dtau"), warm=("dq", "dk"), group=lambda grouped: grouped.sum(1),
) -> dict[str, torch.Tensor]:  # fmt: skip
    """dq, dk, dv, dtau by the formulas of lesson 34, of which one may be mistaken.

    ``prime`` is the score mod's derivative, ``through(P, dP, delta)`` the softmax's; ``scaled``, which gradients have the
    scale in them, ``warm``, which of dq and dk the temperature; ``group(grouped)``, how query heads are added.
    """
    q, k, v, do, tau = (p.x[name] for name in ("q", "k", "v", "do", "tau"))
    k, v, tau = k[p.heads], v[p.heads], tau[..., None]
    s = p.scores().requires_grad_()
    t = p.modified(s)
    if prime is None:
        prime = torch.autograd.grad(t.sum(), s)[0] if t.requires_grad else torch.zeros_like(s)
    counts, s, t = p.counts(), s.detach(), t.detach()
    lse, delta = p.x["lse"] if lse is None else lse, (p.x["o"] * do).sum(-1, keepdim=True)
    P = (t.masked_fill(~counts, -INF) - torch.where(lse == -INF, 0, lse)[..., None]).exp()
    ds = (prime * through(P, do @ v.mT, delta)).masked_fill(~counts, 0)
    seen = tau * q if "dk" in warm else q
    found = {"dq": ds @ k, "dk": group(p.by_key_head(ds.mT @ seen)), "dv": group(p.by_key_head(P.mT @ do))}
    found["dtau"] = (ds * (q @ k.mT)).sum(-1)
    found["dq"] = tau * found["dq"] if "dq" in warm else found["dq"]
    return {name: value * (p.scale if name in scaled else 1) for name, value in found.items()}


def _slips(p: Problem, name: str):
    """(cause, what of the formulas is mistaken) for one gradient."""
    if name == "dv":
        yield "dv is scaled: dv = p^T do", {"scaled": ("dv",)}
    else:
        if name != "dtau":
            whose = {"dq": "dq = tau * scale * ds k", "dk": "dk adds up ds^T (tau * q)"}[name]
            yield f"the temperature is left out of {name}: {whose}", {"warm": {"dq", "dk"} - {name}}
        yield f"the scale is left out: {name} is scale * the product with ds", {"scaled": ()}
        yield "delta is left out: dz = p * (do v^T - delta)", {"through": lambda P, dP, delta: P * dP}
        yield "delta is added: dz = p * (do v^T - delta)", {"through": lambda P, dP, delta: P * (dP + delta)}
        yield "p is left out: dz = p * (do v^T - delta)", {"through": lambda P, dP, delta: dP - delta}
        cause = "the score mod's derivative is left out: ds = SCORE_GRADIENT(s, m, n, dz)"
        yield cause, {"prime": torch.ones_like(p.scores())}
    yield "lse is left out: p = exp(z - lse)", {"lse": torch.zeros_like(p.x["lse"])}
    cause = "of the heads that share keys counts: add up all G"
    yield f"only the last {cause}", {"group": lambda grouped: grouped[:, -1]}
    yield f"only the first {cause}", {"group": lambda grouped: grouped[:, 0]}


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
    for cause, mistake in _slips(p, name):
        yield cause, gradients(p, **mistake)[name]
    if name in ("dk", "dv") and p.kinds.shape[0] == p.kinds.shape[1]:
        cause = "the keys' kernel walks along the queries' lists: row c of num_t and idx_t lists blocks of queries"
        yield cause, gradients(p.but(kinds=p.kinds.T))[name]
    for cause, changed, _ in (one for one in _changed(p) if one[-1]):
        yield cause, gradients(changed)[name]


# The three exercises.

SORTED, LISTED, TURNED = "Lesson 33, step 1", "Lesson 33, step 2", "Lesson 34, step 7"
_below = ("P..", "FP.", "FFP")
_of_lists = functools.partial(calls, _lists)
_ragged_lists = _of_lists(
    *(
        {"M": M, "N": N, "mask": full, "poison": both_ends("MN")}
        for M, N in (
            (Size(37, 33, 47), Size(41, 33, 47)),
            (Size(5, 1, 15), Size(20, 17, 31)),
            (Size(20, 17, 31), Size(3, 1, 15)),
        )
        for full in (True, False)
    ),
    {"M": Size(37, 33, 47), "N": Size(60, 50, 63), "mask": fm.causal},
)

LISTS = Exercise(
    "block_lists",
    "the kernel stores nothing yet. It needs a count for each block, and a store of the block's number in a list.",
    (
        Property(  # the last one has more blocks than a cap would let pass
            "partial, full, empty", 2, SORTED,
            _of_lists(*({"kinds": kinds} for kinds in (("PF.FP",), ("P.", "FP"), (6 * "PPF",))), packed=True),
            "count the allowed pairs: none is empty, all BLOCK_M * BLOCK_N full, anything else partial",
        ),
        Property(
            "lists of the keys", 2, TURNED,
            _of_lists(*({"kinds": kinds} for kinds in (_below, ("PFF.", ".FPP"), tuple(6 * "PPF"))), packed=True),
            "num_t and idx_t list, for each block of keys, blocks of queries: the lists of the transposed mask",
        ),
        Property(
            "strides", 1, READ_STRIDES, _of_lists({}, {"order": "NM"}, {"shared": "M"}, kinds=("P.", "FP")),
            "the mask has its own strides, and some are 0",
        ),
        Property("ragged sizes", 2, SORTED, _ragged_lists, "pairs beyond M or N are not allowed"),
        Property(
            "rows without pairs", 1, LISTED, _of_lists({"N": 48, "mask": False}, {"kinds": ("...", ".FP")}),
            "counts of 0 are stored too",
        ),
        Property(
            "block sizes", 1, SORTED,
            _of_lists(
                *({"blocks": b} for b in ((16, 32), (64, 16), (32, 32))), M=Size(64, 64, 128, 64), N=64, mask=fm.causal
            ),
            "block (r, c) begins at row r * BLOCK_M, column c * BLOCK_N",
        ),
        Property.stays_inside(SORTED, _ragged_lists),
    ),
    list_suspects,
    ROWS,
    given=("at", "tile"),
    compiles=Compiles(_of_lists(M=128, N=128, mask=fm.causal, blocks=(64, 64), packed=True), SORTED),
    cheap=Cheap(
        _of_lists(kinds=_below, packed=True), _list_steps,
        (Tier(3, read=2.0, written=0.5, steps=1.1), Tier(1, read=4.0, written=2.0, steps=2.0)),
        "each list's kernel loads each block of the mask once, and stores one number for a block that is not empty",
        LISTED, sectors=3.0,
    ),
)  # fmt: skip

ONLINE, DEAD, WALK, HEADS = "Lesson 30, step 2", "Lesson 30, step 4", "Lesson 30, step 5", "Lesson 33, step 7"
BACK, CHAIN = "Lesson 34, step 8", "Lesson 34, step 5"
STRIDES = "query head h reads key head h // G, and each tensor has its own strides, some of them 0: at(stride_x, ...)"
BLOCK_SIZES = "the answer depends on BLOCK_M or BLOCK_N, it must not"
F16 = "something is rounded to float16: tile gives float32, and all sums stay float32"
EVERY, SOME, ODD = {"mask": fm.every_pair}, Size(32, 16, 48, 16), {"D": Size(20, 17, 31), "V": Size(5, 1, 15)}
RAGGED = ODD | {"H": 2, "G": 2, "M": Size(20, 17, 31), "N": Size(37, 33, 47), "mask": fm.dead_rows}


def _held(call: Callable, said: dict[str, tuple[str, ...]], lesson: str) -> tuple[Property, ...]:
    """What both launchers are held to; ``said``, name -> the lesson, the likely cause, and perhaps that of NaN."""
    of, square = functools.partial(calls, call), {"M": Size(48, 48, 80, 16), "N": None}
    odd = ODD | {"M": Size(37, 33, 47), "N": Size(41, 33, 47)}
    wide = {"M": 17, "N": 33, "D": Size(140, 129, 160), "V": Size(130, 129, 160)}
    # With one key every score gets a gradient of 0, and rounding.
    small = {"M": Size(5, 1, 15), "N": Size(3, 2, 15), "D": 3, "V": Size(20, 17, 31)}
    plus, logs = ({"mod": mod} | EVERY for mod in (fm.plus_100, fm.log_abs))
    far = dict.fromkeys(("q", "o", "do", "dq"), "H") | dict.fromkeys(("k", "v", "dk", "dv"), "J")
    cases = {
        "rows without keys": of(
            {"N": 48, "mask": fm.dead_rows},
            {"M": 48, "N": 48, "mask": fm.window},
            {"M": 16, "kinds": lambda kinds: 0 * kinds},
            {"M": 16, "N": 0},
        ),
        "block lists": of(
            square | {"packed": True},
            square | {"kinds": _turned},
            EVERY | {"M": 48, "kinds": lambda kinds: kinds * torch.tensor([[0], [1], [0]])},
            # More blocks in each list, of the queries and of the keys, than a cap would let pass.
            *(EVERY | {"M": M, "N": N, "D": 8, "V": 8, "kinds": _in_turn} for M, N in ((16, 288), (288, 16))),
        ),
        "score mods": of(
            *({"mod": mod, "M": SOME, "N": Size(48, 32, 64, 16), "scale": 0.7} for mod in (fm.softcap, fm.alibi)),
            {"mod": fm.ahead, "N": 48},
            **EVERY,
        ),
        "heads and strides": of(
            {},
            {"orders": {"HMD": "DMH", "JND": "NJD", "JNV": "VNJ", "HMV": "MVH", "HM": "MH"}},
            {"out_orders": {"HMD": "MDH", "JND": "DNJ", "JNV": "NVJ", "HMV": "VHM", "HM": "MH"}},
            {"shared": {"q": "H", "k": "J", "v": "V", "do": "HMV", "tau": "H"}},
            {"H": 3, "G": 1, "N": 16, "far": far},
            {"H": 10, "G": 10, "N": 16},
            H=4, G=2, M=16, N=SOME,
        ),
        "ragged sizes": of(odd, odd | plus, odd | logs, wide, small | plus, poison=both_ends("MNDV")),
        "block sizes": of({"blocks": (16, 32)}, {"blocks": (32, 16)}, M=Size(64, 64, 128, 64), N=64),
    }  # fmt: skip
    held = (Property(name, 1, said[name][0], each, *said[name][1:]) for name, each in cases.items())
    large = ({"magnitude": 100.0, "scale": 1e-4}, {"scale": 0.25})
    return *held, *rounded_and_inside(call, lesson, F16, RAGGED, large)


def _compiled(call: Callable, lesson: str, **own) -> Compiles:
    """Blocks as a GPU has them."""
    return Compiles(calls(call, M=64, N=64, D=32, V=32, blocks=(32, 32), half=torch.float16, packed=True), lesson, **own)


_forward = functools.partial(_call, "q k v tau", "o lse")
FORWARD = Exercise(
    "flash_forward",
    "the kernel stores nothing yet. It needs a walk along two lists of blocks, and a store of o and of lse.",
    (
        Property(
            "blocks of keys", 1, ONLINE,
            calls(_forward, {"N": 16}, {"N": 64}, **EVERY, M=Size(32, 16, 32, 16), H=3, packed=True, scale=1.0),
            "o = acc / l and lse = top + log l, where all three are carried from block to block",
        ),
        Property(  # around 1e4 and -1e4, in blocks whose maxima rise and fall; rows whose largest is as low as numbers go
            "large logits", 1, ONLINE,
            calls(
                _forward, {"scale": 30.0}, {"scale": 1000.0}, {"mod": fm.plus_100}, {"N": 2, "scale": 1e35}, **EVERY, N=64
            ),
            "exponentiate z - top and top - new_top only, neither of which is positive",
            not_finite="a positive number is exponentiated: top is the largest logit so far, it never falls",
        ),
        *_held(
            _forward,
            {
                "rows without keys": (
                    DEAD,
                    "a row without keys has o = 0 and lse = -inf",
                    "-inf - -inf or 0 / 0 is NaN: shift by 0 where the maximum is -inf, divide by 1 where l is 0",
                ),
                "block lists": ("Lesson 33, step 5", "row r visits what its lists name, the mask counts in list 0 only"),
                "score mods": ("Lesson 31, step 2", "z = SCORE_MOD(s, m, n), m a column of rows' numbers, n a row"),
                "heads and strides": (HEADS, STRIDES),
                "ragged sizes": (
                    WALK,
                    "pairs beyond M or N do not count (logits), and rows beyond M are not stored (mask_m)",
                    "pairs beyond M or N do not count: z is -inf there, whatever the score mod makes of a zero",
                ),
                "block sizes": (WALK, BLOCK_SIZES),
            },
            WALK,
        ),
    ),
    forward_suspects,
    MASKLESS,
    given=("at", "tile"),
    compiles=_compiled(_forward, WALK),
    cheap=Cheap(
        calls(_forward, M=48, N=48, H=2, G=2, packed=True), _forward_steps,
        (Tier(3, read=2.5, steps=1.1), Tier(1, read=5.0, written=4.0, steps=2.0)),
        "a program loads its queries once, each listed block of keys and values once, "
        "and stores o and lse after the last",
        WALK, sectors=2.0,
    ),
)  # fmt: skip

_backward = functools.partial(_call, "q k v tau o lse do", "delta dq dk dv dtau")
BACKWARD = Exercise(
    "flash_backward",
    "the kernels store nothing yet. They need delta, dq and dtau along the queries' lists, dk and dv along the keys'.",
    (
        Property(
            "queries", 1, "Lesson 34, step 3",
            calls(_backward, **EVERY, M=16, N=SOME, judge=("delta", "dq", "dtau"), packed=True),
            "dq = tau * scale * ds k, dtau = scale * q · (ds k), ds = p * (do v^T - delta) where there is no score mod",
        ),
        Property(
            "keys and values", 1, CHAIN,
            calls(_backward, **EVERY, M=Size(32, 32, 48, 16), N=None, judge=("dk", "dv"), packed=True),
            "dk = scale * ds^T (tau q), dv = p^T do",
        ),
        *_held(
            _backward,
            {
                "rows without keys": (
                    BACK,
                    "a row without keys gives no gradient",
                    "a row without keys has z = lse = -inf, and -inf - -inf is NaN: take 0 for such an lse",
                ),
                "block lists": (TURNED, "dq walks along num and idx, dk and dv along num_t and idx_t"),
                "score mods": (CHAIN, "ds = SCORE_GRADIENT(s, m, n, dz), at the same s as the score mod"),
                "heads and strides": (CHAIN, STRIDES),
                "ragged sizes": (
                    BACK,
                    "pairs beyond M or N give no gradient: ds is 0 there",
                    "rows beyond M count: z must be -inf there, and ds 0 wherever z is -inf, whatever the gradient is",
                ),
                "block sizes": (BACK, BLOCK_SIZES),
            },
            BACK,
        ),
    ),
    backward_suspects,
    MASKLESS,
    given=("at", "tile"),
    # As many queries and keys as the smallest block has: whatever the learner's own blocks are, the lists name one.
    compiles=_compiled(
        _backward, BACK, own_blocks=lambda draw: _backward(draw, M=16, N=16, D=32, V=32, half=torch.float16, packed=True)
    ),
    cheap=Cheap(
        calls(_backward, M=48, N=48, H=2, G=2, packed=True), _backward_steps,
        (Tier(3, read=3.05, steps=1.1), Tier(1, read=6.1, written=4.0, steps=2.0)),
        "each kernel loads what it keeps once, what it walks over once for each listed block, and stores after the last",
        BACK, sectors=2.0,
    ),
)  # fmt: skip

# What check.derivation holds a formula of the temperature's gradient to; no kernel is checked with it.


def _temperatures(draw):
    """Dense attention, for a derivation: every pair counts, each head has its own keys."""
    for H, M, N, D, V in ((1, 3, 4, 2, 2), (2, draw.size(5, 3, 9), 7, 3, 5)):
        shapes = {"q": (H, M, D), "k": (H, N, D), "v": (H, N, V), "tau": (H, M), "do": (H, M, V)}
        x = {name: draw.normal(*shape) for name, shape in shapes.items()}
        x["tau"][:, 1] = 0.0
        axes = AXES | {"k": "HND", "v": "HNV"}
        answer = temperature({name: values.double() for name, values in x.items()}, 0.7)
        out = Output(Fenced("dtau", "HM", torch.empty(H, M)), answer)
        yield Case([Fenced(name, axes[name], values) for name, values in x.items()], [out], {"scale": 0.7})


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
    warm = temperature(x, scale, torch.mul)
    yield "the factor is the bare score, scale * q k^T: here the temperature is in it", warm
    yield "the scale is left out of the factor: it is scale * q k^T", temperature(x, scale) / scale
    yield "the softmax's denominator depends on tau, too: dz = p * (do v^T - delta)", (p * dp * bare).sum(-1)
    yield "p is left out of dz = p * (do v^T - delta)", ((dp - (p * dp).sum(-1, keepdim=True)) * bare).sum(-1)
    dz = cold * (dp - (cold * dp).sum(-1, keepdim=True))
    yield "the probabilities are those without a temperature", (dz * bare).sum(-1)


TEMPERATURE = Exercise(
    "flash_dtau",
    "the function returns nothing yet.",
    (Property("temperature", 0, CHAIN, _temperatures),),
    temperature_suspects,
)
