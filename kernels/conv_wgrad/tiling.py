"""Which tiles and splits the portable backend launches: as the model of cost predicts, or as the table says."""

import math
from dataclasses import replace

import torch

from kernels.common.configs import configuration
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad.depthwise import shares, taps_of
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.plain import common_unit
from kernels.conv_wgrad.split_k import cut

VECTOR = 8  # channels in 16 bytes
THIN = 64  # channels of TMA's widest blocks
ALIGNED = "product rows", "product im2col"  # names of tiles whose tensors are read in whole vectors
TOGETHER_CHANNELS = 64  # rows of a Hopper matrix instruction
CONVERT, LOAD = 2, 4  # see ``depthwise_volume``
REGISTERS = 190  # that a depthwise thread's values may take, beside its addresses


def waste(g, problem):
    """``tile_waste``; a depthwise sum's tiles are channels, rows and columns of the filter, rows of output pixels, and pixels
    in a row; of groups that are multiplied as one, products of one group's channels and another's are waste, too."""
    sizes, chosen = sizes_and_cut(problem)
    if is_depthwise(g):
        run, (rows, taps) = chosen.options["RUN"], taps_of(g, chosen.options["SUMS"])
        strips = g.N * g.P * -(-g.Q // run)
        return tile_waste((g.Co, g.R, g.S, strips, g.Q), (chosen.tile[0], rows, taps, chosen.tile[2], run))
    return groups_together(g) * tile_waste(sizes, chosen.tile)


def groups_together(g):
    """How many groups are multiplied as one: the most that fill no more than a tile of TOGETHER_CHANNELS channels."""
    widest = max(g.Co_group, g.Ci_group, 1)
    return max(n for n in range(1, g.groups + 1) if g.groups % n == 0 and (n == 1 or n * widest <= TOGETHER_CHANNELS))


def size_class(g, dtype, precision):
    """The kernel's key in the table: how many sums a thread's channel has, where it is depthwise; else the product's: the
    arithmetic, whether x is read by single channels, whether it is im2col already, which tiles the channels fill."""
    if is_depthwise(g):
        return "few taps" if g.R * g.S <= 12 else "many taps"
    if dtype == torch.float32:
        return precision
    together = groups_together(g)
    if g.Ci_group * together % 4:
        return "16-bit scalar"
    words = ["16-bit"]
    if g.pointwise:
        words.append("pointwise")
    if g.Co_group * together <= 64:
        words.append("narrow")
    elif g.Co_group % 256 == 0:
        words.append("wide")
    return " ".join(words)


def is_depthwise(g):
    """Whether each group has one input channel, so that no product is left."""
    return g.Ci_group == 1 and g.groups > 1


def options_for(problem):
    """The table's line for a problem: options, or whose costs choose them."""
    kernel = "depthwise" if is_depthwise(problem.g) else "product"
    key = size_class(problem.g, problem.dtype, problem.precision)
    return configuration("conv_wgrad", kernel, key, problem.device)


def sum_of(g, options):
    """``(sizes, groups)`` of what is cut into tiles: how many sums of (rows, columns, reduction)."""
    if is_depthwise(g):
        rows, taps = taps_of(g, options["SUMS"])
        return (g.Co, -(-g.R // rows) * -(-g.S // taps), g.N * g.P * -(-g.Q // options["RUN"])), 1
    together = groups_together(g)
    return (g.Co_group * together, g.columns * together, g.M), g.groups // together


def sizes_and_cut(problem):
    """``(sizes of the sum, Cut)`` of a problem: by the model of cost where the table names one, else by the table."""
    g = problem.g
    if found := candidates(problem):
        chosen = model.cheapest(found).work
        return sum_of(g, chosen.options)[0], chosen
    options = options_for(problem)
    if costs := model.costs_of(options):  # and yet no candidate: there is nothing to sum
        options = model.options_of(model.tiles_of(costs, tiles_for(g))[0]) | {"HELD": 1}
    if is_depthwise(g):
        options["RUN"] = shares(max(g.Q, 1), options["RUN"])
    sizes, groups = sum_of(g, options)
    return sizes, cut(sizes, options, groups, problem.split_k, options.get("RUN", 1))


@planned
def candidates(problem):
    """A ``model.Candidate`` of every tile that the table names costs for, each cut as is cheapest for it; else none."""
    costs = model.costs_of(options_for(problem))
    if costs is None or 0 in (problem.g.M, problem.g.Co, problem.g.columns):
        return []
    return [model.cheapest(cuts) for cuts in considered(problem, costs, model.tiles_of(costs, tiles_for(problem.g)))]


def considered(problem, costs, tiles):
    """``[[model.Candidate, ...], ...]``: for each of ``tiles`` that fits, every cut that is worth a prediction."""
    g, volume, found = problem.g, 1.0, []
    rows, columns = (g.Co, 0) if is_depthwise(g) else sum_of(g, {})[0][:2]
    if is_depthwise(g):  # times are those of a number of sums: one that this filter has, if there is such a tile
        tiles = [tile for tile in tiles if math.prod(taps_of(g, tile["SUMS"])) == tile["SUMS"]] or tiles
    for tile in model.fitting([tile for tile in tiles if suits(g, tile)], rows, columns):
        options = model.options_of(tile)
        if is_depthwise(g):
            options["RUN"] = shares(g.Q, options["RUN"])
            if registers(g, options) > REGISTERS:
                continue
            volume = depthwise_volume(g, options)
        sizes, groups = sum_of(g, options)
        one = cut(sizes, options, groups, split_k=1)
        kind, programs, cuts = tiles_for(g).split()[0], costs["multiprocessors"] * tile["held"], []
        for splits, per in sorted(model.cuts(one.tiles, one.blocks, programs, problem.split_k)):
            load = load_of(problem, options, one.tiles, splits, per, tile["held"], volume)
            work = replace(one, splits=splits, per=per)
            cuts.append(model.Candidate(tile, options, work, model.predicted(costs, kind, tile, load)))
        found.append(cuts)
    return found


def load_of(problem, options, tiles, splits, per, held, volume):
    """What the launch of a ``Cut`` asks of the GPU."""
    g = problem.g
    moved = problem.dtype.itemsize * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)
    return model.Load(
        tiles * splits,
        per,
        held,
        splits,
        g.Co * g.columns,
        moved,
        volume,
        turned=problem.turned,
        astray=model.astray(g, options["BLOCK_M"], options["BLOCK_N"]) if g.groups == 1 else 0,
    )


def tiles_for(g):
    """The name of the tiles in the costs: how dy and x are read. Copies to shared memory that nobody waits for are of 4 bytes
    at least: of single channels there are none."""
    if is_depthwise(g):
        return "depthwise"
    unit = common_unit(VECTOR, g.Co, g.Ci, g.Ci_group * groups_together(g))
    vectors = "" if unit == VECTOR else "unaligned " if unit > 1 else "scalar "
    return f"product {vectors}{'rows' if g.pointwise else 'im2col'}"


def suits(g, tile):
    """Whether a tile is worth a prediction. TMA can bring blocks of dy, and of x where that is im2col already, if rows are a
    multiple of 16 bytes apart, and should unless rows are short: TMA is slow where a block is mostly outside. Of slim tiles
    of x that is im2col already the memory's rate is known, not the products'.
    """
    if is_depthwise(g):
        return True
    rows, columns, _ = sum_of(g, {})[0]
    sides = tile["BLOCK_M"], tile["BLOCK_N"]
    if tiles_for(g) == "product rows" and min(rows, columns) > THIN and max(sides) >= 4 * min(sides):
        return False
    aligned = g.Co % VECTOR == 0 and (not g.pointwise or g.Ci % VECTOR == 0)
    return aligned if tile["TMA"] else not aligned or not tiles_for(g).startswith(ALIGNED) or min(rows, columns) <= THIN


def registers(g, options):
    """How many values a depthwise thread holds: its sums, a strip of dy, and what a row of taps sees of x."""
    channels = max(1, options["BLOCK_M"] * options["BLOCK_K"] // (32 * options["num_warps"]))
    rows, taps = taps_of(g, options["SUMS"])
    return channels * (
        rows * taps + options["RUN"] + (options["RUN"] - 1) * g.stride[1] + (taps - 1) * g.dilation[1] + 1
    )


def depthwise_volume(g, options):
    """Thousands of multiplications that a step takes as long as: a value that is read takes as long as CONVERT, and the load
    that brings it, with those of as many channels as a thread has beside each other, as long as LOAD."""
    BLOCK_M, BLOCK_K, RUN = (options[name] for name in ("BLOCK_M", "BLOCK_K", "RUN"))
    rows, taps = taps_of(g, options["SUMS"])
    seen = (RUN - 1) * g.stride[1] + (taps - 1) * g.dilation[1] + 1
    vector = common_unit(8, g.Co, max(1, BLOCK_M * BLOCK_K // (32 * options["num_warps"])))
    return BLOCK_M * BLOCK_K * (RUN * rows * taps + (CONVERT + LOAD / vector) * (RUN + rows * seen)) / 1000
