"""The portable way: a product with im2col, sums without a product where it is depthwise, and the bias gradient's sums."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.gpu import is_cuda_architecture
from kernels.common.launch import launch
from kernels.common.plan import Cost, remembered
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.portable.depthwise import bias_kernel, depthwise_kernel, taps_at_once
from kernels.conv_wgrad.portable.pixels import channels_adjacent, common_unit, is_rows, is_wide, rows_of, walk
from kernels.conv_wgrad.portable.product import wgrad_kernel
from kernels.conv_wgrad.split_k import cut, reduce_into

SLOWER = 1.1  # a tile of the portable kernel takes so much longer than a tile that TMA brings


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
    """The product's volume with the padding of its tiles, in tiles that TMA brings."""
    g = problem.g
    return Cost(0.0 if 0 in (g.M, g.Co, g.columns) else SLOWER * waste(g, problem))


def waste(g, problem):
    """``tile_waste``; a depthwise sum's tiles are taps along a row of the filter."""
    sizes, chosen = sizes_and_cut(problem)
    if is_depthwise(g):
        return tile_waste((g.Co, g.R, g.S, g.M), (chosen.tile[0], 1, taps_at_once(g.S), chosen.tile[2]))
    return tile_waste(sizes, chosen.tile)


def size_class(g, dtype, precision):
    """The product's key in the table: the arithmetic, whether x is read by single channels, whether it is im2col already,
    which tiles the channels fill."""
    if dtype == torch.float32:
        return precision
    if g.Ci_group % 4:
        return "16-bit scalar"
    words = ["16-bit"]
    if g.pointwise:
        words.append("pointwise")
    if g.Co_group <= 64:
        words.append("narrow")
    elif g.Co_group % 256 == 0:
        words.append("wide")
    return " ".join(words)


def is_depthwise(g):
    """Whether each group has one input channel, so that no product is left."""
    return g.Ci_group == 1 and g.groups > 1


def sizes_and_cut(problem):
    """``(sizes of the sum, Cut)`` of a problem."""
    g, device, split_k = problem.g, problem.device, problem.split_k
    if is_depthwise(g):
        shares = -(-g.S // taps_at_once(g.S))
        return (g.Co, g.R * g.S, g.M), cut((g.Co, g.R * shares, g.M), "depthwise", "default", device, 1, split_k)
    sizes = (g.Co_group, g.columns, g.M)
    key = size_class(g, problem.dtype, problem.precision)
    return sizes, cut(sizes, "product", key, device, g.groups, split_k)


@remembered
def plan(problem):
    """The ``PortablePlan`` of a problem."""
    g = problem.g
    sizes, chosen = sizes_and_cut(problem)
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
    start, step = walk(g, chosen.options["BLOCK_K"])
    numbers = (
        g.M, g.P, g.Q, g.H, g.W, g.S, g.R * g.S, g.Co_group, g.Co // unit, chosen.blocks, chosen.per,
        m_units, *x_units, *start, *g.dilation, *step,
    )  # fmt: skip
    wide = is_wide(g, chosen.options["BLOCK_K"], *x_units)
    meta = {"UNIT": unit, "WIDE": wide, "TAPS": taps_at_once(g.S), **chosen.options}
    return PortablePlan(text, depthwise_kernel, (chosen.tiles * chosen.pieces,), numbers, meta, chosen.pieces, copied)


def _plan_product(problem, text, chosen, x, dy, copied):
    g = problem.g
    vector = 16 // x.element_size()
    unit_o = common_unit(vector, g.Co_group, dy.stride(0))
    unit_c = common_unit(vector, g.Ci_group, *x.stride()[:3])
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
        g.M, g.P, g.Q, g.H, g.W, g.R, g.S, g.groups, g.Co_group // unit_o, g.Ci_group // unit_c, chosen.blocks, chosen.per,
        dy.stride(0) // unit_o, *x_units, *start, *g.dilation, *step,
    )  # fmt: skip
    meta = {
        "UNIT_O": unit_o, "UNIT_C": unit_c, "POINTWISE": pointwise, "WIDE": is_wide(g, options["BLOCK_K"], *x_units),
        "PRECISION": problem.precision if x.dtype == torch.float32 else None, **options,
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
        what = f"sums of {rows} channels and {columns} taps over {pixels} pixels, no product"
    else:
        what = f"product [{rows} x {pixels}][{pixels} x {columns}]" + (f" in {g.groups} groups" * (g.groups > 1))
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
    chosen = cut((Co, 1, M), "bias", "default", device)
    dy, copied = read_through(rows_of, grad_output)
    numbers = (M, Co, chosen.blocks, chosen.per, dy.stride(0))
    grid = (chosen.tiles * chosen.pieces,)
    return BiasPlan(grid, numbers, chosen.options, chosen.pieces, copied)
