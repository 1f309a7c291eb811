"""The curves of programs: warps that take turns, waves, and how large a launch and a tile must be."""

import math

from kernels.lab import style
from kernels.lab.drawings.language import Board
from kernels.lab.drawings.waiting import draw_hiding
from kernels.lab.machine_record import numbers_of, rows_of
from kernels.lab.roofline import recorded


def hiding(results="machine", cycles: int = 4):
    """Warps that take turns, and what they reach: multiply-adds against warps, over warps × chains / latency."""
    record = recorded(results)
    known = numbers_of(record)
    each = (
        2 * 32 * known["multiprocessors"] * known["ghz"] / 1e3
    )  # TFLOP/s of one warp's instruction a cycle everywhere
    figure, axes = style.picture(7.9, 4.2, 1, 2)
    draw_hiding(Board(axes[0, 0]), (1, 2, 4), cycles - 1, 4)
    ax = axes[0, 1]
    style.grid(ax)
    for i, chains in enumerate((1, 2, 4)):
        found = rows_of(record, "occupancy", chains=chains)
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
    found = [row for row in rows_of(record, "waves", kernel="product") if row["programs"] <= last]
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
    style.grid(left)

    (launch,) = rows_of(record, "schedule", kernel="product")
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
        "joins one straight line, the time that its bytes take. Right, TFLOP/s over the tile: bfloat16 and TF32 are "
        "flat from 64 × 64 on, float32 without tensor cores lies far below, and a product whose tiles come from "
        "memory rises up to the largest tile."
    )
    return figure


def _add_sizes(ax, record):
    beta = record["machine"]["copy_tb_per_s"]
    style.grid(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    series = (("Triton", "triton", "us"), ("PyTorch", "torch", "us"), ("Triton, in a graph", "triton", "graph_us"))
    for i, (name, by, field) in enumerate(series):
        found = rows_of(record, "add_sizes", by=by)
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
    style.grid(ax)
    ax.set_yscale("log")
    tiles = [(16, 16, 16), (32, 32, 32), (64, 64, 32), (64, 64, 64), (128, 128, 32), (128, 128, 64), (128, 256, 64)]
    kinds = ("bfloat16", "tf32", "float32, no tensor cores")
    for i, kind in enumerate(kinds):
        found = rows_of(record, "tensor_cores", dtype=kind)
        here = [(tiles.index(tuple(r["tile"])), r["tflop_per_s"]) for r in found if tuple(r["tile"]) in tiles]
        ax.plot(*zip(*here, strict=True), color=style.INKS[i], linewidth=0.8)
        style.points(ax, *zip(*here, strict=True), i, kind.replace("tf32", "TF32"), solid=True)
    found = [row for row in rows_of(record, "matmul_tiles") if row["tile"] and tuple(row["tile"]) in tiles]
    here = [(tiles.index(tuple(r["tile"])), r["tflop_per_s"]) for r in found]
    style.points(ax, *zip(*here, strict=True), 5, "bfloat16, tiles fetched", solid=False)
    ax.set_xticks(range(len(tiles)), [f"{m}×{n}\n×{k}" for m, n, k in tiles], fontsize=7)
    ax.set_yticks([10, 20, 50, 100, 200, 500, 1000], ["10", "20", "50", "100", "200", "500", "1000"])
    ax.set_ylim(3, 1300)
    ax.minorticks_off()
    ax.set_xlabel("tile")
    ax.set_ylabel("TFLOP/s")
    ax.legend(fontsize=style.NOTE_SIZE, loc="lower right")
