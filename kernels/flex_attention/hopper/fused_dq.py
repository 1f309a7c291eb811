"""How dq leaves ``fused_kernel``: a product of each group, handed over, and added in memory when its turn has come."""

from kernels.common import gluon as common_gluon

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

    from kernels.flex_attention.hopper.dealing import heads_of_unit, items_of_program
    from kernels.flex_attention.hopper.walks import entries_of, keys_in_bundle, visit

    @gluon.jit
    def partial_dq(k_s, ds_s, buffer, GROUP: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_D: gl.constexpr, WIDTH: gl.constexpr,
                   ROWS: gl.constexpr, GROUPS: gl.constexpr):  # fmt: skip
        """This group's [64, WIDTH] of dq^T = k^T ds, over the keys of all groups; in flight, two products."""
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
        dq = gl.zeros([64, WIDTH], gl.float32, layout)
        for group in gl.static_range(GROUPS):
            k = k_s.index(group).reshape([ROWS, BLOCK_D])
            ds = ds_s.index(buffer * GROUPS + group)
            if WIDTH == BLOCK_M:  # groups share out the columns of k
                dq = warpgroup_mma(k.slice(GROUP * 64, 64, dim=1).permute((1, 0)), ds, dq, use_acc=group > 0, is_async=True)
            else:  # or the queries
                dq = warpgroup_mma(k.permute((1, 0)), ds.slice(GROUP * WIDTH, WIDTH, dim=1), dq, use_acc=group > 0,
                                   is_async=True)  # fmt: skip
        return dq

    @gluon.jit
    def hand_over(dq, sinks, count, GROUP: gl.constexpr, GROUPS: gl.constexpr):
        """Give the dq of tile ``count`` to the warp that sends it."""
        dq_s, dq_ready, dq_free = sinks
        mbarrier.wait(dq_free.index(count % 2), (count // 2 + 1) & 1)
        dq_s.index(count % 2 * GROUPS + GROUP).store(dq)
        fence_async_shared()
        mbarrier.arrive(dq_ready.index(count % 2))

    @gluon.jit
    def send_tiles(
        dq_desc, counters, sinks, walk, M, Hkv, G, tiles_n, batches, first, items, split, BUNDLE, blocks,
        PARITY: gl.constexpr, SPARSE: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr, SPARSE_M: gl.constexpr,
        BLOCK_M: gl.constexpr, WIDTH: gl.constexpr, BLOCK_D: gl.constexpr, GROUPS: gl.constexpr, BACK_AND_FORTH: gl.constexpr,
    ):  # fmt: skip
        """One of the two warps that send dq: every second tile, when the tile's counter says that it is next."""
        dq_s, dq_ready, dq_free = sinks
        count = 0
        for turn in range(0, items_of_program(items, BACK_AND_FORTH)):
            tile, owner, pair, b_kv, h_kv = keys_in_bundle(turn, tiles_n, items, first, Hkv, split, BUNDLE, BACK_AND_FORTH)
            begin, stop, part = heads_of_unit(owner, batches * G, split)
            for j in range(begin, stop):
                b = b_kv * batches + j // G
                h = h_kv * G + j % G
                slot = pair * batches * G + j
                end, at = entries_of(b, h, tile, walk, M, SPARSE, TILES_M, TILES_N, BLOCK_M)
                for i in range((count + PARITY) % 2, end, 2):
                    m0, partial = visit(i, end, at, walk, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
                    rank = tile
                    if SPARSE:
                        rank = gl.load(walk[2] + at + i // TILES_M) * TILES_N + tile % TILES_N
                    counter = counters + slot * (blocks * WIDTH // BLOCK_M) + m0 // BLOCK_M
                    row = (slot * blocks + m0 // WIDTH) * BLOCK_D
                    mbarrier.wait(dq_ready.index(PARITY), (count + i) // 2 & 1)
                    if rank == 0:
                        for group in gl.static_range(GROUPS):
                            tma.async_store(dq_desc, [row + group * 64, 0], dq_s.index(PARITY * GROUPS + group))
                    else:
                        while gl.atomic_add(counter, 0, sem="acquire") != rank:
                            pass
                        for group in gl.static_range(GROUPS):
                            tma.async_atomic_add(dq_desc, [row + group * 64, 0], dq_s.index(PARITY * GROUPS + group))
                    tma.store_wait(0)
                    mbarrier.arrive(dq_free.index(PARITY))
                    tma.store_wait(0, read_only=False)
                    gl.barrier()
                    gl.atomic_add(counter, 1, sem="release")
                count += end
