"""Drawings of lessons 41 and 42: why a weight's gradient has few tiles, and its sum cut into pieces."""

from kernels.lab.drawings.language import NOTE, OUTLINE, Place, drawing, filmstrip, ink


def wgrad_tiles():
    """The same three matrices twice: a tile of the output needs a band of pixels, a tile of the weights needs them all."""
    y, a, f = Place(0, 0, 1.4, 8), Place(3.4, 0, 4.2, 8), Place(3.4, 9.6, 4.2, 1.4)

    def draw(board, frame):
        board.name("input", "what one program reads")
        board.name("output", "its tile of the result")
        names = ("Y", "A: im2col", "F") if frame == 0 else ("dY", "A: im2col", "dF")
        for place, name in zip((y, a, f), names):
            board.box(place.x, place.y, place.w, place.h, edge=OUTLINE)
            board.text(place.x + place.w / 2, place.y - 0.35, name, size=NOTE)
        rows, columns = [0.5 * i for i in range(16)], [1.4 * i for i in range(3)]
        if frame == 0:
            for row in rows:
                board.box(y.x, row, y.w, 0.5, "output", lit=row == 2.0, width=0.5)
            board.box(a.x, 2.0, a.w, 0.5, "input")
            board.box(f.x, f.y, f.w, f.h, "input")
            board.text(8.0, 10.3, "all of F", size=NOTE, ha="left", colour=ink("input"))
            board.text(8.0, 2.25, "a few pixels", size=NOTE, ha="left", colour=ink("input"))
        else:
            for column in columns:
                board.box(f.x + column, f.y, 1.4, f.h, "output", lit=column == 0, width=0.5)
            board.box(y.x, y.y, y.w, y.h, "input")
            board.box(a.x, a.y, 1.4, a.h, "input")
            for row in rows:
                for place in (y, Place(a.x, 0, 1.4, 8)):
                    board.ax.plot([place.x, place.x + place.w], [row, row], color="white", linewidth=0.8)
            board.arrow((2.4, 0.1), (2.4, 7.9), "time", width=1.6)
            board.text(2.4, 4, "all\npixels,\nstep by\nstep", size=NOTE)
        board.brace(0, 8, -0.35, "M", vertical=True)
        board.brace(a.x, a.x + a.w, 8.35, "J", depth=-0.25)
        board.brace(y.x, y.x + y.w, 8.35, "$C_o$", depth=-0.25)

    alt = (
        "Two frames of the same three rectangles: Y, M pixels high and C_o channels wide; beside it A, as high and J wide; "
        "below it F, C_o high and J wide, much smaller. Left, forward: Y is cut into sixteen tiles, one is lit, and so are "
        "the few rows of A beside it and all of F. Right, the weight gradient: dF is cut into three tiles, one is lit, and "
        "so are the whole of dY and a third of A over its whole height, which an arrow walks down step by step."
    )
    titles = ["forward: a program a tile of Y, many", "weight gradient: a program a tile of dF, few"]
    return filmstrip(8, 4.4, draw, titles, alt=alt)


def split_k(pieces: int = 4):
    """The sum over pixels cut into ``pieces``: each has a program and a slot of the workspace, a second pass adds them."""
    if not 2 <= pieces <= 6:
        raise ValueError(f"pieces is {pieces}, needs to be from 2 to 6")
    h = 6.6 / pieces

    def draw(board):
        board.name("input", "steps of the sum")
        board.name("program", "a program")
        board.name("memory", "workspace, float32")
        board.name("output", "the gradient")
        for z in range(pieces):
            y = z * h + 0.1
            for x, w in ((0, 1.2), (1.8, 3.2)):
                board.box(x, y, w, h - 0.2, "input", hatch="////" if z % 2 else "")
            middle = y + (h - 0.2) / 2
            program = board.box(6.5, middle - 0.45, 2.6, 0.9, "program", f"piece {z}")
            slot = board.box(11, middle - 0.45, 2.6, 0.9, "memory", f"$D_{z}$")
            board.arrow((5.05, middle), program.side("left"))
            board.arrow(program.side("right"), slot.side("left"))
            board.arrow(slot.side("right"), (16.1, 3.3 + (z - (pieces - 1) / 2) * 0.3), "output")
        out = board.box(16.2, 2.6, 2.2, 1.4, "output", "dF")
        board.text(0.6, -0.3, "dY", size=NOTE)
        board.text(3.4, -0.3, "A", size=NOTE)
        board.text(7.8, -0.3, "first pass: any order", size=NOTE)
        board.text(out.middle[0], 1.5, "second pass:\n0, 1, 2, … in turn", size=NOTE)
        board.brace(0.1, 6.5, -0.3, "M", vertical=True)

    alt = (
        f"dY and A, two columns of M pixels, are cut into {pieces} bands. An arrow leads from each band to a program of its "
        f"own, piece 0 to {pieces - 1}, from there to a slot of its own in the workspace, D_0 to D_{pieces - 1}, and from "
        "all slots to the one gradient dF, which a second pass adds up in turn."
    )
    return drawing(8, 3.1, draw, alt=alt)
