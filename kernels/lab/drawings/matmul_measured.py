"""What was measured of lessons 05 and 06: the climb under the roofs, three knobs, and sizes on the reader's own GPU."""

import numpy as np

from kernels.lab import measured, style
from kernels.lab.drawings.language import NOTE
from kernels.lab.machine_record import SECTOR
from kernels.lab.roofline import recorded

#: The tile of each rung that has one; "naive" computes one element, and its columns of b cost a sector a number.
TILES = {name: (64, 64) for name in ("tiles", "tensor cores", "order", "buffers")}
TILES |= {"128 × 128": (128, 128), "128 × 256": (128, 256), "four buffers": (128, 256)}
#: The ends of a roofline's axes, by lesson: operations per byte, TFLOP/s; and where the ridge's name stands.
ENDS = {"05": ((0.03, 600.0), (0.1, 2500.0), 0.2), "06": ((8.0, 400.0), (25.0, 2000.0), 30.0)}


def matmul_sweeps(lesson: str = "06"):
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
    ax.set(
        xlabel="GROUP_M", ylabel="time, where the best is 1", title="the order (128×256, 4 buffers)", ylim=(0.9, 1.25)
    )
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


def matmul_roofline(lesson: str = "06", *, predicted=None):
    """The ladder's rungs below min(top, bandwidth * operations per byte), with the recorded ceilings of lesson 03's machine.

    A rung's bytes are those that its programs ask for, in whole sectors. The top is that of the tensor cores, in lesson 05
    that of ordinary multiply-adds.

    predicted: what ``predict`` returned, by the rung's label: a hollow mark each.
    """
    record = recorded(f"ladder_{lesson}")
    M, N, K = (record["shape"][axis] for axis in "MNK")
    asked = {name: 2 * M * N * K * (1 / m + 1 / n) for name, (m, n) in TILES.items()}
    asked["naive"] = M * N * (2 * K + SECTOR * K)  # a row of a, and a sector for each number of a column of b
    rungs = {row["rung"]: row["ms"] for row in record["rungs"] if row["rung"] in asked}
    points = {name: (record["flops"] / asked[name], record["flops"] / ms / 1e9) for name, ms in rungs.items()}
    hollow = {
        name: (points[name][0], record["flops"] / made.seconds / 1e12) for name, made in (predicted or {}).items()
    }

    known = measured.numbers()
    beta, tensor, ordinary = known["l2_tb_per_s"], known["tensor_tflop_per_s"], known["ordinary_tflop_per_s"]
    top, other = (ordinary, tensor) if lesson == "05" else (tensor, ordinary)
    figure, axes = style.picture(7.2, 4.4)
    ax = axes[0, 0]
    (low, high), levels, ridge_at = ENDS[lesson]
    note = {"textcoords": "offset points", "fontsize": NOTE}
    ax.plot([low, top / beta, high], [beta * low, top, top], color="black", linewidth=1.4)
    ax.fill_between(
        [low, top / beta, high], [beta * low, top, top], levels[1], color=style.GRID, alpha=0.3, linewidth=0
    )
    ax.plot([other / beta, high], [other] * 2, "--", color="black", linewidth=1.2)
    ax.plot([top / beta] * 2, [levels[0], top], ":", color=style.INKS[1], linewidth=1.4)
    over = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}  # a name covers the ridge
    ax.annotate(f"tensor cores: {tensor:.0f} TFLOP/s", (high, tensor), (-3, 4), ha="right", **note)
    below = f"ordinary\nmultiply-adds:\n{ordinary:.0f} TFLOP/s"
    ax.annotate(below, (high, ordinary), (-3, -4), ha="right", va="top", **note)
    ridge = f"the ridge:\n{top / beta:.0f} operations\nper byte"
    ax.annotate(ridge, (top / beta, ridge_at), (4, 0), color=style.INKS[1], **note)
    slope_at = 0.2 if lesson == "05" else 16
    rising = {"ha": "center", "rotation": _slope(ax, (low, high), levels), "rotation_mode": "anchor"}
    ax.annotate(f"L2 delivers {beta:.2g} TB/s", (slope_at, beta * slope_at), (-2, 4), **rising, **note)
    climb = _bends(list(points.values()))
    for first, second in zip(climb, climb[1:]):
        ax.annotate("", second, first, arrowprops={"arrowstyle": "->", "color": style.INKS[0]})
    ax.plot(*zip(*points.values(), strict=True), "o", color=style.INKS[0], markersize=5)
    if hollow:
        ax.plot(*zip(*hollow.values(), strict=True), "o", markerfacecolor="none", color="black", markersize=9)
    left = {name: ((-9, 4), "right") for name in ("buffers", "128 × 128", "four buffers")}
    places = left | {"order": ((-9, -1), "right")}
    for i, (name, at) in enumerate(points.items(), start=1):
        shift, ha = places.get(name, ((9, -5), "left"))
        ax.annotate(f"{i} {name}", at, shift, ha=ha, color=style.INKS[0], **note, **({} if name in places else over))
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=levels)
    ax.set(xlabel="operations for each byte asked for, in whole sectors", ylabel="TFLOP/s")
    told = ", ".join(f"{name} {speed:.3g} TFLOP/s at {x:.2g}" for name, (x, speed) in points.items())
    whose = "ordinary multiply-adds" if lesson == "05" else "the tensor cores"
    figure.alt = (
        f"Speed over operations for each byte asked for, in whole sectors, both logarithmic. A slope, what L2 delivers, "
        f"rises to the flat top of {whose} at {top:.0f} TFLOP/s, which it meets at {top / beta:.0f} operations per byte; "
        f"a dashed line at {other:.0f} is the other unit's top. The rungs: {told}."
    )
    if hollow:
        figure.alt += (
            " Hollow marks are predicted: " + ", ".join(f"{name} {y:.3g}" for name, (_, y) in hollow.items()) + "."
        )
    return figure


def _bends(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points between which an arrow has room: without those on a short way straight up."""
    inner = zip(points, points[1:], points[2:])
    return [points[0], *(b for a, b, c in inner if a[0] != c[0] or c[1] > 2 * a[1]), points[-1]]


def _slope(ax, ends, levels) -> float:
    """The angle, in degrees, at which a rate's line rises on these two logarithmic axes."""
    width, height = ax.figure.get_size_inches() * (0.88, 0.86)  # inside the axes' labels
    across, up = np.log10(ends[1] / ends[0]), np.log10(levels[1] / levels[0])
    return float(np.degrees(np.arctan2(height / up, width / across)))


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
