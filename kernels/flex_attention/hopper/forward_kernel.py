"""Forward pass for Hopper GPUs, warp-specialised: copying, multiplying and the softmax run side by side.

One warp asks the copy engine for tiles of keys and values; two or three groups of four warps own 64 queries each. A group
asks for the scores of the next tile, and for the values of this one, before it takes the softmax, so that the tensor cores
work meanwhile:

    S(j) = q k(j)^T, in flight       a <- a + p(j-1) v(j-1), in flight
    p(j) = the online softmax of S(j)
    a <- a alpha(j)

Programs stay: while a group stores one tile of queries, the next tile's keys are on their way. The arithmetic is
``plain.attention_forward_kernel``'s, whose mods, masks and lists it takes.
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

    from kernels.flex_attention.hopper.barriers import address, release
    from kernels.flex_attention.hopper.dealing import (
        item_of,
        items_of_program,
        lists_of,
        place,
        row_of_walk,
        tiles_unseen,
    )
    from kernels.flex_attention.hopper.softmax import known_here, masked_logits, row_sums, softmax_step
    from kernels.flex_attention.hopper.tiles import store_rows

    @gluon.jit
    def copy_tile(desc, b, h, row, buffers, ready, free, count, STAGES: gl.constexpr):
        """Ask for one tile, into the ring's next buffer, as soon as every group has released it."""
        stage = count % STAGES
        mbarrier.wait(free.index(stage), (count // STAGES + 1) & 1)
        mbarrier.expect(ready.index(stage), desc.nbytes_per_cta)
        tma.async_load(desc, [b, h, row, 0], ready.index(stage), buffers.index(stage))

    @gluon.jit
    def load_tiles(
        q_desc, k_desc, v_desc, ring, partial, full, N, Hkv, G, tiles_m, items, shared,
        SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_N: gl.constexpr, BLOCK_N: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
        KEPT: gl.constexpr, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr, LEAN: gl.constexpr,
        BACKWARDS: gl.constexpr,
    ):  # fmt: skip
        """The copying warp: queries, then keys and values, in the order in which they are used."""
        q_s, k_s, v_s, q_ready, q_free, k_ready, k_free, v_ready, v_free, turns = ring
        keys_free = k_free
        if LEAN:
            keys_free = v_free  # a tile's keys and values are released together
        count = 0
        visits = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            item = turn * gl.num_programs(0) + place(turn, BACK_AND_FORTH)
            b, h_kv, h, tile = item_of(item, items, tiles_m, G, Hkv, TILES_FIRST)
            some, end, at, at_full = lists_of(
                b, h, tile // TILES_M, partial, full, N, SPARSE, HAS_FULL, TILES_N, BLOCK_N
            )
            if end > 0:
                held = visits % KEPT
                mbarrier.wait(q_free.index(held), (visits // KEPT + 1) & 1)
                mbarrier.expect(q_ready.index(held), GROUPS * q_desc.nbytes_per_cta)
                for group in gl.static_range(GROUPS):
                    row = (tile * GROUPS + group) * ROWS
                    tma.async_load(q_desc, [b, h, row, 0], q_ready.index(held), q_s.index(held * GROUPS + group))
                visits += 1
                n0 = row_of_walk(0, some, end, at, at_full, SPARSE, SPARSE_N, TILES_N, BLOCK_N, BACKWARDS)
                for i in range(0, end):
                    following = row_of_walk(i + 1, some, end, at, at_full, SPARSE, SPARSE_N, TILES_N, BLOCK_N, BACKWARDS)
                    copy_tile(k_desc, b // shared, h_kv, n0, k_s, k_ready, keys_free, count, STAGES)
                    copy_tile(v_desc, b // shared, h_kv, n0, v_s, v_ready, v_free, count, STAGES)
                    n0 = following
                    count += 1

    @gluon.jit
    def let_go(tiles, count, ring, addresses, STAGES: gl.constexpr, LEAN: gl.constexpr):
        """Release the walk's next tiles unused, as they come; the number of the tile behind them."""
        q_s, k_s, v_s, q_ready, q_free, k_ready, k_free, v_ready, v_free, turns = ring
        gl.static_assert(LEAN, "keys have a barrier of their own")
        for _ in range(0, tiles):
            stage = count % STAGES
            mbarrier.wait(k_ready.index(stage), count // STAGES & 1)
            mbarrier.wait(v_ready.index(stage), count // STAGES & 1)
            release(v_free, addresses[1], stage, LEAN)
            count += 1
        return count

    @gluon.jit
    def attend_tiles(
        begin, end, stop, first, p, acc, l, top, count, q, ring, addresses, some, at, at_full,
        N, scale, unit, b, h, m, offs_n, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, MASK_MOD: gl.constexpr, EDGE_N: gl.constexpr, SAFE: gl.constexpr,
        SPARSE: gl.constexpr, SPARSE_N: gl.constexpr, TILES_N: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
        layout_p: gl.constexpr, layout_r: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr,
        OVERLAP: gl.constexpr, LEAN: gl.constexpr, BACKWARDS: gl.constexpr, visits,
    ):  # fmt: skip
        """Tiles begin ... end - 1. On entry p is that of tile begin - 1, whose values are still to be added.

        TURNS: the groups ask for their products in turn, so that one multiplies while the others take their softmax.
        """
        layout_s: gl.constexpr = m.type.layout
        q_s, k_s, v_s, q_ready, q_free, k_ready, k_free, v_ready, v_free, turns = ring
        for i in range(begin, end):
            following = row_of_walk(i + 1, some, stop, at, at_full, SPARSE, SPARSE_N, TILES_N, BLOCK_N, BACKWARDS)
            stage = count % STAGES
            before = (count - 1) % STAGES
            mbarrier.wait(k_ready.index(stage), count // STAGES & 1)
            if TURNS:
                mbarrier.wait(turns.index(GROUP), (count - visits + (1 if GROUP else 0)) & 1)
            s = gl.zeros([p.shape[0], BLOCK_N], gl.float32, layout_s)
            k = k_s.index(stage).reshape([BLOCK_N, q.shape[1]])
            s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)
            mbarrier.wait(v_ready.index(before), (count - 1) // STAGES & 1)
            v = v_s.index(before).reshape([BLOCK_N, acc.shape[1]])
            acc = warpgroup_mma(p, v, acc, is_async=True)
            if TURNS:
                release(turns, addresses[2], (GROUP + 1) % GROUPS, LEAN)
            s = warpgroup_mma_wait(1, deps=(s,))
            if not LEAN:
                mbarrier.arrive(k_free.index(stage))
            x = masked_logits(
                s, first, None, N, scale, b, h, m, offs_n, score_tables, mask_tables, SCORE_MOD, MASK_MOD, EDGE_N
            )
            weights, alpha, l, top = softmax_step(x, l, top, unit, SAFE, LEAN)
            if OVERLAP:
                l = known_here(l)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            release(v_free, addresses[1], before, LEAN)
            acc = acc * gl.expand_dims(gl.convert_layout(alpha, layout_r), 1)
            p = gl.convert_layout(weights.to(v.dtype), layout_p)
            first = following
            count += 1
        return first, p, acc, l, top, count

    @gluon.jit
    def attend(
        given, GROUP: gl.constexpr, SCORE_MOD: gl.constexpr, MASK_MOD: gl.constexpr, DV: gl.constexpr,
        SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_N: gl.constexpr, EDGE_N: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
        BLOCK_DV: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
        TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr, TURNS: gl.constexpr, OVERLAP: gl.constexpr,
        OUT: gl.constexpr, KEPT: gl.constexpr, LEAN: gl.constexpr, BACKWARDS: gl.constexpr,
    ):  # fmt: skip
        """A group of four warps: 64 queries of every item."""
        layout_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
        layout_o: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_DV, 16])
        layout_p: gl.constexpr = gl.DotOperandLayout(0, layout_o, 2)
        layout_r: gl.constexpr = gl.SliceLayout(1, layout_o)
        SAFE: gl.constexpr = SCORE_MOD is None and MASK_MOD is None
        EDGE_REST: gl.constexpr = EDGE_N and (SPARSE or not BACKWARDS)  # else only the first tile can reach past the end
        ring, o_s, o_desc, o_ptr, lse_ptr, top_ptr, partial, full, score_tables, mask_tables = given[:10]
        scale, unit, M, N, Hkv, G, tiles_m, items, reach, stride_ob, stride_oh, stride_om, stride_od = given[10:]
        q_s, k_s, v_s, q_ready, q_free, k_ready, k_free, v_ready, v_free, turns = ring
        offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout_s))
        addresses = address(q_free, LEAN), address(v_free, LEAN), address(turns, LEAN)
        count = 0
        visits = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            item = turn * gl.num_programs(0) + place(turn, BACK_AND_FORTH)
            b, h_kv, h, tile = item_of(item, items, tiles_m, G, Hkv, TILES_FIRST)
            some, end, at, at_full = lists_of(
                b, h, tile // TILES_M, partial, full, N, SPARSE, HAS_FULL, TILES_N, BLOCK_N
            )
            m0 = (tile * GROUPS + GROUP) * ROWS
            m = gl.minimum(gl.expand_dims(m0 + gl.arange(0, ROWS, gl.SliceLayout(1, layout_s)), 1), M - 1)
            acc = gl.zeros([ROWS, BLOCK_DV], gl.float32, layout_o)
            l = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout_s))
            top = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, layout_s))
            if end > 0:
                # The first tile, partial or full: only its scores, in wait for nothing.
                held = visits % KEPT
                q = q_s.index(held * GROUPS + GROUP).reshape([ROWS, BLOCK_D])
                mbarrier.wait(q_ready.index(held), visits // KEPT & 1)
                unseen = 0
                if BACKWARDS and SPARSE:
                    last_query = gl.minimum(m0 + ROWS, M) - 1
                    unseen = tiles_unseen(some, end, at, last_query, reach, SPARSE_N, TILES_N, BLOCK_N)
                    count = let_go(unseen, count, ring, addresses, STAGES, LEAN)
                n0 = row_of_walk(unseen, some, end, at, at_full, SPARSE, SPARSE_N, TILES_N, BLOCK_N, BACKWARDS)
                first = row_of_walk(unseen + 1, some, end, at, at_full, SPARSE, SPARSE_N, TILES_N, BLOCK_N, BACKWARDS)
                stage = count % STAGES
                mbarrier.wait(k_ready.index(stage), count // STAGES & 1)
                s = gl.zeros([ROWS, BLOCK_N], gl.float32, layout_s)
                k = k_s.index(stage).reshape([BLOCK_N, BLOCK_D])
                s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(0, deps=(s,))
                if not LEAN:
                    mbarrier.arrive(k_free.index(stage))
                x = masked_logits(
                    s, n0, some == unseen, N, scale, b, h, m, offs_n, score_tables, mask_tables, SCORE_MOD, MASK_MOD, EDGE_N
                )
                sums = l
                if LEAN:
                    sums = row_sums(gl.zeros([ROWS, BLOCK_N], gl.float32, layout_s), LEAN)
                weights, alpha, sums, top = softmax_step(x, sums, top, unit, SAFE, LEAN)
                p = gl.convert_layout(weights.to(v_s.dtype), layout_p)
                count += 1
                begin = unseen + 1  # with no mask mod a partial block is as good as a full one
                if MASK_MOD is not None:
                    first, p, acc, sums, top, count = attend_tiles(
                        begin, some, end, first, p, acc, sums, top, count, q, ring, addresses,
                        some, at, at_full, N, scale, unit, b, h, m, offs_n, score_tables, mask_tables,
                        SCORE_MOD, MASK_MOD, EDGE_N, SAFE, SPARSE, SPARSE_N, TILES_N, BLOCK_N, STAGES, layout_p, layout_r,
                        GROUP, GROUPS, TURNS, OVERLAP, LEAN, BACKWARDS, visits,
                    )  # fmt: skip
                    begin = gl.maximum(some, begin)
                first, p, acc, sums, top, count = attend_tiles(
                    begin, end, end, first, p, acc, sums, top, count, q, ring, addresses,
                    some, at, at_full, N, scale, unit, b, h, m, offs_n, score_tables, mask_tables,
                    SCORE_MOD, None, EDGE_REST, SAFE, SPARSE, SPARSE_N, TILES_N, BLOCK_N, STAGES, layout_p, layout_r,
                    GROUP, GROUPS, TURNS, OVERLAP, LEAN, BACKWARDS, visits,
                )  # fmt: skip
                release(q_free, addresses[0], visits % KEPT, LEAN)
                visits += 1
                before = (count - 1) % STAGES
                mbarrier.wait(v_ready.index(before), (count - 1) // STAGES & 1)
                acc = warpgroup_mma(p, v_s.index(before).reshape([BLOCK_N, BLOCK_DV]), acc, is_async=True)
                l = sums
                if LEAN:
                    l = gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, layout_s))
                acc = warpgroup_mma_wait(0, deps=(acc,))
                release(v_free, addresses[1], before, LEAN)

            # A row without any allowed key: o = 0, lse = -inf.
            l = gl.where(l == 0.0, 1.0, l)
            rows = m0 + gl.arange(0, ROWS, gl.SliceLayout(1, layout_s))
            lse_rows = (b.to(gl.int64) * Hkv * G + h) * M + rows
            gl.store(lse_ptr + lse_rows, top + gl.log2(l), mask=rows < M)
            if top_ptr is not None:
                gl.store(top_ptr + lse_rows, top, mask=rows < M)
            o = acc * gl.expand_dims(gl.convert_layout(1.0 / l, layout_r), 1)
            if o_desc is not None and BLOCK_DV > OUT:
                # Half the columns at a time, through half the memory.
                left, right = o.to(v_s.dtype).reshape([ROWS, 2, OUT]).permute((0, 2, 1)).split()
                send_rows(left, o_s.index(GROUP), o_desc, b, h, m0, 0)
                send_rows(right, o_s.index(GROUP), o_desc, b, h, m0, OUT)
            elif o_desc is not None:
                send_rows(o.to(v_s.dtype), o_s.index(GROUP), o_desc, b, h, m0, 0)
            else:
                store_rows(o, o_ptr, b, h, m0, M, DV, stride_ob, stride_oh, stride_om, stride_od)
        if o_desc is not None:
            tma.store_wait(0)

    @gluon.jit
    def send_rows(x, buffer, desc, b, h, m0, column):
        """Rows m0 ... of one head, from ``column`` on, by TMA."""
        tma.store_wait(0)  # what was sent before has left the buffer
        buffer.reshape([x.shape[0], x.shape[1]]).store(x)
        fence_async_shared()
        tma.async_store(desc, [b, h, m0, column], buffer)

    @gluon.jit
    def attention_forward_hopper_kernel(
        q_desc, k_desc, v_desc, o_desc, o_ptr, lse_ptr, top_ptr, partial, full, score_tables, mask_tables,
        scale, unit, M, N, Hkv, G, tiles_m, items, shared, reach, stride_ob, stride_oh, stride_om, stride_od,
        SCORE_MOD: gl.constexpr, MASK_MOD: gl.constexpr, DV: gl.constexpr,
        SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
        SPARSE_N: gl.constexpr, EDGE_N: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
        BLOCK_DV: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
        TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr, REGISTERS: gl.constexpr, TURNS: gl.constexpr,
        OVERLAP: gl.constexpr, OUT: gl.constexpr, KEPT: gl.constexpr, LEAN: gl.constexpr, BACKWARDS: gl.constexpr,
    ):  # fmt: skip
        """Every program takes items (tile of queries, head, batch row) a grid apart, until there are none left.

        LEAN: warps arrive at barriers one by one, keys are released with their values, and the threads of a row add up its
        denominator once, at the end. BACKWARDS: see ``row_of_walk``; groups leave out the tiles that are beyond ``reach``,
        the mask's ends ``(behind, ahead)``.
        """
        dtype: gl.constexpr = q_desc.dtype
        q_s = gl.allocate_shared_memory(dtype, [KEPT * GROUPS, 1, 1, ROWS, BLOCK_D], q_desc.layout)
        k_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
        v_s = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_DV], v_desc.layout)
        if o_desc is not None:
            o_s = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, OUT], o_desc.layout)
        else:
            o_s = ()
        q_ready = mbarrier.allocate_mbarrier(batch=KEPT)
        q_free = mbarrier.allocate_mbarrier(batch=KEPT)
        k_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        k_free = mbarrier.allocate_mbarrier(batch=STAGES)
        v_ready = mbarrier.allocate_mbarrier(batch=STAGES)
        v_free = mbarrier.allocate_mbarrier(batch=STAGES)
        turns = mbarrier.allocate_mbarrier(batch=GROUPS)
        EACH: gl.constexpr = 4 if LEAN else 1
        for group in gl.static_range(GROUPS):
            mbarrier.init(turns.index(group), count=EACH)
        for held in gl.static_range(KEPT):
            mbarrier.init(q_ready.index(held), count=1)
            mbarrier.init(q_free.index(held), count=GROUPS * EACH)
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_ready.index(stage), count=1)
            mbarrier.init(k_free.index(stage), count=GROUPS * EACH)
            mbarrier.init(v_ready.index(stage), count=1)
            mbarrier.init(v_free.index(stage), count=GROUPS * EACH)
        ring = (q_s, k_s, v_s, q_ready, q_free, k_ready, k_free, v_ready, v_free, turns)
        given = (
            ring, o_s, o_desc, o_ptr, lse_ptr, top_ptr, partial, full, score_tables, mask_tables,
            scale, unit, M, N, Hkv, G, tiles_m, items, reach, stride_ob, stride_oh, stride_om, stride_od,
        )  # fmt: skip
        if GROUPS == 2:
            gl.warp_specialize(
                [
                    (attend, (
                        given, 0, SCORE_MOD, MASK_MOD, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_N, EDGE_N, BLOCK_N,
                        BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES, TILES_FIRST, BACK_AND_FORTH, TURNS, OVERLAP, OUT, KEPT, LEAN,
                        BACKWARDS,
                    )),
                    (attend, (
                        given, 1, SCORE_MOD, MASK_MOD, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_N, EDGE_N, BLOCK_N,
                        BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES, TILES_FIRST, BACK_AND_FORTH, TURNS, OVERLAP, OUT, KEPT, LEAN,
                        BACKWARDS,
                    )),
                    (load_tiles, (
                        q_desc, k_desc, v_desc, ring, partial, full, N, Hkv, G, tiles_m, items, shared, SPARSE, HAS_FULL,
                        TILES_M, TILES_N, SPARSE_N, BLOCK_N, ROWS, GROUPS, STAGES, KEPT, TILES_FIRST, BACK_AND_FORTH,
                        LEAN, BACKWARDS,
                    )),
                ],
                [4, 1],
                [REGISTERS, 24],
            )  # fmt: skip
        else:
            gl.static_assert(GROUPS == 3)
            gl.warp_specialize(
                [
                    (attend, (
                        given, 0, SCORE_MOD, MASK_MOD, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_N, EDGE_N, BLOCK_N,
                        BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES, TILES_FIRST, BACK_AND_FORTH, TURNS, OVERLAP, OUT, KEPT, LEAN,
                        BACKWARDS,
                    )),
                    (attend, (
                        given, 1, SCORE_MOD, MASK_MOD, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_N, EDGE_N, BLOCK_N,
                        BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES, TILES_FIRST, BACK_AND_FORTH, TURNS, OVERLAP, OUT, KEPT, LEAN,
                        BACKWARDS,
                    )),
                    (attend, (
                        given, 2, SCORE_MOD, MASK_MOD, DV, SPARSE, HAS_FULL, TILES_M, TILES_N, SPARSE_N, EDGE_N, BLOCK_N,
                        BLOCK_D, BLOCK_DV, ROWS, GROUPS, STAGES, TILES_FIRST, BACK_AND_FORTH, TURNS, OVERLAP, OUT, KEPT, LEAN,
                        BACKWARDS,
                    )),
                    (load_tiles, (
                        q_desc, k_desc, v_desc, ring, partial, full, N, Hkv, G, tiles_m, items, shared, SPARSE, HAS_FULL,
                        TILES_M, TILES_N, SPARSE_N, BLOCK_N, ROWS, GROUPS, STAGES, KEPT, TILES_FIRST, BACK_AND_FORTH,
                        LEAN, BACKWARDS,
                    )),
                ],
                [4, 4, 1],
                [REGISTERS, REGISTERS, 24],
            )  # fmt: skip
