"""The portable backend: a product with im2col, sums without a product where it is depthwise, and the bias gradient's sums.

Which tiles and splits it launches the model of cost predicts, or the table says.
"""

import math
from dataclasses import dataclass, replace

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.gpu import is_cuda_architecture
from kernels.common.math import cdiv
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad import depthwise, plain
from kernels.conv_wgrad.cost import choose_split, equal_splits
from kernels.conv_wgrad.depthwise import depthwise_kernel, shares, taps_of
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.problem import Plan, read_through

VECTOR = 8  # channels in 16 bytes
THIN = 64  # channels of TMA's widest blocks
ALIGNED = "product rows", "product im2col"  # names of tiles whose tensors are read in whole vectors
TOGETHER_CHANNELS = 64  # rows of a Hopper matrix instruction
CONVERT, LOAD = 2, 4  # see ``depthwise_volume``
REGISTERS = 190  # that a depthwise thread's values may take, beside its addresses


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``: it always can."""
    return None


# Which tiles and splits.


def groups_together(g):
    """How many groups are multiplied as one: the most that fill no more than a tile of TOGETHER_CHANNELS channels."""
    widest = max(g.Co_group, g.Ci_group, 1)
    return max(n for n in range(1, g.groups + 1) if g.groups % n == 0 and (n == 1 or n * widest <= TOGETHER_CHANNELS))


def size_class(g, dtype, precision):
    """The kernel's key in the table: how many sums a thread's channel has, where it is depthwise; else the product's: the
    arithmetic, whether x is read by single channels, whether few output channels make tiles narrow, of im2col or of x."""
    if is_depthwise(g):
        return "few taps" if g.R * g.S <= 12 else "many taps"
    if dtype == torch.float32:
        return precision
    together = groups_together(g)
    if g.Ci_group * together % 4:
        return "16-bit scalar"
    if g.Co_group * together > 64:
        return "16-bit"
    return "16-bit pointwise narrow" if g.pointwise else "16-bit narrow"


def is_depthwise(g):
    """Whether each group has one input channel, so that no product is left."""
    return g.Ci_group == 1 and g.groups > 1


def options_for(problem):
    """The table's line for a problem: options, or whose costs choose them."""
    kernel = "depthwise" if is_depthwise(problem.g) else "product"
    key = size_class(problem.g, problem.dtype, problem.input_precision)
    return configuration("conv_wgrad", kernel, key, problem.device)


def sum_of(g, options):
    """``(sizes, groups)`` of what is cut into tiles: how many sums of (rows, columns, reduction)."""
    if is_depthwise(g):
        rows, taps = taps_of(g, options["SUMS"])
        return (g.Co, -(-g.R // rows) * -(-g.S // taps), g.N * g.P * -(-g.Q // options["RUN"])), 1
    together = groups_together(g)
    return (g.Co_group * together, g.columns * together, g.M), g.groups // together


def cut_of(problem):
    """The ``Cut`` of a problem: by the model of cost where the table names one, else by the table."""
    if found := candidates(problem):
        return model.cheapest(found).work
    options = options_for(problem)
    if is_depthwise(problem.g):
        options["RUN"] = shares(problem.g.Q, options["RUN"])
    return cut(*sum_of(problem.g, options), options, problem.split_k, options.get("RUN", 1))


@planned
def candidates(problem):
    """A ``model.Candidate`` of every tile that the table names costs for, each cut as is cheapest for it; else none."""
    costs = model.costs_of(options_for(problem))
    if costs is None or nothing_to_sum(problem.g):
        return []
    return [model.cheapest(cuts) for cuts in considered(problem, costs, model.tiles_of(costs, tiles_for(problem.g)))]


def nothing_to_sum(g):
    """Whether there are no pixels, or no weights."""
    return 0 in (g.M, g.Co, g.columns)


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
        one = cut(*sum_of(g, options), options, split_k=1)
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
    unit = plain.common_unit(VECTOR, g.Co, g.Ci, g.Ci_group * groups_together(g))
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
    vector = plain.common_unit(8, g.Co, max(1, BLOCK_M * BLOCK_K // (32 * options["num_warps"])))
    return BLOCK_M * BLOCK_K * (RUN * rows * taps + (CONVERT + LOAD / vector) * (RUN + rows * seen)) / 1000


@dataclass(frozen=True)
class Cut:
    """A launch of ``tiles`` * ``splits`` programs: each sums one tile over ``per`` of the reduction's ``blocks``.

    ``options`` are the kernel's constexpr arguments and number of warps; ``tile`` its extent along rows, columns, reduction.
    """

    options: dict
    tile: tuple[int, int, int]
    tiles: int
    blocks: int
    splits: int
    per: int

    @property
    def programs(self):
        return self.tiles * self.splits


def cut(sizes, groups, options, split_k=None, length=1):
    """The ``Cut`` of a sum with these sizes.

    Args:
        sizes: (rows, columns, reduction) of one group. A kernel without BLOCK_N has a program for each column.
        groups: how many such sums there are.
        options: of the kernel, and ``HELD``: how many programs the GPU runs at once; without it ``split_k`` must be given,
            and tiles are taken as long as they are.
        split_k: splits of the reduction, or ``None`` for as many as cost least.
        length: pixels in one step of the reduction.
    """
    held = options.get("HELD")
    names = "BLOCK_M", "BLOCK_N", "BLOCK_K"
    # no tile is more than twice as long as what it covers, but matrix units need 16; a model of tiles takes them whole
    most = [math.inf if held is None else max(16, 1 << max(0, size - 1).bit_length()) for size in sizes]
    tile = tuple(min(options.get(name, 1), limit) for name, limit in zip(names, most, strict=True))
    options = {name: value for name, value in options.items() if name != "HELD"}
    options |= {name: size for name, size in zip(names, tile, strict=True) if name in options}
    rows, columns, blocks = (-(-size // width) for size, width in zip(sizes, tile, strict=True))
    tiles = rows * columns * groups
    active, per = equal_splits(
        blocks, choose_split(tiles, blocks, tile[2] * length, held) if split_k is None else split_k
    )
    return Cut(options, tile, tiles, blocks, active, per)


# What is launched.


@planned
def plan(problem):
    """The ``Plan`` of a problem."""
    if nothing_to_sum(problem.g):
        return Plan("there is nothing to sum", plain.wgrad_kernel, (0,), (), {}, 0)
    return plan_cut(problem, cut_of(problem))


def plan_cut(problem, chosen):
    """The ``Plan`` of a ``Cut``."""
    g, short = problem.g, configuration("conv_wgrad", "short", "default", problem.device)
    if g.M <= short["PIXELS"] and chosen.options.get("TMA"):
        chosen = replace(chosen, options=chosen.options | {"TMA": False})  # it would be over before TMA has been told
    x, copies_x = read_through(plain.channels_adjacent, problem.input)
    dy, copies_dy = read_through(plain.rows_of, problem.grad_output)
    why = "its channels are not adjacent" * copies_x, "not rows of adjacent channels one step apart" * copies_dy
    launched = _depthwise(problem, chosen, x, dy) if is_depthwise(g) else _product(problem, chosen, x, dy)
    kernel, sizes, meta, arguments = launched
    # a program that walked all pixels of many for the bias would end last
    beside = kernel is plain.wgrad_kernel and g.M <= short["BIAS"] and chosen.splits == 1 and not problem.turned
    bias_grid = (chosen.programs + cdiv(g.Co, chosen.options["BLOCK_M"]),) if beside else None
    text = describe(problem, chosen)
    return Plan(text, kernel, (chosen.programs,), sizes, meta, chosen.splits, arguments, why, bias_grid=bias_grid)


def _depthwise(problem, chosen, x, dy):
    """``(kernel, sizes, meta, arguments)`` for tensors with the layouts x and dy."""
    g = problem.g
    steps = dy.strides[0], *x.strides[:3]
    unit = plain.common_unit(16 // x.dtype.itemsize, g.Co, *steps)
    options = dict(chosen.options)
    rows, taps = taps_of(g, options.pop("SUMS"))
    options |= {"UNIT": unit, "ROWS": rows, "TAPS": taps, "STRIDE": g.stride[1], "DILATION": g.dilation[1]}
    runs = -(-g.Q // options["RUN"])
    strips = g.N * g.P * runs, runs, g.Co_group, g.Co // unit, chosen.blocks, chosen.per
    pixels = *(step // unit for step in steps), g.stride[0], g.padding[0], g.padding[2], g.dilation[0]
    sizes = *strips, g.P, g.Q, g.H, g.W, g.R, g.S, *pixels
    return depthwise_kernel, sizes, compiled_for(depthwise.Tile, options), lambda x, dy, target, bias: (dy, x, target)


def _product(problem, chosen, x, dy):
    """The same."""
    g, vector, together = problem.g, 16 // x.dtype.itemsize, groups_together(problem.g)
    Co, Ci = g.Co_group * together, g.Ci_group * together
    unit_o = plain.common_unit(vector, Co, dy.strides[0])
    unit_c = plain.common_unit(vector, Ci, *x.strides[:3])
    units = dy.strides[0] // unit_o, *(stride // unit_c for stride in x.strides[:3])
    options = dict(chosen.options)
    BLOCK_M, BLOCK_N, BLOCK_K = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    pointwise = plain.is_rows(g, x.strides)
    matrices = [(dy.strides[0], g.Co, unit_o, dy.address)] + [(x.strides[2], g.Ci, unit_c, x.address)] * pointwise
    has_descriptors = runtime.interpreted or is_cuda_architecture(problem.device, 9, 10, 11, 12)
    options["TMA"] &= (
        has_descriptors
        and g.M < 2**31
        and all(unit == vector and address == 0 and step >= columns for step, columns, unit, address in matrices)
    )
    counts = g.M, g.groups // together, Co // unit_o, Ci // unit_c, chosen.per
    sizes = *counts, g.P, g.Q, g.H, g.W, g.R, g.S, *units, *plain.steps_of(g, BLOCK_K)
    options |= {
        "UNIT_O": unit_o,
        "UNIT_C": unit_c,
        "POINTWISE": pointwise,
        "WIDE": plain.is_wide(g, BLOCK_K, *units[1:]),
    }
    options |= {"PRECISION": problem.input_precision, "TOGETHER": together}
    step_dy, step_x = dy.strides[0], x.strides[2]

    def described(x, dy, target, bias):
        """Descriptors of matrices of rows, in whatever shape their memory is given."""
        rows = TensorDescriptor(dy, [g.M, g.Co], [step_dy, 1], [BLOCK_K, BLOCK_M])
        x = TensorDescriptor(x, [g.M, g.Ci], [step_x, 1], [BLOCK_K, BLOCK_N]) if pointwise else x
        return rows, x, target, dy, bias

    arguments = described if options["TMA"] else lambda x, dy, target, bias: (dy, x, target, dy, bias)
    return plain.wgrad_kernel, sizes, compiled_for(plain.Tile, options), arguments


def compiled_for(kind, options):
    """``{"T": kind(...), launch options}`` of options that hold both."""
    tile = {name: options[name] for name in kind._fields if name in options}
    return {"T": kind(**tile)} | {name: value for name, value in options.items() if name not in tile}


def describe(problem, chosen):
    """What ``run`` would launch, in words: sizes, configuration, split-K and tile waste.

    A depthwise sum's tiles are channels, rows and columns of the filter, rows of output pixels, and pixels in a row; of
    groups that are multiplied as one, products of one group's channels and another's are waste, too.
    """
    g, sizes = problem.g, sum_of(problem.g, chosen.options)[0]
    if is_depthwise(g):
        what = f"sums of {g.Co} channels and {g.R * g.S} taps over {g.M} pixels, no product"
        run, taps = chosen.options["RUN"], taps_of(g, chosen.options["SUMS"])
        strips = g.N * g.P * -(-g.Q // run)
        waste = tile_waste((g.Co, g.R, g.S, strips, g.Q), (chosen.tile[0], *taps, chosen.tile[2], run))
    else:
        rows, columns, pixels = sizes
        together = groups_together(g)
        what = f"product [{rows} x {pixels}][{pixels} x {columns}]"
        if g.groups > 1:
            what += f" in {g.groups} groups" + f", {together} of them multiplied together" * (together > 1)
        waste = together * tile_waste(sizes, chosen.tile)
    options = ", ".join(f"{name} {value}" for name, value in chosen.options.items())
    return f"{what}; {options}; {chosen.tiles} tiles, split-K {chosen.splits}; tile waste {waste:.2f}"


@planned
def plan_bias(grad_output, device):
    """The ``Plan`` of the sums over a gradient [N, P, Q, Co] of this ``Layout``."""
    dy, copied = read_through(plain.rows_of, grad_output)
    M, Co = dy.shape
    chosen = cut((Co, 1, M), 1, configuration("conv_wgrad", "bias", "default", device))
    sizes = M, Co, chosen.blocks, chosen.per, dy.strides[0]
    take = lambda x, dy, target, bias: (dy, target)  # noqa: E731
    copied = "", "not rows of adjacent channels one step apart" * copied
    return Plan("", plain.bias_kernel, (chosen.programs,), sizes, chosen.options, chosen.splits, take, copied)
