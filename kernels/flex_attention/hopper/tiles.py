"""What the backward kernels share: their arguments, the ring of tiles of queries, an item's keys, where gradients go."""

from collections import namedtuple

from kernels.common import gluon as common_gluon
from kernels.flex_attention.plain import logits

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# What a backward kernel is compiled for, ``T`` in it.
#
# D, DV: columns of a head. TILES_M, TILES_N: tiles in a block of the mask, SPARSE_M: its queries. EDGE_M: whether a tile
# reaches past the last query. BLOCK_M: queries of a tile; BLOCK_D, BLOCK_DV: its columns; ROWS: keys of a group of warps,
# of which there are GROUPS. STAGES: tiles of queries in shared memory, KEPT: items' keys. STORE: whether ds is stored.
# WIDTH: queries of a block of dq's sums; OVERLAP: whether dq is a tile late. TILES_FIRST, SERPENTINE: the items' order.
Tiling = namedtuple(
    "Tiling",
    "D DV TILES_M TILES_N SPARSE_M EDGE_M BLOCK_M BLOCK_D BLOCK_DV "
    "ROWS GROUPS STAGES KEPT STORE WIDTH OVERLAP TILES_FIRST SERPENTINE",
    defaults=(1, False, 0, False, False, False),
)

# Descriptors, from which TMA copies tiles, and to which: ds, or dq's sums.
Descs = namedtuple("Descs", "q do k v lse delta ds dq", defaults=(None, None))

# Tiles of queries with lse, of gradients with delta, and their barriers; do_free is ``None`` where a tile's queries and
# gradients are released together, by q_free.
Ring = namedtuple("Ring", "q do lse delta q_ready do_ready q_free do_free")

# Items' keys and values, and their barriers.
Keys = namedtuple("Keys", "k v ready free")

# Where dk and dv go.
Gradients = namedtuple("Gradients", "dk dv dk_strides dv_strides")

# The functions that are compiled in, ``None`` for none. Such a tuple is passed on, never assigned: a variable of Triton's
# holds no function.
Mods = namedtuple("Mods", "score score_gradient mask")

# What the groups of warps of a kernel share; lists: ``MaskLists``, or ``Visits`` where one kernel makes all gradients.
#
# ds: on its way to the workspace; exchange: between the groups; staging: dq on its way out.
Call = namedtuple(
    "Call",
    "ring keys descs out lists tables sizes items split ds exchange staging",
    defaults=(None, None, None),
)


if common_gluon.gluon is not None:

    @gluon.constexpr_function
    def product_layout(columns):
        """Of a product of 64 rows in the registers of a group of four warps."""
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])

    # Shared memory.

    @gluon.jit
    def allocate_ring(descs, ARRIVALS: gl.constexpr, TOGETHER: gl.constexpr, T: gl.constexpr):
        """A ``Ring`` whose tiles are free after so many arrivals; TOGETHER: without do_free."""
        dtype: gl.constexpr = descs.q.dtype
        q = gl.allocate_shared_memory(dtype, [T.STAGES, 1, 1, T.BLOCK_M, T.BLOCK_D], descs.q.layout)
        do = gl.allocate_shared_memory(dtype, [T.STAGES, 1, 1, T.BLOCK_M, T.BLOCK_DV], descs.do.layout)
        lse = gl.allocate_shared_memory(gl.float32, [T.STAGES, 1, T.BLOCK_M], descs.lse.layout)
        delta = gl.allocate_shared_memory(gl.float32, [T.STAGES, 1, T.BLOCK_M], descs.delta.layout)
        q_ready = mbarrier.allocate_mbarrier(batch=T.STAGES)
        do_ready = mbarrier.allocate_mbarrier(batch=T.STAGES)
        q_free = mbarrier.allocate_mbarrier(batch=T.STAGES)
        do_free = None
        if not TOGETHER:
            do_free = mbarrier.allocate_mbarrier(batch=T.STAGES)
        for stage in gl.static_range(T.STAGES):
            mbarrier.init(q_ready.index(stage), count=1)
            mbarrier.init(do_ready.index(stage), count=1)
            mbarrier.init(q_free.index(stage), count=ARRIVALS)
            if not TOGETHER:
                mbarrier.init(do_free.index(stage), count=ARRIVALS)
        return Ring(q, do, lse, delta, q_ready, do_ready, q_free, do_free)

    @gluon.jit
    def allocate_keys(descs, T: gl.constexpr):
        """``Keys`` of KEPT items."""
        dtype: gl.constexpr = descs.k.dtype
        k = gl.allocate_shared_memory(dtype, [T.KEPT * T.GROUPS, 1, 1, T.ROWS, T.BLOCK_D], descs.k.layout)
        v = gl.allocate_shared_memory(dtype, [T.KEPT * T.GROUPS, 1, 1, T.ROWS, T.BLOCK_DV], descs.v.layout)
        kv_ready = mbarrier.allocate_mbarrier(batch=T.KEPT)
        kv_free = mbarrier.allocate_mbarrier(batch=T.KEPT)
        for held in gl.static_range(T.KEPT):
            mbarrier.init(kv_ready.index(held), count=1)
            mbarrier.init(kv_free.index(held), count=T.GROUPS)
        return Keys(k, v, kv_ready, kv_free)

    @gluon.jit
    def load_keys(call, item, turn, T: gl.constexpr):
        """Ask for the keys and values of item number ``turn``, once those KEPT items before are released."""
        keys, descs = call.keys, call.descs
        held = turn % T.KEPT
        ready = keys.ready.index(held)
        mbarrier.wait(keys.free.index(held), (turn // T.KEPT + 1) & 1)
        mbarrier.expect(ready, T.GROUPS * (descs.k.nbytes_per_cta + descs.v.nbytes_per_cta))
        for group in gl.static_range(T.GROUPS):
            row = (item.tile * T.GROUPS + group) * T.ROWS
            tma.async_load(descs.k, [item.b, item.h, row, 0], ready, keys.k.index(held * T.GROUPS + group))
            tma.async_load(descs.v, [item.b, item.h, row, 0], ready, keys.v.index(held * T.GROUPS + group))

    @gluon.jit
    def load_queries(call, head, m0, count, T: gl.constexpr):
        """Ask for queries m0 ... of a head with their lse, and for gradients with delta, into the ring's tile ``count``."""
        ring, descs = call.ring, call.descs
        stage = count % T.STAGES
        parity = (count // T.STAGES + 1) & 1
        row = head.b * call.items.Hkv * call.sizes.G + head.h
        mbarrier.wait(ring.q_free.index(stage), parity)
        mbarrier.expect(ring.q_ready.index(stage), descs.q.nbytes_per_cta + descs.lse.nbytes_per_cta)
        tma.async_load(descs.q, [head.b, head.h, m0, 0], ring.q_ready.index(stage), ring.q.index(stage))
        tma.async_load(descs.lse, [row, m0], ring.q_ready.index(stage), ring.lse.index(stage))
        if ring.do_free is not None:
            mbarrier.wait(ring.do_free.index(stage), parity)
        mbarrier.expect(ring.do_ready.index(stage), descs.do.nbytes_per_cta + descs.delta.nbytes_per_cta)
        tma.async_load(descs.do, [head.b, head.h, m0, 0], ring.do_ready.index(stage), ring.do.index(stage))
        tma.async_load(descs.delta, [row, m0], ring.do_ready.index(stage), ring.delta.index(stage))

    @gluon.jit
    def load_column(rows, stage, layout: gl.constexpr):
        """lse or delta of a tile, [1, queries]."""
        return gl.expand_dims(rows.index(stage).reshape([rows.shape[2]]).load(gl.SliceLayout(0, layout)), 0)

    # Registers.

    @gluon.jit
    def transposed_logits(s, m0, head, n, call, mods, MASKED: gl.constexpr, T: gl.constexpr):
        """``logits`` of scores [keys, queries m0 ...], and the queries: for one behind the end, the last. MASKED: by the mask
        mod."""
        m = gl.expand_dims(m0 + gl.arange(0, s.shape[1], gl.SliceLayout(0, product_layout(s.shape[1]))), 0)
        inside = None
        MASK_MOD: gl.constexpr = mods.mask if MASKED else None
        sizes, tables = call.sizes, call.tables
        if T.EDGE_M:
            inside = m < sizes.M
            m = gl.minimum(m, sizes.M - 1)
        x = logits(s, sizes.scale, head.b, head.h, m, n, inside, tables.score, tables.mask, mods.score, MASK_MOD)
        return x, m

    @gluon.jit
    def chained(s, x, factor, head, m, n, call, mods):
        """``factor`` times the score mod's derivative at scores s, 0 where the logits x say so."""
        if mods.score is not None:
            sizes, tables = call.sizes, call.tables
            factor = mods.score_gradient(s * sizes.scale, head.b, head.h, m, n, factor, tables.score)
            factor = gl.where(x != float("-inf"), factor, 0.0)
        return factor

    @gluon.jit
    def store_rows(x, ptr, strides, b, h, m0, M, D: gl.constexpr):
        """Rows m0 ... of one head."""
        layout: gl.constexpr = x.type.layout
        offs_m = m0 + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
        offs_d = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
        base = ptr + b.to(gl.int64) * strides.b + h.to(gl.int64) * strides.h
        at = gl.expand_dims(offs_m.to(gl.int64) * strides.n, 1) + gl.expand_dims(offs_d.to(gl.int64) * strides.d, 0)
        mask = gl.expand_dims(offs_m < M, 1) & gl.expand_dims(offs_d < D, 0)
        gl.store(base + at, x.to(ptr.dtype.element_ty), mask=mask)

    @gluon.jit
    def add_rows(x, ptr, unit, n0, N, fresh, D: gl.constexpr):
        """Add x to rows n0 ... of a unit's sums [N, D], or, if they are fresh, write it there."""
        layout: gl.constexpr = x.type.layout
        offs_n = n0 + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
        offs_d = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
        at = ptr + unit.to(gl.int64) * N * D + gl.expand_dims(offs_n.to(gl.int64) * D, 1) + gl.expand_dims(offs_d, 0)
        inside = gl.expand_dims(offs_d < D, 0)
        there = gl.where(fresh > 0, 0, N)
        x += gl.load(at, mask=gl.expand_dims(offs_n < there, 1) & inside, other=0.0)
        gl.store(at, x, mask=gl.expand_dims(offs_n < N, 1) & inside)

    @gluon.jit
    def store_gradients(dk, dv, item, n0, visited, call, T: gl.constexpr):
        """dk and dv of keys n0 ..., after so many tiles of queries; of a split, to its sums. One may be ``None``."""
        out, sizes, split = call.out, call.sizes, call.split
        if split is None:
            if dk is not None:
                store_rows(dk * sizes.scale, out.dk, out.dk_strides, item.b, item.h, n0, sizes.N, T.D)
            if dv is not None:
                store_rows(dv, out.dv, out.dv_strides, item.b, item.h, n0, sizes.N, T.DV)
        elif visited + split.fresh > 0:
            if dk is not None:
                add_rows(dk, out.dk, item.unit, n0, sizes.N, split.fresh, T.D)
            if dv is not None:
                add_rows(dv, out.dv, item.unit, n0, sizes.N, split.fresh, T.DV)
