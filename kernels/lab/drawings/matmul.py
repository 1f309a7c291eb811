"""Lesson 03's drawings: a product and its tiles, the order of programs, loads under products, and what was measured."""

from kernels.lab import style
from kernels.lab.drawings.language import NOTE, OUTLINE, Board, Place, drawing, filmstrip, ink
from kernels.lab.roofline import recorded


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


def matmul_sweeps(lesson: str = "03"):
    """What the lesson's three knobs do on the recorded GPU: the tile over its box, the order, the steps under way."""
    record = recorded(f"ladder_{lesson}")
    found = {sweep["name"]: {row["value"]: row["ms"] for row in sweep["rows"]} for sweep in record["sweeps"]}
    figure, axes = style.picture(8.0, 3.0, 1, 3)
    figure.alt = " ".join(
        draw(ax, record, found)
        for draw, ax in zip((_tile_over_its_box, _orders_side_by_side, _steps_under_way), axes[0], strict=True)
    )
    for ax in axes[0]:
        ax.title.set_size(style.TEXT_SIZE)
        ax.tick_params(labelsize=7)
    return figure


def _tile_over_its_box(ax, record, found) -> str:
    M, N, K = (record["shape"][axis] for axis in "MNK")
    tiles = {tuple(map(int, value.split("x"))): ms for value, ms in found["tile"].items()}
    asked = {(m, n): 2 * M * N * K * (1 / m + 1 / n) / 1e9 for m, n in tiles}
    most = max(tiles, key=asked.get)
    ax.plot([0, asked[most]], [0, tiles[most]], "--", color=style.INKS[1])
    ax.plot(list(asked.values()), list(tiles.values()), "o", color=style.INKS[0], markersize=5)
    places = {(256, 128): ((-2, 7), "center"), (128, 256): ((3, -12), "left"), (128, 128): ((8, -7), "left")}
    for (m, n), ms in tiles.items():
        shift, ha = ((-7, 0), "right") if (m, n) == most else places.get((m, n), ((7, -6), "left"))
        ax.annotate(f"{m}×{n}", (asked[m, n], ms), shift, textcoords="offset points", ha=ha, fontsize=7)
    named = "the box, scaled\nto the slowest"
    ax.annotate(named, (asked[most] * 0.6, tiles[most] * 0.73), color=style.INKS[1], ha="right", fontsize=NOTE)
    ax.set(xlabel="GB requested, by the box", ylabel="ms", title="the tile (3 buffers)")
    ax.set(xlim=(0, None), ylim=(0, 1.1 * tiles[most]))
    points = ", ".join(f"{m} by {n} {ms:.2g} ms" for (m, n), ms in tiles.items())
    return f"Left, time against requested bytes, a point for each tile, close to a line through the origin: {points}."


def _orders_side_by_side(ax, record, found) -> str:
    told = []
    for i, (name, columns) in enumerate((("GROUP_M", record["shape"]["N"]), ("GROUP_M wide", 65_536))):
        best = min(found[name].values())
        times = [ms / best for ms in found[name].values()]
        ax.plot(range(len(times)), times, color=style.INKS[i], marker=style.MARKERS[i], markersize=5)
        note = {"textcoords": "offset points", "color": style.INKS[i], "fontsize": NOTE}
        ax.annotate(f"N = {columns:,}", (0, times[0]), (8, -3) if i else (2, -14), **note)
        told.append(f"{times[0]:.2f} at GROUP_M 1 for N = {columns:,}")
    ax.set_xticks(range(len(found["GROUP_M"])), [str(value) for value in found["GROUP_M"]])
    ax.set(xlabel="GROUP_M", ylabel="time, where the best is 1", title="the order (128×256, 4 buffers)", ylim=(0.9, 1.25))
    return f"Middle, time against GROUP_M, relative to the best: {' and '.join(told)}; all others are near 1."


def _steps_under_way(ax, record, found) -> str:
    times = found["num_stages"]
    ax.plot(list(times), list(times.values()), color=style.INKS[0], marker="o", markersize=5)
    top = 1.25 * max(times.values())
    for x, text in ((2.25, "two programs fit"), (4.4, "one fits")):
        ax.text(x, 0.95 * top, text, ha="center", va="top", fontsize=NOTE)
    ax.axvline(3.5, color=style.GRID, linestyle="--", linewidth=1)
    ax.set(xlabel="num_stages", ylabel="ms", title="the buffers (128×128)", ylim=(0, top), xlim=(0.6, 5.4))
    ax.set_xticks(list(times))
    return f"Right, time against num_stages: {', '.join(f'{count}: {ms:.2g} ms' for count, ms in times.items())}."


def matmul_sizes(seconds: dict[str, dict[int, float]]):
    """How fast square products are, size by size: a line for each way to compute them, in TFLOP/s.

    seconds: name of a way -> {n: seconds that the product of two n x n matrices took}.

    Raises ``ValueError`` if there is nothing to draw.
    """
    if not any(seconds.values()):
        raise ValueError(f"seconds holds no times: {seconds!r}")
    figure, axes = style.picture(6.8, 3.4)
    ax = axes[0, 0]
    told, ends = [], []
    for i, (name, times) in enumerate(seconds.items()):
        rates = {n: 2 * n**3 / s / 1e12 for n, s in sorted(times.items())}
        ax.plot(list(rates), list(rates.values()), color=style.INKS[i], marker=style.MARKERS[i], markersize=5)
        ends.append((rates[max(rates)], name, style.INKS[i]))
        told.append(f"{name} {', '.join(f'{rate:.3g} at {n:,}' for n, rate in rates.items())}")
    sizes = sorted({n for times in seconds.values() for n in times})
    ax.set(xscale="log", yscale="log", xlabel="n, for n × n matrices", ylabel="TFLOP/s (log scale)")
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    ax.set_xlim(sizes[0] / 1.2, sizes[-1] * 2.2)
    ax.set_ylim(top=2 * ax.get_ylim()[1])  # room for names above one another
    figure.draw_without_rendering()  # lays the axes out, so that the next lines know where a rate is
    lowest = 0.0  # in points above the figure's edge: where the next name may stand without touching the one below
    for rate, name, colour in sorted(ends):
        height = ax.transData.transform((sizes[-1], rate))[1] * 72 / figure.dpi
        shift = max(height, lowest) - height
        lowest = height + shift + 13
        ax.annotate(name, (sizes[-1], rate), (9, shift), textcoords="offset points", va="center", color=colour)
    figure.alt = f"TFLOP/s over the size of a product, both logarithmic: {'; '.join(told)}."
    return figure
