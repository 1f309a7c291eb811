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


def delta(value):
    return f"@triton.jit\ndef through_delta(dS, k):\n    return {value}\n"


def shared(value):
    return f"def gathered(dk, Hkv):\n    B, T, H, K = dk.shape\n    return {value}\n"


READ = "tl.sum(dS * k[:, None], axis=0)[None, :]"
WRONG = {
    "22-early": [
        (early(before="dS = dS + torch.outer(q[t], do[t])", after="decay[t] * dS"), "step 1's order"),
        (early(after="decay[t] * (dS + torch.outer(q[t], do[t]))"), "must not fade by token t's own gate"),
        (early(after="dS + torch.outer(q[t], do[t])"), "Nothing fades"),
        (early(dv="dS @ k[t]"), "transpose dS"),
        (early(after="decay[t] * dS + torch.outer(do[t], q[t])"), "Of the two, dk"),
    ],
    "22-delta": [
        (delta("dS"), "stands in it a second time"),
        (delta("-k[:, None] * " + READ), "dS itself is a part"),
        (delta("dS + k[:, None] * " + READ), "counts with a minus"),
        (delta("dS - " + READ), "row i gets k[i] times"),
        (delta("dS - k[None, :] * tl.sum(dS * k[None, :], axis=1)[:, None]"), "runs down each column, axis 0"),
        (delta("dS - 2 * k[:, None] * " + READ), "The gradient[0, 0]"),
    ],
    "22-shared": [
        (shared("dk.view(B, T, H // Hkv, Hkv, K).sum(2)"), "adds up every other head"),
        (shared("dk.view(B, T, Hkv, H // Hkv, K).mean(3)"), "is the mean of the shares"),
        (shared("dk[:, :, :: H // Hkv]"), "leaves the others out"),
        (shared("dk.view(B, T, Hkv, H // Hkv, K).sum(2)"), "has shape (2, 3, 3, 4)"),
        (shared("dk[:, :, :Hkv]"), "With six heads and 2 of keys, dk[0, 0, 0, 0]"),
    ],
}
