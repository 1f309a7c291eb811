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
        SPARSE_M: gl.constexpr, BLOCK_M: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
        TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """The copying warp: an item's keys and values, then tiles of queries with lse, and of gradients with delta."""
        q_s, do_s, k_s, v_s, lse_s, delta_s, k_ready, k_free, v_ready, v_free, q_ready, q_free, do_ready, do_free = ring
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_of_program(
                turn, tiles_n, items, first, Hkv, split, TILES_FIRST, BACK_AND_FORTH
            )
            mbarrier.wait(k_free, (turn + 1) & 1)
            mbarrier.expect(k_ready, k_desc.nbytes_per_cta)
            tma.async_load(k_desc, [b_kv, h_kv, tile * ROWS, 0], k_ready, k_s)
            mbarrier.wait(v_free, (turn + 1) & 1)
            mbarrier.expect(v_ready, v_desc.nbytes_per_cta)
            tma.async_load(v_desc, [b_kv, h_kv, tile * ROWS, 0], v_ready, v_s)
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                b, h, some, at, at_full, share, m0 = queries_of_keys(
                    j, tile // TILES_N, b_kv, h_kv, batches, G, partial, full, M, part, split,
                    SPARSE, HAS_FULL, SPARSE_M, TILES_M, BLOCK_M,
                )  # fmt: skip
                for i in range(share[0], share[2]):
                    following = first_row(i + 1, some, share[2], at, at_full, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
                    stage = count % STAGES
                    mbarrier.wait(q_free.index(stage), (count // STAGES + 1) & 1)
                    mbarrier.expect(q_ready.index(stage), q_desc.nbytes_per_cta + lse_desc.nbytes_per_cta)
                    tma.async_load(q_desc, [b, h, m0, 0], q_ready.index(stage), q_s.index(stage))
                    tma.async_load(lse_desc, [b * Hkv * G + h, m0], q_ready.index(stage), lse_s.index(stage))
                    mbarrier.wait(do_free.index(stage), (count // STAGES + 1) & 1)
                    mbarrier.expect(do_ready.index(stage), do_desc.nbytes_per_cta + delta_desc.nbytes_per_cta)
                    tma.async_load(do_desc, [b, h, m0, 0], do_ready.index(stage), do_s.index(stage))
                    tma.async_load(delta_desc, [b * Hkv * G + h, m0], do_ready.index(stage), delta_s.index(stage))
                    m0 = following
                    count += 1

    @gluon.jit
    def dv_tiles(
        begin, end, stop, m0, dv, count, k, ring, exchange, some, at, at_full,
        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr,
        EDGE_M: gl.constexpr, SPARSE: gl.constexpr, SPARSE_M: gl.constexpr, TILES_M: gl.constexpr,
        BLOCK_M: gl.constexpr, STAGES: gl.constexpr, layout_a: gl.constexpr,
    ):  # fmt: skip
        """Tiles begin ... end - 1 of queries, in the first group. On entry and at the end no product is in flight."""
        layout_s: gl.constexpr = n.type.layout
        q_s, do_s, k_s, v_s, lse_s, delta_s, k_ready, k_free, v_ready, v_free, q_ready, q_free, do_ready, do_free = ring
        t_s, t_ready, t_free = exchange
        for i in range(begin, end):
            following = first_row(i + 1, some, stop, at, at_full, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
            stage = count % STAGES
            phase = count // STAGES & 1
            mbarrier.wait(q_ready.index(stage), phase)
            s = gl.zeros([k.shape[0], BLOCK_M], gl.float32, layout_s)
            q = q_s.index(stage).reshape([BLOCK_M, k.shape[1]])
            s = warpgroup_mma(k, q.permute((1, 0)), s, use_acc=False, is_async=True)
            lse = gl.expand_dims(lse_s.index(stage).reshape([BLOCK_M]).load(gl.SliceLayout(0, layout_s)), 0)
            s = warpgroup_mma_wait(0, deps=(s,))
            mbarrier.arrive(q_free.index(stage))

            x, m = transposed_logits(
                s, m0, offs_m, M, scale, b, h, n, score_tables, mask_tables, SCORE_MOD, MASK_MOD, EDGE_M
            )
            p = gl.exp2(x * unit - lse)
            mbarrier.wait(do_ready.index(stage), phase)
            do = do_s.index(stage).reshape([BLOCK_M, dv.shape[1]])
            dv = warpgroup_mma(gl.convert_layout(p.to(do.dtype), layout_a), do, dv, is_async=True)
            t = p
            if SCORE_MOD is not None:
                t = gl.where(x != float("-inf"), SCORE_GRADIENT(s * scale, b, h, m, n, p, score_tables), 0.0)
            mbarrier.wait(t_free, (count + 1) & 1)
            t_s.store(t)
            mbarrier.arrive(t_ready)
            dv = warpgroup_mma_wait(0, deps=(dv,))
            mbarrier.arrive(do_free.index(stage))
            m0 = following
            count += 1
        return m0, dv, count

    @gluon.jit
    def make_dv(
        ring, exchange, dv_ptr, partial, full, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
        tiles_n, batches, first, items, split, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr, DV: gl.constexpr,
        SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_M: gl.constexpr, EDGE_M: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr,
        ROWS: gl.constexpr, STAGES: gl.constexpr, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """The first group: dv of 64 keys of every item, over the queries of all heads (and batch rows) that share them."""
        layout_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
        layout_v: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DV, 16])
        layout_a: gl.constexpr = gl.DotOperandLayout(0, layout_v, 2)
        q_s, do_s, k_s, v_s, lse_s, delta_s, k_ready, k_free, v_ready, v_free, q_ready, q_free, do_ready, do_free = ring
        k = k_s.reshape([ROWS, BLOCK_D])
        offs_m = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout_s))
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_of_program(
                turn, tiles_n, items, first, Hkv, split, TILES_FIRST, BACK_AND_FORTH
            )
            n0 = tile * ROWS
            n = gl.minimum(gl.expand_dims(n0 + gl.arange(0, ROWS, gl.SliceLayout(1, layout_s)), 1), N - 1)
            dv = gl.zeros([ROWS, BLOCK_DV], gl.float32, layout_v)
            mbarrier.wait(k_ready, turn & 1)
            before = count
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                b, h, some, at, at_full, share, m0 = queries_of_keys(
                    j, tile // TILES_N, b_kv, h_kv, batches, G, partial, full, M, part, split,
                    SPARSE, HAS_FULL, SPARSE_M, TILES_M, BLOCK_M,
                )  # fmt: skip
                unmasked = share[0]  # with no mask mod a partial block is as good as a full one
                if MASK_MOD is not None:
                    unmasked = share[1]
                    m0, dv, count = dv_tiles(
                        share[0], share[1], share[2], m0, dv, count, k, ring, exchange, some, at, at_full,
                        M, scale, unit, b, h, n, offs_m, score_tables, mask_tables, SCORE_MOD, SCORE_GRADIENT, MASK_MOD,
                        EDGE_M, SPARSE, SPARSE_M, TILES_M, BLOCK_M, STAGES, layout_a,
                    )  # fmt: skip
                m0, dv, count = dv_tiles(
                    unmasked, share[2], share[2], m0, dv, count, k, ring, exchange, some, at, at_full,
                    M, scale, unit, b, h, n, offs_m, score_tables, mask_tables, SCORE_MOD, SCORE_GRADIENT, None,
                    EDGE_M, SPARSE, SPARSE_M, TILES_M, BLOCK_M, STAGES, layout_a,
                )  # fmt: skip
            mbarrier.arrive(k_free)
            if split is None:
                store_rows(dv, dv_ptr, b_kv, h_kv, n0, N, DV, stride_dvb, stride_dvh, stride_dvn, stride_dvd)
            elif count - before + split.fresh > 0:
                add_rows(dv, dv_ptr, owner, n0, N, split.fresh, DV)

    @gluon.jit
    def make_dk(
        ring, exchange, ds_s, ds_desc, dk_ptr, partial, full, scale, M, N, Hkv, G,
        tiles_n, batches, first, items, split, stride_dkb, stride_dkh, stride_dkn, stride_dkd,
        STORE: gl.constexpr, D: gl.constexpr,
        SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_M: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr,
        ROWS: gl.constexpr, STAGES: gl.constexpr, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """The second group: dk of the same keys, and ds on its way to the workspace."""
        layout_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
        layout_k: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
        layout_a: gl.constexpr = gl.DotOperandLayout(0, layout_k, 2)
        q_s, do_s, k_s, v_s, lse_s, delta_s, k_ready, k_free, v_ready, v_free, q_ready, q_free, do_ready, do_free = ring
        t_s, t_ready, t_free = exchange
        v = v_s.reshape([ROWS, BLOCK_DV])
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_of_program(
                turn, tiles_n, items, first, Hkv, split, TILES_FIRST, BACK_AND_FORTH
            )
            n0 = tile * ROWS
            dk = gl.zeros([ROWS, BLOCK_D], gl.float32, layout_k)
            mbarrier.wait(v_ready, turn & 1)
            before = count
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                slot = slot_of(pair, j, batches, G, split)
                b, h, some, at, at_full, share, m0 = queries_of_keys(
                    j, tile // TILES_N, b_kv, h_kv, batches, G, partial, full, M, part, split,
                    SPARSE, HAS_FULL, SPARSE_M, TILES_M, BLOCK_M,
                )  # fmt: skip
                for i in range(share[0], share[2]):
                    following = first_row(i + 1, some, share[2], at, at_full, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
                    stage = count % STAGES
                    phase = count // STAGES & 1
                    mbarrier.wait(do_ready.index(stage), phase)
                    dp = gl.zeros([ROWS, BLOCK_M], gl.float32, layout_s)
                    do = do_s.index(stage).reshape([BLOCK_M, BLOCK_DV])
                    dp = warpgroup_mma(v, do.permute((1, 0)), dp, use_acc=False, is_async=True)
                    delta = gl.expand_dims(delta_s.index(stage).reshape([BLOCK_M]).load(gl.SliceLayout(0, layout_s)), 0)
                    dp = warpgroup_mma_wait(0, deps=(dp,))
                    mbarrier.arrive(do_free.index(stage))
                    mbarrier.wait(t_ready, count & 1)
                    ds = (t_s.load(layout_s) * (dp - delta)).to(q_s.dtype)
                    mbarrier.arrive(t_free)
                    mbarrier.wait(q_ready.index(stage), phase)
                    q = q_s.index(stage).reshape([BLOCK_M, BLOCK_D])
                    dk = warpgroup_mma(gl.convert_layout(ds, layout_a), q, dk, is_async=True)
                    if STORE:
                        mine = ds_s.index(count % 2)
                        tma.store_wait(1)  # the one before last has left this buffer
                        mine.reshape([ROWS, BLOCK_M]).store(ds)
                        fence_async_shared()
                        tma.async_store(ds_desc, [slot, n0, column_of(m0, split)], mine)
                    dk = warpgroup_mma_wait(0, deps=(dk,))
                    mbarrier.arrive(q_free.index(stage))
                    m0 = following
                    count += 1
            mbarrier.arrive(v_free)
            if split is None:
                store_rows(dk * scale, dk_ptr, b_kv, h_kv, n0, N, D, stride_dkb, stride_dkh, stride_dkn, stride_dkd)
            elif count - before + split.fresh > 0:
                add_rows(dk, dk_ptr, owner, n0, N, split.fresh, D)
        if STORE:
            tma.store_wait(0)

    @gluon.jit
    def attention_dkdv_wide_hopper_kernel(
        q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ds_desc, dk_ptr, dv_ptr, partial, full,
        score_tables, mask_tables, split, scale, unit, M, N, Hkv, G, tiles_n, batches, first, items,
        stride_dkb, stride_dkh, stride_dkn, stride_dkd, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
        SCORE_MOD: gl.constexpr, SCORE_GRADIENT: gl.constexpr, MASK_MOD: gl.constexpr, STORE: gl.constexpr,
        D: gl.constexpr, DV: gl.constexpr, SPARSE: gl.constexpr, HAS_FULL: gl.constexpr,
        TILES_M: gl.constexpr, TILES_N: gl.constexpr, SPARSE_M: gl.constexpr, EDGE_M: gl.constexpr,
        BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_DV: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
        TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """Every program takes items (tile of 64 keys, key head, batch row of keys) a grid apart. STORE: keep ds."""
        dtype: gl.constexpr = q_desc.dtype
        q_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
        do_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_DV], do_desc.layout)
        k_s = gl.allocate_shared_memory(dtype, [1, 1, ROWS, BLOCK_D], k_desc.layout)
        v_s = gl.allocate_shared_memory(dtype, [1, 1, ROWS, BLOCK_DV], v_desc.layout)
        lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse_desc.layout)
        delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout)
        layout_t: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK_M], gl.float32)
        t_s = gl.allocate_shared_memory(gl.float32, [ROWS, BLOCK_M], layout_t)
        if STORE:
            ds_s = gl.allocate_shared_memory(dtype, [2, 1, ROWS, BLOCK_M], ds_desc.layout)
        else:
            ds_s = ()
        k_ready = mbarrier.allocate_mbarrier()
        k_free = mbarrier.allocate_mbarrier()
        v_ready = mbarrier.allocate_mbarrier()
        v_free = mbarrier.allocate_mbarrier()
        t_ready = mbarrier.allocate_mbarrier()
        t_free = mbarrier.allocate_mbarrier()
        q_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        q_free = mbarrier.allocate_mbarrier(batch=STAGES)
        do_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        do_free = mbarrier.allocate_mbarrier(batch=STAGES)
        mbarrier.init(k_ready, count=1)
        mbarrier.init(k_free, count=1)
        mbarrier.init(v_ready, count=1)
        mbarrier.init(v_free, count=1)
        mbarrier.init(t_ready, count=1)
        mbarrier.init(t_free, count=1)
        for stage in gl.static_range(STAGES):
            mbarrier.init(q_ready.index(stage), count=1)
            mbarrier.init(q_free.index(stage), count=2)
            mbarrier.init(do_ready.index(stage), count=1)
            mbarrier.init(do_free.index(stage), count=2)
        ring = (q_s, do_s, k_s, v_s, lse_s, delta_s, k_ready, k_free, v_ready, v_free, q_ready, q_free, do_ready, do_free)
        exchange = (t_s, t_ready, t_free)
        gl.warp_specialize(
            [
                (make_dv, (
                    ring, exchange, dv_ptr, partial, full, score_tables, mask_tables, scale, unit, M, N, Hkv, G,
                    tiles_n, batches, first, items, split, stride_dvb, stride_dvh, stride_dvn, stride_dvd,
                    SCORE_MOD, SCORE_GRADIENT, MASK_MOD, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_M, EDGE_M,
                    BLOCK_M, BLOCK_D, BLOCK_DV, ROWS, STAGES, TILES_FIRST, BACK_AND_FORTH,
                )),
                (make_dk, (
                    ring, exchange, ds_s, ds_desc, dk_ptr, partial, full, scale, M, N, Hkv, G,
                    tiles_n, batches, first, items, split, stride_dkb, stride_dkh, stride_dkn, stride_dkd, STORE, D,
                    SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_M,
                    BLOCK_M, BLOCK_D, BLOCK_DV, ROWS, STAGES, TILES_FIRST, BACK_AND_FORTH,
                )),
                (load_tiles, (
                    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, ring, partial, full, M, Hkv, G, tiles_n, batches,
                    first, items, split, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_M, BLOCK_M, ROWS, STAGES,
                    TILES_FIRST, BACK_AND_FORTH,
                )),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
