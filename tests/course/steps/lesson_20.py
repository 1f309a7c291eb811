"""Wrong answers to lesson 20's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def early(value):
    return f"def early_decays(g):\n    Gamma = g.cumsum(0)\n    return {value}\n"


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


WRONG = {
    "20-early": [
        (early("(Gamma[:, None] - Gamma[None, :]).exp().tril()"), "in which its own value does not stand yet"),
        (early("(Gamma[:, None] - Gamma[None, :]).exp().tril(-1)"), "t reads before its own gate acts"),
        (early("((Gamma - g)[:, None] - (Gamma - g)[None, :]).exp().tril(-1)"), "that acted before s wrote"),
        (early("(Gamma[:, None] - (Gamma - g)[None, :]).exp().tril(-1)"), "with the gates of s and t"),
        (early("((Gamma - g)[:, None] - Gamma[None, :]).exp()"), "has written nothing yet"),
        (early("(Gamma - g).exp()"), "has shape (5,)"),
        (early("(Gamma[:, None] - g - Gamma[None, :]).exp().tril(-1)"), "no decay is above 1"),
    ],
    "20-coupled": [
        (coupled("decay * S + torch.outer((1 - decay) * k, v)"), "Columns of the state fade"),
        (coupled("decay[:, None] * S + torch.outer(k, v)"), "has its whole weight"),
        (coupled("decay[:, None] * (S + torch.outer(k, v))"), "it gets what the old one loses"),
        (coupled("decay[:, None] * S + (1 - decay) * torch.outer(k, v)"), "belongs to rows, beside k"),
        (coupled("decay[:, None] * S + torch.outer(1 - decay, v)"), "lacks the key"),
        (coupled("S + torch.outer((1 - decay) * k, v)"), "The old state does not fade"),
        (coupled("gk[:, None] * S + torch.outer((1 - decay) * k, v)"), "The old state, faded"),
    ],
    "20-pieces": [
        (back(order="tokens.split(sizes)"), "you begin with the first piece"),
        (back(order="tokens.flip(0).split(sizes[::-1])"), "`walk` turns them"),
        (back(enters="first"), "begins with the initial state"),
        (back(keep="outputs.append(o)"), "put each in front"),
    ],
}
