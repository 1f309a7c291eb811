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

    from kernels.flex_attention.hopper.dealing import (
        column_of,
        first_row,
        heads_of_unit,
        items_of_program,
        keys_of_program,
        queries_of_keys,
        slot_of,
    )
    from kernels.flex_attention.hopper.parts import add_rows
    from kernels.flex_attention.hopper.tiles import store_rows, transposed_logits

    @gluon.jit
    def load_tiles(
        q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ring, partial, full, M, Hkv, G, tiles_n, batches, first, items,
        split, SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_M: gl.constexpr, BLOCK_M: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
        KEPT: gl.constexpr, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """The copying warp: an item's keys and values, then tiles of queries with their rows' lse, and of gradients with
        delta."""
        q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_of_program(
                turn, tiles_n, items, first, Hkv, split, TILES_FIRST, BACK_AND_FORTH
            )
            held = turn % KEPT
            ready = kv_ready.index(held)
            mbarrier.wait(kv_free.index(held), (turn // KEPT + 1) & 1)
            mbarrier.expect(ready, GROUPS * (k_desc.nbytes_per_cta + v_desc.nbytes_per_cta))
            for group in gl.static_range(GROUPS):
                row = (tile * GROUPS + group) * ROWS
                tma.async_load(k_desc, [b_kv, h_kv, row, 0], ready, k_s.index(held * GROUPS + group))
                tma.async_load(v_desc, [b_kv, h_kv, row, 0], ready, v_s.index(held * GROUPS + group))
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                b, h, some, at, at_full, share, m0 = queries_of_keys(
                    j, tile // TILES_N, b_kv, h_kv, batches, G, partial, full, M, part, split,
                    SPARSE, HAS_FULL, SPARSE_M, TILES_M, BLOCK_M,
                )  # fmt: skip
                for i in range(share[0], share[2]):
                    following = first_row(i + 1, some, share[2], at, at_full, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
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
        begin, end, stop, m0, dk, dv, count, k, v, ring, GROUP: gl.constexpr, ds_desc, slot, n0, split, some, at, at_full,
        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr, STORE: gl.constexpr,
        EDGE_M: gl.constexpr, SPARSE: gl.constexpr, SPARSE_M: gl.constexpr, TILES_M: gl.constexpr,
        BLOCK_M: gl.constexpr, STAGES: gl.constexpr, layout_a: gl.constexpr, layout_b: gl.constexpr,
    ):  # fmt: skip
        """Tiles begin ... end - 1 of queries. On entry and at the end no product is in flight."""
        layout_s: gl.constexpr = n.type.layout
        layout_m: gl.constexpr = gl.SliceLayout(0, layout_s)
        q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        for i in range(begin, end):
            following = first_row(i + 1, some, stop, at, at_full, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
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
            s = warpgroup_mma_wait(1, deps=(s,))

            x, m = transposed_logits(
                s, m0, offs_m, M, scale, b, h, n, score_tables, mask_tables, SCORE_MOD, MASK_MOD, EDGE_M
            )
            p = gl.exp2(x * unit - lse)
            dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_b), do, dv, is_async=True)
            delta = gl.expand_dims(delta_s.index(stage).reshape([BLOCK_M]).load(layout_m), 0)
            dp = warpgroup_mma_wait(1, deps=(dp,))
            ds = p * (dp - delta)
            if SCORE_MOD is not None:
                ds = gl.where(x != float("-inf"), SCORE_GRADIENT(s * scale, b, h, m, n, ds, score_tables), 0.0)
            ds = ds.to(q.dtype)
            dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
            if STORE:
                mine = ds_s.index(2 * GROUP + count % 2)
                tma.store_wait(1)  # the one before last has left this buffer
                mine.reshape([k.shape[0], BLOCK_M]).store(ds)
                fence_async_shared()
                tma.async_store(ds_desc, [slot, n0, column_of(m0, split)], mine)
            dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))
            mbarrier.arrive(free.index(stage))
            m0 = following
            count += 1
        return m0, dk, dv, count

    @gluon.jit
    def gradients(
        ring, ds_desc, dk_ptr, dv_ptr, partial, full, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
        tiles_n, batches, first, items, split,
        stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd, GROUP: gl.constexpr,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr, STORE: gl.constexpr,
        D: gl.constexpr, DV: gl.constexpr, SPARSE: gl.constexpr, HAS_FULL: gl.constexpr,
        TILES_M: gl.constexpr, TILES_N: gl.constexpr, SPARSE_M: gl.constexpr, EDGE_M: gl.constexpr,
        BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, ROWS: gl.constexpr,
        GROUPS: gl.constexpr, STAGES: gl.constexpr,
        KEPT: gl.constexpr, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """A group of four warps: 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        layout_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
        layout_k: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
        layout_v: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DV, 16])
        layout_a: gl.constexpr = gl.DotOperandLayout(0, layout_k, 2)
        layout_b: gl.constexpr = gl.DotOperandLayout(0, layout_v, 2)
        q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, kv_ready, kv_free, q_ready, do_ready, free = ring
        offs_m = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout_s))
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_of_program(
                turn, tiles_n, items, first, Hkv, split, TILES_FIRST, BACK_AND_FORTH
            )
            n0 = (tile * GROUPS + GROUP) * ROWS
            n = gl.minimum(gl.expand_dims(n0 + gl.arange(0, ROWS, gl.SliceLayout(1, layout_s)), 1), N - 1)
            dk = gl.zeros([ROWS, BLOCK_D], gl.float32, layout_k)
            dv = gl.zeros([ROWS, BLOCK_DV], gl.float32, layout_v)
            held = turn % KEPT
            k = k_s.index(held * GROUPS + GROUP).reshape([ROWS, BLOCK_D])
            v = v_s.index(held * GROUPS + GROUP).reshape([ROWS, BLOCK_DV])
            mbarrier.wait(kv_ready.index(held), turn // KEPT & 1)
            before = count
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                slot = slot_of(pair, j, batches, G, split)
                b, h, some, at, at_full, share, m0 = queries_of_keys(
                    j, tile // TILES_N, b_kv, h_kv, batches, G, partial, full, M, part, split,
                    SPARSE, HAS_FULL, SPARSE_M, TILES_M, BLOCK_M,
                )  # fmt: skip
                unmasked = share[0]  # with no mask mod a partial block is as good as a full one
                if MASK_MOD is not None:
                    unmasked = share[1]
                    m0, dk, dv, count = gradient_tiles(
                        share[0], share[1], share[2], m0, dk, dv, count, k, v, ring, GROUP, ds_desc, slot, n0, split,
                        some, at, at_full,
                        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
                        SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, EDGE_M, SPARSE, SPARSE_M, TILES_M, BLOCK_M, STAGES,
                        layout_a, layout_b,
                    )  # fmt: skip
                m0, dk, dv, count = gradient_tiles(
                    unmasked, share[2], share[2], m0, dk, dv, count, k, v, ring, GROUP, ds_desc, slot, n0, split,
                    some, at, at_full,
                    M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, EDGE_M, SPARSE, SPARSE_M, TILES_M, BLOCK_M, STAGES,
                    layout_a, layout_b,
                )  # fmt: skip
            mbarrier.arrive(kv_free.index(held))
            if split is None:
                store_rows(dk * scale, dk_ptr, b_kv, h_kv, n0, N, D, stride_dkb, stride_dkh, stride_dkn, stride_dkd)
                store_rows(dv, dv_ptr, b_kv, h_kv, n0, N, DV, stride_dvb, stride_dvh, stride_dvn, stride_dvd)
            elif count - before + split.fresh > 0:
                add_rows(dk, dk_ptr, owner, n0, N, split.fresh, D)
                add_rows(dv, dv_ptr, owner, n0, N, split.fresh, DV)
        if STORE:
            tma.store_wait(0)

    @gluon.jit
    def attention_dkdv_hopper_kernel(
        q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ds_desc, dk_ptr, dv_ptr, partial, full,
        score_tables, mask_tables, split, scale, unit, M, N, Hkv, G, tiles_n, batches, first, items,
        stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr, STORE: gl.constexpr,
        D: gl.constexpr, DV: gl.constexpr, SPARSE: gl.constexpr, HAS_FULL: gl.constexpr,
        TILES_M: gl.constexpr, TILES_N: gl.constexpr, SPARSE_M: gl.constexpr, EDGE_M: gl.constexpr,
        BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, ROWS: gl.constexpr,
        GROUPS: gl.constexpr, STAGES: gl.constexpr,
        KEPT: gl.constexpr, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """Every program takes items (tile of keys, key head, batch row of keys) a grid apart. STORE: keep ds."""
        dtype: gl.constexpr = q_desc.dtype
        q_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
        do_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DV], do_desc.layout)
        k_s = gl.allocate_shared_memory(dtype, [KEPT * GROUPS, 1, 1, ROWS, BLOCK_D], k_desc.layout)
        v_s = gl.allocate_shared_memory(dtype, [KEPT * GROUPS, 1, 1, ROWS, BLOCK_DV], v_desc.layout)
        lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse_desc.layout)
        delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout)
        if STORE:
            ds_s = gl.allocate_shared_memory(dtype, [2 * GROUPS, 1, ROWS, BLOCK_M], ds_desc.layout)
        else:
            ds_s = ()
        kv_ready = mbarrier.allocate_mbarrier(batch=KEPT)
        kv_free = mbarrier.allocate_mbarrier(batch=KEPT)
        q_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        do_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        free = mbarrier.allocate_mbarrier(batch=STAGES)
        for held in gl.static_range(KEPT):
            mbarrier.init(kv_ready.index(held), count=1)
            mbarrier.init(kv_free.index(held), count=GROUPS)
        for stage in gl.static_range(STAGES):
            mbarrier.init(q_ready.index(stage), count=1)
            mbarrier.init(do_ready.index(stage), count=1)
            mbarrier.init(free.index(stage), count=GROUPS)
        ring = (q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, kv_ready, kv_free, q_ready, do_ready, free)
        gl.warp_specialize(
            [
                (gradients, (
                    ring, ds_desc, dk_ptr, dv_ptr, partial, full, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
                    tiles_n, batches, first, items, split,
                    stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd, 0,
                    SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, D, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_M,
                    EDGE_M, BLOCK_M, BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES,
                    KEPT, TILES_FIRST, BACK_AND_FORTH,
                )),
                (gradients, (
                    ring, ds_desc, dk_ptr, dv_ptr, partial, full, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
                    tiles_n, batches, first, items, split,
                    stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd, 1,
                    SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, D, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_M,
                    EDGE_M, BLOCK_M, BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES,
                    KEPT, TILES_FIRST, BACK_AND_FORTH,
                )),
                (load_tiles, (
                    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ring, partial, full, M, Hkv, G, tiles_n, batches,
                    first, items, split, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_M, BLOCK_M, ROWS, GROUPS, STAGES,
                    KEPT, TILES_FIRST, BACK_AND_FORTH,
                )),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
