"""What the plans for Hopper and Blackwell share: how work is shared out, TMA's im2col, what copies ask for.

A tile of the weight gradient is BLOCK_M output channels times GROUPS chunks of columns; a chunk is BLOCK_N input channels
under one tap (r, s). For a block of pixels, one copy brings a tile of dy, and one copy a chunk brings what im2col would
hold there: TMA itself walks along the output pixels, shifted by the tap, with zeros outside the image. Chunks
are numbered with taps fastest, so that those of a tile are mostly the same pixels, a step apart.
"""

from typing import NamedTuple

import triton

from kernels.common.configs import configuration
from kernels.common.gluon import fits_tma, gluon, reason_not, shared_layout
from kernels.common.gpu import multiprocessors
from kernels.common.math import cdiv
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad.plain import is_rows, rows_of
from kernels.conv_wgrad.portable import compiled_for, cut_as_text
from kernels.conv_wgrad.problem import Plan, read_through

MOST_PIXELS = 1024  # of a block: a kernel counts to the end of the last one
UNALIGNED = "not adjacent channels and pixels a multiple of 16 bytes apart"

if gluon is not None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col


class Schedule(NamedTuple):
    """A ``Cut`` as the kernels read it: programs take its items in turn; tiles_m: tiles along output channels."""

    items: int
    programs: int
    tiles: int
    tiles_m: int
    blocks: int
    per: int


class Window(NamedTuple):
    """What the copying warp reads of a geometry; last_o, last_c: the channels that the last tiles begin at."""

    P: int
    Q: int
    S: int
    taps: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    dil_h: int
    dil_w: int
    last_o: int
    last_c: int


class Tile(NamedTuple):
    """Compile-time numbers. POINTWISE: x is im2col already, [pixels, channels]. Input channels and columns are given in units
    of UNIT, so that the compiler knows which sums it may store at once; ALIGNED: all channels are multiples of 8. TURNED: x
    and dy have each other's roles, and the sum of row o, column (t, c) is stored as that of row c, column (taps - 1 - t, o).
    SLICE: the columns that Blackwell's storing warps have in registers at a time."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUPS: int
    STAGES: int
    POINTWISE: bool
    UNIT: int = 1
    ALIGNED: bool = False
    TURNED: bool = False
    SLICE: int = 0


class Matrix(NamedTuple):
    """The gradient as a matrix: output channels, and columns of ``taps`` times input channels."""

    Co: int
    Ci: int
    taps: int
    columns: int


@planned
def cut_of(kernel, problem):
    """The ``Cut`` of a problem: as the model of cost says where the table names one, else of the table's tiles."""
    g, options = problem.g, configuration("conv_wgrad", kernel, "default", problem.device)
    if "COSTS" in options:
        return model.cheapest(candidates(problem)).cut
    options["BLOCK_M"] = min(options["BLOCK_M"], max(64, triton.next_power_of_2(g.Co)))
    options["BLOCK_N"] = min(options["BLOCK_N"], max(16, triton.next_power_of_2(g.Ci)))
    whole, held = cut_whole(g, options), multiprocessors(problem.device)
    return whole.into(problem.split_k or model.choose_split(whole.tiles, whole.blocks, options["BLOCK_K"], held))


def cut_whole(g, options):
    """The ``Cut`` of a geometry's sums in one split."""
    chunks = g.R * g.S * cdiv(g.Ci, options["BLOCK_N"])
    tiles = cdiv(g.Co, options["BLOCK_M"]) * cdiv(chunks, options["GROUPS"])
    return model.Cut(options, tiles, cdiv(g.M, options["BLOCK_K"]))


@planned
def candidates(problem):
    """A ``model.Candidate`` of every tile that the table names costs for, its sums cut as is cheapest for it; else none."""
    costs = model.costs_of(configuration("conv_wgrad", "hopper", "default", problem.device))
    tiles = costs["tiles"][tiles_for(problem.g)] if costs else []
    return [model.cheapest(cuts) for cuts in considered(problem, costs, tiles)]


def considered(problem, costs, tiles):
    """``[[model.Candidate, ...], ...]``: for each of ``tiles`` that fits, every cut that is worth a prediction.

    Where channels are no multiples of 8 that is two chunks a tile: sums are then stored one by one, or tiles' places are
    rounded, which takes more registers than three groups have; and where roles are turned, more than for wide chunks.
    """
    g, found = problem.g, []
    two = [tile for tile in tiles if tile["GROUPS"] == 2]
    if not is_aligned_to_tma(g):
        tiles = two
    elif problem.turned:
        tiles = [tile for tile in tiles if tile in two or tile["BLOCK_N"] == 64]
    for tile in model.fitting(tiles, g.Co, g.Ci) or two:
        options = model.options_of(tile)
        cuts = model.weighed(costs, "hopper", tile, cut_whole(g, options), load_of(g, options), problem.split_k)
        found.append(cuts)
    return found


def tiles_for(g):
    """The name of the tiles in the costs: how x is read."""
    return "hopper rows" if g.pointwise else "hopper im2col"


def load_of(g, options):
    """What a program of a ``Cut`` asks of the GPU."""
    copied = sum(numel for numel, channels in ((g.N * g.H * g.W * g.Ci, g.Ci), (g.M * g.Co, g.Co)) if channels % 8)
    moved = 2 * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)
    astray = model.astray(g, options["BLOCK_M"], options["GROUPS"] * options["BLOCK_N"])
    return model.Load(1, 1, 1, 1, g.Co * g.columns, moved, copied=copied, astray=astray)


def unfit(g, dtype):
    """Why TMA cannot bring a geometry's tiles, as text, or ``None``."""
    if reason := reason_not("im2col copies"):
        return reason
    if dtype.itemsize != 2:
        return f"{dtype} has no 16-bit matrix instruction"
    if g.groups > 1:
        return f"its tiles see all channels, not {g.groups} groups of them"
    if 0 in (g.M, g.H, g.W, g.Ci, g.Co):
        return "there is nothing to sum"
    if max(g.stride) > 8:
        return f"stride is {g.stride}, TMA steps over 8 pixels at most"
    lower, upper = pixel_box(g)
    if not all(-128 <= corner <= 127 for corner in lower + upper):
        return f"its pixels' box begins {lower} from the image's begin and ends {upper} from its end, more than 8 bits"
    if max(g.span) > 256:
        return f"the filter spans {g.span} pixels, TMA shifts by 255 at most"
    if g.M > 2**31 - MOST_PIXELS:
        return f"its {g.M} pixels are more than 32 bits can count"
    if g.M * g.Co * g.columns >= 2**50:
        return "its blocks are more than 32 bits can count"
    return None


def pixel_box(g):
    """``(lower, upper)``, each [h, w]: where the first tap's walk begins, counted from the image's first pixel, and where it
    ends, counted from its last."""
    lower = [-g.padding[0], -g.padding[2]]
    sides = zip((g.P, g.Q), g.stride, (g.H, g.W), lower, strict=True)
    return lower, [(outputs - 1) * stride + 1 - size + first for outputs, stride, size, first in sides]


def reads(layout):
    """Whether TMA can read a tensor with this ``Layout``."""
    return layout.address == 0 and fits_tma(layout.meta())


def aligned(x):
    """``x`` or, where TMA cannot read it, a copy with gaps: pixels a multiple of 8 channels apart."""
    if fits_tma(x):
        return x
    return x.new_empty(*x.shape[:-1], -(-x.shape[-1] // 8) * 8)[..., : x.shape[-1]].copy_(x)


def plan_of(kernel, problem, cut, **known):
    """The ``Plan`` of a ``Cut`` for a kernel; known: what else its ``Tile`` and its launch are told."""
    g, options = problem.g, cut.options
    rows, copies = read_through(rows_of, problem.grad_output)
    copied = not reads(problem.input), copies or not reads(rows)
    pointwise = g.pointwise and (copied[0] or is_rows(g, problem.input.strides))
    meta = compiled_for(Tile, options | {"POINTWISE": pointwise, "TURNED": problem.turned, "num_warps": 4} | known)
    numbers = numbers_of(g, problem.device, cut, meta["T"].UNIT)
    arguments = lambda x, dy, target: (*descriptors(x, dy, g, options), target)  # noqa: E731
    reasons = tuple(UNALIGNED * one for one in copied)
    chunks = options["GROUPS"] * options["BLOCK_N"]
    whole = cut.tiles * options["BLOCK_M"] * chunks * cut.blocks * options["BLOCK_K"]
    text = cut_as_text(cut, whole / (g.Co * g.columns * g.M))
    return Plan(text, kernel, (numbers[0].programs,), numbers, meta, cut.splits, arguments, reasons, aligned)


def descriptors(x, dy, g, options):
    """``(of dy's tiles, of im2col's chunks)``; the latter are plain tiles where x is im2col already."""
    dy_desc = TensorDescriptor(*described(rows_of(dy), (options["BLOCK_K"], options["BLOCK_M"])))
    tile = (options["BLOCK_K"], options["BLOCK_N"])
    if is_rows(g, x.stride()):
        return dy_desc, TensorDescriptor(*described(x.as_strided((g.M, g.Ci), (x.stride(2), 1)), tile))
    lower, upper = pixel_box(g)
    box = {"pixel_box_lower_corner": lower, "pixel_box_upper_corner": upper}
    return dy_desc, TensorDescriptorIm2Col(*described(x, tile), element_strides=[1, *g.stride, 1], **box)


_layout = planned(shared_layout)  # a layout takes longer to make than a launch


def described(x, tile):
    """``(x, sizes, strides, tile, layout in shared memory)``; the stride of a single row or pixel may have been anything."""
    strides = [stride if stride > 0 and stride % 8 == 0 else 8 for stride in x.stride()]
    return x, list(x.shape), [*strides[:-1], 1], list(tile), _layout(tile, x.dtype)


def numbers_of(g, device, cut, unit=1):
    """``(schedule, Window, Matrix)`` of a ``Cut``, as the kernels read them; input channels in units of so many."""
    options, taps = cut.options, g.R * g.S
    programs = min(cut.items, multiprocessors(device))
    schedule = Schedule(cut.items, programs, cut.tiles, cdiv(g.Co, options["BLOCK_M"]), cut.blocks, cut.per)
    # the channels that the last tiles begin at, by the rule of ``last_of``
    last = [max(0, cdiv(size - options[name], 8) * 8) for size, name in ((g.Co, "BLOCK_M"), (g.Ci, "BLOCK_N"))]
    window = Window(g.P, g.Q, g.S, taps, *g.stride, g.padding[0], g.padding[2], *g.dilation, *last)
    return schedule, window, Matrix(g.Co, g.Ci // unit, taps, g.columns // unit)


def is_aligned_to_tma(g):
    """Whether every tile that ends with the channels begins at a multiple of 16 bytes."""
    return g.Co % 8 == 0 and g.Ci % 8 == 0
