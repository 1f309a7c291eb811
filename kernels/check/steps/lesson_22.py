"""Lesson 22's "Your turn" cells: the walk back of a model that reads first, a coupled gate's gradient, its rectangle."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, values


def _gradients(q, k, v, do, decay):
    leaves = [x.clone().requires_grad_() for x in (k, v)]
    S, o = q.new_zeros(q.shape[1], v.shape[1]), []
    for t in range(len(q)):
        o.append(q[t] @ S)
        S = decay[t] * S + torch.outer(leaves[0][t], leaves[1][t])
    return torch.autograd.grad(torch.stack(o), leaves, do)


def _walk(q, k, v, do, decay, first=False, fade_all=False, fade=True):
    """The walk back with one mistake: the query's share comes too early, fades as well, or nothing fades."""
    dS, dk, dv = q.new_zeros(q.shape[1], v.shape[1]), [], []
    for t in reversed(range(len(q))):
        read = torch.outer(q[t], do[t])
        dS = dS + read if first else dS
        dk.insert(0, dS @ v[t])
        dv.insert(0, dS.T @ k[t])
        d = decay[t] if fade else 1.0
        dS = d * dS if first else d * (dS + read) if fade_all else d * dS + read
    return torch.stack(dk), torch.stack(dv)


@step("22-early", "the walk back of a model that reads before it writes")
def early(answer):
    """K = V, so that a product with the wrong side of dS has the right shape."""
    inputs = [values(6, 3, seed=i, dtype=torch.float64) for i in range(4)]
    inputs.append((-values(6, seed=4, dtype=torch.float64).abs()).exp())
    wanted = _gradients(*inputs)
    dk, dv = answer(*(x.clone() for x in inputs))
    for mistake, why in (
        ({"first": True}, "That is step 1's order, for a model that reads last: here q[t] read the state before token t"),
        ({"fade_all": True}, "What q[t] read must not fade by token t's own gate: it read the state before that acted"),
        ({"fade": False}, "Nothing fades on the way back: S[t-1] is in S[t] with the factor decay[t]"),
    ):
        if not any(difference("", *pair) for pair in zip((dk, dv), _walk(*inputs, **mistake), strict=True)):
            return why
    if not difference("", dk, wanted[0]) and difference("", dv, wanted[1]):
        q, k, v, do, decay = inputs
        if not difference("", dv, _walk(q, v, k, do, decay)[0]):
            return "The keys' gradient is right. dv is dS times k, but S's columns are the value's: transpose dS"
    if torch.isnan(dk).any() or torch.isnan(dv).any():
        return "Some gradients are NaN: each token's dk and dv must be stored"
    return difference("Of the two, dk", dk, wanted[0]) or difference("Of the two, dv", dv, wanted[1])


@step("22-coupled", "the gradient of a gate that stands in two places")
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


@step("22-rectangle", "the pairs that one gate parts, and nothing that cancels")
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
