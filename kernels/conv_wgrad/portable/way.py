"""The portable way: a product with im2col, sums without a product where it is depthwise, and the bias gradient's sums."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.again import Constants
from kernels.common.configs import configuration
from kernels.common.descriptors import Descriptors
from kernels.common.gpu import is_cuda_architecture
from kernels.common.launch import launch
from kernels.common.plan import Cost, remembered
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad.portable.choice import candidates, groups_together, is_depthwise, sizes_and_cut, waste
from kernels.conv_wgrad.portable.column_sums import bias_kernel
from kernels.conv_wgrad.portable.depthwise import depthwise_kernel, taps_of
from kernels.conv_wgrad.portable.pixels import channels_adjacent, common_unit, is_rows, is_wide, rows_of, walk
from kernels.conv_wgrad.portable.product import wgrad_kernel
from kernels.conv_wgrad.split_k import cut, reduce_into

SLOWER = 1.1  # a tile of the portable kernel takes so much longer than a tile that TMA brings


@dataclass(frozen=True)
class PortablePlan:
    """One launch that writes ``pieces`` partial sums, and their sum.

    Of tensors that are read as they lie the kernel is told where they begin: any view of their memory will do.
    dy_tiles, x_tiles: how descriptors of the matrices of rows and of im2col are made, ``None`` where tensors are read through
    pointers. bias_programs: how many more sum the columns of dy; 0 where one that walks all pixels would end last, ``None``
    of a kernel that has no such programs.
    """

    text: str
    kernel: Callable
    grid: tuple[int]
    numbers: tuple[int, ...]
    constants: Constants
    pieces: int
    copied: tuple[bool, bool] = (False, False)
    dy_tiles: Descriptors | None = None
    x_tiles: Descriptors | None = None
    bias_programs: int | None = None

    def __str__(self):
        return self.text

    @property
    def slots(self):
        """Partial sums that ``fill`` writes."""
        return self.pieces

    @property
    def takes_bias(self):
        """Whether the launch can bring the bias gradient as well: its sums run over all pixels, as the product's do then."""
        return bool(self.bias_programs) and self.pieces == 1

    @property
    def straight(self):
        """Whether it reads its tensors as they lie and writes the gradient itself: ``fill`` is all there is to do."""
        return self.pieces == 1 and not any(self.copied)

    def run(self, input, grad_output, out, accumulate, bias=None):
        """Bring the weight gradient into ``out`` [Co, R, S, Ci/groups]; ``accumulate``: add it. bias: as for ``fill``."""
        reduce_into(out, accumulate, self.slots, lambda target: self.fill(input, grad_output, target, bias))

    @functools.cached_property
    def settled(self):
        """Constants for tensors of the problem's dtypes, that begin where its own do: without a bias, and with."""
        return self.constants.settling_all(), self.constants.settling_all()

    def fill(self, input, grad_output, target, bias=None, looked_at=False):
        """Write the partial sums into ``target`` [slots, Co, R, S, Ci/groups], or the only one into any such shape; and, if
        there is a ``bias`` [Co], its gradient into that: where the plan ``takes_bias``. looked_at: whether ``target`` and
        ``bias`` are new and in the dtype of the others, which are as those that the plan was made for."""
        x = input.contiguous() if self.copied[0] else input
        dy = rows = rows_of(grad_output) if self.copied[1] else grad_output
        if self.dy_tiles:
            dy = self.dy_tiles(rows)
        if self.x_tiles:
            x = self.x_tiles(x)
        grid, behind = self.grid, () if self.bias_programs is None else (None, None)
        if bias is not None:
            grid, behind = (grid[0] + self.bias_programs,), (rows, bias)
        launch(
            self.kernel, grid, dy, x, target, *self.numbers, *behind,
            constants=self.settled[bias is not None] if looked_at else self.constants,
        )  # fmt: skip


@dataclass(frozen=True)
class BiasPlan:
    """The sums of the bias gradient."""

    grid: tuple[int]
    numbers: tuple[int, ...]
    constants: Constants
    pieces: int
    copied: bool

    def run(self, grad_output, out, accumulate):
        """Bring the bias gradient, the sum of ``grad_output`` [N, P, Q, Co] over its pixels, into ``out`` [Co]."""
        dy = rows_of(grad_output) if self.copied else grad_output

        def fill(target):
            launch(bias_kernel, self.grid, dy, target, *self.numbers, constants=self.constants)

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


@remembered
def plan(problem):
    """The ``PortablePlan`` of a problem."""
    return plan_cut(problem, *sizes_and_cut(problem))


def plan_cut(problem, sizes, chosen):
    """The ``PortablePlan`` of a ``Cut`` of a sum of these sizes."""
    g = problem.g
    if g.M <= configuration("conv_wgrad", "short", "default", problem.device)["PIXELS"] and chosen.options.get("TMA"):
        chosen = replace(chosen, options=chosen.options | {"TMA": False})  # it would be over before TMA has been told
    text = describe(problem, sizes, chosen)
    if 0 in sizes:
        return PortablePlan(text, wgrad_kernel, (0,), (), Constants(), 0)
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
    grid = (chosen.tiles * chosen.pieces,)
    return PortablePlan(text, depthwise_kernel, grid, numbers, Constants(**meta), chosen.pieces, copied)


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
    tiles = None, None
    if options["TMA"]:
        x_tiles = _tiled(g.M, g.Ci, x.stride(2), options["BLOCK_K"], options["BLOCK_N"]) if pointwise else None
        tiles = _tiled(g.M, g.Co, dy.stride(0), options["BLOCK_K"], options["BLOCK_M"]), x_tiles
    grid = (chosen.tiles * chosen.pieces,)
    few = g.M <= configuration("conv_wgrad", "short", "default", problem.device)["BIAS"]
    bias_programs = -(-g.Co // options["BLOCK_M"]) if few else 0
    return PortablePlan(
        text, wgrad_kernel, grid, numbers, Constants(**meta), chosen.pieces, copied, *tiles, bias_programs
    )  # fmt: skip


def _tiled(M, C, step, rows, columns):
    """Of a matrix [M, C] whose rows lie ``step`` apart, in whatever shape its memory is given."""
    return Descriptors(lambda x: TensorDescriptor(x, [M, C], [step, 1], [rows, columns]))


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
            what += f" in {g.groups} groups" + f", {together} of them multiplied together" * (together > 1)
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
    return BiasPlan(grid, numbers, Constants(**chosen.options), chosen.pieces, copied)
