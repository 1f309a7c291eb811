"""The portable backend: a product with im2col, sums without a product where it is depthwise, and the bias gradient's sums.

Which tiles and splits it launches the model of cost predicts, or the table says.
"""

import math

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.gpu import is_cuda_architecture
from kernels.common.math import block, cdiv
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad import depthwise, plain
from kernels.conv_wgrad.cost import Cut, choose_split
from kernels.conv_wgrad.depthwise import depthwise_kernel, shares, taps_of
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.problem import TOGETHER_CHANNELS, VECTOR, Plan, read_through

THIN = 64  # channels of TMA's widest blocks
ALIGNED = "product rows", "product im2col"  # names of tiles whose tensors are read in whole vectors
ROWS = 64  # of a Hopper matrix instruction: channels of groups that are multiplied as one
CONVERT, LOAD = 2, 4  # see ``depthwise_volume``
REGISTERS = 190  # that a depthwise thread's values may take, beside its addresses


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``: it always can."""
    return None


# Which tiles and splits.


def groups_together(g):
    """How many groups are multiplied as one: the most whose channels are no more than a tile's rows, on either side; in a
    product of rows, on one side."""
    narrow, wide = sorted((max(g.Co_group, 1), max(g.Ci_group, 1)))
    most = min(ROWS // narrow, (TOGETHER_CHANNELS if g.pointwise else ROWS) // wide)
    return max(n for n in range(1, g.groups + 1) if g.groups % n == 0 and (n == 1 or n <= most))


def size_class(g, dtype, precision):
    """The kernel's key in the table: how many sums a thread's channel has, where it is depthwise; else the product's: the
    arithmetic, and whether x is read by single channels, or few output channels make tiles narrow."""
    if is_depthwise(g):
        return "few taps" if g.R * g.S <= 12 else "many taps"
    if dtype == torch.float32:
        return precision
    if g.Ci_group * groups_together(g) % 4:
        return "16-bit scalar"
    return "16-bit narrow" if product_of(g)[0] <= 64 else "16-bit"


def is_depthwise(g):
    """Whether each group has one input channel, so that no product is left."""
    return g.Ci_group == 1 and g.groups > 1


def options_for(problem):
    """The table's line for a problem: options, or whose costs choose them."""
    kernel = "depthwise" if is_depthwise(problem.g) else "product"
    key = size_class(problem.g, problem.dtype, problem.input_precision)
    return configuration("conv_wgrad", kernel, key, problem.device)


def product_of(g):
    """``(rows, columns, pixels)`` of the product of the groups that are multiplied as one."""
    together = groups_together(g)
    return g.Co_group * together, g.columns * together, g.M


def lead(own, channels):
    """How many channels of others there may be in the vector that begins a group's ``own``, of so many side by side."""
    unit = plain.common_unit(VECTOR, channels)
    return unit - math.gcd(unit, own)


def tiles_along(g, options):
    """``(tiles along rows, tiles along columns)`` of such a product."""
    rows, columns, _ = product_of(g)
    rows += lead(rows, g.Co)
    columns += lead(columns, g.Ci) if g.pointwise else 0
    return cdiv(rows, options["BLOCK_M"]), cdiv(columns, options["BLOCK_N"])


def cut_whole(g, options):
    """The ``Cut`` of a geometry's sums in one split."""
    if is_depthwise(g):
        rows, taps = taps_of(g, options["SUMS"])
        tiles = cdiv(g.Co, options["BLOCK_M"]) * cdiv(g.R, rows) * cdiv(g.S, taps)
        return Cut(options, tiles, cdiv(g.N * g.P * cdiv(g.Q, options["RUN"]), options["BLOCK_K"]))
    tiles = math.prod(tiles_along(g, options)) * g.groups // groups_together(g)
    return Cut(options, tiles, cdiv(g.M, options["BLOCK_K"]))


def cut_of(problem):
    """The ``Cut`` of a problem: by the model of cost where the table names one, else by the table, whose ``HELD`` says how
    many programs the GPU runs at once."""
    if found := candidates(problem):
        return model.cheapest(found).cut
    g, options = problem.g, options_for(problem)
    held, steps = options.pop("HELD"), 1
    if is_depthwise(g):
        options["RUN"] = steps = shares(g.Q, options["RUN"])
        sizes = {"BLOCK_M": g.Co, "BLOCK_K": g.N * g.P * cdiv(g.Q, steps)}
    else:
        sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), product_of(g), strict=True))
    # no tile is more than twice as long as what it covers, but matrix units need 16
    options |= {name: min(options[name], block(size)) for name, size in sizes.items()}
    whole = cut_whole(g, options)
    return whole.into(problem.split_k or choose_split(whole.tiles, whole.blocks, options["BLOCK_K"] * steps, held))


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
    rows, columns = (g.Co, 0) if is_depthwise(g) else product_of(g)[:2]
    if is_depthwise(g):  # times are those of a number of sums: one that this filter has, if there is such a tile
        tiles = [tile for tile in tiles if math.prod(taps_of(g, tile["SUMS"])) == tile["SUMS"]] or tiles
    tiles = [tile for tile in tiles if suits(g, tile)]
    for tile in model.fitting(tiles, rows, columns) or tiles:
        options = model.options_of(tile)
        if is_depthwise(g):
            options["RUN"] = shares(g.Q, options["RUN"])
            if registers(g, options) > REGISTERS:
                continue
            volume = depthwise_volume(g, options)
        load, kind = load_of(problem, options, tile["held"], volume), tiles_for(g).split()[0]
        found.append(model.weighed(costs, kind, tile, cut_whole(g, options), load, problem.split_k))
    return found


def load_of(problem, options, held, volume=1.0):
    """What a program of a ``Cut`` asks of the GPU."""
    g, fold = problem.g, problem.fold
    moved = problem.dtype.itemsize * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)
    astray = model.astray(g, options["BLOCK_M"], options["BLOCK_N"]) if g.groups == 1 else 0
    return model.Load(1, 1, held, fold, g.Co * g.columns // fold, moved, volume, astray=astray)


def tiles_for(g):
    """The name of the tiles in the costs: how dy and x are read. Copies to shared memory that nobody waits for are of 4 bytes
    at least: of single channels there are none."""
    if is_depthwise(g):
        return "depthwise"
    unit = plain.common_unit(VECTOR, g.Co, g.Ci if g.pointwise else g.Ci_group * groups_together(g))
    vectors = "" if unit == VECTOR else "unaligned " if unit > 1 else "scalar "
    return f"product {vectors}{'rows' if g.pointwise else 'im2col'}"


def suits(g, tile):
    """Whether a tile is worth a prediction. TMA can bring blocks of dy, and of x where that is im2col already, if rows are a
    multiple of 16 bytes apart, and should unless rows are short: TMA is slow where a block is mostly outside. Of slim tiles
    of x that is im2col already the memory's rate is known, not the products'. Beside the diagonal of groups that are
    multiplied as one there is nothing, so that rows of them are one tile.
    """
    if is_depthwise(g):
        return True
    if g.pointwise and groups_together(g) > 1 and tiles_along(g, tile) != (1, 1):
        return False
    rows, columns, _ = product_of(g)
    sides = tile["BLOCK_M"], tile["BLOCK_N"]
    if tiles_for(g) == "product rows" and min(rows, columns) > THIN and max(sides) >= 4 * min(sides):
        return False
    aligned = g.Co % VECTOR == 0 and (not g.pointwise or g.Ci % VECTOR == 0)
    return aligned if tile["TMA"] else not aligned or not tiles_for(g).startswith(ALIGNED) or min(rows, columns) <= THIN


def seen_of(g, options):
    """Pixels of x that a depthwise program's taps in a row see of a strip."""
    return (options["RUN"] - 1) * g.stride[1] + (taps_of(g, options["SUMS"])[1] - 1) * g.dilation[1] + 1


def channels_of(options):
    """Channels of a depthwise program's thread."""
    return max(1, options["BLOCK_M"] * options["BLOCK_K"] // (32 * options["num_warps"]))


def registers(g, options):
    """How many values a depthwise thread holds: its sums, a strip of dy, and what a row of taps sees of x."""
    return channels_of(options) * (math.prod(taps_of(g, options["SUMS"])) + options["RUN"] + seen_of(g, options))


def depthwise_volume(g, options):
    """Thousands of multiplications that a step takes as long as: a value that is read takes as long as CONVERT, and the load
    that brings it, with those of as many channels as a thread has beside each other, as long as LOAD."""
    (rows, taps), RUN = taps_of(g, options["SUMS"]), options["RUN"]
    vector = plain.common_unit(VECTOR, g.Co, channels_of(options))
    values = RUN * rows * taps + (CONVERT + LOAD / vector) * (RUN + rows * seen_of(g, options))
    return options["BLOCK_M"] * options["BLOCK_K"] * values / 1000


# What is launched.


@planned
def plan(problem):
    """The ``Plan`` of a problem."""
    if nothing_to_sum(problem.g):
        return Plan("there is nothing to sum", plain.wgrad_kernel, (0,), (), {}, 0)
    return plan_cut(problem, cut_of(problem))


def plan_cut(problem, cut):
    """The ``Plan`` of a ``Cut``."""
    x, copies_x = read_through(plain.channels_adjacent, problem.input)
    dy, copies_dy = read_through(plain.rows_of, problem.grad_output)
    why = "its channels are not adjacent" * copies_x, "not rows of adjacent channels one step apart" * copies_dy
    kernel, sizes, meta, arguments = (_depthwise if is_depthwise(problem.g) else _product)(problem, cut, x, dy)
    return Plan(describe(problem.g, cut), kernel, (cut.items,), sizes, meta, cut.splits * problem.fold, arguments, why)


def _depthwise(problem, cut, x, dy):
    """``(kernel, sizes, meta, arguments)`` for tensors with the layouts x and dy."""
    g, options = problem.g, dict(cut.options)
    steps = dy.strides[0], *x.strides[:3]
    unit = plain.common_unit(16 // x.dtype.itemsize, g.Co, *steps)
    rows, taps = taps_of(g, options.pop("SUMS"))
    options |= {"UNIT": unit, "ROWS": rows, "TAPS": taps, "STRIDE": g.stride[1], "DILATION": g.dilation[1]}
    runs = cdiv(g.Q, options["RUN"])
    strips = g.N * g.P * runs, runs, g.Co_group, g.Co // unit, cut.blocks, cut.per
    pixels = *(step // unit for step in steps), g.stride[0], g.padding[0], g.padding[2], g.dilation[0]
    sizes = *strips, g.P, g.Q, g.H, g.W, g.R, g.S, *pixels
    return depthwise_kernel, sizes, compiled_for(depthwise.Tile, options), lambda x, dy, target: (dy, x, target)


def _product(problem, cut, x, dy):
    """The same."""
    g, vector, together, options = problem.g, 16 // x.dtype.itemsize, groups_together(problem.g), dict(cut.options)
    Co, Ci = g.Co_group * together, g.Ci_group * together
    pointwise = plain.is_rows(g, x.strides)
    unit_o = plain.common_unit(vector, g.Co, dy.strides[0])
    unit_c = plain.common_unit(vector, g.Ci if pointwise else Ci, *x.strides[:3])
    steps = dy.strides[0] // unit_o, *(stride // unit_c for stride in x.strides[:3])
    matrices = [(dy.strides[0], g.Co, unit_o, dy.address)] + [(x.strides[2], g.Ci, unit_c, x.address)] * pointwise
    readable = all(unit == vector and address == 0 and step >= wide for step, wide, unit, address in matrices)
    has_descriptors = runtime.interpreted or is_cuda_architecture(problem.device, 9, 10, 11, 12)
    options["TMA"] &= has_descriptors and g.M < 2**31 and readable
    options |= {"UNIT_O": unit_o, "UNIT_C": unit_c, "POINTWISE": pointwise}
    options |= {"WIDE": plain.is_wide(g, options["BLOCK_K"], *steps[1:]), "PRECISION": problem.input_precision}
    within = Co % unit_o or Ci % unit_c
    options |= {"TOGETHER": together, "TURNED": problem.turned, "WITHIN": within > 0}
    tiles_m, tiles_n = tiles_along(g, options)
    counts = g.M, g.groups // together, tiles_m * tiles_n, tiles_m, Co, Ci, cut.per
    sizes = *counts, g.P, g.Q, g.H, g.W, g.R, g.S, *steps, *plain.steps_of(g, options["BLOCK_K"])

    def described(x, dy, target):
        """Descriptors of matrices of rows, in whatever shape their memory is given."""
        matrix = lambda t, C, step, tile: TensorDescriptor(t, [g.M, C], [step, 1], [options["BLOCK_K"], options[tile]])  # noqa: E731
        rows = matrix(dy, g.Co, step_dy, "BLOCK_M")
        return rows, matrix(x, g.Ci, step_x, "BLOCK_N") if pointwise else x, target

    step_dy, step_x = dy.strides[0], x.strides[2]
    arguments = described if options["TMA"] else lambda x, dy, target: (dy, x, target)
    return plain.wgrad_kernel, sizes, compiled_for(plain.Tile, options), arguments


def compiled_for(kind, options):
    """``{"T": kind(...), launch options}`` of options that hold both."""
    tile = {name: options[name] for name in kind._fields if name in options}
    return {"T": kind(**tile)} | {name: value for name, value in options.items() if name not in tile}


def describe(g, cut):
    """What is launched, in words: sizes, configuration, split-K and tile waste.

    A depthwise sum's tiles are channels, rows and columns of the filter, rows of output pixels, and pixels in a row; of
    groups that are multiplied as one, products of one group's channels and another's are waste, too.
    """
    options = cut.options
    if is_depthwise(g):
        what = f"sums of {g.Co} channels and {g.R * g.S} taps over {g.M} pixels, no product"
        sizes = g.Co, g.R, g.S, g.N * g.P * cdiv(g.Q, options["RUN"]), g.Q
        tile = options["BLOCK_M"], *taps_of(g, options["SUMS"]), options["BLOCK_K"], options["RUN"]
        waste = tile_waste(sizes, tile)
    else:
        (rows, columns, pixels), together = product_of(g), groups_together(g)
        what = f"product [{rows} x {pixels}][{pixels} x {columns}]"
        if g.groups > 1:
            what += f" in {g.groups} groups" + f", {together} of them multiplied together" * (together > 1)
        tile = options["BLOCK_M"], options["BLOCK_N"], options["BLOCK_K"]
        waste = together * tile_waste((rows, columns, pixels), tile)
    return f"{what}; {cut_as_text(cut, waste)}"


def cut_as_text(cut, waste):
    """A ``Cut``, and 1.0 where no tile is padded."""
    options = ", ".join(f"{name} {value}" for name, value in cut.options.items())
    return f"{options}; {cut.tiles} tiles, split-K {cut.splits}; tile waste {waste:.2f}"


@planned
def plan_bias(grad_output, device):
    """The ``Plan`` of the sums over a gradient [N, P, Q, Co] of this ``Layout``."""
    dy, copied = read_through(plain.rows_of, grad_output)
    (M, Co), options = dy.shape, configuration("conv_wgrad", "bias", "default", device)
    held = options.pop("HELD")
    options |= {"BLOCK_M": min(options["BLOCK_M"], block(Co)), "BLOCK_K": min(options["BLOCK_K"], block(M))}
    whole = Cut(options, cdiv(Co, options["BLOCK_M"]), cdiv(M, options["BLOCK_K"]))
    cut = whole.into(choose_split(whole.tiles, whole.blocks, options["BLOCK_K"], held))
    sizes = M, Co, cut.blocks, cut.per, dy.strides[0]
    copied = "", "not rows of adjacent channels one step apart" * copied
    return Plan("", plain.bias_kernel, (cut.items,), sizes, options, cut.splits, lambda x, dy, target: (dy, target), copied)
