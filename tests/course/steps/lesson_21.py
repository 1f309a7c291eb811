"""Wrong answers to lesson 21's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def coupled(value):
    return f"def coupled(S, k, v, gk):\n    decay = gk.exp()\n    return {value}\n"


def back(order="reversed(tokens.split(sizes))", enters="state", keep="outputs.insert(0, o)"):
    return f"""def back_in_pieces(walk, tokens, sizes, state):
    outputs, first = [], state
    for piece in {order}:
        o, state = walk(piece, {enters})
        {keep}
    return torch.cat(outputs), state
"""


def walls(tokens):
    return f"""def walls(lengths, reverse):
    ends = torch.tensor(lengths).cumsum(0)
    g = torch.zeros(sum(lengths))
    g[{tokens}] = -torch.inf
    return g
"""


WRONG = {
    "21-coupled": [
        (coupled("decay * S + torch.outer((1 - decay) * k, v)"), "Columns of the state fade"),
        (coupled("decay[:, None] * S + torch.outer(k, v)"), "has its whole weight"),
        (coupled("decay[:, None] * (S + torch.outer(k, v))"), "it gets what the old one loses"),
        (coupled("decay[:, None] * S + (1 - decay) * torch.outer(k, v)"), "belongs to rows, beside k"),
        (coupled("decay[:, None] * S + torch.outer(1 - decay, v)"), "lacks the key"),
        (coupled("S + torch.outer((1 - decay) * k, v)"), "The old state does not fade"),
        (coupled("gk[:, None] * S + torch.outer((1 - decay) * k, v)"), "The old state, faded"),
    ],
    "21-pieces": [
        (back(order="tokens.split(sizes)"), "you begin with the first piece"),
        (back(order="tokens.flip(0).split(sizes[::-1])"), "`walk` turns them"),
        (back(enters="first"), "begins with the initial state"),
        (back(keep="outputs.append(o)"), "put each in front"),
    ],
    "21-reset": [
        (walls("ends[:-1]"), "Walking from last to first, in texts of 3, 1 and 4 tokens, token 4 no longer sees token 7"),
        (walls("ends[:-1] - 1"), "Walking from first to last, in texts of 3, 1 and 4 tokens, token 2 no longer sees token 0"),
        (walls("[]"), "token 3 still sees token 0 of another: the walk enters the new text at token 3"),
        (walls("ends[:-1] if not reverse else []"), "token 3 still sees token 7 of another: the walk enters"),
        (walls("slice(None)"), "no longer sees token 0 of its own"),
        ("def walls(lengths, reverse):\n    return torch.full((sum(lengths),), -20.0)\n", "a gate is -20"),
        ("def walls(lengths, reverse):\n    return torch.zeros(len(lengths))\n", "has shape (3,)"),
    ],
}
