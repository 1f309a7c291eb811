"""docs/speed.md from the recorded populations: ``python -m benchmarks.populations.report``. No number is typed by hand."""

import argparse
import math
import re
from pathlib import Path

from matplotlib.ticker import LogLocator, ScalarFormatter

from benchmarks import harness, tables
from benchmarks.populations import population
from kernels.lab import style
from kernels.lab.machine_record import numbers
from kernels.lab.roofline import recorded

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "speed.md"
OPERATORS = {  # in the page's order: what it is, and its peers
    "conv_wgrad": "Weight gradients of convolutions",
    "flex_attention": "Flex attention",
    "recurrent_attention": "Recurrent attention",
    "dynamic_conv": "Dynamic convolution",
}
WASTE, PARTIAL = 1.15, 0.2  # from where on tile waste, and partial sums' share of all bytes, are worth a word
KEYS = 128  # of a tile in a backward pass
BUSY = 0.9  # of the multiprocessors: launches of fewer programs than that are told
SLIGHT = 0.9  # from this ratio on, a row that is behind is named without what was measured of it
HALVES = ("tuning", "held_out", population.DRAWN)
PROCESSORS = {"NVIDIA H200": 132}  # of records that do not say it
PEER = {"flex_attention": "FlashAttention-4"}  # a peer that must be named where it is missing
TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20)

HEAD = """# How fast, on layers of real models

Made by `python -m benchmarks.populations.report` from the records in [benchmarks/results](../benchmarks/results).

The layers are read from models' configurations by a program (`python -m benchmarks.populations.extract`), and the models are
dealt into two halves by their names' hashes. Choices are fitted on the tuning half alone; the held-out half is only measured.
A third set was drawn when the choices had been made, from configurations that neither half has, each with its source
([data](../benchmarks/populations/data/drawn)).

Ours and its peers take turns call by call, replayed from CUDA graphs where they can be captured, with the L2 cache flushed
before every call. A ratio is the best peer's time over ours: above 1, ours is ahead.

What your own GPU does of it, `python -m benchmarks.here` says in two minutes.
"""


def records(operator, folder=harness.RESULTS):
    """The recorded populations, ``{gpu: {half: record}}``; a record of both halves is taken apart, and ``of`` says whose it
    is."""
    found = {}
    for half in (*HALVES, "both"):
        for path in sorted(folder.glob(f"population_{operator}_{half}*.json")):
            record = harness.read(path.stem, folder)
            for own in population.HALVES if half == "both" else (half,):
                if rows := [row for row in record["rows"] if row["half"] == own]:
                    found.setdefault(record["machine"]["gpu"], {})[own] = record | {"rows": rows, "of": half}
    return dict(sorted(found.items()))


def ratio(row):
    """How many times faster than its best peer a row is, or ``None`` where no peer ran."""
    best = population.best_peer(row)
    return best and best["ms"] / row["ours_ms"]


def summary(rows):
    """``(layers, geometric mean, worst, share ahead)`` of rows that a peer ran beside."""
    ratios = [found for row in rows if (found := ratio(row))]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return len(ratios), mean, min(ratios), sum(found > 1 for found in ratios) / len(ratios)


def by_peer(rows):
    """``{(pass, peer): summary}`` of ratios to each peer alone, where it is not the only one of the only pass."""
    found = {}
    for row in rows:
        for peer in population.ran(row):
            found.setdefault((row["pass"], peer["name"]), []).append(row | {"peers": [peer]})
    return {which: summary(those) for which, those in sorted(found.items())} if len(found) > 1 else {}


def layer_of(row):
    """A row's layer in words."""
    shape = row["shape"]
    if "Ci" in shape:
        filters = f"{shape['R']}×{shape['S']}" + f"/{shape['stride'][0]}" * (shape["stride"] != [1, 1])
        groups = f", {shape['groups']} groups" * (shape["groups"] > 1)
        return f"{filters} {shape['Ci']}→{shape['Co']} @{shape['H']}{groups}, N {shape['N']}"
    shape = shape | ({"lengths": len(shape["lengths"])} if "lengths" in shape else {})  # of documents: how many
    said = [str(value) if name in ("variant", "gate") else f"{name} {value}" for name, value in shape.items()]
    return ", ".join([*said, row["pass"]])


def partial_sums(shape, explained):
    """Elements of a weight gradient's partial sums, which are written and read: of all tiles' splits where a second launch
    adds them; where a tile's last program did, of the others of the tiles that were cut."""
    fix_up = "(, stream-K fix-up|, partial sums joined)?"  # as older records say of launches that added them themselves
    split = re.search(r"(\d+) tiles, split-K (\d+)(, the rests end to end)?" + fix_up, explained)
    if not split:
        return 0
    tiles, splits = int(split[1]), int(split[2])
    if split[4]:
        sizes = re.search(r"BLOCK_M (\d+), BLOCK_N (\d+), .*?GROUPS (\d+)", explained).groups()
        return tiles * (splits - 1 + bool(split[3])) * math.prod(map(int, sizes))
    return (splits > 1) * splits * shape["Co"] * shape["R"] * shape["S"] * shape["Ci"] // shape["groups"]


def rates(row, machine):
    """How near a row is to the machine's two ceilings: shares of the rates of a copy and of a matrix product, as text."""
    ceilings = harness.CEILINGS.values()
    return [f"{harness.fraction(row[of], row['ours_ms'], machine[best]):.0%}" if of in row else "" for of, best in ceilings]


def reason(row, machine):
    """What a row's launch adds to the least, or leaves idle; of attention, where nothing of that is known, what runs."""
    said = []
    explained, many = row.get("explained", ""), machine.get("multiprocessors") or PROCESSORS.get(machine["gpu"], 0)
    if whole := re.search(r"(\d+) tiles, split-K (\d+);", explained):
        programs = int(whole[1]) * int(whole[2])
        together = 2 if "num_ctas 2" in explained else 1
        if programs * together < BUSY * many:
            said.append(f"{programs} {'pairs' if together == 2 else 'programs'} for {many} multiprocessors")
    if (waste := re.search(r"tile waste ([\d.]+)", explained)) and float(waste[1]) > WASTE:
        said.append(f"its tiles hold {waste[1]} times the product")
    if "Co" in row["shape"] and (partial := 8 * partial_sums(row["shape"], explained)) > PARTIAL * row["bytes"]:
        said.append(f"partial sums of {partial / row['bytes']:.1f} times the tensors' bytes")
    if row.get("kernel") == "flex_attention" and row["pass"] == "backward":
        shape = row["shape"]
        tiles = shape["B"] * shape["Hkv"] * -(-shape["N"] // KEYS)
        if tiles < 2 * many:
            said.append(f"{tiles} tiles of keys in all, of unequal work, for {many} multiprocessors")
    if "rests end to end" in explained:
        said.append("programs that begin within a tile")
    if not said and (ran := re.search(rf"^{row.get('pass')}: (.*)$", explained, re.MULTILINE)):
        said.append(ran[1].partition(", because")[0])
    return "; ".join(said)


def behind(record, half="held_out"):
    """Lines that name a record's rows that a peer is ahead on, worst first: a table of those that are clearly behind, with
    what was measured of them, and a list of the others."""
    machine = record["machine"]
    rows = sorted((row for row in record["rows"] if (ratio(row) or 1) < 1), key=ratio)
    title = f"{words(half).capitalize()} layers that are behind on the {tables.short(machine['gpu'])}"
    lines = []
    if clear := [row for row in rows if ratio(row) < SLIGHT]:
        lines += [f"{title}; copy, product: shares of what these two reached.", ""]
        lines += ["| layer | in | ratio | ours, ms | best peer | copy | product | |", "|---|---|---|---|---|---|---|---|"]
    for row in clear:
        best = population.best_peer(row)
        models = row["models"][0] + f" and {len(row['models']) - 1} more" * (len(row["models"]) > 1)
        cells = [
            layer_of(row), models, f"{ratio(row):.2f}", f"{row['ours_ms']:.4f}", f"{best['name']}, {best['ms']:.4f}",
            *rates(row, machine), reason(row, machine),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if slight := [f"{layer_of(row)} ({ratio(row):.2f})" for row in rows if ratio(row) >= SLIGHT]:
        lines += [""] * bool(lines) + [f"{title} by less than {1 - SLIGHT:.0%}: {'; '.join(slight)}."]
    return lines


def each(found):
    """``(gpu, half, record)`` of what was recorded."""
    return [(gpu, half, record) for gpu, halves in found.items() for half, record in halves.items()]


def alt(operator, found):
    """What the operator's plot looks like, for whoever cannot see it."""
    said = [f"{OPERATORS[operator]}: a dot for each layer, its time to the right, times faster than the best peer upwards."]
    for gpu, half, record in each(found):
        layers, mean, worst, ahead = summary(record["rows"])
        best = max(filter(None, map(ratio, record["rows"])))
        said.append(
            f"{layers} {'hollow' if half == 'tuning' else 'filled'} dots of the {part(half)}, on an "
            f"{tables.short(gpu)}, lie between {worst:.2f} and {best:.2f}, {ahead:.0%} of them above the line at 1; their "
            f"geometric mean is {mean:.2f}."
        )
    return " ".join(said)


def words(half):
    """A half's name as text."""
    return half.replace("_", "-")


def part(half):
    """The same as a noun."""
    return "drawn set" if half == population.DRAWN else f"{words(half)} half"


def plot(operator, found):
    """The operator's picture."""
    figure, axes = style.picture(7.2, 3.4)
    ax = axes[0, 0]
    ratios = []
    for series, (gpu, half, record) in enumerate(each(found)):
        rows = [row for row in record["rows"] if ratio(row)]
        x, y = [1000 * row["ours_ms"] for row in rows], [ratio(row) for row in rows]
        label = f"{tables.short(gpu)}, {part(half)}, {len(rows)} layers"
        style.points(ax, x, y, series, label, solid=half != "tuning")
        ratios += y
    ax.axhline(1, color="black", linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="our time, µs", ylabel="times faster than the best peer")
    ax.set_yticks(ticks := [tick for tick in TICKS if tick <= max(5, *ratios)], [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.minorticks_off()
    ax.grid(color=style.GRID, linewidth=0.5)
    ax.legend(fontsize=style.NOTE_SIZE)
    figure.alt = alt(operator, found)
    return figure


def later(halves):
    """Which rows were measured after their record, in words that follow a sentence."""
    new = [tuple(row["renewed"].values()) for record in halves.values() for row in record["rows"] if "renewed" in row]
    rows = lambda n: f"{n} row{'s' * (n > 1)}"  # noqa: E731
    said = [f"{rows(new.count(one))} measured again: commit {one[0]}, {one[1]}." for one in sorted(set(new))]
    return "".join(" " + words for words in said)


def _of_the_peak(machine):
    """What the run's large product is of the machine's one peak, as text, where that was recorded."""
    if machine["gpu"] != recorded("machine")["machine"]["gpu"]:
        return ""
    peak = numbers()["tensor_tflop_per_s"]
    return f", {machine['matmul_tflop_per_s'] / peak:.2f} of the machine's peak of {peak}"


def measured_on(operator, halves):
    """What a card's numbers were taken on, and what is missing; records of other days each say it."""
    days = {}
    for half, record in halves.items():
        days.setdefault(str(record["machine"]), {})[half] = record
    lines = []
    for those in days.values():
        machine = next(iter(those.values()))["machine"]
        whose = f"{', '.join(map(part, those)).capitalize()}: one" if len(days) > 1 else "One"
        peer = PEER.get(operator)
        ran = {one["name"] for record in those.values() for row in record["rows"] for one in row["peers"] if "ms" in one}
        lines += [
            f"{whose} {machine['gpu']}, torch {machine['torch']}, Triton {machine['triton']}, commit {machine['commit']}, "
            f"{machine['date']}.{later(those)}",
            f"Copy rate {machine['copy_tb_per_s']} TB/s; a large matrix product, timed in the same run: "
            f"{machine['matmul_tflop_per_s']} TFLOP/s{_of_the_peak(machine)}."
            + (f" {peer} did not run there." if peer and peer not in ran else ""),
        ]
        for half, left_out in {record["of"]: record.get("left_out") for record in those.values()}.items():
            if left_out:
                of = "both halves" if half == "both" else f"the {part(half)}"
                lines.append(f"Layers not measured: {left_out} of {of}.")
        for half, record in those.items():
            lines += wrong_peers(record["rows"])
            for failed in record["failed"]:
                lines += ["", f"Failed of the {part(half)}: {failed['case']}: {failed['error']}"]
        lines.append("")
    return lines


def wrong_peers(rows):
    """Where peers' results were wrong, so that their times don't count."""
    found = {}
    for row in rows:
        for peer in population.ran(row, wrong=True):
            found.setdefault(peer["name"], []).append(f"{layer_of(row)} (relative error {peer['relative_error']:.1f})")
    return [f"{name} was wrong, and does not count, in {'; '.join(layers)}." for name, layers in found.items()]


def comparison(found):
    """The table of means: a line for each half and peer, four columns for each card."""
    lines = {}
    for gpu, half, record in each(found):
        beside = {"the best peer of each row": summary(record["rows"])}
        beside |= {f"{peer}, {which}": its for (which, peer), its in by_peer(record["rows"]).items()}
        for peer, (rows, mean, worst, ahead) in beside.items():
            lines.setdefault((half, peer), {})[gpu] = f"{rows} | {mean:.2f} | {worst:.2f} | {ahead:.0%}"
    columns = [f"{tables.short(gpu)}: rows | geometric mean | worst | ahead" for gpu in found]
    text = [f"| half | beside | {' | '.join(columns)} |", "|" + "---|" * (2 + 4 * len(found))]
    for half, peer in sorted(lines, key=lambda line: HALVES.index(line[0])):
        cells = [lines[half, peer].get(gpu, " | | | ") for gpu in found]
        text.append(f"| {words(half)} | {peer} | {' | '.join(cells)} |")
    return text


def section(operator, found):
    """The operator's part of the page."""
    lines = [f"## {OPERATORS[operator]}", ""]
    if not found:
        data = population.record(operator)
        many = len(data["layers"])
        link = f"[{operator}.json](../benchmarks/populations/data/{operator}.json)"
        return [*lines, f"{many} layers of {len(data['models'])} models wait in {link}; no GPU has measured them yet.", ""]
    for halves in found.values():
        lines += measured_on(operator, halves)
    if not any(population.DRAWN in halves for halves in found.values()):
        many = len(population.layers(operator, population.DRAWN))
        lines += [f"The {many} layers that were drawn later have not been measured yet.", ""]
    lines += [f"![{alt(operator, found)}](images/speed_{operator}.png)", "", *comparison(found)]
    for _, half, record in each(found):
        if half != "tuning" and (named := behind(record, half)):
            lines += ["", *named]
    return [*lines, ""]


def elsewhere(gpus):
    """What was never measured, and which table of tiles a GPU of each architecture takes."""
    measured = [tables.short(gpu) for gpu in gpus]
    known = {name for name, names in tables.ARCHITECTURES.values() if set(names) & set(measured)}
    unknown = sorted({name for name, _ in tables.ARCHITECTURES.values()} - known)
    lines = [
        "## GPUs that nobody has measured",
        "",
        f"Every number above is of the {' or the '.join(measured)}; how fast {', '.join(unknown)} is, nobody knows.",
        "Warp-specialised kernels are Hopper's; elsewhere those for any GPU run. Their tiles are of the table that it takes:",
        "",
        f"| architecture | such as | measured | {' | '.join(tables.OPERATORS)} |",
        "|" + "---|" * (3 + len(tables.OPERATORS)),
    ]
    for architecture, (name, names) in tables.ARCHITECTURES.items():
        taken = [tables.short(tables.table_of(operator, architecture)[1]) for operator in tables.OPERATORS]
        own = ", ".join(gpu for gpu in measured if gpu in names) or "never"
        cells = ["any GPU's" if table == "any" else f"the {table}'s" for table in taken]
        lines.append(f"| {architecture}, {name} | {', '.join(names)} | {own} | {' | '.join(cells)} |")
    return [*lines, "", "`python -m benchmarks.tune` makes a table for a GPU of your own (CONTRIBUTING.md).", ""]


def page(folder=harness.RESULTS):
    """The page's text, of the records in a folder."""
    found = {operator: records(operator, folder) for operator in OPERATORS}
    gpus = sorted({gpu for halves in found.values() for gpu in halves})
    lines = [line for operator in OPERATORS for line in section(operator, found[operator])]
    return HEAD + "\n" + "\n".join(lines + elsewhere(gpus))


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())
    for operator in OPERATORS:
        if found := records(operator):
            (DOCS / "images" / f"speed_{operator}.png").write_bytes(plot(operator, found).png())
    print(PAGE)


if __name__ == "__main__":
    main()
