"""Lesson 25's "Your turn" cells: a square of scores by its middle, a chunk's gradient row by row, a constant gate's."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import described, difference, values


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


@step("25-rows", "the gradient of the state that enters, with a gate for each row")
def rows(answer):
    """K = V, where columns may pass for rows; each part alone first."""
    q, do, gk, dS = (values(*shape, seed=i, dtype=torch.float64) for i, shape in enumerate([(5, 4)] * 3 + [(4, 4)]))
    Gamma, c = (-gk.abs()).cumsum(0), 0.5
    last = Gamma[-1].exp()
    through = answer(0 * q, do.clone(), Gamma.clone(), dS.clone(), c)
    for other, why in (
        (dS, "What comes through the chunk does not fade"),
        (last * dS, "Columns fade: a gate by key channel fades a row, so the chunk's decays stand as a column, [:, None]"),
        (Gamma[0].exp()[:, None] * dS, "What comes through fades by the first token's gates alone: it passes all of them"),
    ):
        if not difference("", through, other):
            return why
    if said := difference("What comes through the chunk", through, last[:, None] * dS):
        return said
    read = answer(q.clone(), do.clone(), Gamma.clone(), 0 * dS, c)
    for other, why in (
        ((q * Gamma.exp()).T @ do, "The queries' share lacks c, the scale of the scores"),
        (c * q.T @ do, "The queries' share does not fade: token t read the state behind the gates of tokens 1 to t"),
        (c * (q * (Gamma[-1] - Gamma).exp()).T @ do, "A key passes the gates behind its token t, and a query those up to it"),
        (c * (do.T @ (q * Gamma.exp())), "The queries' share is transposed: a state has the key's channels as rows"),
    ):
        if not difference("", read, other):
            return why
    return difference("The queries' share", read, c * (q * Gamma.exp()).T @ do)


@step("25-gamma", "the gradient of a constant gate, from pairs")
def gamma(answer):
    """Pairs of all distances, the diagonal included."""
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
    return difference("The gradient", got, wanted)
