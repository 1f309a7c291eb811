"""Wrong answers to lesson 41's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def first(at, exists="(offs_m < M) & (offs_o < Co)"):
    return f"""@triton.jit
def dy_tile(offs_m, offs_o, M, P, Q, Co):
    n, rest = offs_m // (P * Q), offs_m % (P * Q)
    return {at}, {exists}
"""


def groups(rows="Co // G", columns="J // G", asked="rows * columns * M", padded="up(rows, tile[0]) * up(columns, tile[1])"):
    return f"""def waste_of_groups(Co, J, M, G, tile):
    def up(n, to):
        return -(-n // to) * to

    rows, columns = {rows}, {columns}
    return {padded} * up(M, tile[2]) / ({asked})
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
        (first("n + offs_o + rest"), "image, channel and pixel, in this order"),
        (first(RIGHT, "offs_m < M"), "channel 7 of 7 counts as there"),
        (first(RIGHT, "(offs_m < M - 1) & (offs_o < Co)"), "counts as missing"),
    ],
    "41-groups": [
        (groups("Co", "J"), "is padded by itself"),
        (groups(asked="Co * columns * M"), "G cancels"),
        (groups(columns="J"), "its group's J / G columns"),
        (groups(rows="Co"), "A group has Co / G output channels"),
        (groups(padded="M / up(M, tile[2]) * up(rows, tile[0]) * up(columns, tile[1])"), "over the pixels is padded, too"),
        (groups(asked="1"), "That is how much is multiplied"),
        (groups(asked="rows * columns * M / G"), "G cancels"),
        (groups(padded="rows * columns * M / up(M, tile[2])"), "Nothing is padded there"),
        (groups(padded="tile[0] * tile[1]"), "each rounded up to whole tiles"),
    ],
    "41-ones": [
        (ones(stored="offs_j < J"), "Column 20 is not stored"),
        (ones(stored="offs_j < J + 2"), "Column 21 is stored: behind the bias"),
        (ones("tl.where(offs_j == J - 1, 1.0, A)"), "that is a weight's"),
        (ones("A"), "holds the zeros that it was loaded with"),
        (ones(stored="offs_j > 0"), "Column 0 is not stored: columns 0 to 19 are the weights'"),
        (ones("tl.where(offs_j < J, A, 0.0)"), "must hold ones"),
    ],
}
