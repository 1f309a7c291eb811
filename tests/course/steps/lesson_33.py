"""Wrong answers to lesson 33's "Your turn" cells: definitions, and a phrase of the diagnosis."""


def visits(value):
    return f"""def rows_that_visit(num, indices, J):
    place = torch.arange(indices.shape[1])
    return {value}
"""


def chunks(
    some="(q0 // c <= k1 // c) & (k0 // c <= q1 // c)", full="(q0 // c == k1 // c) & (q1 // c == k0 // c) & inside"
):
    return f"""def chunk_blocks(c, M, N, S_M, S_N):
    q0, k0 = torch.arange(0, M, S_M)[:, None], torch.arange(0, N, S_N)
    q1, k1 = (q0 + S_M - 1).clamp(max=M - 1), (k0 + S_N - 1).clamp(max=N - 1)
    inside = (q0 + S_M <= M) & (k0 + S_N <= N)
    return {some}, {full}
"""


def tail(first="col * S_N + tile * BLOCK_N", keep="(n < (col + 1) * S_N) & (n < N)"):
    return f"""@triton.jit
def tail_tile(col, tile, N, S_N: tl.constexpr, BLOCK_N: tl.constexpr):
    n = {first} + tl.arange(0, BLOCK_N)
    return n, {keep}
"""


WRONG = {
    "33-visits": [
        (visits("(indices == J).any(1)"), "You look at the whole row"),
        (visits("((indices == J) & (place <= num[:, None])).any(1)"), "Place num is the first one behind the end"),
        (visits("J < num"), "num says how many blocks a row visits"),
        (visits("indices[:, J] < num"), "J is a block; you look at place J"),
        (visits("((indices == J) & (indices < num[:, None])).any(1)"), "which ones, `indices` says"),
        (visits("((indices == J) & (place < num[:, None])).all(1)"), "One entry that counts is enough"),
        (visits("(indices == J) & (place < num[:, None])"), "must have [5]"),
        (visits("((indices == J) & (place < num[:, None])).sum(1)"), "must hold truth values"),
    ],
    "33-chunks": [
        (chunks(some="q0 // c == k0 // c"), "two ranges of chunks meet"),
        (chunks(full="(q0 // c == k0 // c) & inside"), "take the two corners that lie furthest apart"),
        (chunks(full="(q0 // c == k1 // c) & (q1 // c == k0 // c)"), "reaches past the end"),
        (chunks(some="q0 // c <= k1 // c"), "visited in vain"),
        (chunks(full="(q0 < 0) & inside"), "masked in vain"),
        (chunks(some="True"), "must be a tensor of"),
    ],
    "33-tail": [
        (tail(keep="n < N"), "belongs to block 1"),
        (tail(keep="n < (col + 1) * S_N"), "there are only 70 keys"),
        (tail(first="(col * (S_N // BLOCK_N) + tile) * BLOCK_N"), "block 1 begins at key 48"),
        (tail(keep="(tile * BLOCK_N + tl.arange(0, BLOCK_N) < S_N - BLOCK_N) & (n < N)"), "no other tile will load it"),
    ],
}
