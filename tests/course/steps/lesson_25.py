"""Wrong answers to lesson 25's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def middle(ref="Gamma[n - 1]", value="(q[n:] * (Gamma[n:] - ref).exp()) @ (k[:n] * (ref - Gamma[:n]).exp()).T"):
    return f"def square(q, k, Gamma):\n    n = len(q) // 2\n    ref = {ref}\n    return {value}\n"


def rows(through="Gamma[-1].exp()[:, None] * dS", read="c * (q * Gamma.exp()).T @ do"):
    return f"def entering(q, do, Gamma, dS, c):\n    return {through} + {read}\n"


def gamma(value):
    return f"def constant_gate(W):\n    t = torch.arange(len(W), device=W.device)\n    return {value}\n"


WRONG = {
    "25-middle": [
        (middle(ref="Gamma[0]"), "With gates of -120 in the first half some scores are not finite"),
        (middle(ref="Gamma[-1]"), "With gates of -120 in the second half some scores are not finite"),
        (middle(ref="Gamma[n - 2]"), "With gates of -120 in the first half some scores are not finite"),
        (middle(ref="Gamma[n + 1]"), "With gates of -120 in the second half some scores are not finite"),
        (middle(ref="0 * Gamma[0]"), "some scores are not finite: a factor's exponent is above 0"),
        (middle(value="q[n:] @ k[:n].T"), "Nothing decays"),
        (middle(value="((q[n:] * (Gamma[n:] - ref).exp()) @ (k[:n] * (ref - Gamma[:n]).exp()).T).T"), "yours is transposed"),
        (middle(value="(k[n:] * (Gamma[n:] - ref).exp()) @ (q[:n] * (ref - Gamma[:n]).exp()).T"), "changed places"),
        (middle(value="(q[n:] * (Gamma[n:] - ref).exp()) @ k[:n].T"), "The square[0, 0]"),
    ],
    "25-rows": [
        (rows(through="dS"), "does not fade"),
        (rows(through="Gamma[-1].exp() * dS"), "Columns fade"),
        (rows(through="Gamma[0].exp()[:, None] * dS"), "by the first token's gates alone"),
        (rows(read="(q * Gamma.exp()).T @ do"), "lacks c"),
        (rows(read="c * q.T @ do"), "The queries' share does not fade"),
        (rows(read="c * (q * (Gamma[-1] - Gamma).exp()).T @ do"), "A key passes the gates behind its token"),
        (rows(read="c * do.T @ (q * Gamma.exp())"), "is transposed"),
        (rows(through="Gamma.sum(0).exp()[:, None] * dS"), "What comes through the chunk[0, 0]"),
    ],
    "25-gamma": [
        (gamma("W.sum()"), "Each pair is counted once"),
        (gamma("(W * (t[:, None] - t[None, :] + 1)).sum()"), "once too often"),
        (gamma("(W * (t[:, None] - t[None, :] - 1)).sum()"), "once too little"),
        (gamma("(W * (t[None, :] - t[:, None])).sum()"), "The sign is turned"),
        (gamma("W.sum(0)"), "A number is asked for"),
        (gamma("(W * t[:, None]).sum()"), "The gradient is"),
    ],
}
