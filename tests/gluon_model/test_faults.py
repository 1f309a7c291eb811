"""Faults planted in the kernels' source: each is found under every schedule, with its partition, line and barrier."""

import pytest
import torch
import triton

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
    pytest.skip("the model needs Triton 3.8", allow_module_level=True)

from triton.experimental.gluon import language as gl

from kernels import gluon_model
from tests.gluon_model import gluon_kernels
from tests.gluon_model.cases import descriptor, found, gemm, planted, tensor_memory_gemm, wgrad


def launch(name: str, kernel):
    """A launch of the kernel whose rings turn three times; the good one finds nothing in it."""
    if name == "gemm_two_consumers":
        return gemm(kernel, M=32, N=32 * 3, K=32 * 4, stages=3, block=(32, 32, 32))[0]
    if name in ("gemm_ring", "gemm_single"):
        return gemm(kernel, M=32, N=32, K=32 * 8, stages=3, block=(32, 32, 32))[0]
    if name == "gemm_tensor_memory":
        return tensor_memory_gemm(M=64 * 5, N=64, K=96, programs=1, kernel=kernel, stages=2, block=(64, 64, 32))[0]
    if name == "wgrad_tile":
        geometry = (1, 9, 9, 16, 16, 2, 2, (1, 1), (1, 0, 0, 1), (1, 1))
        return wgrad(geometry, block=(16, 16, 16), stages=2, kernel=kernel, taps=1)[0]
    x, y = torch.randn(32, 96), torch.zeros(32, 96)
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    arguments = descriptor(x, [32, 32]), descriptor(y, [32, 32]), 96, layout
    return lambda **options: gluon_model.run(kernel, 1, *arguments, **options)


WAIT_EMPTY = "mbarrier.wait(ring.empty.index(slot), phase ^ 1)"
WAIT_READY = "mbarrier.wait(ring.ready.index(slot), (step // ring.stages) & 1)"
WAIT_FILLED = "mbarrier.wait(ring.ready.index(slot), (fill // ring.stages) & 1)"
BYTES = "a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)"
RELEASE = "mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)"
OUT = "tma.async_store(c_desc, [tile // across * BLOCK_M, tile % across * BLOCK_N + part * HALF], out)"

#: kernel, function that is edited, old text, new text; then what must be found: kind, partition, part of the line,
#: barrier (up to its index), and words of the message.
FAULTS = {
    "ring: the loader waits for the wrong parity": (
        ("gemm_ring", "ring_loader", WAIT_EMPTY, "mbarrier.wait(ring.empty.index(slot), phase)"),
        (
            "deadlock",
            "ring_loader",
            "mbarrier.wait(ring.empty.index(slot), phase)",
            "empty[0]",
            "Parity 1 would pass at once",
        ),
    ),
    "ring: the consumer waits for the wrong parity": (
        (
            "gemm_ring",
            "ring_consumer",
            WAIT_READY,
            "mbarrier.wait(ring.ready.index(slot), (step // ring.stages + 1) & 1)",
        ),
        ("wrong phase", "ring_consumer", "step // ring.stages + 1", "ready[1]", "A fresh barrier"),
    ),
    "ring: the consumer waits for the wrong parity from the second round on": (
        ("gemm_ring", "ring_consumer", WAIT_READY, "mbarrier.wait(ring.ready.index(slot), 0)"),
        ("wrong phase", "ring_consumer", "mbarrier.wait(ring.ready.index(slot), 0)", "ready[0]", "Phase 0 lets"),
    ),
    "ring: the consumer releases before its product is over": (
        (
            "gemm_ring",
            "ring_consumer",
            "acc = hopper.warpgroup_mma_wait(1, deps=(token,))\n        mbarrier",
            "acc = hopper.warpgroup_mma_wait(2, deps=(token,))\n        mbarrier",
        ),
        ("early overwrite", "ring_loader", "tma.async_load(a_desc", "empty[", "which ring_consumer signalled at line"),
    ),
    "ring: the loader does not wait": (
        ("gemm_ring", "ring_loader", WAIT_EMPTY, "pass"),
        ("early overwrite", "ring_loader", "tma.async_load(b_desc", "ready[0]", "waits neither for ready[0]"),
    ),
    "ring: the consumer does not wait": (
        ("gemm_ring", "ring_consumer", WAIT_READY, "pass"),
        ("early read", "ring_consumer", "warpgroup_mma(ring.a.index(slot)", "ready[1]", "has not waited"),
    ),
    "ring: too few bytes expected": (
        ("gemm_ring", "ring_loader", BYTES, "a_desc.nbytes_per_cta)"),
        (
            "byte count",
            "ring_loader",
            "mbarrier.expect(ring.ready",
            "ready[0]",
            "expect 2048 bytes, and its loads bring 4096",
        ),
    ),
    "ring: too many bytes expected": (
        ("gemm_ring", "ring_loader", BYTES, "3 * b_desc.nbytes_per_cta)"),
        (
            "byte count",
            "ring_loader",
            "mbarrier.expect(ring.ready",
            "ready[0]",
            "expect 6144 bytes, and its loads bring 4096",
        ),
    ),
    "ring: too many bytes expected is a deadlock, too": (
        ("gemm_ring", "ring_loader", BYTES, "3 * b_desc.nbytes_per_cta)"),
        ("deadlock", None, "mbarrier.wait", None, "phase 0 lacks 2048 bytes"),
    ),
    "ring: no bytes expected": (
        ("gemm_ring", "ring_loader", f"mbarrier.expect(ring.ready.index(slot), {BYTES}", "pass"),
        ("byte count", "ring_loader", "tma.async_load(a_desc", "ready[0]", "Nobody called expect"),
    ),
    "ring: a load goes to the next buffer": (
        ("gemm_ring", "ring_loader", "ring.b.index(slot))", "ring.b.index((slot + 1) % ring.stages))"),
        ("early read", "ring_consumer", "warpgroup_mma(ring.a.index(0), ring.b.index(0)", "ready[2]", "b[0] is read"),
    ),
    "ring: a load signals the next buffer's barrier": (
        (
            "gemm_ring",
            "ring_loader",
            "BLOCK_K, column], ring.ready.index(slot)",
            "BLOCK_K, column], ring.ready.index(1)",
        ),
        ("byte count", "ring_loader", "mbarrier.expect", "ready[0]", "expect 4096 bytes, and its loads bring 2048"),
    ),
    "ring: the consumer does not release": (
        ("gemm_ring", "ring_consumer", RELEASE, "pass"),
        ("deadlock", "ring_loader", WAIT_EMPTY, "empty[0]", "Nobody has signalled it yet"),
    ),
    "ring: the consumer releases twice": (
        ("gemm_ring", "ring_consumer", RELEASE, RELEASE.replace("count=1", "count=2")),
        ("barrier", "ring_consumer", "count=2", "empty[0]", "more often than it was initialized for"),
    ),
    "ring: the accumulator is stored before the last product is over": (
        ("gemm_ring", "ring_consumer", "acc = hopper.warpgroup_mma_wait(0, deps=(acc,))", "pass"),
        (
            "missing wait",
            "ring_consumer",
            "acc.to(c.dtype.element_ty)",
            None,
            "matrix product that may still be running",
        ),
    ),
    "ring: a barrier is not initialized": (
        ("gemm_ring", "make_ring", "mbarrier.init(empty.index(i), count=1)", "pass"),
        ("barrier", "ring_loader", WAIT_EMPTY, "empty[0]", "mbarrier.init has not been called"),
    ),
    "ring: the consumer invalidates what the loader waits for": (
        (
            "gemm_ring",
            "ring_consumer",
            "mbarrier.wait(ring.ready.index(0), 0)",
            "mbarrier.invalidate(ring.empty.index(2))\n    mbarrier.wait(ring.ready.index(0), 0)",
        ),
        ("barrier", "ring_consumer", "mbarrier.invalidate(ring.empty.index(2))", "empty[2]", "ring_loader may use it"),
    ),
    "two consumers: one of them is enough to release a buffer": (
        ("gemm_two_consumers", "gemm_two_consumers", "count=2)", "count=1)"),
        ("early overwrite or barrier", None, "", "bars[", "half_consumer"),
    ),
    "two consumers: they release the buffer that they are reading": (
        (
            "gemm_two_consumers",
            "half_consumer",
            "mbarrier.arrive(ring.empty.index((step + ring.stages - 1) % ring.stages), count=1, pred=step > first)",
            "mbarrier.arrive(ring.empty.index(slot), count=1)",
            "        mbarrier.arrive(ring.empty.index((step - 1) % ring.stages), count=1)\n",
            "",
        ),
        ("early overwrite", "tiles_loader", "tma.async_load", "bars[", "half_consumer signalled at line"),
    ),
    "two consumers: a product is read while it runs": (
        (
            "gemm_two_consumers",
            "half_consumer",
            "result = hopper.warpgroup_mma_wait(0",
            "result = hopper.warpgroup_mma_wait(1",
        ),
        ("missing wait", None, "acc.to(", None, "uses the accumulator"),
    ),
    "single: the phase is never turned": (
        ("gemm_single", "gemm_single", "phase ^= 1", "pass"),
        ("wrong phase", "gemm_single", "mbarrier.wait(loaded, phase)", "loaded", "Phase 0 lets"),
    ),
    "single: the product is not waited for": (
        ("gemm_single", "gemm_single", "acc = hopper.warpgroup_mma_wait(0, deps=(acc,))", "pass"),
        (
            "early overwrite",
            "gemm_single",
            "tma.async_load(a_desc",
            None,
            "the matrix product that gemm_single issued may still read",
        ),
    ),
    "single: the load is not waited for": (
        ("gemm_single", "gemm_single", "mbarrier.wait(loaded, phase)", "pass"),
        ("early read", "gemm_single", "hopper.warpgroup_mma(a, b, acc", "loaded", "has not waited"),
    ),
    "single: the barrier is invalidated in the loop": (
        ("gemm_single", "gemm_single", "phase ^= 1", "phase ^= 1\n        mbarrier.invalidate(loaded)"),
        ("barrier", "gemm_single", "mbarrier.expect(loaded", "loaded", "it was invalidated at line"),
    ),
    "single: the barrier is initialized in the loop": (
        ("gemm_single", "gemm_single", "phase ^= 1", "phase ^= 1\n        mbarrier.init(loaded, count=1)"),
        ("barrier", "gemm_single", "mbarrier.init(loaded, count=1)", "loaded", "a second time"),
    ),
    "copy: the wrong buffer is read": (
        ("copy_tiles", "copy_tiles", "x = tile.load(layout)", "x = result.load(layout)"),
        ("uninitialized", "copy_tiles", "x = result.load(layout)", None, "result (shared memory) is read"),
    ),
    "copy: no fence": (
        ("copy_tiles", "copy_tiles", "fence_async_shared()", "pass"),
        ("missing fence", "copy_tiles", "result.store(x + 1)", None, "must call fence_async_shared()"),
    ),
    "copy: the fence comes before the store": (
        (
            "copy_tiles",
            "copy_tiles",
            "result.store(x + 1)\n        fence_async_shared()",
            "fence_async_shared()\n        result.store(x + 1)",
        ),
        ("missing fence", "copy_tiles", "result.store(x + 1)", None, "TMA store"),
    ),
    "copy: the source is overwritten": (
        ("copy_tiles", "copy_tiles", "tma.store_wait(0)\n        result", "result"),
        ("early overwrite", "copy_tiles", "result.store(x + 1)", None, "store_wait is missing between them"),
    ),
    "copy: one store too many may be pending": (
        ("copy_tiles", "copy_tiles", "tma.store_wait(0)\n        result", "tma.store_wait(1)\n        result"),
        ("early overwrite", "copy_tiles", "result.store(x + 1)", None, "allows too many pending stores"),
    ),
    "copy: the last store is not waited for": (
        ("copy_tiles", "copy_tiles", "tma.store_wait(0)\n    mbarrier", "mbarrier"),
        ("unfinished", "copy_tiles", "tma.async_store(y_desc", None, "store_wait(0) is missing at the end"),
    ),
    "copy: the load is not waited for": (
        ("copy_tiles", "copy_tiles", "mbarrier.wait(loaded, phase)", "pass"),
        (
            "early read",
            "copy_tiles",
            "x = tile.load(layout)",
            "loaded",
            "It signals loaded, for which copy_tiles has not",
        ),
    ),
    "wgrad: the loader waits for the wrong parity": (
        ("wgrad_tile", "wgrad_loader", "((step // ring.stages) & 1) ^ 1)", "(step // ring.stages) & 1)"),
        ("deadlock", "wgrad_loader", "mbarrier.wait(ring.empty.index(slot)", "empty[0]", "Parity 1 would pass at once"),
    ),
    "wgrad: released before it is read": (
        (
            "wgrad_tile",
            "wgrad_consumer",
            "ring.b.index(slot), acc)\n        mbarrier.arrive(ring.empty.index(slot))",
            "ring.b.index(slot), acc, is_async=True)\n        mbarrier.arrive(ring.empty.index(slot))\n"
            "        acc = hopper.warpgroup_mma_wait(0, deps=(acc,))",
        ),
        (
            "early overwrite",
            "wgrad_loader",
            "tma.async_load_im2col",
            "empty[",
            "b[0] is overwritten while the matrix product",
        ),
    ),
    "wgrad: the bytes of the im2col copy are forgotten": (
        (
            "wgrad_tile",
            "wgrad_loader",
            "dy_desc.nbytes_per_cta + x_desc.nbytes_per_cta",
            "dy_desc.nbytes_per_cta",
        ),
        (
            "byte count",
            "wgrad_loader",
            "mbarrier.expect",
            "ready[0]",
            "told to expect 512 bytes, and its loads bring 1024",
        ),
    ),
    "wgrad: the consumer does not wait": (
        ("wgrad_tile", "wgrad_consumer", WAIT_READY, "pass"),
        ("early read or uninitialized", "wgrad_consumer", "hopper.warpgroup_mma(", None, "a[0]"),
    ),
    "tensor memory: the multiplier waits for the wrong parity": (
        ("gemm_tensor_memory", "tiles_multiplier", "((done // 2) & 1) ^ 1)", "(done // 2) & 1)"),
        ("deadlock", "tiles_multiplier", "mbarrier.wait(acc_empty", "acc_empty[0]", "tiles_epilogue, line"),
    ),
    "tensor memory: the multiplier does not wait for the accumulator": (
        (
            "gemm_tensor_memory",
            "tiles_multiplier",
            "mbarrier.wait(acc_empty.index(half), ((done // 2) & 1) ^ 1)",
            "pass",
        ),
        (
            "early overwrite",
            "tiles_multiplier",
            "blackwell.tcgen05_mma",
            None,
            "while tiles_epilogue may still read it",
        ),
    ),
    "tensor memory: the multiplier does not wait for its operands": (
        ("gemm_tensor_memory", "tiles_multiplier", WAIT_FILLED, "pass"),
        ("early read", "tiles_multiplier", "blackwell.tcgen05_mma", "ready[0]", "a[0] is read although the TMA load"),
    ),
    "tensor memory: the operands are released by an arrive, not by a commit": (
        (
            "gemm_tensor_memory",
            "tiles_multiplier",
            "blackwell.tcgen05_commit(ring.empty.index(slot))",
            "mbarrier.arrive(ring.empty.index(slot), count=1)",
        ),
        (
            "early overwrite",
            "tiles_loader",
            "tma.async_load(a_desc",
            "empty[0]",
            "which tiles_multiplier signalled at line",
        ),
    ),
    "tensor memory: no commit hands over the accumulator": (
        ("gemm_tensor_memory", "tiles_multiplier", "blackwell.tcgen05_commit(acc_ready.index(half))", "pass"),
        ("deadlock", "tiles_epilogue", "mbarrier.wait(acc_ready", "acc_ready[0]", "Nobody has signalled it yet"),
    ),
    "tensor memory: the epilogue does not wait": (
        ("gemm_tensor_memory", "tiles_epilogue", "mbarrier.wait(acc_ready.index(half), (done // 2) & 1)", "pass"),
        ("early read or uninitialized", "tiles_epilogue", ".load()", None, "acc[0][:, 0:32]"),
    ),
    "tensor memory: the epilogue reads the other accumulator": (
        ("gemm_tensor_memory", "tiles_epilogue", "values = acc.index(half)", "values = acc.index(1 - half)"),
        (None, None, "", None, "values = acc.index(1 - half)"),
    ),
    "tensor memory: the epilogue releases the accumulator halfway": (
        (
            "gemm_tensor_memory",
            "tiles_epilogue",
            "            out.store",
            "            if part == 0:\n                mbarrier.arrive(acc_empty.index(half), count=1)\n"
            "            out.store",
            "        mbarrier.arrive(acc_empty.index(half), count=1)\n        done",
            "        done",
        ),
        ("early overwrite", "tiles_multiplier", "blackwell.tcgen05_mma", "acc_empty[0]", "acc[0]"),
    ),
    "tensor memory: the accumulator is never begun": (
        ("gemm_tensor_memory", "tiles_multiplier", "use_acc=step > 0", "use_acc=True"),
        ("uninitialized", "tiles_multiplier", "use_acc=True", None, "acc[0] (tensor memory) is read"),
    ),
    "tensor memory: no fence": (
        ("gemm_tensor_memory", "tiles_epilogue", "fence_async_shared()", "pass"),
        ("missing fence", "tiles_epilogue", "out.store(values", None, "fence_async_shared"),
    ),
    "tensor memory: the output buffer is overwritten": (
        ("gemm_tensor_memory", "tiles_epilogue", "tma.store_wait(0)\n            out", "out"),
        ("early overwrite", "tiles_epilogue", "out.store(values", None, "store_wait is missing"),
    ),
    "tensor memory: the last store is not waited for": (
        ("gemm_tensor_memory", "tiles_epilogue", "done += 1\n    tma.store_wait(0)", "done += 1"),
        ("unfinished", "tiles_epilogue", OUT[:24], None, "store_wait(0) is missing at the end"),
    ),
}


@pytest.mark.parametrize(
    "name", ["copy_tiles", "gemm_single", "gemm_ring", "gemm_two_consumers", "wgrad_tile", "gemm_tensor_memory"]
)
def test_without_a_fault_nothing_is_found(name):
    for schedule in gluon_model.SCHEDULES:
        assert launch(name, getattr(gluon_kernels, name))(schedule=schedule).ok


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_under_every_schedule(fault):
    (kernel, *edits), wanted = FAULTS[fault]
    call = launch(kernel, planted(gluon_kernels, *edits)[kernel])
    for schedule, seed in [(name, 0) for name in gluon_model.SCHEDULES] + [("random", 1), ("random", 2)]:
        result = call(schedule=schedule, seed=seed)
        assert found(result, *wanted), f"{schedule}, seed {seed}:\n{result}"
