"""Gradients of keys and values of heads wider than 128 on Hopper GPUs: one group multiplies for dv, the other for dk.

Two groups that own 64 keys each would hold dk and dv of 256 columns, more than a thread has registers for. Here both own
the same 64 keys: one all that stands before dv, the other all that stands before dk, every matrix of scores transposed,
[keys, queries]. Per tile of queries, with a third warp that copies:

    first group                          second group
    S = k q^T                            dP = v do^T
    p = 2^(f(S) - lse)
    t = f'(S) p, in shared memory   ->   ds = t (dP - delta), to the workspace that ``stored_ds`` reads
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

    from kernels.flex_attention.hopper.scheduler import (
        column_of,
        first_query,
        head_of_item,
        heads_of_item,
        item_of_program,
        items_of_program,
        split_of,
    )
    from kernels.flex_attention.hopper.tiles import (
        Call,
        Gradients,
        Mods,
        allocate_ring,
        chained,
        load_column,
        load_queries,
        product_layout,
        store_gradients,
        transposed_logits,
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
            item = item_of_program(turn, call, False, T)
            mbarrier.wait(keys.k_free, (turn + 1) & 1)
            mbarrier.expect(keys.k_ready, descs.k.nbytes_per_cta)
            tma.async_load(descs.k, [item.b, item.h, item.tile * T.ROWS, 0], keys.k_ready, keys.k)
            mbarrier.wait(keys.v_free, (turn + 1) & 1)
            mbarrier.expect(keys.v_ready, descs.v.nbytes_per_cta)
            tma.async_load(descs.v, [item.b, item.h, item.tile * T.ROWS, 0], keys.v_ready, keys.v)
            begin, stop, number = heads_of_item(item, call)
            for j in range(begin, stop):
                head = head_of_item(j, item, number, call, T)
                m0 = head.m0
                for i in range(head.begin, head.row.end):
                    following = first_query(i + 1, head.row, T)
                    load_queries(call, head, m0, count, T)
                    m0 = following
                    count += 1

    @gluon.jit
    def dv_tiles(head, m0, n, dv, count, k, call, mods, MASKED: gl.constexpr, T: gl.constexpr):
        """A head's tiles of queries that are MASKED, or the others, in the first group. On entry and at the end no product is
        in flight."""
        begin, end = head.unmasked, head.row.end
        if MASKED:
            begin, end = head.begin, head.unmasked
        elif mods.mask is None:
            begin = head.begin  # a partial block is as good as a full one
        ring, exchange = call.ring, call.exchange
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_DV), 2)
        for i in range(begin, end):
            following = first_query(i + 1, head.row, T)
            stage = count % T.STAGES
            phase = count // T.STAGES & 1
            mbarrier.wait(ring.q_ready.index(stage), phase)
            s = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, layout_s)
            q = ring.q.index(stage).reshape([T.BLOCK_M, T.BLOCK_D])
            s = warpgroup_mma(k, q.permute((1, 0)), s, use_acc=False, is_async=True)
            lse = load_column(ring.lse, stage, layout_s)
            s = warpgroup_mma_wait(0, deps=(s,))
            mbarrier.arrive(ring.q_free.index(stage))

            x, m = transposed_logits(s, m0, head, n, call, mods, MASKED, T)
            p = gl.exp2(x * call.sizes.unit - lse)
            mbarrier.wait(ring.do_ready.index(stage), phase)
            do = ring.do.index(stage).reshape([T.BLOCK_M, T.BLOCK_DV])
            dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_a), do, dv, is_async=True)
            t = chained(s, x, p, head, m, n, call, mods)
            mbarrier.wait(exchange.free, (count + 1) & 1)
            exchange.t.store(t)
            mbarrier.arrive(exchange.ready)
            dv = warpgroup_mma_wait(0, deps=(dv,))
            mbarrier.arrive(ring.do_free.index(stage))
            m0 = following
            count += 1
        return m0, dv, count

    @gluon.jit
    def make_dv(call, mods, T: gl.constexpr):
        """The first group: dv of 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        keys = call.keys
        k = keys.k.reshape([T.ROWS, T.BLOCK_D])
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, False, T)
            n0 = item.tile * T.ROWS
            n = gl.minimum(gl.expand_dims(n0 + gl.arange(0, T.ROWS, gl.SliceLayout(1, layout_s)), 1), call.sizes.N - 1)
            dv = gl.zeros([T.ROWS, T.BLOCK_DV], gl.float32, product_layout(T.BLOCK_DV))
            mbarrier.wait(keys.k_ready, turn & 1)
            before = count
            begin, stop, number = heads_of_item(item, call)
            for j in range(begin, stop):
                head = head_of_item(j, item, number, call, T)
                m0 = head.m0
                if mods.mask is not None:
                    m0, dv, count = dv_tiles(head, m0, n, dv, count, k, call, mods, True, T)
                m0, dv, count = dv_tiles(head, m0, n, dv, count, k, call, mods, False, T)
            mbarrier.arrive(keys.k_free)
            store_gradients(None, dv, item, n0, count - before, call, T)

    @gluon.jit
    def make_dk(call, T: gl.constexpr):
        """The second group: dk of the same keys, and ds on its way to the workspace."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_k: gl.constexpr = product_layout(T.BLOCK_D)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, layout_k, 2)
        ring, keys, exchange = call.ring, call.keys, call.exchange
        v = keys.v.reshape([T.ROWS, T.BLOCK_DV])
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, False, T)
            n0 = item.tile * T.ROWS
            dk = gl.zeros([T.ROWS, T.BLOCK_D], gl.float32, layout_k)
            mbarrier.wait(keys.v_ready, turn & 1)
            before = count
            begin, stop, number = heads_of_item(item, call)
            for j in range(begin, stop):
                head = head_of_item(j, item, number, call, T)
                m0 = head.m0
                for i in range(head.begin, head.row.end):
                    following = first_query(i + 1, head.row, T)
                    stage = count % T.STAGES
                    phase = count // T.STAGES & 1
                    mbarrier.wait(ring.do_ready.index(stage), phase)
                    dp = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, layout_s)
                    do = ring.do.index(stage).reshape([T.BLOCK_M, T.BLOCK_DV])
                    dp = warpgroup_mma(v, do.permute((1, 0)), dp, use_acc=False, is_async=True)
                    delta = load_column(ring.delta, stage, layout_s)
                    dp = warpgroup_mma_wait(0, deps=(dp,))
                    mbarrier.arrive(ring.do_free.index(stage))
                    mbarrier.wait(exchange.ready, count & 1)
                    ds = (exchange.t.load(layout_s) * (dp - delta)).to(ring.q.dtype)
                    mbarrier.arrive(exchange.free)
                    mbarrier.wait(ring.q_ready.index(stage), phase)
                    q = ring.q.index(stage).reshape([T.BLOCK_M, T.BLOCK_D])
                    dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
                    if T.STORE:
                        mine = call.ds.index(count % 2)
                        tma.store_wait(1)  # the one before last has left this buffer
                        mine.reshape([T.ROWS, T.BLOCK_M]).store(ds)
                        fence_async_shared()
                        tma.async_store(call.descs.ds, [head.slot, n0, column_of(m0, call.split)], mine)
                    dk = warpgroup_mma_wait(0, deps=(dk,))
                    mbarrier.arrive(ring.q_free.index(stage))
                    m0 = following
                    count += 1
            mbarrier.arrive(keys.v_free)
            store_gradients(dk, None, item, n0, count - before, call, T)
        if T.STORE:
            tma.store_wait(0)

    @gluon.jit
    def attention_dkdv_wide_hopper_kernel(
        descs,
        dk_ptr,
        dv_ptr,
        dk_strides,
        dv_strides,
        lists,
        tables,
        sizes,
        items,
        split,
        SCORE_MOD: gl.constexpr,
        SCORE_GRADIENT: gl.constexpr,
        MASK_MOD: gl.constexpr,
        T: gl.constexpr,
    ):
        """Every program takes items (tile of 64 keys, key head, batch row of keys) a grid apart."""
        dtype: gl.constexpr = descs.q.dtype
        if split is not None:
            split = split_of(split)
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
        if T.STORE:
            ds_s = gl.allocate_shared_memory(dtype, [2, 1, T.ROWS, T.BLOCK_M], descs.ds.layout)
        mbarrier.init(keys.k_ready, count=1)
        mbarrier.init(keys.k_free, count=1)
        mbarrier.init(keys.v_ready, count=1)
        mbarrier.init(keys.v_free, count=1)
        mbarrier.init(t_ready, count=1)
        mbarrier.init(t_free, count=1)
        exchange = Exchange(t_s, t_ready, t_free)
        out = Gradients(dk_ptr, dv_ptr, dk_strides, dv_strides)
        call = Call(ring, keys, descs, out, lists, tables, sizes, items, split, ds_s, exchange)
        gl.warp_specialize(
            [
                (make_dv, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), T)),
                (make_dk, (call, T)),
                (load_tiles, (call, T)),
            ],
            [4, 1],
            [240, 24],
        )
