"""Wrong answers to lesson 23's "Your turn" cell: definitions, and a phrase of the diagnosis."""


def rectangle(value):
    return f"def parted(W):\n    return {value}\n"


SUMS = "torch.stack([W[{}].sum() for u in range(len(W))])"
WRONG = {
    "23-rectangle": [
        (rectangle(SUMS.format("u:, :u")), "so t > u"),
        (rectangle(SUMS.format("u + 1 :, : u + 1")), "so s < u"),
        (rectangle(SUMS.format("u:, : u + 1")), "own query and key"),
        (rectangle(SUMS.format(":u, u + 1 :")), "Rows are queries"),
        (rectangle("(W.sum(1) - W.sum(0)).flip(0).cumsum(0).flip(0) - W.sum(1)"), "rounding stays"),
        (rectangle("W.sum(1)"), "The gradient[1] is"),
    ],
}
