"""What the backward kernels share: arguments, the ring of tiles of queries, an item's keys, where gradients go."""

from collections import namedtuple

from kernels.common import gluon as common_gluon
from kernels.flex_attention.plain import logits

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma

# What a kernel is compiled for, ``T`` in it.
#
# D, DV: columns of a head. TILES_M, TILES_N: tiles in a block of the mask, SPARSE_M: its queries. EDGE_M: whether a tile
# reaches past the last query. BLOCK_M: queries of a tile; BLOCK_D, BLOCK_DV: its columns; ROWS: keys of a group of warps,
# of which there are GROUPS. STAGES: tiles of queries in shared memory, KEPT: items' keys. DS: what becomes of ds: "kept" in
# a workspace, "added" up to dq, or "" for nothing. PARTS: whether dk and dv are sums of several items. SERPENTINE: see
# ``scheduler.position``.
Tiling = namedtuple(
    "Tiling", "D DV TILES_M TILES_N SPARSE_M EDGE_M BLOCK_M BLOCK_D BLOCK_DV ROWS GROUPS STAGES KEPT DS PARTS SERPENTINE"
)

# Descriptors, from which TMA copies tiles, and to which: ds, or dq's sums.
Descs = namedtuple("Descs", "q do k v lse delta ds dq")

# Tiles of queries with lse, of gradients with delta, and their barriers; do_free is ``None`` where a tile's queries and
# gradients are released together, by q_free.
Ring = namedtuple("Ring", "q do lse delta q_ready do_ready q_free do_free")

# Items' keys and values, and their barriers.
Keys = namedtuple("Keys", "k v ready free")

# Where dk and dv go: the tensors, or sums of parts.
Gradients = namedtuple("Gradients", "dk dv dk_strides dv_strides")

# The functions that are compiled in, ``None`` for none. Such a tuple is passed on, never assigned: a variable of Triton's
# holds no function.
Mods = namedtuple("Mods", "score score_gradient mask")

# What the groups of warps of a kernel share. ds: in shared memory, on its way to the workspace or to the other group.
# staging: dq on its way out.
Call = namedtuple("Call", "ring keys descs out visits tables sizes items part ds staging")


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
            n0 = (item.tile * T.GROUPS + group) * T.ROWS
            tma.async_load(descs.k, [item.b, item.h, n0, 0], ready, keys.k.index(held * T.GROUPS + group))
            tma.async_load(descs.v, [item.b, item.h, n0, 0], ready, keys.v.index(held * T.GROUPS + group))

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
    def queries_of(ring, count, T: gl.constexpr):
        """The queries of tile ``count``."""
        return ring.q.index(count % T.STAGES).reshape([T.BLOCK_M, T.BLOCK_D])

    @gluon.jit
    def gradients_of(ring, count, T: gl.constexpr):
        """And the gradients of their outputs."""
        return ring.do.index(count % T.STAGES).reshape([T.BLOCK_M, T.BLOCK_DV])

    @gluon.jit
    def load_column(rows, count, T: gl.constexpr):
        """lse or delta of tile ``count``, [1, queries]."""
        column = rows.index(count % T.STAGES).reshape([T.BLOCK_M])
        return gl.expand_dims(column.load(gl.SliceLayout(0, product_layout(T.BLOCK_M))), 0)

    @gluon.jit
    def ask_scores(k, v, ring, count, T: gl.constexpr):
        """S = k q^T and dP = v do^T of tile ``count``: two products in flight."""
        phase = count // T.STAGES & 1
        zeros = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, product_layout(T.BLOCK_M))
        mbarrier.wait(ring.q_ready.index(count % T.STAGES), phase)
        s = warpgroup_mma(k, queries_of(ring, count, T).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(ring.do_ready.index(count % T.STAGES), phase)
        dp = warpgroup_mma(v, gradients_of(ring, count, T).permute((1, 0)), zeros, use_acc=False, is_async=True)
        return s, dp

    # Registers.

    @gluon.jit
    def keys_of_group(n0, N, T: gl.constexpr):
        """The numbers of a group's keys, [keys, 1]: for one behind the end, the last."""
        offs_n = n0 + gl.arange(0, T.ROWS, gl.SliceLayout(1, product_layout(T.BLOCK_M)))
        return gl.minimum(gl.expand_dims(offs_n, 1), N - 1)

    @gluon.jit
    def probabilities(s, m0, partial, head, n, lse, call, mods, T: gl.constexpr):
        """``(p, logits, queries)`` of scores [keys, queries m0 ...]; partial: whether the mask mod is asked."""
        m = gl.expand_dims(m0 + gl.arange(0, T.BLOCK_M, gl.SliceLayout(0, product_layout(T.BLOCK_M))), 0)
        inside = None
        sizes, tables = call.sizes, call.tables
        if T.EDGE_M:
            inside = m < sizes.M
            m = gl.minimum(m, sizes.M - 1)
        x = logits(s, sizes.scale, head.b, head.h, m, n, inside, tables.score, tables.mask, mods.score, None)
        if mods.mask is not None:
            if partial:
                x = gl.where(mods.mask(head.b, head.h, m, n, tables.mask), x, float("-inf"))
        return gl.exp2(x * sizes.unit - lse), x, m

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
        """dk and dv of keys n0 ..., after so many tiles of queries. One may be ``None``."""
        out, sizes, fresh = call.out, call.sizes, call.part.fresh
        if not T.PARTS:
            if dk is not None:
                store_rows(dk * sizes.scale, out.dk, out.dk_strides, item.b, item.h, n0, sizes.N, T.D)
            if dv is not None:
                store_rows(dv, out.dv, out.dv_strides, item.b, item.h, n0, sizes.N, T.DV)
        elif visited + fresh > 0:
            if dk is not None:
                add_rows(dk, out.dk, item.unit, n0, sizes.N, fresh, T.D)
            if dv is not None:
                add_rows(dv, out.dv, item.unit, n0, sizes.N, fresh, T.DV)
