"""The weight gradient for Hopper GPUs, warp-specialised: a warp asks TMA for tiles, groups of warps multiply.

    copying warp            wait until buffers are free; ask for dy[m, o] and, a chunk each group, im2col's [m, (r, s, c)]
    each group of 4 warps   wait until they are there;   acc += dy^T im2col on the tensor cores;   a block later: free

All groups share a tile of dy; each has a chunk of its own, whose BLOCK_M x BLOCK_N sums fill its registers. dy lies in shared
memory as it does in global memory, pixel by pixel, and the tensor cores read it transposed. Programs stay: while the groups
store a tile, the next tile's blocks are on their way. ``blocks`` says which tiles and blocks are a program's.

A program may be a pair of multiprocessors, a cluster: each has half of dy's tile, and both have the same chunks of x, which
cross from the L2 cache once, by TMA's multicast. Its first may ask for x only when both have read what lies there.
"""

from kernels.common.gpu import is_cuda_architecture
from kernels.common.operator import planned
from kernels.conv_wgrad.hopper import tma
from kernels.conv_wgrad.hopper.tma import copies, gluon
from kernels.conv_wgrad.plain import common_unit
from kernels.conv_wgrad.problem import Plan

__all__ = ["copies", "cost", "plan", "reason_not"]

VECTOR = 8  # sums that are known to lie beside each other, at most

# Registers a thread that a program with 2 or 3 groups starts with: with its copying warp it takes 12 or 16 warps' place.
REGISTERS = {2: 168, 3: 128}

if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

    from kernels.conv_wgrad.hopper.fixup import add_chunks, fix_up_share_of, last_segment_of, leave_chunk, rank_of
    from kernels.conv_wgrad.hopper.loads import Matrix, Ring, load_blocks, place_of, segment_of, share_of, store_chunk

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
        FIX_UP: gl.constexpr = fix_up is not None
        count = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            if FIX_UP:
                position, end, length, first = fix_up_share_of(item, work)
            else:
                position, end, length, first = share_of(item, work)
            while position < end:
                if FIX_UP:
                    tile, block, n, cut = last_segment_of(item, position, end, length, first, work)
                else:
                    tile, block, n, slot = segment_of(position, end, length, first, work.per)
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
                if FIX_UP:
                    rank, others = rank_of(item, cut, block, work)
                    chunk, counter = cut * work.most * GROUPS + GROUP, fix_up[1] + cut * GROUPS + GROUP
                    if rank < others:
                        leave_chunk(acc, fix_up[0], counter, chunk + rank * GROUPS)
                    else:
                        acc = add_chunks(acc, fix_up[0], counter, chunk, GROUPS, others)
                        place = place_of(out, tile, GROUP, 0, work.tiles_m, matrix, T)
                        store_chunk(acc, place[0], place[1], place[2], matrix.columns)
                    end -= n
                else:
                    store_chunk(acc, where, rows, columns, matrix.columns)
                    position += n

    @gluon.jit
    def wgrad_hopper_kernel(dy_desc, x_desc, out, fix_up, work, window, matrix, T: gl.constexpr):
        """Every program takes shares of the work a grid apart, until there are none left."""
        FIX_UP: gl.constexpr = fix_up is not None
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
                    (load_blocks, (dy_desc, x_desc, ring, work, window, T, FIX_UP)),
                ],
                [4, 4, 1],
                [160, 160, 32],
            )
        else:
            gl.warp_specialize(
                [
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 0, T)),
                    (multiply_blocks, (ring, out, fix_up, work, matrix, 1, T)),
                    (load_blocks, (dy_desc, x_desc, ring, work, window, T, FIX_UP)),
                ],
                [4, 1],
                [240, 32],
            )


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``."""
    if not is_cuda_architecture(device, 9):
        return "the GPU is not a Hopper"
    return tma.unfit(g, dtype)


def cost(problem):
    """The predicted time, in the unit of the portable backend's."""
    return tma.cost(kernel_of(problem.g), problem)


def candidates(problem):
    """What the model of cost predicts, a ``Candidate`` for each tile; none where the GPU's table names no costs."""
    return tma.candidates(kernel_of(problem.g), problem.g, problem.device, problem.split_k, problem.turned)


@planned
def plan(problem, may_fix_up=True):
    """The ``Plan`` of a problem, whatever the GPU is; ``may_fix_up``: whether the launch may add its partial sums itself."""
    given = kernel_of(problem.g), problem.g, problem.device, problem.split_k, problem.turned
    shares = tma.share(*given, may_fix_up)
    if shares.fixed_up and shares.work.programs > tma.processors_of(problem.device, shares.options):
        shares = tma.share(*given, may_fix_up=False)  # a part of the GPU that costs were fitted for
    return plan_shares(problem, shares)


def plan_shares(problem, shares):
    """The ``Plan`` of ``Shares``."""
    options = shares.options
    work, window, matrix = tma.numbers_of(problem.g, problem.device, shares)
    known, matrix = in_units(matrix)
    meta = tma.tile_of(options, POINTWISE=tma.is_pointwise(problem), **known)
    meta |= {"num_warps": 4, "maxnreg": REGISTERS[options["GROUPS"]]}
    slots = 1 if shares.fixed_up else shares.work.slots
    arguments = tma.arguments_of(problem.g, shares, with_fix_up=True)
    numbers = work, window, matrix
    return Plan(str(shares), wgrad_hopper_kernel, (work.programs,), numbers, meta, slots, arguments=arguments)


def kernel_of(g):
    """The kernel's name in the table: on an H200 longer blocks were faster where rows have fewer than 32 pixels, shorter ones
    elsewhere."""
    return "hopper, short rows" if g.Q < 32 else "hopper"


def in_units(matrix):
    """``(UNIT and ALIGNED, matrix)``: input channels and columns in units of so many, 1 where the compiler sees by itself, at
    a multiple of 16, that they are even: what it then knows of them takes fewer registers."""
    Co, Ci, taps, columns = matrix
    unit = 1 if Ci % 16 == 0 else common_unit(VECTOR, Ci)
    return {"UNIT": unit, "ALIGNED": tma.is_aligned_to_tma(Co, Ci)}, matrix._replace(
        Ci=Ci // unit, columns=columns // unit
    )
