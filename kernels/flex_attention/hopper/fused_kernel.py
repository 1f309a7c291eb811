"""All three gradients in one kernel on Hopper GPUs: dk and dv stay in registers, dq is added up in memory, in a fixed order.

One warp copies, two groups of four own 64 keys each, and two warps take turns in sending dq. Per tile of queries a group
multiplies five times, every matrix of scores transposed, [keys, queries]:

    S = k q^T,  dP = v do^T - delta   in flight
    p = 2^(f(S) - lse)                meanwhile
    dv <- dv + p do                   in flight
    ds = f'(S) p dP                   meanwhile; both groups' ds lie in shared memory
    dk <- dk + ds q                   in flight
    dq^T = k^T ds                     a half of it a group, over the keys of both: one program's part of dq

The parts of a tile's dq meet in float32 in memory. Sums in float32 depend on their order, so every tile of queries has a
counter: the part of the key tile of rank r (r key tiles before it visit this tile of queries) is added when the counter
stands at r, and moves it on to r + 1 once it has landed. Nobody waits in a circle: ranks rise with the number of the item,
items are dealt in order to programs that all run at once, and so the lowest item that is not over waits for none.
Every key tile visits its tiles of queries from the last to the first, so that key tiles that follow one another are one
step apart. ``fused.dq_kernel`` scales, rounds and transposes.
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

    from kernels.flex_attention.hopper.dealing import heads_of_unit, items_of_program
    from kernels.flex_attention.hopper.fused_dq import hand_over, partial_dq, send_tiles
    from kernels.flex_attention.hopper.parts import add_rows
    from kernels.flex_attention.hopper.tiles import store_rows, transposed_logits
    from kernels.flex_attention.hopper.walks import entries_of, keys_in_bundle, visit

    @gluon.jit
    def load_tiles(
        q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ring, walk, M, Hkv, G, tiles_n, batches, first, items,
        split, BUNDLE, SPARSE: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr, SPARSE_M: gl.constexpr,
        BLOCK_M: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """The copying warp: an item's keys and values, then tiles of queries with lse, and of gradients with delta."""
        q_s, do_s, k_s, v_s, lse_s, delta_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_in_bundle(turn, tiles_n, items, first, Hkv, split, BUNDLE, BACK_AND_FORTH)
            mbarrier.wait(kv_free, (turn + 1) & 1)
            mbarrier.expect(kv_ready, GROUPS * (k_desc.nbytes_per_cta + v_desc.nbytes_per_cta))
            for group in gl.static_range(GROUPS):
                row = (tile * GROUPS + group) * ROWS
                tma.async_load(k_desc, [b_kv, h_kv, row, 0], kv_ready, k_s.index(group))
                tma.async_load(v_desc, [b_kv, h_kv, row, 0], kv_ready, v_s.index(group))
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                b = b_kv * batches + j // G
                h = h_kv * G + j % G
                end, at = entries_of(b, h, tile, walk, M, SPARSE, TILES_M, TILES_N, BLOCK_M)
                m0, partial = visit(0, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
                for i in range(0, end):
                    following, partial = visit(i + 1, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
                    stage = count % STAGES
                    mbarrier.wait(free.index(stage), (count // STAGES + 1) & 1)
                    mbarrier.expect(q_ready.index(stage), q_desc.nbytes_per_cta + lse_desc.nbytes_per_cta)
                    tma.async_load(q_desc, [b, h, m0, 0], q_ready.index(stage), q_s.index(stage))
                    tma.async_load(lse_desc, [b * Hkv * G + h, m0], q_ready.index(stage), lse_s.index(stage))
                    mbarrier.expect(do_ready.index(stage), do_desc.nbytes_per_cta + delta_desc.nbytes_per_cta)
                    tma.async_load(do_desc, [b, h, m0, 0], do_ready.index(stage), do_s.index(stage))
                    tma.async_load(delta_desc, [b * Hkv * G + h, m0], do_ready.index(stage), delta_s.index(stage))
                    m0 = following
                    count += 1

    @gluon.jit
    def gradient_tiles(
        end, at, dk, dv, count, k, v, ring, exchange, sinks, GROUP: gl.constexpr, walk,
        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr,
        EDGE_M: gl.constexpr, SPARSE: gl.constexpr, SPARSE_M: gl.constexpr, TILES_M: gl.constexpr,
        BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr,
        STAGES: gl.constexpr, layout_a: gl.constexpr, layout_b: gl.constexpr,
    ):  # fmt: skip
        """All tiles of queries of one head. On entry and at the end no product is in flight."""
        layout_s: gl.constexpr = n.type.layout
        layout_m: gl.constexpr = gl.SliceLayout(0, layout_s)
        q_s, do_s, k_s, v_s, lse_s, delta_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        ds_s, ds_ready = exchange
        m0, partial = visit(0, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
        for i in range(0, end):
            following, partial_next = visit(i + 1, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
            stage = count % STAGES
            phase = count // STAGES & 1
            q = q_s.index(stage).reshape([BLOCK_M, k.shape[1]])
            do = do_s.index(stage).reshape([BLOCK_M, v.shape[1]])
            zeros = gl.zeros([k.shape[0], BLOCK_M], gl.float32, layout_s)
            mbarrier.wait(q_ready.index(stage), phase)
            s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
            mbarrier.wait(do_ready.index(stage), phase)
            delta = gl.expand_dims(delta_s.index(stage).reshape([BLOCK_M]).load(layout_m), 0)
            dp = warpgroup_mma(v, do.permute((1, 0)), zeros - delta, is_async=True)
            lse = gl.expand_dims(lse_s.index(stage).reshape([BLOCK_M]).load(layout_m), 0)
            s = warpgroup_mma_wait(1, deps=(s,))

            x, m = transposed_logits(
                s, m0, offs_m, M, scale, b, h, n, score_tables, mask_tables, SCORE_MOD, None, EDGE_M
            )
            if MASK_MOD is not None:
                if partial:
                    x = gl.where(MASK_MOD(b, h, m, n, mask_tables), x, float("-inf"))
            p = gl.exp2(x * unit - lse)
            dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_b), do, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=(dp,))
            ds = p * dp
            if SCORE_MOD is not None:
                ds = gl.where(x != float("-inf"), SCORE_GRADIENT(s * scale, b, h, m, n, ds, score_tables), 0.0)
            ds = ds.to(q.dtype)
            # Free: whoever has arrived for the tile before is done with the one before that, which lay here.
            ds_s.index(count % 2 * GROUPS + GROUP).store(ds)
            fence_async_shared()
            mbarrier.arrive(ds_ready.index(count % 2))
            dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
            mbarrier.wait(ds_ready.index(count % 2), count // 2 & 1)
            dq = partial_dq(k_s, ds_s, count % 2, GROUP, BLOCK_M, BLOCK_D, WIDTH, ROWS, GROUPS)
            dv, dk = warpgroup_mma_wait(2, deps=(dv, dk))
            mbarrier.arrive(free.index(stage))
            dq = warpgroup_mma_wait(0, deps=(dq,))
            hand_over(dq, sinks, count, GROUP, GROUPS)
            m0 = following
            partial = partial_next
            count += 1
        return dk, dv, count

    @gluon.jit
    def overlapped_tile(
        m0, partial, dk, dv, count, k, v, ring, exchange, sinks, GROUP: gl.constexpr,
        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr,
        EDGE_M: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr,
        GROUPS: gl.constexpr, STAGES: gl.constexpr, layout_a: gl.constexpr, layout_b: gl.constexpr, FIRST: gl.constexpr,
    ):  # fmt: skip
        """A tile of queries, and dq of the tile before, unless this one is the FIRST: its ds has long been there.

        On entry and at the end no product is in flight.
        """
        layout_s: gl.constexpr = n.type.layout
        layout_m: gl.constexpr = gl.SliceLayout(0, layout_s)
        q_s, do_s, k_s, v_s, lse_s, delta_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        ds_s, ds_ready = exchange
        stage = count % STAGES
        phase = count // STAGES & 1
        q = q_s.index(stage).reshape([BLOCK_M, k.shape[1]])
        do = do_s.index(stage).reshape([BLOCK_M, v.shape[1]])
        zeros = gl.zeros([k.shape[0], BLOCK_M], gl.float32, layout_s)
        mbarrier.wait(q_ready.index(stage), phase)
        s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(do_ready.index(stage), phase)
        dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
        lse = gl.expand_dims(lse_s.index(stage).reshape([BLOCK_M]).load(layout_m), 0)
        delta = gl.expand_dims(delta_s.index(stage).reshape([BLOCK_M]).load(layout_m), 0)
        s = warpgroup_mma_wait(1, deps=(s,))

        x, m = transposed_logits(
            s, m0, offs_m, M, scale, b, h, n, score_tables, mask_tables, SCORE_MOD, None, EDGE_M
        )
        if MASK_MOD is not None:
            if partial:
                x = gl.where(MASK_MOD(b, h, m, n, mask_tables), x, float("-inf"))
        p = gl.exp2(x * unit - lse)
        dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_b), do, dv, is_async=True)
        if FIRST:
            dp = warpgroup_mma_wait(1, deps=(dp,))
        else:
            mbarrier.wait(ds_ready.index((count - 1) % 2), (count - 1) // 2 & 1)
            dq = partial_dq(k_s, ds_s, (count - 1) % 2, GROUP, BLOCK_M, BLOCK_D, WIDTH, ROWS, GROUPS)
            dp = warpgroup_mma_wait(3, deps=(dp,))
        ds = p * (dp - delta)
        if SCORE_MOD is not None:
            ds = gl.where(x != float("-inf"), SCORE_GRADIENT(s * scale, b, h, m, n, ds, score_tables), 0.0)
        ds = ds.to(q.dtype)
        if FIRST:
            dv = warpgroup_mma_wait(0, deps=(dv,))
        else:
            dv, dq = warpgroup_mma_wait(0, deps=(dv, dq))
        # Free: whoever has arrived for the tile before is done with the one before that, which lay here.
        ds_s.index(count % 2 * GROUPS + GROUP).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_ready.index(count % 2))
        dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
        if not FIRST:
            hand_over(dq, sinks, count - 1, GROUP, GROUPS)
        dk = warpgroup_mma_wait(0, deps=(dk,))
        mbarrier.arrive(free.index(stage))
        return dk, dv

    @gluon.jit
    def overlapped_tiles(
        end, at, dk, dv, count, k, v, ring, exchange, sinks, GROUP: gl.constexpr, walk,
        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr,
        EDGE_M: gl.constexpr, SPARSE: gl.constexpr, SPARSE_M: gl.constexpr, TILES_M: gl.constexpr,
        BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr,
        STAGES: gl.constexpr, layout_a: gl.constexpr, layout_b: gl.constexpr,
    ):  # fmt: skip
        """``gradient_tiles``, in which no group waits for the other's ds of the tile at hand."""
        q_s, do_s, k_s, v_s, lse_s, delta_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        ds_s, ds_ready = exchange
        if end > 0:
            m0, partial = visit(0, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
            following, partial_next = visit(1, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
            dk, dv = overlapped_tile(
                m0, partial, dk, dv, count, k, v, ring, exchange, sinks, GROUP,
                M, scale, unit, b, h, n, offs_m, score_tables, mask_tables, SCORE_MOD, SCORE_GRADIENT, MASK_MOD,
                EDGE_M, BLOCK_M, BLOCK_D, WIDTH, ROWS, GROUPS, STAGES, layout_a, layout_b, True,
            )  # fmt: skip
            count += 1
            for i in range(1, end):
                m0 = following
                partial = partial_next
                following, partial_next = visit(i + 1, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
                dk, dv = overlapped_tile(
                    m0, partial, dk, dv, count, k, v, ring, exchange, sinks, GROUP,
                    M, scale, unit, b, h, n, offs_m, score_tables, mask_tables, SCORE_MOD, SCORE_GRADIENT, MASK_MOD,
                    EDGE_M, BLOCK_M, BLOCK_D, WIDTH, ROWS, GROUPS, STAGES, layout_a, layout_b, False,
                )  # fmt: skip
                count += 1
            last = count - 1
            mbarrier.wait(ds_ready.index(last % 2), last // 2 & 1)
            dq = partial_dq(k_s, ds_s, last % 2, GROUP, BLOCK_M, BLOCK_D, WIDTH, ROWS, GROUPS)
            dq = warpgroup_mma_wait(0, deps=(dq,))
            hand_over(dq, sinks, last, GROUP, GROUPS)
        return dk, dv, count

    @gluon.jit
    def gradients(
        ring, exchange, sinks, dk_ptr, dv_ptr, walk, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
        tiles_n, batches, first, items, split, BUNDLE,
        stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd, GROUP: gl.constexpr,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr,
        D: gl.constexpr, DV: gl.constexpr, SPARSE: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_M: gl.constexpr, EDGE_M: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr,
        BLOCK_DV: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
        OVERLAP: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """A group of four warps: 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        layout_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
        layout_k: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
        layout_v: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DV, 16])
        layout_a: gl.constexpr = gl.DotOperandLayout(0, layout_k, 2)
        layout_b: gl.constexpr = gl.DotOperandLayout(0, layout_v, 2)
        q_s, do_s, k_s, v_s, lse_s, delta_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        offs_m = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout_s))
        k = k_s.index(GROUP).reshape([ROWS, BLOCK_D])
        v = v_s.index(GROUP).reshape([ROWS, BLOCK_DV])
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_in_bundle(turn, tiles_n, items, first, Hkv, split, BUNDLE, BACK_AND_FORTH)
            n0 = (tile * GROUPS + GROUP) * ROWS
            n = gl.minimum(gl.expand_dims(n0 + gl.arange(0, ROWS, gl.SliceLayout(1, layout_s)), 1), N - 1)
            dk = gl.zeros([ROWS, BLOCK_D], gl.float32, layout_k)
            dv = gl.zeros([ROWS, BLOCK_DV], gl.float32, layout_v)
            mbarrier.wait(kv_ready, turn & 1)
            before = count
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                b = b_kv * batches + j // G
                h = h_kv * G + j % G
                end, at = entries_of(b, h, tile, walk, M, SPARSE, TILES_M, TILES_N, BLOCK_M)
                dk, dv, count = (overlapped_tiles if OVERLAP else gradient_tiles)(
                    end, at, dk, dv, count, k, v, ring, exchange, sinks, GROUP, walk,
                    M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, MASK_MOD, EDGE_M, SPARSE, SPARSE_M, TILES_M,
                    BLOCK_M, BLOCK_D, WIDTH, ROWS, GROUPS, STAGES, layout_a, layout_b,
                )  # fmt: skip
            mbarrier.arrive(kv_free)
            if split is None:
                store_rows(dk * scale, dk_ptr, b_kv, h_kv, n0, N, D, stride_dkb, stride_dkh, stride_dkn, stride_dkd)
                store_rows(dv, dv_ptr, b_kv, h_kv, n0, N, DV, stride_dvb, stride_dvh, stride_dvn, stride_dvd)
            elif count - before + split.fresh > 0:
                add_rows(dk, dk_ptr, owner, n0, N, split.fresh, D)
                add_rows(dv, dv_ptr, owner, n0, N, split.fresh, DV)

    @gluon.jit(do_not_specialize=["Hkv", "tiles_n", "first", "items", "BUNDLE", "blocks"])
    def attention_gradients_hopper_kernel(
        q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_desc, counters, dk_ptr, dv_ptr, walk,
        score_tables, mask_tables, split, scale, unit, M, N, Hkv, G, tiles_n, batches, first, items, BUNDLE, blocks,
        stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr,
        D: gl.constexpr, DV: gl.constexpr, SPARSE: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_M: gl.constexpr, EDGE_M: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr,
        BLOCK_DV: gl.constexpr, WIDTH: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
        OVERLAP: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """Every program takes items (tile of keys, key head, batch row of keys) a grid apart; all programs run at once.

        walk: for each tile of keys its blocks of queries, from the last to the first (``walks.walk_of``). blocks: WIDTH
        queries each, of one head in dq's sums.
        """
        dtype: gl.constexpr = q_desc.dtype
        q_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
        do_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DV], do_desc.layout)
        k_s = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, BLOCK_D], k_desc.layout)
        v_s = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, BLOCK_DV], v_desc.layout)
        lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse_desc.layout)
        delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout)
        layout_ds: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_M], dtype)
        ds_s = gl.allocate_shared_memory(dtype, [2 * GROUPS, ROWS, BLOCK_M], layout_ds)
        dq_s = gl.allocate_shared_memory(gl.float32, [2 * GROUPS, 64, WIDTH], dq_desc.layout)
        kv_ready = mbarrier.allocate_mbarrier()
        kv_free = mbarrier.allocate_mbarrier()
        q_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        do_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        free = mbarrier.allocate_mbarrier(batch=STAGES)
        ds_ready = mbarrier.allocate_mbarrier(batch=2)
        dq_ready = mbarrier.allocate_mbarrier(batch=2)
        dq_free = mbarrier.allocate_mbarrier(batch=2)
        mbarrier.init(kv_ready, count=1)
        mbarrier.init(kv_free, count=GROUPS)
        for stage in gl.static_range(STAGES):
            mbarrier.init(q_ready.index(stage), count=1)
            mbarrier.init(do_ready.index(stage), count=1)
            mbarrier.init(free.index(stage), count=GROUPS)
        for buffer in gl.static_range(2):
            mbarrier.init(ds_ready.index(buffer), count=GROUPS)
            mbarrier.init(dq_ready.index(buffer), count=GROUPS)
            mbarrier.init(dq_free.index(buffer), count=1)
        ring = (q_s, do_s, k_s, v_s, lse_s, delta_s, kv_ready, kv_free, q_ready, do_ready, free)
        exchange = (ds_s, ds_ready)
        sinks = (dq_s, dq_ready, dq_free)
        gl.warp_specialize(
            [
                (gradients, (
                    ring, exchange, sinks, dk_ptr, dv_ptr, walk, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
                    tiles_n, batches, first, items, split, BUNDLE,
                    stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd, 0,
                    SCORE_MOD, SCORE_GRADIENT, MASK_MOD, D, DV, SPARSE, TILES_M, TILES_N, SPARSE_M,
                    EDGE_M, BLOCK_M, BLOCK_D, BLOCK_DV, WIDTH, ROWS, GROUPS, STAGES, OVERLAP, BACK_AND_FORTH,
                )),
                (gradients, (
                    ring, exchange, sinks, dk_ptr, dv_ptr, walk, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
                    tiles_n, batches, first, items, split, BUNDLE,
                    stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd, 1,
                    SCORE_MOD, SCORE_GRADIENT, MASK_MOD, D, DV, SPARSE, TILES_M, TILES_N, SPARSE_M,
                    EDGE_M, BLOCK_M, BLOCK_D, BLOCK_DV, WIDTH, ROWS, GROUPS, STAGES, OVERLAP, BACK_AND_FORTH,
                )),
                (load_tiles, (
                    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ring, walk, M, Hkv, G, tiles_n, batches,
                    first, items, split, BUNDLE, SPARSE, TILES_M, TILES_N, SPARSE_M, BLOCK_M, ROWS, GROUPS, STAGES,
                    BACK_AND_FORTH,
                )),
                (send_tiles, (
                    dq_desc, counters, sinks, walk, M, Hkv, G, tiles_n, batches, first, items, split, BUNDLE, blocks, 0,
                    SPARSE, TILES_M, TILES_N, SPARSE_M, BLOCK_M, WIDTH, BLOCK_D, GROUPS, BACK_AND_FORTH,
                )),
                (send_tiles, (
                    dq_desc, counters, sinks, walk, M, Hkv, G, tiles_n, batches, first, items, split, BUNDLE, blocks, 1,
                    SPARSE, TILES_M, TILES_N, SPARSE_M, BLOCK_M, WIDTH, BLOCK_D, GROUPS, BACK_AND_FORTH,
                )),
            ],
            [4, 1, 1, 1],
            [240, 24, 24, 24],
        )  # fmt: skip
