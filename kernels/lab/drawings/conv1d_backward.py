"""Dynamic convolution, backward: which outputs saw an input, and sums that travel along a walk."""

from kernels.lab.drawings.language import NOTE, Filmstrip, drawing, filmstrip

CELL = 1.0


def conv_who_saw(*inputs: int, T: int = 8, W: int = 4):
    """The table of weights, a row for each time and a column for each tap, and the cells that multiply an input.

    inputs: times j of one or two inputs; a negative one is a slot of the state. The cells of each are lit, and beside them
    the gradient of the output that they belong to. A cell names its weight and the input that it multiplies.
    """
    states = any(j < 0 for j in inputs)
    names = " and ".join(_plain(j, W) for j in inputs)

    def met(t: int, w: int) -> str:
        j = t - W + 1 + w
        return f"k$_{{{t},{w}}}$ · {_name(j, W) if j >= 0 or states else '0'}"

    def draw(board):
        board.name("input", "gradients of the outputs that they went into")
        board.name("weight", f"weights that multiply {names}")
        for at, j in enumerate(inputs):
            left = at * (W * 1.9 + 7.2)
            saw = {(j + W - 1 - w, w) for w in range(W) if 0 <= j + W - 1 - w < T}
            times = {t for t, _ in saw}
            dy = board.cells(
                left, 0, T, 1, "input", size=(1.25, CELL), label=lambda t, _: f"dy$_{t}$", text_size=9,
                lit=lambda t, _, times=times: t in times,
            )  # fmt: skip
            table = board.cells(
                left + 2, 0, T, W, "weight", size=(1.9, CELL), lit=lambda t, w, saw=saw: (t, w) in saw, text_size=9,
                label=met,
            )  # fmt: skip
            board.text(*dy.side("top")[:1], -0.45, "gradient", size=NOTE)
            board.text(table.side("top")[0], -1.15, "tap w", size=NOTE)
            for w in range(W):
                board.text(table.cell(0, w).middle[0], -0.45, str(w), size=NOTE)
            for t in range(T):
                board.text(left - 0.35, t + 0.5, str(t), size=NOTE, ha="right")
            board.text(left - 1.05, T / 2, "time t", size=NOTE, ha="right") if not at else None
            terms = " + ".join(f"dy$_{t}$ k$_{{{t},{w}}}$" for t, w in sorted(saw))
            board.text(left + 1 + W * 0.95, T + 0.7, f"d{_name(j, W)} = {terms}", size=NOTE)

    alt = (
        f"A table of weights, {T} times by {W} taps, in each cell the weight and the input that it multiplies. The cells "
        f"with {names} are lit: a diagonal, the time one later for each tap earlier. Beside it the gradients of their rows "
        "are lit."
    )
    return drawing(min(8, 5.2 * len(inputs) + 0.4), 3.9, draw, alt=alt)


def _name(j: int, W: int) -> str:
    return f"x$_{j}$" if j >= 0 else f"s$_{W - 1 + j}$"


def _plain(j: int, W: int) -> str:
    return f"x{j}" if j >= 0 else f"s{W - 1 + j}"


def conv_sums(W: int = 3, RUN: int = 4) -> Filmstrip:
    """The last steps of a run: the window, the sums that travel beside it, and what each step stores."""
    steps = range(RUN - 2, RUN + W - 1)

    def draw(board, frame):
        for role, word in (("input", "the window's inputs"), ("accumulator", "their sums"), ("output", "gradients stored")):
            board.name(role, word)
        t = steps[frame]
        wide, tall = 2.5, 0.9
        own = t < RUN
        start = t - W + 1
        board.cells(
            0, 0, 1, RUN + W - 1, "input", size=(wide, tall), label=lambda _, j: f"x$_{j}$" if j < RUN or own else "",
            lit=lambda _, j: own and start <= j <= t,
        )  # fmt: skip
        board.text(-0.25, tall / 2, "window", size=NOTE, ha="right")
        high = 0.75 * W + 0.2
        top = tall + 0.6
        board.text(-0.25, top + high / 2, "sums", size=NOTE, ha="right")
        for w in range(W):
            j = start + w
            held = [f"dy$_{s}$ k$_{{{s},{j - s + W - 1}}}$" for s in range(max(j, 0), t + 1)]
            place = board.box(j * wide, top, wide, high, "accumulator")
            for i, share in enumerate(held):
                board.text(place.middle[0], top + 0.5 + 0.75 * i, share, size=8.5, halo=False)
            if w == 0:
                board.frame(place, "output")
        below = top + high + 1.1
        board.text(start * wide + wide / 2 + 0.3, top + high + 0.5, "complete", size=NOTE, ha="left")
        board.arrow((start * wide + wide / 2, top + high), (start * wide + wide / 2, below), "output")
        board.cells(
            0, below, 1, RUN + W - 1, "output", size=(wide, tall), lit=lambda _, j: j <= start, text_size=7,
            label=lambda _, j: f"dx$_{j}$" if j < RUN else "next run's",
        )  # fmt: skip
        board.text(-0.25, below + tall / 2, "stored", size=NOTE, ha="right")

    titles = [
        f"t = {t}: reads dy, k, x; stores dk" if t < RUN else f"t = {t}, past the run: reads dy and k, no dk"
        for t in steps
    ]
    alt = (
        f"Four frames, times {steps[0]} to {steps[-1]}. In each, {W} sums under the window's inputs: the leftmost has {W} "
        "shares, is framed, and an arrow leads from it to the stored gradient; the next has one share less, the last one "
        "share. From frame to frame all sums stand one input further right."
    )
    return filmstrip(8, 4.6, draw, titles, alt=alt, columns=2)
