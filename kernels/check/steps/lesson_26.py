"""Lesson 26's "Your turn" cell: a constant gate's gradient."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import described, difference, values


@step("26-gamma", "the gradient of a constant gate, from pairs")
def gamma(answer):
    """Pairs of all distances; then one of a token with itself that is a hundred million times larger."""
    W = values(6, 6, dtype=torch.float64).tril()
    apart = torch.arange(6, device=W.device)[:, None] - torch.arange(6, device=W.device)
    wanted, got = (W * apart).sum(), answer(W.clone())
    if got is None or getattr(got, "numel", lambda: 1)() != 1:
        return f"A number is asked for, and this is {described(got)}"
    for other, why in (
        (W.sum(), "Each pair is counted once: W[t, s] stands in the sum of every gate between the two"),
        (W.tril(-1).sum(), "Each pair is counted once: W[t, s] stands in the sum of every gate between the two"),
        ((W * (apart + 1)).sum(), "A pair counts once too often: the gate of s itself acted before s wrote"),
        ((W * (apart - 1)).sum(), "A pair counts once too little: the gate of t itself acts before t reads"),
        (-wanted, "The sign is turned: between s and t lie t - s gates"),
        (sum(W[: u + 1, u + 1 :].sum() for u in range(6)), "Rows are queries and columns keys: that sums where W is 0"),
    ):
        if not difference("", got, other):
            return why
    if said := difference("The gradient", got, wanted):
        return said
    large = W.float()
    large[2, 2] = 1e8
    got, exact = answer(large.clone()), (large.double() * apart).sum()
    if difference("", got, exact, tolerance=1e-4):
        return (
            f"With 1e8 on the diagonal, where no gate is passed, it is {float(got):.3g}, not {float(exact):.3g}: "
            "you add rows and take columns away, and their rounding stays. Weigh each pair by its distance"
        )
    return ""
