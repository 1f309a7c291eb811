"""Lesson 02's measured curves, each drawn over what arithmetic predicts: points are recorded, dashed lines predicted.

Everything here reads the record of ``python -m benchmarks.machine``, so it is the same on every computer.
"""

import math

from matplotlib.gridspec import GridSpec

from kernels.lab import style
from kernels.lab.drawings.language import Board
from kernels.lab.drawings.machine import PIPE, draw_hiding, draw_load, draw_pipe
from kernels.lab.roofline import recorded

KB, MB, GB = 2**10, 2**20, 2**30


def rows(measurement: str, results="machine", **wanted) -> list[dict]:
    """The recorded rows of one measurement whose fields have the values in ``wanted``."""
    return _rows(recorded(results), measurement, **wanted)


def _rows(record, measurement, **wanted):
    found = [row for row in record["rows"] if row["measurement"] == measurement and "error" not in row]
    return [row for row in found if all(row[name] == value for name, value in wanted.items())]


def numbers(results="machine") -> dict:
    """The machine in a few numbers.

    ``multiprocessors``; ``dram_ns``, ``l2_ns`` and ``l1_ns``, the latencies of a walk among 1 GB, 8 MB and 64 kB;
    ``dram_tb_per_s``, the rate of a large copy; ``l2_tb_per_s``; ``tensor_tflop_per_s``, in bfloat16 on tiles that stay;
    ``matmul_tflop_per_s``, of a product of 8192³ from DRAM; ``ghz``, the clock.
    """
    return _numbers(recorded(results))


def _numbers(record):
    latency = {row["bytes"]: row["ns"] for row in _rows(record, "latency")}
    l2 = [row["tb_per_s"] for row in _l2_sets(record) if row["bytes"] < 20 * MB]
    cores = _rows(record, "tensor_cores", dtype="bfloat16")
    return {
        "multiprocessors": record["device"]["multiprocessors"],
        "dram_ns": round(latency[GB]),
        "l2_ns": round(latency[8 * MB]),
        "l1_ns": round(latency[64 * KB]),
        "dram_tb_per_s": round(record["machine"]["copy_tb_per_s"], 2),
        "l2_tb_per_s": round(max(l2), 1),
        "tensor_tflop_per_s": 10 * round(max(row["tflop_per_s"] for row in cores) / 10),
        "matmul_tflop_per_s": round(record["machine"]["matmul_tflop_per_s"]),
        "ghz": round(_rows(record, "clock")[0]["mhz"] / 1000, 2),
    }


def _l2_sets(record):
    """The sets that are read round and round; where a program has a single block, it stays in registers and says "
    "nothing."""
    found = _rows(record, "working_set", caches="L2")
    return [row for row in found if row["bytes"] > found[0]["bytes"]]


def places(record) -> dict:
    """What ``drawings.machine`` writes at its places, as lines of text: size, latency, rate."""
    device, known = record["device"], _numbers(record)
    return {
        "multiprocessors": device["multiprocessors"],
        "DRAM": (
            f"{device['dram_bytes'] / GB:.0f} GB",
            f"{known['dram_ns']} ns away",
            f"{known['dram_tb_per_s']:.1f} TB/s",
        ),
        "L2": (f"{device['l2_bytes'] / MB:.0f} MB", f"{known['l2_ns']} ns away", f"{known['l2_tb_per_s']:.1f} TB/s"),
        "shared memory": ("256 kB", f"{known['l1_ns']} ns away"),
        "registers": (f"{device['registers_a_multiprocessor'] * 4 // KB} kB", "no wait"),
        "tensor cores": (f"{known['tensor_tflop_per_s']} TFLOP/s", "all of them"),
    }


def _sizes(ax, values, axis="x"):
    """Ticks at these numbers of bytes, as kB, MB and GB."""
    name = lambda n: next(
        f"{n // unit} {text}" for unit, text in ((GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B")) if n >= unit
    )  # noqa: E731
    (ax.set_xticks if axis == "x" else ax.set_yticks)(values, [name(n) for n in values])
    ax.minorticks_off()


def _predicted(ax, x, y, text, at, *, offset=(4, -10), ha="left"):
    """A dashed line with its name beside it."""
    ax.plot(x, y, color="black", linewidth=1.2, linestyle="--", zorder=2)
    ax.annotate(text, at, offset, textcoords="offset points", fontsize=style.NOTE_SIZE, ha=ha)


def latency(results="machine"):
    """Latency, and bandwidth, against the bytes among which a walk goes, or that are read again and again."""
    record = recorded(results)
    found, sets, known = _rows(record, "latency"), _l2_sets(record), _numbers(record)
    figure, axes = style.picture(7.6, 3.3, 1, 2)
    left, right = axes[0]
    x, y = [row["bytes"] for row in found], [row["ns"] for row in found]
    left.plot(x, y, color=style.INKS[0], linewidth=1)
    style.points(left, x, y, 0, "recorded", solid=True)
    for name, size, text in (("l1_ns", 32 * KB, "L1"), ("l2_ns", 4 * MB, "L2"), ("dram_ns", 256 * MB, "DRAM")):
        left.annotate(f"{text}: {known[name]} ns", (size, known[name]), (0, 9), textcoords="offset points",
                      fontsize=style.TEXT_SIZE, ha="center")  # fmt: skip
    left.set_ylabel("ns from load to load")
    left.set_ylim(10, 700)
    rate = record["machine"]["copy_tb_per_s"]
    x, y = [row["bytes"] for row in sets], [row["tb_per_s"] for row in sets]
    right.plot(x, y, color=style.INKS[1], linewidth=1)
    style.points(right, x, y, 1, "recorded", solid=True)
    right.set_ylabel("TB/s, all multiprocessors together")
    right.set_ylim(0, 1.25 * max(y))
    right.annotate(
        "L2", (16 * MB, known["l2_tb_per_s"]), (0, 9), textcoords="offset points", fontsize=style.TEXT_SIZE, ha="center"
    )
    right.annotate("DRAM", (256 * MB, rate), (0, 9), textcoords="offset points", fontsize=style.TEXT_SIZE, ha="center")
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xlabel("bytes that are used in turn")
        ax.axvline(record["device"]["l2_bytes"], color="black", linewidth=0.8, linestyle=":")
        ax.grid(color=style.GRID, linewidth=0.4, alpha=0.6)
    left.axvline(256 * KB, color="black", linewidth=0.8, linestyle=":")
    left.set_yscale("log")
    left.set_yticks([10, 20, 50, 100, 200, 500], ["10", "20", "50", "100", "200", "500"])
    _sizes(left, [4 * KB, 64 * KB, MB, 16 * MB, 256 * MB])
    _sizes(right, [8 * MB, 32 * MB, 128 * MB, 512 * MB])
    figure.alt = (
        f"Left, latency over the size of the set, a staircase: {known['l1_ns']} ns up to about 200 kB, {known['l2_ns']} "
        "ns up "
        f"to some 25 MB, then in steps to about {known['dram_ns']} ns. Right, bandwidth: about {known['l2_tb_per_s']} "
        "TB/s as "
        f"long as the set fits into L2, {rate:.1f} TB/s beyond."
    )
    return figure


def _panels(width, height, rows, heights, columns=1):
    """A figure whose upper ``rows`` - 1 rows hold ``columns`` boards each, and whose last row is one pair of axes."""
    figure, axes = style.picture(width, height)
    axes[0, 0].remove()
    grid = GridSpec(rows, columns, figure=figure, height_ratios=heights)
    boards = [Board(figure.add_subplot(grid[r, c])) for r in range(rows - 1) for c in range(columns)]
    ax = figure.add_subplot(grid[rows - 1, :])
    _dress(ax)
    return figure, boards, ax


def _dress(ax):
    ax.tick_params(labelsize=style.NOTE_SIZE)
    ax.xaxis.label.set_size(style.TEXT_SIZE)
    ax.yaxis.label.set_size(style.TEXT_SIZE)
    ax.grid(color=style.GRID, linewidth=0.4, alpha=0.6)


def bytes_in_flight(results="machine"):
    """Little's law as a pipe, and under it bandwidth against bytes in flight, over min(bytes / latency, copy rate)."""
    record = recorded(results)
    known = _numbers(record)
    rate = lambda n: min(n / known["dram_ns"] / 1e3, known["dram_tb_per_s"])  # noqa: E731
    needed = known["dram_ns"] * known["dram_tb_per_s"] * 1e3
    figure, boards, ax = _panels(7.6, 5.0, 2, (1, 2.3), columns=4)
    for frame, (board, title) in enumerate(zip(boards, PIPE, strict=True)):
        draw_pipe(board, frame)
        board.title(title)
    for i, size in enumerate((128, 512, 1024, 2048)):
        found = _rows(record, "bytes_in_flight", bytes_a_program=size)
        x, y = [r["bytes_in_flight"] for r in found], [r["tb_per_s"] for r in found]
        style.points(ax, x, y, i, f"{size:,} bytes for each program", solid=True)
    x = [2.0 ** (k / 4) for k in range(4 * 7, 4 * 24)]
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    _predicted(
        ax, x, [rate(n) for n in x], f"Little's law with {known['dram_ns']} ns", (2**14, rate(2**14)), offset=(8, -14)
    )
    ax.axvline(needed, color="black", linewidth=0.8, linestyle=":")
    note = {"textcoords": "offset points", "fontsize": style.NOTE_SIZE, "ha": "right"}
    ax.annotate(f"{needed / 1e6:.1f} MB", (needed, rate(128)), (-4, 2), **note)
    ax.legend(fontsize=style.NOTE_SIZE, loc="upper left", frameon=False)
    _sizes(ax, [128, KB, 8 * KB, 64 * KB, 512 * KB, 4 * MB])
    ax.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    ax.set_xlabel("bytes in flight")
    ax.set_ylabel("TB/s from DRAM")
    figure.alt = (
        "Above, a pipe in four frames: a grid as long as the latency and as wide as the bandwidth, with 1, 8, 16 and "
        "all of its "
        "32 cells filled. Below, bandwidth over bytes in flight, both logarithmic: points rise along a dashed straight "
        "line and "
        f"bend into a flat one at {known['dram_tb_per_s']} TB/s, near {needed / 1e6:.1f} MB in flight."
    )
    return figure


def strides(results="machine"):
    """What a warp asks for, and the time of reading every stride-th element beside what pieces of 32 and 64 bytes "
    "predict."""
    found = rows("strides", results)
    x = [row["stride"] for row in found]
    y = [1e3 * row["ms"] for row in found]
    pieces = lambda row, size: len({lane * row["stride"] * 4 // size for lane in range(32)}) * size  # noqa: E731
    beta = recorded(results)["machine"]["copy_tb_per_s"]
    cases = ((4, 1), (4, 8))
    figure, boards, ax = _panels(7.6, 4.4, 2, (1, 2.2), columns=2)
    for board, (width, stride), title in zip(boards, cases, ("stride 1", "stride 8"), strict=True):
        draw_load(board, width, stride)
        board.title(title)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for size, text, dashes in ((32, "pieces of 32 bytes, sectors", "--"), (64, "pieces of 64 bytes", "-.")):
        line = [pieces(row, size) * 2**20 / beta / 1e6 for row in found]
        ax.plot(x, line, color="black", linewidth=1.1, linestyle=dashes)
        ax.annotate(
            text, (x[-1], line[-1]), (-2, -12), textcoords="offset points", fontsize=style.NOTE_SIZE, ha="right"
        )
    style.points(ax, x, y, 0, "recorded", solid=True)
    for px, py in zip(x, y, strict=True):
        ax.annotate(
            f"{py / y[0]:.2g}×", (px, py), (0, 8), textcoords="offset points", fontsize=style.NOTE_SIZE, ha="center"
        )
    ax.set_ylim(25, 1200)
    ax.set_xlabel("stride, in elements of 4 bytes")
    ax.set_ylabel("µs for 2^25 elements")
    ax.set_xticks(x, [str(v) for v in x])
    ax.set_yticks([30, 100, 300, 1000], ["30", "100", "300", "1000"])
    ax.minorticks_off()
    figure.alt = (
        "Above, a warp's 32 threads and the sectors they ask for: 4 at stride 1, 32 at stride 8, little of each used. "
        "Below, time "
        "over stride, both logarithmic: it grows with the stride beyond 8, where the line of sectors turns flat, and "
        "follows "
        "the line of 64-byte pieces to stride 16."
    )
    return figure


def hiding(results="machine", cycles: int = 4):
    """Warps that take turns, and what they reach: multiply-adds against warps, over warps × chains / latency."""
    record = recorded(results)
    known = _numbers(record)
    each = (
        2 * 32 * known["multiprocessors"] * known["ghz"] / 1e3
    )  # TFLOP/s of one warp's instruction a cycle everywhere
    figure, axes = style.picture(7.9, 4.2, 1, 2)
    draw_hiding(Board(axes[0, 0]), (1, 2, 4), cycles - 1, 4)
    ax = axes[0, 1]
    _dress(ax)
    for i, chains in enumerate((1, 2, 4)):
        found = _rows(record, "occupancy", chains=chains)
        x, y = [r["warps_a_multiprocessor"] for r in found], [r["tflop_per_s"] for r in found]
        line = [0, 4 * cycles / chains, 64]
        flat = [each * min(4, w * chains / cycles) for w in line]
        ax.plot(line, flat, color="black", linewidth=1, linestyle="--", zorder=1)
        style.points(ax, x, y, i, f"{chains} chain{'s' * (chains > 1)} in each thread", solid=True)
    ax.set_ylim(0, 4.6 * each)
    ax.set_xticks([0, 4, 8, 16, 24, 32, 48, 64])
    ax.set_xlabel("warps on a multiprocessor")
    ax.set_ylabel("TFLOP/s, float32")
    ax.legend(fontsize=style.NOTE_SIZE, loc="lower right")
    figure.alt = (
        f"Left, timelines of 1, 2 and 4 warps that work for one tick and wait for {cycles - 1}: the row that shows work is a "
        "quarter full, half full, full. Right, the rate of multiply-adds over warps, for 1, 2 and 4 independent chains in "
        "each thread: dashed lines rise to the same flat top, at 16, 8 and 4 warps, and the points follow them."
    )
    return figure


def waves(results="machine"):
    """Time of a launch against its number of programs, over the number of waves; and one launch as the GPU noted it."""
    record = recorded(results)
    count = record["device"]["multiprocessors"]
    last = 4 * count + 40
    found = [row for row in _rows(record, "waves", kernel="product") if row["programs"] <= last]
    single = next(row["us"] for row in found if row["programs"] == count)
    figure, axes = style.picture(7.9, 3.3, 1, 2)
    left, right = axes[0]
    steps = list(range(1, last))
    left.plot(steps, [math.ceil(n / count) for n in steps], color="black", linewidth=1.1, linestyle="--")
    style.points(
        left, [row["programs"] for row in found], [row["us"] / single for row in found], 0, "recorded", solid=True
    )
    note = {"textcoords": "offset points", "fontsize": style.NOTE_SIZE}
    left.annotate("dashed: number of waves", (1.7 * count, 1.2), (0, 0), **note)
    left.set_xticks([count * k for k in range(5)])
    left.set_ylim(0, 5.5)
    left.set_xlabel("programs")
    left.set_ylabel(f"time, {count} programs = 1")
    left.grid(color=style.GRID, linewidth=0.4, alpha=0.6)

    (launch,) = _rows(record, "schedule", kernel="product")
    turns = {}
    for place, start, end in sorted(launch["ran"], key=lambda run: run[1]):
        wave = turns[place] = turns.get(place, -1) + 1
        look = {"facecolor": style.FILLS[(5, 0, 2)[wave % 3]], "edgecolor": "white", "linewidth": 0.2}
        right.barh(place, end - start, left=start, height=1.0, **look)
    full = max(end for _, _, end in launch["ran"])
    for wave in range(3):
        name = f"wave {wave}" + (", the tail" if wave == 2 else "")
        right.annotate(name, ((wave + 0.5) * full / 3, count), (0, 3), ha="center", **note)
    right.set_ylim(-1, count + 12)
    right.set_xlabel("µs after the first program began")
    right.set_ylabel("multiprocessor")
    right.set_yticks([0, count // 2, count])
    figure.alt = (
        f"Left, a staircase of time over programs: a step up after every {count}, and points on the dashed steps. Right, "
        f"{launch['programs']} programs as bars over time, a row for each multiprocessor: two full columns, and a third "
        "in which "
        f"only {launch['programs'] % count} rows have a bar."
    )
    return figure


def smallest_and_largest(results="machine"):
    """Time of a sum against its length, over launch and bytes; and multiplications against the tile's size."""
    record = recorded(results)
    figure, axes = style.picture(7.9, 3.9, 1, 2)
    _add_sizes(axes[0, 0], record)
    _tensor_cores(axes[0, 1], record)
    figure.alt = (
        "Left, time of a vector sum over its length, both logarithmic: each series is flat for short vectors and then "
        "joins one "
        "straight line, the time that its bytes take. Right, TFLOP/s over the tile: bfloat16 and TF32 are flat from 64 "
        "× 64 on, "
        "float32 without tensor cores lies far below, and a product whose tiles come from memory rises up to the "
        "largest tile."
    )
    return figure


def _add_sizes(ax, record):
    beta = record["machine"]["copy_tb_per_s"]
    _dress(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    series = (("Triton", "triton", "us"), ("PyTorch", "torch", "us"), ("Triton, in a graph", "triton", "graph_us"))
    for i, (name, by, field) in enumerate(series):
        found = _rows(record, "add_sizes", by=by)
        x, y = [r["n"] for r in found], [r[field] for r in found]
        style.points(ax, x, y, i, name, solid=True)
        line = [2.0**k for k in range(8, 29)]
        predicted = [max(y[0], 12 * n / beta / 1e6) for n in line]
        ax.plot(line, predicted, color=style.INKS[i], linewidth=0.8, linestyle="--", zorder=1)
        note = {"textcoords": "offset points", "fontsize": style.NOTE_SIZE, "color": style.INKS[i]}
        ax.annotate(f"{y[0]:.2g} µs", (x[0], y[0]), (-4, 8), **note)
    ax.legend(fontsize=style.NOTE_SIZE, loc="upper left")
    ax.set_xticks([2**k for k in range(8, 29, 4)], [f"2^{k}" for k in range(8, 29, 4)])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.minorticks_off()
    ax.set_xlabel("elements")
    ax.set_ylabel("µs for a sum")


def _tensor_cores(ax, record):
    _dress(ax)
    ax.set_yscale("log")
    tiles = [(16, 16, 16), (32, 32, 32), (64, 64, 32), (64, 64, 64), (128, 128, 32), (128, 128, 64), (128, 256, 64)]
    kinds = ("bfloat16", "tf32", "float32, no tensor cores")
    for i, kind in enumerate(kinds):
        found = _rows(record, "tensor_cores", dtype=kind)
        here = [(tiles.index(tuple(r["tile"])), r["tflop_per_s"]) for r in found if tuple(r["tile"]) in tiles]
        ax.plot(*zip(*here, strict=True), color=style.INKS[i], linewidth=0.8)
        style.points(ax, *zip(*here, strict=True), i, kind.replace("tf32", "TF32"), solid=True)
    found = [row for row in _rows(record, "matmul_tiles") if row["tile"] and tuple(row["tile"]) in tiles]
    here = [(tiles.index(tuple(r["tile"])), r["tflop_per_s"]) for r in found]
    style.points(ax, *zip(*here, strict=True), 5, "bfloat16, tiles fetched", solid=False)
    ax.set_xticks(range(len(tiles)), [f"{m}×{n}\n×{k}" for m, n, k in tiles], fontsize=7)
    ax.set_yticks([10, 20, 50, 100, 200, 500, 1000], ["10", "20", "50", "100", "200", "500", "1000"])
    ax.set_ylim(3, 1300)
    ax.minorticks_off()
    ax.set_xlabel("tile")
    ax.set_ylabel("TFLOP/s")
    ax.legend(fontsize=style.NOTE_SIZE, loc="lower right")


def puzzle(yours=None, results="machine"):
    """The lesson's launches of one kernel: recorded times beside those that Little's law predicts.

    yours: ``{(programs, block): seconds}`` on the reader's GPU, where there is one.
    """
    record = recorded(results)
    known = _numbers(record)
    found = [row for row in _rows(record, "puzzle") if row["programs"] > 1]
    figure, axes = style.picture(7.4, 0.9 + 0.24 * len(found))
    ax = axes[0, 0]
    names = []
    for i, row in enumerate(found):
        read = (
            2 / 3 * row["bytes"] / row["bytes_in_flight"] * known["dram_ns"] / 1e6
        )  # ms; what is loaded is waited for
        predicted = max(read, row["bytes"] / known["dram_tb_per_s"] / 1e9)
        style.points(ax, [row["ms"]], [i], 0, "recorded", solid=True)
        ax.plot([predicted, predicted], [i - 0.42, i + 0.42], color="black", linewidth=2)
        own = (yours or {}).get((row["programs"], row["block"]))
        if own:
            ax.plot(1e3 * own, i, marker="D", color=style.INKS[1])
        mine = f", yours {1e3 * own:.3g} ms" if own else ""
        ax.text(max(row["ms"], predicted) * 1.1, i, f"{row['ms']:.3g} ms{mine}", va="center", **style.value())
        warps = f"{row['num_warps']} warp{'s' * (row['num_warps'] > 1)}"
        names.append(f"{row['programs']:,} programs × {row['block']:,} lanes, {warps}")
    ax.set_yticks(range(len(names)), names, fontsize=style.NOTE_SIZE)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(0.1, 3 * max(row["ms"] for row in found))
    ax.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    ax.grid(axis="x", color=style.GRID, linewidth=0.4, alpha=0.6)
    ax.set_xlabel("ms for the same sum: dots recorded, black marks predicted")
    figure.alt = (
        "A dot for the time of one vector sum in each of twelve ways to launch it, from 132 small programs to 65,536 "
        "larger ones, on a logarithmic axis; a black mark beside each dot is the predicted time."
    )
    return figure
