"""Lesson 33's "Your turn" cells: who visits a column, blocks of a mask that is known by its formula, a tile that must end."""

import torch
import triton.language as tl

from kernels.check.steps import described, step
from kernels.check.steps.helpers import block


def _no_booleans(name: str, got, shape) -> str:
    """What is wrong with a tensor of truth values before its values are; empty if nothing."""
    if not isinstance(got, torch.Tensor):
        return f"{name} must be a tensor of {list(shape)} truth values, and is {described(got)}"
    if tuple(got.shape) != tuple(shape):
        return f"{name} has shape {list(got.shape)}, and must have {list(shape)}"
    return "" if got.dtype == torch.bool else f"{name} holds {got.dtype}, and must hold truth values: compare something"


@step("33-visits", "the rows that visit a column")
def visits(answer):
    """Five rows of six blocks, one row without any; what stands behind the lists' ends is rubbish in two ways."""
    visited = [[4], [2, 3, 5], [], [0, 1, 2, 3, 4, 5], [3]]
    num = torch.tensor([len(row) for row in visited], dtype=torch.int32)
    for rubbish in (None, 999):
        rows = [row + [i for i in range(6) if i not in row] for row in visited]
        if rubbish:
            rows = [(row + [rubbish] * 6)[:6] for row in visited]
        indices, places = torch.tensor(rows, dtype=torch.int32), torch.arange(6)
        columns = []
        for J in range(6):
            got = answer(num.clone(), indices.clone(), J)
            if said := _no_booleans("Your answer", got, (5,)):
                return said
            columns.append(got)
        got = torch.stack(columns, dim=1)
        wanted = torch.tensor([[J in row for J in range(6)] for row in visited])
        if torch.equal(got, wanted):
            continue
        holds = indices[:, None, :] == torch.arange(6)[:, None]  # [row, J, place]
        known = (
            (
                holds.any(-1),
                "You look at the whole row, and a block that is not visited stands in it as well, behind the end: only the "
                "first num places count",
            ),
            (
                (holds & (places <= num[:, None, None])).any(-1),
                "Place num is the first one behind the end: places 0 to num − 1 count",
            ),
            (
                places < num[:, None],
                "num says how many blocks a row visits; which ones, `indices` says, before place num",
            ),
            (indices < num[:, None], "J is a block; you look at place J. A block's number is what `indices` *holds*"),
            (
                (holds & (places < num[:, None, None])).all(-1),
                "One entry that counts is enough: `any`, where you say `all`",
            ),
        )
        why = next((why for mask, why in known if torch.equal(got, mask)), "Look for J among its first num entries")
        r, J = (int(i) for i in (got != wanted).nonzero()[0])
        return (
            f"Row {r} has num = {int(num[r])} and indices = {indices[r].tolist()}, so it visits {visited[r]}; you say that "
            f"it {'visits' if got[r, J] else 'does not visit'} block {J}. {why}"
        )
    return ""


@step("33-chunks", "a mask's blocks from the corners alone")
def chunks(answer):
    """Chunks wider and narrower than a block, one that ends inside a block, and edges that overhang."""
    for c, M, N, S_M, S_N in (
        (8, 32, 32, 8, 8),
        (12, 48, 48, 8, 16),
        (10, 37, 29, 8, 4),
        (64, 37, 29, 8, 4),
        (3, 16, 32, 4, 8),
    ):
        got = answer(c, M, N, S_M, S_N)
        R, C = -(-M // S_M), -(-N // S_N)
        if not isinstance(got, tuple) or len(got) != 2:
            return f"It must return two tensors, some and full, and returns {described(got)}"
        for name, one in zip(("some", "full"), got):
            if said := _no_booleans(f"Your {name}", one, (R, C)):
                return said
        some, full = got
        m, n = torch.arange(R * S_M)[:, None], torch.arange(C * S_N)
        allowed = (m // c == n // c) & (m < M) & (n < N)
        count = allowed.view(R, S_M, C, S_N).sum((1, 3))
        over = ((torch.arange(R)[:, None] + 1) * S_M > M) | ((torch.arange(C) + 1) * S_N > N)
        case = f"With chunks of {c}, M = {M}, N = {N} and blocks of {S_M} × {S_N}"
        for wrong, said in (
            ((count > 0) & ~some, "is left out, and the attention is wrong without it: two ranges of chunks meet, also where "
                                  "their first tokens lie in different ones"),
            (full & (count < S_M * S_N) & ~over, "is listed as full, so that nobody will mask it: take the two corners that "
                                                 "lie furthest apart"),
            (full & over, "is listed as full, so that nobody will mask it, and reaches past the end: the block must lie "
                          "inside M × N"),
            ((count == 0) & some, "is visited in vain: its queries' and its keys' chunks do not meet"),
            (~full & (count == S_M * S_N), "is listed as partial, right, but masked in vain: all four corners lie in one "
                                           "chunk"),
        ):  # fmt: skip
            if wrong.any():
                r, j = (int(i) for i in wrong.nonzero()[0])
                queries, keys = (r * S_M, min(r * S_M + S_M, M) - 1), (j * S_N, min(j * S_N + S_N, N) - 1)
                return (
                    f"{case}, block ({r}, {j}) has {int(count[r, j])} allowed pairs of {S_M * S_N}: its queries {queries[0]} "
                    f"to {queries[1]} lie in chunks {queries[0] // c} to {queries[1] // c}, its keys {keys[0]} to {keys[1]} "
                    f"in chunks {keys[0] // c} to {keys[1] // c}. It {said}"
                )
    return ""


@step("33-tail", "a tile that ends with its block")
def tail(helper):
    """Blocks of 48 keys in tiles of 32: a whole tile, one that reaches into the next block, one past the last key."""
    S, BLOCK = 48, 32
    for col, tile, N in ((0, 0, 96), (0, 1, 96), (1, 0, 96), (1, 1, 96), (1, 0, 70)):
        n, keep = block(helper, col, tile, N, tl.constexpr(S), tl.constexpr(BLOCK), shape=(BLOCK,), results=2)
        first, case = col * S + tile * BLOCK, f"For tile {tile} of block {col}"
        wanted = first + torch.arange(BLOCK)
        if not torch.equal(n, wanted.double()):
            why = f"block {col} begins at key {col * S}, and each of its tiles {BLOCK} keys after the one before"
            return f"{case}, lane 0 has key {n[0]:.0f}, lane 1 key {n[1]:.0f}; they must have {first} and {first + 1}: {why}"
        end = min((col + 1) * S, N)
        wrong = keep.bool() != (wanted < end)
        if not wrong.any():
            continue
        key = int(wanted[wrong][0])
        if key >= N:
            return f"{case}, key {key} counts, and there are only {N} keys: the last block overhangs"
        if key >= end:
            return (
                f"{case}, key {key} counts, which belongs to block {col + 1}: if the row visits that block too, the softmax "
                "has the key twice. A tile ends where its block does"
            )
        return f"{case}, key {key} does not count, and no other tile will load it: the block ends before key {end}"
    return ""
