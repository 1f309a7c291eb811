"""Wrong answers to lesson 22's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def early(before="", dv="dS.T @ k[t]", after="decay[t] * dS + torch.outer(q[t], do[t])"):
    return f"""def walk_back(q, k, v, do, decay):
    dS, dk, dv = q.new_zeros(q.shape[1], v.shape[1]), torch.empty_like(k), torch.empty_like(v)
    for t in reversed(range(len(q))):
        {before or "pass"}
        dk[t], dv[t] = dS @ v[t], {dv}
        dS = {after}
    return dk, dv
"""


def coupled(value):
    return f"def coupled_gradient(dS, S, k, v, gk):\n    decay = gk.exp()[:, None]\n    return {value}\n"


def rectangle(value):
    return f"def parted(W):\n    return {value}\n"


SUMS = "torch.stack([W[{}].sum() for u in range(len(W))])"
WRONG = {
    "22-early": [
        (early(before="dS = dS + torch.outer(q[t], do[t])", after="decay[t] * dS"), "step 1's order"),
        (early(after="decay[t] * (dS + torch.outer(q[t], do[t]))"), "must not fade by token t's own gate"),
        (early(after="dS + torch.outer(q[t], do[t])"), "Nothing fades"),
        (early(dv="dS @ k[t]"), "transpose dS"),
        (early(after="decay[t] * dS + torch.outer(do[t], q[t])"), "Of the two, dk"),
    ],
    "22-coupled": [
        (coupled("(dS * decay * S).sum(1)"), "stands in two places"),
        (coupled("(dS * decay * (S + torch.outer(k, v))).sum(1)"), "counts with a minus"),
        (coupled("(dS * (S - torch.outer(k, v))).sum(1)"), "one more factor"),
        (coupled("(dS * (decay * S - torch.outer(k, v))).sum(1)"), "belongs to both terms"),
        (coupled("(dS * decay * (S - torch.outer(k, v))).sum(0)"), "sum along it"),
        (coupled("(dS * decay.T * (S - torch.outer(k, v))).sum(1)"), "along the columns"),
        (coupled("(dS * (decay * S + (1 - decay) * torch.outer(k, v))).sum(1)"), "not times its derivative"),
    ],
    "22-rectangle": [
        (rectangle(SUMS.format("u:, :u")), "so t > u"),
        (rectangle(SUMS.format("u + 1 :, : u + 1")), "so s < u"),
        (rectangle(SUMS.format("u:, : u + 1")), "own query and key"),
        (rectangle(SUMS.format(":u, u + 1 :")), "Rows are queries"),
        (rectangle("(W.sum(1) - W.sum(0)).flip(0).cumsum(0).flip(0) - W.sum(1)"), "rounding stays"),
        (rectangle("W.sum(1)"), "The gradient[1] is"),
    ],
}
