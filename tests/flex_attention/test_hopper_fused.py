"""The kernel of all three gradients on the model: right numbers, one order of sums, planted faults found."""

import gc
import weakref

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.common.operator import clear_caches
from kernels.flex_attention import BlockMask, block_mask, causal_block_mask, flex_attention
from kernels.flex_attention.hopper import scheduler
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.flex_attention.hopper import fused, fused_kernel, tiles, visits
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

RAGGED = (1, 4, 2, 200, 300, 64, 64)  # B, Hq, Hkv, M, N, D, Dv
KERNEL = "attention_gradients_hopper_kernel"
SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1)]


@pytest.fixture
def table(hopper_table, monkeypatch):
    """The kernel takes every call; yields {kernel: other options}."""
    monkeypatch.setattr(fused, "slower", lambda *_: None)
    return hopper_table


def check(name="nothing", schedule="round-robin", seed=0, launches=1, **options):
    """A case of the zoo, forward and backward, against float64; the model ran both kernels and found nothing."""
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        o, grads = cases.check(name, **{"shape": RAGGED, "dtype": torch.bfloat16, "BLOCK_SIZE": 128} | options)
    assert [result.kernel for result in results] == ["attention_forward_hopper_kernel"] + [KERNEL] * launches
    assert all(result.ok for result in results), "\n\n".join(map(str, results))
    return (o.detach(), *grads)


# Numbers.


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name",
    ["causal", "sliding window", "heads differ", "nothing allowed", "softcap", "dead rows"]
    + [
        pytest.param(name, marks=pytest.mark.slow)
        for name in ["nothing", "prefix", "natten", "no mask, no score", "causal as a score mod", "alibi"]
        + ["squared", "mixed", "elementary"]
    ],
)
def test_the_zoo(table, name):
    check(name)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["nothing", "softcap"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float16, (1, 2, 1, 256, 256, 64, 64)),
        (torch.float16, (1, 1, 1, 130, 70, 16, 128)),
        (torch.bfloat16, (2, 2, 1, 200, 300, 80, 48)),
        (torch.bfloat16, (1, 3, 1, 129, 257, 128, 128)),
        (torch.bfloat16, (1, 2, 2, 150, 300, 32, 64)),
    ],
)
def test_sizes(table, name, dtype, shape):
    check(name, shape=shape, dtype=dtype, schedule="random")


@pytest.mark.parametrize("WIDTH", [32, 64])
def test_tiles_of_128_queries_of_heads_of_64(table, WIDTH):
    table["backward_hopper"] = {"BLOCK_M": 2 * WIDTH, "WIDTH": WIDTH, "STAGES": 2}
    check("causal")


def test_strides(table):
    check("causal", layout="heads inside")


def test_keys_that_serve_the_whole_batch(table):
    check("causal", shape=(2, 2, 1, 200, 300, 64, 64), kv_batch=1)


def test_a_negative_scale(table):
    check(scale=-0.2)


def test_rows_and_columns_without_any_block(table):
    def corner(b, h, q_idx, kv_idx):
        return (q_idx >= 128) & (kv_idx < 100) | (q_idx >= 256) & (kv_idx >= 300)

    o, dq, dk, dv = check(mask_mod=corner, shape=(1, 2, 2, 400, 400, 64, 64))
    assert not o[:, :, :128].any() and not dq[:, :, :128].any()
    assert not dk[:, :, 128:256].any() and not dv[:, :, 128:256].any() and dk[:, :, 300:].any()


@pytest.mark.parametrize(("sizes", "missing"), [((256, 256), 50), ((128, 384), 50), ((256, 256), 128)])
def test_partial_blocks_without_a_mask_mod(table, sizes, missing):
    """Lists alone, in any order: all blocks are partial, and nothing is masked in them. Of the last block rows are missing,
    or whole tiles."""
    counts = torch.tensor([2, 0, 1], dtype=torch.int32)[None, None]
    indices = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 0, 2]], dtype=torch.int32)[None, None]
    M, N = (3 * size - missing for size in sizes)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=sizes, seq_lengths=(M, N))
    check(block_mask=mask, shape=(1, 2, 1, M, N, 64, 64), schedule="random")


def test_a_small_workspace_is_filled_pair_by_pair(table):
    whole = check("causal")
    B, Hq, Hkv, *_ = RAGGED
    parts = check("causal", launches=B * Hkv, WORKSPACE=1)
    assert all(map(torch.equal, parts, whole))


# Visits.


@pytest.mark.parametrize("heads", [1, 3])
def test_every_block_is_visited_once_backwards_with_its_rank(heads):
    generator = torch.Generator().manual_seed(0)
    some = torch.rand(2, heads, 5, 7, generator=generator) < 0.6
    full = some & (torch.rand(2, heads, 5, 7, generator=generator) < 0.5)
    full[..., -1, :] = full[..., -1] = False  # they reach past the ends
    mask = block_mask.block_mask_from_dense(some, full, lambda b, h, m, n: m >= 0, 600, 800, (128, 128))
    q, k = torch.zeros(2, heads, 600, 16), torch.zeros(2, heads, 800, 16)
    p, x = cases.resolved(q, k, k, None, mask)
    num_blocks, entries, ranks, stride_b, stride_h, width = visits.visits_of(p, x)
    assert width == 5
    for b in range(2):
        for h in range(heads):
            for n in range(7):
                row = b * stride_b + h * stride_h + n
                blocks = [m for m in reversed(range(5)) if some[b, h, m, n]]
                listed = entries.view(-1, 5)[row][: num_blocks.view(-1)[row]]
                assert listed.tolist() == [2 * m + bool(full[b, h, m, n]) for m in blocks]
                before = [int(some[b, h, m, :n].sum()) for m in blocks]
                assert ranks.view(-1, 5)[row][: len(blocks)].tolist() == before
    assert visits.visits_of(p, x) is visits.visits_of(p, x)
    mask.kv_num_blocks.sub_(mask.kv_num_blocks)  # another mask now, in the same memory
    mask.q_num_blocks.zero_()
    assert visits.visits_of(p, x)[0].sum() == full.sum()


def test_lists_that_a_cuda_graph_reads_live_as_long_as_the_mask(monkeypatch):
    """Called again at another length, or written to, the mask gets other lists: not in memory that a replay reads."""
    mask = block_mask.causal_block_mask(512, device="cpu")

    def visited(capturing, length=512, mask=mask):
        """Where the visits' entries are, as long as they are anywhere."""
        mask.seq_lengths = (length, 512)
        q, k = torch.zeros(1, 1, length, 16), torch.zeros(1, 1, 512, 16)
        monkeypatch.setattr(visits, "is_capturing", lambda t: capturing)
        return weakref.ref(visits.visits_of(*cases.resolved(q, k, k, None, mask))[1])

    warm = visited(False)
    assert visited(True)() is warm()  # the graph's
    others = visited(False, 400), visited(False)
    mask.kv_indices.add_(0)
    others = (*others, visited(False))
    gc.collect()
    assert warm() is not None and [other() is None for other in others] == [True, True, False]
    assert others[2]().data_ptr() != warm().data_ptr()
    visited.__defaults__ = mask = None
    gc.collect()
    assert warm() is None


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(64, 32), (16, 64), (4, 128), (32, 4), (1, 1), (0, 3)])
def test_items_are_shared_out_almost_evenly(sizes, masked):
    """Where there are enough of them: chains of key tiles that wait for each other cost little."""
    pairs, tiles = sizes
    bundle, serpentine = visits.bundle_order(pairs, tiles, 132, masked)
    assert 1 <= bundle <= max(pairs, 1) and isinstance(serpentine, bool)
    if pairs * tiles > 1000:
        lengths = 2.0 * (torch.arange(tiles, 0, -1).numpy() if masked else torch.full((tiles,), tiles).numpy()) + 1
        end = visits._end(pairs, lengths, 132, bundle, serpentine)
        assert end <= 1.06 * pairs * lengths.sum() / 132


# Orders.


def alone(schedule="round-robin", seed=0, shape=RAGGED):
    """``(the gradients, as bits; what the model found)`` of rows whose lse and delta are zero, under a causal mask."""
    B, Hq, Hkv, M, N, D, Dv = shape
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=generator).bfloat16() for s in ((B, Hq, M, D), (B, Hkv, N, D), (B, Hkv, N, Dv)))
    clear_caches()
    p, x = cases.resolved(q, k, v, None, causal_block_mask(M, N), None, True)
    rows = [torch.zeros(B * Hq, -(-M // 128) * 128) for _ in range(2)]
    grads = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        fused.gradients_of(p, x, q, rows, *grads)
    return [x.view(torch.uint8) for x in grads], results[0]


@pytest.mark.share(3)
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_every_schedule_and_number_of_programs_leaves_the_same_bits(table, monkeypatch, programs):
    first, _ = alone()
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: programs)
    for schedule, seed in SCHEDULES:
        again, result = alone(schedule, seed)
        assert result.ok and result.grid == (min(programs, 6),), result
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.share(4)
@pytest.mark.parametrize("bundle", [1, 2])
@pytest.mark.parametrize("serpentine", [False, True])
def test_every_order_of_items_leaves_the_same_bits(table, monkeypatch, bundle, serpentine):
    first, _ = alone()
    monkeypatch.setattr(visits, "bundle_order", lambda *_: (bundle, serpentine))
    for programs in (2, 4):
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=programs: n)
        again, result = alone("random", programs)
        assert result.ok and all(map(torch.equal, first, again)), result


# Planted faults.

POLL = """                        while gl.atomic_add(counter, 0, sem="acquire") != rank:
                            pass
"""
DONE = "dv, dk = warpgroup_mma_wait(2, deps=(dv, dk))"
FREE = "mbarrier.arrive(ring.q_free.index(stage))"
SENT = "tma.store_wait(0, read_only=False)"
LATE = "dk = warpgroup_mma_wait(0, deps=(dk,))\n        mbarrier.arrive(ring.q_free.index(stage))"

#: function that is edited, old text, new text; then what must be found: kind, partition, part of the line, words.
FAULTS = {
    "parts of dq added in any order": (
        ("send_tiles", POLL, ""),
        ("order of sums", "send_tiles", "tma.async_", "nothing says which comes first"),
    ),
    "the counter moved on before the part has reached memory": (
        ("send_tiles", SENT, "pass"),
        ("order of sums", "send_tiles", "tma.async_", "read_only=False"),
    ),
    "the counter moved on once shared memory is read": (
        ("send_tiles", SENT, "tma.store_wait(0)"),
        ("order of sums", "send_tiles", "tma.async_", "read_only=False"),
    ),
    "the counter moved on without a release": (
        ("send_tiles", 'gl.atomic_add(counter, 1, sem="release")', 'gl.atomic_add(counter, 1, sem="relaxed")'),
        ("order of sums", "send_tiles", "tma.async_", "nothing says which comes first"),
    ),
    "the counter never moved on": (
        ("send_tiles", 'gl.atomic_add(counter, 1, sem="release")', "pass"),
        ("deadlock", "send_tiles", "gl.atomic_add(counter, 0", "nobody moves one on"),
    ),
    "a rank that no key tile has": (
        ("send_tiles", "!= rank:", "!= rank + 1:"),
        ("deadlock", "send_tiles", "gl.atomic_add(counter, 0", "polls counters, which stands at"),
    ),
    "dq's buffer free before the copy has read it": (
        (
            "send_tiles",
            "                    tma.store_wait(0)\n                    mbarrier.arrive(staging.free.index(PARITY))",
            "                    mbarrier.arrive(staging.free.index(PARITY))\n                    tma.store_wait(0)",
        ),
        ("early overwrite", "gradients", ".store(dq)", "store_wait is missing"),
    ),
    "dq's buffer never free": (
        ("send_tiles", "mbarrier.arrive(staging.free.index(PARITY))", "pass"),
        ("deadlock", "gradients", "mbarrier.wait(staging.free", "lacks 1 of 1 arrivals"),
    ),
    "no fence before dq is sent": (
        ("stage_dq", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(dq)", "must call fence_async_shared()"),
    ),
    "no fence before ds is multiplied": (
        ("gradient_tiles", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(ds)", "must call fence_async_shared()"),
    ),
    "the other group's ds not waited for": (
        ("gradient_tiles", "mbarrier.wait(exchange.ready.index(count % 2), count // 2 & 1)", "pass"),
        ("early overwrite", "gradients", ".store(ds)", "ds_s["),
    ),
    "ds in one buffer": (
        (
            "gradient_tiles",
            "exchange.ds.index(count % 2 * T.GROUPS + GROUP).store(ds)",
            "exchange.ds.index(GROUP).store(ds)",
        ),
        ("race or uninitialized or early overwrite", "gradients", "", "ds_s["),
    ),
    "queries released before the products with them": (
        (
            "gradient_tiles",
            f"{DONE}\n            {FREE}",
            f"{FREE}\n            {DONE}",
        ),
        ("early overwrite", "load_tiles", "tma.async_load(", "["),
    ),
    "dq read while it is multiplied": (
        ("gradient_tiles", "dq = warpgroup_mma_wait(0, deps=(dq,))", "dq = warpgroup_mma_wait(1, deps=(dq,))"),
        ("missing wait", "gradients", "", "uses the accumulator"),
    ),
    "a tile late, no fence before ds is multiplied": (
        ("overlapped_tile", "fence_async_shared()", "pass"),
        ("missing fence", "gradients", ".store(ds)", "must call fence_async_shared()"),
    ),
    "a tile late, the other group's ds not waited for": (
        ("overlapped_tile", "mbarrier.wait(exchange.ready.index((count - 1) % 2), (count - 1) // 2 & 1)", "pass"),
        ("early overwrite or early read", "gradients", "", "ds_s["),
    ),
    "a tile late, ds multiplied where the next one lies": (
        ("overlapped_tile", "dq = partial_dq(call, (count - 1) % 2", "dq = partial_dq(call, count % 2"),
        ("early overwrite or early read or uninitialized", "gradients", "", "ds_s"),
    ),
    "a tile late, queries released before the products with them": (
        ("overlapped_tile", LATE, "\n        ".join(LATE.split("\n        ")[::-1])),
        ("early overwrite", "load_tiles", "tma.async_load(", "["),
    ),
    "keys never released": (
        ("gradients", "mbarrier.arrive(keys.free.index(0))", "pass"),
        ("deadlock", "load_tiles", "mbarrier.wait(keys.free", "lacks 2 of 2 arrivals"),
    ),
    "the bytes of delta forgotten": (
        ("load_queries", "descs.do.nbytes_per_cta + descs.delta.nbytes_per_cta", "descs.do.nbytes_per_cta"),
        ("byte count", "load_tiles", "mbarrier.expect(ring.do_ready", "bytes"),
    ),
}

PLANTED = (1, 1, 1, 256, 384, 64, 64)  # 3 items of up to 4 tiles


@pytest.fixture
def two_programs(table, monkeypatch):
    """Programs that wait for each other, rings of two: everything is used again."""
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 2)
    table["backward_hopper"] = {"STAGES": 2, "OVERLAP": 0}
    return table["backward_hopper"]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_without_a_fault_nothing_is_found(two_programs, schedule, seed):
    first, result = alone(schedule, seed, PLANTED)
    assert result.ok, result
    two_programs["OVERLAP"] = 1
    again, result = alone(schedule, seed, PLANTED)
    assert result.ok and all(map(torch.equal, first, again)), result


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_under_every_schedule(two_programs, monkeypatch, fault):
    (function, *edits), (kind, partition, line, words) = FAULTS[fault]
    shared = function == "load_queries"
    copy, name = planted(tiles if shared else fused_kernel, function, *edits), function if shared else KERNEL
    monkeypatch.setattr(fused_kernel, name, copy[name])
    two_programs["OVERLAP"] = int(function == "overlapped_tile")
    for schedule, seed in SCHEDULES[1:4]:
        _, result = alone(schedule, seed, PLANTED)
        files = copy["__file__"], tiles.__file__  # where keys and queries are loaded
        fitting = [found(result, kind, partition, line, words=words, file=file) for file in files]
        assert any(fitting), f"{schedule}, seed {seed}:\n{result}"


def test_explain_says_that_one_kernel_runs(table):
    q = torch.zeros(1, 2, 256, 64, dtype=torch.bfloat16)
    lines = flex_attention.explain(q, q, q).splitlines()
    assert lines[2] == "backward: one kernel, warp-specialised for Hopper, tiles of 64 x 128"
    assert lines[3] == "dq: added up in memory in an order that counters fix, five matrix products in all"
