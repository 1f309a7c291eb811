"""Lesson 23's "Your turn" cells: a coupled gate's gradient, a gate's rectangle, and which tokens a reset leaves linked."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, values


@step("23-coupled", "the gradient of a gate that stands in two places")
def coupled(answer):
    """K = V, so that a sum over the wrong axis has the right shape."""
    dS, S = (values(4, 4, seed=i, dtype=torch.float64) for i in range(2))
    k, v, gk = (values(4, seed=i, dtype=torch.float64) for i in range(2, 5))
    gk = -gk.abs()
    decay, new = gk.exp()[:, None], torch.outer(k, v)
    wanted = (dS * decay * (S - new)).sum(1)
    got = answer(*(x.clone() for x in (dS, S, k, v, gk)))
    for other, why in (
        (dS * decay * S, "The gate stands in two places: 1 - decay, beside what is written, depends on it, too"),
        (dS * decay * (S + new), "The weight 1 - decay falls where decay rises: what is written counts with a minus"),
        (dS * (S - new), "That is by decay, and gk is its logarithm: one more factor"),
        (dS * (decay * S - new), "The factor decay belongs to both terms: the derivative of -exp(gk) is -exp(gk)"),
        (dS * (decay * S + (1 - decay) * new), "That is dS times the state itself, not times its derivative by gk"),
    ):
        if not difference("", got, other.sum(1)):
            return why
    if not difference("", got, (dS * decay * (S - new)).sum(0)):
        return "Summed over rows: a row has one gate, so sum along it, over the value channels"
    if not difference("", got, (dS * gk.exp() * (S - new)).sum(1)):
        return "The decays stand along the columns: a row's factor is decay[:, None]"
    return difference("The gradient", got, wanted)


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


@step("23-linked", "which pairs a reset leaves linked, in a model that reads first")
def linked(answer):
    """A reset at the first token, two in a row, and tokens between."""
    g = torch.tensor([-0.5, -1, 0, -torch.inf, -2, -torch.inf, -torch.inf, -0.1], dtype=torch.float64)
    reset, T = g == -torch.inf, 8
    wanted = torch.tensor([[s < t and not reset[s + 1 : t].any() for s in range(T)] for t in range(T)])
    got = answer(g.clone())
    if tuple(getattr(got, "shape", ())) != (T, T):
        return difference("The matrix for eight tokens", got, wanted)
    got = got.to(torch.bool)
    if got.triu().any():
        t, s = got.triu().nonzero()[0].tolist()
        return f"Query {t} and key {s} count as linked: here t reads before it writes, so s < t"
    for start, end, why in (
        (1, 1, "t's own gate parts them in yours, too: it acts after t has read"),
        (0, 0, "s's own gate parts them in yours, too: it acted before s wrote"),
        (0, 1, "the gates of s and t part them in yours, too: one acted before s wrote, the other acts after t has read"),
    ):
        other = [[s < t and not reset[s + start : t + end].any() for s in range(T)] for t in range(T)]
        if torch.equal(got, torch.tensor(other)):
            return f"Of a pair, {why}"
    if torch.equal(got, torch.ones(T, T, dtype=torch.bool).tril(-1)):
        return "All pairs count as linked: a gate of minus infinity between them parts them"
    return difference("The matrix", got, wanted)
