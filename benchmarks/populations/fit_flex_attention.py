"""Fit the model of cost of flex attention's Hopper backward to recorded times: ``python -m
benchmarks.populations.fit_flex_attention RECORD ...``.

Reads what ``measure tune_flex_attention`` recorded and writes ``kernels/flex_attention/hopper/costs.json``. Nothing is
measured here, so it runs anywhere. What is minimised are the squares of log(predicted / measured) of the layers of the tuning
half, and of no model, those of slow cuts weighing less; the held-out half only shows what would be chosen.
"""

import argparse
import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from scipy.optimize import least_squares

from benchmarks.populations import tune_flex_attention as tune
from kernels.common import configs
from kernels.flex_attention import problem, stored_ds
from kernels.flex_attention.hopper import cost, scheduler

PATH = Path(cost.__file__).parent / "costs.json"
PROCESSORS = {"NVIDIA H200": 132}
#: Where the search begins: ms, bytes of a ms, and TFLOP/s.
GUESS = {
    "launch": 0.006, "memory": 3.5e9,
    "rates": {
        "64": {"dkdv": 500, "dq_from_ds": 400, "counters": 450, "dq": 250},
        "128": {"dkdv": 600, "dq_from_ds": 600, "counters": 500, "dq": 300},
        "256": {"dkdv": 600, "dq_from_ds": 600, "counters": None, "dq": 200},
    },
}  # fmt: skip
SHARED = ("launch", "memory")
RATES = ("dkdv", "dq_from_ds", "counters", "dq")
FIRM = 0.1  # how much a parameter that is e times its guess adds, squared
SLOW, LITTLE = 1.3, 0.3  # cuts that take so many times the fastest one's time weigh so much
WRONG = 8e-3  # an error of bfloat16 is a third of it
PRECISION = 4  # digits


class Point(NamedTuple):
    """A measured time in ms: of which row, problem and cut, and of what, ``all`` or all but ds's product (``dkdv``)."""

    row: int
    problem: Any
    cut: cost.Cut
    what: str
    ms: float
    weight: float


@contextlib.contextmanager
def on(gpu):
    """Within, plans are made for this GPU, which need not be there."""
    says = lambda kernel, key, device: configs.of_gpu(gpu, "flex_attention", kernel, key)  # noqa: E731
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(problem, "table_options", says))
        for module in (scheduler, stored_ds):
            stack.enter_context(mock.patch.object(module, "multiprocessors", lambda device: PROCESSORS[gpu]))
        yield


def problem_of(layer):
    """The ``Problem`` of a layer whose tensors TMA can read; they are one number here."""
    sizes = ((layer["H"], "M"), (layer["Hkv"], "N"), (layer["Hkv"], "N"))
    one = torch.zeros(1, dtype=torch.bfloat16)
    q, k, v = (one.expand(layer["B"], heads, layer[length], layer["D"]) for heads, length in sizes)
    p = tune.looked_up(layer, q, k, v)[0].problem
    return dataclasses.replace(p, layouts={name: (strides, True) for name, (strides, _) in p.layouts.items()})


def cut_of(said):
    """A recorded cut."""
    return cost.Cut(*(said[name] for name in cost.Cut._fields[:-1]), 0.0)


def points_of(measured):
    """Every time of a cut that was right."""
    found = []
    for i, row in enumerate(measured):
        p = problem_of(row["shape"])
        right = [cut for cut in row["cuts"] if cut["same_bits"] and cut["error"] < WRONG and cut["off"] < WRONG]
        fastest = min(cut["ms"] for cut in right)
        for cut in right:
            weight = 1.0 if cut["ms"] < SLOW * fastest else LITTLE
            found.append(Point(i, p, cut_of(cut), "all", cut["ms"], weight))
            if "dkdv_ms" in cut:
                found.append(Point(i, p, cut_of(cut), "dkdv", cut["dkdv_ms"], weight))
    return found


def time_of(known, point):
    """Predicted ms of a point."""
    rest, product = cost.terms(point.problem, point.cut, known)
    return rest + product if point.what == "all" else rest


def fit(points, known):
    """``known`` with the parameters that predict the points best; those no point depends on stay."""
    names = [(name,) for name in SHARED]
    names += [("rates", d, rate) for d, rates in known["rates"].items() for rate in RATES if rates[rate]]
    begin = np.log([_get(known, name) for name in names])

    def off(x):
        costs = _with(known, names, np.exp(x))
        errors = [point.weight * math.log(time_of(costs, point) / point.ms) for point in points]
        return np.array([*errors, *(FIRM * (x - begin))])

    found = least_squares(off, begin, diff_step=1e-3)
    return _with(known, names, np.exp(found.x))


def _get(known, name):
    return known[name[0]] if len(name) == 1 else known["rates"][name[1]][name[2]]


def _with(known, names, values):
    changed = {**known, "rates": {d: dict(rates) for d, rates in known["rates"].items()}}
    for name, value in zip(names, values, strict=True):
        inside = changed if len(name) == 1 else changed["rates"][name[1]]
        inside[name[-1]] = float(f"{value:.{PRECISION}g}")
    return changed


def quality(known, points):
    """``{row: (time of the fastest cut over that of the chosen one, chosen cut)}`` among the measured ones; a row's first is
    what runs uncut."""
    rows = {}
    for point in points:
        if point.what == "all":
            rows.setdefault(point.row, []).append(point)
    found = {}
    for row, of_row in rows.items():
        points_of_cuts = {point.cut._replace(time=time_of(known, point)): point for point in of_row}
        usual, *others = points_of_cuts
        chosen = points_of_cuts[cost.choice(of_row[0].problem, usual, others) or usual]
        found[row] = min(point.ms for point in of_row) / chosen.ms, chosen
    return found


def show(title, known, measured, points):
    """What is chosen for the rows, and how far off the predictions are."""
    off = [math.log(time_of(known, point) / point.ms) for point in points]
    answers = quality(known, points)
    print(f"{title}: {len(points)} times of {len(answers)} layers, predicted within a factor of {math.exp(np.std(off)):.3f}")
    for row, (ratio, chosen) in answers.items():
        layer = " ".join(f"{name} {value}" for name, value in measured[row]["shape"].items() if name != "N")
        uncut = measured[row]["cuts"][0]["ms"] / chosen.ms
        peer = f", {measured[row]['cudnn_ms'] / chosen.ms:.2f} of cuDNN's speed" if "cudnn_ms" in measured[row] else ""
        predicted = time_of(known, chosen) / chosen.ms
        print(f"  {layer}: {ratio:.3f} of the fastest, {uncut:.2f} times as fast as uncut{peer}")
        print(f"    {chosen.cut}: predicted / measured {predicted:.2f}")
    ratios = [ratio for ratio, _ in answers.values()]
    print(f"chosen / fastest, geometric mean: {math.exp(np.mean(np.log(ratios))):.3f}, worst {min(ratios):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", type=Path, help="files that measure has written")
    records = [json.loads(path.read_text()) for path in parser.parse_args().records]
    gpu, measured = records[0]["machine"]["gpu"], [row for record in records for row in record["rows"]]
    with on(gpu):
        points = points_of(measured)
        tuning = [point for point in points if measured[point.row]["half"] == "tuning"]
        known = fit(tuning, {**GUESS, "multiprocessors": PROCESSORS[gpu]})
        show("tuning", known, measured, tuning)
        show("held out", known, measured, [point for point in points if measured[point.row]["half"] == "held_out"])
    fitted = {
        "made_by": "python -m benchmarks.populations.fit_flex_attention",
        "records": [f"{record['machine']['commit']} {record['machine']['date']}" for record in records],
    }
    PATH.write_text(json.dumps({gpu: {"fitted": fitted, **known}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
