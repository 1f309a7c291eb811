"""Lesson 23's "Your turn" cell: a gate's rectangle."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, values


@step("23-rectangle", "the pairs that one gate parts, and nothing that cancels")
def rectangle(answer):
    """Pairs beside the rectangle are a hundred million times larger: a form that adds them and takes them away shows."""
    T = 6
    W = values(T, T, dtype=torch.float64).abs().tril(-1)
    wanted = torch.stack([W[u + 1 :, :u].sum() for u in range(T)])
    got = answer(W.clone())
    for after, before, why in (
        (0, 0, "The query of token u itself is counted: it reads before gate u acts, so t > u"),
        (1, 1, "The key of token u itself is counted: it is written after gate u has acted, so s < u"),
        (0, 1, "Token u's own query and key are counted: one reads before gate u acts, the other is written after"),
    ):
        if not difference("", got, torch.stack([W[u + after :, : u + before].sum() for u in range(T)])):
            return why
    if not difference("", got, torch.stack([W[:u, u + 1 :].sum() for u in range(T)])):
        return "Rows are queries and columns keys: you sum rows before u and columns after it, where W is 0"
    if said := difference("The gradient", got, wanted):
        return said
    large = W.float()
    large[5, 4] = large[1, 0] = 1e8
    got = answer(large.clone())[2:4]
    exact = torch.stack([large[u + 1 :, :u].double().sum() for u in (2, 3)])
    if difference("", got, exact, tolerance=1e-4):
        return (
            f"With 1e8 at pairs that gate 2 does not part, its gradient is {float(got[0]):.3g}, not {float(exact[0]):.3g}: "
            "you add pairs and take them away again, and rounding stays. Add up the rectangle alone"
        )
    return ""
