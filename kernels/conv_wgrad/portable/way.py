"""The portable way: a product with im2col, sums without a product where it is depthwise, and the bias gradient's sums."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.gpu import is_cuda_architecture
from kernels.common.launch import launch
from kernels.common.plan import Cost, remembered
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.portable.column_sums import bias_kernel
from kernels.conv_wgrad.portable.depthwise import depthwise_kernel, shares, taps_of
from kernels.conv_wgrad.portable.pixels import channels_adjacent, common_unit, is_rows, is_wide, rows_of, walk
from kernels.conv_wgrad.portable.product import wgrad_kernel
from kernels.conv_wgrad.split_k import cut, reduce_into

TOGETHER_CHANNELS = 64  # rows of a Hopper matrix instruction
SLOWER = 1.1  # a tile of the portable kernel takes so much longer than a tile that TMA brings
CONVERT, LOAD = 2, 4  # see ``depthwise_volume``
REGISTERS = 190  # that a depthwise thread's values may take, beside its addresses


@dataclass(frozen=True)
class PortablePlan:
    """One launch that writes ``pieces`` partial sums, and their sum.

    ``tiles`` of rows and of im2col are what a descriptor says, ``None`` where tensors are read through pointers.
    """

    text: str
    kernel: Callable
    grid: tuple[int]
    numbers: tuple[int, ...]
    meta: dict
    pieces: int
    copied: tuple[bool, bool] = (False, False)
    dy_tile: tuple[int, int] | None = None
    x_tile: tuple[int, int] | None = None

    def __str__(self):
        return self.text

    def run(self, input, grad_output, out, accumulate):
        """Bring the weight gradient into ``out`` [Co, R, S, Ci/groups]; ``accumulate``: add it."""
        x = input.contiguous() if self.copied[0] else input
        dy = rows_of(grad_output) if self.copied[1] or self.dy_tile else grad_output
        if self.dy_tile:
            dy = TensorDescriptor.from_tensor(dy, list(self.dy_tile))
        if self.x_tile:
            M, Ci = x.shape[:3].numel(), x.shape[3]
            x = TensorDescriptor.from_tensor(x.as_strided((M, Ci), (x.stride(2), 1)), list(self.x_tile))

        def fill(target):
            launch(self.kernel, self.grid, dy, x, target, *self.numbers, outputs=(target,), **self.meta)

        reduce_into(out, accumulate, self.pieces, fill)


@dataclass(frozen=True)
class BiasPlan:
    """The sums of the bias gradient."""

    grid: tuple[int]
    numbers: tuple[int, ...]
    meta: dict
    pieces: int
    copied: bool

    def run(self, grad_output, out, accumulate):
        """Bring the bias gradient, the sum of ``grad_output`` [N, P, Q, Co] over its pixels, into ``out`` [Co]."""
        dy = rows_of(grad_output) if self.copied else grad_output

        def fill(target):
            launch(bias_kernel, self.grid, dy, target, *self.numbers, outputs=(target,), **self.meta)

        reduce_into(out, accumulate, self.pieces, fill)


def reason_not(problem):
    """Why this way cannot compute a problem, as text, or ``None``: it always can."""
    return None


def cost(problem):
    """The predicted time; of a GPU without parameters, the product's volume with its padding, in tiles that TMA brings."""
    if 0 in (problem.g.M, problem.g.Co, problem.g.columns):
        return Cost(0.0)
    if found := candidates(problem):
        best = model.cheapest(found)
        return Cost(best.time, f"predicted {best.time:.1f} us")
    return Cost(SLOWER * waste(problem.g, problem))


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


@remembered
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
    for tile in model.fitting(tiles, rows, columns):
        options = model.options_of(tile)
        if is_depthwise(g):
            options["RUN"] = shares(g.Q, options["RUN"])
            if registers(g, options) > REGISTERS:
                continue
            volume = depthwise_volume(g, options)
        sizes, groups = sum_of(g, options)
        one = cut(sizes, options, groups, split_k=1)
        found.append([
            model.Candidate(tile, options, replace(one, pieces=pieces, per=per), model.predicted(
                costs, tiles_for(g).split()[0], tile, load_of(problem, one.tiles, pieces, per, tile["held"], volume)
            ))
            for pieces, per in sorted(model.cuts(
                one.tiles, one.blocks, costs["multiprocessors"] * tile["held"], problem.split_k
            ))
        ])  # fmt: skip
    return found


def load_of(problem, tiles, pieces, per, held, volume):
    """What the launch of a ``Cut`` asks of the GPU."""
    g = problem.g
    moved = problem.dtype.itemsize * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)
    return model.Load(tiles * pieces, per, held, pieces, g.Co * g.columns, moved, volume)


def tiles_for(g):
    """The name of the tiles in the costs: how dy and x are read."""
    if is_depthwise(g):
        return "depthwise"
    together = groups_together(g)
    unaligned = "unaligned " * bool(g.Co % 8 or g.Ci % 8 or g.Ci_group * together % 8)
    return f"product {unaligned}{'rows' if g.pointwise else 'im2col'}"


def registers(g, options):
    """How many values a depthwise thread holds: its sums, a strip of dy, and what a row of taps sees of x."""
    channels = max(1, options["BLOCK_M"] * options["BLOCK_K"] // (32 * options["num_warps"]))
    rows, taps = taps_of(g, options["SUMS"])
    return channels * (rows * taps + options["RUN"] + (options["RUN"] - 1) * g.stride[1] + (taps - 1) * g.dilation[1] + 1)


def depthwise_volume(g, options):
    """Thousands of multiplications that a step takes as long as: a value that is read takes as long as CONVERT, and the load
    that brings it, with those of as many channels as a thread has beside each other, as long as LOAD."""
    BLOCK_M, BLOCK_K, RUN = (options[name] for name in ("BLOCK_M", "BLOCK_K", "RUN"))
    rows, taps = taps_of(g, options["SUMS"])
    seen = (RUN - 1) * g.stride[1] + (taps - 1) * g.dilation[1] + 1
    vector = common_unit(8, g.Co, max(1, BLOCK_M * BLOCK_K // (32 * options["num_warps"])))
    return BLOCK_M * BLOCK_K * (RUN * rows * taps + (CONVERT + LOAD / vector) * (RUN + rows * seen)) / 1000


@remembered
def plan(problem):
    """The ``PortablePlan`` of a problem."""
    return plan_cut(problem, *sizes_and_cut(problem))


def plan_cut(problem, sizes, chosen):
    """The ``PortablePlan`` of a ``Cut`` of a sum of these sizes."""
    g = problem.g
    text = describe(problem, sizes, chosen)
    if 0 in sizes:
        return PortablePlan(text, wgrad_kernel, (0,), (), {}, 0)
    x, copies_x = read_through(channels_adjacent, problem.input)
    dy, copies_dy = read_through(rows_of, problem.grad_output)
    make = _plan_depthwise if is_depthwise(g) else _plan_product
    return make(problem, text, chosen, x, dy, (copies_x, copies_dy))


def _plan_depthwise(problem, text, chosen, x, dy, copied):
    g = problem.g
    unit = common_unit(16 // x.element_size(), g.Co, dy.stride(0), *x.stride()[:3])
    m_units, *x_units = (stride // unit for stride in (dy.stride(0), *x.stride()[:3]))
    options = dict(chosen.options)
    rows, taps = taps_of(g, options.pop("SUMS"))
    runs = -(-g.Q // chosen.options["RUN"])
    numbers = (
        g.N * g.P * runs, runs, g.P, g.Q, g.H, g.W, g.R, g.S, g.Co_group, g.Co // unit, chosen.blocks, chosen.per,
        m_units, *x_units, g.stride[0], g.padding[0], g.padding[2], g.dilation[0],
    )  # fmt: skip
    meta = {"UNIT": unit, "ROWS": rows, "TAPS": taps, "STRIDE": g.stride[1], "DILATION": g.dilation[1], **options}
    return PortablePlan(text, depthwise_kernel, (chosen.tiles * chosen.pieces,), numbers, meta, chosen.pieces, copied)


def _plan_product(problem, text, chosen, x, dy, copied):
    g = problem.g
    vector = 16 // x.element_size()
    together = groups_together(g)
    Co, Ci = g.Co_group * together, g.Ci_group * together
    unit_o = common_unit(vector, Co, dy.stride(0))
    unit_c = common_unit(vector, Ci, *x.stride()[:3])
    x_units = [stride // unit_c for stride in x.stride()[:3]]
    options = dict(chosen.options)
    start, step = walk(g, options["BLOCK_K"])
    pointwise = is_rows(g, x)
    described = [(dy.stride(0), g.Co, unit_o, 0 if copied[1] else problem.grad_output.address)]
    if pointwise:
        described.append((x.stride(2), g.Ci, unit_c, 0 if copied[0] else problem.input.address))
    options["TMA"] &= has_descriptors(problem) and all(
        unit == vector and address == 0 and step >= columns for step, columns, unit, address in described
    )
    numbers = (
        g.M, g.P, g.Q, g.H, g.W, g.R, g.S, g.groups // together, Co // unit_o, Ci // unit_c,
        chosen.blocks, chosen.per,
        dy.stride(0) // unit_o, *x_units, *start, *g.dilation, *step,
    )  # fmt: skip
    meta = {
        "UNIT_O": unit_o, "UNIT_C": unit_c, "POINTWISE": pointwise, "WIDE": is_wide(g, options["BLOCK_K"], *x_units),
        "PRECISION": problem.precision if x.dtype == torch.float32 else None, "TOGETHER": together, **options,
    }  # fmt: skip
    tiles = [(options["BLOCK_K"], options[name]) if options["TMA"] else None for name in ("BLOCK_M", "BLOCK_N")]
    if not pointwise:
        tiles[1] = None
    grid = (chosen.tiles * chosen.pieces,)
    return PortablePlan(text, wgrad_kernel, grid, numbers, meta, chosen.pieces, copied, *tiles)


def has_descriptors(problem):
    """Whether TMA can copy blocks of rows [M, C] on the problem's device."""
    if runtime.interpreted:
        there = problem.dtype != torch.bfloat16  # the interpreter's float32 copies are made of tensors, not of descriptors
    else:
        there = is_cuda_architecture(problem.device, 9, 10, 11, 12)
    return there and problem.g.M < 2**31


def describe(problem, sizes, chosen):
    """What ``run`` would launch, in words: sizes, configuration, split-K and tile waste."""
    g = problem.g
    rows, columns, pixels = sizes
    if is_depthwise(g):
        what = f"sums of {rows} channels and {g.R * g.S} taps over {g.M} pixels, no product"
    else:
        what = f"product [{rows} x {pixels}][{pixels} x {columns}]"
        together = groups_together(g)
        if g.groups > 1:
            what += f" in {g.groups // together} groups" + f" of {together} of the convolution's" * (together > 1)
    options = ", ".join(f"{name} {value}" for name, value in chosen.options.items())
    padded = "none, there is nothing to sum" if 0 in sizes else f"{waste(g, problem):.2f}"
    return f"{what}; {options}; {chosen.tiles} tiles, split-K {chosen.pieces}; tile waste {padded}"


def copies(input, grad_output):
    """Lines of text: which tensors a plan copies before it reads them, and why."""
    lines = []
    if channels_adjacent(input) is not input:
        lines.append(f"copies input: strides {input.stride()}, its channels are not adjacent")
    if grad_output.numel() and rows_of(grad_output).data_ptr() != grad_output.data_ptr():
        lines.append(
            f"copies grad_output: strides {grad_output.stride()}, not rows of adjacent channels one step apart"
        )
    return lines


def read_through(function, layout):
    """``(function(x), whether that has memory of its own)`` of a meta tensor x with this ``Layout``."""
    x = layout.meta()
    made = function(x)
    return made, made.untyped_storage()._cdata != x.untyped_storage()._cdata


@remembered
def plan_bias(grad_output, device):
    """The ``BiasPlan`` of a gradient [N, P, Q, Co] that lies so."""
    N, P, Q, Co = grad_output.shape
    M = N * P * Q
    chosen = cut((Co, 1, M), configuration("conv_wgrad", "bias", "default", device))
    dy, copied = read_through(rows_of, grad_output)
    numbers = (M, Co, chosen.blocks, chosen.per, dy.stride(0))
    grid = (chosen.tiles * chosen.pieces,)
    return BiasPlan(grid, numbers, chosen.options, chosen.pieces, copied)
