"""Lesson 22's "Your turn" cells: the walk back of a model that reads first, of one that writes differences, shared keys."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import block, difference, values


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


@step("22-delta", "the gradient before a step that writes a difference")
def delta(answer):
    """As many rows as columns first; a key whose length is not 1, so that a factor too many shows."""
    for K, V in ((4, 4), (4, 8)):
        dS, k = values(K, V, seed=0), values(K, seed=1)
        got, dS, k = block(answer, dS, k, shape=(K, V)), dS.cpu().double(), k.cpu().double()
        read = dS.T @ k
        for other, why in (
            (dS, "The step took something off the old state: S[t-1] stands in it a second time, behind k"),
            (-torch.outer(k, read), "The old state is also kept as it is: dS itself is a part of its gradient"),
            (dS + torch.outer(k, read), "What k finds in the old state is taken off it, so that part counts with a minus"),
            (dS - read, "Only the direction of k is written to: row i gets k[i] times the sum"),
        ):
            if not difference("", got, other):
                return why
        if K == V and not difference("", got, dS - torch.outer(dS @ k, k)):
            return "That sums along rows: k belongs to rows, so the sum over k runs down each column, axis 0"
        if said := difference("The gradient", got, dS - torch.outer(k, read)):
            return said
    return ""


@step("22-shared", "the gradient of keys that several heads share")
def shared(answer):
    """Six heads and two of keys, where neighbours and every second head differ, then one and six."""
    dk = values(2, 3, 6, 4, dtype=torch.float64)
    for Hkv in (2, 1, 6):
        wanted = torch.stack([dk[:, :, i * 6 // Hkv : (i + 1) * 6 // Hkv].sum(2) for i in range(Hkv)], 2)
        got = answer(dk.clone(), Hkv)
        for other, why in (
            (dk.view(2, 3, 6 // Hkv, Hkv, 4).sum(2), "adds up every other head: neighbours share, heads 0, 1, 2 and 3, 4, 5"),
            (wanted * Hkv / 6, "is the mean of the shares: a key that several heads read gets their sum"),
            (dk[:, :, :: 6 // Hkv], "takes one head's share and leaves the others out"),
        ):
            if difference("", other, wanted) and not difference("", got, other):
                return f"With six heads and {Hkv} of keys, your gradient {why}"
        if said := difference(f"With six heads and {Hkv} of keys, dk", got, wanted):
            return said
    return ""
