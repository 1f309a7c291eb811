"""Forward pass for Hopper GPUs, warp-specialised: copying, multiplying and the softmax run side by side.

One warp asks the copy engine for tiles of keys and values; two or three groups of four warps own 64 queries each. A group
asks for the scores of the next tile, and for the values of this one, before it takes the softmax, so that the tensor cores
work meanwhile:

    S(j) = q k(j)^T, in flight       a <- a + p(j-1) v(j-1), in flight
    p(j) = the online softmax of S(j)
    a <- a alpha(j)

Programs stay: while a group stores one tile of queries, the next tile's keys are on their way. The arithmetic is
the plain kernel's, whose mods, masks and lists it takes.
"""

from collections import namedtuple

from kernels.common import gluon as common_gluon
from kernels.flex_attention.mods.device import COMPILED
from kernels.flex_attention.plain import logits

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

# What the kernel is compiled for, ``T`` in it.
#
# DV: columns of a head of values. TILES_M, TILES_N: tiles in a block of the mask, SPARSE_N: its keys. EDGE_N: whether a tile
# reaches past the last key. BLOCK_N: keys of a tile; BLOCK_D, BLOCK_DV: its columns; ROWS: queries of a group of warps, of
# which there are GROUPS. STAGES: tiles of keys in shared memory, KEPT: items' queries, OUT: columns of o. REGISTERS: of a
# thread of a group. TURNS: the groups ask for their products in turn. OVERLAP: whether values' products are waited for
# behind the softmax. LEAN: warps arrive at barriers one by one, keys are released with their values, and the threads of a
# row add up its denominator once, at the end. BACKWARDS: see ``first_key``. TILES_FIRST, SERPENTINE: the items' order.
Tiling = namedtuple(
    "Tiling",
    "DV TILES_M TILES_N SPARSE_N EDGE_N BLOCK_N BLOCK_D BLOCK_DV ROWS GROUPS "
    "STAGES KEPT OUT REGISTERS TURNS OVERLAP LEAN BACKWARDS TILES_FIRST SERPENTINE",
    defaults=(False, False),
)

# Descriptors, from which TMA copies tiles, and to which: o, ``None`` where it cannot.
Descs = namedtuple("Descs", "q k v o")

# Where o goes without TMA, lse, and the rows' maxima or ``None``.
Outputs = namedtuple("Outputs", "o o_strides lse top")

# Items' queries, tiles of keys and of values, rows of o, and barriers; turns: whose products come next.
Ring = namedtuple("Ring", "q k v o q_ready q_free k_ready k_free v_ready v_free turns")

# What the groups of warps share.
Call = namedtuple("Call", "ring descs outputs lists tables extent sizes items")

# Of barriers that groups arrive at, for ``release``.
Addresses = namedtuple("Addresses", "q_free v_free turns")

# A group's queries of an item: batch row, head, numbers, and the keys' numbers in a tile; the queries in shared memory; their
# ``Row`` of keys; how many items with keys came before; and ``Addresses``.
Queries = namedtuple("Queries", "b h m offs_n q row visits addresses")


if common_gluon.gluon is not None:
    from kernels.flex_attention.hopper.scheduler import (
        first_key,
        item_of_turn,
        items_of_program,
        queries_of_item,
        row_of,
        tiles_unseen,
    )
    from kernels.flex_attention.hopper.tiles import Mods, product_layout, store_rows

    # Barriers.

    # One arrival of a warp: by the barrier's address, since around an operation on the barrier itself the compiler has all
    # four warps of a group wait for each other.
    ARRIVES = gl.constexpr(
        """{
        .reg .pred one;
        elect.sync _|one, 0xffffffff;
        @one mbarrier.arrive.shared::cta.b64 _, [$0];
        }"""
    )

    # What ``known_here`` stores where a number is below -1.
    KNOWN = gl.constexpr(
        """{
                .reg .pred below;
                .reg .b32 nowhere;
                mov.b32 nowhere, 0;
                setp.lt.f32 below, $1, 0fBF800000;
                @below st.volatile.shared.f32 [nowhere], $1;
                mov.b32 $0, $1;
                }"""
    )

    @gluon.jit
    def address(bars, LEAN: gl.constexpr):
        """The address of barriers in shared memory, 8 bytes each, for ``release``."""
        if LEAN and COMPILED:
            return gl.inline_asm("mov.b32 $0, $1;", "=r,r", [bars], gl.int32, is_pure=False)
        else:
            return 0

    @gluon.jit
    def release(bars, at, index, LEAN: gl.constexpr):
        """A group's arrival at a barrier of ``bars``: one, or with LEAN one of each of its four warps, at the address."""
        if LEAN and COMPILED:
            gl.inline_asm(ARRIVES, "r", [at + 8 * index], is_pure=False)
        elif LEAN:
            mbarrier.arrive(bars.index(index), count=4)
        else:
            mbarrier.arrive(bars.index(index))

    # The online softmax of a tile of scores in registers.

    @gluon.jit
    def masked_logits(s, n0, all_allowed, at, call, mods, MASKED: gl.constexpr, EDGE_N: gl.constexpr):
        """``logits`` of a tile; ``all_allowed``: whether it is full, or ``None`` if known: not if MASKED."""
        sizes, tables = call.sizes, call.tables
        n = gl.expand_dims(n0 + at.offs_n, 0)
        inside = None
        if EDGE_N:
            inside = n < sizes.N
            n = gl.minimum(n, sizes.N - 1)
        MASK_MOD: gl.constexpr = mods.mask if MASKED else None
        if MASK_MOD is not None and all_allowed is not None:
            x = logits(s, sizes.scale, at.b, at.h, at.m, n, inside, tables.score, tables.mask, mods.score, None)
            return gl.where(MASK_MOD(at.b, at.h, at.m, n, tables.mask) | all_allowed, x, float("-inf"))
        else:
            return logits(s, sizes.scale, at.b, at.h, at.m, n, inside, tables.score, tables.mask, mods.score, MASK_MOD)

    @gluon.jit
    def known_here(x):
        """x, none of whose elements is below -1, before what follows.

        ptxas moves a wait for a product above all arithmetic that does not need it, and with it the softmax behind the
        product that it should run beside. It does not move it above a store: this one, of a row's sum, never happens.
        """
        if COMPILED:
            return gl.inline_asm_elementwise(KNOWN, "=f,f", [x], gl.float32, is_pure=False, pack=1)
        else:
            return x

    @gluon.jit
    def row_sums(p, LEAN: gl.constexpr):
        """Of p's columns; with LEAN of those that one thread holds, the four threads of a row side by side: [rows, 4]."""
        if LEAN:
            return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)
        else:
            return gl.sum(p, 1)

    @gluon.jit
    def scaled_sums(l, alpha, LEAN: gl.constexpr):
        """What ``row_sums`` gave, a factor a row."""
        if LEAN:
            layout: gl.constexpr = l.type.layout
            return l * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, layout)), 1)
        else:
            return l * alpha

    @gluon.jit
    def softmax_step(x, l, top, unit, SAFE: gl.constexpr, LEAN: gl.constexpr):
        """``(p, alpha, l, top)`` after a tile of logits x. SAFE: no row can be without a key so far."""
        new_top = gl.maximum(top, gl.max(x, 1) * unit)
        shift = new_top if SAFE else gl.where(new_top == float("-inf"), 0.0, new_top)
        p = gl.exp2(x * unit - gl.expand_dims(shift, 1))
        alpha = gl.exp2(top - shift)
        return p, alpha, scaled_sums(l, alpha, LEAN) + row_sums(p, LEAN), new_top

    # The copying warp.

    @gluon.jit
    def copy_tile(desc, b, h, row, buffers, ready, free, count, STAGES: gl.constexpr):
        """Ask for one tile, into the ring's next buffer, as soon as every group has released it."""
        stage = count % STAGES
        mbarrier.wait(free.index(stage), (count // STAGES + 1) & 1)
        mbarrier.expect(ready.index(stage), desc.nbytes_per_cta)
        tma.async_load(desc, [b, h, row, 0], ready.index(stage), buffers.index(stage))

    @gluon.jit
    def load_tiles(call, T: gl.constexpr):
        """The copying warp: queries, then keys and values, in the order in which they are used."""
        ring, descs, sizes, items = call.ring, call.descs, call.sizes, call.items
        keys_free = ring.k_free
        if T.LEAN:
            keys_free = ring.v_free  # a tile's keys and values are released together
        count = 0
        visits = 0
        for turn in range(0, items_of_program(items.count, T.SERPENTINE)):
            b, h_kv, h, tile = queries_of_item(item_of_turn(turn, T.SERPENTINE), items, sizes.G, T.TILES_FIRST)
            row = row_of(b, h, tile // T.TILES_M, call.lists, sizes.N, T.TILES_N, T.BLOCK_N)
            if row.end > 0:
                held = visits % T.KEPT
                mbarrier.wait(ring.q_free.index(held), (visits // T.KEPT + 1) & 1)
                mbarrier.expect(ring.q_ready.index(held), T.GROUPS * descs.q.nbytes_per_cta)
                for group in gl.static_range(T.GROUPS):
                    m0 = (tile * T.GROUPS + group) * T.ROWS
                    buffer = ring.q.index(held * T.GROUPS + group)
                    tma.async_load(descs.q, [b, h, m0, 0], ring.q_ready.index(held), buffer)
                visits += 1
                n0 = first_key(0, row, T)
                for i in range(0, row.end):
                    following = first_key(i + 1, row, T)
                    b_kv = b // sizes.batches
                    copy_tile(descs.k, b_kv, h_kv, n0, ring.k, ring.k_ready, keys_free, count, T.STAGES)
                    copy_tile(descs.v, b_kv, h_kv, n0, ring.v, ring.v_ready, ring.v_free, count, T.STAGES)
                    n0 = following
                    count += 1

    # The groups of four warps.

    @gluon.jit
    def release_unused(tiles, count, ring, addresses, T: gl.constexpr):
        """Release the row's next tiles unused, as they come; the number of the tile behind them."""
        gl.static_assert(T.LEAN, "keys have a barrier of their own")
        for _ in range(0, tiles):
            stage = count % T.STAGES
            mbarrier.wait(ring.k_ready.index(stage), count // T.STAGES & 1)
            mbarrier.wait(ring.v_ready.index(stage), count // T.STAGES & 1)
            release(ring.v_free, addresses.v_free, stage, T.LEAN)
            count += 1
        return count

    @gluon.jit
    def attend_tiles(
        begin, n0, p, acc, l, top, count, at, call, mods, GROUP: gl.constexpr, MASKED: gl.constexpr, T: gl.constexpr
    ):
        """Tiles from begin on: those that are MASKED, or the others. On entry p is that of tile begin - 1, whose values are
        still to be added."""
        ring, row, addresses = call.ring, at.row, at.addresses
        end = row.some if MASKED else row.end
        layout_s: gl.constexpr = product_layout(T.BLOCK_N)
        layout_o: gl.constexpr = product_layout(T.BLOCK_DV)
        SAFE: gl.constexpr = mods.score is None and mods.mask is None
        # of tiles from the last to the first only the first can reach past the end
        EDGE_N: gl.constexpr = T.EDGE_N and (MASKED or not (T.BACKWARDS and call.lists.partial is None))
        for i in range(begin, end):
            following = first_key(i + 1, row, T)
            stage = count % T.STAGES
            before = (count - 1) % T.STAGES
            mbarrier.wait(ring.k_ready.index(stage), count // T.STAGES & 1)
            if T.TURNS:
                mbarrier.wait(ring.turns.index(GROUP), (count - at.visits + (1 if GROUP else 0)) & 1)
            s = gl.zeros([T.ROWS, T.BLOCK_N], gl.float32, layout_s)
            k = ring.k.index(stage).reshape([T.BLOCK_N, T.BLOCK_D])
            s = warpgroup_mma(at.q, k.permute((1, 0)), s, use_acc=False, is_async=True)
            mbarrier.wait(ring.v_ready.index(before), (count - 1) // T.STAGES & 1)
            v = ring.v.index(before).reshape([T.BLOCK_N, T.BLOCK_DV])
            acc = warpgroup_mma(p, v, acc, is_async=True)
            if T.TURNS:
                release(ring.turns, addresses.turns, (GROUP + 1) % T.GROUPS, T.LEAN)
            s = warpgroup_mma_wait(1, deps=(s,))
            if not T.LEAN:
                mbarrier.arrive(ring.k_free.index(stage))
            x = masked_logits(s, n0, None, at, call, mods, MASKED, EDGE_N)
            weights, alpha, l, top = softmax_step(x, l, top, call.sizes.unit, SAFE, T.LEAN)
            if T.OVERLAP:
                l = known_here(l)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            release(ring.v_free, addresses.v_free, before, T.LEAN)
            acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, layout_o)), 1)
            p = gl.convert_layout(weights.to(v.dtype), gl.DotOperandLayout(0, layout_o, 2))
            n0 = following
            count += 1
        return n0, p, acc, l, top, count

    @gluon.jit
    def attend(call, mods, GROUP: gl.constexpr, T: gl.constexpr):
        """A group of four warps: 64 queries of every item."""
        ring, outputs, sizes, items = call.ring, call.outputs, call.sizes, call.items
        layout_s: gl.constexpr = product_layout(T.BLOCK_N)
        layout_o: gl.constexpr = product_layout(T.BLOCK_DV)
        layout_l: gl.constexpr = gl.SliceLayout(1, layout_s)
        SAFE: gl.constexpr = mods.score is None and mods.mask is None
        offs_n = gl.arange(0, T.BLOCK_N, gl.SliceLayout(0, layout_s))
        addresses = Addresses(address(ring.q_free, T.LEAN), address(ring.v_free, T.LEAN), address(ring.turns, T.LEAN))
        count = 0
        visits = 0
        for turn in range(0, items_of_program(items.count, T.SERPENTINE)):
            b, h_kv, h, tile = queries_of_item(item_of_turn(turn, T.SERPENTINE), items, sizes.G, T.TILES_FIRST)
            row = row_of(b, h, tile // T.TILES_M, call.lists, sizes.N, T.TILES_N, T.BLOCK_N)
            m0 = (tile * T.GROUPS + GROUP) * T.ROWS
            m = gl.minimum(gl.expand_dims(m0 + gl.arange(0, T.ROWS, layout_l), 1), sizes.M - 1)
            acc = gl.zeros([T.ROWS, T.BLOCK_DV], gl.float32, layout_o)
            l = gl.zeros([T.ROWS], gl.float32, layout_l)
            top = gl.full([T.ROWS], float("-inf"), gl.float32, layout_l)
            if row.end > 0:
                # The first tile, partial or full: only its scores, in wait for nothing.
                held = visits % T.KEPT
                q = ring.q.index(held * T.GROUPS + GROUP).reshape([T.ROWS, T.BLOCK_D])
                at = Queries(b, h, m, offs_n, q, row, visits, addresses)
                mbarrier.wait(ring.q_ready.index(held), visits // T.KEPT & 1)
                unseen = 0
                if T.BACKWARDS and call.lists.partial is not None:
                    unseen = tiles_unseen(row, gl.minimum(m0 + T.ROWS, sizes.M) - 1, call.extent, T)
                    count = release_unused(unseen, count, ring, addresses, T)
                first = first_key(unseen, row, T)
                n0 = first_key(unseen + 1, row, T)
                stage = count % T.STAGES
                mbarrier.wait(ring.k_ready.index(stage), count // T.STAGES & 1)
                s = gl.zeros([T.ROWS, T.BLOCK_N], gl.float32, layout_s)
                k = ring.k.index(stage).reshape([T.BLOCK_N, T.BLOCK_D])
                s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(0, deps=(s,))
                if not T.LEAN:
                    mbarrier.arrive(ring.k_free.index(stage))
                x = masked_logits(s, first, row.some == unseen, at, call, mods, True, T.EDGE_N)
                sums = l
                if T.LEAN:
                    sums = row_sums(gl.zeros([T.ROWS, T.BLOCK_N], gl.float32, layout_s), T.LEAN)
                weights, alpha, sums, top = softmax_step(x, sums, top, sizes.unit, SAFE, T.LEAN)
                p = gl.convert_layout(weights.to(ring.v.dtype), gl.DotOperandLayout(0, layout_o, 2))
                count += 1
                begin = unseen + 1  # with no mask mod a partial block is as good as a full one
                if mods.mask is not None:
                    n0, p, acc, sums, top, count = attend_tiles(
                        begin, n0, p, acc, sums, top, count, at, call, mods, GROUP, True, T
                    )
                    begin = gl.maximum(row.some, begin)
                n0, p, acc, sums, top, count = attend_tiles(
                    begin, n0, p, acc, sums, top, count, at, call, mods, GROUP, False, T
                )
                release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)
                visits += 1
                before = (count - 1) % T.STAGES
                mbarrier.wait(ring.v_ready.index(before), (count - 1) // T.STAGES & 1)
                v = ring.v.index(before).reshape([T.BLOCK_N, T.BLOCK_DV])
                acc = warpgroup_mma(p, v, acc, is_async=True)
                l = sums
                if T.LEAN:
                    l = gl.convert_layout(gl.sum(sums, 1), layout_l)
                acc = warpgroup_mma_wait(0, deps=(acc,))
                release(ring.v_free, addresses.v_free, before, T.LEAN)

            # A row without any allowed key: o = 0, lse = -inf.
            l = gl.where(l == 0.0, 1.0, l)
            rows = m0 + gl.arange(0, T.ROWS, layout_l)
            lse_rows = (b.to(gl.int64) * items.Hkv * sizes.G + h) * sizes.M + rows
            gl.store(outputs.lse + lse_rows, top + gl.log2(l), mask=rows < sizes.M)
            if outputs.top is not None:
                gl.store(outputs.top + lse_rows, top, mask=rows < sizes.M)
            o = acc * gl.expand_dims(gl.convert_layout(1.0 / l, gl.SliceLayout(1, layout_o)), 1)
            if call.descs.o is not None and T.BLOCK_DV > T.OUT:
                # Half the columns at a time, through half the memory.
                left, right = o.to(ring.v.dtype).reshape([T.ROWS, 2, T.OUT]).permute((0, 2, 1)).split()
                send_rows(left, ring.o.index(GROUP), call.descs.o, b, h, m0, 0)
                send_rows(right, ring.o.index(GROUP), call.descs.o, b, h, m0, T.OUT)
            elif call.descs.o is not None:
                send_rows(o.to(ring.v.dtype), ring.o.index(GROUP), call.descs.o, b, h, m0, 0)
            else:
                store_rows(o, outputs.o, outputs.o_strides, b, h, m0, sizes.M, T.DV)
        if call.descs.o is not None:
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
        descs,
        o_ptr,
        o_strides,
        lse_ptr,
        top_ptr,
        lists,
        tables,
        extent,
        sizes,
        items,
        SCORE_MOD: gl.constexpr,
        MASK_MOD: gl.constexpr,
        T: gl.constexpr,
    ):
        """Every program takes items (tile of queries, head, batch row) a grid apart, until there are none left.

        extent: ``(behind, ahead)``, how far the mask reaches; groups leave out tiles beyond. ``None``: no tile.
        """
        dtype: gl.constexpr = descs.q.dtype
        o_s = ()
        if descs.o is not None:
            o_s = gl.allocate_shared_memory(dtype, [T.GROUPS, 1, 1, T.ROWS, T.OUT], descs.o.layout)
        ring = Ring(
            q=gl.allocate_shared_memory(dtype, [T.KEPT * T.GROUPS, 1, 1, T.ROWS, T.BLOCK_D], descs.q.layout),
            k=gl.allocate_shared_memory(dtype, [T.STAGES, 1, 1, T.BLOCK_N, T.BLOCK_D], descs.k.layout),
            v=gl.allocate_shared_memory(dtype, [T.STAGES, 1, 1, T.BLOCK_N, T.BLOCK_DV], descs.v.layout),
            o=o_s,
            q_ready=mbarrier.allocate_mbarrier(batch=T.KEPT),
            q_free=mbarrier.allocate_mbarrier(batch=T.KEPT),
            k_ready=mbarrier.allocate_mbarrier(batch=T.STAGES),
            k_free=mbarrier.allocate_mbarrier(batch=T.STAGES),
            v_ready=mbarrier.allocate_mbarrier(batch=T.STAGES),
            v_free=mbarrier.allocate_mbarrier(batch=T.STAGES),
            turns=mbarrier.allocate_mbarrier(batch=T.GROUPS),
        )
        EACH: gl.constexpr = 4 if T.LEAN else 1
        for group in gl.static_range(T.GROUPS):
            mbarrier.init(ring.turns.index(group), count=EACH)
        for held in gl.static_range(T.KEPT):
            mbarrier.init(ring.q_ready.index(held), count=1)
            mbarrier.init(ring.q_free.index(held), count=T.GROUPS * EACH)
        for stage in gl.static_range(T.STAGES):
            mbarrier.init(ring.k_ready.index(stage), count=1)
            mbarrier.init(ring.k_free.index(stage), count=T.GROUPS * EACH)
            mbarrier.init(ring.v_ready.index(stage), count=1)
            mbarrier.init(ring.v_free.index(stage), count=T.GROUPS * EACH)
        outputs = Outputs(o_ptr, o_strides, lse_ptr, top_ptr)
        call = Call(ring, descs, outputs, lists, tables, extent, sizes, items)
        if T.GROUPS == 2:
            gl.warp_specialize(
                [
                    (attend, (call, Mods(SCORE_MOD, None, MASK_MOD), 0, T)),
                    (attend, (call, Mods(SCORE_MOD, None, MASK_MOD), 1, T)),
                    (load_tiles, (call, T)),
                ],
                [4, 1],
                [T.REGISTERS, 24],
            )
        else:
            gl.static_assert(T.GROUPS == 3)
            gl.warp_specialize(
                [
                    (attend, (call, Mods(SCORE_MOD, None, MASK_MOD), 0, T)),
                    (attend, (call, Mods(SCORE_MOD, None, MASK_MOD), 1, T)),
                    (attend, (call, Mods(SCORE_MOD, None, MASK_MOD), 2, T)),
                    (load_tiles, (call, T)),
                ],
                [4, 4, 1],
                [T.REGISTERS, T.REGISTERS, 24],
            )
