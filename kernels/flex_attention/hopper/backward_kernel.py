"""The kernel of ``backward``: one warp copies, two groups of four own 64 keys each.

Per tile of queries a group multiplies four times, every matrix of scores transposed, [keys, queries]:

    S = k q^T,  dP = v do^T           in flight
    p = 2^(f(S) - lse)                meanwhile
    dv <- dv + p do                   in flight
    ds = f'(S) p (dP - delta)         meanwhile
    dk <- dk + ds q                   in flight, while ds leaves for the workspace that ``stored_ds`` reads

lse and delta come with the queries, made whole tiles by ``rows_kernel``: behind a sequence's end lse is infinite, so p = 0.
"""

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
        allocate_keys,
        allocate_ring,
        chained,
        load_column,
        load_keys,
        load_queries,
        product_layout,
        store_gradients,
        transposed_logits,
    )

    @gluon.jit
    def load_tiles(call, T: gl.constexpr):
        """The copying warp: an item's keys and values, then tiles of queries and gradients."""
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, False, T)
            load_keys(call, item, turn, T)
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
    def gradient_tiles(
        head, m0, n0, n, dk, dv, count, k, v, call, mods, GROUP: gl.constexpr, MASKED: gl.constexpr, T: gl.constexpr
    ):
        """A head's tiles of queries that are MASKED, or the others. On entry and at the end no product is in flight."""
        ring = call.ring
        begin, end = head.unmasked, head.row.end
        if MASKED:
            begin, end = head.begin, head.unmasked
        elif mods.mask is None:
            begin = head.begin  # a partial block is as good as a full one
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_D), 2)
        layout_b: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_DV), 2)
        for i in range(begin, end):
            following = first_query(i + 1, head.row, T)
            stage = count % T.STAGES
            phase = count // T.STAGES & 1
            q = ring.q.index(stage).reshape([T.BLOCK_M, T.BLOCK_D])
            do = ring.do.index(stage).reshape([T.BLOCK_M, T.BLOCK_DV])
            zeros = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, layout_s)
            mbarrier.wait(ring.q_ready.index(stage), phase)
            s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(ring.do_ready.index(stage), phase)
            dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
            lse = load_column(ring.lse, stage, layout_s)
            s = warpgroup_mma_wait(1, deps=(s,))

            x, m = transposed_logits(s, m0, head, n, call, mods, MASKED, T)
            p = gl.exp2(x * call.sizes.unit - lse)
            dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_b), do, dv, is_async=True)
            delta = load_column(ring.delta, stage, layout_s)
            dp = warpgroup_mma_wait(1, deps=(dp,))
            ds = chained(s, x, p * (dp - delta), head, m, n, call, mods).to(q.dtype)
            dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
            if T.STORE:
                mine = call.ds.index(2 * GROUP + count % 2)
                tma.store_wait(1)  # the one before last has left this buffer
                mine.reshape([T.ROWS, T.BLOCK_M]).store(ds)
                fence_async_shared()
                tma.async_store(call.descs.ds, [head.slot, n0, column_of(m0, call.split)], mine)
            dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))
            mbarrier.arrive(ring.q_free.index(stage))
            m0 = following
            count += 1
        return m0, dk, dv, count

    @gluon.jit
    def gradients(call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        keys = call.keys
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, False, T)
            n0 = (item.tile * T.GROUPS + GROUP) * T.ROWS
            n = gl.minimum(gl.expand_dims(n0 + gl.arange(0, T.ROWS, gl.SliceLayout(1, layout_s)), 1), call.sizes.N - 1)
            dk = gl.zeros([T.ROWS, T.BLOCK_D], gl.float32, product_layout(T.BLOCK_D))
            dv = gl.zeros([T.ROWS, T.BLOCK_DV], gl.float32, product_layout(T.BLOCK_DV))
            held = turn % T.KEPT
            k = keys.k.index(held * T.GROUPS + GROUP).reshape([T.ROWS, T.BLOCK_D])
            v = keys.v.index(held * T.GROUPS + GROUP).reshape([T.ROWS, T.BLOCK_DV])
            mbarrier.wait(keys.ready.index(held), turn // T.KEPT & 1)
            before = count
            begin, stop, number = heads_of_item(item, call)
            for j in range(begin, stop):
                head = head_of_item(j, item, number, call, T)
                m0 = head.m0
                if mods.mask is not None:
                    m0, dk, dv, count = gradient_tiles(head, m0, n0, n, dk, dv, count, k, v, call, mods, GROUP, True, T)
                m0, dk, dv, count = gradient_tiles(head, m0, n0, n, dk, dv, count, k, v, call, mods, GROUP, False, T)
            mbarrier.arrive(keys.free.index(held))
            store_gradients(dk, dv, item, n0, count - before, call, T)
        if T.STORE:
            tma.store_wait(0)

    @gluon.jit
    def attention_dkdv_hopper_kernel(
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
        """Every program takes items (tile of keys, key head, batch row of keys) a grid apart."""
        if split is not None:
            split = split_of(split)
        ring = allocate_ring(descs, T.GROUPS, True, T)
        keys = allocate_keys(descs, T)
        ds_s = ()
        if T.STORE:
            ds_s = gl.allocate_shared_memory(descs.q.dtype, [2 * T.GROUPS, 1, T.ROWS, T.BLOCK_M], descs.ds.layout)
        out = Gradients(dk_ptr, dv_ptr, dk_strides, dv_strides)
        call = Call(ring, keys, descs, out, lists, tables, sizes, items, split, ds=ds_s)
        gl.warp_specialize(
            [
                (gradients, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), 0, T)),
                (gradients, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), 1, T)),
                (load_tiles, (call, T)),
            ],
            [4, 1],
            [240, 24],
        )
