"""The weight gradient for Hopper GPUs, warp-specialised: a warp asks TMA for tiles, groups of warps multiply.

    copying warp            wait until buffers are free; ask for dy[m, o] and, a chunk each group, im2col's [m, (r, s, c)]
    each group of 4 warps   wait until they are there;   acc += dy^T im2col on the tensor cores;   a block later: free

A tile of the weight gradient is BLOCK_M output channels times GROUPS chunks of columns; a chunk is BLOCK_N input channels
under one tap (r, s). All groups share a tile of dy; each has a chunk of its own, whose sums fill its registers. For a block
of pixels, one copy brings the tile of dy, and one copy a chunk brings what im2col would hold there: TMA itself walks along
the output pixels, shifted by the tap, with zeros outside the image. Chunks are numbered with taps fastest, so that those of a
tile are mostly the same pixels, a step apart.

dy lies in shared memory as it does in global memory, pixel by pixel, and the tensor cores read it transposed. Programs stay:
while the groups store a tile, the next tile's blocks are on their way.
"""

from typing import Any, NamedTuple

import triton

from kernels.common.configs import configuration
from kernels.common.gluon import fits_tma, gluon, shared_layout
from kernels.common.gluon import reason_not as no_gluon
from kernels.common.gpu import is_cuda_architecture, multiprocessors
from kernels.common.math import cdiv
from kernels.common.operator import planned
from kernels.conv_wgrad import cost as model
from kernels.conv_wgrad.plain import common_unit, is_rows, rows_of
from kernels.conv_wgrad.portable import compiled_for, cut_as_text
from kernels.conv_wgrad.problem import VECTOR, Plan, read_through

MOST_PIXELS = 1024  # of a block: a kernel counts to the end of the last one
UNALIGNED = "not adjacent channels and pixels a multiple of 16 bytes apart"

# Registers a thread that a program with 2 or 3 groups starts with: with its copying warp it takes 12 or 16 warps' place.
REGISTERS = {2: 168, 3: 128}


class Ring(NamedTuple):
    """Buffers of dy and of a group's chunk of x in shared memory, and their barriers."""

    dy: Any
    x: Any
    ready: Any
    free: Any


class Schedule(NamedTuple):
    """A ``Cut`` as the kernels read it: programs take its items in turn; tiles_m: tiles along output channels."""

    items: int
    programs: int
    tiles: int
    tiles_m: int
    blocks: int
    per: int


class Window(NamedTuple):
    """What the copying warp reads of a geometry."""

    P: int
    Q: int
    S: int
    stride_h: int
    stride_w: int
    top: int
    left: int
    dil_h: int
    dil_w: int


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


if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col

    @gluon.jit
    def split_of(item, work):
        """``(tile, split, its first block, how many)``. The first splits of all tiles come first, then the second ones:
        programs that run at the same time read the same pixels."""
        split = item // work.tiles
        first = split * work.per
        return item % work.tiles, split, first, gl.minimum(work.per, work.blocks - first)

    @gluon.jit
    def begin_of(own, channels, BLOCK: gl.constexpr, ALIGNED: gl.constexpr):
        """The channel that a tile begins at whose own ones begin at ``own``. The last tile lies inside like all others, on
        some channels of the one before it: TMA takes half as long again for blocks of zeros as for values. But it stops the
        GPU (an illegal instruction) where a copy does not begin at a multiple of 16 bytes, which 8 channels are; ALIGNED: all
        channels are a multiple, too."""
        last = channels - BLOCK if ALIGNED else (channels - BLOCK + 7) // 8 * 8
        first = gl.where(own < last, own, last)  # unlike by a minimum, known to be a multiple of what both are
        return gl.where(first > 0, first, 0)

    @gluon.jit
    def load_blocks(dy_desc, x_desc, ring, work, window, matrix, T: gl.constexpr):
        """The copying warp: every block of every item, into the ring's next buffers, as soon as they are free."""
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        BLOCK_K: gl.constexpr = T.BLOCK_K
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            tile, split, first, n = split_of(item, work)
            o = begin_of(tile % work.tiles_m * T.BLOCK_M, matrix.Co, T.BLOCK_M, T.ALIGNED)
            chunks = ()
            for group in gl.static_range(GROUPS):
                chunk = tile // work.tiles_m * GROUPS + group
                tap = chunk % matrix.taps
                r = (tap // window.S * window.dil_h).to(gl.int16)
                s = (tap % window.S * window.dil_w).to(gl.int16)
                c = begin_of(chunk // matrix.taps * T.BLOCK_N, matrix.Ci, T.BLOCK_N, T.ALIGNED)
                chunks = chunks + ((r, s, c),)
            for m in range(first * BLOCK_K, (first + n) * BLOCK_K, BLOCK_K):
                row = m // window.Q
                h = row % window.P * window.stride_h - window.top
                w = m % window.Q * window.stride_w - window.left
                stage = count % STAGES
                mbarrier.wait(ring.free.index(stage), (count // STAGES + 1) & 1)
                mbarrier.expect(ring.ready.index(stage), dy_desc.nbytes_per_cta + GROUPS * x_desc.nbytes_per_cta)
                tma.async_load(dy_desc, [m, o], ring.ready.index(stage), ring.dy.index(stage))
                for group in gl.static_range(GROUPS):
                    r, s, c = chunks[group]
                    buffer = ring.x.index(stage * GROUPS + group)
                    if T.POINTWISE:
                        tma.async_load(x_desc, [m, c], ring.ready.index(stage), buffer)
                    else:
                        at = [row // window.P, h, w, c]
                        tma.async_load_im2col(x_desc, at, [r, s], ring.ready.index(stage), buffer)
                count += 1

    @gluon.jit
    def place_of(out, tile, group, split, tiles_m, matrix, T: gl.constexpr):
        """``(where, rows, columns)``: where in ``out`` [splits * Co, RSC] a group's chunk of a tile lies, and the rows and
        columns (begin, end) of it that are its own."""
        own_o = tile % tiles_m * T.BLOCK_M
        chunk = tile // tiles_m * T.GROUPS + group
        own_c = chunk // matrix.taps * T.BLOCK_N
        o = begin_of(own_o, matrix.Co, T.BLOCK_M, T.ALIGNED)
        c = begin_of(own_c, matrix.Ci, T.BLOCK_N, T.ALIGNED)
        columns = matrix.taps * matrix.Ci
        where = out + split.to(gl.int64) * matrix.Co * columns
        tap = chunk % matrix.taps
        if T.TURNED:
            where += (c * matrix.taps + (matrix.taps - 1 - tap)).to(gl.int64) * matrix.Co + o
        else:
            where += o.to(gl.int64) * columns + (tap * matrix.Ci + c)
        return where, (own_o - o, matrix.Co - o), (own_c - c, matrix.Ci - c)

    @gluon.jit
    def store_chunk(values, first, where, rows, columns, matrix, T: gl.constexpr):
        """Store sums, from column ``first`` on, of a chunk that lies at ``where``: those of ``rows`` and ``columns``."""
        layout: gl.constexpr = values.type.layout
        m = gl.expand_dims(gl.arange(0, values.shape[0], gl.SliceLayout(1, layout)), 1)
        n = gl.expand_dims(first + gl.arange(0, values.shape[1], gl.SliceLayout(0, layout)), 0)
        if T.TURNED:
            at = where + m.to(gl.int64) + n.to(gl.int64) * (matrix.taps * matrix.Co)
        else:
            at = where + m.to(gl.int64) * (matrix.taps * matrix.Ci) + n.to(gl.int64)
        own = (m >= rows[0]) & (m < rows[1]) & (n >= columns[0]) & (n < columns[1])
        gl.store(at, values.to(where.dtype.element_ty), mask=own)

    @gluon.jit
    def multiply_blocks(ring, out, work, matrix, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: its chunk of every item that this program has."""
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16])
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            tile, split, first, n = split_of(item, work)
            where, rows, columns = place_of(out, tile, GROUP, split, work.tiles_m, matrix, T)
            acc = gl.zeros([T.BLOCK_M, T.BLOCK_N], gl.float32, layout)
            for _block in range(n):
                stage = count % STAGES
                mbarrier.wait(ring.ready.index(stage), count // STAGES & 1)
                dy = ring.dy.index(stage).permute((1, 0))
                acc = warpgroup_mma(dy, ring.x.index(stage * GROUPS + GROUP), acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=(acc,))  # all products but this one are over
                before = gl.where(stage == 0, STAGES - 1, stage - 1)
                mbarrier.arrive(ring.free.index(before), pred=count > 0)
                count += 1
            acc = warpgroup_mma_wait(0, deps=(acc,))
            store_chunk(acc, 0, where, rows, columns, matrix, T)

    @gluon.jit
    def wgrad_hopper_kernel(dy_desc, x_desc, out, work, window, matrix, T: gl.constexpr):
        """Every program takes items of the work a grid apart, until there are none left."""
        matrix = Matrix(matrix.Co, matrix.Ci * T.UNIT, matrix.taps)
        dy_s = gl.allocate_shared_memory(dy_desc.dtype, [T.STAGES, T.BLOCK_K, T.BLOCK_M], dy_desc.layout)
        x_s = gl.allocate_shared_memory(x_desc.dtype, [T.STAGES * T.GROUPS, T.BLOCK_K, T.BLOCK_N], x_desc.layout)
        ready = mbarrier.allocate_mbarrier(batch=T.STAGES)
        free = mbarrier.allocate_mbarrier(batch=T.STAGES)
        for stage in gl.static_range(T.STAGES):
            mbarrier.init(ready.index(stage), count=1)
            mbarrier.init(free.index(stage), count=T.GROUPS)
        ring = Ring(dy_s, x_s, ready, free)
        if T.GROUPS == 3:
            gl.warp_specialize(
                [
                    (multiply_blocks, (ring, out, work, matrix, 0, T)),
                    (multiply_blocks, (ring, out, work, matrix, 1, T)),
                    (multiply_blocks, (ring, out, work, matrix, 2, T)),
                    (load_blocks, (dy_desc, x_desc, ring, work, window, matrix, T)),
                ],
                [4, 4, 1],
                [160, 160, 32],
            )
        else:
            gl.warp_specialize(
                [
                    (multiply_blocks, (ring, out, work, matrix, 0, T)),
                    (multiply_blocks, (ring, out, work, matrix, 1, T)),
                    (load_blocks, (dy_desc, x_desc, ring, work, window, matrix, T)),
                ],
                [4, 1],
                [240, 32],
            )


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``."""
    return unfit(g, dtype) if is_cuda_architecture(device, 9) else "the GPU is not a Hopper"



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
    if reason := no_gluon("im2col copies"):
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
    programs = min(cut.items, multiprocessors(device))
    schedule = Schedule(cut.items, programs, cut.tiles, cdiv(g.Co, cut.options["BLOCK_M"]), cut.blocks, cut.per)
    window = Window(g.P, g.Q, g.S, *g.stride, g.padding[0], g.padding[2], *g.dilation)
    return schedule, window, Matrix(g.Co, g.Ci // unit, g.R * g.S)


def is_aligned_to_tma(g):
    """Whether every tile that ends with the channels begins at a multiple of 16 bytes."""
    return g.Co % 8 == 0 and g.Ci % 8 == 0


@planned
def plan(problem):
    """The ``Plan`` of a problem, whatever the GPU is."""
    return plan_cut(problem, cut_of("hopper", problem))


def plan_cut(problem, cut):
    """The ``Plan`` of a ``Cut``."""
    known = {"UNIT": unit_of(problem.g.Ci), "ALIGNED": is_aligned_to_tma(problem.g)}
    return plan_of(wgrad_hopper_kernel, problem, cut, maxnreg=REGISTERS[cut.options["GROUPS"]], **known)


def unit_of(Ci):
    """Input channels and columns are given in units of so many, 1 where the compiler sees by itself, at a multiple of 16,
    that they are even: what it then knows of them takes fewer registers."""
    return 1 if Ci % 16 == 0 else common_unit(VECTOR, Ci)
