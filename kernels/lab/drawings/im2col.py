"""Lesson 40's drawing: what output pixels see of an image, and where the same pixels stand in im2col's matrix."""

from kernels.lab.drawings.language import NOTE, filmstrip


def im2col_rows(rows: tuple[int, ...] = (0, 4), image=(4, 5), taps: int = 3, stride: int = 2, padding: int = 1):
    """An image whose pixels are numbered, the window of one output pixel in it, and that pixel's row of A; a frame a row.

    image: its height and width. taps: side of the filter. stride, padding: the same both ways.
    """
    H, W = image
    P, Q = ((n + 2 * padding - taps) // stride + 1 for n in image)
    if bad := [m for m in rows if not 0 <= m < P * Q]:
        raise ValueError(f"rows holds {bad[0]}, needs numbers from 0 to {P * Q - 1}: there are {P} × {Q} output pixels")

    def pixel(m, j):  # the pixel's number, or None in the padding
        h, w = m // Q * stride + j // taps - padding, m % Q * stride + j % taps - padding
        return h * W + w if 0 <= h < H and 0 <= w < W else None

    def draw(board, i):
        board.name("input", "seen by this output pixel")
        board.name("memory", "zeros of the padding")
        m, top, left = rows[i], rows[i] // Q * stride, rows[i] % Q * stride

        def inside(r, c):
            return padding <= r < H + padding and padding <= c < W + padding

        def seen(r, c):
            return top <= r < top + taps and left <= c < left + taps

        frame = board.cells(
            0, 0, H + 2 * padding, W + 2 * padding, size=0.95,
            label=lambda r, c: (r - padding) * W + c - padding if inside(r, c) else "",
            role_of=lambda r, c: "input" if seen(r, c) and inside(r, c) else "memory",
            lit=lambda r, c: seen(r, c) or not inside(r, c),
        )  # fmt: skip
        window = frame.span(range(top, top + taps), range(left, left + taps))
        board.frame(window, "program")
        x = frame.w + 2.6
        matrix = board.cells(
            x, 0, P * Q, taps * taps, size=0.95,
            label=lambda r, c: "" if pixel(r, c) is None else pixel(r, c),
            role_of=lambda r, c: "memory" if pixel(r, c) is None else "input",
            lit=lambda r, c: r == m or pixel(r, c) is None,
        )  # fmt: skip
        for row in range(P * Q):
            board.text(x - 0.2, matrix.cell(row, 0).middle[1], f"m = {row}", size=NOTE, ha="right")
        board.frame(matrix.span(range(m, m + 1), range(taps * taps)), "program")
        board.text(matrix.middle[0], -0.35, "A: a column for each tap", size=NOTE)
        board.text(frame.middle[0], -0.35, "the image in its padding", size=NOTE)

    told = []
    for m in rows:
        numbers = ["blank" if pixel(m, j) is None else str(pixel(m, j)) for j in range(taps * taps)]
        told.append(f"Output pixel ({m // Q}, {m % Q}), row {m}: {', '.join(numbers)}.")
    alt = (
        f"Left an image of {H} by {W} numbered pixels in a frame of padding, a square of {taps} by {taps} outlined; right A, "
        f"{P * Q} rows by {taps * taps} columns, each with the number of the pixel that it holds, one row outlined. "
        + " ".join(told)
    )
    titles = [f"output pixel ({m // Q}, {m % Q}), row {m} of A" for m in rows]
    return filmstrip(7.4, 2.6 * len(rows), draw, titles, alt=alt, columns=1)
