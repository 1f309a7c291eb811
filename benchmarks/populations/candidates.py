"""What the model of the weight gradient's cost is fitted to: candidates that ``measure tune_conv_wgrad`` recorded."""

import json
from typing import NamedTuple

import torch

from benchmarks.populations import conv_wgrad as rows
from kernels.conv_wgrad import cost, depthwise, hopper, operator, portable, problem

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
    """Every candidate that was timed and right, of rows as ``tune_conv_wgrad`` records them; of older records none whose
    launch added its partial sums itself or put them in another order, whose programs began within a tile, or were pairs:
    no kernel does that any more."""
    found = []
    for i, row in enumerate(measured):
        layer = {name: value for name, value in row["shape"].items() if name != "N"}
        g = rows.geometry_of(layer, row["shape"]["N"])
        for candidate in row["candidates"]:
            _, blocks, splits, per = candidate["plan"]
            older = "fold" not in candidate and (
                "joined" in candidate or candidate["turned"] or "num_ctas" in candidate["options"] or splits * per < blocks
            )
            if "ms" in candidate and candidate["off"] < 0.02 and not older:
                kind, tile, load = described(problem_of(g, candidate), candidate)
                weight = NAMED if row["models"] == ["named"] else 1.0
                found.append(Point(i, kind, json.dumps(tile), load, 1e3 * candidate["ms"], weight))
    return found


def problem_of(g, candidate):
    """The ``Problem`` that a candidate's kernel was given."""
    x, dy = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (g.input_shape, g.output_shape))
    how = candidate["turned"], candidate.get("fold", 1)
    found = (equivalent.problem for equivalent in problem.equivalents(operator.problem_of(x, dy, g)))
    return next(own for own in found if (own.turned, own.fold) == how)


def described(own, candidate):
    """``(kind, tile, Load)`` of a candidate that ran on a ``Problem``."""
    g, options, (tiles, _, splits, per) = own.g, dict(candidate["options"]), candidate["plan"]
    if candidate["backend"] == "hopper":
        kind, load = hopper.tiles_for(g), hopper.load_of(g, options)
    else:
        options["held"] = options.pop("HELD") // 132
        kind, launched, volume = portable.tiles_for(g), options, 1.0
        if candidate["backend"] == "depthwise":
            filter_rows, taps = depthwise.taps_of(g, options.get("SUMS", 49))
            options["SUMS"] = filter_rows * taps
            launched = options | {"RUN": depthwise.shares(g.Q, options["RUN"])}
            volume = portable.depthwise_volume(g, launched)
        load = portable.load_of(own, launched, options["held"], volume)
    return kind, options, load._replace(items=tiles * splits, per=per, slots=splits * load.slots)
