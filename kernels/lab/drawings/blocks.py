"""Drawings of lessons 00 and 01: programs over a line of elements, tiles of addresses, views, sectors, rows in blocks."""

from collections.abc import Sequence

import torch

from kernels.lab.accesses import Trace
from kernels.lab.drawings.language import INK, NOTE, drawing, filmstrip, ink

SECTOR = 8  # float32 numbers in 32 bytes


def programs(N: int, BLOCK: int, *, memory: int | None = None, masked: bool = False, tensor: str = "out"):
    """Programs over a line of memory: each lane points at the element it handles, also where that is not ours.

    N: elements of the tensor. memory: elements of the memory that holds it and, beyond N, somebody else's. masked: lanes
    beyond N touch nothing.
    """
    P = -(-N // BLOCK)
    memory = memory or P * BLOCK
    beyond = P * BLOCK - N

    def draw(board):
        for p in range(P):
            board.box(p * BLOCK + 0.06, 0, BLOCK - 0.12, 0.9, "program", f"program {p}")
            for i in range(p * BLOCK, (p + 1) * BLOCK):
                inside = i < N
                board.text(i + 0.5, 1.15, str(i - p * BLOCK), size=NOTE, colour=INK if inside else ink("wrong"))
                if inside or not masked:
                    board.arrow(
                        (i + 0.5, 1.4), (i + 0.5, 2.35), None if inside else "wrong", width=1.2 if inside else 2.0
                    )
                else:
                    board.text(i + 0.5, 1.9, "–", size=11, colour=ink("wrong"))
        board.text(-0.2, 1.15, "lane", size=NOTE, ha="right")
        board.text(-0.2, 2.85, "element", size=NOTE, ha="right")
        board.cells(
            0, 2.4, 1, memory, "output", label=lambda r, i: i, role_of=lambda r, i: "output" if i < N else "memory",
            hatch=lambda r, i: "////" if not masked and N <= i < P * BLOCK else "", text_size=9,
        )  # fmt: skip
        board.brace(0.05, N - 0.05, 3.6, f"{tensor}: {N} elements", depth=-0.2)
        if memory > N:
            board.brace(N + 0.05, memory - 0.05, 3.6, "somebody else's", depth=-0.2)
        if beyond and not masked:
            board.text((N + P * BLOCK) / 2, 4.75, "hatched: overwritten", size=NOTE, colour=ink("wrong"))

    said = f"{P} boxes, program 0 to {P - 1}, of {BLOCK} lanes each, over a line of {memory} elements, {N} of them {tensor}."
    if beyond:
        last = f"the last {beyond} lane{'s' * (beyond > 1)} of program {P - 1}"
        said += (
            f" Masked, {last} point nowhere." if masked else f" Arrows of {last} point at hatched elements beyond it."
        )
    return drawing(min(8.0, 1.2 + memory * 0.45), 2.5, draw, alt=said)


def address_tile(rows: int, columns: int, width: int, *, lit: tuple[int, int] | None = None, first=(0, 0)):
    """A tile of addresses as an addition table: a column of row starts, a row of column offsets, and their sums.

    width: elements from a row of the matrix to the next. lit: the cell whose two summands are shown. first: the tile's
    first row and column.
    """
    starts, offsets = [(first[0] + m) * width for m in range(rows)], [first[1] + n for n in range(columns)]
    r, c = lit or (rows - 1, columns - 1)
    w = 1.3

    def draw(board):
        left = board.cells(-2.6, 0, rows, 1, "program", size=(w, 1), label=[[s] for s in starts], text_size=10)
        top = board.cells(0, -2.0, 1, columns, "program", size=(w, 1), label=[offsets], text_size=10)
        tile = board.cells(
            0, 0, rows, columns, "input", size=(w, 1), label=[[s + o for o in offsets] for s in starts], text_size=10,
            lit=lambda m, n: (m, n) == (r, c) or m == r or n == c,
        )  # fmt: skip
        for place in (left.cell(r, 0), top.cell(0, c), tile.cell(r, c)):
            board.frame(place, "program")
        board.text(-1.95, -0.35, f"(offs_m * {width})[:, None]", mono=True, size=NOTE)
        board.text(columns * w / 2, -2.4, "offs_n[None, :]", mono=True, size=NOTE)
        board.text(-0.65, -1.5, "+", size=16)
        board.text(
            columns * w + 0.25, r + 0.5, f"{starts[r]} + {offsets[c]} = {starts[r] + offsets[c]}", ha="left", size=10
        )
        board.name("program", "the program's rows and columns")
        board.name("input", "places in memory")

    return drawing(
        6.4, 3.2, draw,
        alt=f"A column of {rows} row starts, {starts}, at the left, a row of {columns} offsets, {offsets}, on top. Between "
        f"them the table of their sums; the cell of {starts[r]} and {offsets[c]} is framed: {starts[r] + offsets[c]}.",
    )  # fmt: skip


def views(tensors: dict[str, torch.Tensor]):
    """Matrices that are views of one line of memory: each cell carries its element's place in the line."""
    base = next(iter(tensors.values()))
    line = base.untyped_storage().nbytes() // base.element_size()
    gap, places = 1.6, {}
    for name, view in tensors.items():
        m, n = torch.arange(view.shape[0])[:, None], torch.arange(view.shape[1])[None, :]
        places[name] = (view.storage_offset() + m * view.stride(0) + n * view.stride(1)).tolist()

    def draw(board):
        total = sum(view.shape[1] for view in tensors.values()) + gap * (len(tensors) - 1)
        x = max(0.0, (total - line) / 2)
        board.cells(x, 0, 1, line, "memory", label=lambda r, i: i, text_size=9)
        board.text(x - 0.3, 0.5, "memory", ha="right", size=NOTE)
        x = max(0.0, (line - total) / 2)
        for name, view in tensors.items():
            (M, N), rows = view.shape, places[name]
            board.text(x + N / 2, 2.2, name, mono=True, size=9)
            board.text(x + N / 2, 2.75, f"strides {tuple(view.stride())}", size=NOTE)
            cells = [place for row in rows for place in row]
            again = [["////" if rows[m][n] in cells[: m * N + n] else "" for n in range(N)] for m in range(M)]
            board.cells(x, 3.2, M, N, "input", label=rows, text_size=9, hatch=lambda m, n, again=again: again[m][n])
            x += N + gap
        board.name("input", "elements of a view (hatched: in a place that an earlier one has)")

    said = [f"A line of {line} memory cells, and below it {len(tensors)} matrices that number them"]
    for name, view in tensors.items():
        rows = "; ".join(", ".join(map(str, row)) for row in places[name])
        said.append(f"{name}, strides {tuple(view.stride())}, has the rows {rows}")
    return drawing(8, 3.0, draw, alt=". ".join(said) + ".")


def memory_line(traces: dict[str, Trace], tensor: str, *, lit: int = 0):
    """A flat tensor as the line that it is in memory, cut into sectors: which program touches which place.

    traces: launches on a grid of one axis, by what the text calls them; one line each. lit: the program that is followed.
    """
    rows = []
    for name, trace in traces.items():
        launch = trace.launches[0]
        (places,) = launch.operands[tensor].shape
        owner = [""] * places
        for program, elements in launch.programs(tensor).items():
            for i in elements:
                owner[i] = program[0]
        rows.append((name, owner, launch.sectors[tensor]))

    def draw(board):
        for k, (name, owner, sectors) in enumerate(rows):
            y = 4.2 * k
            board.text(0, y - 1.9, f"{name}: {sectors} sectors asked for", ha="left", size=9)
            line = board.cells(
                0, y, 1, len(owner), "input", label=[owner], lit=lambda r, i, owner=owner: owner[i] == lit
            )
            for first in range(0, len(owner), SECTOR):
                board.brace(first + 0.1, first + SECTOR - 0.1, y - 0.3, f"sector {first // SECTOR}", size=7)
                board.frame(line.span(range(1), range(first, first + SECTOR)), "memory", width=1.6)

    said = []
    for name, owner, sectors in rows:
        cells = [i for i, program in enumerate(owner) if program == lit]
        said.append(
            f"{name}, where program {lit} touches places {', '.join(map(str, cells))}: {sectors} sectors in all"
        )
    alt = (
        f"{len(rows)} lines of {len(rows[0][1])} places in sectors of {SECTOR}, each place with its program's number. "
    )
    return drawing(8, 0.2 + 0.95 * len(rows), draw, alt=alt + ". ".join(said) + ".", key=False)


def tile_sectors(shapes: Sequence[tuple[int, int]], *, n: int = 32, lanes: int = SECTOR):
    """What one program's tile fetches of an n × n matrix x that is a transposed view, and of out, which is not.

    shapes: the tiles (rows, columns), one panel each. lanes: elements in a sector.
    """

    def fetched(shape, down):
        (h, w), (M, N) = (lanes, 1) if down else (1, lanes), shape
        top, left = (0 if size == n else lanes + lanes // 2 if size < lanes else lanes for size in (M, N))
        first_m, last_m = top // h, (top + M - 1) // h
        first_n, last_n = left // w, (left + N - 1) // w
        return (
            (top, left),
            (h, w),
            [(m * h, k * w) for m in range(first_m, last_m + 1) for k in range(first_n, last_n + 1)],
        )

    def draw(board, i):
        board.name("input", "read and used")
        board.name("memory", "fetched, not used", hatch="/////")
        board.name("output", "written")
        M, N = shapes[i]
        matrices = (0, "x, stored by columns", "input", True), (n + 9, "out, stored by rows", "output", False)
        for y, name, role, down in matrices:
            (top, left), (h, w), sectors = fetched((M, N), down)
            board.box(0, y, n, n, width=1.0)
            for m, k in sectors:
                board.box(k, y + m, w, h, "memory", hatch="/////", width=0.3, edge="#6B7F8F")
            board.box(left, y + top, N, M, role, width=1.4)
            for m, k in sectors:  # where one sector ends and the next begins, inside the tile too
                low, right = max(m, top), max(k, left)
                board.box(right, y + low, min(k + w, left + N) - right, min(m + h, top + M) - low, role, width=0.5)
            used = M * N // len(sectors)
            board.text(n / 2, y - 1.6, name, size=NOTE)
            board.text(n / 2, y + n + 1.9, f"{len(sectors)} sectors, {used} of {lanes} used", size=NOTE)

    said = []
    for shape in shapes:
        x, out = (len(fetched(shape, down)[2]) for down in (True, False))
        said.append(f"A tile of {shape[0]} × {shape[1]} fetches {x} sectors of x and {out} of out")
    alt = f"Two {n} × {n} matrices for each of {len(shapes)} tiles; a tile is filled, what is fetched with it is hatched. "
    return filmstrip(8, 6.0, draw, [f"tile {M} × {N}" for M, N in shapes], alt=alt + ". ".join(said) + ".")


def _number(value) -> str:
    return f"{value:g}".replace("-", "−")


def padding(values: Sequence[float], BLOCK: int):
    """A row in a longer block: loaded with zeros behind it, its mean subtracted, squared. The padding wakes up."""
    N = len(values)
    mean = sum(values) / N
    loaded = [*values, *[0] * (BLOCK - N)]
    centred = [value - mean for value in loaded]
    frames = [loaded, centred, [value * value for value in centred]]
    sums = [sum(frame[:N]) for frame in frames]

    def draw(board, i):
        board.name("input", "the row")
        board.name("memory", "padding", hatch="////")
        board.cells(
            0, 0, 1, BLOCK, "input", size=(1.4, 1), label=[[_number(value) for value in frames[i]]], text_size=11,
            role_of=lambda r, c: "input" if c < N else "memory", hatch=lambda r, c: "" if c < N else "////",
        )  # fmt: skip
        board.brace(N * 1.4 + 0.1, BLOCK * 1.4 - 0.1, -0.3, "padding")
        whole, right = sum(frames[i]), sums[i]
        said = f"sum {_number(whole)}" if whole == right else f"sum {_number(whole)}, of the row {_number(right)}"
        board.text(BLOCK * 0.7, 1.6, said, size=10, colour=INK if whole == right else ink("wrong"))

    steps = ", then ".join(", ".join(_number(value) for value in frame) for frame in frames)
    return filmstrip(
        8, 1.7, draw, ["load, other = 0", f"subtract the mean, {_number(mean)}", "square"],
        alt=f"A block of {BLOCK} lanes, the last {BLOCK - N} of it padding, in three frames: {steps}.",
    )  # fmt: skip


def walk(row: Sequence[float], BLOCK: int):
    """A row longer than a block, walked in steps: each lane of the accumulator adds up its own column of the walk."""
    starts = list(range(0, len(row), BLOCK))
    lanes, frames = [0] * BLOCK, []
    for start in starts:
        part = [*row[start : start + BLOCK], *[0] * BLOCK][:BLOCK]
        lanes = [total + value for total, value in zip(lanes, part)]
        frames.append((start, lanes))

    def draw(board, i):
        last = i == len(frames)
        board.name("accumulator", "accumulator")
        if not last:
            board.name("input", "this step's numbers")
        start, lanes = frames[min(i, len(frames) - 1)]
        board.cells(0, 0, 1, len(row), "input", label=[[_number(v) for v in row]],
                    lit=lambda r, c: not last and start <= c < start + BLOCK)  # fmt: skip
        left = (len(row) - BLOCK * 1.4) / 2
        at = board.cells(
            left, 2.6, 1, BLOCK, "accumulator", size=(1.4, 1), label=[[_number(v) for v in lanes]], text_size=10
        )
        if last:
            board.arrow(at.side("bottom"), (at.middle[0], 4.5), "accumulator")
            board.text(at.middle[0], 4.95, f"tl.sum: {_number(sum(lanes))}", size=9)
        else:
            board.text(at.middle[0], 4.95, " ", size=9)
            for lane in range(BLOCK):
                if start + lane < len(row):
                    board.arrow((start + lane + 0.5, 1.05), at.cell(0, lane).side("top"), "accumulator", width=1.0)

    titles = [f"start = {start}" for start in starts] + ["after the walk"]
    steps = "; ".join(f"after start {start} the lanes hold {lanes}" for start, lanes in frames)
    alt = f"A row of {len(row)} numbers over an accumulator of {BLOCK} lanes: {steps}; their sum is {_number(sum(lanes))}."
    return filmstrip(8, 2.1, draw, titles, alt=alt)


def stripes(M: int, N: int, ROWS: int, BLOCK: int):
    """Columns that are summed in stripes of rows: a program and a row of sums for each stripe, and then their sum.

    M, N: rows and columns of what is summed. ROWS: of a stripe; the last may have fewer. BLOCK: columns of a program.
    """
    count, blocks = -(-M // ROWS), -(-N // BLOCK)
    gap = 3.2

    def draw(board):
        rows = board.cells(0, 0, M, N, "input")
        partial = board.cells(N + gap, (M - count) / 2, count, N, "accumulator")
        board.cells(2 * (N + gap), (M - 1) / 2, 1, N, "output")
        for s in range(count):
            for b in range(blocks):
                low, high = s * ROWS, min((s + 1) * ROWS, M)
                columns = range(b * BLOCK, min((b + 1) * BLOCK, N))
                board.frame(rows.span(range(low, high), columns), "program", width=2.0)
                board.frame(partial.span(range(s, s + 1), columns), "program", width=2.0)
                middle = rows.span(range(low, high), columns).middle
                board.text(*middle, f"{s}, {b}", size=NOTE)
            start = (N + 0.15, (s * ROWS + min((s + 1) * ROWS, M)) / 2)
            board.arrow(start, (N + gap - 0.15, (M - count) / 2 + s + 0.5), "accumulator")
        board.arrow((2 * N + gap + 0.15, M / 2), (2 * (N + gap) - 0.15, M / 2), "output")
        board.text(N / 2, -0.6, f"{M} rows, in {count} stripes", size=NOTE)
        board.text(N + gap + N / 2, -0.6, "a row of sums for each stripe", size=NOTE)
        board.text(2 * (N + gap) + N / 2, -0.6, "their sum: a second pass", size=NOTE)
        board.name("input", "products")
        board.name("program", "one program's part, by stripe and block of columns")

    alt = (
        f"At the left {M} rows of {N} columns, framed in {count} stripes of {ROWS} rows times {blocks} blocks of {BLOCK} "
        f"columns, one program each. Arrows lead from each stripe to its row of a {count} by {N} matrix of partial sums, and "
        "from there to one row."
    )
    return drawing(8, 2.6, draw, alt=alt)
