"""Faults to plant into the warp-specialised kernels, and what the model must find of each."""

from kernels.flex_attention.hopper import backward_kernel, forward_kernel, tiles

RELEASE = "release(ring.v_free, addresses.v_free, before, T.LEAN)"


WAIT = "acc = warpgroup_mma_wait(0, deps=(acc,))"


FREE = "mbarrier.arrive(ring.q_free.index(stage))"


LAST = "dv, dk = warpgroup_mma_wait(0, deps=(dv, dk))"


#: module, function that is edited, old text, new text, ...; then what must be found: kind, partition, part of the line,
#: barrier (up to its index), and words of the message.
FAULTS = {
    "values released before their product is over": (
        (forward_kernel, "attend_tiles", f"{WAIT}\n            {RELEASE}", f"{RELEASE}\n            {WAIT}"),
        ("early overwrite", "load_tiles", "tma.async_load(desc", "v_free[", "v["),
    ),
    "the last values released before their product is over": (
        (forward_kernel, "attend", f"{WAIT}\n                {RELEASE}", f"{RELEASE}\n                {WAIT}"),
        ("early overwrite", "load_tiles", "tma.async_load(desc", "v_free[", "v["),
    ),
    "scores read while they are multiplied": (
        (forward_kernel, "attend_tiles", "s = warpgroup_mma_wait(1", "s = warpgroup_mma_wait(2"),
        ("missing wait", "attend", "new_top = gl.maximum(", None, "uses the accumulator"),
    ),
    "the first keys waited for with the wrong parity": (
        (
            forward_kernel,
            "attend",
            "k_ready.index(stage), count // T.STAGES & 1",
            "k_ready.index(stage), (count // T.STAGES + 1) & 1",
        ),
        ("wrong phase", "attend", "(count // T.STAGES + 1) & 1", "k_ready[0]", "A fresh barrier"),
    ),
    "the next keys waited for with the wrong parity": (
        (
            forward_kernel,
            "attend_tiles",
            "count // T.STAGES & 1)\n            if",
            "(count // T.STAGES + 1) & 1)\n            if",
        ),
        ("wrong phase", "attend", "(count // T.STAGES + 1) & 1", "k_ready[1]", "A fresh barrier"),
    ),
    "values waited for in the wrong buffer": (
        (
            forward_kernel,
            "attend_tiles",
            "v_ready.index(before), (count - 1) // T.STAGES & 1",
            "k_ready.index(before), (count - 1) // T.STAGES & 1",
        ),
        ("early read", "attend", "warpgroup_mma(p, v", "v_ready[", "v["),
    ),
    "queries released before the last product with them": (
        (
            forward_kernel,
            "attend",
            "release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)\n",
            "pass\n",
            "count += 1\n",
            "count += 1\n                release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)\n",
        ),
        ("early overwrite", "load_tiles", "tma.async_load(descs.q", "q_free", "q["),
    ),
    "the turn never handed on": (
        (
            forward_kernel,
            "attend_tiles",
            "release(ring.turns, addresses.turns, (GROUP + 1) % T.GROUPS, T.LEAN)",
            "pass",
        ),
        ("deadlock", "attend", "mbarrier.wait(ring.turns", "turns[", "lacks 1 of 1 arrivals"),
    ),
    "both groups begin": (
        (forward_kernel, "attend_tiles", "(count - at.visits + (1 if GROUP else 0)) & 1", "(count - at.visits) & 1"),
        ("barrier or wrong phase", "attend", "turns", "turns[", "phase 0"),
    ),
    "the rows written before the copy has read the last ones": (
        (forward_kernel, "send_rows", "tma.store_wait(0)  # what was sent before has left the buffer", "pass"),
        ("early overwrite", "attend", ".store(x", None, "store_wait is missing between them"),
    ),
    "no fence before the copy of the rows": (
        (forward_kernel, "send_rows", "fence_async_shared()", "pass"),
        ("missing fence", "attend", ".store(x", None, "must call fence_async_shared()"),
    ),
    "queries never released": (
        (forward_kernel, "attend", "release(ring.q_free, addresses.q_free, visits % T.KEPT, T.LEAN)\n", "pass\n"),
        ("deadlock", "load_tiles", "mbarrier.wait(ring.q_free", "q_free", "phase 0 lacks 2 of 2 arrivals"),
    ),
    "kept queries counted as if there were one item's": (
        (forward_kernel, "attend", "visits // T.KEPT & 1", "visits & 1"),
        (
            "wrong phase",
            "attend",
            "mbarrier.wait(ring.q_ready.index(held), visits & 1)",
            "q_ready[1]",
            "A fresh barrier",
        ),
    ),
    "the loader waits for queries that nobody has had": (
        (forward_kernel, "load_tiles", "(visits // T.KEPT + 1) & 1", "visits // T.KEPT & 1"),
        (
            "deadlock",
            "load_tiles",
            "mbarrier.wait(ring.q_free.index(held), visits // T.KEPT & 1)",
            "q_free",
            "Parity 1 would pass at once",
        ),
    ),
    "half the queries expected": (
        (forward_kernel, "load_tiles", "T.GROUPS * descs.q.nbytes_per_cta", "descs.q.nbytes_per_cta"),
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
            forward_kernel,
            "attention_forward_hopper_kernel",
            "mbarrier.init(ring.v_free.index(stage), count=T.GROUPS * EACH)",
            "mbarrier.init(ring.v_free.index(stage), count=1)",
        ),
        ("early overwrite or barrier", None, "", "v_free[", "attend"),
    ),
    "queries released before the products with them": (
        (backward_kernel, "gradient_tiles", f"{LAST}\n            {FREE}", f"{FREE}\n            {LAST}"),
        ("early overwrite", "load_tiles", "tma.async_load(descs.q", "q_free[", "q["),
    ),
    "the last product not waited for": (
        (backward_kernel, "gradient_tiles", LAST, "dv = warpgroup_mma_wait(1, deps=(dv,))"),
        ("missing wait", "gradients", "dk * sizes.scale", None, "uses the accumulator"),
    ),
    "ds written before the copy has read it": (
        (backward_kernel, "gradient_tiles", "tma.store_wait(1)", "pass"),
        ("early overwrite", "gradients", ".store(ds)", None, "store_wait is missing between them"),
    ),
    "one copy of ds too many in flight": (
        (backward_kernel, "gradient_tiles", "tma.store_wait(1)", "tma.store_wait(2)"),
        ("early overwrite", "gradients", ".store(ds)", None, "allows too many pending stores"),
    ),
    "no fence before the copy of ds": (
        (backward_kernel, "gradient_tiles", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(ds)", None, "must call fence_async_shared()"),
    ),
    "the last copies of ds not waited for": (
        (backward_kernel, "gradients", "tma.store_wait(0)", "pass"),
        ("unfinished", "gradients", "tma.async_store(call.descs.ds", None, "store_wait(0) is missing at the end"),
    ),
    "both groups copy ds from one buffer": (
        (backward_kernel, "gradient_tiles", "2 * GROUP + count % 2", "count % 2"),
        ("early overwrite or race", None, ".store(ds)", None, "ds_s["),
    ),
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
        (backward_kernel, "gradient_tiles", "mbarrier.wait(ring.do_ready.index(stage), phase)", "pass"),
        ("early read or uninitialized", "gradients", "warpgroup_mma(v, do", "do_ready[", "do["),
    ),
    "kept keys counted as if there were one pair": (
        (backward_kernel, "gradients", "turn // T.KEPT & 1", "turn & 1"),
        (
            "wrong phase",
            "gradients",
            "mbarrier.wait(keys.ready.index(held), turn & 1)",
            "kv_ready[1]",
            "A fresh barrier",
        ),
    ),
    "kept keys never released": (
        (backward_kernel, "gradients", "mbarrier.arrive(keys.free.index(held))", "pass"),
        ("deadlock", "load_tiles", "mbarrier.wait(keys.free", "kv_free[0]", "phase 0 lacks 2 of 2 arrivals"),
    ),
}

#: The same of the kernel for wide heads: function, edits; what must be found.
OF_WIDE_HEADS = {
    "the factors overwritten before the other group has read them": (
        ("dv_tiles", "mbarrier.wait(exchange.free, (count + 1) & 1)", "pass"),
        ("race or barrier or early overwrite", None, "", None, ""),
    ),
    "the factors read before they are there": (
        ("make_dk", "mbarrier.wait(exchange.ready, count & 1)", "pass"),
        ("race or uninitialized", None, "exchange.t.", None, "t_s"),
    ),
    "gradients released before the product with them": (
        (
            "dv_tiles",
            "dv = warpgroup_mma_wait(0, deps=(dv,))\n            mbarrier.arrive(ring.do_free.index(stage))",
            "mbarrier.arrive(ring.do_free.index(stage))\n            dv = warpgroup_mma_wait(0, deps=(dv,))",
        ),
        ("early overwrite", "load_tiles", "tma.async_load(descs.do", "do_free[", "do["),
    ),
    "queries released before the product with them": (
        (
            "make_dk",
            "dk = warpgroup_mma_wait(0, deps=(dk,))\n                    mbarrier.arrive(ring.q_free.index(stage))",
            "mbarrier.arrive(ring.q_free.index(stage))\n                    dk = warpgroup_mma_wait(0, deps=(dk,))",
        ),
        ("early overwrite", "load_tiles", "tma.async_load(descs.q", "q_free[", "q["),
    ),
    "one group is enough to release queries": (
        (
            "attention_dkdv_wide_hopper_kernel",
            "allocate_ring(descs, 2, False, T)",
            "allocate_ring(descs, 1, False, T)",
        ),
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
    "keys never released": (
        ("make_dv", "mbarrier.arrive(keys.k_free)", "pass"),
        ("deadlock", "load_tiles", "mbarrier.wait(keys.k_free", "k_free", "lacks 1 of 1 arrivals"),
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
