"""Exercise 04 in plain PyTorch, in float64: one call, its answers, and the two walks, each step of which may be mistaken."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.check.framework import Case
from kernels.recurrent_attention.reference import recurrent_attention_reference

STATES = ("S0", "ST", "dS0", "dST")
AXES = (
    dict.fromkeys(("q", "k", "gk", "dq", "dk"), "THK")
    | dict.fromkeys(("v", "o", "do", "dv"), "THV")
    | dict.fromkeys(("g", "dg"), "TH")
    | dict.fromkeys(STATES, "NHKV")
)


@dataclass
class Problem:
    """One call's tensors in float64 by name, the sequences' (begin, end) along T, and the scale."""

    x: dict[str, torch.Tensor]
    spans: list[tuple[int, int]]
    scale: float

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """The problem that ``case`` sets."""
        ends = case.launch["cu_seqlens"].tolist()
        x = {tensor.name: tensor.values.double() for tensor in case.inputs}
        return cls(x, list(zip(ends[:-1], ends[1:])), case.launch["scale"])

    def but(self, spans=None, scale=None, **tensors) -> "Problem":
        """The same with something changed."""
        return replace(
            self, x=self.x | tensors, spans=spans or self.spans, scale=self.scale if scale is None else scale
        )

    def first(self, name: str, axis: str) -> "Problem":
        """The same where the first head, or sequence, of one input stands for all of them."""
        value, i = self.x[name], AXES[name].index(axis)
        return self.but(**{name: value.narrow(i, 0, 1).expand_as(value)})

    def turned(self) -> "Problem":
        """The same with the tokens of each sequence in reverse order."""
        return self.but(**{name: self.turn(value) for name, value in self.x.items() if name not in STATES})

    def turn(self, value: torch.Tensor) -> torch.Tensor:
        """One tensor with the tokens of each sequence in reverse order."""
        return torch.cat([value[begin:end].flip(0) for begin, end in self.spans])


def answers(p: Problem) -> dict[str, torch.Tensor]:
    """Outputs, and where the problem has do and dST the gradients: by the reference and autograd."""
    x = {name: value.clone().requires_grad_() for name, value in p.x.items()}
    o, ST = recurrent_attention_reference(
        *(x[name][None] for name in ("q", "k", "v")),
        g=x["g"][None],
        gk=x["gk"][None] if "gk" in x else None,
        scale=p.scale,
        initial_state=x["S0"],
        output_final_state=True,
        cu_seqlens=torch.tensor([0, *(end for _, end in p.spans)]),
    )
    found = {"o": o[0].detach(), "ST": ST.detach()}
    if "do" in x:
        names = [name for name in ("q", "k", "v", "g", "S0") if name in x]
        loss = (o[0] * p.x["do"]).sum() + (ST * p.x["dST"]).sum()
        gradients = torch.autograd.grad(loss, [x[name] for name in names], materialize_grads=True)
        found |= {f"d{name}": gradient for name, gradient in zip(names, gradients)}
    return found


def gates(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """g [T, H, 1, 1] and gk [T, H, K, 1]: their sum is the logarithm of the decay D."""
    return p.x["g"][..., None, None], p.x["gk"][..., None]


def step(S: torch.Tensor, D: torch.Tensor, write: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A token's step: the state that goes on, and the one that is read."""
    return (D * S + write,) * 2


def step_back(dS: torch.Tensor, D: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A token's step back: the state's gradient that goes on to the token before, and that of ``k v^T``.

    ``own`` is what the token's own read gives, ``scale * q do^T``.
    """
    return D * (dS + own), dS + own


def walk(p: Problem, step: Callable = step, D: torch.Tensor | None = None):
    """The state read at every token [T, H, K, V], and the states that are left [N, H, K, V]."""
    D = sum(gates(p)).exp() if D is None else D
    write = p.x["k"][..., None] * p.x["v"][..., None, :]
    reads, left = torch.full_like(write, float("nan")), []
    for (begin, end), S in zip(p.spans, p.x["S0"]):
        for t in range(begin, end):
            S, reads[t] = step(S, D[t], write[t])
        left.append(S)
    return reads, torch.stack(left)


def walk_back(p: Problem, step: Callable = step_back, D: torch.Tensor | None = None):
    """The gradient of every token's write [T, H, K, V], and what is left of the state's [N, H, K, V]."""
    D = sum(gates(p)).exp() if D is None else D
    own = p.scale * p.x["q"][..., None] * p.x["do"][..., None, :]
    used, left = torch.full_like(own, float("nan")), p.x["dST"].clone()
    for n, (begin, end) in enumerate(p.spans):
        for t in reversed(range(begin, end)):
            left[n], used[t] = step(left[n], D[t], own[t])
    return used, left


def from_walk(p: Problem, name: str, **how) -> torch.Tensor:
    """o, ST, dq, dk, dv or dS0 of a walk that may be mistaken."""
    states, left = walk(p, **how) if name in ("o", "ST", "dq") else walk_back(p, **how)
    match name:
        case "ST" | "dS0":
            return left
        case "o":
            return p.scale * torch.einsum("thkv,thk->thv", states, p.x["q"])
        case "dq":
            return p.scale * torch.einsum("thkv,thv->thk", states, p.x["do"])
        case "dk":
            return torch.einsum("thkv,thv->thk", states, p.x["v"])
        case "dv":
            return torch.einsum("thkv,thk->thv", states, p.x["k"])
