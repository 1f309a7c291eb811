"""Gluon kernels that the model is tested with: each compiles for the GPU it is written for, and runs on the model."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma


@gluon.jit
def copy_tiles(x_desc, y_desc, columns, layout: gl.constexpr):
    """y = x + 1: a row of tiles goes through shared memory, in by one copy and out by another."""
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = x_desc.block_type.shape[1]
    tile = gl.allocate_shared_memory(x_desc.dtype, [BLOCK_M, BLOCK_N], x_desc.layout)
    result = gl.allocate_shared_memory(y_desc.dtype, [BLOCK_M, BLOCK_N], y_desc.layout)
    loaded = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    row = gl.program_id(0) * BLOCK_M
    phase = 0
    for column in range(0, columns, BLOCK_N):
        mbarrier.expect(loaded, x_desc.nbytes_per_cta)
        tma.async_load(x_desc, [row, column], loaded, tile)
        mbarrier.wait(loaded, phase)
        phase ^= 1
        x = tile.load(layout)
        tma.store_wait(0)
        result.store(x + 1)
        fence_async_shared()
        tma.async_store(y_desc, [row, column], result)
    tma.store_wait(0)
    mbarrier.invalidate(loaded)


@gluon.jit
def gemm_single(a_desc, b_desc, c, M, N, K, layout: gl.constexpr):
    """c = a · b, one buffer: load, multiply, load, multiply."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, [BLOCK_M, BLOCK_K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [BLOCK_K, BLOCK_N], b_desc.layout)
    loaded = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    row = gl.program_id(0) * BLOCK_M
    column = gl.program_id(1) * BLOCK_N
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    phase = 0
    for k in range(0, K, BLOCK_K):
        mbarrier.expect(loaded, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [row, k], loaded, a)
        tma.async_load(b_desc, [k, column], loaded, b)
        mbarrier.wait(loaded, phase)
        phase ^= 1
        acc = hopper.warpgroup_mma(a, b, acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.invalidate(loaded)
    store_tile(c, acc, row, column, M, N, layout)


@gluon.jit
def store_tile(c, acc, row, column, M, N, layout: gl.constexpr):
    """Store an accumulator at (row, column) of the row-major c [M, N]."""
    rows = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    offsets = rows[:, None].to(gl.int64) * N + columns[None, :]
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    gl.store(c + offsets, acc.to(c.dtype.element_ty), mask=mask)


@gluon.aggregate
class Ring:
    """Buffers that a loader fills and a consumer empties, and the barriers between the two."""

    a: gl.shared_memory_descriptor
    b: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    stages: gl.constexpr


@gluon.jit
def make_ring(a_desc, b_desc, STAGES: gl.constexpr):
    """Allocate a ring of STAGES buffers for the blocks of two descriptors."""
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    return Ring(a, b, ready, empty, STAGES)


@gluon.jit
def free_ring(ring):
    """Invalidate the barriers of a ring."""
    for i in gl.static_range(ring.stages):
        mbarrier.invalidate(ring.ready.index(i))
        mbarrier.invalidate(ring.empty.index(i))


@gluon.jit
def ring_loader(a_desc, b_desc, ring, row, column, K):
    """Fill the ring, buffer after buffer."""
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    for step in range(gl.cdiv(K, BLOCK_K)):
        slot = step % ring.stages
        phase = (step // ring.stages) & 1
        mbarrier.wait(ring.empty.index(slot), phase ^ 1)
        mbarrier.expect(ring.ready.index(slot), a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [row, step * BLOCK_K], ring.ready.index(slot), ring.a.index(slot))
        tma.async_load(b_desc, [step * BLOCK_K, column], ring.ready.index(slot), ring.b.index(slot))


@gluon.jit
def ring_consumer(ring, c, row, column, M, N, steps, layout: gl.constexpr):
    """Multiply what the ring brings; release each buffer one step late, when its product is over."""
    acc = gl.zeros([ring.a.shape[1], ring.b.shape[2]], gl.float32, layout)
    mbarrier.wait(ring.ready.index(0), 0)
    token = hopper.warpgroup_mma(ring.a.index(0), ring.b.index(0), acc, is_async=True)
    acc = hopper.warpgroup_mma_wait(1, deps=(token,))
    for step in range(1, steps):
        slot = step % ring.stages
        mbarrier.wait(ring.ready.index(slot), (step // ring.stages) & 1)
        token = hopper.warpgroup_mma(ring.a.index(slot), ring.b.index(slot), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(1, deps=(token,))
        mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    store_tile(c, acc, row, column, M, N, layout)


@gluon.jit
def gemm_ring(a_desc, b_desc, c, M, N, K, layout: gl.constexpr, STAGES: gl.constexpr):
    """c = a · b: one partition loads into a ring of buffers, the other multiplies."""
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    ring = make_ring(a_desc, b_desc, STAGES)
    row = gl.program_id(0) * a_desc.block_type.shape[0]
    column = gl.program_id(1) * b_desc.block_type.shape[1]
    gl.warp_specialize(
        [
            (ring_consumer, (ring, c, row, column, M, N, gl.cdiv(K, BLOCK_K), layout)),
            (ring_loader, (a_desc, b_desc, ring, row, column, K)),
        ],
        [1],
        [24],
    )
    free_ring(ring)


@gluon.jit
def half_consumer(ring, c, M, N, K, half: gl.constexpr, layout: gl.constexpr):
    """One of two consumers that share a ring: the upper or the lower half of the rows of every tile."""
    BLOCK_M: gl.constexpr = ring.a.shape[1]
    BLOCK_K: gl.constexpr = ring.a.shape[2]
    BLOCK_N: gl.constexpr = ring.b.shape[2]
    HALF: gl.constexpr = BLOCK_M // 2
    across = gl.cdiv(N, BLOCK_N)
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * across, gl.num_programs(0)):
        first = step
        acc = hopper.warpgroup_mma_init(gl.zeros([HALF, BLOCK_N], gl.float32, layout))
        for k in range(0, K, BLOCK_K):
            slot = step % ring.stages
            mbarrier.wait(ring.ready.index(slot), (step // ring.stages) & 1)
            a = ring.a.index(slot).slice(half * HALF, HALF)
            acc = hopper.warpgroup_mma(a, ring.b.index(slot), acc, use_acc=k > 0, is_async=True)
            acc = hopper.warpgroup_mma_init(hopper.warpgroup_mma_wait(1, deps=(acc,)))
            mbarrier.arrive(ring.empty.index((step + ring.stages - 1) % ring.stages), count=1, pred=step > first)
            step += 1
        result = hopper.warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)
        store_tile(c, result, tile // across * BLOCK_M + half * HALF, tile % across * BLOCK_N, M, N, layout)


@gluon.jit
def gemm_two_consumers(a_desc, b_desc, c, M, N, K, layout: gl.constexpr, STAGES: gl.constexpr):
    """c = a · b, persistent: one loader, two consumers that each take half of a tile and both release a buffer."""
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    bars = mbarrier.allocate_mbarrier(batch=2 * STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
        mbarrier.init(bars.index(STAGES + i), count=2)
    ring = Ring(a, b, bars.slice(0, STAGES), bars.slice(STAGES, STAGES), STAGES)
    gl.warp_specialize(
        [
            (half_consumer, (ring, c, M, N, K, 0, layout)),
            (half_consumer, (ring, c, M, N, K, 1, layout)),
            (tiles_loader, (a_desc, b_desc, ring, M, N, K)),
        ],
        [4, 1],
        [152, 24],
    )
    free_ring(ring)


@gluon.jit
def wgrad_loader(
    dy_desc, x_desc, ring, pixels, P, Q, first, r, s, o, c, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w
):
    """Bring dy's pixels and, by im2col, the pixels of x that filter tap (r, s) multiplies them with."""
    BLOCK_K: gl.constexpr = dy_desc.block_type.shape[0]
    for step in range(gl.cdiv(pixels, BLOCK_K)):
        slot = step % ring.stages
        m = first + step * BLOCK_K
        n = m // (P * Q)
        p = m // Q % P
        q = m % Q
        mbarrier.wait(ring.empty.index(slot), ((step // ring.stages) & 1) ^ 1)
        mbarrier.expect(ring.ready.index(slot), dy_desc.nbytes_per_cta + x_desc.nbytes_per_cta)
        tma.async_load(dy_desc, [m, o], ring.ready.index(slot), ring.a.index(slot))
        tma.async_load_im2col(
            x_desc,
            [n, p * stride_h - pad_h, q * stride_w - pad_w, c],
            [(r * dil_h).to(gl.int16), (s * dil_w).to(gl.int16)],
            ring.ready.index(slot),
            ring.b.index(slot),
        )


@gluon.jit
def wgrad_consumer(ring, dw, steps, r, s, o, c, Co, Ci, R, S, layout: gl.constexpr):
    """dw[o, r, s, c] = Σ dy[m, o] · x[pixel of m at (r, s), c]: the transposed dy comes straight from shared memory."""
    BLOCK_M: gl.constexpr = ring.a.shape[2]
    BLOCK_N: gl.constexpr = ring.b.shape[2]
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for step in range(steps):
        slot = step % ring.stages
        mbarrier.wait(ring.ready.index(slot), (step // ring.stages) & 1)
        acc = hopper.warpgroup_mma(ring.a.index(slot).permute((1, 0)), ring.b.index(slot), acc)
        mbarrier.arrive(ring.empty.index(slot))
    rows = o + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))
    columns = c + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
    offsets = ((rows[:, None].to(gl.int64) * R + r) * S + s) * Ci + columns[None, :]
    gl.store(dw + offsets, acc, mask=(rows[:, None] < Co) & (columns[None, :] < Ci))


@gluon.jit
def wgrad_tile(
    dy_desc, x_desc, dw, pixels, P, Q, Co, Ci, R, S, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w,
    layout: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One tile of a convolution's weight gradient: output channels × input channels at one filter tap."""
    ring = make_ring(dy_desc, x_desc, STAGES)
    o = gl.program_id(0) * dy_desc.block_type.shape[1]
    c = gl.program_id(1) * x_desc.block_type.shape[1]
    r = gl.program_id(2) // S
    s = gl.program_id(2) % S
    steps = gl.cdiv(pixels, dy_desc.block_type.shape[0])
    gl.warp_specialize(
        [
            (wgrad_consumer, (ring, dw, steps, r, s, o, c, Co, Ci, R, S, layout)),
            (
                wgrad_loader,
                (dy_desc, x_desc, ring, pixels, P, Q, 0, r, s, o, c, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w),
            ),
        ],
        [1],
        [24],
    )
    free_ring(ring)


@gluon.jit
def tiles_loader(a_desc, b_desc, ring, M, N, K):
    """Load the operands of this program's tiles, one tile after the other."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    across = gl.cdiv(N, BLOCK_N)
    fill = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * across, gl.num_programs(0)):
        for k in range(0, K, BLOCK_K):
            slot = fill % ring.stages
            mbarrier.wait(ring.empty.index(slot), ((fill // ring.stages) & 1) ^ 1)
            mbarrier.expect(ring.ready.index(slot), a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            tma.async_load(a_desc, [tile // across * BLOCK_M, k], ring.ready.index(slot), ring.a.index(slot))
            tma.async_load(b_desc, [k, tile % across * BLOCK_N], ring.ready.index(slot), ring.b.index(slot))
            fill += 1


@gluon.jit
def tiles_multiplier(ring, acc, acc_ready, acc_empty, tiles, steps):
    """Multiply into two accumulators in turn; commits release the operands and hand over the accumulators."""
    fill = 0
    done = 0
    for _tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        half = done % 2
        mbarrier.wait(acc_empty.index(half), ((done // 2) & 1) ^ 1)
        for step in range(steps):
            slot = fill % ring.stages
            mbarrier.wait(ring.ready.index(slot), (fill // ring.stages) & 1)
            blackwell.tcgen05_mma(ring.a.index(slot), ring.b.index(slot), acc.index(half), use_acc=step > 0)
            blackwell.tcgen05_commit(ring.empty.index(slot))
            fill += 1
        blackwell.tcgen05_commit(acc_ready.index(half))
        done += 1


@gluon.jit
def tiles_epilogue(acc, acc_ready, acc_empty, c_desc, out, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Store finished accumulators, half of the columns at a time, while the next tile is multiplied."""
    HALF: gl.constexpr = BLOCK_N // 2
    across = gl.cdiv(N, BLOCK_N)
    done = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, BLOCK_M) * across, gl.num_programs(0)):
        half = done % 2
        mbarrier.wait(acc_ready.index(half), (done // 2) & 1)
        for part in gl.static_range(2):
            values = acc.index(half).slice(part * HALF, HALF).load()
            tma.store_wait(0)
            out.store(values.to(c_desc.dtype))
            fence_async_shared()
            tma.async_store(c_desc, [tile // across * BLOCK_M, tile % across * BLOCK_N + part * HALF], out)
        mbarrier.arrive(acc_empty.index(half), count=1)
        done += 1
    tma.store_wait(0)


@gluon.jit
def gemm_tensor_memory(a_desc, b_desc, c_desc, M, N, K, STAGES: gl.constexpr):
    """c = a · b on tcgen05: load, multiply and store in three partitions, two accumulators in tensor memory."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    ring = make_ring(a_desc, b_desc, STAGES)
    tensor_layout: gl.constexpr = blackwell.TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    acc = blackwell.allocate_tensor_memory(gl.float32, [2, BLOCK_M, BLOCK_N], tensor_layout)
    out = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    acc_ready = mbarrier.allocate_mbarrier(batch=2)
    acc_empty = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(acc_ready.index(i), count=1)
        mbarrier.init(acc_empty.index(i), count=1)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    gl.warp_specialize(
        [
            (tiles_epilogue, (acc, acc_ready, acc_empty, c_desc, out, M, N, BLOCK_M, BLOCK_N)),
            (tiles_loader, (a_desc, b_desc, ring, M, N, K)),
            (tiles_multiplier, (ring, acc, acc_ready, acc_empty, tiles, gl.cdiv(K, BLOCK_K))),
        ],
        [1, 1],
        [24, 24],
    )
    free_ring(ring)
    for i in gl.static_range(2):
        mbarrier.invalidate(acc_ready.index(i))
        mbarrier.invalidate(acc_empty.index(i))


@gluon.jit
def add_in_turn(x_ptr, total_desc, counter, TILES: gl.constexpr, ROWS: gl.constexpr, layout: gl.constexpr):
    """Every program adds its rows to the same tiles; who comes first is the program of the higher number."""
    part_s = gl.allocate_shared_memory(gl.float32, [ROWS, 32], total_desc.layout)
    rank = gl.num_programs(0) - 1 - gl.program_id(0)
    offs_r = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    offs_c = gl.arange(0, 32, gl.SliceLayout(0, layout))
    for tile in range(0, TILES):
        at = (gl.program_id(0) * TILES + tile) * ROWS * 32
        part_s.store(gl.load(x_ptr + at + gl.expand_dims(offs_r * 32, 1) + gl.expand_dims(offs_c, 0)))
        fence_async_shared()
        while gl.atomic_add(counter + tile, 0, sem="acquire") != rank:
            pass
        tma.async_atomic_add(total_desc, [tile * ROWS, 0], part_s)
        tma.store_wait(0, read_only=False)
        gl.atomic_add(counter + tile, 1, sem="release")


@gluon.jit
def hand_over(numbers, counter):
    """The first program stores a number that the second one takes, doubled."""
    if gl.program_id(0) == 0:
        gl.store(numbers, 7)
        gl.atomic_add(counter, 1, sem="release")
    else:
        while gl.atomic_add(counter, 0, sem="acquire") != 1:
            pass
        gl.store(numbers + 1, 2 * gl.load(numbers))


@gluon.jit
def nothing(x_ptr):
    """No step."""
