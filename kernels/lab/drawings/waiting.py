"""What programs do on lesson 03's machine: they wait, take turns, share what a multiprocessor has, queue."""

import math

from kernels.lab.drawings.language import NOTE, OUTLINE, Board, drawing, filmstrip, ink


def latency_hiding(warps=(1, 4, 8), latency: int = 7, rounds: int = 2):
    """Who has the multiprocessor when: each warp works for a turn, asks for data, and waits ``latency`` turns for it.

    One band of rows for each number of ``warps``; the bottom row of a band shows the turns in which any warp works.
    """
    alt = (
        f"Three timelines. A warp works for one turn, drawn as a hatched box, and then waits {latency} turns, a thin bar. "
        f"With {warps[0]} warp the row that shows work is almost empty, with {warps[-1]} it is full."
    )
    return drawing(7.6, 4.6, lambda board: draw_hiding(board, warps, latency, rounds), alt=alt, key=False)


def draw_hiding(board: Board, warps=(1, 4, 8), latency: int = 7, rounds: int = 2) -> None:
    """``latency_hiding`` on a board."""
    period = latency + 1
    y = 0.0
    for count in warps:
        busy = set()
        share = f"{count} warp{'s' * (count > 1)}: busy {count} of {period} ticks"
        board.text(0, y - 0.5, share, size=NOTE, ha="left")
        for warp in range(count):
            board.text(-0.3, y + 0.4, f"warp {warp}", size=7, ha="right")
            for step in range(rounds):
                at = warp + step * period
                board.box(at, y, 1, 0.8, "program", hatch="////", width=0.5)
                board.box(at + 1, y + 0.25, latency, 0.3, "time", width=0.4)
                busy.add(at)
            y += 0.95
        y += 0.15
        for at in range(rounds * period + count - 1):
            board.box(at, y, 1, 0.8, "output", lit=at in busy, width=0.5)
        board.text(-0.3, y + 0.4, "busy", size=7, ha="right", weight="bold")
        y += 2.2
    board.box(8, y - 1.3, 1, 0.8, "program", hatch="////", width=0.5)
    board.text(9.3, y - 0.9, "works", size=7, ha="left")
    board.box(12.5, y - 1.05, 2, 0.3, "time", width=0.4)
    board.text(14.8, y - 0.9, "waits for its data", size=7, ha="left")
    board.arrow((0, y - 0.9), (4, y - 0.9), "time", text="time", shift=(3.2, 0))


PIPE = {  # title of a frame: the cells that are full, of four rows and eight columns
    "one request": {(1, 3)},
    "one row of requests": {(1, c) for c in range(8)},
    "half full": {(r, c) for r in range(4) for c in range(8) if (r + c) % 2},
    "full": {(r, c) for r in range(4) for c in range(8)},
}


def pipe():
    """Little's law as a pipe, in four frames: its length the latency, its width the bandwidth, in it the bytes under way."""
    alt = (
        "Four frames of a pipe, drawn as a grid of four rows and eight columns: its length is named latency, its "
        "width bandwidth. In the first frame one cell is filled, then 8, 16 and all 32; the shares of the bandwidth "
        "are 1/32, 1/4, 1/2, all."
    )
    return filmstrip(7.9, 2.0, draw_pipe, list(PIPE), alt=alt, key=False)


def draw_pipe(board: Board, frame: int) -> None:
    """A frame of ``pipe`` on a board."""
    full = list(PIPE.values())[frame]
    hatch = lambda r, c: "////" if (r, c) in full else ""  # noqa: E731
    board.cells(0, 0, 4, 8, "input", lit=lambda r, c: (r, c) in full, hatch=hatch)
    board.arrow((8.1, 2), (9.6, 2), "input")
    board.brace(0, 8, 4.5, "latency", depth=-0.3)
    board.brace(0, 4, -0.4, "bandwidth" if frame == 0 else "", vertical=True, depth=0.3)
    share = {1: "1/32", 8: "1/4", 16: "1/2", 32: "all"}[len(full)]
    board.text(4, 6.4, f"{len(full)} in flight: {share} of the bandwidth", size=7)


def resident(warps: int, registers: int, shared_bytes: int) -> tuple[int, dict]:
    """How many programs an H200's multiprocessor holds at once, and how many each thing that they need would allow.

    warps: of a program. registers: of a thread, handed out in eights. shared_bytes: of a program; 1 kB more is kept for each.
    """
    has = {"threads": 2048, "registers": 65536, "shared memory": 228 * 1024, "programs": 32}
    takes = {
        "threads": 32 * warps,
        "registers": 32 * warps * 8 * math.ceil(registers / 8),
        "shared memory": shared_bytes + 1024,
        "programs": 1,
    }
    allow = {name: has[name] // takes[name] for name in has}
    return min(allow.values()), allow


def occupancy(warps: int = 8, registers: int = 128, shared_bytes: int = 49152):
    """What a multiprocessor has of each thing that programs need, as bars that its programs fill until one is full.

    warps: of a program. registers: of a thread. shared_bytes: of a program.
    """
    count, allow = resident(warps, registers, shared_bytes)
    shares = {
        "2,048 threads": ("threads", 32 * warps / 2048),
        "65,536 registers": ("registers", 32 * warps * 8 * math.ceil(registers / 8) / 65536),
        "228 kB shared memory": ("shared memory", (shared_bytes + 1024) / (228 * 1024)),
    }
    whole = 22.0

    def draw(board: Board):
        for i, (name, (what, share)) in enumerate(shares.items()):
            y, wide = 1.6 * i, share * whole
            board.text(-0.4, y + 0.5, name, size=NOTE, ha="right")
            board.box(0, y, whole, 1.1)
            for program in range(count):
                board.box(program * wide, y, wide, 1.1, "program", str(program) if share > 0.04 else "", size=7)
            words, weight = f"room for {allow[what]}", "normal"
            if allow[what] == count:
                words, weight = words + ": the limit", "bold"
                beyond = board.box(count * wide, y, min(wide, 4), 1.1, edge=ink("wrong"), style_="--")
                board.text(*beyond.middle, "no room", size=7, colour=ink("wrong"))
            board.text(whole + 4.6, y + 0.5, words, size=NOTE, ha="left", weight=weight)

    alt = (
        f"Three bars, a multiprocessor's threads, registers and shared memory, filled from the left by {count} "
        "programs. Where a bar is the limit, a dashed box, no room, stands behind the last program; the other bars "
        "have space left."
    )
    return drawing(7.9, 1.25, draw, alt=alt, key=False)


def waves(programs: int = 10, multiprocessors: int = 4, rooms: int = 1):
    """Which multiprocessor runs which program when, if all programs take equally long and each holds ``rooms`` at once."""
    seats = multiprocessors * rooms
    count = -(-programs // seats)

    def draw(board: Board):
        for seat in range(seats):
            if seat % rooms == 0:
                board.text(-0.3, seat + 0.45, f"multiprocessor {seat // rooms}", size=7, ha="right")
            for wave in range(count):
                program = wave * seats + seat
                if program < programs:
                    board.box(5 * wave, seat, 4.9, 0.9, "program", f"program {program}", size=NOTE)
                else:
                    board.box(5 * wave, seat, 4.9, 0.9, edge=ink("wrong"), style_="--")
                    board.text(5 * wave + 2.45, seat + 0.45, "idle", size=NOTE, colour=ink("wrong"))
        for wave in range(count):
            tail = programs < (wave + 1) * seats
            board.brace(5 * wave, 5 * wave + 4.9, -0.3, f"wave {wave}" + (", the tail" if tail else ""), depth=0.25)
        board.arrow((0, seats + 0.4), (5 * count, seats + 0.4), "time", text="time", shift=(0, 0.45))

    alt = (
        f"{programs} programs on {multiprocessors} multiprocessors as bars along time, in columns that are the waves; "
        f"in the last wave {-programs % seats} places are idle."
    )
    return drawing(6.4, 0.7 + 0.4 * seats, draw, alt=alt, key=False)


def launch():
    """Python and the GPU along time: launches of tiny kernels leave the GPU idle; larger ones, or a graph, don't."""
    end = 22.0

    def bars(board, y, name, pieces, role):
        board.text(-0.3, y + 0.5, name, size=7, ha="right")
        board.ax.plot([0, end], [y + 1.0, y + 1.0], color=OUTLINE, linewidth=0.6, zorder=1)
        board.box(end, y, 0.01, 0.01, edge="white")
        for start, length, text in pieces:
            board.box(start, y, length, 1.0, role, text, size=7)

    def draw(board: Board, frame: int):
        host = [(4 * i, 3.9, f"launch {i}") for i in range(5)]
        if frame == 2:
            host = [(0, 3.9, "replay")]
        starts = ([4 * i + 3.9 for i in range(5)], [3.9, 10.5], [3.9 + 1.15 * i for i in range(12)])[frame]
        length = (1.0, 6.5, 1.0)[frame]
        bars(board, 0, "Python", host, "time")
        numbered = [(start, length, f"kernel {i}" if frame == 1 else str(i)) for i, start in enumerate(starts)]
        bars(board, 1.5, "GPU", numbered, "program")

    titles = [
        "tiny kernels: the GPU waits for Python",
        "larger kernels: Python is ahead",
        "a graph: one launch for many kernels",
    ]
    alt = (
        "Three timelines with a row for Python and one for the GPU. Tiny kernels stand far apart, each after a long "
        "launch; larger kernels follow each other without a gap; in a graph tiny kernels follow one replay closely."
    )
    return filmstrip(6.6, 2.8, draw, titles, alt=alt, columns=1, key=False)
