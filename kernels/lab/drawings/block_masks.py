"""Lessons 33 and 34: a mask in blocks and the lists that its rows are left with; the same blocks by rows and by columns."""

import torch

from kernels.lab.drawings.language import INK, NOTE, drawing, filmstrip


def block_lists(allowed: torch.Tensor, S: int):
    """The pairs that a mask allows, each block with their number, and beside each row of blocks its lists.

    allowed: bool [T, T], T a multiple of the block's side S.
    """
    T = len(allowed)
    if allowed.shape != (T, T) or T % S:
        raise ValueError(f"allowed has shape {tuple(allowed.shape)}, needs to be square, its side a multiple of S = {S}")
    R, u = T // S, 0.62
    count = allowed.view(R, S, R, S).sum((1, 3)).tolist()

    def kind(I, J):
        return "empty" if count[I][J] == 0 else "full" if count[I][J] == S * S else "partial"

    def draw(board):
        board.name("input", "full: compute")
        board.name("accumulator", "partial: compute, and mask")
        for m in range(T):
            for n in range(T):
                of = kind(m // S, n // S)
                role = "input" if of == "full" else "accumulator"
                board.box(n * u, m * u, u, u, role, lit=bool(allowed[m, n]), width=0.4, edge="#B0B0B0")
        for I in range(R):
            for J in range(R):
                place = board.box(J * S * u, I * S * u, S * u, S * u, None, "", width=1.4, lit=True)
                board.ax.patches[-1].set_fill(False)
                board.text(*place.middle, str(count[I][J]), size=10, weight="bold")
        board.text(T * u / 2, -0.35, "keys", size=NOTE)
        board.text(-0.25, T * u / 2, "queries", size=NOTE, ha="right")
        for x, name, role in ((T * u + 2.0, "partial", "accumulator"), (T * u + 7.2, "full", "input")):
            board.text(x + R / 2, -0.35, f"{name}: indices, num", size=NOTE)
            for I in range(R):
                listed = [J for J in range(R) if kind(I, J) == name]
                rest = [J for J in range(R) if J not in listed]
                y = (I + 0.5) * S * u - 0.45
                for place, J in enumerate(listed + rest):
                    board.box(x + place, y, 0.9, 0.9, role, str(J), lit=place < len(listed))
                board.text(x + R + 0.15, y + 0.45, str(len(listed)), colour=INK, ha="left", weight="bold")

    alt = (
        f"Left, {T} by {T} pairs of a query and a key in {R} by {R} blocks, allowed ones coloured, each block with "
        "its count: "
        + "; ".join(", ".join(map(str, row)) for row in count)
        + ". Right, for each row of blocks two lists of numbers, partial and full, each with its length; what stands behind "
        "that length is grey."
    )
    return drawing(8, 3.2, draw, alt=alt)


def block_walks(blocks: torch.Tensor):
    """The listed blocks twice, numbered in the order in which a program visits them: along a row, and down a column.

    blocks: bool [R, C].
    """
    if blocks.dim() != 2:
        raise ValueError(f"blocks has shape {tuple(blocks.shape)}, needs two dimensions, rows and columns of blocks")
    R, C = blocks.shape

    def draw(board, i):
        board.name("input", "by rows: queries stay, keys stream by")
        board.name("weight", "by columns: keys stay, queries stream by")
        role, along = ("input", blocks) if i == 0 else ("weight", blocks.mT)
        before = along.cumsum(1) - along.int()  # how many of its row, or column, come first
        order = before if i == 0 else before.mT
        grid = board.cells(
            0, 0, R, C, role, size=0.9, lit=lambda r, c: bool(blocks[r, c]),
            label=lambda r, c: int(order[r, c]) if blocks[r, c] else "", text_size=9,
        )  # fmt: skip
        for own in range(len(along)):
            if count := int(along[own].sum()):
                end = (grid.w + 0.25, grid.cell(own, 0).middle[1]) if i == 0 else (grid.cell(0, own).middle[0], grid.h + 0.25)
                tail = (end[0] + 0.75, end[1]) if i == 0 else (end[0], end[1] + 0.75)
                board.arrow(end, tail, role)
                at = (tail[0] + 0.3, tail[1]) if i == 0 else (tail[0], tail[1] + 0.35)
                board.text(*at, str(count), weight="bold")
        board.text(grid.w + 1.3, grid.h + 1.4, " ")  # room for the arrows of either frame, so that both are of one size
        board.text(grid.w / 2, -0.3, "blocks of keys", size=NOTE)
        board.text(-0.2, grid.h / 2, "blocks of\nqueries", size=NOTE, ha="right")

    rows, columns = blocks.sum(1).tolist(), blocks.sum(0).tolist()
    alt = (
        f"{R} by {C} blocks twice, those in the lists filled and numbered. Left along the rows, which have "
        f"{', '.join(map(str, rows))} blocks; right down the columns, which have {', '.join(map(str, columns))}."
    )
    return filmstrip(7.2, 3.4, draw, ["the walk of dq", "the walk of dk and dv"], alt=alt)
