"""The weight gradient for Hopper GPUs, warp-specialised: a warp asks TMA for tiles, groups of warps multiply.

    copying warp            wait until buffers are free; ask for dy[m, o] and, a chunk each group, im2col's [m, (r, s, c)]
    each group of 4 warps   wait until they are there;   acc += dy^T im2col on the tensor cores;   a block later: free

All groups share a tile of dy; each has a chunk of its own, whose BLOCK_M x BLOCK_N sums fill its registers. dy lies in shared
memory as it does in global memory, pixel by pixel, and the tensor cores read it transposed. Programs stay: while the groups
store a tile, the next tile's blocks are on their way. ``loads`` says which tiles and blocks are a program's.

A program may be a pair of multiprocessors, a cluster: each has half of dy's tile, and both have the same chunks of x, which
cross from the L2 cache once, by TMA's multicast. Its first may ask for x only when both have read what lies there.
"""

from kernels.common.gpu import is_cuda_architecture
from kernels.common.operator import planned
from kernels.conv_wgrad.hopper import tma
from kernels.conv_wgrad.hopper.tma import candidates, gluon
from kernels.conv_wgrad.plain import common_unit

__all__ = ["candidates", "plan", "reason_not"]

VECTOR = 8  # sums that are known to lie beside each other, at most

# Registers a thread that a program with 2 or 3 groups starts with: with its copying warp it takes 12 or 16 warps' place.
REGISTERS = {2: 168, 3: 128}

if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

    from kernels.conv_wgrad.hopper.loads import (
        Matrix,
        Ring,
        add_chunks,
        leave_chunk,
        load_blocks,
        place_of,
        rank_of,
        remaining,
        segment_of,
        share_of,
        store_chunk,
    )

    @gluon.jit
    def multiply_blocks(ring, out, fix_up, work, matrix, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: its chunk of every tile that this program has a share in.

        fix_up: ``None``, or (partial sums, counters), both by tiles and groups: ``out`` is the sum, and no workspace.
        """
        GROUPS: gl.constexpr = T.GROUPS
        STAGES: gl.constexpr = T.STAGES
        PAIR: gl.constexpr = gl.num_ctas() == 2
        cga: gl.constexpr = [[1, 0]] if PAIR else []
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, T.BLOCK_N, 16], cga)
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            position, end, length, first = share_of(item, work)
            while position < end:
                tile, block, n, slot = segment_of(item, position, end, length, first, work)
                if fix_up is None:
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
                if fix_up is None:
                    store_chunk(acc, where, rows, columns, matrix.columns)
                else:
                    rank, others = rank_of(item, slot, block, work)
                    chunk, counter = slot * work.most * GROUPS + GROUP, fix_up[1] + slot * GROUPS + GROUP
                    if rank < others:
                        leave_chunk(acc, fix_up[0], counter, chunk + rank * GROUPS)
                    else:
                        acc = add_chunks(acc, fix_up[0], counter, chunk, GROUPS, others)
                        where, rows, columns = place_of(out, tile, GROUP, 0, work.tiles_m, matrix, T)
                        store_chunk(acc, where, rows, columns, matrix.columns)
                position, end = remaining(position, end, n, work)

    @gluon.jit
    def wgrad_hopper_kernel(dy_desc, x_desc, out, fix_up, work, window, matrix, T: gl.constexpr):
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
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 0, T)),
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 1, T)),
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 2, T)),
                    (load_blocks, (dy_desc, x_desc, ring, work, window, T)),
                ],
                [4, 4, 1],
                [160, 160, 32],
            )
        else:
            gl.warp_specialize(
                [
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 0, T)),
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 1, T)),
                    (load_blocks, (dy_desc, x_desc, ring, work, window, T)),
                ],
                [4, 1],
                [240, 32],
            )


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``."""
    return tma.unfit(g, dtype) if is_cuda_architecture(device, 9) else "the GPU is not a Hopper"


@planned
def plan(problem, may_fix_up=True):
    """The ``Plan`` of a problem, whatever the GPU is; ``may_fix_up``: whether the launch may add its partial sums itself."""
    shares = tma.share("hopper", problem, may_fix_up)
    if shares.fixed_up and shares.work.programs > tma.processors_of(problem.device, shares.options):
        shares = tma.share("hopper", problem, may_fix_up=False)  # a part of the GPU that costs were fitted for
    return plan_shares(problem, shares)


def plan_shares(problem, shares):
    """The ``Plan`` of ``Shares``."""
    known = {"UNIT": unit_of(problem.g.Ci), "ALIGNED": tma.is_aligned_to_tma(problem.g)}
    registers = REGISTERS[shares.options["GROUPS"]]
    return tma.plan_of(wgrad_hopper_kernel, problem, shares, with_fix_up=True, maxnreg=registers, **known)


def unit_of(Ci):
    """Input channels and columns are given in units of so many, 1 where the compiler sees by itself, at a multiple of 16,
    that they are even: what it then knows of them takes fewer registers."""
    return 1 if Ci % 16 == 0 else common_unit(VECTOR, Ci)
