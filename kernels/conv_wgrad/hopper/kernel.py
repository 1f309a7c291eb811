"""The weight gradient for Hopper GPUs, warp-specialised: a warp asks TMA for tiles, groups of warps multiply.

    copying warp            wait until buffers are free; ask for dy[m, o] and, a chunk each group, im2col's [m, (r, s, c)]
    each group of 4 warps   wait until they are there;   acc += dy^T im2col on the tensor cores;   a block later: free

All groups share a tile of dy; each has a chunk of its own, whose BLOCK_M x BLOCK_N sums fill its registers. dy lies in shared
memory as it does in global memory, pixel by pixel, and the tensor cores read it transposed. Programs stay: while the groups
store a tile, the next tile's blocks are on their way. ``tma`` says what tiles, chunks and blocks are, and its ``Work`` how
they are shared out.

A program may be a pair of multiprocessors, a cluster: each has half of dy's tile, and both have the same chunks of x, which
cross from the L2 cache once, by TMA's multicast. Its first may ask for x only when both have read what lies there.
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
    """Buffers of dy and of a group's chunk of x in shared memory, and their barriers; both: in a pair of multiprocessors that
    share x, of buffers that are free in both."""

    dy: Any
    x: Any
    ready: Any
    free: Any
    both: Any


if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
    from triton.experimental.gluon.language.nvidia.hopper import tma as copy

    @gluon.jit
    def share_of(item, work):
        """``(position, end, length, first)``: tiles of ``length`` blocks lie end to end, each begins with its tile's block
        ``first``; the share is what lies at ``position`` ... ``end`` - 1."""
        first = gl.minimum(item, work.whole) // work.tiles * work.per
        if item < work.whole:
            length = gl.minimum(work.per, work.blocks - first)
            position = item % work.tiles * length
            end = position + length
        else:
            length = work.blocks - first
            position = (item - work.whole) * work.per
            end = gl.minimum(position + work.per, work.tiles * length)
        return position, end, length, first

    @gluon.jit
    def segment_of(position, end, length, first, work):
        """``(tile, its first block here, how many, slot)`` of the tile at ``position``; slot: of the sum."""
        tile = position // length
        skipped = position - tile * length
        n = gl.minimum(end - position, length - skipped)
        return tile, first + skipped, n, first // work.per + (skipped > 0).to(gl.int32)

    @gluon.jit
    def load_blocks(dy_desc, x_desc, ring, work, window, T: gl.constexpr):
        """The copying warp: every block of every share, into the ring's next buffers, as soon as they are free."""
        PAIR: gl.constexpr = gl.num_ctas() == 2
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        BLOCK_K: gl.constexpr = T.BLOCK_K
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            position, end, length, first = share_of(item, work)
            while position < end:
                tile, block, n, slot = segment_of(position, end, length, first, work)
                o = gl.minimum(tile % work.tiles_m * T.BLOCK_M, window.last_o)
                chunks = ()
                for group in gl.static_range(GROUPS):
                    chunk = tile // work.tiles_m * GROUPS + group
                    tap = chunk % window.taps
                    r = (tap // window.S * window.dil_h).to(gl.int16)
                    s = (tap % window.S * window.dil_w).to(gl.int16)
                    chunks = chunks + ((r, s, gl.minimum(chunk // window.taps * T.BLOCK_N, window.last_c)),)
                for m in range(block * BLOCK_K, (block + n) * BLOCK_K, BLOCK_K):
                    row = m // window.Q
                    h = row % window.P * window.stride_h - window.top
                    w = m % window.Q * window.stride_w - window.left
                    stage = count % STAGES
                    mbarrier.wait(ring.free.index(stage), (count // STAGES + 1) & 1)
                    mbarrier.expect(ring.ready.index(stage), dy_desc.nbytes_per_cta + GROUPS * x_desc.nbytes_per_cta)
                    copy.async_load(dy_desc, [m, o], ring.ready.index(stage), ring.dy.index(stage))
                    if PAIR:  # only the pair's first waits here, and asks for what both are given
                        mbarrier.wait(ring.both.index(stage), (count // STAGES + 1) & 1)
                    for group in gl.static_range(GROUPS):
                        r, s, c = chunks[group]
                        buffer = ring.x.index(stage * GROUPS + group)
                        if T.POINTWISE:
                            copy.async_load(x_desc, [m, c], ring.ready.index(stage), buffer, multicast=PAIR)
                        else:
                            at = [row // window.P, h, w, c]
                            copy.async_load_im2col(x_desc, at, [r, s], ring.ready.index(stage), buffer, multicast=PAIR)
                    count += 1
                position += n

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
    def place_of(out, tile, group, slot, tiles_m, matrix, T: gl.constexpr):
        """``(where, rows, columns)``: where in ``out`` [slots * Co, RSC] a group's chunk of a tile lies, and the rows and
        columns (begin, end) of it that are its own.

        The last tile lies inside like all others but for 7 channels, on some rows and columns of the one before it: TMA
        takes half as long again for blocks of zeros as for values.
        """
        own_o = tile % tiles_m * T.BLOCK_M
        chunk = tile // tiles_m * T.GROUPS + group
        own_c = chunk // matrix.taps * T.BLOCK_N
        o = within(own_o, last_of(matrix.Co, T.BLOCK_M, T.ALIGNED))
        c = within(own_c, last_of(matrix.Ci, T.BLOCK_N, T.ALIGNED))
        where = out + (slot * matrix.Co + o).to(gl.int64) * matrix.columns + (chunk % matrix.taps * matrix.Ci + c)
        return where, (own_o - o, matrix.Co - o), (own_c - c, matrix.Ci - c)

    @gluon.jit
    def store_chunk(values, where, rows, columns, step):
        """Store sums from ``where`` on, in rows ``step`` elements apart, those of ``rows`` and ``columns`` (begin, end)."""
        layout: gl.constexpr = values.type.layout
        m = gl.expand_dims(gl.arange(0, values.shape[0], gl.SliceLayout(1, layout)), 1)
        n = gl.expand_dims(gl.arange(0, values.shape[1], gl.SliceLayout(0, layout)), 0)
        at = where + m.to(gl.int64) * step + n.to(gl.int64)
        own = (m >= rows[0]) & (m < rows[1]) & (n >= columns[0]) & (n < columns[1])
        gl.store(at, values.to(where.dtype.element_ty), mask=own)

    @gluon.jit
    def multiply_blocks(ring, out, work, matrix, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: its chunk of every tile that this program has a share in."""
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        PAIR: gl.constexpr = gl.num_ctas() == 2
        cga: gl.constexpr = [[1, 0]] if PAIR else []
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16], cga)
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            position, end, length, first = share_of(item, work)
            while position < end:
                tile, block, n, slot = segment_of(position, end, length, first, work)
                where, rows, columns = place_of(out, tile, GROUP, slot, work.tiles_m, matrix, T)
                acc = gl.zeros([T.BLOCK_M, T.BLOCK_N], gl.float32, layout)
                for _block in range(n):
                    stage = count % STAGES
                    mbarrier.wait(ring.ready.index(stage), count // STAGES & 1)
                    dy = ring.dy.index(stage).permute((1, 0))
                    acc = warpgroup_mma(dy, ring.x.index(stage * GROUPS + GROUP), acc, is_async=True)
                    acc = warpgroup_mma_wait(1, deps=(acc,))  # all products but this one are over
                    before = gl.where(stage == 0, STAGES - 1, stage - 1)
                    mbarrier.arrive(ring.free.index(before), pred=count > 0)
                    if PAIR:
                        mbarrier.arrive(ring.both.index(before), pred=count > 0)
                    count += 1
                acc = warpgroup_mma_wait(0, deps=(acc,))
                store_chunk(acc, where, rows, columns, matrix.columns)
                position += n

    @gluon.jit
    def wgrad_hopper_kernel(dy_desc, x_desc, out, work, window, matrix, T: gl.constexpr):
        """Every program takes shares of the work a grid apart, until there are none left."""
        PAIR: gl.constexpr = gl.num_ctas() == 2
        matrix = Matrix(matrix.Co, matrix.Ci * T.UNIT, matrix.taps, matrix.columns * T.UNIT)
        dy_s = gl.allocate_shared_memory(dy_desc.dtype, [T.STAGES, T.BLOCK_K, T.BLOCK_M], dy_desc.layout)
        x_s = gl.allocate_shared_memory(x_desc.dtype, [T.STAGES * T.GROUPS, T.BLOCK_K, T.BLOCK_N], x_desc.layout)
        ready = mbarrier.allocate_mbarrier(batch=T.STAGES)
        free = mbarrier.allocate_mbarrier(batch=T.STAGES)
        if PAIR:
            both = mbarrier.allocate_mbarrier(batch=T.STAGES, two_ctas=True)
        else:
            both = free
        for stage in gl.static_range(T.STAGES):
            mbarrier.init(ready.index(stage), count=1)
            mbarrier.init(free.index(stage), count=T.GROUPS)
            if PAIR:
                mbarrier.init(both.index(stage), count=T.GROUPS)
        ring = Ring(dy_s, x_s, ready, free, both)
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
    return plan_shares(problem, tma.share("hopper", problem))


def plan_shares(problem, shares):
    """The ``Plan`` of ``Shares``."""
    known = {"UNIT": unit_of(problem.g.Ci), "ALIGNED": tma.is_aligned_to_tma(problem.g)}
    registers = REGISTERS[shares.options["GROUPS"]]
    return tma.plan_of(wgrad_hopper_kernel, problem, shares, maxnreg=registers, **known)


def unit_of(Ci):
    """Input channels and columns are given in units of so many, 1 where the compiler sees by itself, at a multiple of 16,
    that they are even: what it then knows of them takes fewer registers."""
    return 1 if Ci % 16 == 0 else common_unit(VECTOR, Ci)
