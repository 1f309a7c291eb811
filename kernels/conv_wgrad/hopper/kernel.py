"""The weight gradient for Hopper GPUs, warp-specialised: a warp asks TMA for tiles, groups of warps multiply.

    copying warp            wait until buffers are free; ask for dy[m, o] and, a chunk each group, im2col's [m, (r, s, c)]
    each group of 4 warps   wait until they are there;   acc += dy^T im2col on the tensor cores;   a block later: free

All groups share a tile of dy; each has a chunk of its own, whose BLOCK_M x BLOCK_N sums fill its registers. dy lies in shared
memory as it does in global memory, pixel by pixel, and the tensor cores read it transposed. Programs stay: while the groups
store a tile, the next tile's blocks are on their way. ``tma`` says what tiles, chunks and blocks are.
"""

from typing import Any, NamedTuple

from kernels.common.gpu import is_cuda_architecture
from kernels.common.operator import planned
from kernels.conv_wgrad.hopper import tma
from kernels.conv_wgrad.hopper.tma import Matrix, candidates, gluon
from kernels.conv_wgrad.plain import common_unit

__all__ = ["candidates", "plan", "reason_not"]

VECTOR = 8  # sums that are known to lie beside each other, at most

# Registers a thread that a program with 2 or 3 groups starts with: with its copying warp it takes 12 or 16 warps' place.
REGISTERS = {2: 168, 3: 128}


class Ring(NamedTuple):
    """Buffers of dy and of a group's chunk of x in shared memory, and their barriers."""

    dy: Any
    x: Any
    ready: Any
    free: Any


if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
    from triton.experimental.gluon.language.nvidia.hopper import tma as copy

    @gluon.jit
    def split_of(item, work):
        """``(tile, split, its first block, how many)``. The first splits of all tiles come first, then the second ones:
        programs that run at the same time read the same pixels."""
        split = item // work.tiles
        first = split * work.per
        return item % work.tiles, split, first, gl.minimum(work.per, work.blocks - first)

    @gluon.jit
    def load_blocks(dy_desc, x_desc, ring, work, window, T: gl.constexpr):
        """The copying warp: every block of every item, into the ring's next buffers, as soon as they are free."""
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        BLOCK_K: gl.constexpr = T.BLOCK_K
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            tile, split, first, n = split_of(item, work)
            o = gl.minimum(tile % work.tiles_m * T.BLOCK_M, window.last_o)
            chunks = ()
            for group in gl.static_range(GROUPS):
                chunk = tile // work.tiles_m * GROUPS + group
                tap = chunk % window.taps
                r = (tap // window.S * window.dil_h).to(gl.int16)
                s = (tap % window.S * window.dil_w).to(gl.int16)
                chunks = chunks + ((r, s, gl.minimum(chunk // window.taps * T.BLOCK_N, window.last_c)),)
            for m in range(first * BLOCK_K, (first + n) * BLOCK_K, BLOCK_K):
                row = m // window.Q
                h = row % window.P * window.stride_h - window.top
                w = m % window.Q * window.stride_w - window.left
                stage = count % STAGES
                mbarrier.wait(ring.free.index(stage), (count // STAGES + 1) & 1)
                mbarrier.expect(ring.ready.index(stage), dy_desc.nbytes_per_cta + GROUPS * x_desc.nbytes_per_cta)
                copy.async_load(dy_desc, [m, o], ring.ready.index(stage), ring.dy.index(stage))
                for group in gl.static_range(GROUPS):
                    r, s, c = chunks[group]
                    buffer = ring.x.index(stage * GROUPS + group)
                    if T.POINTWISE:
                        copy.async_load(x_desc, [m, c], ring.ready.index(stage), buffer)
                    else:
                        at = [row // window.P, h, w, c]
                        copy.async_load_im2col(x_desc, at, [r, s], ring.ready.index(stage), buffer)
                count += 1

    @gluon.jit
    def last_of(channels, BLOCK: gl.constexpr, ALIGNED: gl.constexpr):
        """The channel that the last tile begins at: the first multiple of 8 from which it reaches the end. TMA stops the GPU
        (an illegal instruction) where a copy does not begin at a multiple of 16 bytes. ALIGNED: channels are one, too."""
        if ALIGNED:
            return channels - BLOCK
        else:
            return (channels - BLOCK + 7) // 8 * 8

    @gluon.jit
    def within(first, last):
        """The nearest to ``first`` of 0 ... ``last``, or 0: unlike a minimum, known to be a multiple of what both are."""
        first = gl.where(first < last, first, last)
        return gl.where(first > 0, first, 0)

    @gluon.jit
    def place_of(out, tile, group, split, tiles_m, matrix, T: gl.constexpr):
        """``(where, rows, columns)``: where in ``out`` [splits * Co, RSC] a group's chunk of a tile lies, and the rows and
        columns (begin, end) of it that are its own.

        The last tile lies inside like all others but for 7 channels, on some rows and columns of the one before it: TMA
        takes half as long again for blocks of zeros as for values.
        """
        own_o = tile % tiles_m * T.BLOCK_M
        chunk = tile // tiles_m * T.GROUPS + group
        own_c = chunk // matrix.taps * T.BLOCK_N
        o = within(own_o, last_of(matrix.Co, T.BLOCK_M, T.ALIGNED))
        c = within(own_c, last_of(matrix.Ci, T.BLOCK_N, T.ALIGNED))
        where = out + split.to(gl.int64) * matrix.Co * matrix.columns
        tap = chunk % matrix.taps
        if T.TURNED:
            where += (c * matrix.taps + (matrix.taps - 1 - tap)).to(gl.int64) * matrix.Co + o
        else:
            where += o.to(gl.int64) * matrix.columns + (tap * matrix.Ci + c)
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
            at = where + m.to(gl.int64) * matrix.columns + n.to(gl.int64)
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
        matrix = Matrix(matrix.Co, matrix.Ci * T.UNIT, matrix.taps, matrix.columns * T.UNIT)
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
                    (load_blocks, (dy_desc, x_desc, ring, work, window, T)),
                ],
                [4, 4, 1],
                [160, 160, 32],
            )
        else:
            gl.warp_specialize(
                [
                    (multiply_blocks, (ring, out, work, matrix, 0, T)),
                    (multiply_blocks, (ring, out, work, matrix, 1, T)),
                    (load_blocks, (dy_desc, x_desc, ring, work, window, T)),
                ],
                [4, 1],
                [240, 32],
            )


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``."""
    return tma.unfit(g, dtype) if is_cuda_architecture(device, 9) else "the GPU is not a Hopper"


@planned
def plan(problem):
    """The ``Plan`` of a problem, whatever the GPU is."""
    return plan_cut(problem, tma.cut_of("hopper", problem))


def plan_cut(problem, cut):
    """The ``Plan`` of a ``Cut``."""
    known = {"UNIT": unit_of(problem.g.Ci), "ALIGNED": tma.is_aligned_to_tma(problem.g)}
    return tma.plan_of(wgrad_hopper_kernel, problem, cut, maxnreg=REGISTERS[cut.options["GROUPS"]], **known)


def unit_of(Ci):
    """Input channels and columns are given in units of so many, 1 where the compiler sees by itself, at a multiple of 16,
    that they are even: what it then knows of them takes fewer registers."""
    return 1 if Ci % 16 == 0 else common_unit(VECTOR, Ci)
