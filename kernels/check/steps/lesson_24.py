"""Lesson 24's "Your turn" cell: a chunk that is read backwards."""

import math

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, growing, values


@step("24-reverse", "the decays of a chunk that is walked backwards")
def reverse(answer):
    """Gates that differ; then strong ones, whose exponential above 0 is infinite, and their gradient."""
    g = -values(5, dtype=torch.float64).abs()

    def decays(start, end):
        rows = [[g[t + start : s + end].sum().exp() if s >= t else 0.0 for s in range(5)] for t in range(5)]
        return torch.tensor(rows, dtype=g.dtype)

    wanted, got = decays(0, 0), answer(g.clone())
    if tuple(getattr(got, "shape", ())) == (5, 5):
        if (got.tril(-1) != 0).any():
            return "Below the diagonal something is not 0: walking back, token t has met the tokens s >= t alone"
        for start, end, why in (
            (1, 1, "the gates of t + 1 to s: but s wrote after its own gate, and t reads after its own"),
            (0, 1, "the gate of s, too: walking back, that has acted before s writes"),
            (1, 0, "one gate too few: that of t acts before t reads"),
        ):
            if not difference("", got, decays(start, end)):
                return f"Between s and t you count {why}. They are those of t to s - 1"
        if said := growing(got):
            return said
    if said := difference("The matrix", got, wanted):
        return said
    got = answer(torch.full((40,), -30.0, device=g.device))
    if not torch.isfinite(got).all():
        return (
            "With gates of -30 some entries are not finite: where s < t the exponent is above 0 and overflows, and infinity "
            "times 0 is NaN. Put -inf there before the exponential"
        )
    strong = torch.full((40,), -30.0, device=g.device).requires_grad_()
    got = answer(strong)
    (gradient,) = torch.autograd.grad(got.sum(), strong) if got.requires_grad else (torch.zeros(()),)
    if not torch.isfinite(gradient).all():
        return (
            "The matrix is right, and with gates of -30 its gradient is NaN: where s < t the exponential is infinite, and "
            "autograd multiplies the 0 that comes back through your mask by it. Put -inf there before the exponential"
        )
    got = answer(torch.tensor([-0.5, -0.5, -1e9, -0.5, -0.5], device=g.device))
    if not abs(got[0, 1].item() - math.exp(-0.5)) < 1e-3:
        return (
            f"With gates -0.5, -0.5, -1e9, -0.5, -0.5 entry [0, 1] is {got[0, 1].item():.3f}, expected e^-0.5 = 0.607: "
            "beside -1e9 a sum has no digits left. Gates below -104 count as -104"
        )
    return ""
