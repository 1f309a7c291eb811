"""Lesson 02's measured curves, each drawn over what arithmetic predicts: points are recorded, dashed lines predicted.

Everything here reads the record of ``python -m benchmarks.machine``, so it is the same on every computer.
"""

import math

from kernels.lab import style
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
    ``dram_tb_per_s``, the rate of a large copy; ``l2_tb_per_s``; ``matmul_tflop_per_s``; ``ghz``, the clock.
    """
    return _numbers(recorded(results))


def _numbers(record):
    latency = {row["bytes"]: row["ns"] for row in _rows(record, "latency")}
    l2 = [row["tb_per_s"] for row in _l2_sets(record) if row["bytes"] < 20 * MB]
    return {
        "multiprocessors": record["device"]["multiprocessors"],
        "dram_ns": round(latency[GB]),
        "l2_ns": round(latency[8 * MB]),
        "l1_ns": round(latency[64 * KB]),
        "dram_tb_per_s": round(record["machine"]["copy_tb_per_s"], 2),
        "l2_tb_per_s": round(max(l2), 1),
        "matmul_tflop_per_s": round(record["machine"]["matmul_tflop_per_s"]),
        "ghz": round(_rows(record, "clock")[0]["mhz"] / 1000, 2),
    }


def _l2_sets(record):
    """The sets that are read round and round; where a program has a single block, it stays in registers and says nothing."""
    found = _rows(record, "working_set", caches="L2")
    return [row for row in found if row["bytes"] > found[0]["bytes"]]


def places(record) -> dict:
    """What ``drawings.machine`` writes at its places, as lines of text: size, latency, rate."""
    device, known = record["device"], _numbers(record)
    return {
        "multiprocessors": device["multiprocessors"],
        "DRAM": (f"{device['dram_bytes'] / GB:.0f} GB", f"{known['dram_ns']} ns", f"{known['dram_tb_per_s']:.1f} TB/s"),
        "L2": (f"{device['l2_bytes'] / MB:.0f} MB", f"{known['l2_ns']} ns", f"{known['l2_tb_per_s']:.1f} TB/s"),
        "shared memory": ("256 kB", f"{known['l1_ns']} ns"),
        "registers": (f"{device['registers_a_multiprocessor'] * 4 // KB} kB", "no wait"),
        "tensor cores": (f"{known['matmul_tflop_per_s']} TFLOP/s", "on the chip"),
    }


def _curve(alt, xlabel, ylabel, *, height=3.4, width=6.6, log="xy"):
    """A figure with one pair of axes, in the course's style."""
    figure, axes = style.picture(width, height)
    ax = axes[0, 0]
    if "x" in log:
        ax.set_xscale("log", base=2)
    if "y" in log:
        ax.set_yscale("log")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(color=style.GRID, linewidth=0.4, alpha=0.6)
    figure.alt = alt
    return figure, ax


def _sizes(ax, values, axis="x"):
    """Ticks at these numbers of bytes, as kB, MB and GB."""
    name = lambda n: next(f"{n // unit} {text}" for unit, text in ((GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B")) if n >= unit)  # noqa: E731
    (ax.set_xticks if axis == "x" else ax.set_yticks)(values, [name(n) for n in values])
    ax.minorticks_off()


def _predicted(ax, x, y, text, at, *, offset=(4, -10), ha="left"):
    """A dashed line with its name beside it."""
    ax.plot(x, y, color="black", linewidth=1.2, linestyle="--", zorder=2)
    ax.annotate(text, at, offset, textcoords="offset points", fontsize=style.NOTE_SIZE, ha=ha)


def _label(ax, text, at, series, offset=(6, 0), ha="left"):
    ax.annotate(text, at, offset, textcoords="offset points", fontsize=style.NOTE_SIZE, color=style.INKS[series], ha=ha, va="center")


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
    right.annotate("L2", (16 * MB, known["l2_tb_per_s"]), (0, 9), textcoords="offset points", fontsize=style.TEXT_SIZE, ha="center")
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
        f"Left, latency over the size of the set, a staircase: {known['l1_ns']} ns up to about 200 kB, {known['l2_ns']} ns up to some "
        f"25 MB, then in steps to about {known['dram_ns']} ns. Right, bandwidth: about {known['l2_tb_per_s']} TB/s as long as the set fits "
        f"into L2, {rate:.1f} TB/s beyond."
    )
    return figure


def bytes_in_flight(results="machine"):
    """Bandwidth against bytes in flight, over Little's law: min(bytes / latency, copy rate)."""
    record = recorded(results)
    known = _numbers(record)
    rate = lambda n: min(n / known["dram_ns"] / 1e3, known["dram_tb_per_s"])  # noqa: E731
    needed = known["dram_ns"] * known["dram_tb_per_s"] * 1e3
    alt = (
        "Bandwidth over bytes in flight, both logarithmic: points rise along a dashed straight line and bend into a flat "
        f"one at {known['dram_tb_per_s']} TB/s, near {needed / 1e6:.1f} MB in flight."
    )
    figure, ax = _curve(alt, "bytes in flight", "TB/s from DRAM", height=3.8)
    for i, size in enumerate((128, 512, 1024, 2048)):
        found = _rows(record, "bytes_in_flight", bytes_a_program=size)
        style.points(ax, [r["bytes_in_flight"] for r in found], [r["tb_per_s"] for r in found], i, f"{size:,} bytes a program", solid=True)
    x = [2.0 ** (k / 4) for k in range(4 * 7, 4 * 24)]
    _predicted(ax, x, [rate(n) for n in x], f"Little's law with {known['dram_ns']} ns", (2**14, rate(2**14)), offset=(8, -14))
    ax.axvline(needed, color="black", linewidth=0.8, linestyle=":")
    ax.annotate(f"{needed / 1e6:.1f} MB", (needed, rate(128)), (-4, 2), textcoords="offset points", fontsize=style.NOTE_SIZE, ha="right")
    ax.legend(fontsize=style.NOTE_SIZE, loc="upper left", frameon=False)
    _sizes(ax, [128, KB, 8 * KB, 64 * KB, 512 * KB, 4 * MB])
    ax.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    return figure


def strides(results="machine"):
    """Time of reading every stride-th element, beside what pieces of 32 and of 64 bytes predict."""
    found = rows("strides", results)
    x = [row["stride"] for row in found]
    y = [1e3 * row["ms"] for row in found]
    pieces = lambda row, size: len({lane * row["stride"] * 4 // size for lane in range(32)}) * size  # noqa: E731
    beta = recorded(results)["machine"]["copy_tb_per_s"]
    alt = (
        "Time over stride, both logarithmic: it grows with the stride beyond 8, where the line of 32-byte sectors turns flat, "
        "and follows the line of 64-byte pieces to stride 16."
    )
    figure, ax = _curve(alt, "stride, in elements of 4 bytes", "µs for 2^25 elements", height=3.3)
    for size, text, offset in ((32, "32-byte sectors", (-2, -12)), (64, "64-byte pieces", (-2, -12))):
        line = [pieces(row, size) * 2**20 / beta / 1e6 for row in found]
        ax.plot(x, line, color="black", linewidth=1.1, linestyle="--" if size == 32 else "-.")
        ax.annotate(text, (x[-1], line[-1]), offset, textcoords="offset points", fontsize=style.NOTE_SIZE, ha="right")
    style.points(ax, x, y, 0, "recorded", solid=True)
    for px, py in zip(x, y, strict=True):
        ax.annotate(f"{py / y[0]:.2g}×", (px, py), (0, 8), textcoords="offset points", fontsize=style.NOTE_SIZE, ha="center")
    ax.set_ylim(25, 1100)
    ax.set_xticks(x, [str(v) for v in x])
    ax.set_yticks([30, 100, 300, 1000], ["30", "100", "300", "1000"])
    ax.minorticks_off()
    return figure


def occupancy(results="machine", cycles: int = 4):
    """Multiply-adds against warps on a multiprocessor, over min(warps × chains / latency, one a scheduler and cycle)."""
    record = recorded(results)
    known = _numbers(record)
    each = 2 * 32 * known["multiprocessors"] * known["ghz"] / 1e3  # TFLOP/s of one warp instruction a cycle everywhere
    alt = (
        "Rate of multiply-adds over warps on a multiprocessor, for 1, 2 and 4 independent chains a thread: three straight "
        "lines from the origin that meet the same flat top at 16, 8 and 4 warps, and points on them."
    )
    figure, ax = _curve(alt, "warps on a multiprocessor", "TFLOP/s, float32", log="")
    for i, chains in enumerate((1, 2, 4)):
        found = _rows(record, "occupancy", chains=chains)
        x, y = [r["warps_a_multiprocessor"] for r in found], [r["tflop_per_s"] for r in found]
        line = [0, 4 * cycles / chains, 64]
        ax.plot(line, [each * min(4, w * chains / cycles) for w in line], color="black", linewidth=1, linestyle="--", zorder=1)
        style.points(ax, x, y, i, f"{chains} chain" + "s" * (chains > 1) + " a thread", solid=True)
    ax.set_ylim(0, 4.6 * each)
    ax.set_xticks([0, 4, 8, 16, 24, 32, 40, 48, 64])
    ax.annotate("four instructions a cycle", (64, 4 * each), (0, 4), textcoords="offset points", fontsize=style.NOTE_SIZE, ha="right")
    ax.legend(fontsize=style.NOTE_SIZE, loc="lower right")
    return figure


def waves(results="machine"):
    """Time of a launch against its number of programs, over the number of waves."""
    record = recorded(results)
    count = record["device"]["multiprocessors"]
    last = 4 * count + 40
    found = [row for row in _rows(record, "waves", kernel="product") if row["programs"] <= last]
    single = next(row["us"] for row in found if row["programs"] == count)
    alt = f"A staircase of time over programs: a step up after every {count} programs, and points on the dashed steps."
    figure, ax = _curve(alt, "programs", f"time, {count} programs = 1", height=3.2, log="")
    steps = list(range(1, last))
    ax.plot(steps, [math.ceil(n / count) for n in steps], color="black", linewidth=1.1, linestyle="--")
    style.points(ax, [row["programs"] for row in found], [row["us"] / single for row in found], 0, "recorded", solid=True)
    ax.annotate("number of waves", (1.3 * count, 2), (0, 5), textcoords="offset points", fontsize=style.NOTE_SIZE)
    ax.set_xticks([count * k for k in range(5)])
    ax.set_ylim(0, 5.5)
    return figure


def schedule(results="machine"):
    """Which multiprocessor ran which program when: every bar is a program, as the GPU itself noted it."""
    record = recorded(results)
    (found,) = _rows(record, "schedule", kernel="product")
    count = record["device"]["multiprocessors"]
    figure, axes = style.picture(6.6, 3.2)
    ax = axes[0, 0]
    ran = sorted(enumerate(found["ran"]), key=lambda item: item[1][1])
    turns = {}
    for _, (place, start, end) in ran:
        wave = turns[place] = turns.get(place, -1) + 1
        ax.barh(place, end - start, left=start, height=1.0, facecolor=style.FILLS[(5, 0, 2)[wave % 3]], edgecolor="white", linewidth=0.2)
    full = max(end for _, _, end in found["ran"])
    busy = sum(end - start for _, start, end in found["ran"]) / (count * full)
    tail = found["programs"] % count
    figure.alt = (
        f"{found['programs']} programs as bars over time, a row for each of {count} multiprocessors: two full columns, and a third "
        f"in which only {tail} rows have a bar."
    )
    ax.set_xlabel("µs after the first program began")
    ax.set_ylabel("multiprocessor")
    ax.set_ylim(-1, count)
    ax.set_title(f"{found['programs']} programs on {count} multiprocessors: places busy {busy:.0%} of the time".replace("%", " %"),
                 fontsize=style.TEXT_SIZE)  # fmt: skip
    return figure


def add_sizes(results="machine"):
    """Time of one sum of two vectors against its length, over a constant plus bytes / bandwidth."""
    record = recorded(results)
    beta = record["machine"]["copy_tb_per_s"]
    alt = (
        "Time of a vector sum over its length, both logarithmic: each series is flat for short vectors and then joins one "
        "straight line, the time that its bytes take."
    )
    figure, ax = _curve(alt, "elements", "µs a sum", height=3.6)
    series = (("launched from Python, Triton", "triton", "us"), ("launched from Python, torch", "torch", "us"), ("in a graph, Triton", "triton", "graph_us"))
    for i, (name, by, field) in enumerate(series):
        found = _rows(record, "add_sizes", by=by)
        x, y = [r["n"] for r in found], [r[field] for r in found]
        style.points(ax, x, y, i, name, solid=True)
        first = y[0]
        line = [2.0**k for k in range(8, 29)]
        ax.plot(line, [max(first, 12 * n / beta / 1e6) for n in line], color=style.INKS[i], linewidth=0.8, linestyle="--", zorder=1)
        _label(ax, f"{first:.2g} µs", (x[0], first), i, offset=(-2, 9), ha="center")
    ax.legend(fontsize=style.NOTE_SIZE, loc="upper left")
    ax.set_xticks([2**k for k in range(8, 29, 4)], [f"2^{k}" for k in range(8, 29, 4)])
    ax.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    ax.minorticks_off()
    return figure


def tensor_cores(results="machine"):
    """Operations a second against the tile, for four kinds of numbers, from tiles that are on the multiprocessor already."""
    record = recorded(results)
    found = _rows(record, "tensor_cores")
    tiles = list(dict.fromkeys(tuple(r["tile"]) for r in found))
    kinds = list(dict.fromkeys(r["dtype"] for r in found))
    alt = (
        "TFLOP/s over the tile's size for bfloat16, float16, TF32 and float32 without tensor cores, and for a product whose tiles "
        "come from memory: all rise with the tile; a dashed line is torch's product."
    )
    figure, ax = _curve(alt, "tile: rows × columns × depth", "TFLOP/s", height=3.8, width=7.4, log="y")
    for i, kind in enumerate(kinds):
        here = [(tiles.index(tuple(r["tile"])), r["tflop_per_s"]) for r in found if r["dtype"] == kind]
        ax.plot(*zip(*here), color=style.INKS[i], linewidth=0.8)
        style.points(ax, *zip(*here), i, kind, solid=True)
    fetched = [(tiles.index(tuple(r["tile"])), r["tflop_per_s"]) for r in _rows(record, "matmul_tiles")
               if r["tile"] and tuple(r["tile"]) in tiles]  # fmt: skip
    style.points(ax, *zip(*fetched), 5, "bfloat16, tiles fetched from memory", solid=False)
    peak = record["machine"]["matmul_tflop_per_s"]
    _predicted(ax, [0, len(tiles) - 1], [peak, peak], f"torch's product, {peak:.0f}", (0, peak), offset=(0, 4))
    ax.set_xticks(range(len(tiles)), ["\n".join(("×".join(map(str, t[:2])), f"×{t[2]}")) for t in tiles])
    ax.set_yticks([10, 20, 50, 100, 200, 500, 1000], ["10", "20", "50", "100", "200", "500", "1000"])
    ax.minorticks_off()
    ax.legend(fontsize=style.NOTE_SIZE, loc="lower right")
    return figure


def puzzle(results="machine"):
    """The lesson's launches of one kernel: recorded times beside those that Little's law predicts."""
    record = recorded(results)
    known = _numbers(record)
    found = [r for r in _rows(record, "puzzle") if r["programs"] > 1]
    figure, axes = style.picture(7.2, 0.9 + 0.24 * len(found))
    ax = axes[0, 0]
    names = []
    for i, row in enumerate(found):
        rate = min(1.5 * row["bytes_in_flight"] / known["dram_ns"] / 1e3, known["dram_tb_per_s"])
        predicted = row["bytes"] / rate / 1e9
        ax.barh(i, row["ms"], height=0.7, **style.bar(0))
        ax.plot([predicted, predicted], [i - 0.42, i + 0.42], color="black", linewidth=2, label="Little's law" if i == 0 else None)
        ax.text(max(row["ms"], predicted) * 1.06, i, f"{row['ms']:.3g} ms", va="center", **style.value())
        names.append(f"{row['programs']:,} programs × {row['block']:,} lanes, {row['num_warps']} warp{'s' * (row['num_warps'] > 1)}")
    ax.set_yticks(range(len(names)), names, fontsize=style.NOTE_SIZE)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(0.1, 3 * max(r["ms"] for r in found))
    ax.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    ax.set_xlabel("ms for the same sum; black: predicted from bytes in flight")
    figure.alt = (
        "Bars of the time of one vector sum for twelve ways to launch it, from 132 small programs to 65,536 larger ones, on a "
        "logarithmic axis; a black mark on each bar is the predicted time."
    )
    return figure
