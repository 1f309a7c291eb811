"""All three gradients in one kernel on Hopper GPUs: dk and dv stay in registers, dq is added up in memory, in a fixed order.

One warp copies, two groups of four own 64 keys each, and two warps take turns in sending dq. Per tile of queries a group
multiplies five times, every matrix of scores transposed, [keys, queries]:

    S = k q^T,  dP = v do^T - delta   in flight
    p = 2^(f(S) - lse)                meanwhile
    dv <- dv + p do                   in flight
    ds = f'(S) p dP                   meanwhile; both groups' ds in shared memory
    dk <- dk + ds q                   in flight
    dq^T = k^T ds                     a half of it a group, over the keys of both: one program's part of dq

The parts of a tile's dq meet in float32 in memory. Sums in float32 depend on their order, so every tile of queries has a
counter: the part of the key tile of rank r (r key tiles before it visit this tile of queries) is added when the counter
stands at r, and moves it on to r + 1 once it has landed. Nobody waits in a circle: ranks rise with the number of the item,
items go in order to programs that all run at once, and so the lowest item that is not over waits for none.
Every key tile visits its tiles of queries from the last to the first, so that key tiles that follow one another are one
step apart. ``fused.dq_kernel`` scales, rounds and transposes.
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
        Items,
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
    from kernels.flex_attention.hopper.visits import visit, visited_head

    # Both groups' ds of two tiles in shared memory.
    Exchange = namedtuple("Exchange", "ds ready")

    # dq of two tiles in shared memory, on its way out.
    Staging = namedtuple("Staging", "dq ready free")

    @gluon.jit
    def load_tiles(call, T: gl.constexpr):
        """The copying warp: an item's keys and values, then tiles of queries and gradients."""
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, True, T)
            load_keys(call, item, turn, T)
            begin, stop, _ = heads_of_item(item, call)
            for j in range(begin, stop):
                head = visited_head(j, item, call, T)
                m0, partial = visit(0, head, call.lists, T)
                for i in range(0, head.end):
                    following, partial = visit(i + 1, head, call.lists, T)
                    load_queries(call, head, m0, count, T)
                    m0 = following
                    count += 1

    # dq: a product of each group, in shared memory, then added in memory when its turn has come.

    @gluon.jit
    def partial_dq(call, buffer, GROUP: gl.constexpr, T: gl.constexpr):
        """This group's [64, WIDTH] of dq^T = k^T ds, over the keys of all groups; in flight, two products."""
        dq = gl.zeros([64, T.WIDTH], gl.float32, product_layout(T.WIDTH))
        for group in gl.static_range(T.GROUPS):
            k = call.keys.k.index(group).reshape([T.ROWS, T.BLOCK_D])
            ds = call.exchange.ds.index(buffer * T.GROUPS + group)
            if T.WIDTH == T.BLOCK_M:  # groups share out the columns of k
                k = k.slice(GROUP * 64, 64, dim=1)
            else:  # or the queries
                ds = ds.slice(GROUP * T.WIDTH, T.WIDTH, dim=1)
            dq = warpgroup_mma(k.permute((1, 0)), ds, dq, use_acc=group > 0, is_async=True)
        return dq

    @gluon.jit
    def stage_dq(dq, staging, count, GROUP: gl.constexpr, T: gl.constexpr):
        """Give the dq of tile ``count`` to the warp that sends it."""
        mbarrier.wait(staging.free.index(count % 2), (count // 2 + 1) & 1)
        staging.dq.index(count % 2 * T.GROUPS + GROUP).store(dq)
        fence_async_shared()
        mbarrier.arrive(staging.ready.index(count % 2))

    @gluon.jit
    def send_tiles(call, counters, PARITY: gl.constexpr, T: gl.constexpr):
        """One of the two warps that send dq: every second tile, when the tile's counter says that it is next."""
        staging, descs, visits, sizes, blocks = call.staging, call.descs, call.lists, call.sizes, call.items.blocks
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, True, T)
            begin, stop, _ = heads_of_item(item, call)
            for j in range(begin, stop):
                head = visited_head(j, item, call, T)
                slot = item.pair * sizes.batches * sizes.G + j
                for i in range((count + PARITY) % 2, head.end, 2):
                    m0, partial = visit(i, head, call.lists, T)
                    rank = item.tile
                    if visits is not None:
                        rank = gl.load(visits.ranks + head.at + i // T.TILES_M) * T.TILES_N + item.tile % T.TILES_N
                    counter = counters + slot * (blocks * T.WIDTH // T.BLOCK_M) + m0 // T.BLOCK_M
                    row = (slot * blocks + m0 // T.WIDTH) * T.BLOCK_D
                    mbarrier.wait(staging.ready.index(PARITY), (count + i) // 2 & 1)
                    if rank == 0:
                        for group in gl.static_range(T.GROUPS):
                            tma.async_store(
                                descs.dq, [row + group * 64, 0], staging.dq.index(PARITY * T.GROUPS + group)
                            )
                    else:
                        while gl.atomic_add(counter, 0, sem="acquire") != rank:
                            pass
                        for group in gl.static_range(T.GROUPS):
                            part = staging.dq.index(PARITY * T.GROUPS + group)
                            tma.async_atomic_add(descs.dq, [row + group * 64, 0], part)
                    tma.store_wait(0)
                    mbarrier.arrive(staging.free.index(PARITY))
                    tma.store_wait(0, read_only=False)
                    gl.barrier()
                    gl.atomic_add(counter, 1, sem="release")
                count += head.end

    # Gradients of tiles.

    @gluon.jit
    def gradient_tiles(head, n, dk, dv, count, k, v, call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """All tiles of queries of one head. On entry and at the end no product is in flight."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_D), 2)
        layout_b: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_DV), 2)
        ring, exchange = call.ring, call.exchange
        m0, partial = visit(0, head, call.lists, T)
        for i in range(0, head.end):
            following, partial_next = visit(i + 1, head, call.lists, T)
            stage = count % T.STAGES
            phase = count // T.STAGES & 1
            q = ring.q.index(stage).reshape([T.BLOCK_M, T.BLOCK_D])
            do = ring.do.index(stage).reshape([T.BLOCK_M, T.BLOCK_DV])
            zeros = gl.zeros([T.ROWS, T.BLOCK_M], gl.float32, layout_s)
            mbarrier.wait(ring.q_ready.index(stage), phase)
            s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(ring.do_ready.index(stage), phase)
            delta = load_column(ring.delta, stage, layout_s)
            dp = warpgroup_mma(v, do.permute((1, 0)), zeros - delta, is_async=True)
            lse = load_column(ring.lse, stage, layout_s)
            s = warpgroup_mma_wait(1, deps=(s,))

            x, m = transposed_logits(s, m0, head, n, call, mods, False, T)
            if mods.mask is not None:
                if partial:
                    x = gl.where(mods.mask(head.b, head.h, m, n, call.tables.mask), x, float("-inf"))
            p = gl.exp2(x * call.sizes.unit - lse)
            dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_b), do, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=(dp,))
            ds = chained(s, x, p * dp, head, m, n, call, mods).to(q.dtype)
            # Free: whoever has arrived for the tile before is done with the one before that, whose ds was here.
            exchange.ds.index(count % 2 * T.GROUPS + GROUP).store(ds)
            fence_async_shared()
            mbarrier.arrive(exchange.ready.index(count % 2))
            dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
            mbarrier.wait(exchange.ready.index(count % 2), count // 2 & 1)
            dq = partial_dq(call, count % 2, GROUP, T)
            dv, dk = warpgroup_mma_wait(2, deps=(dv, dk))
            mbarrier.arrive(ring.q_free.index(stage))
            dq = warpgroup_mma_wait(0, deps=(dq,))
            stage_dq(dq, call.staging, count, GROUP, T)
            m0 = following
            partial = partial_next
            count += 1
        return dk, dv, count

    @gluon.jit
    def overlapped_tile(
        m0, partial, head, n, dk, dv, count, k, v, call, mods, GROUP: gl.constexpr, FIRST: gl.constexpr, T: gl.constexpr
    ):
        """A tile of queries, and dq of the tile before, unless this one is the FIRST: its ds has long been there.

        On entry and at the end no product is in flight.
        """
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        layout_a: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_D), 2)
        layout_b: gl.constexpr = gl.DotOperandLayout(0, product_layout(T.BLOCK_DV), 2)
        ring, exchange = call.ring, call.exchange
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
        delta = load_column(ring.delta, stage, layout_s)
        s = warpgroup_mma_wait(1, deps=(s,))

        x, m = transposed_logits(s, m0, head, n, call, mods, False, T)
        if mods.mask is not None:
            if partial:
                x = gl.where(mods.mask(head.b, head.h, m, n, call.tables.mask), x, float("-inf"))
        p = gl.exp2(x * call.sizes.unit - lse)
        dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_b), do, dv, is_async=True)
        if FIRST:
            dp = warpgroup_mma_wait(1, deps=(dp,))
        else:
            mbarrier.wait(exchange.ready.index((count - 1) % 2), (count - 1) // 2 & 1)
            dq = partial_dq(call, (count - 1) % 2, GROUP, T)
            dp = warpgroup_mma_wait(3, deps=(dp,))
        ds = chained(s, x, p * (dp - delta), head, m, n, call, mods).to(q.dtype)
        if FIRST:
            dv = warpgroup_mma_wait(0, deps=(dv,))
        else:
            dv, dq = warpgroup_mma_wait(0, deps=(dv, dq))
        # Free: whoever has arrived for the tile before is done with the one before that, whose ds was here.
        exchange.ds.index(count % 2 * T.GROUPS + GROUP).store(ds)
        fence_async_shared()
        mbarrier.arrive(exchange.ready.index(count % 2))
        dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
        if not FIRST:
            stage_dq(dq, call.staging, count - 1, GROUP, T)
        dk = warpgroup_mma_wait(0, deps=(dk,))
        mbarrier.arrive(ring.q_free.index(stage))
        return dk, dv

    @gluon.jit
    def overlapped_tiles(head, n, dk, dv, count, k, v, call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """``gradient_tiles``, in which no group waits for the other's ds of the tile at hand."""
        if head.end > 0:
            m0, partial = visit(0, head, call.lists, T)
            following, partial_next = visit(1, head, call.lists, T)
            dk, dv = overlapped_tile(m0, partial, head, n, dk, dv, count, k, v, call, mods, GROUP, True, T)
            count += 1
            for i in range(1, head.end):
                m0 = following
                partial = partial_next
                following, partial_next = visit(i + 1, head, call.lists, T)
                dk, dv = overlapped_tile(m0, partial, head, n, dk, dv, count, k, v, call, mods, GROUP, False, T)
                count += 1
            last = count - 1
            mbarrier.wait(call.exchange.ready.index(last % 2), last // 2 & 1)
            dq = partial_dq(call, last % 2, GROUP, T)
            dq = warpgroup_mma_wait(0, deps=(dq,))
            stage_dq(dq, call.staging, last, GROUP, T)
        return dk, dv, count

    @gluon.jit
    def gradients(call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        layout_s: gl.constexpr = product_layout(T.BLOCK_M)
        keys = call.keys
        k = keys.k.index(GROUP).reshape([T.ROWS, T.BLOCK_D])
        v = keys.v.index(GROUP).reshape([T.ROWS, T.BLOCK_DV])
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, True, T)
            n0 = (item.tile * T.GROUPS + GROUP) * T.ROWS
            n = gl.minimum(gl.expand_dims(n0 + gl.arange(0, T.ROWS, gl.SliceLayout(1, layout_s)), 1), call.sizes.N - 1)
            dk = gl.zeros([T.ROWS, T.BLOCK_D], gl.float32, product_layout(T.BLOCK_D))
            dv = gl.zeros([T.ROWS, T.BLOCK_DV], gl.float32, product_layout(T.BLOCK_DV))
            mbarrier.wait(keys.ready.index(0), turn & 1)
            before = count
            begin, stop, _ = heads_of_item(item, call)
            for j in range(begin, stop):
                head = visited_head(j, item, call, T)
                dk, dv, count = (overlapped_tiles if T.OVERLAP else gradient_tiles)(
                    head, n, dk, dv, count, k, v, call, mods, GROUP, T
                )
            mbarrier.arrive(keys.free.index(0))
            store_gradients(dk, dv, item, n0, count - before, call, T)

    @gluon.jit(do_not_specialize=["Hkv", "tiles", "count", "first", "bundle", "blocks"])
    def attention_gradients_hopper_kernel(
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
        split,
        SCORE_MOD: gl.constexpr,
        SCORE_GRADIENT: gl.constexpr,
        MASK_MOD: gl.constexpr,
        T: gl.constexpr,
    ):
        """Every program takes items (tile of keys, key head, batch row of keys) a grid apart; all programs run at once.

        visits: for each tile of keys its blocks of queries, from the last to the first (``Visits``). Hkv ... blocks:
        of ``Items``, for which nothing is compiled anew.
        """
        dtype: gl.constexpr = descs.q.dtype
        items = Items(Hkv, tiles, count, first, bundle, blocks)
        if split is not None:
            split = split_of(split)
        ring = allocate_ring(descs, T.GROUPS, True, T)
        keys = allocate_keys(descs, T)
        layout_ds: gl.constexpr = gl.NVMMASharedLayout.get_default_for([T.ROWS, T.BLOCK_M], dtype)
        ds_s = gl.allocate_shared_memory(dtype, [2 * T.GROUPS, T.ROWS, T.BLOCK_M], layout_ds)
        dq_s = gl.allocate_shared_memory(gl.float32, [2 * T.GROUPS, 64, T.WIDTH], descs.dq.layout)
        ds_ready = mbarrier.allocate_mbarrier(batch=2)
        dq_ready = mbarrier.allocate_mbarrier(batch=2)
        dq_free = mbarrier.allocate_mbarrier(batch=2)
        for buffer in gl.static_range(2):
            mbarrier.init(ds_ready.index(buffer), count=T.GROUPS)
            mbarrier.init(dq_ready.index(buffer), count=T.GROUPS)
            mbarrier.init(dq_free.index(buffer), count=1)
        exchange = Exchange(ds_s, ds_ready)
        staging = Staging(dq_s, dq_ready, dq_free)
        out = Gradients(dk_ptr, dv_ptr, dk_strides, dv_strides)
        call = Call(ring, keys, descs, out, visits, tables, sizes, items, split, None, exchange, staging)
        gl.warp_specialize(
            [
                (gradients, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), 0, T)),
                (gradients, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), 1, T)),
                (load_tiles, (call, T)),
                (send_tiles, (call, counters, 0, T)),
                (send_tiles, (call, counters, 1, T)),
            ],
            [4, 1, 1, 1],
            [240, 24, 24, 24],
        )
