"""Tiles of keys cut into several items, launches cut into bands: right numbers, the same bits under every schedule."""

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.common.operator import clear_caches
from kernels.flex_attention import BlockMask, causal_block_mask
from kernels.flex_attention.hopper import cost, scheduler
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.flex_attention.hopper import backward_kernel as dkdv
from kernels.flex_attention.hopper import fused_kernel, split, tiles
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

GQA = (1, 4, 1, 200, 300, 64, 64)  # B, Hq, Hkv, M, N, D, Dv
SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1)]
STORED, COUNTERS, WIDE = (f"attention_{name}_hopper_kernel" for name in ("dkdv", "gradients", "dkdv_wide"))


def stored(pairs=1, heads=1, columns=10**6, shares=(1, 1)):
    """ds of so much at a time, and a tile of keys in ``shares[0]`` splits of its heads and ``shares[1]`` of their queries."""
    return cost.Cut("stored", pairs, heads, columns, *shares, 0.0)


def counters(splits):
    return cost.Cut("counters", 1, 1, 10**6, splits, 1, 0.0)


def cut_so(monkeypatch, cut):
    """Every call is cut so from now on."""
    monkeypatch.setattr(cost, "cut", lambda p: cut._replace(columns=min(cut.columns, p.M)))


@pytest.fixture
def check(hopper_table, monkeypatch):
    """Runs a case of the zoo, cut so, against float64; the model finds nothing; returns o and the gradients."""

    def checked(cut, name="causal", launches=1, kernel=None, **options):
        cut_so(monkeypatch, cut)
        with gluon_model.executing(schedule="random") as results:
            o, grads = cases.check(name, **{"shape": GQA, "dtype": torch.bfloat16, "BLOCK_SIZE": 128} | options)
        kernel = kernel or {"stored": STORED, "counters": COUNTERS}[cut.way]
        assert [result.kernel for result in results] == ["attention_forward_hopper_kernel"] + [kernel] * launches
        assert all(result.ok for result in results), "\n\n".join(map(str, results))
        return (o.detach(), *grads)

    return checked


EVERYTHING = stored(heads=3, columns=128, shares=(2, 2))  # heads that splits do not divide, a last launch of one head


@pytest.mark.parametrize(
    ("cut", "launches", "options"),
    [
        (EVERYTHING, 4, {"shape": (1, 4, 1, 140, 200, 64, 64)}),
        (counters(2), 1, {"shape": (1, 3, 1, 140, 200, 64, 64)}),
    ]
    + [
        pytest.param(*case, marks=pytest.mark.thorough)
        for case in [
            (stored(heads=4, shares=(4, 1)), 1, {}),
            (stored(heads=4, shares=(1, 4)), 1, {"name": "nothing"}),
            (stored(heads=1, columns=128), 8, {"name": "nothing"}),
            (
                stored(columns=128, shares=(1, 2)),
                4,
                {"name": "no mask, no score", "shape": (1, 2, 2, 130, 70, 16, 128)},
            ),
            (stored(pairs=4, shares=(1, 2)), 1, {"name": "sliding window", "shape": (2, 2, 2, 200, 300, 64, 64)}),
            (stored(heads=2), 4, {"shape": (2, 4, 1, 130, 300, 80, 48)}),
            (stored(heads=16, shares=(8, 1)), 1, {"shape": (1, 16, 1, 130, 130, 64, 64)}),
            (EVERYTHING, 4, {"name": "heads differ"}),
            (EVERYTHING, 4, {"name": "softcap"}),
            (EVERYTHING, 4, {"name": "dead rows"}),
            (EVERYTHING, 4, {"name": "natten"}),
            (EVERYTHING, 4, {"name": "nothing allowed"}),
            (EVERYTHING, 4, {"layout": "heads inside"}),
            (EVERYTHING, 4, {"scale": -0.2}),
            (stored(heads=2, shares=(2, 1)), 2, {"shape": (2, 2, 1, 200, 300, 64, 64), "kv_batch": 1}),
            (counters(4), 1, {"shape": (2, 2, 1, 200, 300, 64, 64), "kv_batch": 1}),
            (counters(4), 1, {"name": "softcap"}),
            (counters(2), 1, {"name": "heads differ"}),
            (counters(4), 1, {"name": "nothing allowed"}),
            (counters(16), 1, {"shape": (1, 16, 1, 130, 130, 128, 128)}),
        ]
    ],
)
def test_numbers(check, cut, launches, options):
    check(cut, launches=launches, **options)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param("causal", (1, 2, 1, 140, 130, 136, 136), marks=pytest.mark.thorough),
        pytest.param("nothing", (1, 4, 2, 140, 130, 256, 192), marks=pytest.mark.thorough),
        pytest.param("softcap", (1, 2, 1, 140, 130, 192, 136), marks=pytest.mark.thorough),
    ],
)
def test_wide_heads(check, name, shape):
    launches = shape[1] // shape[2] * shape[2] * 2
    check(stored(heads=1, columns=128, shares=(1, 2)), name, launches, WIDE, shape=shape)


@pytest.mark.thorough
def test_blocks_larger_than_tiles_in_any_order(check):
    """Bands of whole blocks: the lists of a band name the band's blocks alone, in their own order."""
    counts = torch.tensor([2, 0, 3], dtype=torch.int32)[None, None]
    indices = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 2, 0]], dtype=torch.int32)[None, None]
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=(256, 128), seq_lengths=(700, 350))
    check(stored(columns=256), "nothing", 6, block_mask=mask, shape=(1, 2, 1, 700, 350, 64, 64))


@pytest.mark.thorough
def test_captured_tensors_that_learn_are_not_cut(hopper_table, monkeypatch):
    cut_so(monkeypatch, EVERYTHING)
    with gluon_model.executing() as results:
        cases.check("learned alibi", shape=(1, 2, 1, 200, 300, 64, 64), dtype=torch.bfloat16, BLOCK_SIZE=128)
    assert [result.kernel for result in results] == ["attention_forward_hopper_kernel", STORED]


# Schedules and orders.


SMALL = (1, 3, 1, 256, 384, 64, 64)


def alone(cut, schedule="round-robin", seed=0, shape=SMALL, masked=True):
    """``(the gradients, as bits; what the model found of each launch)`` of rows whose lse and delta are zero."""
    B, Hq, Hkv, M, N, D, Dv = shape
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=generator).bfloat16() for s in ((B, Hq, M, D), (B, Hkv, N, D), (B, Hkv, N, Dv)))
    clear_caches()
    p, x = cases.resolved(q, k, v, None, causal_block_mask(M, N) if masked else None, None, True)
    rows = [torch.zeros(B * Hq, -(-M // 128) * 128) for _ in range(2)]
    empty = torch.empty

    def poisoned(*size, dtype=None, **of):
        return empty(*size, dtype=dtype, **of).fill_(float("nan") if dtype in (torch.float32, torch.bfloat16) else 0)

    grads = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    with gluon_model.executing(schedule=schedule, seed=seed) as results, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", poisoned)
        split.gradients_of(p, x, q, rows, *grads, cut._replace(columns=min(cut.columns, M)))
    return [x.view(torch.uint8) for x in grads], results


CUTS = [stored(heads=2, columns=128, shares=(2, 2)), counters(2)]
PARTS = stored(heads=3, shares=(1, 2))


@pytest.mark.thorough
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_every_schedule_and_number_of_programs_leaves_the_same_bits(hopper_table, monkeypatch, cut, programs):
    first, _ = alone(cut)
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: programs)
    for schedule, seed in SCHEDULES:
        again, results = alone(cut, schedule, seed)
        assert all(result.ok for result in results), results
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("names", scheduler.ORDERS[1:])
def test_every_order_of_items_leaves_the_same_bits(hopper_table, monkeypatch, names):
    first, _ = alone(CUTS[0], shape=(1, 2, 1, 128, 256, 64, 64))
    monkeypatch.setattr(
        scheduler, "tile_order_of", lambda *_: dict(zip(("TILES_FIRST", "SERPENTINE"), names, strict=True))
    )
    again, results = alone(CUTS[0], "random", shape=(1, 2, 1, 128, 256, 64, 64))
    assert all(result.ok for result in results) and all(map(torch.equal, first, again))


# Planted faults: a wrong count shows in the numbers, and a race, a deadlock or a missing wait in what the model finds.

#: function that is edited, the module that calls it, old text, new text; cut.
FAULTS = {
    "splits that overlap": ("heads_of_item", dkdv, "* (share + 1) //", "* (share + 2) //", CUTS[0]),
    "splits that begin late": ("heads_of_item", fused_kernel, "split.heads * share", "1 + split.heads * share", CUTS[1]),
    "splits that leave out a tile": (
        "share_of_row", scheduler, "(number + 1) // split.query_splits", "(number + 1) // split.query_splits - number", PARTS,
    ),
    "masked tiles that end late": ("share_of_row", scheduler, "gl.maximum(row.some, begin)", "gl.maximum(0, begin)", PARTS),
    "ds of the second band where the first one's lies": ("column_of", dkdv, "m0 - split.band", "m0", CUTS[0]),
    "ds of the second head where the first one's lies": ("slot_of", dkdv, "+ j - split.begin", "- split.begin", CUTS[0]),
    "items of another pair": ("pair_of", scheduler, "unit // (split.head_splits", "unit // (16 * split.head_splits", CUTS[1]),
    "sums that are never fresh": ("add_rows", tiles, "gl.where(fresh > 0, 0, N)", "N", CUTS[0]),
    "sums that are always fresh": ("add_rows", tiles, "gl.where(fresh > 0, 0, N)", "0", CUTS[0]),
    "sums of all units in one place": ("add_rows", tiles, "unit.to(gl.int64) * N * D", "N * D - N * D", CUTS[1]),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(hopper_table, monkeypatch, fault):
    function, module, old, new, cut = FAULTS[fault]
    shape = SMALL if cut is not CUTS[1] else (2, *SMALL[1:])
    right, results = alone(cut, shape=shape)
    assert all(result.ok for result in results)
    copy = planted(tiles if function == "add_rows" else scheduler, function, old, new)
    for caller in (module, scheduler):
        monkeypatch.setattr(caller, function, copy[function], raising=False)
    wrong, results = alone(cut, shape=shape)
    assert not all(result.ok for result in results) or not all(map(torch.equal, right, wrong))


#: Faults of the kernel for wide heads and of the ring, in a cut launch: what the model must find, as in the other tests.
RACES = {
    "the next part's tile read before it has come": (
        (dkdv, "gradient_tiles", "mbarrier.wait(ring.do_ready.index(stage), phase)", "pass"),
        ("early read or uninitialized", "gradients", "warpgroup_mma(v, do"),
    ),
    "ds of the last band not waited for": (
        (dkdv, "gradients", "tma.store_wait(0)", "pass"),
        ("unfinished", "gradients", "tma.async_store(call.descs.ds"),
    ),
    "the counter never moved on": (
        (fused_kernel, "send_tiles", 'gl.atomic_add(counter, 1, sem="release")', "pass"),
        ("deadlock", "send_tiles", "gl.atomic_add(counter, 0"),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", RACES)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_a_planted_race_is_found(hopper_table, monkeypatch, fault, schedule, seed):
    (module, *edits), wanted = RACES[fault]
    copy = planted(module, *edits)
    kernel = STORED if module is dkdv else COUNTERS
    monkeypatch.setattr(module, kernel, copy[kernel])
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 2)
    _, results = alone(CUTS[module is fused_kernel], schedule, seed)
    assert any(found(result, *wanted, file=copy["__file__"]) for result in results), "\n".join(map(str, results))
