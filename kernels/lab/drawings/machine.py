"""The machine of lesson 02, which later lessons light again, and what its programs do there: wait, take turns, queue."""

import math

from kernels.lab.drawings.language import INK, NOTE, OUTLINE, TEXT, Board, drawing, filmstrip, ink
from kernels.lab.machine_record import places
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
            board.box(
                18.2 + back, 5.4 - back, 21.0, 15.2, edge=ink("memory") if on("multiprocessor") else OUTLINE, width=0.6
            )
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
    return places(recorded("machine"))


def program_on_threads(block: int = 1024, warps: int = 4, word: int = 4):
    """How a program's block of lanes lies on its warps and their threads, ``word`` neighbouring lanes a thread."""
    threads = 32 * warps
    turns = block // (threads * word)
    piece, wide = 32.0 / (turns * warps), 32.0 / warps

    def draw(board: Board):
        board.text(-0.4, 0.6, f"the block: {block:,} lanes", size=NOTE, ha="right")
        for i in range(turns * warps):
            place = board.box(i * piece, 0, piece, 1.2, "input", f"{i * 32 * word}…{(i + 1) * 32 * word - 1}", size=7)
            if i % warps == 0:
                board.frame(place, "accumulator")
        board.text(-0.4, 4.1, f"the program: {warps} warps", size=NOTE, ha="right")
        for warp in range(warps):
            place = board.box(warp * wide + 0.15, 3.4, wide - 0.3, 1.4, "program", f"warp {warp}", size=NOTE)
            if warp == 0:
                board.frame(place, "accumulator")
            for turn in range(turns):
                start = ((turn * warps + warp + 0.5) * piece, 1.25)
                end = place.side("top", 0.35 + 0.3 * turn / max(1, turns - 1))
                board.arrow(start, end, "accumulator", lit=warp == 0, width=1.4 if warp == 0 else 0.8)
        board.text(-0.4, 7.4, "warp 0: 32 threads", size=NOTE, ha="right")
        grid = board.cells(0, 6.9, 1, 32, "program", size=(1.0, 1.0), label=lambda r, c: c, text_size=7)
        board.arrow((0.15, 4.8), (0, 6.9), "accumulator", width=0.8)
        board.arrow((wide - 0.15, 4.8), (32, 6.9), "accumulator", width=0.8)
        board.frame(grid.cell(0, 5), "accumulator")
        board.arrow(grid.cell(0, 5).side("bottom"), (7.5, 9.3), "accumulator")
        lane = lambda r, c: c // word * threads * word + 5 * word + c % word  # noqa: E731
        cells = board.cells(7.5, 9.3, 1, word * turns, "accumulator", size=(2.0, 1.0), text_size=7, label=lane)
        board.text(-0.4, 9.8, "thread 5's registers", size=NOTE, ha="right")
        board.text(cells.x + cells.w + 0.3, 9.8, f"{word * turns} of the {block:,} lanes", size=NOTE, ha="left")

    alt = (
        f"A block of {block} lanes drawn as a bar cut into {turns * warps} pieces. Arrows lead them to the program's "
        f"{warps} warps; warp 0 is drawn as its 32 threads; thread 5 holds {word * turns} lanes in registers, {word} "
        "neighbours at a time."
    )
    return drawing(7.9, 2.6, draw, alt=alt, key=False)


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


LOADS = ((4, 1), (16, 1), (4, 2), (4, 8))  # bytes a thread, stride in elements


def _load_titles(cases) -> list[str]:
    words = {2: "2nd", 8: "8th"}
    every = lambda s: f", every {words.get(s, f'{s}th')} element" if s > 1 else ""  # noqa: E731
    return [f"{width} bytes for each thread{every(stride)}" for width, stride in cases]


def warp_load(cases=LOADS):
    """A warp's 32 threads and the sectors of memory that they ask for: a frame for each ``(bytes a thread, stride)``."""
    titles = _load_titles(cases)
    sectors = [len({t * stride * width // 32 for t in range(32)}) for width, stride in cases]
    counted = "; ".join(f"{title}: {count} sectors" for title, count in zip(titles, sectors, strict=True))
    alt = f"A row of 32 threads above a row of sectors, joined by lines; the bytes that are used are filled. {counted}."
    return filmstrip(7.9, 3.3, lambda board, i: draw_load(board, *cases[i]), titles, alt=alt, columns=2, key=False)


def draw_load(board: Board, width: int, stride: int) -> None:
    """A frame of ``warp_load`` on a board; of many sectors the first 16 are drawn."""
    board.cells(0, 0, 1, 32, "program", size=(1, 1.2))
    board.text(0, -0.6, "32 threads", size=7, ha="left")
    touched = len({thread * stride * width // 32 for thread in range(32)})
    drawn = min(touched, 16)
    size = 32 / drawn
    sectors = board.cells(0, 4.6, 1, drawn, size=(size, 1.5), hatch=lambda r, c: "....", lit=lambda r, c: False)
    for thread in range(32):
        sector, within = divmod(thread * stride * width, 32)
        if sector < drawn:
            used = board.box(
                sectors.cell(0, sector).x + size * within / 32,
                4.6,
                size * width / 32,
                1.5,
                "input",
                width=0.4,
                edge="#555555",
            )
            line = [thread + 0.5, used.middle[0]]
            board.ax.plot(line, [1.2, 4.6], color=ink("program"), linewidth=0.7, zorder=3)
    for sector in range(drawn + 1):
        board.ax.plot([sector * size] * 2, [4.4, 6.3], color=INK, linewidth=1.2, zorder=4)
    more = f", {drawn} drawn" if drawn < touched else ""
    board.text(16, 7.2, f"{touched} sectors{more}: {32 * touched:,} bytes moved for {32 * width:,}", size=NOTE)


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
