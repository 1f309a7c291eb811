"""The machine of lesson 02, which later lessons light again, and what its programs do there: wait, take turns, queue."""

import math

from kernels.lab.drawings.language import INK, NOTE, OUTLINE, TEXT, Board, Place, drawing, filmstrip, ink
from kernels.lab.roofline import RESULTS, recorded

#: What ``machine(lit=...)`` can light, from far to near.
PARTS = ("launch", "DRAM", "L2", "multiprocessor", "shared memory", "warps", "registers", "tensor cores")
_ROLES = {"warps": "program", "registers": "accumulator", "tensor cores": "accumulator"}
_PATHS = [("DRAM", "L2"), ("L2", "shared memory"), ("shared memory", "registers"), ("registers", "tensor cores")]


def machine(lit=None, numbers: bool = True):
    """The GPU: DRAM, the L2 cache, and a multiprocessor with its shared memory, warps, registers and tensor cores.

    lit: a part of ``PARTS`` or several; the rest stays as an outline. All of it unless told. A way between two places is
        lit with both of them.
    numbers: write sizes, latencies and rates at the places, as ``benchmarks.machine`` recorded them.

    Raises ``ValueError`` for a part that there is not.
    """
    wanted = PARTS if lit is None else (lit,) if isinstance(lit, str) else tuple(lit)
    for part in wanted:
        if part not in PARTS:
            raise ValueError(f"lit names {part!r}: the machine's parts are {', '.join(PARTS)}")
    said = _numbers() if numbers else {}
    count = said.get("multiprocessors", "many")

    def draw(board: Board):
        on = set(wanted).__contains__

        def place(part, x, y, w, h, text, size=TEXT):
            role = _ROLES.get(part, "memory")
            edge, width = (ink(role), 2.2) if on(part) else (None, 0.8)
            return board.box(x, y, w, h, role, text, lit=on(part), edge=edge, width=width, size=size)

        def note(part, x, y, ha="center"):
            for i, line in enumerate(said.get(part, ())):
                board.text(x, y + 0.95 * i, line, size=NOTE - 0.5, colour=INK if on(part) else OUTLINE, ha=ha)

        board.box(8.2, 0, 33.2, 21.6, edge="#8C8C8C", style_="--")
        board.text(8.6, 21.0, "the chip", size=NOTE, colour="#666666", ha="left")
        place("launch", 0, 0.7, 6, 2.4, "Python")
        place("launch", 9.2, 0.7, 31.3, 2.4, "scheduler: gives a program to a multiprocessor with room for it", NOTE)
        board.arrow((6, 1.9), (9.2, 1.9), lit=on("launch"), text="launch", shift=(-0.4, -0.55))
        dram = place("DRAM", 0, 5.4, 6, 11.8, "DRAM")
        l2 = place("L2", 9.2, 5.4, 5.2, 11.8, "L2 cache")
        note("DRAM", 3, 18.1)
        note("L2", 11.8, 18.1)
        for back in (1.2, 0.8, 0.4):
            board.box(18.2 + back, 5.4 - back, 21.0, 15.2, edge=ink("memory") if on("multiprocessor") else OUTLINE, width=0.6)
        place("multiprocessor", 18.2, 5.4, 21.0, 15.2, "")
        colour = INK if on("multiprocessor") else OUTLINE
        board.text(28.7, 6.3, f"a multiprocessor, one of {count}", size=NOTE, colour=colour, halo=False)
        board.arrow((28.7, 3.1), (28.7, 4.2), lit=on("launch"))
        shared = place("shared memory", 19.0, 7.4, 5.4, 9.8, "shared\nmemory\nand\nL1 cache", NOTE)
        note("shared memory", 21.7, 18.1)
        for quarter in range(4):
            y = 7.4 + 2.5 * quarter
            warps = place("warps", 26.4, y, 2.9, 2.3, "warps", NOTE)
            registers = place("registers", 29.6, y, 4.2, 2.3, "registers", NOTE)
            core = place("tensor cores", 35.0, y, 3.7, 2.3, "tensor\ncore", NOTE)
            if quarter == 1:
                first, near = warps, (registers, core)
        note("registers", 31.0, 18.1)
        note("tensor cores", 36.7, 18.1)
        ends = {"DRAM": dram, "L2": l2, "shared memory": shared, "registers": near[0], "tensor cores": near[1]}
        for here, there in _PATHS:
            start = (ends[here].x + ends[here].w, 11.1)
            end = (first.x if there == "registers" else ends[there].x, 11.1)
            board.arrow(start, end, lit=on(here) and on(there), both=True, width=2.2 if on(here) and on(there) else 1.2)

    words = "all of it" if lit is None else ", ".join(wanted)
    alt = (
        "The machine as boxes from left to right, joined by arrows: DRAM; then, on the chip, the L2 cache and one of many "
        "multiprocessors, which holds shared memory with the L1 cache, and four quarters, each with warps, registers and a "
        f"tensor core. Above them Python launches, and a scheduler hands out programs. Lit: {words}."
    )
    return drawing(7.9, 4.3, draw, alt=alt, key=False)


def _numbers() -> dict:
    """Lines of text for each place, from the record; nothing where it was not made."""
    if not (RESULTS / "machine.json").is_file():
        return {}
    from kernels.lab import measured

    return measured.places(recorded("machine"))


def program_on_threads(block: int = 1024, warps: int = 4, word: int = 4):
    """How a program's block of lanes lies on its warps and their threads, ``word`` neighbouring lanes a thread."""
    threads = 32 * warps
    turns = block // (threads * word)

    def draw(board: Board):
        board.text(-0.4, 0.6, f"the block: {block} lanes", size=NOTE, ha="right")
        piece = 32.0 / (turns * warps)
        for turn in range(turns):
            for warp in range(warps):
                i = turn * warps + warp
                lanes = 32 * word
                text = f"{i * lanes}…{(i + 1) * lanes - 1}"
                board.box(i * piece, 0, piece, 1.2, "input", text, size=7, lit=True, hatch="" if warp else "////")
        board.text(-0.4, 4.1, f"the program: {warps} warps", size=NOTE, ha="right")
        wide = 32.0 / warps
        for warp in range(warps):
            place = board.box(warp * wide + 0.15, 3.4, wide - 0.3, 1.4, "program", f"warp {warp}", size=NOTE, hatch="" if warp else "////")
            for turn in range(turns):
                start = ((turn * warps + warp + 0.5) * piece, 1.2)
                board.arrow(start, place.side("top", 0.35 + 0.3 * turn / max(1, turns - 1)), "input", lit=warp == 0, width=0.9)
        board.text(-0.4, 7.4, "warp 0: 32 threads", size=NOTE, ha="right")
        grid = board.cells(0, 6.9, 1, 32, "program", size=(1.0, 1.0), label=lambda r, c: c, text_size=7)
        board.arrow((0.15, 4.8), (0, 6.9), lit=False, width=0.8)
        board.arrow((wide - 0.15, 4.8), (32, 6.9), lit=False, width=0.8)
        held = " and ".join(
            f"{turn * threads * word + 5 * word}…{turn * threads * word + 6 * word - 1}" for turn in range(turns)
        )
        board.frame(grid.cell(0, 5), "accumulator")
        board.arrow(grid.cell(0, 5).side("bottom"), (7.5, 9.5), "accumulator", width=1.2)
        cells = board.cells(7.5, 9.3, 1, word * turns, "accumulator", size=(2.0, 1.0), text_size=7,
                            label=lambda r, c: c // word * threads * word + 5 * word + c % word)  # fmt: skip
        board.text(-0.4, 9.8, "thread 5's registers", size=NOTE, ha="right")
        board.text(cells.x + cells.w + 0.3, 9.8, f"{word * turns} of the {block} lanes", size=NOTE, ha="left")
        _ = held

    alt = (
        f"A block of {block} lanes drawn as a bar cut into {turns * warps} pieces. Arrows lead pieces to the {warps} warps of "
        f"the program; warp 0 is drawn as its 32 threads; thread 5 holds {word * turns} lanes in registers, {word} "
        "neighbours at a time."
    )
    return drawing(7.9, 2.6, draw, alt=alt)


def latency_hiding(warps=(1, 4, 8), latency: int = 7, rounds: int = 2):
    """Who has the multiprocessor when: each warp asks for data, waits ``latency`` turns, and computes for one turn.

    One band of rows for each number of ``warps``; the bottom row of a band shows the turns in which anything is computed.
    """
    period = latency + 1
    length = rounds * period + max(warps) - 1

    def draw(board: Board):
        y = 0.0
        for count in warps:
            top = y
            busy = {}
            for warp in range(count):
                board.text(-0.3, y + 0.4, f"warp {warp}", size=7, ha="right")
                for step in range(rounds):
                    at = warp + step * period
                    board.box(at, y, 1, 0.8, "program", hatch="////", width=0.5)
                    board.box(at + 1, y + 0.28, latency, 0.24, "time", width=0.4)
                    busy[at] = warp
                y += 0.95
            y += 0.15
            last = rounds * period + count - 1
            for at in range(last):
                board.box(at, y, 1, 0.8, "output", lit=at in busy, width=0.5)
            board.text(-0.3, y + 0.4, "work is done", size=7, ha="right", weight="bold")
            window = range(period, period + period) if rounds > 1 else range(period)
            share = sum(at in busy for at in window) / len(window)
            board.text(length + 0.4, (top + y + 0.8) / 2, f"{count} warp{'s' * (count > 1)}:\nbusy {share:.0%}".replace("%", " %"),
                       size=NOTE, ha="left")  # fmt: skip
            y += 1.7
        board.text(0, y - 0.3, "time →", size=NOTE, ha="left", colour=ink("time"))

    alt = (
        f"Three timelines. A warp asks and computes in one turn, drawn as a hatched box, and then waits {latency} turns, a thin "
        f"grey bar. With {warps[0]} warp the row that shows work is almost empty, with {warps[-1]} it is full."
    )
    return drawing(7.6, 4.6, draw, alt=alt)


def pipe():
    """Little's law as a pipe, in four frames: its length is the latency, its width the bandwidth, what it holds is in flight."""
    frames = [
        ("1. one request", 1),
        ("2. as many as one warp\nhas in flight", 4),
        ("3. half full:\nhalf the bandwidth", 16),
        ("4. full: latency × bandwidth\nis in flight", 32),
    ]
    rows, columns = 4, 8

    def draw(board: Board, frame: int):
        held = frames[frame][1]
        # what is in flight is spread along the pipe: a column arrives each turn
        order = sorted((c % 2 + 2 * r, c, r) for r in range(rows) for c in range(columns))
        full = {(r, c) for _, c, r in order[:held]} if held not in (1, 4) else {(0, 2 * i + 1) for i in range(held)}
        if held == 1:
            full = {(1, 3)}
        board.cells(0, 0, rows, columns, "input", lit=lambda r, c: (r, c) in full, hatch=lambda r, c: "////" if (r, c) in full else "")
        board.arrow((-1.6, rows / 2), (-0.1, rows / 2), "input")
        board.arrow((columns + 0.1, rows / 2), (columns + 1.6, rows / 2), "input")
        board.brace(0, columns, -0.5, "latency", depth=0.3)
        if frame == 0:
            board.brace(0, rows, -1.9, "bandwidth", vertical=True, depth=0.3)
        board.text(columns / 2, rows + 0.8, f"{held} of {rows * columns} places", size=NOTE)

    alt = (
        "Four frames of a pipe, drawn as a grid of four rows and eight columns: its length is named latency, its width "
        "bandwidth. In the first frame one cell is filled, then 4, 16, and all 32."
    )
    return filmstrip(7.9, 2.3, draw, [title for title, _ in frames], alt=alt, key=False)


def resident(warps: int, registers: int, shared_bytes: int, limits: dict | None = None) -> tuple[int, dict]:
    """How many programs a multiprocessor holds at once, and how many each of its stores would allow.

    warps: of a program. registers: of a thread. shared_bytes: of a program. limits: what a multiprocessor has, by name; an
    H200's unless told.
    """
    limits = {"threads": 2048, "registers": 65536, "shared memory": 228 * 1024, "programs": 32} | (limits or {})
    need = {
        "threads": 32 * warps,
        "registers": 32 * warps * 8 * math.ceil(registers / 8),
        "shared memory": shared_bytes + 1024 if shared_bytes else 1024,
        "programs": 1,
    }
    allow = {name: limits[name] // need[name] for name in limits}
    return min(allow.values()), allow


def occupancy(warps: int = 8, registers: int = 128, shared_bytes: int = 49152):
    """What a multiprocessor has of each thing that programs need, as bars that its programs fill until one is full."""
    count, allow = resident(warps, registers, shared_bytes)
    limits = {"threads": 2048, "registers": 65536, "shared memory": 228 * 1024}
    units = {"threads": "2,048 threads", "registers": "65,536 registers", "shared memory": "228 kB shared memory"}

    def draw(board: Board):
        wide = 24.0
        for i, name in enumerate(limits):
            y = 1.7 * i
            board.text(-0.4, y + 0.5, units[name], size=NOTE, ha="right")
            board.box(0, y, wide, 1.0, None)
            each = wide / (limits[name] / {
                "threads": 32 * warps, "registers": 32 * warps * 8 * math.ceil(registers / 8),
                "shared memory": (shared_bytes or 0) + 1024,
            }[name])  # fmt: skip
            for program in range(count):
                text = str(program) if each > 0.9 else ""
                board.box(program * each, y, each, 1.0, "program", text, size=7, hatch="////" if program % 2 else "")
            if count * each + each > wide + 1e-6:
                at = board.box(count * each, y, each, 1.0, "wrong", edge=ink("wrong"), style_="--")
                board.text(at.x + at.w / 2, y + 0.5, "✗", colour=ink("wrong"), size=NOTE)
            limit = "  the limit" if allow[name] == count else ""
            board.text(wide + max(0, (count + 1) * each - wide) + 0.4, y + 0.5, f"room for {allow[name]}{limit}", size=NOTE, ha="left",
                       weight="bold" if limit else "normal")  # fmt: skip

    alt = (
        f"Three bars, a multiprocessor's threads, registers and shared memory, filled by {count} programs side by side. The next "
        "program, dashed, reaches beyond the end of each bar that is the limit."
    )
    return drawing(7.9, 1.9, draw, alt=alt)


def warp_load(cases=((4, 1), (16, 1), (4, 2), (4, 8))):
    """A warp's 32 threads and the sectors of memory that they ask for: a frame for each ``(bytes a thread, stride)``."""

    def draw(board: Board, frame: int):
        width, stride = cases[frame]
        shown = 32
        threads = board.cells(0, 0, 1, shown, "program", size=(1, 1.2))
        board.text(0, -0.6, "32 threads", size=7, ha="left")
        count = 4 * width // 4 if stride == 1 else min(32, 4 * stride)
        touched = len({t * stride * width // 32 for t in range(32)})
        drawn = min(touched, 16)
        size = 32 / drawn
        cells = board.cells(0, 5, 1, drawn, "input", size=(size, 1.6), hatch=lambda r, c: "////" if stride > 1 else "",
                            text_size=7)  # fmt: skip
        for thread in range(shown):
            sector = thread * stride * width // 32
            if sector < drawn:
                x, _ = cells.cell(0, sector).middle
                share = (thread * stride * width % 32) / 32
                x = cells.cell(0, sector).x + size * (share + min(width * 1.0, 32) / 64)
                board.ax.plot([thread + 0.5, x], [1.2, 5], color=ink("program"), linewidth=0.7, zorder=3)
        useful = 32 * width
        more = f" (the first {drawn} drawn)" if drawn < touched else ""
        board.text(16, 7.6, f"{touched} sectors{more}: {32 * touched:,} bytes moved, {useful:,} used", size=NOTE)
        _ = threads, count

    titles = [f"{w} bytes a thread" + (f", every {s}{'nd' if s == 2 else 'th'} element" if s > 1 else "") for w, s in cases]
    alt = (
        "For each case a row of 32 threads above a row of sectors, joined by lines: "
        + "; ".join(
            f"{title}: {len({t * s * w // 32 for t in range(32)})} sectors" for title, (w, s) in zip(titles, cases, strict=True)
        )
        + "."
    )
    return filmstrip(7.9, 3.7, draw, titles, alt=alt, columns=2)


def waves(programs: int = 10, multiprocessors: int = 4, rooms: int = 1):
    """Which multiprocessor runs which program when, if all programs take equally long and each holds ``rooms`` at once."""

    def draw(board: Board):
        seats = multiprocessors * rooms
        count = -(-programs // seats)
        for seat in range(seats):
            board.text(-0.3, seat + 0.45, f"multiprocessor {seat // rooms}" if seat % rooms == 0 else "", size=7, ha="right")
            for wave in range(count):
                program = wave * seats + seat
                there = program < programs
                board.box(5 * wave, seat, 4.9, 0.9, "program" if there else "wrong", str(program) if there else "idle", size=NOTE,
                          hatch="////" if there and wave % 2 else "", style_="-" if there else "--", edge=None if there else ink("wrong"))  # fmt: skip
        for wave in range(count):
            tail = programs < (wave + 1) * seats
            board.brace(5 * wave, 5 * wave + 4.9, -0.4, f"wave {wave}" + (", the tail" if tail else ""), depth=0.25)
        board.arrow((0, seats + 0.6), (5 * count, seats + 0.6), "time", text="time", shift=(0, 0.5))

    idle = -programs % (multiprocessors * rooms)
    alt = (
        f"{programs} programs on {multiprocessors} multiprocessors as bars along time, in columns that are the waves; in the last "
        f"wave {idle} places are idle."
    )
    return drawing(6.4, 0.55 + 0.42 * multiprocessors * rooms, draw, alt=alt, key=False)


def launch():
    """Python and the GPU along time: launches of tiny kernels leave the GPU idle; larger ones, or a graph, don't."""

    def row(board, y, name, pieces, role):
        board.text(-0.3, y + 0.5, name, size=7, ha="right")
        for start, length, text in pieces:
            board.box(start, y, length, 1.0, role, text, size=7, hatch="////" if role == "program" else "")

    def draw(board: Board, frame: int):
        host = [(4 * i, 3.6, f"launch {i}") for i in range(4)]
        if frame == 0:
            row(board, 0, "Python", host, "time")
            row(board, 1.6, "GPU", [(4 * i + 3.6, 0.8, "") for i in range(4)], "program")
        elif frame == 1:
            row(board, 0, "Python", host, "time")
            row(board, 1.6, "GPU", [(3.6 + 7 * i, 6.8, f"kernel {i}") for i in range(2)], "program")
        else:
            row(board, 0, "Python", [(0, 3.6, "replay")], "time")
            row(board, 1.6, "GPU", [(3.6 + 1.3 * i, 0.8, "") for i in range(9)], "program")
        board.box(0, 3.0, 18, 0.02, None, edge=OUTLINE)
        board._include(0, 0, 18, 3)

    titles = ["tiny kernels: the GPU waits for Python", "larger kernels: Python is ahead", "a graph: one launch for many kernels"]
    alt = (
        "Three timelines with a row for Python and one for the GPU. Tiny kernels stand far apart, each after a long launch; "
        "larger kernels follow each other without a gap; in a graph tiny kernels follow one replay closely."
    )
    return filmstrip(7.9, 3.0, draw, titles, alt=alt, columns=1)


__all__ = [
    "PARTS", "Place", "latency_hiding", "launch", "machine", "occupancy", "pipe", "program_on_threads", "resident", "warp_load", "waves",
]  # fmt: skip
