"""Faults to plant into the warp-specialised kernels, and what the model must find of each."""

from kernels.flex_attention.hopper import backward, backward_kernel, dq, tiles, visits

RELEASE = "release(ring.v_free, addresses.v_free, before, T.LEAN)"
WAIT = "acc = warpgroup_mma_wait(0, deps=(acc,))"


#: Of the forward kernel: function that is edited, old text, new text, ...; then what must be found: kind, partition, part of
#: the line, barrier (up to its index), and words of the message.
FAULTS = {
    "values released before their product is over": (
        ("attend_tiles", f"{WAIT}\n            {RELEASE}", f"{RELEASE}\n            {WAIT}"),
        ("early overwrite", "load_tiles", "tma.async_load(desc", "v_free[", "v["),
    ),
    "the last values released before their product is over": (
        ("attend", f"{WAIT}\n                {RELEASE}", f"{RELEASE}\n                {WAIT}"),
        ("early overwrite", "load_tiles", "tma.async_load(desc", "v_free[", "v["),
    ),
    "scores read while they are multiplied": (
        ("attend_tiles", "s = warpgroup_mma_wait(1", "s = warpgroup_mma_wait(2"),
        ("missing wait", "attend", "new_top = gl.maximum(", None, "uses the accumulator"),
    ),
    "the first keys waited for with the wrong parity": (
        ("attend", "k_ready.index(stage), count // T.STAGES & 1", "k_ready.index(stage), (count // T.STAGES + 1) & 1"),
        ("wrong phase", "attend", "(count // T.STAGES + 1) & 1", "k_ready[0]", "A fresh barrier"),
    ),
    "the next keys waited for with the wrong parity": (
        ("attend_tiles", "count // T.STAGES & 1)\n            if", "(count // T.STAGES + 1) & 1)\n            if"),
        ("wrong phase", "attend", "(count // T.STAGES + 1) & 1", "k_ready[1]", "A fresh barrier"),
    ),
    "values waited for in the wrong buffer": (
        (
            "attend_tiles",
            "v_ready.index(before), (count - 1) // T.STAGES & 1",
            "k_ready.index(before), (count - 1) // T.STAGES & 1",
        ),
        ("early read", "attend", "warpgroup_mma(p, v", "v_ready[", "v["),
    ),
    "queries released before the last product with them": (
        (
            "attend",
            "release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)\n",
            "pass\n",
            "count += 1\n",
            "count += 1\n                release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)\n",
        ),
        ("early overwrite", "load_tiles", "tma.async_load(descs.q", "q_free", "q["),
    ),
    "the turn never handed on": (
        ("attend_tiles", "release(ring.turns, addresses.turns, (GROUP + 1) % T.GROUPS, T.LEAN)", "pass"),
        ("deadlock", "attend", "mbarrier.wait(ring.turns", "turns[", "lacks 1 of 1 arrivals"),
    ),
    "both groups begin": (
        ("attend_tiles", "(count - at.visits + (1 if GROUP else 0)) & 1", "(count - at.visits) & 1"),
        ("barrier or wrong phase", "attend", "turns", "turns[", "phase 0"),
    ),
    "the rows written before the copy has read the last ones": (
        ("send_rows", "tma.store_wait(0)  # what was sent before has left the buffer", "pass"),
        ("early overwrite", "attend", ".store(x", None, "store_wait is missing between them"),
    ),
    "no fence before the copy of the rows": (
        ("send_rows", "fence_async_shared()", "pass"),
        ("missing fence", "attend", ".store(x", None, "must call fence_async_shared()"),
    ),
    "queries never released": (
        ("attend", "release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)\n", "pass\n"),
        ("deadlock", "load_tiles", "mbarrier.wait(ring.q_free", "q_free", "phase 0 lacks 2 of 2 arrivals"),
    ),
    "kept queries counted as if there were one item's": (
        ("attend", "visits // T.KEPT & 1", "visits & 1"),
        (
            "wrong phase",
            "attend",
            "mbarrier.wait(ring.q_ready.index(held), visits & 1)",
            "q_ready[1]",
            "A fresh barrier",
        ),
    ),
    "the loader waits for queries that nobody has had": (
        ("load_tiles", "(visits // T.KEPT + 1) & 1", "visits // T.KEPT & 1"),
        (
            "deadlock",
            "load_tiles",
            "mbarrier.wait(ring.q_free.index(held), visits // T.KEPT & 1)",
            "q_free",
            "Parity 1 would pass at once",
        ),
    ),
    "half the queries expected": (
        ("load_tiles", "T.GROUPS * descs.q.nbytes_per_cta", "descs.q.nbytes_per_cta"),
        (
            "byte count",
            "load_tiles",
            "mbarrier.expect(ring.q_ready",
            "q_ready",
            "expect 8192 bytes, and its loads bring 16384",
        ),
    ),
    "one group is enough to release values": (
        (
            "attention_forward_hopper_kernel",
            "mbarrier.init(ring.v_free.index(stage), count=T.GROUPS * EACH)",
            "mbarrier.init(ring.v_free.index(stage), count=1)",
        ),
        ("early overwrite or barrier", None, "", "v_free[", "attend"),
    ),
}

#: The same of the forward kernel's other tiles: the way, (function, edits); what must be found.
OF_TILINGS = {
    "values released before the product of three groups is over": (
        "hopper_tall",
        ("attend_tiles", f"{WAIT}\n            {RELEASE}", f"{RELEASE}\n            {WAIT}"),
        ("early overwrite", "load_tiles", "tma.async_load(desc", "v_free[", "v["),
    ),
    "two groups of three are enough to release values": (
        "hopper_tall",
        (
            "attention_forward_hopper_kernel",
            "mbarrier.init(ring.v_free.index(stage), count=T.GROUPS * EACH)",
            "mbarrier.init(ring.v_free.index(stage), count=2 * EACH)",
        ),
        ("early overwrite or barrier", None, "", "v_free[", ""),
    ),
    "the third group is passed over": (
        "hopper_tall",
        ("attend_tiles", "(GROUP + 1) % T.GROUPS", "(GROUP + 1) % 2"),
        ("deadlock", "attend", "mbarrier.wait(ring.turns", "turns[2]", "lacks 4 of 4 arrivals"),
    ),
    "the third group begins, too": (
        "hopper_tall",
        ("attend_tiles", "(1 if GROUP else 0)", "GROUP"),
        ("barrier or wrong phase or deadlock", "attend", "turns", "turns[", ""),
    ),
    "the loader waits for a barrier of the keys alone": (
        "hopper_tall",
        ("load_tiles", "keys_free = ring.v_free", "keys_free = ring.k_free"),
        ("deadlock", "load_tiles", "mbarrier.wait(free", "k_free[", "phase 0 lacks 12 of 12 arrivals"),
    ),
    "tiles released before they have come": (
        "hopper_small",
        (
            "release_unused",
            "mbarrier.wait(ring.k_ready.index(stage), count // T.STAGES & 1)",
            "pass",
            "mbarrier.wait(ring.v_ready.index(stage), count // T.STAGES & 1)",
            "pass",
        ),
        (None, None, "", None, ""),
    ),
    "unused tiles kept": (
        "hopper_small",
        ("release_unused", "release(ring.v_free, addresses.v_free, stage, T.LEAN)", "pass"),
        ("deadlock", None, "mbarrier.wait(", None, "lacks 4 of 8 arrivals"),
    ),
    "unused tiles not counted": (
        "hopper_small",
        ("release_unused", "count += 1", "pass"),
        ("early read or wrong phase or deadlock or barrier", None, "", None, ""),
    ),
}

# The backward pass. A ``swapped`` fault: two lines the other way round.

KEEP_DONE = "            dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))\n"
KEEP_FREE = "            mbarrier.arrive(ring.q_free.index(count % T.STAGES))\n"
ADD_DONE = "        dk = warpgroup_mma_wait(0, deps=(dk,))\n"
ADD_FREE = "        mbarrier.arrive(ring.q_free.index(count % T.STAGES))\n"
READ = "                    tma.store_wait(0)\n"
READ_FREE = "                    mbarrier.arrive(staging.free.index(PARITY))\n"
WIDE_DONE = "                    d{} = warpgroup_mma_wait(0, deps=(d{},))\n"
WIDE_FREE = "                    mbarrier.arrive(ring.{}_free.index(stage))\n"
SENT = "tma.store_wait(0, read_only=False)"
MOVED_ON = 'gl.atomic_add(counter, 1, sem="release")'
POLL = """                        while gl.atomic_add(counter, 0, sem="acquire") != rank:
                            pass
"""


def swapped(first, second):
    return first + second, second + first


#: Of both ways: module, function that is edited, old text, new text; what must be found.
OF_BOTH = {
    "the bytes of lse forgotten": (
        (tiles, "load_queries", "descs.q.nbytes_per_cta + descs.lse.nbytes_per_cta", "descs.q.nbytes_per_cta"),
        (
            "byte count",
            "load_tiles",
            "mbarrier.expect(ring.q_ready",
            "q_ready[",
            "expect 8192 bytes, and its loads bring 8448",
        ),
    ),
    "gradients read before they have come": (
        (tiles, "ask_scores", "mbarrier.wait(ring.do_ready.index(count % T.STAGES), phase)", "pass"),
        ("early read or uninitialized", "gradients", "", None, "do"),
    ),
    "keys never released": (
        (backward_kernel, "gradients", "mbarrier.arrive(keys.free.index(held))", "pass"),
        ("deadlock", "load_tiles", "mbarrier.wait(keys.free", "kv_free[0]", "phase 0 lacks 2 of 2 arrivals"),
    ),
}

#: Where ds is kept: function of ``backward_kernel`` that is edited.
OF_KEPT = {
    "kept keys counted as if there were one pair": (
        ("gradients", "turn // T.KEPT & 1", "turn & 1"),
        (
            "wrong phase",
            "gradients",
            "mbarrier.wait(keys.ready.index(held), turn & 1)",
            "kv_ready[1]",
            "A fresh barrier",
        ),
    ),
    "queries released before the products with them": (
        ("keep_tiles", *swapped(KEEP_DONE, KEEP_FREE)),
        ("early overwrite", "load_tiles", "tma.async_load(descs.q", "q_free[", "q["),
    ),
    "the last product not waited for": (
        ("keep_tiles", "dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))", "dv = warpgroup_mma_wait(1, deps=(dv,))"),
        ("missing wait", "gradients", "", None, "uses the accumulator"),
    ),
    "scores read while they are multiplied": (
        ("keep_tiles", "s = warpgroup_mma_wait(1", "s = warpgroup_mma_wait(2"),
        ("missing wait", "gradients", "", None, "uses the accumulator"),
    ),
    "ds written before the copy has read it": (
        ("keep_tiles", "tma.store_wait(1)", "pass"),
        ("early overwrite", "gradients", ".store(ds)", None, "store_wait is missing between them"),
    ),
    "one copy of ds too many in flight": (
        ("keep_tiles", "tma.store_wait(1)", "tma.store_wait(2)"),
        ("early overwrite", "gradients", ".store(ds)", None, "allows too many pending stores"),
    ),
    "no fence before the copy of ds": (
        ("keep_tiles", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(ds)", None, "must call fence_async_shared()"),
    ),
    "the last copies of ds not waited for": (
        ("gradients", "tma.store_wait(0)", "pass"),
        ("unfinished", "gradients", "tma.async_store(call.descs.ds", None, "store_wait(0) is missing at the end"),
    ),
    "both groups copy ds from one buffer": (
        ("keep_tiles", "2 * GROUP + count % 2", "count % 2"),
        ("early overwrite or race", None, ".store(ds)", None, "ds_s["),
    ),
}

#: Where dq is added up.
OF_ADDED = {
    "parts of dq added in any order": (
        ("send_tiles", POLL, ""),
        ("order of sums", "send_tiles", "tma.async_", None, "nothing says which comes first"),
    ),
    "the counter moved on before the part has reached memory": (
        ("send_tiles", SENT, "pass"),
        ("order of sums", "send_tiles", "tma.async_", None, "read_only=False"),
    ),
    "the counter moved on once shared memory is read": (
        ("send_tiles", SENT, "tma.store_wait(0)"),
        ("order of sums", "send_tiles", "tma.async_", None, "read_only=False"),
    ),
    "the counter moved on without a release": (
        ("send_tiles", MOVED_ON, MOVED_ON.replace("release", "relaxed")),
        ("order of sums", "send_tiles", "tma.async_", None, "nothing says which comes first"),
    ),
    "the counter never moved on": (
        ("send_tiles", MOVED_ON, "pass"),
        ("deadlock", "send_tiles", "gl.atomic_add(counter, 0", None, "nobody moves one on"),
    ),
    "a rank that no key tile has": (
        ("send_tiles", "!= rank:", "!= rank + 1:"),
        ("deadlock", "send_tiles", "gl.atomic_add(counter, 0", None, "polls counters, which stands at"),
    ),
    "dq's buffer free before the copy has read it": (
        ("send_tiles", *swapped(READ, READ_FREE)),
        ("early overwrite", "gradients", ".store(dq)", None, "store_wait is missing"),
    ),
    "dq's buffer never free": (
        ("send_tiles", READ_FREE, "                    pass\n"),
        ("deadlock", "gradients", "mbarrier.wait(staging.free", None, "lacks 1 of 1 arrivals"),
    ),
    "no fence before dq is sent": (
        ("stage_dq", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(dq)", None, "must call fence_async_shared()"),
    ),
    "no fence before ds is multiplied": (
        ("add_tile", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(ds)", None, "must call fence_async_shared()"),
    ),
    "the other group's ds not waited for": (
        ("ask_dq", "mbarrier.wait(call.ds.ready.index(count % 2), count // 2 & 1)", "pass"),
        ("early overwrite or early read or uninitialized", "gradients", "", None, "ds_s["),
    ),
    "ds in one buffer": (
        ("add_tile", "exchange.ds.index(count % 2 * T.GROUPS + GROUP).store(ds)", "exchange.ds.index(GROUP).store(ds)"),
        ("race or uninitialized or early overwrite", "gradients", "", None, "ds_s["),
    ),
    "ds multiplied where the next one lies": (
        ("ask_dq", "call.ds.ds.index(count % 2 *", "call.ds.ds.index((count + 1) % 2 *"),
        ("early overwrite or early read or uninitialized", "gradients", "", None, "ds_s"),
    ),
    "queries released before the products with them": (
        ("add_tile", *swapped(ADD_DONE, ADD_FREE)),
        ("early overwrite", "load_tiles", "tma.async_load(", None, "["),
    ),
    "dq read while it is multiplied": (
        ("add_tile", "dv, dq = warpgroup_mma_wait(0", "dv, dq = warpgroup_mma_wait(1"),
        ("missing wait", "gradients", "", None, "uses the accumulator"),
    ),
    "the last dq read while it is multiplied": (
        ("add_tiles", "warpgroup_mma_wait(0", "warpgroup_mma_wait(1"),
        ("missing wait", "gradients", "", None, "uses the accumulator"),
    ),
}

#: Of heads wider than 128: function of ``wide_kernel`` that is edited.
OF_WIDE_HEADS = {
    "the factors overwritten before the other group has read them": (
        ("make_dv", "mbarrier.wait(exchange.free, (count + 1) & 1)", "pass"),
        ("race or barrier or early overwrite or wrong phase", None, "", None, ""),
    ),
    "the factors read before they are there": (
        ("make_dk", "mbarrier.wait(exchange.ready, count & 1)", "pass"),
        ("race or uninitialized", None, "exchange.t.", None, "t_s"),
    ),
    "gradients released before the product with them": (
        ("make_dv", *swapped(WIDE_DONE.format("v", "v"), WIDE_FREE.format("do"))),
        ("early overwrite", "load_tiles", "tma.async_load(descs.do", "do_free[", "do["),
    ),
    "queries released before the product with them": (
        ("make_dk", *swapped(WIDE_DONE.format("k", "k"), WIDE_FREE.format("q"))),
        ("early overwrite", "load_tiles", "tma.async_load(descs.q", "q_free[", "q["),
    ),
    "one group is enough to release queries": (
        ("attention_dkdv_wide_hopper_kernel", "allocate_ring(descs, 2, False, T)", "allocate_ring(descs, 1, False, T)"),
        ("early overwrite or wrong phase", None, "", "q_", ""),
    ),
    "no fence before the copy of ds": (
        ("make_dk", "fence_async_shared()", "pass"),
        ("missing fence", "make_dk", ".store(ds)", None, "must call fence_async_shared()"),
    ),
    "one copy of ds too many in flight": (
        ("make_dk", "tma.store_wait(1)", "tma.store_wait(2)"),
        ("early overwrite", "make_dk", ".store(ds)", None, "allows too many pending stores"),
    ),
    "the last copies of ds not waited for": (
        ("make_dk", "tma.store_wait(0)", "pass"),
        ("unfinished", "make_dk", "tma.async_store(call.descs.ds", None, "store_wait(0) is missing at the end"),
    ),
    "keys never released": (
        ("make_dv", "mbarrier.arrive(keys.k_free)", "pass"),
        ("deadlock", "load_tiles", "mbarrier.wait(keys.k_free", "k_free", "lacks 1 of 1 arrivals"),
    ),
}

KEPT, ADDED = backward.Cut(False, 2, 2, 128, 2), backward.Cut(True, 2, 3, 256, 2)

#: Of how work is shared out, which shows in the numbers at the latest: cut, module, function that is edited, old text, new.
OF_SHARES = {
    "items that overlap": (KEPT, visits, "heads_of_item", "* (share + 1) //", "* (share + 2) //"),
    "items that begin late": (KEPT, visits, "heads_of_item", "part.heads * share", "1 + part.heads * share"),
    "items of another pair": (
        ADDED,
        visits,
        "item_of_program",
        "unit // call.part.splits",
        "unit // (16 * call.part.splits)",
    ),
    "places taken for tiles": (KEPT, visits, "item_of_program", "gl.load(visits.order + place //", "(place //"),
    "ds of all blocks in one place": (KEPT, visits, "place_of_ds", "return place +", "return 0 * place +"),
    "ds of the second head where the first one's lies": (KEPT, visits, "head_of_item", "+ j - part.begin", ""),
    "sums that are never fresh": (KEPT, tiles, "add_rows", "gl.where(fresh > 0, 0, N)", "N"),
    "sums that are always fresh": (KEPT, tiles, "add_rows", "gl.where(fresh > 0, 0, N)", "0"),
    "sums of all units in one place": (KEPT, tiles, "add_rows", "unit.to(gl.int64) * N * D", "N * D - N * D"),
    "a product with the first head's ds": (KEPT, dq, "product_kernel", "Kept(ds, slot * blocks +", "Kept(ds,"),
    "a product with the first block alone": (KEPT, dq, "product_tile", "block += i //", "block += 0 * i //"),
    "queries of another band": (KEPT, dq, "product_kernel", "band // T.SPARSE_M *", "0 *"),
    "parts of the first item alone": (KEPT, backward, "sums_kernel", "range(1, splits)", "range(splits, splits)"),
    "sums of dq where nobody came": (ADDED, dq, "scaled_kernel", "came > 0", "came >= 0"),
    "sums of another tile": (ADDED, backward_kernel, "send_tiles", "m0 // WIDTH) * 64", "m0 // WIDTH + 1) * 64"),
}

# The same without a mask, whose ds is one block.
OF_BANDS = {
    "ds of the second band where the first one's lies": (KEPT, visits, "place_of_ds", "m0 - call.part.band", "m0"),
    "a product with another band": (KEPT, dq, "product_kernel", "m0 - band", "m0"),
    "ds of all heads in one place": (KEPT, visits, "place_of_ds", "return head.slot, n0", "return head.slot * 0, n0"),
}
