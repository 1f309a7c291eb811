"""What the model of the weight gradient's cost is fitted to: candidates that a program recorded, as today's kernels would be
asked to run them. Records are older than some kernels, so not every candidate is one."""

import json
import re
from typing import NamedTuple

import torch

from benchmarks.populations import conv_wgrad as rows
from kernels.conv_wgrad import cost, forms, plan, split_k
from kernels.conv_wgrad.gluon import tma
from kernels.conv_wgrad.portable import choice, depthwise

TURNED_APART = 1 << 16  # turned sums that took clearly longer when they were written one by one
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
    """Every candidate that was timed and right, of rows as ``tune_conv_wgrad`` records them."""
    found = []
    for i, row in enumerate(measured):
        layer = {name: value for name, value in row["shape"].items() if name != "N"}
        g = rows.geometry_of(layer, row["shape"]["N"])
        for candidate in row["candidates"] + ran(row):
            seen = form_of(g, candidate)
            if "ms" in candidate and candidate["off"] < 0.02 and usable(seen, candidate) and not changed(seen, candidate):
                kind, tile, load = described(seen, candidate)
                weight = NAMED if row["models"] == ["named"] else 1.0
                found.append(Point(i, kind, json.dumps(tile), load, 1e3 * candidate["ms"], weight))
    return found


def form_of(g, candidate):
    """The ``Geometry`` that a candidate's kernel was given; early records know of one form alone."""
    if "turned" not in candidate:
        return g
    return forms.turned(forms.folded(g)) if candidate["turned"] else forms.folded(g)


def ran(row):
    """What ``conv2d_wgrad`` itself ran, a candidate too, where it is a depthwise kernel, which ``explain`` says all of."""
    said = re.match(r"triton: sums .*?; (BLOCK_M .*?SUMS \d+); (\d+) tiles, split-K (\d+)", row["explained"])
    if not said:
        return []
    options = {name: int(value) for name, value in (pair.split() for pair in said[1].split(", "))}
    layer = {name: value for name, value in row["shape"].items() if name != "N"}
    (_, _, strips), _ = choice.sum_of(rows.geometry_of(layer, row["shape"]["N"]), options)
    blocks = -(-strips // options["BLOCK_K"])
    plan_of = (int(said[2]), blocks, *split_k.pieces(blocks, int(said[3])))
    options["HELD"] = 132 * 16 // options["num_warps"]
    return [{"backend": "depthwise", "options": options, "plan": plan_of, "ms": row["ours_ms"], "off": 0.0}]


def usable(g, candidate):
    """Whether the model would consider it: an early record has tiles that were cut to what they cover."""
    options = candidate["options"]
    if candidate["backend"] == "depthwise":
        return options["BLOCK_M"] < 2 * g.Co
    rows, columns = (g.Co, g.Ci) if candidate["backend"] == "hopper" else choice.sum_of(g, {})[0][:2]
    least = 64 if candidate["backend"] == "hopper" or {"predicted_ms", "turned"} & candidate.keys() else 0
    return options["BLOCK_M"] < 2 * max(rows, least) and options["BLOCK_N"] < 2 * max(columns, least)


def changed(g, candidate):
    """Whether a candidate ran when TMA still brought it blocks of zeros from outside, of 64 channels, as to no last tile of
    today's kernels, or when turned sums were written one by one."""
    options = candidate["options"]
    if candidate.get("turned") and "inside" not in candidate and g.Co * g.columns > TURNED_APART:
        return True
    if candidate.get("inside") or candidate["backend"] == "depthwise" or not options.get("TMA", True):
        return False
    hopper = candidate["backend"] == "hopper"
    rows, columns = (g.Co, g.Ci) if hopper else choice.sum_of(g, {})[0][:2]
    outside = lambda size, tile: -size % tile // 64  # noqa: E731
    chunks = g.R * g.S * -(-columns // options["BLOCK_N"])
    lost = hopper and -chunks % options["GROUPS"]
    read = hopper or g.pointwise
    return bool(outside(rows, options["BLOCK_M"]) or lost or (read and outside(columns, options["BLOCK_N"])))


def described(g, candidate):
    """``(kind, tile, Load)`` of a candidate that ran."""
    options, (tiles, blocks, pieces, per) = dict(candidate["options"]), candidate["plan"]
    if candidate["backend"] == "hopper":
        kind = tma.Joined if "joined" in candidate else tma.Work
        work = kind(tiles, blocks, pieces, per, *candidate.get("joined", ()))
        return tma.tiles_for(g), options, tma.load_of(g, options, work, candidate.get("turned", False))
    held = options.pop("HELD") // 132
    kind, volume = choice.tiles_for(g), 1.0
    if candidate["backend"] == "depthwise":
        filter_rows, taps = depthwise.taps_of(g, options.get("SUMS", 49))
        options["SUMS"] = filter_rows * taps
        launched = options | {"RUN": depthwise.shares(g.Q, options["RUN"])}
        volume = choice.depthwise_volume(g, launched)
    x, dy = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (g.input_shape, g.output_shape))
    problem = plan.problem_of(x, dy, g)._replace(turned=candidate.get("turned", False))
    return kind, options | {"held": held}, choice.load_of(problem, options, tiles, pieces, per, held, volume)
