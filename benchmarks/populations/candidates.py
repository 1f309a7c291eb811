"""What the model of the weight gradient's cost is fitted to: candidates that ``measure tune_conv_wgrad`` recorded."""

import json
from typing import NamedTuple

import torch

from benchmarks.populations import conv_wgrad as rows
from kernels.conv_wgrad import cost, depthwise, operator, portable, problem
from kernels.conv_wgrad.hopper import tma

NAMED = 2.0  # how much more a row of the benchmark of named layers counts


class Point(NamedTuple):
    """A measured candidate: the row it belongs to, its tiles' kind, its tile as text, its ``Load`` and microseconds, and how
    much more than others it counts."""

    row: int
    kind: str
    tile: str
    load: cost.Load
    us: float
    weight: float = 1.0


def points_of(measured):
    """Every candidate that was timed and right, of rows as ``tune_conv_wgrad`` records them; of older records
    none whose launch added its partial sums itself, which no kernel does any more."""
    found = []
    for i, row in enumerate(measured):
        layer = {name: value for name, value in row["shape"].items() if name != "N"}
        g = rows.geometry_of(layer, row["shape"]["N"])
        for candidate in row["candidates"]:
            if "ms" in candidate and candidate["off"] < 0.02 and "joined" not in candidate:
                own = problem.patches_as_channels(g)  # whose roles a turned candidate exchanges
                kind, tile, load = described(problem.turned(own) if candidate["turned"] else own, candidate)
                weight = NAMED if row["models"] == ["named"] else 1.0
                found.append(Point(i, kind, json.dumps(tile), load, 1e3 * candidate["ms"], weight))
    return found


def described(g, candidate):
    """``(kind, tile, Load)`` of a candidate that ran."""
    options, (tiles, blocks, splits, per) = dict(candidate["options"]), candidate["plan"]
    if candidate["backend"] == "hopper":
        work = tma.Work(tiles, blocks, splits, per)
        return tma.tiles_for(g), options, tma.load_of(g, options, work, candidate["turned"])
    held = options.pop("HELD") // 132
    kind, volume = portable.tiles_for(g), 1.0
    if candidate["backend"] == "depthwise":
        filter_rows, taps = depthwise.taps_of(g, options.get("SUMS", 49))
        options["SUMS"] = filter_rows * taps
        launched = options | {"RUN": depthwise.shares(g.Q, options["RUN"])}
        volume = portable.depthwise_volume(g, launched)
    x, dy = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (g.input_shape, g.output_shape))
    own = operator.problem_of(x, dy, g)._replace(turned=candidate["turned"])
    return kind, options | {"held": held}, portable.load_of(own, options, tiles, splits, per, held, volume)
