"""Gradients of keys and values of heads wider than 128 on Hopper GPUs: one group multiplies for dv, the other for dk.

Two groups that own 64 keys each would hold dk and dv of 256 columns, more than a thread has registers for. Here both own
the same 64 keys: one all that stands before dv, the other all that stands before dk, every matrix of scores transposed,
[keys, queries]. Per tile of queries, with a third warp that copies:

    first group                          second group
    S = k q^T                            dP = v do^T
    p = 2^(f(S) - lse)
    t = f'(S) p, in shared memory   ->   ds = t (dP - delta), to the workspace
    dv <- dv + p do                      dk <- dk + ds q

A derivative is a factor of what it is multiplied by, and so t needs nothing of dP. The first group is up to a tile ahead:
one takes its exponentials while the other multiplies.
"""

from collections import namedtuple

from kernels.common import gluon as common_gluon

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

    from kernels.flex_attention.hopper.scheduler import Items, items_of_program
    from kernels.flex_attention.hopper.tiles import (
        Call,
        Gradients,
        Mods,
        allocate_ring,
        chained,
        gradients_of,
        keys_of_group,
        load_column,
        load_queries,
        probabilities,
        product_layout,
        queries_of,
        store_gradients,
    )
    from kernels.flex_attention.hopper.visits import (
        NUMBERS,
        Part,
        head_of_item,
        heads_of_item,
        item_of_program,
        place_of_ds,
        visit,
    )

    # An item's keys and values, each with its barriers: another group reads them.
    WideKeys = namedtuple("WideKeys", "k v k_ready k_free v_ready v_free")

    # t on its way from the first group to the second.
    Exchange = namedtuple("Exchange", "t ready free")

    @gluon.jit
    def load_tiles(call, T: gl.constexpr):
        """The copying warp: an item's keys and values, then tiles of queries and gradients."""
        keys, descs = call.keys, call.descs
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, T)
            mbarrier.wait(keys.k_free, (turn + 1) & 1)
            mbarrier.expect(keys.k_ready, descs.k.nbytes_per_cta)
            tma.async_load(descs.k, [item.b, item.h, item.tile * T.ROWS, 0], keys.k_ready, keys.k)
            mbarrier.wait(keys.v_free, (turn + 1) & 1)
            mbarrier.expect(keys.v_ready, descs.v.nbytes_per_cta)
            tma.async_load(descs.v, [item.b, item.h, item.tile * T.ROWS, 0], keys.v_ready, keys.v)
            begin, stop = heads_of_item(item, call.part)
            for j in range(begin, stop):
                head = head_of_item(j, item, call, T)
                m0, partial = visit(0, head, call, T)
                for i in range(0, head.end):
                    following, partial = visit(i + 1, head, call, T)
                    load_queries(call, head, m0, count, T)
                    m0 = following
                    count += 1

    @gluon.jit
    def make_dv(call, mods, T: gl.constexpr):
        """The first group: dv of 64 keys of every item, over the queries of all heads (and batch rows) that share them.
        Between tiles no product is in flight."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_DV), 2)
        ring, keys, exchange = call.ring, call.keys, call.staging
        k = keys.k.reshape([T.ROWS, T.BLOCK_D])
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, T)
            n = keys_of_group(item.tile * T.ROWS, call.sizes.N, T)
            dv = gl.zeros([T.ROWS, T.BLOCK_DV], gl.float32, product_layout(T.BLOCK_DV))
            mbarrier.wait(keys.k_ready, turn & 1)
            before = count
            begin, stop = heads_of_item(item, call.part)
            for j in range(begin, stop):
                head = head_of_item(j, item, call, T)
                for i in range(0, head.end):
                    m0, partial = visit(i, head, call, T)
                    stage = count % T.STAGES
                    phase = count // T.STAGES & 1
                    mbarrier.wait(ring.q_ready.index(stage), phase)
                    s = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, layout_s)
                    s = warpgroup_mma(k, queries_of(ring, count, T).permute((1, 0)), s, use_acc=False, is_async=True)
                    lse = load_column(ring.lse, count, T)
                    s = warpgroup_mma_wait(0, deps=(s,))
                    mbarrier.arrive(ring.q_free.index(stage))

                    p, x, m = probabilities(s, m0, partial, head, n, lse, call, mods, T)
                    mbarrier.wait(ring.do_ready.index(stage), phase)
                    do = gradients_of(ring, count, T)
                    dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_a), do, dv, is_async=True)
                    t = chained(s, x, p, head, m, n, call, mods)
                    mbarrier.wait(exchange.free, (count + 1) & 1)
                    exchange.t.store(t)
                    mbarrier.arrive(exchange.ready)
                    dv = warpgroup_mma_wait(0, deps=(dv,))
                    mbarrier.arrive(ring.do_free.index(stage))
                    count += 1
            mbarrier.arrive(keys.k_free)
            store_gradients(None, dv, item, item.tile * T.ROWS, count - before, call, T)

    @gluon.jit
    def make_dk(call, T: gl.constexpr):
        """The second group: dk of the same keys, and ds on its way to the workspace."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_k: gl.constexpr = product_layout(T.BLOCK_D)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, layout_k, 2)
        ring, keys, exchange = call.ring, call.keys, call.staging
        v = keys.v.reshape([T.ROWS, T.BLOCK_DV])
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, T)
            n0 = item.tile * T.ROWS
            dk = gl.zeros([T.ROWS, T.BLOCK_D], gl.float32, layout_k)
            mbarrier.wait(keys.v_ready, turn & 1)
            before = count
            begin, stop = heads_of_item(item, call.part)
            for j in range(begin, stop):
                head = head_of_item(j, item, call, T)
                for i in range(0, head.end):
                    m0, partial = visit(i, head, call, T)
                    stage = count % T.STAGES
                    phase = count // T.STAGES & 1
                    mbarrier.wait(ring.do_ready.index(stage), phase)
                    dp = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, layout_s)
                    dp = warpgroup_mma(v, gradients_of(ring, count, T).permute((1, 0)), dp, use_acc=False, is_async=True)
                    delta = load_column(ring.delta, count, T)
                    dp = warpgroup_mma_wait(0, deps=(dp,))
                    mbarrier.arrive(ring.do_free.index(stage))
                    mbarrier.wait(exchange.ready, count & 1)
                    ds = (exchange.t.load(layout_s) * (dp - delta)).to(ring.q.dtype)
                    mbarrier.arrive(exchange.free)
                    mbarrier.wait(ring.q_ready.index(stage), phase)
                    dk = warpgroup_mma(gl.convert_layout(ds, layout_a), queries_of(ring, count, T), dk, is_async=True)
                    if T.DS == "kept":
                        mine = call.ds.index(count % 2)
                        tma.store_wait(1)  # the one before last has left this buffer
                        mine.reshape([T.ROWS, T.BLOCK_M]).store(ds)
                        fence_async_shared()
                        tma.async_store(call.descs.ds, place_of_ds(i, m0, n0, head, call, T), mine)
                    dk = warpgroup_mma_wait(0, deps=(dk,))
                    mbarrier.arrive(ring.q_free.index(stage))
                    count += 1
            mbarrier.arrive(keys.v_free)
            store_gradients(dk, None, item, n0, count - before, call, T)
        if T.DS == "kept":
            tma.store_wait(0)

    @gluon.jit(do_not_specialize=NUMBERS)
    def attention_dkdv_wide_hopper_kernel(
        descs,
        counters,
        dk_ptr,
        dv_ptr,
        dk_strides,
        dv_strides,
        visits,
        tables,
        sizes,
        Hkv,
        tiles,
        count,
        first,
        bundle,
        blocks,
        begin,
        heads,
        splits,
        band,
        stop,
        fresh,
        SCORE_MOD: gl.constexpr,
        SCORE_GRADIENT: gl.constexpr,
        MASK_MOD: gl.constexpr,
        T: gl.constexpr,
    ):
        """Every program takes items (tile of 64 keys, key head, batch row of keys) a grid apart; the arguments are those of
        ``attention_gradients_hopper_kernel``, counters ``None``."""
        dtype: gl.constexpr = descs.q.dtype
        items = Items(Hkv, tiles, count, first, bundle, blocks)
        part = Part(begin, heads, splits, band, stop, fresh)
        ring = allocate_ring(descs, 2, False, T)
        keys = WideKeys(
            k=gl.allocate_shared_memory(dtype, [1, 1, T.ROWS, T.BLOCK_D], descs.k.layout),
            v=gl.allocate_shared_memory(dtype, [1, 1, T.ROWS, T.BLOCK_DV], descs.v.layout),
            k_ready=mbarrier.allocate_mbarrier(),
            k_free=mbarrier.allocate_mbarrier(),
            v_ready=mbarrier.allocate_mbarrier(),
            v_free=mbarrier.allocate_mbarrier(),
        )
        layout_t: gl.constexpr = gl.NVMMASharedLayout.get_default_for([T.ROWS, T.BLOCK_M], gl.float32)
        t_s = gl.allocate_shared_memory(gl.float32, [T.ROWS, T.BLOCK_M], layout_t)
        t_ready = mbarrier.allocate_mbarrier()
        t_free = mbarrier.allocate_mbarrier()
        ds_s = ()
        if T.DS == "kept":
            ds_s = gl.allocate_shared_memory(dtype, [2, 1, T.ROWS, T.BLOCK_M], descs.ds.layout)
        mbarrier.init(keys.k_ready, count=1)
        mbarrier.init(keys.k_free, count=1)
        mbarrier.init(keys.v_ready, count=1)
        mbarrier.init(keys.v_free, count=1)
        mbarrier.init(t_ready, count=1)
        mbarrier.init(t_free, count=1)
        exchange = Exchange(t_s, t_ready, t_free)
        out = Gradients(dk_ptr, dv_ptr, dk_strides, dv_strides)
        call = Call(ring, keys, descs, out, visits, tables, sizes, items, part, ds_s, exchange)
        gl.warp_specialize(
            [
                (make_dv, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), T)),
                (make_dk, (call, T)),
                (load_tiles, (call, T)),
            ],
            [4, 1],
            [240, 24],
        )
