"""The weight gradient for Blackwell GPUs: copying, multiplying and storing are three partitions that overlap.

    copying warp        wait until buffers are free; ask for dy[m, o] and two chunks of im2col's [m, (r, s, c)]
    multiplying warp    wait until they are there and an accumulator is free; have the tensor cores add dy^T im2col to it.
                        They say themselves when they are done: with the buffers, and with the tile
    four storing warps  wait until a tile is done; bring it from tensor memory to global memory, a slice at a time

The accumulators lie in tensor memory, two of them, so that a tile is stored while the next is multiplied. A slice of SLICE
columns is all that the storing warps have in registers: 128 x 256 sums at once would be more than they hold.

This is the design of Triton's Gluon example ``02-conv-wgrad``. It has run on ``kernels.gluon_model`` and compiles for
sm_100; on a Blackwell GPU it has not run yet, so ``"auto"`` passes over it.
"""

from kernels.common.gpu import is_cuda_architecture
from kernels.common.operator import planned
from kernels.conv_wgrad import hopper
from kernels.conv_wgrad.hopper import gluon

UNPROVEN = 'it has run on the CPU\'s model only, so it has to be asked for: backend="blackwell"'

if gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.blackwell import (
        TensorMemoryLayout,
        allocate_tensor_memory,
        tcgen05_commit,
        tcgen05_mma,
    )
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier

    from kernels.conv_wgrad.hopper import Ring, load_blocks, place_of, split_of, store_chunk

    @gluon.jit
    def multiply_tiles(ring, acc_t, done, stored, work, T: gl.constexpr):
        """The multiplying warp: it starts products and waits for none; a commit arrives when those before it are over."""
        count = 0
        visits = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            tile, split, first, n = split_of(item, work)
            half = visits % 2
            mbarrier.wait(stored.index(half), (visits // 2 + 1) & 1)
            for i in range(n):
                stage = count % T.STAGES
                mbarrier.wait(ring.ready.index(stage), count // T.STAGES & 1)
                dy = ring.dy.index(stage).permute((1, 0))
                for group in gl.static_range(T.GROUPS):
                    sums = acc_t.index(half).slice(group * T.BLOCK_N, T.BLOCK_N)
                    tcgen05_mma(dy, ring.x.index(stage * T.GROUPS + group), sums, use_acc=i > 0)
                tcgen05_commit(ring.free.index(stage))
                count += 1
            tcgen05_commit(done.index(half))
            visits += 1

    @gluon.jit
    def store_tiles(acc_t, done, stored, out, work, matrix, T: gl.constexpr):
        """The storing warps: tile after tile, slice after slice, while the next tile is multiplied."""
        visits = 0
        for item in range(gl.program_id(0), work.items, work.programs):
            tile, split, first, n = split_of(item, work)
            half = visits % 2
            mbarrier.wait(done.index(half), visits // 2 & 1)
            for group in gl.static_range(T.GROUPS):
                where, rows, columns = place_of(out, tile, group, split, work.tiles_m, matrix, T)
                for c in gl.static_range(0, T.BLOCK_N, T.SLICE):
                    sums = acc_t.index(half).slice(group * T.BLOCK_N + c, T.SLICE).load()
                    store_chunk(sums, c, where, rows, columns, matrix, T)
            mbarrier.arrive(stored.index(half))
            visits += 1

    @gluon.jit
    def wgrad_blackwell_kernel(dy_desc, x_desc, out, work, window, matrix, T: gl.constexpr):
        """Every program takes items of the work a grid apart, until there are none left."""
        dy_s = gl.allocate_shared_memory(dy_desc.dtype, [T.STAGES, T.BLOCK_K, T.BLOCK_M], dy_desc.layout)
        x_s = gl.allocate_shared_memory(x_desc.dtype, [T.STAGES * T.GROUPS, T.BLOCK_K, T.BLOCK_N], x_desc.layout)
        layout: gl.constexpr = TensorMemoryLayout([T.BLOCK_M, T.BLOCK_N], col_stride=1)
        acc_t = allocate_tensor_memory(gl.float32, [2, T.BLOCK_M, T.GROUPS * T.BLOCK_N], layout)
        ready = mbarrier.allocate_mbarrier(batch=T.STAGES)
        free = mbarrier.allocate_mbarrier(batch=T.STAGES)
        done = mbarrier.allocate_mbarrier(batch=2)
        stored = mbarrier.allocate_mbarrier(batch=2)
        for stage in gl.static_range(T.STAGES):
            mbarrier.init(ready.index(stage), count=1)
            mbarrier.init(free.index(stage), count=1)
        for half in gl.static_range(2):
            mbarrier.init(done.index(half), count=1)
            mbarrier.init(stored.index(half), count=1)
        ring = Ring(dy_s, x_s, ready, free)
        gl.warp_specialize(
            [
                (store_tiles, (acc_t, done, stored, out, work, matrix, T)),
                (load_blocks, (dy_desc, x_desc, ring, work, window, matrix, T)),
                (multiply_tiles, (ring, acc_t, done, stored, work, T)),
            ],
            [1, 1],
            [48, 48],
        )


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry's gradient, as text, or ``None``."""
    return hopper.unfit(g, dtype) if is_cuda_architecture(device, 10) else "the GPU is not a data center's Blackwell"


def candidates(problem):
    """None: no GPU has measured it."""
    return []


@planned
def plan(problem):
    """The ``Plan`` of a problem, whatever the GPU is."""
    cut = hopper.cut_of("blackwell", problem)
    return hopper.plan_of(wgrad_blackwell_kernel, problem, cut, SLICE=min(32, cut.options["BLOCK_N"]))
