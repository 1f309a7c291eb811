"""Dynamic convolution, backward: which outputs saw an input, and sums that travel along a walk."""

from kernels.lab.drawings.language import TEXT, Filmstrip, drawing, filmstrip


def conv_who_saw(j: int, T: int = 8, W: int = 4):
    """The table of weights, a row for each time and a column for each tap, and the cells that multiply input ``j``.

    The cells are lit, and beside them the gradient of the output that each belongs to. A cell names its weight and the input
    that it multiplies.
    """
    saw = {(j + W - 1 - w, w) for w in range(W) if 0 <= j + W - 1 - w < T}
    times = {t for t, _ in saw}

    def met(t: int, w: int) -> str:
        read = t - W + 1 + w
        return f"k[{t},{w}]·x[{read}]" if read >= 0 else f"k[{t},{w}]·0"

    def draw(board):
        board.name("input", "gradients of the outputs that it went into")
        board.name("weight", f"weights that multiply x[{j}]")
        dy = board.cells(
            0,
            0,
            T,
            1,
            "input",
            size=(1.5, 1.0),
            label=lambda t, _: f"dy[{t}]",
            text_size=TEXT,
            lit=lambda t, _: t in times,
        )
        table = board.cells(
            2.2, 0, T, W, "weight", size=(2.4, 1.0), lit=lambda t, w: (t, w) in saw, text_size=TEXT, label=met
        )
        board.text(dy.side("top")[0], -0.5, "gradient", size=TEXT)
        board.text(table.side("top")[0], -1.2, "tap w", size=TEXT)
        for w in range(W):
            board.text(table.cell(0, w).middle[0], -0.5, str(w), size=TEXT)
        for t in range(T):
            board.text(-0.35, t + 0.5, str(t), size=TEXT, ha="right")
        board.text(-1.0, T / 2, "time t", size=TEXT, ha="right")
        terms = " + ".join(f"dy[{t}] k[{t},{w}]" for t, w in sorted(saw))
        board.text(2.2 + W * 1.2, T + 0.8, f"dx[{j}] = {terms}", size=TEXT)

    alt = (
        f"A table of weights, {T} times by {W} taps, in each cell the weight and the input that it multiplies. The cells "
        f"with x[{j}] are lit: a diagonal, the time one later for each tap earlier. Beside it the gradients of their rows "
        "are lit."
    )
    return drawing(7.0, 4.2, draw, alt=alt)


def conv_sums(W: int = 3, RUN: int = 4) -> Filmstrip:
    """The last steps of a run: the window, the sums that travel beside it, and what each step stores."""
    steps = range(RUN - 2, RUN + W - 1)

    def draw(board, frame):
        board.name("input", "inputs in the window")
        board.name("accumulator", "their sums: a line for each token that has given its share")
        board.name("output", "gradients stored")
        t = steps[frame]
        wide, tall = 2.5, 1.0
        own = t < RUN
        start = t - W + 1
        board.cells(
            0, 0, 1, RUN + W - 1, "input", size=(wide, tall), label=lambda _, j: f"x[{j}]" if j < RUN or own else "",
            lit=lambda _, j: own and start <= j <= t, text_size=TEXT,
        )  # fmt: skip
        board.text(-0.25, tall / 2, "window", size=TEXT, ha="right")
        high = 0.85 * W + 0.2
        top = tall + 0.6
        board.text(-0.25, top + high / 2, "sums", size=TEXT, ha="right")
        for w in range(W):
            j = start + w
            place = board.box(j * wide, top, wide, high, "accumulator")
            for i, s in enumerate(range(max(j, 0), t + 1)):
                board.text(place.middle[0], top + 0.55 + 0.85 * i, f"from {s}", size=TEXT, halo=False)
            if w == 0:
                board.frame(place, "output")
        below = top + high + 1.2
        board.text(start * wide + wide / 2 + 0.3, top + high + 0.6, "complete", size=TEXT, ha="left")
        board.arrow((start * wide + wide / 2, top + high), (start * wide + wide / 2, below), "output")
        board.cells(
            0, below, 1, RUN, "output", size=(wide, tall), label=lambda _, j: f"dx[{j}]", lit=lambda _, j: j <= start,
            text_size=TEXT,
        )  # fmt: skip
        board.box(RUN * wide, below, (W - 1) * wide, tall, text="next run's", lit=False, width=0.5)
        board.text(-0.25, below + tall / 2, "stored", size=TEXT, ha="right")

    titles = [
        f"t = {t}: reads dy, k, x; stores dk" if t < RUN else f"t = {t}, past the run: reads dy and k, no dk"
        for t in steps
    ]
    alt = (
        f"Four frames, times {steps[0]} to {steps[-1]}. In each, {W} sums under the window's inputs: the leftmost has {W} "
        "shares, is framed, and an arrow leads from it to the stored gradient; the next has one share less, the last one "
        "share. From frame to frame all sums are one input further right."
    )
    return filmstrip(8, 4.8, draw, titles, alt=alt, columns=2)
