"""All gradients on Hopper GPUs: dk and dv stay in registers, ds makes dq.

One warp copies, two groups of four own 64 keys each. Per tile of queries a group multiplies four or five times, every matrix
of scores transposed, [keys, queries]:

    S = k q^T,  dP = v do^T           in flight
    p = 2^(f(S) - lse)                meanwhile
    dv <- dv + p do                   in flight
    ds = f'(S) p (dP - delta)         meanwhile
    dk <- dk + ds q                   in flight, while ds goes where dq is made of it

dq = ds k is a sum over tiles of keys, which other programs have. Two ways to make it, chosen by ``backward.cut``:

ds is *kept*: it leaves for a workspace, and dq is one product with it (``dq.product_kernel``).

dq is *added* up: both groups' ds meet in shared memory, each multiplies a half of dq^T = k^T ds, a tile late, and two more
warps take turns in adding the halves to float32 sums in memory. Sums in float32 depend on their order, so every tile of
queries has a counter: the part of the key tile of rank r (r key tiles before it visit this tile of queries) is added when the
counter stands at r, and moves it on to r + 1 once it has landed. Nobody waits in a circle: ranks rise with the number of the
item, items go in order to programs that all run at once, and so the lowest item that is not over waits for none. Every key
tile visits its tiles of queries from the last to the first, so that key tiles that follow one another are one step apart.

lse and delta come with the queries, made whole tiles by ``rows_kernel``: behind a sequence's end lse is infinite, so p = 0.
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
        allocate_keys,
        allocate_ring,
        ask_scores,
        chained,
        gradients_of,
        keys_of_group,
        load_column,
        load_keys,
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

    # Both groups' ds of two tiles in shared memory; and dq of two tiles, on its way out.
    Exchange = namedtuple("Exchange", "ds ready")
    Staging = namedtuple("Staging", "dq ready free")

    @gluon.jit
    def load_tiles(call, T: gl.constexpr):
        """The copying warp: an item's keys and values, then tiles of queries and gradients."""
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, T)
            load_keys(call, item, turn, T)
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
    def as_operand(x, columns: gl.constexpr):
        """A matrix of scores as the left factor of a product with so many columns."""
        return gl.convert_layout(x, gl.DotOperandLayout(0, product_layout(columns), 2))

    # ds is kept.

    @gluon.jit
    def keep_tiles(head, n0, n, dk, dv, count, k, v, call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """``(dk, dv, count)`` after all tiles of queries of one head. Between tiles no product is in flight."""
        ring = call.ring
        for i in range(0, head.end):
            m0, partial = visit(i, head, call, T)
            s, dp = ask_scores(k, v, ring, count, T)
            lse = load_column(ring.lse, count, T)
            s = warpgroup_mma_wait(1, deps=(s,))
            p, x, m = probabilities(s, m0, partial, head, n, lse, call, mods, T)
            do = gradients_of(ring, count, T)
            dv = warpgroup_mma(as_operand(p.to(do.dtype), T.BLOCK_DV), do, dv, is_async=True)
            delta = load_column(ring.delta, count, T)
            dp = warpgroup_mma_wait(1, deps=(dp,))
            ds = chained(s, x, p * (dp - delta), head, m, n, call, mods).to(do.dtype)
            dk = warpgroup_mma(as_operand(ds, T.BLOCK_D), queries_of(ring, count, T), dk, is_async=True)
            if T.DS == "kept":
                mine = call.ds.index(2 * GROUP + count % 2)
                tma.store_wait(1)  # the one before last has left this buffer
                mine.reshape([T.ROWS, T.BLOCK_M]).store(ds)
                fence_async_shared()
                tma.async_store(call.descs.ds, place_of_ds(i, m0, n0, head, call, T), mine)
            dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))
            mbarrier.arrive(ring.q_free.index(count % T.STAGES))
            count += 1
        return dk, dv, count

    # dq is added up: a product of each group, in shared memory, then added in memory when its turn has come.

    @gluon.jit
    def ask_dq(held, count, call, GROUP: gl.constexpr, T: gl.constexpr):
        """dq^T = k^T ds of tile ``count``, of this group's share of its queries: two products in flight."""
        WIDTH: gl.constexpr = T.BLOCK_M // T.GROUPS
        mbarrier.wait(call.ds.ready.index(count % 2), count // 2 & 1)
        dq = gl.zeros([64, WIDTH], gl.float32, product_layout(WIDTH))
        for group in gl.static_range(T.GROUPS):
            k = call.keys.k.index(held * T.GROUPS + group).reshape([T.ROWS, T.BLOCK_D])
            ds = call.ds.ds.index(count % 2 * T.GROUPS + group).slice(GROUP * WIDTH, WIDTH, dim=1)
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
    def add_tile(
        i, head, n, dk, dv, count, k, v, held, call, mods, GROUP: gl.constexpr, FIRST: gl.constexpr, T: gl.constexpr
    ):  # fmt: skip
        """``(dk, dv)`` after the i-th tile of queries, and dq of the tile before, unless this one is the FIRST: its ds has
        long been there. On entry and at the end no product is in flight."""
        ring, exchange = call.ring, call.ds
        m0, partial = visit(i, head, call, T)
        s, dp = ask_scores(k, v, ring, count, T)
        lse, delta = load_column(ring.lse, count, T), load_column(ring.delta, count, T)
        s = warpgroup_mma_wait(1, deps=(s,))
        p, x, m = probabilities(s, m0, partial, head, n, lse, call, mods, T)
        do = gradients_of(ring, count, T)
        dv = warpgroup_mma(as_operand(p.to(do.dtype), T.BLOCK_DV), do, dv, is_async=True)
        if FIRST:
            dp = warpgroup_mma_wait(1, deps=(dp,))
        else:
            dq = ask_dq(held, count - 1, call, GROUP, T)
            dp = warpgroup_mma_wait(3, deps=(dp,))
        ds = chained(s, x, p * (dp - delta), head, m, n, call, mods).to(do.dtype)
        if FIRST:
            dv = warpgroup_mma_wait(0, deps=(dv,))
        else:
            dv, dq = warpgroup_mma_wait(0, deps=(dv, dq))
        # Free: whoever has arrived for the tile before is done with the one before that, whose ds was here.
        exchange.ds.index(count % 2 * T.GROUPS + GROUP).store(ds)
        fence_async_shared()
        mbarrier.arrive(exchange.ready.index(count % 2))
        dk = warpgroup_mma(as_operand(ds, T.BLOCK_D), queries_of(ring, count, T), dk, is_async=True)
        if not FIRST:
            stage_dq(dq, call.staging, count - 1, GROUP, T)
        dk = warpgroup_mma_wait(0, deps=(dk,))
        mbarrier.arrive(ring.q_free.index(count % T.STAGES))
        return dk, dv

    @gluon.jit
    def add_tiles(head, n, dk, dv, count, k, v, held, call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """All tiles of queries of one head."""
        if head.end > 0:
            dk, dv = add_tile(0, head, n, dk, dv, count, k, v, held, call, mods, GROUP, True, T)
            count += 1
            for i in range(1, head.end):
                dk, dv = add_tile(i, head, n, dk, dv, count, k, v, held, call, mods, GROUP, False, T)
                count += 1
            dq = ask_dq(held, count - 1, call, GROUP, T)
            dq = warpgroup_mma_wait(0, deps=(dq,))
            stage_dq(dq, call.staging, count - 1, GROUP, T)
        return dk, dv, count

    @gluon.jit
    def send_tiles(call, counters, PARITY: gl.constexpr, T: gl.constexpr):
        """One of the two warps that send dq: every second tile, when the tile's counter says that it is next."""
        staging, descs, visits, blocks = call.staging, call.descs, call.visits, call.items.blocks
        WIDTH: gl.constexpr = T.BLOCK_M // T.GROUPS
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, T)
            begin, stop = heads_of_item(item, call.part)
            for j in range(begin, stop):
                head = head_of_item(j, item, call, T)
                for i in range((count + PARITY) % 2, head.end, 2):
                    m0, partial = visit(i, head, call, T)
                    rank = item.place
                    if visits is not None:
                        rank = gl.load(visits.ranks + head.at + i // T.TILES_M) * T.TILES_N + item.place % T.TILES_N
                    counter = counters + head.slot * (blocks * WIDTH // T.BLOCK_M) + m0 // T.BLOCK_M
                    row = (head.slot * blocks + m0 // WIDTH) * 64
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

    # Items.

    @gluon.jit
    def gradients(call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        keys = call.keys
        count = 0
        for turn in range(0, items_of_program(call.items.count, T.SERPENTINE)):
            item = item_of_program(turn, call, T)
            n0 = (item.tile * T.GROUPS + GROUP) * T.ROWS
            n = keys_of_group(n0, call.sizes.N, T)
            dk = gl.zeros([T.ROWS, T.BLOCK_D], gl.float32, product_layout(T.BLOCK_D))
            dv = gl.zeros([T.ROWS, T.BLOCK_DV], gl.float32, product_layout(T.BLOCK_DV))
            held = turn % T.KEPT
            k = keys.k.index(held * T.GROUPS + GROUP).reshape([T.ROWS, T.BLOCK_D])
            v = keys.v.index(held * T.GROUPS + GROUP).reshape([T.ROWS, T.BLOCK_DV])
            mbarrier.wait(keys.ready.index(held), turn // T.KEPT & 1)
            before = count
            begin, stop = heads_of_item(item, call.part)
            for j in range(begin, stop):
                head = head_of_item(j, item, call, T)
                if T.DS == "added":
                    dk, dv, count = add_tiles(head, n, dk, dv, count, k, v, held, call, mods, GROUP, T)
                else:
                    dk, dv, count = keep_tiles(head, n0, n, dk, dv, count, k, v, call, mods, GROUP, T)
            mbarrier.arrive(keys.free.index(held))
            store_gradients(dk, dv, item, n0, count - before, call, T)
        if T.DS == "kept":
            tma.store_wait(0)

    @gluon.jit(do_not_specialize=NUMBERS)
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
        """Every program takes items (tile of keys, key head, batch row of keys) a grid apart; where dq is added up, all
        programs run at once.

        visits: of each tile of keys (``Visits``). Hkv ... blocks: of ``Items``; begin ... fresh: of a ``Part``; for neither
        anything is compiled anew.
        """
        dtype: gl.constexpr = descs.q.dtype
        items = Items(Hkv, tiles, count, first, bundle, blocks)
        part = Part(begin, heads, splits, band, stop, fresh)
        out = Gradients(dk_ptr, dv_ptr, dk_strides, dv_strides)
        ring = allocate_ring(descs, T.GROUPS, True, T)
        keys = allocate_keys(descs, T)
        if T.DS == "added":
            layout_ds: gl.constexpr = gl.NVMMASharedLayout.get_default_for([T.ROWS, T.BLOCK_M], dtype)
            ds_s = gl.allocate_shared_memory(dtype, [2 * T.GROUPS, T.ROWS, T.BLOCK_M], layout_ds)
            WIDTH: gl.constexpr = T.BLOCK_M // T.GROUPS
            dq_s = gl.allocate_shared_memory(gl.float32, [2 * T.GROUPS, 64, WIDTH], descs.dq.layout)
            ds_ready = mbarrier.allocate_mbarrier(batch=2)
            dq_ready = mbarrier.allocate_mbarrier(batch=2)
            dq_free = mbarrier.allocate_mbarrier(batch=2)
            for buffer in gl.static_range(2):
                mbarrier.init(ds_ready.index(buffer), count=T.GROUPS)
                mbarrier.init(dq_ready.index(buffer), count=T.GROUPS)
                mbarrier.init(dq_free.index(buffer), count=1)
            exchange = Exchange(ds_s, ds_ready)
            staging = Staging(dq_s, dq_ready, dq_free)
            call = Call(ring, keys, descs, out, visits, tables, sizes, items, part, exchange, staging)
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
        else:
            ds_s = ()
            if T.DS == "kept":
                ds_s = gl.allocate_shared_memory(dtype, [2 * T.GROUPS, 1, T.ROWS, T.BLOCK_M], descs.ds.layout)
            call = Call(ring, keys, descs, out, visits, tables, sizes, items, part, ds_s, ())
            gl.warp_specialize(
                [
                    (gradients, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), 0, T)),
                    (gradients, (call, Mods(SCORE_MOD, SCORE_GRADIENT, MASK_MOD), 1, T)),
                    (load_tiles, (call, T)),
                ],
                [4, 1],
                [240, 24],
            )
