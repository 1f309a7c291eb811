"""Recurrent attention: one token's visit to the state, and where a state is handed on."""

from collections.abc import Sequence

import numpy as np

from kernels.lab.drawings.language import INK, TEXT, Filmstrip, drawing, filmstrip, ink


def state_step(BLOCK_V: int | None = None, program: int = 1) -> Filmstrip:
    """One token at a state of 3 × 4: it fades to one half, a key and a value are written, a query reads.

    BLOCK_V: columns of a program; where given, only those of ``program`` are lit.
    """
    before = np.array([[4, 0, 2, 6], [0, 8, 2, 0], [2, 2, 0, 4]])
    k, v, q = np.array([1, 0, 2]), np.array([3, 1, 0, -1]), np.array([1, 1, 0])
    faded = before // 2
    after = faded + np.outer(k, v)
    own = range(4) if BLOCK_V is None else range(program * BLOCK_V, (program + 1) * BLOCK_V)

    def lit(_, j):
        return j in own

    def draw(board, frame):
        for role, word in (("input", "loaded"), ("accumulator", "the state"), ("output", "stored")):
            board.name(role, word)
        board.box(-0.3, -0.4, 6.6, 7.6, width=0)  # the same room in each frame
        state = board.cells(2, 2, 3, 4, "accumulator", label=after if frame else faded, lit=lit, text_size=9)
        if frame == 0:
            board.text(4, 6.0, "each number is half", size=TEXT)
            board.text(4, 6.7, "of what it was", size=TEXT)
        else:
            board.cells(0, 2, 3, 1, "input", label=(k if frame == 1 else q)[:, None], text_size=9)
            board.text(0.5, 1.55, "k" if frame == 1 else "q", size=9)
        if frame == 1:
            board.cells(2, 0, 1, 4, "input", label=v[None, :], lit=lit, text_size=9)
            board.text(1.55, 0.5, "v", size=9)
            board.text(4, 6.0, "row's k times column's v", size=TEXT)
            board.text(4, 6.7, "is added", size=TEXT)
        if frame == 2:
            board.text(0.2, 6.5, "sums of\nq times\na column", size=TEXT)
            o = board.cells(2, 6, 1, 4, "output", label=(q @ after)[None, :], lit=lit, text_size=9)
            board.text(1.55, 6.5, "o", size=9)
            for j in own:
                board.arrow(state.cell(2, j).side("bottom"), o.cell(0, j).side("top"), "output")
        if BLOCK_V is not None:
            board.frame(state.span(range(3), own), "program")

    alt = (
        "Three frames with a state of three rows and four columns. Fade: every number is halved. Write: a key column stands "
        "at its left, a value row above it, and each product is added. Read: a query column stands at its left, and under "
        "each column its output, the sum of query times column."
    )
    if BLOCK_V is not None:
        alt += f" Only columns {own[0]} to {own[-1]}, framed as program {program}'s, are lit, with all of k and q."
    return filmstrip(7.2, 3.5, draw, ["fade", "write", "read"], alt=alt)


def handed_on(sizes: Sequence[int] = (3, 1, 2), reverse: bool = False):
    """A text in pieces, and the state that goes from each to the next: to the right, and with ``reverse`` to the left too."""

    def draw(board):
        board.name("input", "tokens")
        board.name("accumulator", "state handed on")
        for way in range(1 + reverse):
            y, at, t, order = 1.9 * way, 2.2, 0, []
            for size in sizes:
                order.append((board.cells(at, y, 1, size, "input", label=[[f"t{t + i}" for i in range(size)]]), at))
                at, t = at + size + 3.2, t + size
            middle = y + 0.5
            board.text(-1.2, middle, "reverse" if way else "forward", size=9, ha="right")
            ends = [2.2 - 1.6, *(place.x + place.w + 1.6 for place, _ in order)]
            for i, x in enumerate(ends):
                n = len(sizes) - i if way else i
                name = "first" if n == 0 else "last" if n == len(sizes) else f"after {n}"
                board.box(x - 0.75, y - 0.05, 1.5, 1.1, "accumulator", name, size=TEXT)
            for i, (place, _) in enumerate(order):
                left, right = (ends[i] + 0.75, middle), (place.x, middle)
                far, next_ = (place.x + place.w, middle), (ends[i + 1] - 0.75, middle)
                for a, b in ((left, right), (far, next_)):
                    board.arrow(*((b, a) if way else (a, b)), "accumulator")

    pieces = ", ".join(map(str, sizes))
    alt = (
        f"Tokens t0 to t{sum(sizes) - 1} in pieces of {pieces}, between and around them the state as a box, with arrows to "
        "the right from the first state to the last."
    )
    if reverse:
        alt += (
            " Below, the same pieces with all arrows to the left: the first state enters behind the last token, and what is "
            "left stands before t0."
        )
    return drawing(8, 1.75 if reverse else 1.1, draw, alt=alt)


def step_chain(waits: dict[str, float], steps: int = 2):
    """What a program waits for in a step, in ns, one after the other; below, with the next step's rows asked for ahead.

    waits: ``rows``, until a token's rows are there, and behind it what is done with them.
    """
    names = list(waits)
    words = ("memory", "rows on their way"), ("time", "instructions"), ("weight", "waits for numbers under way inside")
    looks = dict(zip(names, words))
    total = sum(waits.values())
    work = total - waits[names[0]]
    ahead = max(work, waits[names[0]])
    scale = 16 / (steps * total)

    def draw(board):
        for role, word in looks.values():
            board.name(role, word)
        for row, label in enumerate(("asked for when\nneeded", "asked for one\ntoken ahead")):
            board.text(-0.3, 2.2 * row + 0.6, label, size=TEXT, ha="right")
        for step in range(steps):
            x = step * total * scale
            for name in names:
                wide = waits[name] * scale
                board.box(x, 0, wide, 1, looks[name][0], f"{waits[name]:.0f}" if wide > 0.7 else "", size=TEXT)
                x += wide
            board.brace(step * total * scale + 0.05, x - 0.05, -0.2, f"token {step + 1}: {total:.0f} ns")
        x = waits[names[0]] * scale
        board.box(0, 2.2, x, 0.7, "memory", "rows of token 1", size=TEXT)
        for step in range(steps):
            start = x
            board.box(start, 2.2, waits[names[0]] * scale, 0.7, "memory", f"rows of token {step + 2}", size=TEXT)
            for name in names[1:]:
                board.box(x, 2.9, waits[name] * scale, 0.5, looks[name][0])
                x += waits[name] * scale
            x = start + ahead * scale
            board.brace(start + 0.05, x - 0.05, 3.6, f"token {step + 1}: {ahead:.0f} ns", depth=-0.25)

    alt = (
        f"Two lines of time. Above, each token takes {total:.0f} ns, one part after the other: "
        + ", ".join(f"{looks[name][1]} {waits[name]:.0f}" for name in names)
        + ". Below, the rows of the next token are on their way while one token's work is done, "
        f"and a token takes {ahead:.0f} ns."
    )
    return drawing(8, 2.4, draw, alt=alt)


def packed_wall(lengths: Sequence[int] = (5, 7), wall: int = 5):
    """Two texts end to end and the state that goes through them, with a gate of minus infinity on token ``wall``: first to
    last, last to first, and without a wall, where each text is a program's own."""
    T, owner = sum(lengths), [n for n, length in enumerate(lengths) for _ in range(length)]
    wide = 1.5

    def draw(board):
        board.name("input", "Ada's tokens")
        board.name("weight", "Ben's tokens")
        titles = "first to last", "last to first", "boundaries,\nlast to first"
        for row, title in enumerate(titles):
            y, reverse, walls = 2.7 * row, row > 0, row < 2
            board.text(-0.4, y + 0.5, title, size=TEXT, ha="right")
            places = []
            for t in range(T):
                gap = 0.9 if not walls and owner[t] else 0
                role = ("input", "weight")[owner[t]]
                places.append(board.box(t * wide + gap, y, 0.9, 1, role, str(t), size=TEXT))
            for t in range(T - 1):
                left, right = places[t], places[t + 1]
                entered = t if reverse else t + 1  # the token whose gate acts between the two
                middle = (left.x + left.w + right.x) / 2
                stopped, apart = walls and entered == wall, owner[t] != owner[t + 1]
                ends = left.side("right"), right.side("left")
                bad = stopped != apart if walls else False
                if not walls and apart:
                    continue
                red = ink("wrong") if bad else None
                if stopped:
                    board.box(middle - 0.09, y - 0.35, 0.18, 1.7, edge=red, hatch="////", width=1.4)
                    said = "the wall: Ben is cut off from his own" if bad else "the wall"
                    board.text(middle, y - 0.6, said, size=TEXT, colour=red or INK)
                else:
                    looks = ("wrong", 2.2) if bad else ("accumulator", 1.4)
                    board.arrow(*(ends[::-1] if reverse else ends), looks[0], width=looks[1])
                    board.text(middle, y + 1.65, "Ben's words reach Ada" if bad else "", size=TEXT, colour=red or INK)
        board.text(places[0].x, 2.7 * 2 + 1.6, "one program for each text", size=TEXT, ha="left")

    alt = (
        f"Three rows of {T} tokens, Ada's {lengths[0]} and Ben's {lengths[1]}, with arrows for the state that goes from "
        f"token to token. First to last: a wall stands between tokens {wall - 1} and {wall}, where the texts part. Last to "
        f"first: the wall stands between tokens {wall} and {wall + 1}, amid Ben's text, and a red arrow leads from token "
        f"{wall} into Ada's. Below, the texts stand apart, with no arrow between them."
    )
    return drawing(8, 3.4, draw, alt=alt)
