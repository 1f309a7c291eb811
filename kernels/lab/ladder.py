"""Draw a lesson's ladder: its own kernels as a GPU ran them, one rung for each idea, up to the finished operator, its peers
and the limit; and its sweeps over what the lesson predicted."""

from collections.abc import Callable

from kernels.lab.roofline import recorded


def ladder(lesson: str, *, upto: str | None = None):
    """Draw and print the ladder of a lesson, as ``benchmarks/results/ladder_NN.json`` has it.

    lesson: its number, "03".
    upto: the label of the last of the lesson's own rungs to show, for a first look on the way; all unless told.

    A bar is how much of the limit's speed a rung reaches; beside it stand the time, how many times faster than the first
    rung it is, and the idea that bought it. Returns the figure. ``FileNotFoundError`` for a ladder that was not recorded.
    """
    from kernels.lab import style

    record = recorded(f"ladder_{lesson}")
    rungs = _shown(record["rungs"], upto)
    first = next(row["ms"] for row in rungs if row["kind"] == "lesson")
    ceiling = {"copy": "the fastest copy", "matmul": "the fastest matrix product"}[record["limit"]]
    figure, axes = style.picture(7.6, 0.9 + 0.42 * (len(rungs) + 1))
    ax = axes[0, 0]
    series = {"lesson": 0, "finished": 4, "peer": 7}
    for y, row in enumerate(rungs):
        ax.barh(y, row["fraction_of_limit"], height=0.62, **{**style.bar(0), **_look(style, series[row["kind"]])})
        label = f"{_ms(row['ms'])}  {_times(first / row['ms'])}" + (f"  {row['idea']}" if row["idea"] else "")
        ax.text(row["fraction_of_limit"] + 0.012, y, label, va="center", **style.value() | {"fontsize": style.NOTE_SIZE})
    y = len(rungs)
    ax.barh(y, 1, height=0.62, facecolor="white", edgecolor="black", linewidth=0.8, linestyle="--")
    limit = f"{_ms(record['limit_ms'])}  {_times(first / record['limit_ms'])}"
    ax.text(0.985, y, limit, va="center", ha="right", fontsize=style.NOTE_SIZE)
    names = [row["rung"] for row in rungs] + ["the limit"]
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, max(1.32, max(row["fraction_of_limit"] for row in rungs) + 0.45))
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
    ax.axvline(1, color="black", linewidth=0.8, linestyle="--")
    ax.set_xlabel(f"share of the limit's speed; the limit: {ceiling} of the run")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    shape = ", ".join(f"{name} {size}" for name, size in record["shape"].items())
    machine = record["machine"]
    ax.set_title(f"{record['kernel']} on {machine['gpu']}: {shape}, {record['dtype']}", fontsize=style.TEXT_SIZE)
    reached = ", ".join(f"{row['rung']} {row['fraction_of_limit']:.2g}" for row in rungs)
    figure.alt = f"Horizontal bars, a rung each: {reached} of the speed of {ceiling}, which a dashed line marks at 1."
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, {machine['date']}")
    width = max(map(len, names))
    for row in rungs:
        share = row["fraction_of_limit"]
        share = f"{share:.2f}" if share >= 0.0095 else f"{share:.1g}"
        print(f"{row['rung']:<{width}}  {_ms(row['ms']):>9}  {_times(first / row['ms']):>6}  {share:>6} of the limit")
    return figure


def sweep(lesson: str, name: str, *, predicted: Callable | None = None, label: str = ""):
    """Draw a recorded sweep of a lesson's kernel: time against the parameter, and over it what the lesson's box predicts.

    predicted: function of the parameter's value whose *shape* is claimed; it is scaled to meet the fastest point.
    label: the parameter, as the axis shall name it.
    """
    from kernels.lab import style

    record = recorded(f"ladder_{lesson}")
    found = {sweep["name"]: sweep for sweep in record["sweeps"]}
    if name not in found:
        raise ValueError(f"name is {name!r}: recorded for lesson {lesson} are the sweeps {', '.join(found) or 'none'}")
    rows = found[name]["rows"]
    values, times = [row["value"] for row in rows], [row["ms"] for row in rows]
    figure, axes = style.picture(5.6, 3.0)
    ax = axes[0, 0]
    at = range(len(values))
    ax.plot(at, times, color=style.INKS[0], marker="o", label="measured")
    note = {"textcoords": "offset points", "fontsize": style.NOTE_SIZE}
    ax.annotate("measured", (at[-1], times[-1]), (6, 0), color=style.INKS[0], **note)
    alt = f"Time against {label or name}: " + ", ".join(f"{v}: {_ms(t)}" for v, t in zip(values, times)) + "."
    if predicted:
        wanted = [predicted(value) for value in values]
        best = min(at, key=times.__getitem__)
        scaled = [w / wanted[best] * times[best] for w in wanted]
        ax.plot(at, scaled, color=style.INKS[1], linestyle="--")
        ax.annotate("the box", (at[0], scaled[0]), (6, 4), color=style.INKS[1], **note)
        alt += " A dashed line is what the box predicts, scaled to meet the fastest point."
    ax.set_xticks(at, [str(value) for value in values])
    ax.set_xlabel(label or name)
    ax.set_ylabel("ms")
    ax.set_ylim(0, 1.15 * max(times))
    ax.margins(x=0.12)
    ax.set_title(f"{record['kernel']} on {record['machine']['gpu']}", fontsize=style.TEXT_SIZE)
    figure.alt = alt
    return figure


def _shown(rungs: list[dict], upto: str | None) -> list[dict]:
    """The lesson's rungs in their order, then the finished operator, then peers, slowest first."""
    own = [row for row in rungs if row["kind"] == "lesson"]
    if upto is not None:
        labels = [row["rung"] for row in own]
        if upto not in labels:
            raise ValueError(f"upto is {upto!r}: the lesson's rungs are {', '.join(labels)}")
        return own[: labels.index(upto) + 1]
    finished = [row for row in rungs if row["kind"] == "finished"]
    peers = sorted((row for row in rungs if row["kind"] == "peer"), key=lambda row: -row["ms"])
    return [*own, *finished, *peers]


def _look(style, series: int) -> dict:
    return {"facecolor": style.FILLS[series], "hatch": {4: "////", 7: "...."}.get(series)}


def _ms(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1e3:.3g} s"


def _times(factor: float) -> str:
    return f"{factor:.0f}×" if factor >= 9.95 else f"{factor:.1f}×"
