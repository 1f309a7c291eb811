"""Exercise 04 in plain PyTorch, in float64: one call, its answers, and the two walks, each step of which may be mistaken."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.check.framework import Case
from kernels.check.recurrence import Gated
from kernels.recurrent_attention.reference import recurrent_attention_reference

STATES = ("S0", "ST", "dS0", "dST")
AXES = (
    dict.fromkeys(("q", "k", "gk", "dq", "dk"), "THK")
    | dict.fromkeys(("v", "gv", "o", "do", "dv"), "THV")
    | dict.fromkeys(("g", "dg"), "TH")
    | dict.fromkeys(STATES, "NHKV")
)


@dataclass
class Problem:
    """One call's tensors in float64 by name, the sequences' (begin, end) along T, the scale, and what is asked."""

    x: dict[str, torch.Tensor]
    spans: list[tuple[int, int]]
    scale: float
    task: Gated = Gated()

    @classmethod
    def of(cls, case: Case, task: Gated) -> "Problem":
        """The problem that ``case`` sets."""
        ends = case.launch["cu_seqlens"].tolist()
        x = {tensor.name: tensor.values.double() for tensor in case.inputs}
        return cls(x, list(zip(ends[:-1], ends[1:])), case.launch["scale"], task)

    def but(self, spans=None, scale=None, **tensors) -> "Problem":
        """The same with something changed."""
        return replace(
            self, x=self.x | tensors, spans=spans or self.spans, scale=self.scale if scale is None else scale
        )

    def asking(self, task: Gated) -> "Problem | None":
        """The same tensors in another variation; None where its gates would have another shape."""
        x, own, other = dict(self.x), self.task.gates, task.gates
        if own != other and own in x:
            if x["k"].shape != x["v"].shape:
                return None
            x[other] = x.pop(own)
        return replace(self, x=x, task=task)

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
    """Outputs, and where the problem has do and dST the gradients: by the reference, or a variation's walk, and autograd."""
    x = {name: value.clone().requires_grad_() for name, value in p.x.items()}
    if p.task.varied:
        reads, ST = walk(p.but(**x))
        o = p.scale * torch.einsum("thkv,thk->thv", reads, x["q"])
    else:
        o, ST = recurrent_attention_reference(
            *(x[name][None] for name in ("q", "k", "v")),
            g=x["g"][None],
            gk=x["gk"][None] if "gk" in x else None,
            scale=p.scale,
            initial_state=x["S0"],
            output_final_state=True,
            cu_seqlens=torch.tensor([0, *(end for _, end in p.spans)]),
        )
        o = o[0]
    found = {"o": o.detach(), "ST": ST.detach()}
    if "do" in x:
        names = [name for name in ("q", "k", "v", "g", "S0") if name in x]
        loss = (o * p.x["do"]).sum() + (ST * p.x["dST"]).sum()
        gradients = torch.autograd.grad(loss, [x[name] for name in names], materialize_grads=True)
        found |= {f"d{name}": gradient for name, gradient in zip(names, gradients)}
    return found


def gates(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """g and the channels' gates as natural logarithms, [T, H, 1, 1] and [T, H, K, 1] or [T, H, 1, V]."""
    g = p.task.ln * p.x["g"][..., None, None]
    channels = p.x.get(p.task.gates)
    if channels is None:
        return g, torch.zeros_like(g)
    return g, p.task.ln * (channels[..., None] if p.task.gate == "key" else channels[..., None, :])


def decay(p: Problem) -> torch.Tensor:
    """D_t for every token, [T, H, K, 1] or [T, H, 1, V]."""
    g, channels = gates(p)
    return (g + channels).exp()


def walk(p: Problem, step: Callable | None = None, D: torch.Tensor | None = None):
    """The state read at every token [T, H, K, V], and the states that are left [N, H, K, V]."""
    D, step = decay(p) if D is None else D, step or p.task.step
    write = p.x["k"][..., None] * p.x["v"][..., None, :]
    reads, left = torch.full_like(write, float("nan")), []
    for (begin, end), S in zip(p.spans, p.x["S0"]):
        for t in range(begin, end):
            S, reads[t] = step(S, D[t], write[t])
        left.append(S)
    return reads, torch.stack(left)


def walk_back(p: Problem, step: Callable | None = None, D: torch.Tensor | None = None):
    """The gradient of every token's write [T, H, K, V], and what is left of the state's [N, H, K, V]."""
    D, step = decay(p) if D is None else D, step or p.task.step_back
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
