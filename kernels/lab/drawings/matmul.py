"""Lesson 05's drawings: a product and its tiles, the order of programs, and loads under products."""

from kernels.lab.drawings.language import NOTE, OUTLINE, Board, Place, drawing, filmstrip, ink


def matmul_tile(program: tuple[int, int] = (1, 2), tile=(16, 16, 16), shape=(48, 48, 64), element=(21, 38)):
    """a to the left of out, b above it: what one element needs, what ``program``'s tile needs, and the first steps.

    tile: BLOCK_M, BLOCK_N, BLOCK_K. shape: M, N, K, multiples of the tile's. element: of out, inside the tile.
    """
    (M, N, K), (BM, BN, BK), (pm, pn) = shape, tile, program
    unit = 1 / 16  # inches' worth of an element
    rows = _span(pm * BM, BM)
    columns = _span(pn * BN, BN)
    gap = 0.7
    a, b, out = (
        Place(0, K * unit + gap, K * unit, M * unit),
        Place(K * unit + gap, 0, N * unit, K * unit),
        Place(K * unit + gap, K * unit + gap, N * unit, M * unit),
    )

    def part(of: Place, row: int, height: int, column: int, width: int) -> Place:
        return Place(of.x + column * unit, of.y + row * unit, width * unit, height * unit)

    def draw(board: Board, frame: int):
        last = {"output": "out"} if frame < 2 else {"accumulator": "accumulator of out's tile"}
        _names(board, input="a", weight="b", **last)
        for place, name, size in ((a, "a", f"{M} × {K}"), (b, "b", f"{K} × {N}"), (out, "out", f"{M} × {N}")):
            board.box(place.x, place.y, place.w, place.h, edge=OUTLINE)
            below = place is not b
            at = (place.x + place.w / 2, place.y + place.h + 0.28) if below else (place.x - 0.15, place.h - 0.2)
            board.text(*at, f"{name}  {size}", size=NOTE, ha="center" if below else "right")
        first, deep = (element, (1, 1)) if frame == 0 else ((pm * BM, pn * BN), (BM, BN))
        band_a, band_b = part(a, first[0], deep[0], 0, K), part(b, 0, K, first[1], deep[1])
        target = part(out, first[0], deep[0], first[1], deep[1])
        if frame < 2:
            _fill(board, band_a, "input")
            _fill(board, band_b, "weight")
            _fill(board, target, "output")
        else:
            step = frame - 2
            for place, role in ((band_a, "input"), (band_b, "weight")):
                board.frame(place, role, width=1.0, dashed=True)
            _fill(board, part(a, first[0], BM, step * BK, BK), "input")
            _fill(board, part(b, step * BK, BK, first[1], BN), "weight")
            _fill(board, target, "accumulator", "acc")
            steps = _span(step * BK, BK)
            board.text(a.x + (step + 0.5) * BK * unit, a.y - 0.25, f"k {steps}", size=NOTE, colour=ink("input"))
            board.text(b.x - 0.15, (step + 0.5) * BK * unit, f"k {steps}", size=NOTE, ha="right", colour=ink("weight"))
        if frame == 0:
            board.text(a.x - 0.12, band_a.y, f"m = {element[0]}", size=NOTE, ha="right", colour=ink("input"))
            board.text(band_b.x, -0.22, f"n = {element[1]}", size=NOTE, colour=ink("weight"))
            board.frame(target, "program", width=1.6, pad=0.06)
        else:
            board.text(a.x - 0.12, band_a.middle[1], f"m {rows}", size=NOTE, ha="right", colour=ink("input"))
            board.text(band_b.middle[0], -0.22, f"n {columns}", size=NOTE, colour=ink("weight"))
            board.frame(target, "program", width=2.2)

    titles = [
        f"one element, out[{element[0]}, {element[1]}]",
        f"one tile, program ({pm}, {pn})",
        "its step 0",
        "its step 1",
    ]
    alt = (
        f"Four frames of the same drawing: a, {M} by {K}, at the left; b, {K} by {N}, above; out, {M} by {N}, where they "
        f"meet. First a thin row of a and a thin column of b, which cross at one element of out. Then a band of {BM} rows "
        f"of a and of {BN} columns of b, which cross in a square tile of out. Then the first {BK} columns of the band of a "
        f"and the first {BK} rows of the band of b, the tile now an accumulator; then the second {BK} of each."
    )
    return filmstrip(7.2, 6.2, draw, titles, alt=alt, columns=2)


def _names(board: Board, **words: str) -> None:
    for role, word in words.items():
        board.name(role, word)


def _span(first: int, length: int) -> str:
    return f"{first}–{first + length - 1}"


def _fill(board: Board, place: Place, role: str, text: str = "") -> None:
    board.box(place.x, place.y, place.w, place.h, role, text, size=NOTE)


def place_of(pid: int, grid_m: int, grid_n: int, GROUP_M: int) -> tuple[int, int]:
    """The tile of program ``pid``: down GROUP_M rows of tiles, then on to the next column of tiles."""
    programs = GROUP_M * grid_n
    first_m = pid // programs * GROUP_M
    rows = min(grid_m - first_m, GROUP_M)
    return first_m + pid % programs % rows, pid % programs // rows


def tile_order(grid=(8, 16), groups=(1, 4), wave: int = 16):
    """out's tiles with the first ``wave`` programs shaded, and the bands of a and b that they need, a panel a GROUP_M."""
    grid_m, grid_n = grid
    first = {G: [place_of(pid, grid_m, grid_n, G) for pid in range(wave)] for G in groups}
    bands = {G: (len({m for m, _ in tiles}), len({n for _, n in tiles})) for G, tiles in first.items()}

    def draw(board: Board, frame: int):
        _names(board, program="tiles of the first wave", input="bands of a", weight="bands of b")
        tiles = first[groups[frame]]
        number = {tile: pid for pid, tile in enumerate(tiles)}
        used_m, used_n = ({tile[axis] for tile in tiles} for axis in (0, 1))
        board.cells(
            0, 0, grid_m, grid_n, "program", lit=lambda m, n: (m, n) in number,
            label=lambda m, n: number.get((m, n), ""), text_size=7,
        )  # fmt: skip
        board.cells(-1.6, 0, grid_m, 1, "input", lit=lambda m, _: m in used_m)
        board.cells(0, -1.6, 1, grid_n, "weight", lit=lambda _, n: n in used_n)
        board.text(-1.1, grid_m + 0.45, "bands of a", size=NOTE)
        board.text(grid_n / 2, -2.2, "bands of b", size=NOTE)
        board.text(grid_n / 2, grid_m + 0.45, "tiles of out", size=NOTE)

    titles = [f"GROUP_M = {G}: {bands[G][0]} of a + {bands[G][1]} of b = {sum(bands[G])} bands" for G in groups]
    told = "; ".join(
        f"with GROUP_M = {G} they cover {bands[G][0]} rows and {bands[G][1]} columns of tiles" for G in groups
    )
    alt = (
        f"{len(groups)} panels, each {grid_m} by {grid_n} tiles of out, with a strip of a's bands at the left and one of "
        f"b's bands above. The {wave} programs of the first wave are shaded and numbered: {told}. The bands that they need "
        "are shaded in the strips."
    )
    return filmstrip(8.0, 2.9, draw, titles, alt=alt)


def pipelined(stages=(1, 3), steps: int = 6, load: int = 4, product: int = 2):
    """Time lines of a loop: a row a buffer in shared memory, a load and a product for each step, a panel a num_stages."""

    def draw(board: Board):
        y, tall = 0.0, 1.7
        for count in stages:
            free, busy = [0] * count, 0  # when each buffer, and when the tensor cores, are free again
            board.text(-0.4, y + count * tall / 2, f"num_stages = {count}", size=NOTE, ha="right")
            for step in range(steps):
                row, start = y + step % count * tall, free[step % count]
                begin = max(start + load, busy)
                board.box(start, row, load, tall - 0.2, "input", f"load {step}", size=NOTE)
                board.box(begin, row, product, tall - 0.2, "accumulator", f"× {step}", size=NOTE)
                if begin > start + load:
                    board.box(start + load, row, begin - start - load, tall - 0.2, "memory", "ready", size=7)
                free[step % count] = busy = begin + product
            taken = f"{steps} steps take {busy} ticks (a load {load}, a product {product})"
            board.brace(0, busy, y + count * tall + 0.1, taken, depth=-0.3, role="time")
            y += count * tall + 2.4
        board.arrow((0, y - 0.9), (steps * (load + product), y - 0.9), "time", "time", shift=(0.0, -0.45))

    alt = (
        f"Time lines of {steps} steps, a row for each buffer in shared memory. "
        f"With {stages[0]} buffer a load of length {load} and a product of length {product} take turns {steps} times. "
        f"With {stages[-1]} buffers the loads of several steps are under way at once, while products of earlier steps run; "
        "products follow each other without a gap, and the whole is much shorter."
    )
    return drawing(8.0, 3.0, draw, alt=alt, key=False)
