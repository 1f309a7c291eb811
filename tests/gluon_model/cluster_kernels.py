"""Gluon kernels for clusters of two CTAs: what both of them need comes once, by multicast."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import cluster, mbarrier, tma


@gluon.jit
def add_shared(y_desc, x_desc, out, N, layout: gl.constexpr, shared: gl.constexpr):
    """out = y + the sums of x's columns: a CTA has half of y's rows, and all of x."""
    y = gl.allocate_shared_memory(y_desc.dtype, y_desc.block_type.shape, y_desc.layout)
    x = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    loaded = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, y_desc.nbytes_per_cta + x_desc.nbytes_per_cta)
    tma.async_load(y_desc, [0, 0], loaded, y)
    tma.async_load(x_desc, [0, 0], loaded, x, multicast=True)
    mbarrier.wait(loaded, 0)
    sums = gl.convert_layout(gl.sum(x.load(shared), 0), gl.SliceLayout(0, layout))
    rows = gl.arange(0, y.shape[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, y.shape[1], gl.SliceLayout(0, layout))
    gl.store(out + rows[:, None] * N + columns[None, :], y.load(layout) + sums[None, :])
    mbarrier.invalidate(loaded)


@gluon.jit
def fetch_shared(y_desc, x_desc, y_s, x_s, ready, free, both, steps, STAGES: gl.constexpr):
    """Bring y's and x's blocks as soon as their buffers are free, x's in both CTAs."""
    for i in range(steps):
        s = i % STAGES
        mbarrier.wait(free.index(s), (i // STAGES & 1) ^ 1)
        mbarrier.expect(ready.index(s), y_desc.nbytes_per_cta + x_desc.nbytes_per_cta)
        tma.async_load(y_desc, [0, i * y_s.shape[2]], ready.index(s), y_s.index(s))
        mbarrier.wait(both.index(s), (i // STAGES & 1) ^ 1)
        tma.async_load(x_desc, [0, i * x_s.shape[2]], ready.index(s), x_s.index(s), multicast=True)


@gluon.jit
def add_up(out, y_s, x_s, ready, free, both, steps, layout: gl.constexpr, shared: gl.constexpr, STAGES: gl.constexpr):
    """Sums along y's rows, weighted with the sums of x's columns."""
    total = gl.zeros([y_s.shape[1]], gl.float32, gl.SliceLayout(1, layout))
    for i in range(steps):
        s = i % STAGES
        mbarrier.wait(ready.index(s), i // STAGES & 1)
        weights = gl.convert_layout(gl.sum(x_s.index(s).load(shared), 0), gl.SliceLayout(0, layout))
        total += gl.sum(y_s.index(s).load(layout) * weights[None, :], 1)
        mbarrier.arrive(free.index(s), count=1)
        mbarrier.arrive(both.index(s), count=1)
    gl.store(out + gl.arange(0, y_s.shape[1], gl.SliceLayout(1, layout)), total)


@gluon.jit
def weighted_rows(
    y_desc, x_desc, out, steps, layout: gl.constexpr, shared: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """out[row] = Σ y[row, column] Σ x[:, column], in a ring of buffers for each CTA; x's lie at the same place in both."""
    y_s = gl.allocate_shared_memory(y_desc.dtype, [STAGES] + y_desc.block_type.shape, y_desc.layout)
    x_s = gl.allocate_shared_memory(x_desc.dtype, [STAGES] + x_desc.block_type.shape, x_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    both = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    for s in gl.static_range(STAGES):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
        mbarrier.init(both.index(s), count=1)
    gl.warp_specialize(
        [
            (add_up, (out, y_s, x_s, ready, free, both, steps, layout, shared, STAGES)),
            (fetch_shared, (y_desc, x_desc, y_s, x_s, ready, free, both, steps, STAGES)),
        ],
        [1],
        [24],
    )
    cluster.barrier()
    for s in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(s))
        mbarrier.invalidate(free.index(s))
        mbarrier.invalidate(both.index(s))


@gluon.jit
def turn_round(x, out, ROWS: gl.constexpr, layout: gl.constexpr):
    """A CTA leaves its rows in ``x``, doubled, and takes the other's, from the last to the first."""
    rows = gl.arange(0, ROWS, layout)
    gl.store(x + rows, 2 * gl.load(x + rows))
    cluster.barrier()
    gl.store(out + rows, gl.load(x + (ROWS - 1 - rows)))


@gluon.jit
def take_tickets(counter, taken, out, ROWS: gl.constexpr, layout: gl.constexpr):
    """Every program takes one number for all its CTAs, and leaves it in the rows of that number."""
    ticket = gl.atomic_add(counter, 1)
    gl.store(out + ticket * ROWS + gl.arange(0, ROWS, layout), ticket)
    gl.store(taken + gl.program_id(0), ticket)


@gluon.jit
def count_rows(counts, ROWS: gl.constexpr, layout: gl.constexpr):
    """Every program adds 1 to each row."""
    gl.atomic_add(counts + gl.arange(0, ROWS, layout), 1)
