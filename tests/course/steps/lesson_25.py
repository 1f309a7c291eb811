"""Wrong answers to lesson 25's "Your turn" cell: definitions, and a phrase of the diagnosis."""


def middle(ref="Gamma[n - 1]", value="(q[n:] * (Gamma[n:] - ref).exp()) @ (k[:n] * (ref - Gamma[:n]).exp()).T"):
    return f"def square(q, k, Gamma):\n    n = len(q) // 2\n    ref = {ref}\n    return {value}\n"


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
}
