"""Fit the model of the weight gradient's cost to times of candidates: ``python -m benchmarks.populations.fit RECORD ...``.

Reads what ``measure tune_conv_wgrad`` recorded of the tuning half, and writes ``kernels/conv_wgrad/costs.json``. Nothing is
measured here, so it runs anywhere. What is minimised are the squares of log(predicted / measured), those of slow candidates
weighing less: which of the fast ones is the fastest is what the choice depends on.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from benchmarks.populations.candidates import points_of
from kernels.conv_wgrad import cost

PATH = Path(cost.__file__).parent / "costs.json"

PROCESSORS = {"NVIDIA H200": 132}
GUESS = {  # where the search for a GPU's parameters begins; microseconds, and bytes of one
    "launch": 4.0, "bandwidth": 4.2e6, "sum": 2.0, "turn": 0.5, "partials": 5e6, "copies": 4e5, "astray": 0.2,
    "start": {"product": 1.5, "hopper": 3.0, "depthwise": 2.0},
}  # fmt: skip
MULTIPLICATIONS = 5e6 / 2  # of a multiprocessor in a microsecond, in matrix units: a guess
VALUES = 45e3  # that a multiprocessor reads in a microsecond: a guess
SUMS = 0.005  # microseconds of a multiprocessor for a thousand multiplications that are none: a guess
FIRM, LOOSE = 0.3, 0.05  # how much a parameter that is e times its guess adds, squared: of the GPU, of a tile


def guess_of(kind, tile):
    """``busy`` and ``alone`` to begin with."""
    if kind == "depthwise":
        return SUMS, 4 * SUMS
    multiplications = tile["BLOCK_M"] * tile["BLOCK_N"] * tile["BLOCK_K"] * tile.get("GROUPS", 1)
    values = tile["BLOCK_K"] * (tile["BLOCK_M"] + tile["BLOCK_N"] * tile.get("GROUPS", 1))
    return max(1.2 * multiplications / MULTIPLICATIONS, values / VALUES), multiplications / MULTIPLICATIONS


class Parameters:
    """Costs as a vector of logarithms, for the solver, and back."""

    def __init__(self, points, processors):
        self.processors = processors
        self.tiles = sorted({(p.kind, p.tile) for p in points})
        self.flat = [name for name in GUESS if name != "start"]
        self.ways = list(GUESS["start"])
        guesses = [guess_of(kind, json.loads(tile)) for kind, tile in self.tiles]
        general = [GUESS[name] for name in self.flat] + [GUESS["start"][name] for name in self.ways]
        self.begin = np.log(np.array(general + [guess for pair in guesses for guess in pair]))
        self.weights = np.array([FIRM] * len(general) + [LOOSE] * 2 * len(guesses))

    def concern(self, points):
        """Which residual depends on which parameter: a tile's on no other tile's, so that few are varied at a time."""
        general, place = len(self.begin) - 2 * len(self.tiles), {key: i for i, key in enumerate(self.tiles)}
        concern = lil_matrix((len(points) + len(self.begin), len(self.begin)), dtype=int)
        concern[: len(points), :general] = 1
        for row, p in enumerate(points):
            own = general + 2 * place[p.kind, p.tile]
            concern[row, own : own + 2] = 1
        concern.setdiag(1, -len(points))
        return concern

    def costs(self, vector):
        """As ``costs.json`` holds them, but tiles by (kind, tile)."""
        values = np.exp(vector).tolist()
        costs = dict(zip(self.flat, values, strict=False))
        costs["start"] = dict(zip(self.ways, values[len(self.flat) :], strict=False))
        of_tiles = values[len(self.flat) + len(self.ways) :]
        tiles = {key: {"busy": of_tiles[2 * i], "alone": of_tiles[2 * i + 1]} for i, key in enumerate(self.tiles)}
        return costs | {"multiprocessors": self.processors, "tiles": tiles}


def time_of(costs, point):
    """Microseconds of a point by the model."""
    tile = json.loads(point.tile) | costs["tiles"][point.kind, point.tile]
    return cost.predicted(costs, point.kind.split()[0], tile, point.load)


def fit(points, processors):
    """The ``costs`` that are nearest to the points."""
    parameters = Parameters(points, processors)
    best = {row: min(p.us for p in points if p.row == row) for row in {p.row for p in points}}
    weights = np.array([p.weight * best[p.row] / p.us for p in points])

    def residuals(vector):
        costs = parameters.costs(vector)
        off = np.array([math.log(time_of(costs, p) / p.us) for p in points])
        return np.concatenate([weights * off, parameters.weights * (vector - parameters.begin)])

    found = least_squares(residuals, parameters.begin, max_nfev=40, jac_sparsity=parameters.concern(points))
    return parameters.costs(found.x)


def quality(costs, points):
    """``[(row, fastest / chosen)]``: how near the candidate that the costs choose comes to the fastest that was measured."""
    answers = []
    for row in sorted({p.row for p in points}):
        of_row = [p for p in points if p.row == row and (p.kind, p.tile) in costs["tiles"]]
        chosen = min(of_row, key=lambda p: time_of(costs, p))
        answers.append((row, min(p.us for p in of_row) / chosen.us))
    return answers


def geometric_mean(values):
    """Of positive numbers, one at least."""
    if not values or min(values) <= 0:
        raise ValueError(f"values are {values}, needs positive numbers, one at least")
    return math.exp(sum(map(math.log, values)) / len(values))


def as_table(costs):
    """Costs as ``costs.json`` holds them: numbers of four digits, tiles by kind, each with its options."""
    short = lambda x: {k: short(v) for k, v in x.items()} if isinstance(x, dict) else float(f"{x:.4g}")  # noqa: E731
    tiles = {}
    for (kind, tile), own in costs["tiles"].items():
        tiles.setdefault(kind, []).append(json.loads(tile) | short(own))
    general = {name: short(value) for name, value in costs.items() if name not in ("tiles", "multiprocessors")}
    return {"multiprocessors": costs["multiprocessors"], **general, "tiles": tiles}


def dump(table):
    """The table as ``costs.json`` holds it: a line for what is of the GPU, and one for each tile."""
    gpus = []
    for gpu, own in table.items():
        line = lambda tile: "  " + json.dumps(tile)  # noqa: E731
        kinds = [f" {json.dumps(kind)}: [\n" + ",\n".join(map(line, tiles)) + "]" for kind, tiles in own["tiles"].items()]
        general = json.dumps({name: value for name, value in own.items() if name != "tiles"})
        gpus.append(f'{json.dumps(gpu)}: {general[:-1]}, "tiles": {{\n' + ",\n".join(kinds) + "}}")
    return "{" + ",\n".join(gpus) + "}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", type=Path, help="files that measure has written")
    records = [json.loads(path.read_text()) for path in parser.parse_args().records]
    gpu = records[0]["machine"]["gpu"]
    if gpu not in PROCESSORS:
        parser.error(f"records are of {gpu}, needs one of {', '.join(PROCESSORS)}: add its multiprocessors")
    measured = [row for record in records for row in record["rows"] if row["half"] == "tuning"]
    points = points_of(measured)
    costs = fit(points, PROCESSORS[gpu])
    off = [math.log(time_of(costs, p) / p.us) for p in points]
    print(
        f"{len(points)} candidates of {len(measured)} layers: predicted within a factor of {math.exp(np.std(off)):.2f}"
    )
    answers = quality(costs, points)
    for row, ratio in answers:
        layer = measured[row]["shape"]
        what = f"{measured[row]['kind']:9} {layer['Ci']}->{layer['Co']} @{layer['H']} N{layer['N']}"
        print(f"{what}: {ratio:.2f} of the fastest")
    print(f"chosen / fastest, geometric mean: {geometric_mean([ratio for _, ratio in answers]):.3f}")
    provenance = {
        "made_by": "python -m benchmarks.populations.fit",
        "records": [f"{record['machine']['commit']} {record['machine']['date']}" for record in records],
    }
    PATH.write_text(dump({gpu: {"fitted": provenance, **as_table(costs)}}))


if __name__ == "__main__":
    main()
