"""Draw a lesson's ladder: its own kernels as a GPU ran them, one rung for each idea, up to the finished operator, its peers
and the limit; and its sweeps over what the lesson predicted."""

from collections.abc import Callable

from kernels.common.lines import joined, wrapped
from kernels.lab.law import Prediction
from kernels.lab.roofline import recorded

AT_THE_LIMIT = 0.005  # a rung whose share is this near to 1 is the limit: its row says what the limit's would
FAR = 0.25  # where no rung comes nearer than this, the axis ends at the best of them, and says how far the limit is
MISS = 4 / 3  # more than a third, whichever of recorded and predicted is the longer
LOG_FROM = 5  # a sweep whose times span more than this factor is drawn on a logarithmic axis


def ladder(lesson: str, *, upto: str | None = None, predicted: dict[str, Prediction] | None = None):
    """Draw and print the ladder of a lesson, as ``benchmarks/results/ladder_NN.json`` has it.

    lesson: its number, "04".
    upto: the label of the last of the lesson's own rungs to show, for a first look on the way; all unless told.
    predicted: what ``predict`` returned for a rung, by the rung's label. It is drawn over the bar and written beside the
        recorded time, and a miss is marked: the longer of the two times is more than 4/3 of the shorter.

    A bar is how much of the limit's speed a rung reaches; to the right of it stand the time, how many times faster than
    the first rung it is, and the idea that bought it. The limit has a row of its own unless a rung reaches it, or all are
    far from it. Returns the figure. ``FileNotFoundError`` for a ladder that was not recorded, ``ValueError`` for a rung that
    it does not have.
    """
    from kernels.lab import style

    record = recorded(f"ladder_{lesson}")
    rungs = _shown(record["rungs"], upto)
    first = next(row["ms"] for row in rungs if row["kind"] == "lesson")
    ceiling = {"copy": "the fastest copy", "matmul": "the fastest matrix product"}[record["limit"]]
    lines = [(row["rung"], row["ms"], row["fraction_of_limit"], row["idea"], row["kind"]) for row in rungs]
    predicted = _of_the_rungs(predicted or {}, record["rungs"], rungs)
    marks = {rung: record["limit_ms"] / 1e3 / made.seconds for rung, made in predicted.items()}
    best = max([*marks.values(), *(row["fraction_of_limit"] for row in rungs)])
    far = best < FAR and upto is None
    if not far and not any(abs(row["fraction_of_limit"] - 1) < AT_THE_LIMIT for row in rungs):
        lines.append(("the limit", record["limit_ms"], 1.0, "", "limit"))
    figure, axes = style.picture(9.8 if predicted else 8.0, 0.9 + 0.36 * len(lines))
    ax = axes[0, 0]
    series = {"lesson": 0, "finished": 4, "peer": 7}
    for y, (rung, ms, share, idea, kind) in enumerate(lines):
        if kind == "limit":
            ax.barh(y, 1, height=0.62, facecolor="white", edgecolor="black", linewidth=0.8, linestyle="--")
        else:
            ax.barh(y, share, height=0.62, **{**style.bar(0), **_look(style, series[kind])})
        column = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
        texts = [(52, _ms(ms), "right"), (88, _times(first / ms), "right"), (96, idea, "left")]
        if predicted:
            texts[2:] = [(96, _beside(ms, predicted.get(rung)), "left"), (224, idea, "left")]
        for x, text, ha in texts:
            ax.annotate(text, (1, y), (x, 0), ha=ha, fontsize=style.NOTE_SIZE, **column)
        if rung in marks:
            ink = style.INKS[1] if _off(ms, predicted[rung]) > MISS else "black"
            ax.plot([marks[rung]] * 2, [y - 0.42, y + 0.42], color=ink, linewidth=2)
    names = [name for name, *_ in lines]
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    if far:
        ax.set_xlim(0, 1.02 * best)
        ax.set_xlabel(f"share of the speed of {ceiling} of the run, which lies {1 / best:.0f} times as far to the right")
    else:
        ax.set_xlim(0, 1.02 * max(1, best))
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        ax.axvline(1, color="black", linewidth=0.8, linestyle="--")
        ax.set_xlabel(f"share of the limit's speed; the limit: {ceiling} of the run")
    if predicted:
        label = ax.get_xlabel().replace("; ", "\n").replace(", which", ",\nwhich")
        ax.set_xlabel(f"{label}\nmarks: predicted (orange: off by more than a third)")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    shape = ", ".join(f"{name} {size}" for name, size in record["shape"].items())
    machine = record["machine"]
    title = f"{record['kernel']} on {machine['gpu']}: {shape}, {record['dtype']}"
    ax.set_title(title, fontsize=style.TEXT_SIZE, loc="left")
    reached = ", ".join(f"{row['rung']} {row['fraction_of_limit']:.2g}" for row in rungs)
    where = "which lies beyond the axis" if far else "which a dashed line marks at 1"
    figure.alt = f"Horizontal bars, a rung each: {reached} of the speed of {ceiling}, {where}."
    if predicted:
        words = [f"{row['rung']} {_beside(row['ms'], predicted[row['rung']])}" for row in rungs if row["rung"] in predicted]
        figure.alt += f" Upright marks are predictions: {'; '.join(words)}."
    print(wrapped(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, {machine['date']}"))
    head = ("", "ms", "speed", "share", *(("predicted", "off", "by") if predicted else _UNPREDICTED))
    rows = [head, *(_columns(row, first, predicted.get(row["rung"])) for row in rungs)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for rung, *numbers, by in rows:
        cells = [f"{rung:<{widths[0]}}", *(f"{number:>{width}}" for number, width in zip(numbers, widths[1:]))]
        print(wrapped("  ".join([*cells, joined(".+", by)]).rstrip()))
    return figure


_UNPREDICTED = ("", "", "")




def _columns(row: dict, first: float, made: Prediction | None) -> tuple[str, ...]:
    """A rung, its time, how many times the first one's speed and which share of the limit's; then what was predicted."""
    share = row["fraction_of_limit"]
    share = f"{share:.2f}" if share >= 0.0095 else f"{share:.1g}"
    own = row["rung"], _number(row["ms"]), _times(first / row["ms"]), share
    if made is None:
        return *own, *_UNPREDICTED
    off = _off(row["ms"], made)
    return *own, _number(1e3 * made.seconds), _times(off) if off > MISS else "", made.by


def sweep(
    lesson: str, name: str, *, predicted: Callable | None = None, label: str = "",
    what: str = "the box", scaled_to: str = "fastest",
):  # fmt: skip
    """Draw a recorded sweep of a lesson's kernel: time against the parameter, and over it what the lesson's box predicts.

    predicted: function of the parameter's value whose *shape* is claimed; it is scaled to meet a point.
    label: the parameter, as the axis shall name it. what: what predicts. scaled_to: that point, "fastest" or "first".
    """
    from matplotlib.ticker import NullLocator

    from kernels.lab import style

    record = recorded(f"ladder_{lesson}")
    found = {sweep["name"]: sweep for sweep in record["sweeps"]}
    if name not in found:
        raise ValueError(f"name is {name!r}: recorded for lesson {lesson} are the sweeps {', '.join(found) or 'none'}")
    rows = found[name]["rows"]
    values, times = [row["value"] for row in rows], [row["ms"] for row in rows]
    figure, axes = style.picture(6.4, 3.0)
    ax = axes[0, 0]
    at = range(len(values))
    ax.plot(at, times, color=style.INKS[0], marker="o", label="measured")
    ends = [(times[-1], "measured", style.INKS[0])]
    alt = f"Time against {label or name}: " + ", ".join(f"{v}: {_ms(t)}" for v, t in zip(values, times)) + "."
    drawn = list(times)
    if predicted:
        wanted = [predicted(value) for value in values]
        best = 0 if scaled_to == "first" else min(at, key=times.__getitem__)
        scaled = [w / wanted[best] * times[best] for w in wanted]
        ax.plot(at, scaled, color=style.INKS[1], linestyle="--")
        ends.append((scaled[-1], f"{what}, scaled to\nthe {scaled_to} point", style.INKS[1]))
        alt += f" A dashed line is what {what} predicts, scaled to meet the {scaled_to} point."
        drawn += scaled
    ax.set_xticks(at, [str(value) for value in values])
    ax.set_xlabel(label or name)
    if max(drawn) > LOG_FROM * min(drawn):
        ax.set_yscale("log")
        ticks = [t for power in range(-6, 7) for t in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
        ax.set_yticks([t for t in ticks if min(drawn) / 1.5 < t < 1.5 * max(drawn)])
        ax.yaxis.set_major_formatter(lambda t, _: f"{t:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_ylim(min(drawn) / 1.25, max(drawn) * 1.25)
        ax.set_ylabel("ms (log scale)")
        alt += " The axis of times is logarithmic."
    else:
        ax.set_ylim(0, 1.1 * max(drawn))
        ax.set_ylabel("ms")
    ax.set_xlim(-0.4, len(values) - 0.6)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    _name_at_the_end(ax, len(values) - 1, ends, style)
    ax.set_title(f"{record['kernel']} on {record['machine']['gpu']}", fontsize=style.TEXT_SIZE)
    figure.alt = alt
    return figure


def _name_at_the_end(ax, x, ends, style) -> None:
    """Write each line's name to the right of its last point, outside the axes, the higher one above the lower."""
    heights = [ax.transData.transform((x, y))[1] for y, *_ in ends]
    near = len(ends) > 1 and abs(heights[0] - heights[1]) < 30
    upper = heights.index(max(heights))
    for i, (y, text, ink) in enumerate(ends):
        shift = 0 if not near else 11 if i == upper else -11
        place = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
        ax.annotate(text, (1, y), (4, shift), color=ink, fontsize=style.NOTE_SIZE, **place)


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


def _of_the_rungs(predicted: dict[str, Prediction], known: list[dict], shown: list[dict]) -> dict[str, Prediction]:
    """The predictions for the rungs that are shown; each has to be for one that was recorded."""
    labels = [row["rung"] for row in known]
    if strange := [rung for rung in predicted if rung not in labels]:
        raise ValueError(f"predicted names {strange[0]!r}: the rungs are {', '.join(labels)}")
    return {row["rung"]: predicted[row["rung"]] for row in shown if row["rung"] in predicted}


def _off(ms: float, made: Prediction) -> float:
    """The longer of the recorded and the predicted time, over the shorter; a miss is more than ``MISS``."""
    factor = ms / 1e3 / made.seconds
    return max(factor, 1 / factor)


def _beside(ms: float, made: Prediction | None) -> str:
    """A prediction, and by how much its rung missed it."""
    if made is None:
        return ""
    off = _off(ms, made)
    return f"predicted {_ms(1e3 * made.seconds)}" + f", off {_times(off)}" * (off > MISS)


def _look(style, series: int) -> dict:
    return {"facecolor": style.FILLS[series], "hatch": {4: "////", 7: "...."}.get(series)}


def _ms(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1e3:.3g} s"


def _number(ms: float) -> str:
    return f"{ms:.3g}" if ms < 1000 else f"{ms:,.0f}"


def _times(factor: float) -> str:
    return f"{factor:.0f}×" if factor >= 9.95 else f"{factor:.1f}×"
