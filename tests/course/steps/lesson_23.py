"""Wrong answers to lesson 23's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def coupled(value):
    return f"def coupled_gradient(dS, S, k, v, gk):\n    decay = gk.exp()[:, None]\n    return {value}\n"


def rectangle(value):
    return f"def parted(W):\n    return {value}\n"


def linked(value):
    return f"def linked(g):\n    reset = g == -torch.inf\n    R = reset.cumsum(0)\n    return {value}\n"


SUMS = "torch.stack([W[{}].sum() for u in range(len(W))])"
WRONG = {
    "23-coupled": [
        (coupled("(dS * decay * S).sum(1)"), "stands in two places"),
        (coupled("(dS * decay * (S + torch.outer(k, v))).sum(1)"), "counts with a minus"),
        (coupled("(dS * (S - torch.outer(k, v))).sum(1)"), "one more factor"),
        (coupled("(dS * (decay * S - torch.outer(k, v))).sum(1)"), "belongs to both terms"),
        (coupled("(dS * decay * (S - torch.outer(k, v))).sum(0)"), "sum along it"),
        (coupled("(dS * decay.T * (S - torch.outer(k, v))).sum(1)"), "along the columns"),
        (coupled("(dS * (decay * S + (1 - decay) * torch.outer(k, v))).sum(1)"), "not times its derivative"),
    ],
    "23-rectangle": [
        (rectangle(SUMS.format("u:, :u")), "so t > u"),
        (rectangle(SUMS.format("u + 1 :, : u + 1")), "so s < u"),
        (rectangle(SUMS.format("u:, : u + 1")), "own query and key"),
        (rectangle(SUMS.format(":u, u + 1 :")), "Rows are queries"),
        (rectangle("(W.sum(1) - W.sum(0)).flip(0).cumsum(0).flip(0) - W.sum(1)"), "rounding stays"),
        (rectangle("W.sum(1)"), "The gradient[1] is"),
    ],
    "23-linked": [
        (linked("(R[:, None] == R[None, :]).tril()"), "here t reads before it writes"),
        (linked("(R[:, None] == R[None, :]).tril(-1)"), "it acts after t has read"),
        (linked("((R - reset.int())[:, None] == (R - reset.int())[None, :]).tril(-1)"), "it acted before s wrote"),
        (linked("(R[:, None] == (R - reset.int())[None, :]).tril(-1)"), "the gates of s and t part them"),
        (linked("torch.ones(len(g), len(g)).tril(-1)"), "a gate of minus infinity between them"),
        (linked("R"), "has shape (8,)"),
        (linked("(R[:, None] >= R[None, :] + 1).tril(-1)"), "The matrix[1, 0]"),
    ],
}
