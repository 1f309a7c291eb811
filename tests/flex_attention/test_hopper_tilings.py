"""Hopper's forward kernel in its other tiles: three groups, and two small programs a multiprocessor.

Right numbers on the model, no race under any schedule, planted faults found; which calls take them, and what is said of
others.
"""

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.flex_attention import causal_block_mask, mods
from kernels.flex_attention.hopper import forward as hopper
from kernels.flex_attention.hopper import forward_kernel, scheduler
from kernels.flex_attention.inputs import Inputs
from kernels.flex_attention.plan import HOPPER, Plan
from tests.flex_attention import cases

if not common_gluon.has_inline_asm():
    pytest.skip("warps that arrive one by one need Triton 3.9", allow_module_level=True)

from kernels import gluon_model
from tests.flex_attention.hopper_faults import OF_TILINGS
from tests.flex_attention.test_hopper import FORWARD, SCHEDULES, check, random_call
from tests.flex_attention.test_hopper_choice import lists_of, that_tma_reads
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")


@pytest.fixture
def only(hopper_table, monkeypatch):
    """``only(way)``: the forward pass goes this way alone; yields the table, too, as ``only.table``."""

    def become(way):
        monkeypatch.setattr(way, "slower", lambda p: None)
        for other in HOPPER.values():
            if other is not way:
                monkeypatch.setattr(other, "reason_not", lambda p: "another one is tried here")

    become.table = hopper_table
    return become


# Numbers.


@pytest.mark.parametrize("name", ["nothing", "causal as a score mod", "softcap", "squared", "head scale"])
@pytest.mark.parametrize("M", [385, pytest.param(130, marks=pytest.mark.thorough)])
def test_three_groups(only, name, M):
    only(hopper.TALL)
    check(name, shape=(1, 2, 1, M, 300, 64, 64), schedule="random")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name",
    [
        "causal",
        "sliding window",
        "prefix",
        "heads differ",
        "nothing allowed",
        "no mask, no score",
        "alibi",
        "dead rows",
    ],
)
def test_small_programs(only, name):
    only(hopper.SMALL)
    check(name, schedule="random")


@pytest.mark.parametrize(("way", "name"), [(hopper.TALL, "nothing"), (hopper.SMALL, "causal")])
@pytest.mark.parametrize(
    ("dtype", "D", "N"),
    [(torch.float16, 64, 256), (torch.bfloat16, 48, 70), (torch.float16, 32, 257), (torch.bfloat16, 16, 130)],
)
def test_sizes(only, way, name, dtype, D, N):
    only(way)
    check(name, shape=(1, 2, 1, 200, N, D, D), dtype=dtype, schedule="random")


def backwards_ragged(b, h, q_idx, kv_idx):
    """More queries than keys, and the first ones see nothing."""
    return (kv_idx <= q_idx - 150) & (kv_idx > q_idx - 290)


@pytest.mark.parametrize("mask_mod", [backwards_ragged, mods.sliding_window(70), lambda b, h, m, n: n <= m + 40])
@pytest.mark.parametrize("shape", [(1, 2, 2, 450, 300, 64, 64), (1, 2, 1, 300, 450, 64, 64)])
def test_what_no_query_reaches_is_left_out_and_nothing_else(only, mask_mod, shape):
    only(hopper.SMALL)
    check(mask_mod=mask_mod, shape=shape, schedule="random")


# Schedules, programs.

SHAPES = {hopper.TALL: (1, 4, 2, 400, 300, 64, 64), hopper.SMALL: (1, 4, 2, 300, 300, 64, 64)}
WAYS = list(SHAPES)


def alone(way, schedule="round-robin", seed=0, shape=None):
    """``(what the forward kernel leaves, as bits; what the model found)``."""
    p, x = random_call(shape or SHAPES[way], mods.causal if way is hopper.SMALL else None)
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        outputs = cases.outputs(p)
        way.forward(p, x, *outputs)
    return [x.view(torch.uint8) for x in outputs], results[0]


@pytest.mark.parametrize("way", WAYS)
def test_every_schedule_leaves_the_same_bits(hopper_table, way):
    first, _ = alone(way)
    for schedule, seed in SCHEDULES:
        again, result = alone(way, schedule, seed)
        assert result.ok, result
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", scheduler.ORDERS)
def test_every_order_and_number_of_programs_leaves_the_same_bits(hopper_table, monkeypatch, way, names):
    first, _ = alone(way)
    monkeypatch.setattr(
        scheduler, "tile_order", lambda *_: dict(zip(("TILES_FIRST", "SERPENTINE"), names, strict=True))
    )
    for multiprocessors in (1, 2, 5):
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=multiprocessors: n)
        again, result = alone(way, "random")
        assert result.grid == (min(12, multiprocessors * (2 if way is hopper.SMALL else 1)),)
        assert result.ok, result
        assert all(map(torch.equal, first, again)), multiprocessors


def test_a_group_multiplies_no_tile_that_it_does_not_reach(hopper_table, monkeypatch):
    """Of the first block under a causal mask the first group has one tile of 64 keys, the second one two."""
    products = []
    for reach in ((0, 0), (2**30, 2**30)):
        monkeypatch.setattr(Inputs, "extent", reach)
        _, result = alone(hopper.SMALL, shape=(1, 1, 1, 128, 128, 64, 64))
        assert result.ok, result
        operations = [operation.what for machine in result.machines for operation in machine.operations]
        products.append(operations.count("matrix product"))
    assert products == [6, 8]


# Planted faults.

PLANTED = {hopper.TALL: (1, 2, 1, 384, 640, 64, 64), hopper.SMALL: (1, 2, 1, 384, 384, 64, 64)}


@pytest.fixture
def small_rings(hopper_table, monkeypatch):
    """One program for all items, rings of two: everything is used again."""
    for way in WAYS:
        hopper_table[way.TABLE] = {"STAGES": 2, "KEPT": 1, "maxnreg": 128}
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 1)
    return hopper_table


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_without_a_fault_nothing_is_found(small_rings, way, schedule, seed):
    _, result = alone(way, schedule, seed, PLANTED[way])
    assert result.ok, result


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", OF_TILINGS)
def test_a_planted_fault_is_found_under_every_schedule(small_rings, monkeypatch, fault):
    name, edits, wanted = OF_TILINGS[fault]
    way = HOPPER[name]
    copy = planted(forward_kernel, *edits)
    monkeypatch.setattr(forward_kernel, FORWARD, copy[FORWARD])
    for schedule, seed in SCHEDULES[:4]:
        _, result = alone(way, schedule, seed, PLANTED[way])
        assert found(result, *wanted, file=copy["__file__"]), f"{schedule}, seed {seed}:\n{result}"


# The choice.


@pytest.fixture
def gpu(of_an_h200, monkeypatch):
    """An H200's table and size, where there is none."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def chosen(shape, mask=None, **options):
    return Plan(that_tma_reads(shape, mask, **options))


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ((4, 16, 16, 4096, 4096, 64, 64), "hopper_tall"),  # 11 rounds of 1.28 against 16
        ((4, 16, 16, 4096, 4096, 32, 48), "hopper_tall"),
        ((2, 32, 8, 2048, 2048, 64, 64), "hopper_tall"),
        ((64, 12, 12, 1024, 1024, 64, 64), "hopper_tall"),  # 35 against 47
        ((64, 12, 12, 1023, 1023, 64, 64), "hopper"),
        ((256, 12, 12, 512, 512, 64, 64), "hopper"),
        ((1, 8, 8, 2048, 2048, 64, 64), "hopper"),  # one round of either
        ((1, 16, 16, 2048, 2048, 64, 64), "hopper"),  # two of either
        ((4, 16, 16, 4096, 4096, 128, 128), "hopper"),
        ((4, 16, 16, 4096, 4096, 64, 128), "hopper"),
    ],
)
def test_three_groups_where_waves_of_192_queries_are_the_shorter(gpu, shape, way):
    assert chosen(shape).forward == way


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ((256, 12, 12, 197, 197, 64, 64), "hopper_small"),
        ((256, 12, 12, 257, 257, 64, 64), "hopper"),
        ((8, 12, 12, 197, 197, 64, 64), "hopper"),  # 192 tiles of queries
        ((256, 12, 12, 197, 197, 128, 128), "hopper"),
    ],
)
def test_small_programs_for_short_rows_without_a_mask(gpu, shape, way):
    assert chosen(shape).forward == way


@pytest.fixture
def under_masks(gpu, monkeypatch):
    """As if a GPU had shown that small programs are faster under masks of up to 1024 queries and keys."""
    says = hopper.SMALL.options
    monkeypatch.setattr(hopper.SMALL, "options", lambda p: says(p) | {"LONGEST": 1024})


def test_no_small_programs_under_a_mask_before_a_gpu_has_shown_that_they_are_faster(gpu):
    p = that_tma_reads(SHORT, causal_block_mask(512))
    assert hopper.SMALL.reason_not(p) == "no GPU has shown that it is faster under a mask"


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ((32, 12, 12, 512, 512, 64, 64), "hopper_small"),
        ((16, 16, 16, 1024, 1024, 64, 64), "hopper_small"),
        ((16, 16, 16, 1152, 1152, 64, 64), "hopper"),
        ((32, 12, 12, 512, 512, 128, 128), "hopper"),
        ((2, 12, 12, 512, 512, 64, 64), "narrow"),  # 96 tiles of queries
        ((32, 12, 12, 256, 256, 64, 64), "narrow"),
    ],
)
def test_small_programs_for_short_rows_under_a_causal_mask(under_masks, shape, way):
    assert chosen(shape, causal_block_mask(*shape[3:5])).forward == way


LONG, SHORT = (4, 16, 16, 4096, 4096, 64, 64), (32, 12, 12, 512, 512, 64, 64)


def test_what_the_tilings_say_of_calls_that_they_do_not_take(under_masks, monkeypatch):
    mod = "a score mod may need more registers than a thread has here"
    of_long, of_short = that_tma_reads(LONG), that_tma_reads(SHORT, causal_block_mask(512))
    assert hopper.TALL.reason_not(of_long) is None and hopper.SMALL.reason_not(of_short) is None
    assert hopper.TALL.reason_not(of_short) == "a block mask lists blocks for tiles of 128 queries"
    assert hopper.SMALL.reason_not(of_long) == "no mask leaves out keys, and larger tiles read fewer"
    for way, shape, mask in ((hopper.TALL, LONG, None), (hopper.SMALL, SHORT, causal_block_mask(512))):
        p = that_tma_reads(shape, mask)
        p.score_mod = object()
        assert way.reason_not(p) == mod
        p = that_tma_reads((*shape[:5], 128, 64), mask)
        assert way.reason_not(p) == "heads of 128 do not fit the registers"
    said = "the mask is more than ends of what a query sees, and may need more registers than a thread has here"
    document = mods.document(torch.zeros(512, dtype=torch.int32), mods.causal)
    assert hopper.SMALL.reason_not(that_tma_reads(SHORT, lists_of(512, 512, document))) == said
    few = that_tma_reads((2, 12, 12, 512, 512, 64, 64), causal_block_mask(512))
    assert hopper.SMALL.reason_not(few) == "there are 96 tiles of queries, no more than the 264 that it takes at once"
    monkeypatch.setattr(hopper, "has_inline_asm", lambda: False)
    assert {hopper.TALL.reason_not(of_long), hopper.SMALL.reason_not(of_short)} == {hopper.NO_ASSEMBLY}


def test_explain_says_which_tiles_and_why(under_masks):
    lines = str(chosen(LONG)).split("\n")
    times = "11 x 192 queries one after another take 0.88 times as long as 16 x 128"
    assert lines[1] == f"forward: warp-specialised for Hopper, tiles of 192 x 128, because {times}"
    assert lines[-2] == "forward, not in tiles of 128 x 64: no mask leaves out keys, and larger tiles read fewer"
    lines = str(chosen(SHORT, causal_block_mask(512))).split("\n")
    short = "rows are short, and two programs share a multiprocessor"
    assert lines[1] == f"forward: warp-specialised for Hopper, tiles of 128 x 64, because {short}"
    lines = str(chosen((1, 8, 8, 2048, 2048, 64, 64))).split("\n")
    assert lines[1] == "forward: warp-specialised for Hopper, tiles of 128 x 128"
    times = "1 x 192 queries one after another take 1.28 times as long as 1 x 128"
    assert f"forward, not in tiles of 192 x 128: {times}" in lines
