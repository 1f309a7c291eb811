"""What the plans for Hopper and Blackwell share: how work is shared out, TMA's im2col, what copies ask for.

A tile of the weight gradient is BLOCK_M output channels times GROUPS chunks of columns; a chunk is BLOCK_N input channels
under one tap (r, s). For a block of pixels, one copy brings a tile of dy, and one copy a chunk brings what im2col would
hold there: TMA itself walks along the output pixels, shifted by the tap, with zeros outside the image. Chunks
are numbered with taps fastest, so that those of a tile are mostly the same pixels, a step apart.
"""

from dataclasses import dataclass
from typing import NamedTuple

import triton

from kernels.common.configs import configuration
from kernels.common.gluon import fits_tma, gluon, has_clusters, reason_not, shared_layout
from kernels.common.gpu import multiprocessors
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad.cost import equal_splits
from kernels.conv_wgrad.plain import is_rows, rows_of
from kernels.conv_wgrad.portable import compiled_for
from kernels.conv_wgrad.problem import Plan, read_through

PAIR = ((0, 1),), ((0, 0),)  # of two multiprocessors, the second has the other half of dy's channels, and the same x
SURE = 1.05  # times faster than by single multiprocessors a pair has to be predicted: the model is no surer of them
MOST_PIXELS = 1024  # of a block: a kernel counts to the end of the last one
LEAST = 8  # blocks of a share, where no model of cost says how many
UNALIGNED = "not adjacent channels and pixels a multiple of 16 bytes apart"

if gluon is not None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col


class Schedule(NamedTuple):
    """A ``Work`` as the kernels read it; whole: shares before those that may meet several tiles; tiles_m: tiles along output
    channels."""

    items: int
    programs: int
    whole: int
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
    of UNIT, so that the compiler knows which sums it may store at once; ALIGNED: all channels are multiples of 8. SLICE: the
    columns that Blackwell's storing warps have in registers at a time."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    GROUPS: int
    STAGES: int
    POINTWISE: bool
    UNIT: int = 1
    ALIGNED: bool = False
    SLICE: int = 0


class Matrix(NamedTuple):
    """The gradient as a matrix: output channels, and columns of ``taps`` times input channels."""

    Co: int
    Ci: int
    taps: int
    columns: int


@dataclass(frozen=True)
class Work:
    """``tiles`` sums over ``blocks`` blocks of pixels each, cut into shares of at most ``per`` blocks.

    The first ``splits`` * ``per`` blocks of a tile are cut into ``splits``, each a share. What is left of the tile,
    fewer than ``per`` blocks, is laid end to end with what is left of the others, and cut into shares of ``per`` blocks, too:
    such a share may end one tile and begin the next. The first splits of all tiles come first, then the second ones: programs
    that run at the same time read the same pixels.
    """

    tiles: int
    blocks: int
    splits: int
    per: int

    @property
    def rest(self):
        """Blocks of a tile behind its splits; 0 where the last split is the shorter one."""
        return max(0, self.blocks - self.splits * self.per)

    @property
    def segments(self):
        """Tiles that a share sums some blocks of, at most: rests are short where many lie end to end in a share."""
        return min(self.tiles, 1 + -(-self.per // self.rest)) if self.rest else 1

    @property
    def slots(self):
        """Partial sums of a tile, at most: a rest is no longer than a share, so it lies in one of them or in two."""
        return self.splits + (0 if not self.rest else 1 if self.per % self.rest == 0 else 2)

    @property
    def whole(self):
        """Shares that are splits, of all tiles together."""
        return self.tiles * self.splits

    @property
    def items(self):
        """Shares."""
        return self.whole + -(-self.tiles * self.rest // self.per)

    def schedule(self, tiles_m, processors):
        """As the kernels read it, for so many programs at once."""
        programs = min(self.items, processors)
        return Schedule(self.items, programs, self.whole, self.tiles, tiles_m, self.blocks, self.per)


@dataclass(frozen=True)
class Shares:
    """The kernel's ``options``, how the ``work`` is shared out, and ``waste``: 1.0 where no tile is padded."""

    options: dict
    work: Work
    waste: float

    def __str__(self):
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        work, how = self.work, ", the rests end to end" * (self.work.rest > 0)
        return f"{options}; {work.tiles} tiles, split-K {work.splits}{how}; tile waste {self.waste:.2f}"


@planned
def share(kernel, problem):
    """The ``Shares`` for a problem: as the model of cost says where the table names one, else an equal share of the table's
    tiles for each program."""
    g, options = problem.g, configuration("conv_wgrad", kernel, "default", problem.device)
    if "COSTS" in options:
        return model.cheapest(candidates(problem)).work
    options["BLOCK_M"] = min(options["BLOCK_M"], max(64, triton.next_power_of_2(g.Co)))
    options["BLOCK_N"] = min(options["BLOCK_N"], max(16, triton.next_power_of_2(g.Ci)))
    tiles, blocks, waste = tiled(g, options)
    per = max(LEAST, -(-tiles * blocks // multiprocessors(problem.device)))
    cut = (blocks // per, per) if problem.split_k is None else equal_splits(blocks, problem.split_k)
    return Shares(options, Work(tiles, blocks, *cut), waste)


def tiled(g, options):
    """``(tiles, blocks of pixels, tile waste)`` of a geometry."""
    BLOCK_M, BLOCK_N, BLOCK_K, GROUPS = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUPS"))
    chunks = g.R * g.S * -(-g.Ci // BLOCK_N)
    rows, columns, blocks = -(-g.Co // BLOCK_M), -(-chunks // GROUPS), -(-g.M // BLOCK_K)
    padded = rows * BLOCK_M * columns * GROUPS * BLOCK_N * blocks * BLOCK_K
    return rows * columns, blocks, padded / (g.Co * g.columns * g.M)


@planned
def candidates(problem):
    """A ``model.Candidate`` of every tile that the table names costs for, its sums shared out as is cheapest for it; else
    none."""
    costs = model.costs_of(configuration("conv_wgrad", "hopper", "default", problem.device))
    tiles = costs["tiles"][tiles_for(problem.g)] if costs else []
    found = [model.cheapest(shared) for shared in considered(problem, costs, tiles)]
    alone = min((one.time for one in found if model.together(one.tile) == 1), default=float("inf"))
    return [one for one in found if model.together(one.tile) == 1 or SURE * one.time < alone]


def considered(problem, costs, tiles):
    """``[[model.Candidate, ...], ...]``: for each of ``tiles`` that fits, every way to share out its sums that is worth a
    prediction. Where channels are no multiples of 8 that is two chunks a tile: sums are then stored one by one, or tiles'
    places are rounded, which takes more registers than three groups have."""
    g, split_k = problem.g, problem.split_k
    tiles = [tile for tile in tiles if model.together(tile) == 1 or has_clusters()]
    found, two = [], [tile for tile in tiles if tile["GROUPS"] == 2 and model.together(tile) == 1]
    allowed = tiles if is_aligned_to_tma(g) else [tile for tile in tiles if tile["GROUPS"] == 2]
    for tile in model.fitting(allowed, g.Co, g.Ci) or two:
        options = model.options_of(tile)
        (n, blocks, waste), programs = tiled(g, options), costs["multiprocessors"] // model.together(tile)
        works = [Work(n, blocks, *cut) for cut in sorted(model.cuts(n, blocks, programs, split_k))]
        if split_k is None:
            per = -(-n * blocks // programs)
            works.append(Work(n, blocks, blocks // per, per))
        times = [model.predicted(costs, "hopper", tile, load_of(g, options, work, problem.turned)) for work in works]
        shares = [Shares(options, work, waste) for work in works]
        found.append([model.Candidate(tile, options, *pair) for pair in zip(shares, times, strict=True)])
    return found


def tiles_for(g):
    """The name of the tiles in the costs: how x is read."""
    return "hopper rows" if g.pointwise else "hopper im2col"


def load_of(g, options, work, turned=False):
    """What the launch of a ``Work`` asks of the GPU."""
    copied = [numel for numel, channels in ((g.N * g.H * g.W * g.Ci, g.Ci), (g.M * g.Co, g.Co)) if channels % 8]
    moved = 2 * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)
    rows, columns = options["BLOCK_M"], options["GROUPS"] * options["BLOCK_N"]
    how = {"slots": work.slots, "zeroed": int(work.slots == work.splits + 2)}
    how |= {"apart": 2 * work.tiles * work.rest * options["BLOCK_K"] * (rows + columns), "copied": sum(copied)}
    how |= {"astray": model.astray(g, rows, columns), "segments": work.segments, "turned": turned}
    return model.Load(work.items, work.per, 1, numel=g.Co * g.columns, bytes=moved, **how)


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


def plan_of(kernel, problem, shares, **known):
    """The ``Plan`` of ``Shares`` for a kernel; known: what else its ``Tile`` and its launch are told."""
    g, work, options = problem.g, shares.work, shares.options
    rows, copies = read_through(rows_of, problem.grad_output)
    copied = not reads(problem.input), copies or not reads(rows)
    pointwise = g.pointwise and (copied[0] or is_rows(g, problem.input.strides))
    meta = compiled_for(Tile, options | {"POINTWISE": pointwise, "num_warps": 4} | known)

    def arguments(x, dy, target, bias):
        """Descriptors and the target."""
        if work.slots == work.splits + 2:
            target[-1].zero_()  # only tiles whose rest lies in two shares have a last partial sum
        return *descriptors(x, dy, g, options), target

    numbers = numbers_of(g, problem.device, shares, meta["T"].UNIT)
    reasons = tuple(UNALIGNED * one for one in copied)
    return Plan(str(shares), kernel, (numbers[0].programs,), numbers, meta, work.slots, arguments, reasons, aligned)


def descriptors(x, dy, g, options):
    """``(of dy's tiles, of im2col's chunks)``; the latter are plain tiles where x is im2col already."""
    split, shared = PAIR if model.together(options) == 2 else (None, None)
    dy_desc = TensorDescriptor(*described(rows_of(dy), (options["BLOCK_K"], options["BLOCK_M"]), split))
    tile = (options["BLOCK_K"], options["BLOCK_N"])
    if is_rows(g, x.stride()):
        return dy_desc, TensorDescriptor(*described(x.as_strided((g.M, g.Ci), (x.stride(2), 1)), tile, shared))
    lower, upper = pixel_box(g)
    box = {"pixel_box_lower_corner": lower, "pixel_box_upper_corner": upper}
    return dy_desc, TensorDescriptorIm2Col(*described(x, tile, shared), element_strides=[1, *g.stride, 1], **box)


_layout = planned(shared_layout)  # a layout takes longer to make than a launch


def described(x, tile, cga=None):
    """``(x, sizes, strides, tile, layout in shared memory)``; the stride of a single row or pixel may have been anything."""
    strides = [stride if stride > 0 and stride % 8 == 0 else 8 for stride in x.stride()]
    return x, list(x.shape), [*strides[:-1], 1], list(tile), _layout(tile, x.dtype, cga)


def numbers_of(g, device, shares, unit=1):
    """``(schedule, Window, Matrix)`` of ``Shares``, as the kernels read them; input channels in units of so many."""
    options, taps = shares.options, g.R * g.S
    schedule = shares.work.schedule(-(-g.Co // options["BLOCK_M"]), multiprocessors(device) // model.together(options))
    # the channels that the last tiles begin at, by the rule of ``last_of``
    last = [max(0, -(-(size - options[name]) // 8) * 8) for size, name in ((g.Co, "BLOCK_M"), (g.Ci, "BLOCK_N"))]
    window = Window(g.P, g.Q, g.S, taps, *g.stride, g.padding[0], g.padding[2], *g.dilation, *last)
    return schedule, window, Matrix(g.Co, g.Ci // unit, taps, g.columns // unit)


def is_aligned_to_tma(g):
    """Whether every tile that ends with the channels begins at a multiple of 16 bytes."""
    return g.Co % 8 == 0 and g.Ci % 8 == 0
