"""Lesson 20's "Your turn" cells: a model that reads first, a gate that also weighs what is written, a walk in pieces."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, growing, values


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


@step("20-coupled", "one gate that fades a row and weighs what is written to it")
def coupled(answer):
    """The old state and the new value apart; K = V first, where a row may pass for a column."""
    for K, V in ((4, 4), (3, 5)):
        S, k, v, gk = (values(*shape, seed=i, dtype=torch.float64) for i, shape in enumerate([(K, V), (K,), (V,), (K,)]))
        decay = (-gk.abs()).exp()
        new = torch.outer(k, v)
        alone = (S, 0 * k, 0 * v), (0 * S, k, v)
        kept, written = (answer(*(x.clone() for x in (*inputs, decay.log()))) for inputs in alone)
        if K == V and not difference("", kept, S * decay):
            return "Columns of the state fade: the gate is by key channel, so by row, and decay[:, None] is a column"
        if not difference("", kept, S):
            return "The old state does not fade"
        if said := difference("The old state, faded,", kept, decay[:, None] * S):
            return said
        for weight, why in (
            (1, "What is written has its whole weight: here row i of it gets 1 - decay[i]"),
            (decay[:, None], "What is written fades like the old state: it gets what the old one loses, 1 - decay"),
        ):
            if not difference("", written, weight * new):
                return why
        if not difference("", written, torch.outer(1 - decay, v)):
            return "What is written lacks the key: row i of it gets 1 - decay[i] times k[i] times v"
        if K == V and not difference("", written, (1 - decay) * new):
            return "Columns of what is written are weighed: 1 - decay belongs to rows, beside k"
        if said := difference("What is written", written, (1 - decay)[:, None] * new):
            return said
    return ""


@step("20-pieces", "a walk back, piece by piece")
def pieces(answer):
    """The walk notes what it is given; sizes that differ, an empty piece inside."""
    tokens, given = torch.arange(1.0, 7.0), []

    def walk(piece, state):
        given.append((piece.tolist(), float(state)))
        outputs = []
        for x in piece.flip(0):
            state = 0.5 * state + x
            outputs.insert(0, state)
        return torch.stack(outputs) if outputs else piece, state

    o, state = walk(tokens, torch.tensor(8.0))
    given.clear()
    got, last = answer(walk, tokens.clone(), [2, 0, 3, 1], torch.tensor(8.0))
    said = "With tokens 1 to 6 in pieces of 2, 0, 3 and 1"
    asked = [piece for piece, _ in given]
    if asked == [[1, 2], [], [3, 4, 5], [6]]:
        return f"{said} you begin with the first piece: a walk back begins with the last, whose state enters the others"
    if asked != [[6], [3, 4, 5], [], [1, 2]]:
        return f"{said} you walk {asked}: each piece once, the last first, its tokens in reading order (`walk` turns them)"
    if given[1][1] == 8.0:
        return f"{said} the second piece you walk begins with the initial state: it must begin with what the first one left"
    if tuple(got.shape) == (6,) and not difference("", got, torch.cat([o[5:], o[2:5], o[:2]])):
        return f"{said} the outputs stand in the order of the walk, last piece first: put each in front of what you have"
    return difference("The line of outputs", got, o) or difference("The final state", last, state)
