"""Wrong answers to lesson 41's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def first(at, exists="(offs_m < M) & (offs_o < Co)"):
    return f"""@triton.jit
def dy_tile(offs_m, offs_o, M, P, Q, Co):
    n, rest = offs_m // (P * Q), offs_m % (P * Q)
    return {at}, {exists}
"""


def even(begin, end):
    return f"""def even_piece(z, steps, pieces):
    return {begin}, {end}
"""


def ones(tile="tl.where(offs_j == J, 1.0, A)", stored="offs_j <= J"):
    return f"""@triton.jit
def with_ones(A, offs_j, J):
    return {tile}, {stored}
"""


RIGHT = "(n * Co + offs_o) * P * Q + rest"

WRONG = {
    "41-first": [
        (first("offs_m * Co + offs_o"), "with channels *last*"),
        (first("offs_o * M + offs_m"), "one plane for each channel"),
        (first("n * P * Q + offs_o * P * Q + rest"), "Co planes of P · Q numbers"),
        (first("(n * Co + offs_o) * P * Q + offs_m"), "Your m runs on over images"),
        (first("n + offs_o + rest"), "at[0, 1] is"),
        (first(RIGHT, "offs_m < M"), "channel 7 of 7 counts as there"),
        (first(RIGHT, "(offs_m < M - 1) & (offs_o < Co)"), "counts as missing"),
    ],
    "41-even": [
        (even("z * (steps // pieces)", "(z + 1) * (steps // pieces)"), "is in no piece"),
        (even("z * -(-steps // pieces)", "(z + 1) * -(-steps // pieces)"), "There is no step"),
        (even("min(z * -(-steps // pieces), steps)", "min((z + 1) * -(-steps // pieces), steps)"), "everybody waits"),
        (
            even("z * (steps // pieces)", "steps if z == pieces - 1 else (z + 1) * (steps // pieces)"),
            "everybody waits for the longest",
        ),
        (even("z * steps // pieces", "min((z + 1) * steps // pieces + 1, steps)"), "is in two pieces"),
        (even("z * steps / pieces", "(z + 1) * steps / pieces"), "two integers"),
        (even("(pieces - 1 - z) * steps // pieces", "(pieces - z) * steps // pieces"), "must follow one another"),
    ],
    "41-ones": [
        (ones(stored="offs_j < J"), "Column 20 is not stored"),
        (ones(stored="offs_j < J + 2"), "Column 21 is stored"),
        (ones("tl.where(offs_j == J - 1, 1.0, A)"), "that is a weight's"),
        (ones("A"), "must hold ones"),
        (ones("tl.where(offs_j < J, A, 0.0)"), "must hold ones"),
    ],
}
