"""Lesson 20's "Your turn" cells: a model that reads first, one that writes differences, and how many sequences are enough."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import block, described, difference, growing, values


@step("20-early", "what is left of each token's writing when another reads it")
def early(answer):
    """Gates that all differ, so that each one too many or too few shows."""
    g = -values(5, dtype=torch.float64).abs()
    wanted = torch.zeros(5, 5, dtype=g.dtype, device=g.device)
    for t in range(5):
        for s in range(t):
            wanted[t, s] = g[s + 1 : t].sum().exp()
    got = answer(g.clone())
    if tuple(getattr(got, "shape", ())) != (5, 5):
        return difference("The matrix for five tokens", got, wanted)
    if (got.triu(1) != 0).any():
        return "Above the diagonal something is not 0: there s comes after t, and has written nothing yet"
    if (got.diagonal() != 0).any():
        return (
            f"The diagonal holds {float(got[2, 2]):.3g}, and should be 0: token t reads S[t-1], in which its own value does "
            "not stand yet"
        )
    for start, end, why in (
        (1, 1, "with the gate of t, too: but t reads before its own gate acts"),
        (0, 0, "with the gate of s, too: that acted before s wrote"),
        (0, 1, "with the gates of s and t, too: one acted before s wrote, the other acts after t has read"),
    ):
        other = [[g[s + start : t + end].sum().exp() if s < t else 0.0 for s in range(5)] for t in range(5)]
        if not difference("", got, torch.tensor(other)):
            return f"What s wrote fades, in yours, {why}. Between them lie the gates of s + 1 to t - 1"
    return growing(got) or difference("The matrix", got, wanted)


@step("20-delta", "a token that writes what its key does not find yet")
def delta(answer):
    """As many rows as columns first, where one may pass for the other; a key whose length is not 1."""
    for K, V in ((4, 4), (4, 8)):
        S, k, v = (values(*shape, seed=i) for i, shape in enumerate([(K, V), (K,), (V,)]))
        got, here = block(answer, S, k, v, shape=(K, V)), [x.cpu().double() for x in (S, k, v)]
        S, k, v = here
        found = S.T @ k
        for other, why in (
            (S + torch.outer(k, v), "The value is written whole: first take off what the key finds"),
            (S + torch.outer(k, v + found), "What the key finds is added to the value: it must be taken off"),
            (torch.outer(k, v - found), "The difference replaces the state: it is added to it"),
            (S + (v - found), "Every row gets the whole difference: row i gets k[i] times it"),
            (S - torch.outer(k, found), "What the key finds is taken off, and the value is never written"),
        ):
            if not difference("", got, other):
                return why
        if K == V and not difference("", got, S + torch.outer(k, v - S @ k)):
            return "The key reads along a row: it reads a column, so the sum is over rows, axis 0"
        if K == V and not difference("", got, S + torch.outer(v - found, k)):
            return "Key and value have changed places: k belongs to rows, k[:, None]"
        if said := difference("The state", got, S + torch.outer(k, v - found)):
            return said
    return ""


@step("20-full", "from how many sequences on arithmetic takes longer than the steps")
def full(answer):
    """Sizes that all differ, so that each one left out shows as a factor."""
    tau, phi, H, K, V = 4e-7, 7e13, 3, 64, 32
    right = tau * phi / (5 * K * V * H)
    got = answer(tau, phi, H, K, V)
    if not isinstance(got, (int, float)):
        return f"A number is asked for, and this is {described(got)}"
    for other, why in (
        (right * H, "it lacks the heads: each of the H heads has a state of its own"),
        (right * 5, "it lacks the five operations for each element of the state"),
        (right * V, "it lacks V: a state has K times V elements"),
        (right * K, "it lacks K: a state has K times V elements"),
        (right * 5 * K * V / (2 * K + 2 * V), "it counts the elements that are moved: the second bound is of the operations"),
    ):
        if abs(got / other - 1) < 1e-6:
            return f"That is {got:.4g}, {got / right:.3g} times too much: {why}"
    if got and abs(1 / got / right - 1) < 1e-6:
        return "That is the inverse: B is what makes 5 K V B T H / phi as long as T tau"
    return difference("B", got, right)
