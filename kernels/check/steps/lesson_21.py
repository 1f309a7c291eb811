"""Lesson 21's "Your turn" cells: a gate that also weighs what is written, a walk in pieces, gates that part two texts."""

import torch

from kernels.check.steps import step
from kernels.check.steps.helpers import difference, values


@step("21-coupled", "one gate that fades a row and weighs what is written to it")
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


@step("21-pieces", "a walk back, piece by piece")
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


@step("21-reset", "gates that part texts, in both directions")
def reset(answer):
    """Who is seen by whom, from the gates alone: a wall wipes what was written before its token."""
    lengths = (3, 1, 4)
    text = [0, 0, 0, 1, 2, 2, 2, 2]
    for reverse in (False, True):
        way = "Walking from last to first" if reverse else "Walking from first to last"
        g = answer(list(lengths), reverse)
        if said := difference("The line of gates", g, torch.zeros(8)):
            if "shape" in said or "None" in said or "numbers" in said:
                return said
        odd = [x for x in g.tolist() if x not in (0.0, -float("inf"))]
        if odd:
            return f"{way}, a gate is {odd[0]:g}: each is 0 or minus infinity here"
        order = list(range(8))[:: -1 if reverse else 1]
        for i, s in enumerate(order):
            seen = True
            for t in order[i + 1 :]:
                seen = seen and g[t] == 0
                if seen and text[s] != text[t]:
                    where = f"the walk enters the new text at token {next(u for u in order[i:] if text[u] != text[s])}"
                    return f"{way}, in texts of 3, 1 and 4 tokens, token {t} still sees token {s} of another: {where}"
                if not seen and text[s] == text[t]:
                    return (
                        f"{way}, in texts of 3, 1 and 4 tokens, token {t} no longer sees token {s} of its own: a gate acts "
                        "before its token writes, so a wall cuts its token off from what was written before"
                    )
    return ""
