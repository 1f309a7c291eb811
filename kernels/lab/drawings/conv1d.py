"""Drawings of the convolution along time: its window, its matrix, its tiles, its state, its words, and the walk."""

import struct

from kernels.lab.drawings.language import TEXT, Place, drawing, filmstrip


def _sign(number) -> str:
    """A number with a minus sign that is one."""
    return f"{number:g}".replace("-", "−")


def conv_window(x, k):
    """The window of ``len(k[0])`` inputs at every token of ``x``, each token with its own weights; a frame for each token."""
    T, W = len(x), len(k[0])
    X = [0] * (W - 1) + list(x)
    y = [sum(k[t][w] * X[t + w] for w in range(W)) for t in range(T)]

    def draw(board, t):
        first = -(W - 1)
        board.cells(
            first, 0, 1, len(X), "input", label=[[_sign(v) for v in X]], text_size=9, lit=lambda r, c: t <= c < t + W,
            hatch=lambda r, c: "....." if c < W - 1 and t <= c < t + W else "",
        )  # fmt: skip
        for j in range(first, T):
            board.text(j + 0.5, -0.32, _sign(j), size=TEXT, colour="#555555")
        board.text(first - 0.25, -0.32, "time", size=TEXT, colour="#555555", ha="right")
        board.text(first - 0.25, 0.5, "X", ha="right")
        board.cells(t + first, 1.35, 1, W, "weight", label=[[_sign(v) for v in k[t]]], text_size=9)
        for w in range(W):
            board.arrow((t + first + w + 0.5, 1.35), (t + first + w + 0.5, 1.03), "weight", width=1.0)
        board.text(first - 0.25, 1.85, "weights", ha="right")
        done = [_sign(v) for v in y[: t + 1]] + [""] * (T - t - 1)
        board.cells(0, 2.9, 1, T, "output", label=[done], text_size=9, lit=lambda r, c: c <= t)
        board.arrow((t + 0.5, 2.37), (t + 0.5, 2.87), "output", width=1.0)
        board.text(first - 0.25, 3.4, "y", ha="right")

    titles = [
        " + ".join(f"{k[t][w]}·{X[t + w]}" for w in range(W)).replace("+ -", "− ") + f" = {y[t]}" for t in range(T)
    ]
    titles = [title.replace("-", "−") for title in titles]
    return filmstrip(
        7.6, 4.3, draw, titles, columns=2,
        alt=f"{T} frames, a token each: a row of inputs with {W - 1} hatched zeros in front, the token's own "
            f"{W} weights under the {W} inputs that they meet, and below them the outputs so far. From frame to "
            "frame the window moves one input to the right and the weights are others.",
    )  # fmt: skip


def conv_band(T, W, *boundaries):
    """The matrix of outputs and inputs, the number of the tap in each entry; a panel for each list of boundaries.

    ``boundaries`` are as ``cu_seqlens``. An entry that a boundary takes away is a dashed cross.
    """

    def draw(board, i):
        cu = boundaries[i]
        begin = [max(b for b in cu if b <= t) for t in range(T)]
        for t in range(T):
            for j in range(T):
                w = j - t + W - 1
                inside = 0 <= w < W and j >= begin[t]
                cut = 0 <= w < W and j < begin[t]
                place = board.box(
                    j, t, 1, 1, "weight" if inside else None, str(w) if inside else "×" if cut else "", lit=inside or cut,
                    size=9, edge="#8C8C8C" if not cut else "#CC0000", width=0.5 if not cut else 1.0,
                    style_="--" if cut else "-",
                )  # fmt: skip
        documents = [(n, a, b) for n, (a, b) in enumerate(zip(cu, cu[1:])) if b > a]
        for n, a, b in documents:
            place = Place(a, a, b - a, b - a)
            board.frame(
                place,
                "program",
                f"document {n}" if len(documents) > 1 else "",
                side="right" if b < T else "left",
                size=TEXT,
            )
        step = 1 if T <= 12 else 4
        for j in range(0, T, step):
            board.text(j + 0.5, -0.4, str(j), size=TEXT, colour="#555555")
            board.text(-0.4, j + 0.5, str(j), size=TEXT, colour="#555555")
        board.text(T / 2, -1.15, "input j", size=TEXT)
        board.text(-0.4, -0.4, "t", size=TEXT)

    lengths = [[b - a for a, b in zip(cu, cu[1:])] for cu in boundaries]
    titles = [
        f"lengths {', '.join(map(str, n))}" if len(n) > 1 else f"one sequence of {n[0]}, W = {W}" for n in lengths
    ]
    return filmstrip(
        3.9 * len(boundaries), 3.9, draw, titles, key=False,
        alt=f"A matrix of {T} outputs by {T} inputs for each of: {'; '.join(titles)}. The entries that are not "
            f"zero form a band of {W} cells that ends on the diagonal, with the number of the tap in each; "
            "crosses mark those that a boundary takes away.",
    )  # fmt: skip


def conv_state(W=4, pieces=(0, 1, 2, 5)):
    """The next state is the last W − 1 entries of the old state with the piece behind it, for pieces of these lengths."""
    S = W - 1
    names = "abcdefghijklmnop"

    def draw(board, i):
        L = pieces[i]
        board.name("memory", "state, old (above) and new (below)")
        board.cells(0, 0, 1, S, "memory", label=[list(names[:S])], text_size=9)
        if L:
            board.cells(S, 0, 1, L, "input", label=[list(names[S : S + L])], text_size=9)
            board.name("input", "piece")
        for j in range(-S, L):
            board.text(j + S + 0.5, -0.35, _sign(j), size=TEXT, colour="#555555")
        board.text(-0.2, -0.35, "time", size=TEXT, colour="#555555", ha="right")
        board.text(-0.2, 0.5, "X", ha="right")
        board.frame(Place(L, 0, S, 1), "program", width=2.2)
        board.cells(L, 2.0, 1, S, "memory", label=[list(names[L : L + S])], text_size=9)
        for s in range(S):
            board.arrow((L + s + 0.5, 1.08), (L + s + 0.5, 1.95), width=0.9)
        board.text(L - 0.2, 2.5, "s'", ha="right")
        for s in range(S):
            board.text(L + s + 0.5, 3.35, str(s), size=TEXT, colour="#555555")
        board.text(L - 0.2, 3.35, "slot", size=TEXT, colour="#555555", ha="right")

    titles = [f"L = {L}" for L in pieces]
    return filmstrip(
        7.6, 4.0, draw, titles, columns=2,
        alt=f"Frames for pieces of {', '.join(map(str, pieces))} tokens: a row of {S} state slots with the "
            f"piece behind it, a frame around the last {S} entries of that row, and arrows that take them down "
            "to the new state.",
    )  # fmt: skip


def conv_banks(apart=(48, 64, 128), lanes=32, bank=4, banks=32):
    """Into which of the cache's banks the lanes of one load fall that read ``apart`` bytes from each other; a panel each."""
    fallen = [[lane * step // bank % banks for lane in range(lanes)] for step in apart]
    turns = [max(map(found.count, found)) for found in fallen]

    def draw(board, i):
        height = max(turns)
        board.box(0, height - 0.05, banks, 0.1, None, edge="#8C8C8C")
        for b in range(banks):
            for level in range(fallen[i].count(b)):
                board.box(b, height - 1 - level, 1, 1, "program", width=0.3)
        board.text(0.5, height + 1.6, "bank 0", size=TEXT, colour="#555555", ha="left")
        board.text(banks, height + 1.6, f"{banks - 1}", size=TEXT, colour="#555555", ha="right")
        at = (8.6, height - turns[i] / 2) if turns[i] > 8 else (banks / 2, height - turns[i] - 2.5)
        board.text(*at, f"{turns[i]} turns", size=TEXT)
        board.text(0, 0, " ", size=TEXT)

    titles = [f"lanes {step} bytes apart" for step in apart]
    return filmstrip(
        7.6, 2.9, draw, titles, key=False,
        alt=f"For each distance between lanes ({', '.join(map(str, apart))} bytes) a row of {banks} banks with the "
            f"{lanes} lanes of one load stacked over the banks that they read from; the tallest stacks are "
            f"{', '.join(map(str, turns))} high.",
    )  # fmt: skip


def conv_words(G=4, W=3):
    """The weights of G channels as W words of G elements: braces above are words, braces below are channels."""

    def draw(board, i):
        n = G * W
        board.cells(
            0, 0, 1, n, "weight", size=(1.5, 1.1), hatch=lambda r, f: "//" if f // W % 2 else "",
        )  # fmt: skip
        for f in range(n):
            board.text(1.5 * f + 0.75, 0.55, f"tap {f % W}", size=TEXT)
        for m in range(W):
            name = f"word {m}: one load of {16 * G} bits"
            board.brace(1.5 * m * G + 0.1, 1.5 * (m + 1) * G - 0.1, -0.45, name, role="program", size=TEXT)
        for c in range(G):
            board.brace(1.5 * c * W + 0.1, 1.5 * (c + 1) * W - 0.1, 1.55, f"channel {c}", depth=-0.25, size=TEXT)

    return filmstrip(
        7.8, 1.55, draw, [""], key=False,
        alt=f"{G * W} weights in a row, {W} taps for each of {G} channels. Braces above cut them into {W} words "
            f"of {G}, braces below into {G} channels of {W}: the cuts differ inside and meet again at the end.",
    )  # fmt: skip


def word_bits(values, taken=2):
    """How one number, at place ``taken``, leaves a 64-bit word of four bfloat16 values: shifted to the low end, its 16 bits
    kept, zeros put below.

    Four rows, from top to bottom; bits of equal worth stand under each other.
    """
    bits = [struct.unpack("<I", struct.pack("<f", v))[0] >> 16 for v in values]
    wide = 2.6

    def draw(board):
        rows = [
            ("1. the word", {place: f"{b:04x}" for place, b in enumerate(bits)}, taken),
            (f"2. shifted right by {16 * taken} bits", {p - taken: f"{bits[p]:04x}" for p in range(taken, 4)}, 0),
            ("3. its low 16 bits", {0: f"{bits[taken]:04x}"}, 0),
            ("4. 16 zeros below: a float32", {1: f"{bits[taken]:04x}", 0: "0000"}, 1),
        ]
        for place in range(4):
            at = (3 - place + 0.5) * wide
            board.text(at, -1.15, f"place {place}: {_sign(values[place])}", size=TEXT)
            board.text(at, -0.45, f"bits {16 * place + 15}–{16 * place}", size=TEXT, colour="#555555")
        for r, (name, shown, here) in enumerate(rows):
            y = 2.1 * r
            board.text(-0.4, y + 0.6, name, size=TEXT, ha="right")
            for place in range(2 if r == 3 else 4):
                text = shown.get(place, "0000")
                board.box((3 - place) * wide, y, wide, 1.2, "input" if place == here else None, text, size=10)
        middle = lambda place: (3 - place + 0.5) * wide  # noqa: E731
        for r, (before, after) in enumerate(((taken, 0), (0, 0), (0, 1))):
            board.arrow((middle(before), 2.1 * r + 1.2), (middle(after), 2.1 * (r + 1)), "input", width=1.1)
        board.text(4 * wide + 0.4, 3 * 2.1 + 0.6, f"= {_sign(values[taken])}", size=TEXT, ha="left")

    hexadecimal = [f"{b:04x}" for b in reversed(bits)]
    return drawing(
        7.0, 2.9, draw, key=False,
        alt=f"Four rows, from top to bottom. A word of four boxes of 16 bits, in hexadecimal {', '.join(hexadecimal)} from "
            f"the high end; the same shifted so that place {taken} is the lowest; that box with zeros for all others; and "
            f"that box over sixteen zeros, 32 bits in all, which as a float32 is {values[taken]:g}.",
    )  # fmt: skip


def conv_walk(W=4, first=8, steps=3, before=3, after=3):
    """A program walks along a run: W slots of registers, one load a token; what it needs before the first is loaded once."""
    low, high = first - W + 1 - before, first + steps + after

    def draw(board, i):
        t = first + i - 1  # frame 0: before the run
        held = range(first - W + 1, first) if i == 0 else range(t - W + 1, t + 1)
        new = list(held) if i == 0 else [t]
        board.cells(
            0, 0, 1, high - low, "input", size=(1, 1), label=[list(range(low, high))], lit=lambda r, c: low + c in new,
            text_size=TEXT,
        )  # fmt: skip
        board.text(-0.3, 0.5, "x in memory", ha="right", size=TEXT)
        start = first - W + 1 - low
        left = start if i == 0 else start + i - 1
        for slot in range(W):
            j = held[0] + slot
            filled = j in held
            board.box(left + slot, 2.2, 1, 1, "input" if filled else None, str(j) if filled else "", lit=filled, size=9)
        board.frame(Place(left, 2.2, W, 1), "program", width=1.8)
        board.text(left - 0.3, 2.7, "registers", ha="right", size=TEXT)
        for j in new:
            board.arrow((j - low + 0.5, 1.05), (left + (j - held[0]) + 0.5, 2.15), "input", width=1.2)
        board.cells(
            first - low, 4.4, 1, steps, "output", label=[[str(first + s) if first + s <= t else "" for s in range(steps)]],
            lit=lambda r, c: first + c <= t, text_size=TEXT,
        )  # fmt: skip
        board.text(first - low - 0.3, 4.9, "y", ha="right", size=TEXT)
        if i:
            board.arrow((left + W / 2, 3.25), (t - low + 0.5, 4.35), "output", width=1.2)

    titles = [f"before the run: {W - 1} loads", *[f"t = {first + s}: 1 load" for s in range(steps)]]
    return filmstrip(
        7.8, 4.0, draw, titles, columns=2,
        alt=f"{steps + 1} frames of a walk from token {first}: a row of inputs in memory and {W} registers "
            f"below it. First {W - 1} inputs go into registers; then, at every token, one new input enters at "
            "the right, an output leaves below, and the oldest input has dropped out at the left.",
    )  # fmt: skip
