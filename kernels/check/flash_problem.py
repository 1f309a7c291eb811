"""Exercise 06 in plain PyTorch, in float64 and dense: one call, its logits, its answers, what float32 makes of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.check.cases import ROUNDED
from kernels.check.flash_lists import FULL, PARTIAL
from kernels.check.flash_mods import MASKS, SCORES
from kernels.check.framework import Case

INF = float("inf")


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
        num, idx = x.pop("num"), x.pop("idx")
        kinds = torch.zeros(idx.shape[1:], dtype=torch.int32)
        for which, kind in enumerate((PARTIAL, FULL)):
            for r, count in enumerate(num[which].tolist()):
                kinds[r, idx[which, r, :count].long()] = kind
        x = {name: value.double() for name, value in x.items() if name not in ("num_t", "idx_t")}
        how = case.launch
        score, mask = SCORES[how["score_mod"].__name__], MASKS[how["mask_mod"].__name__]
        return cls(x, kinds, how["scale"], score, mask, (how["BLOCK_M"], how["BLOCK_N"]))

    def but(self, **changed) -> "Problem":
        """The same with something changed."""
        return replace(self, **changed)

    def where(self, kind: int, becomes: int) -> "Problem":
        """The same with blocks of one kind taken for another."""
        return self.but(kinds=torch.where(self.kinds == kind, becomes, self.kinds))

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

    def scores(self, q=None, k=None, tau=None) -> torch.Tensor:
        """s [H, M, N]."""
        q, k, tau = (self.x[name] if own is None else own for name, own in (("q", q), ("k", k), ("tau", tau)))
        return tau[..., None] * (self.scale * q @ k[self.heads].mT)

    def modified(self, s: torch.Tensor) -> torch.Tensor:
        """The score mod's value at every pair."""
        return self.score(s, *self.positions)

    def z(self, s: torch.Tensor) -> torch.Tensor:
        """The logits, -inf where a pair does not count."""
        return self.modified(s).masked_fill(~self.counts(), -INF)

    def by_key_head(self, value: torch.Tensor) -> torch.Tensor:
        """[H, ...] as [J, G, ...]."""
        return value.unflatten(0, (self.x["k"].shape[0], -1))


def attend(z: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse; 0 and -inf for rows without keys."""
    dead = (z == -INF).all(-1, keepdim=True)
    alive = z.masked_fill(dead, 0)
    lse = alive.logsumexp(-1) if z.shape[-1] else z.new_zeros(z.shape[:-1])
    return (alive.softmax(-1) @ v).masked_fill(dead, 0), lse.masked_fill(dead[..., 0], -INF)


def answers(p: Problem) -> dict[str, torch.Tensor]:
    """o and lse, and where the problem has do the gradients, by autograd on the dense equation."""
    q, k, v, tau = (p.x[name].clone().requires_grad_() for name in ("q", "k", "v", "tau"))
    o, lse = attend(p.z(p.scores(q, k, tau)), v[p.heads])
    found = {"o": o.detach(), "lse": lse.detach()}
    if "do" in p.x:
        wanted = torch.autograd.grad((o * p.x["do"]).sum(), (q, k, v, tau))
        found |= dict(zip(("dq", "dk", "dv", "dtau"), wanted))
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
