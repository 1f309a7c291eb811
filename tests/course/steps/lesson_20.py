"""Wrong answers to lesson 20's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def early(value):
    return f"def early_decays(g):\n    Gamma = g.cumsum(0)\n    return {value}\n"


def delta(found="tl.sum(S * k[:, None], axis=0)", after="S + k[:, None] * (v - found)[None, :]"):
    return f"@triton.jit\ndef delta(S, k, v):\n    found = {found}\n    return {after}\n"


def full(value):
    return f"def enough_sequences(tau, phi, H, K, V):\n    return {value}\n"


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
    "20-delta": [
        (delta(after="S + k[:, None] * v[None, :]"), "The value is written whole"),
        (delta(after="S + k[:, None] * (v + found)[None, :]"), "it must be taken off"),
        (delta(after="k[:, None] * (v - found)[None, :]"), "The difference replaces the state"),
        (delta(after="S + (v - found)[None, :]"), "row i gets k[i] times it"),
        (delta(after="S - k[:, None] * found[None, :]"), "the value is never written"),
        (delta(found="tl.sum(S * k[None, :], axis=1)"), "the sum is over rows, axis 0"),
        (delta(after="S + (v - found)[:, None] * k[None, :]"), "Key and value have changed places"),
        (delta(after="S + 2 * k[:, None] * (v - found)[None, :]"), "The state[0, 0]"),
    ],
    "20-full": [
        (full("tau * phi / (5 * K * V)"), "it lacks the heads"),
        (full("tau * phi / (K * V * H)"), "it lacks the five operations"),
        (full("tau * phi / (5 * K * H)"), "it lacks V"),
        (full("tau * phi / ((2 * K + 2 * V) * H)"), "the second bound is of the operations"),
        (full("5 * K * V * H / (tau * phi)"), "That is the inverse"),
        (full("str(H)"), "A number is asked for"),
        (full("tau * phi / (5 * K * V * H) ** 2"), "B is"),
    ],
}
