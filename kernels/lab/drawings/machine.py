"""The machine of lesson 03, which later lessons light again, a program on its threads, and what a warp asks memory for."""

from kernels.lab.drawings.language import INK, NOTE, OUTLINE, TEXT, Board, drawing, ink
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
    return places(recorded("machine")) if (RESULTS / "machine.json").is_file() else {}


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
