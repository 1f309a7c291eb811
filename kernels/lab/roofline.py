"""Place a kernel on its machine's roofline: recorded results from a real GPU, and the learner's own point where
there is one.

A kernel that does f operations on b bytes cannot run faster than the slower of moving b bytes and doing f
operations, at the two rates that ``kernels.lab.law`` has for the machine.
"""

import json
from numbers import Real
from pathlib import Path

import numpy as np
import torch

from kernels import runtime
from kernels.common import lines
from kernels.common.lines import joined, wrapped

#: What a row's speed is recorded as a fraction of: the ceiling of what moves data, or of what multiplies matrices.
CEILINGS = {"fraction_of_copy": "the copy rate", "fraction_of_matmul": "a matrix product's rate"}
_BOUNDS = {"distinct bytes": "copy rate", "products": "products' peak"}
RESULTS = Path(runtime.__file__).parent.parent / "benchmarks" / "results"


def roofline(
    results="dynamic_conv",
    *,
    select: dict | None = None,
    learner=None,
    point=None,
    ax=None,
    alt: str | None = None,
    ordinary: float | None = None,
):
    """Draw recorded results under the roofline min(copy rate · f/b, products' rate), both axes logarithmic, and print
    them.

    results: name of a file in ``benchmarks/results``, or a path to such a file; None for an operator of your own, which
        none has recorded: its ``point`` alone, under the roof of the GPU that recorded "dynamic_conv".
    select: which rows, by field: ``{"pass": "forward", "W": 4}``; a collection stands for any of its values.
    learner: ``(label, seconds, flops, bytes)`` of one more point; left out while ``seconds`` is None (see
        ``measure``).
    point: the same for an operator of your own. While ``seconds`` is None, where it would lie under the roof is drawn,
        and printed with the time that the roof allows.
    ax: matplotlib axes to draw on, instead of a new figure.
    alt: what it looks like, for whoever cannot see it, instead of a text made from the numbers.
    ordinary: TFLOP/s of arithmetic without tensor cores, for kernels that have no matrix product: a second, dashed roof.

    Returns the figure. The printed lines come from the file alone, so they are the same everywhere. Raises
    ``FileNotFoundError`` for results that were not recorded, ``ValueError`` for a ``select`` that fits no row.
    """
    from kernels.lab import style
    from kernels.lab.law import rates

    record, rows = _read("dynamic_conv" if results is None else results, select)
    rows = rows if results is not None else []
    machine, known = record["machine"], rates(record)
    copy, peak = (known[name].per_second / 1e12 for name in ("bytes", "products"))
    if results is None and point is None:
        raise ValueError("results is None: then point must be (label, seconds, flops, bytes)")
    measured = _learner(learner) if point is None else _learner(point, "point")
    at_best = _at_best(point, known) if point is not None and measured is None else None
    point = measured or (at_best and (f"{point[0]}, at best", at_best.seconds, *point[2:]))
    figure, ax = _axes(ax, style, 6.4, 4.2)

    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        intensity = row["flops"] / row["bytes"]
        for name, milliseconds in _timings(row):
            series.setdefault(name, []).append((intensity, row["flops"] / milliseconds / 1e9))
    if point:
        label, seconds, flops, nbytes = point
        series[label] = [(flops / nbytes, flops / seconds / 1e12)]

    ridge = peak / copy
    intensities = [x for points in series.values() for x, _ in points]
    x = np.geomspace(min(intensities + [ridge]) / 4, max(intensities + [ridge]) * 4, 200)
    ax.plot(x, np.minimum(copy * x, peak), color="black", linewidth=1.2, zorder=1)
    note = {"textcoords": "offset points", "fontsize": style.NOTE_SIZE, "ha": "right"}
    ax.annotate(f"copy {copy:.2f} TB/s", (ridge / 4, peak / 4), (-6, 2), **note)
    ax.annotate(f"products {peak:.0f} TFLOP/s", (x[-1], peak), (0, 4), **note)
    if ordinary:
        flat = x[copy * x >= ordinary]
        ax.plot(flat, np.full(len(flat), ordinary), color="black", linewidth=1.2, linestyle="--", zorder=1)
        ax.annotate(f"ordinary arithmetic {ordinary:.0f} TFLOP/s", (x[-1], ordinary), (0, 4), **note)
    for i, (name, points) in enumerate(series.items()):
        style.points(ax, *zip(*points, strict=True), i, name, solid=i == 0 or bool(point) and i == len(series) - 1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(top=3 * peak)
    ax.set_xlabel("FLOP/byte")
    ax.set_ylabel("TFLOP/s")
    title = _title(record) if rows else _machine(machine)
    ax.set_title(title.replace(", ", "\n", 1), fontsize=style.TEXT_SIZE)
    ax.legend(fontsize=style.NOTE_SIZE, loc="lower right")
    _describe_figure(figure, alt or _roofline_words(copy, peak, series, ordinary))
    if rows:
        _print(record, rows)
    if at_best:
        label, _, flops, nbytes = point
        where = f"{at_best.seconds * 1e6:.3g} µs at the {_BOUNDS[at_best.by]} of {machine['gpu']}"
        print(wrapped(f"{label}: {flops / nbytes:.3g} FLOP/byte, {where}"))
    return figure


def bars(results="dynamic_conv", *, select: dict | None = None, learner=None, ax=None, alt: str | None = None):
    """Draw each recorded row's speed as a fraction of a ceiling, ours beside the peers, and print the rows.

    The ceiling is the one that the rows were recorded with: the copy rate for operators that do little but move data,
    a matrix product's rate for those that do little but multiply. There all rows lie at one place of the roofline. Of
    two that all rows have, it is the one that any row comes nearest to. The arguments are those of ``roofline``; the
    learner's bar is its bytes, or its operations, over its time, against the recorded ceiling. With ``results=None`` the
    bar of ``learner``, an operator of your own, stands alone, against the ceiling that bounds it. Raises ``ValueError``
    also where ``select`` leaves rows without a ceiling in common.
    """
    from kernels.lab import style

    record, rows = _read("dynamic_conv" if results is None else results, select)
    point = _learner(learner)
    if results is None:
        if point is None:
            raise ValueError("results is None: then learner must be (label, seconds, flops, bytes), measured on a GPU")
        machine, rows = record["machine"], []
        matrix = point[2] / point[3] > machine["matmul_tflop_per_s"] / machine["copy_tb_per_s"]
    ceiling = _ceiling(rows) if rows else f"fraction_of_{'matmul' if matrix else 'copy'}"
    groups = [
        (_describe(row), [(name, row[ceiling] * row["ours_ms"] / ms) for name, ms in _timings(row)]) for row in rows
    ]
    if point:
        label, seconds, flops, nbytes = point
        done, rate = (flops, "matmul_tflop_per_s") if ceiling == "fraction_of_matmul" else (nbytes, "copy_tb_per_s")
        groups.append((label, [(label, done / seconds / 1e12 / record["machine"][rate])]))
    names = list(dict.fromkeys(name for _, group in groups for name, _ in group))
    figure, ax = _axes(ax, style, 6.8, 1.2 + 0.17 * sum(len(group) + 1 for _, group in groups))
    longest = max(fraction for _, group in groups for _, fraction in group)
    limit = 1.15 * (max(1, longest) if longest > 0.1 else longest)  # without the line at 1 where bars would be slivers
    y, ticks = 0.0, []
    for _, group in groups:
        ticks.append(y + (len(group) - 1) / 2)
        for name, fraction in group:
            i = names.index(name)
            ax.barh(y, fraction, height=0.9, label=name, **style.bar(i))
            ax.text(fraction + limit / 115, y, _short(fraction), va="center", **style.value())
            y += 1
        y += 0.8
    ax.set_yticks(ticks, [text for text, _ in groups])
    ax.invert_yaxis()
    ax.set_xlim(0, limit)
    ax.set_xlabel(f"fraction of {CEILINGS[ceiling]}" + " (dashed: 1)" * (limit > 1))
    if limit > 1:
        ax.axvline(1, color="black", linewidth=1, linestyle="--")
    title = _title(record) if rows else _machine(record["machine"])
    ax.set_title(title.replace(", ", "\n", 1), fontsize=style.TEXT_SIZE)
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), fontsize=style.NOTE_SIZE, loc="outside lower center", ncols=3)
    _describe_figure(figure, alt or _bars_words(CEILINGS[ceiling], groups))
    if rows:
        _print(record, rows, ceiling)
    return figure


def measure(fn) -> float | None:
    """Median seconds of ``fn()`` on the GPU; None, with a sentence that says so, where kernels are interpreted."""
    if not callable(fn):
        raise ValueError(f"fn is {fn!r}: measure needs a function of no arguments, such as lambda: kernel[grid](x)")
    if runtime.interpreted:
        print("Not timed: kernels run in the interpreter here, whose speed says nothing about a GPU.")
        return None
    from triton.testing import do_bench

    return do_bench(fn, return_mode="median") / 1e3


def recorded(results) -> dict:
    """What a benchmark recorded on a real GPU: the machine, and a row for each measurement.

    results: name of a file in ``benchmarks/results``, wherever this runs, or a path to such a file.

    Returns the file's contents, ``{"machine": {...}, "rows": [{...}, ...], ...}``. Raises ``FileNotFoundError`` for
    results that were not recorded.
    """
    path = Path(results)
    path = path if path.suffix == ".json" else RESULTS / f"{results}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.json"))) or "none"
        missing = f"results is {str(results)!r}, but there is no {path.name} in {path.parent.name}/"
        raise FileNotFoundError(f"{missing}: recorded are {known}")
    return json.loads(path.read_text())


def _read(results, select: dict | None) -> tuple[dict, list[dict]]:
    """A record, and the rows of it that ``select`` leaves."""
    record = recorded(results)
    rows = record["rows"]
    for key, wanted in (select or {}).items():
        allowed = wanted if isinstance(wanted, (list, tuple, set, range)) else (wanted,)
        values = [row[key] if key in row else row["shape"].get(key) for row in rows]
        rows = [row for row, value in zip(rows, values, strict=True) if value in allowed]
        if all(value is None for value in values):
            fields = dict.fromkeys(field for row in record["rows"] for field in (*row, *row["shape"]))
            raise ValueError(f"select names {key!r}: the rows have the fields {', '.join(fields)}")
        if not rows:
            found = ", ".join(map(repr, dict.fromkeys(values)))
            raise ValueError(f"select asks for {key} {wanted!r}: the rows have {found}")
    return record, rows


def _learner(learner, name="learner"):
    """The learner's point, checked; None when there is nothing to draw. name: the argument's, in messages."""
    if learner is None:
        return None
    if not isinstance(learner, (tuple, list)) or len(learner) != 4:
        raise ValueError(f"{name} is {learner!r}: it must be (label, seconds, flops, bytes)")
    label, seconds, flops, nbytes = learner
    if seconds is None:
        return None
    if not all(isinstance(number, Real) and number > 0 for number in (seconds, flops, nbytes)):
        raise ValueError(f"{name} is {learner!r}: seconds, flops and bytes must be positive numbers")
    where = torch.cuda.get_device_name(runtime.device) if runtime.device.type == "cuda" else None
    return f"{label}, on {where}" if where else label, seconds, flops, nbytes


def _at_best(point, known):
    """What the law of time predicts for ``(label, None, flops, bytes)``."""
    from kernels.lab.law import law

    if len(point) != 4 or not (point[2] > 0 and point[3] > 0):
        raise ValueError(
            f"point is {point!r}: it must be (label, seconds or None, flops, bytes), flops and bytes positive"
        )
    return law(known, bytes=point[3], products=point[2])


def _machine(machine: dict) -> str:
    return f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, {machine['date']}"


def _timings(row: dict) -> list[tuple[str, float]]:
    return [("ours", row["ours_ms"]), *((peer["name"], peer["ms"]) for peer in row["peers"])]


def _ceiling(rows: list[dict]) -> str:
    """The field that says how near their ceiling the rows came; of two, the one with the largest fraction."""
    fields = [[field for field in CEILINGS if field in row] for row in rows]
    common = [field for field in CEILINGS if all(field in of_row for of_row in fields)]
    if not common:
        kinds = " and rows with ".join(dict.fromkeys(field for of_row in fields for field in of_row))
        raise ValueError(f"select leaves rows with {kinds}: bars needs one kind")
    return max(common, key=lambda field: max(row[field] for row in rows))


def _short(fraction: float) -> str:
    """Two decimals; below 0.1 two digits, for there two decimals would say little more than that it is small."""
    return f"{fraction:.2f}" if fraction >= 0.0995 else f"{fraction:#.2g}"


def _describe(row: dict) -> str:
    shape = " ".join(f"{name}{size}" for name, size in row["shape"].items())
    return f"{row['pass']:<8}  {shape}  {row['dtype']}  {row['variant']}"


def _title(record: dict) -> str:
    machine = record["machine"]
    names = ", ".join(dict.fromkeys(row["kernel"] for row in record["rows"]))
    return f"{names} on {_machine(machine)}"


def _print(record: dict, rows: list[dict], ceiling: str | None = None) -> None:
    """The chosen rows as text: how near the ceiling, or else each its own, and how much faster than each peer.

    A row is one line where all of them fit, else what was measured stands below what it was measured of.
    """
    print(wrapped(_title(record)))
    names = [_describe(row) for row in rows]
    speeds = []
    for row in rows:
        field = ceiling or _ceiling([row])
        found = [f"{_short(row[field])} of {CEILINGS[field]}"]
        found += [f"{peer['ms'] / row['ours_ms']:.2f}× {peer['name']}" for peer in row["peers"]]
        speeds.append(", ".join(joined(".+", one) for one in found))
    width, most = (max(map(len, texts)) for texts in (names, speeds))
    for name, speed in zip(names, speeds, strict=True):
        if width + 2 + most <= lines.WIDTH:
            print(f"{name:<{width}}  {speed}".replace("\xa0", " "))
        else:
            print(wrapped(name, 8))
            print(wrapped(f"    {speed}", 0))


def _roofline_words(copy: float, peak: float, series: dict, ordinary: float | None = None) -> str:
    text = (
        f"A roofline, both axes logarithmic: TFLOP/s rise with FLOP/byte at a copy's {copy:.2f} TB/s up to "
        f"{peak / copy:.0f} FLOP/byte, and are level from there at the products' {peak:.0f} TFLOP/s."
    )
    if ordinary:
        text += f" A dashed line at {ordinary:.0f} TFLOP/s is the roof of ordinary arithmetic."
    for name, points in series.items():
        x, y = zip(*points, strict=True)
        text += f" {name}, {len(points)} point{'s' * (len(points) > 1)}: {_range(x)} FLOP/byte, {_range(y)} TFLOP/s."
    return text


def _bars_words(ceiling: str, groups) -> str:
    shown = groups if len(groups) <= 8 else groups[:7]
    rows = [f"{' '.join(row.split())}: " + ", ".join(f"{n} {_short(x)}" for n, x in group) for row, group in shown]
    more = f" {len(groups) - 7} more groups follow." if len(groups) > 8 else ""
    return f"Horizontal bars, each a fraction of {ceiling}, in {len(groups)} groups. {'; '.join(rows)}.{more}"


def _range(values) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _describe_figure(figure, text: str) -> None:
    """Give a figure its alternative text, after that of what was drawn on it before."""
    figure.alt = " ".join(filter(None, [getattr(figure, "alt", ""), text]))


def _axes(ax, style, width: float, height: float):
    if ax is not None:
        return ax.figure, ax
    figure, axes = style.picture(width, height)
    return figure, axes[0, 0]
