"""Lesson 33's turns: who visits a column, blocks of a mask that is known by its formula, a tile that must end."""

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.lessons import Turn, as_given, listed

VISITED = [[4], [2, 3, 5], [], [0, 1, 2, 3, 4, 5], [3]]


def _lists(draw, rubbish):
    rest = [
        [i for i in range(6) if i not in row] if rubbish == "the other blocks" else [rubbish] * 6 for row in VISITED
    ]
    return {"num": [len(row) for row in VISITED], "indices": [(row + more)[:6] for row, more in zip(VISITED, rest)]}


def _by_column(rows_that_visit, num, indices):
    num, indices = (torch.tensor(one, dtype=torch.int32) for one in (num, indices))
    return {f"with J = {J} the result": rows_that_visit(num, indices, J) for J in range(6)}


@triton.jit
def _tail_kernel(n_ptr, keep_ptr, col, tile, N, tail: tl.constexpr, S_N: tl.constexpr, BLOCK_N: tl.constexpr):
    n, keep = tail(col, tile, N, S_N, BLOCK_N)
    tl.store(n_ptr + tl.arange(0, BLOCK_N), n)
    tl.store(keep_ptr + tl.arange(0, BLOCK_N), keep)


def _tails(tail_tile, col, tile, N):
    n, keep = (torch.empty(32, dtype=dtype, device=runtime.device) for dtype in (torch.int32, torch.bool))
    _tail_kernel[(1,)](n, keep, col, tile, N, tail_tile, 48, 32)
    return n, keep


COUNTS = " & (place[None, :] < num[:, None])"
VISITS = f"((indices == J){COUNTS}).any(1)"
MEET = "(q0 // c <= k1 // c) & (k0 // c <= q1 // c)"
CORNERS = "(q0 // c == k1 // c) & (q1 // c == k0 // c)"
IN_VAIN = "chunks of a block that is visited in vain do not meet: neither may end before the other begins"
TURNS = {
    "33-visits": Turn(
        "the rows that visit a column",
        arguments=_lists,
        cases={f"{rubbish} behind the ends": {"rubbish": rubbish} for rubbish in (999, "the other blocks")},
        slips=(
            (COUNTS, "", "blocks that are not visited stand in a row as well: its first num places count"),
            ("] < num", "] <= num", "place num is the first one behind the end: places 0 to num - 1 count"),
            (VISITS, "J < num", "num says how many blocks a row visits; which ones, `indices` says, before place num"),
            (VISITS, "indices[:, J] < num", "J is no place but a block, whose number is what `indices` holds"),
            ("place[None, :] < num", "indices < num", "its place decides whether an entry counts, not what it holds"),
            (".any(1)", ".all(1)", "one entry that counts is enough: `any`, where you say `all`"),
            (".any(1)", "", "each row has one answer: whether any of its entries is J and counts"),
        ),
        run=_by_column,
    ),
    "33-chunks": Turn(
        "a mask's blocks from the corners alone",
        arguments=as_given,
        cases=listed(
            "c M N S_M S_N",
            (8, 32, 32, 8, 8),
            (12, 48, 48, 8, 16),
            (10, 37, 29, 8, 4),
            (64, 37, 29, 8, 4),
            (3, 16, 32, 4, 8),
        ),
        slips=(
            (MEET, "q0 // c == k0 // c", "ranges of chunks meet, also where their first tokens' chunks differ"),
            (" & (k0 // c <= q1 // c)", "", IN_VAIN),
            ("(q0 // c <= k1 // c) & ", "", IN_VAIN),
            (CORNERS, "(q0 // c == k0 // c)", "nobody masks a full block: take the two corners furthest apart"),
            (" & inside", "", "nobody masks a full block, so none may reach past the end, M × N"),
            (CORNERS, "(q0 < 0)", "a block all of whose corners lie in one chunk is full, and would be masked in vain"),
        ),
    ),
    "33-tail": Turn(
        "a tile that ends with its block",
        arguments=as_given,
        cases=listed("col tile N", (0, 0, 96), (0, 1, 96), (1, 0, 96), (1, 1, 96), (1, 0, 70)),
        slips=(
            ("(n < (col + 1) * S_N) & ", "", "keys of the next block count, which the softmax may have twice"),
            (" & (n < N)", "", "keys count that do not exist: the last block overhangs"),
            (
                "col * S_N + tile * BLOCK_N",
                "(col * (S_N // BLOCK_N) + tile) * BLOCK_N",
                "block 1 begins at key S_N, and each of its tiles BLOCK_N keys after the one before",
            ),
            ("(n < (", "(n + BLOCK_N < (", "keys are left out that no other tile will load"),
        ),
        run=_tails,
    ),
}
