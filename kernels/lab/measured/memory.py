"""The curves of memory: how far it is, how much must be under way, what pieces it comes in."""

from matplotlib.gridspec import GridSpec

from kernels.lab import style
from kernels.lab.drawings.language import Board
from kernels.lab.drawings.machine import draw_load
from kernels.lab.drawings.waiting import PIPE, draw_pipe
from kernels.lab.law import law, rates
from kernels.lab.machine_record import GB, KB, MB, l2_sets, numbers_of, rows, rows_of
from kernels.lab.roofline import recorded


def _sizes(ax, values, axis="x"):
    """Ticks at these numbers of bytes, as kB, MB and GB."""
    name = lambda n: next(
        f"{n // unit} {text}" for unit, text in ((GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B")) if n >= unit
    )  # noqa: E731
    (ax.set_xticks if axis == "x" else ax.set_yticks)(values, [name(n) for n in values])
    ax.minorticks_off()


def _predicted(ax, x, y, text, at, *, offset=(4, -10)):
    """A dashed line with its name beside it."""
    ax.plot(x, y, color="black", linewidth=1.2, linestyle="--", zorder=2)
    ax.annotate(text, at, offset, textcoords="offset points", fontsize=style.NOTE_SIZE)


def latency(results="machine"):
    """Latency, and bandwidth, against the bytes among which a walk goes, or that are read again and again."""
    record = recorded(results)
    found, sets, known = rows_of(record, "latency"), l2_sets(record), numbers_of(record)
    figure, axes = style.picture(7.6, 3.3, 1, 2)
    left, right = axes[0]
    x, y = [row["bytes"] for row in found], [row["ns"] for row in found]
    left.plot(x, y, color=style.INKS[0], linewidth=1)
    style.points(left, x, y, 0, "recorded", solid=True)
    places = {"l1_ns": ("L1", 32 * KB, 9), "l2_ns": ("L2", 4 * MB, 9), "dram_ns": ("DRAM", 256 * MB, 18)}
    for name, (text, size, up) in places.items():
        wide = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}} if name == "dram_ns" else {}
        left.annotate(f"{text}: {known[name]} ns", (size, known[name]), (0, up), textcoords="offset points",
                      fontsize=style.TEXT_SIZE, ha="center", **wide)  # fmt: skip
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
        style.grid(ax)
    left.axvline(256 * KB, color="black", linewidth=0.8, linestyle=":")
    left.set_yscale("log")
    left.set_yticks([10, 20, 50, 100, 200, 500], ["10", "20", "50", "100", "200", "500"])
    _sizes(left, [4 * KB, 64 * KB, MB, 16 * MB, 256 * MB])
    _sizes(right, [8 * MB, 32 * MB, 128 * MB, 512 * MB])
    figure.alt = (
        f"Left, latency over the size of the set, a staircase: {known['l1_ns']} ns up to about 200 kB, "
        f"{known['l2_ns']} ns up to some 25 MB, then in steps to about {known['dram_ns']} ns. Right, bandwidth: about "
        f"{known['l2_tb_per_s']} TB/s as long as the set fits into L2, {rate:.1f} TB/s beyond."
    )
    return figure


def _panels(width, height, rows, heights, columns=1):
    """A figure whose upper ``rows`` - 1 rows hold ``columns`` boards each, and whose last row is one pair of axes."""
    figure, axes = style.picture(width, height)
    axes[0, 0].remove()
    grid = GridSpec(rows, columns, figure=figure, height_ratios=heights)
    boards = [Board(figure.add_subplot(grid[r, c])) for r in range(rows - 1) for c in range(columns)]
    ax = figure.add_subplot(grid[rows - 1, :])
    style.dress(ax)
    style.grid(ax)
    return figure, boards, ax


def bytes_in_flight(results="machine"):
    """Little's law as a pipe, and under it bandwidth against bytes in flight, over min(bytes / latency, copy rate)."""
    record = recorded(results)
    known = numbers_of(record)
    rate = lambda n: min(n / known["dram_ns"] / 1e3, known["dram_tb_per_s"])  # noqa: E731
    needed = known["dram_ns"] * known["dram_tb_per_s"] * 1e3
    figure, boards, ax = _panels(7.6, 5.0, 2, (1, 2.3), columns=4)
    for frame, (board, title) in enumerate(zip(boards, PIPE, strict=True)):
        draw_pipe(board, frame)
        board.title(title)
    for i, size in enumerate((128, 512, 1024, 2048)):
        found = rows_of(record, "bytes_in_flight", bytes_a_program=size)
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
        "all of its 32 cells filled. Below, bandwidth over bytes in flight, both logarithmic: points rise along a "
        f"dashed straight line and bend into a flat one at {known['dram_tb_per_s']} TB/s, near {needed / 1e6:.1f} MB "
        "in flight."
    )
    return figure


def strides(results="machine"):
    """What a warp asks for, and the time of reading every stride-th element beside what pieces of 32 or 64 bytes predict."""
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
        "Below, time over stride, both logarithmic: it grows with the stride beyond 8, where the line of sectors "
        "turns flat, and follows the line of 64-byte pieces to stride 16."
    )
    return figure


def puzzle(yours=None, results="machine"):
    """The lesson's launches of one kernel: recorded times beside what the law predicts, for programs alone and for many.

    yours: ``{(programs, block): seconds}`` on the reader's GPU, where there is one.
    """
    record = recorded(results)
    known = numbers_of(record)
    found = [row for row in rows_of(record, "puzzle") if row["programs"] > 1]
    figure, axes = style.picture(7.4, 0.9 + 0.24 * len(found))
    ax = axes[0, 0]
    names = []
    for i, row in enumerate(found):
        turns = 2 / 3 * row["bytes"] / row["bytes_in_flight"]  # what is loaded is waited for
        made = law(rates(record), [(turns, known["dram_ns"])], bytes=row["bytes"])
        alone = (
            row["programs"] <= known["multiprocessors"]
        )  # then nobody fills a program's waits: they add to its bytes
        predicted = 1e3 * (sum(made.times.values()) if alone else made.seconds)
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
    style.grid(ax, "x")
    ax.set_xlabel("ms for the same sum: dots recorded, black marks predicted")
    figure.alt = (
        "A dot for the time of one vector sum in each of twelve ways to launch it, from 132 small programs to 65,536 "
        "larger ones, on a logarithmic axis; a black mark beside each dot is the predicted time."
    )
    return figure
