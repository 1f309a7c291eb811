"""Lesson 25's "Your turn" cell: a square of scores by its middle."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, values


@step("25-middle", "a square of scores as one product, with its reference point")
def middle(answer):
    """Mild gates for the values; then strong ones before, in or behind the middle, where one factor may overflow."""

    def square(q, k, Gamma):
        n = len(q) // 2
        decay = (Gamma[n:, None] - Gamma[None, :n]).exp()
        return torch.einsum("ti,tsi,si->ts", q[n:], decay, k[:n])

    q, k, gk = (values(8, 3, seed=i, dtype=torch.float64) for i in range(3))
    Gamma = (-gk.abs()).cumsum(0)
    got, wanted = answer(q.clone(), k.clone(), Gamma.clone()), square(q, k, Gamma)
    for other, why in (
        (q[4:] @ k[:4].T, "Nothing decays: the late half reads what the early half wrote, faded by the gates between"),
        (square(k, q, Gamma), "Queries and keys have changed places: the late half's are the queries"),
        (wanted.T, "Rows are late tokens, which read, and columns early ones: yours is transposed"),
    ):
        if not difference("", got, other):
            return why
    if said := difference("The square", got, wanted):
        return said
    for where, place in (("first half", slice(0, 4)), ("second half", slice(4, 8))):
        strong = torch.zeros(8, 3, device=q.device)
        strong[place] = -120.0  # one alone is beyond float32, where the point is off by one token
        Gamma = strong.cumsum(0)
        got = answer(q.float(), k.float(), Gamma.clone())
        if not torch.isfinite(got).all() or difference("", got, square(q.float(), k.float(), Gamma)):
            wrong = "wrong" if torch.isfinite(got).all() else "not finite"
            return (
                f"With gates of -120 in the {where} some scores are {wrong}: a factor's exponent is above 0. The reference "
                "point must lie between any late and any early token"
            )
    return ""
