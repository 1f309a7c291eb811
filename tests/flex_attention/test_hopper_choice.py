"""Which calls the warp-specialised kernels take, and what they say of the others; no kernel runs here."""

import dataclasses

import pytest
import torch
import triton

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.flex_attention import (
    BlockMask,
    causal_block_mask,
    flex_attention,
    mods,
    operator,
    problem,
    stored_ds,
)
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import cost, fused
from kernels.flex_attention.hopper import forward as hopper
from kernels.flex_attention.plain import fits_tma
from kernels.flex_attention.plan import Plan
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")


def on_gpu(capability=(9, 0), shape=(1, 2, 2, 256, 256, 64, 64), dtype=torch.bfloat16, mask=None, **options):
    """``(problem, (query, key, value))`` of a call on a GPU that is not there."""
    b, hq, hkv, m, n, d, dv = shape
    tensors = [torch.zeros(b, *size, dtype=dtype) for size in ((hq, m, d), (hkv, n, d), (hkv, n, dv))]
    p, _ = cases.resolved(*tensors, None, mask, None, hq != hkv, options)
    return dataclasses.replace(p, device=torch.device("cuda")), tensors


@pytest.fixture
def gpu(of_an_h200, monkeypatch):
    """What is known of an H200, where there is none; yields a function that makes it another GPU."""

    def become(*capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)

    become(9, 0)
    return become


def reasons(p, query, key, value):
    return hopper.USUAL.reason_not(p), hopper_backward.reason_not(p, fits_tma(query))


def test_a_hopper_takes_16_bit_heads_of_up_to_128(gpu):
    for D, dtype in [(64, torch.bfloat16), (80, torch.float16), (128, torch.bfloat16)]:
        p, tensors = on_gpu(shape=(1, 2, 2, 256, 256, D, D), dtype=dtype)
        assert reasons(p, *tensors) == (None, None)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"dtype": torch.float32}, "torch.float32 has no 16-bit matrix instruction"),
        ({"shape": (1, 2, 2, 256, 256, 64, 264)}, "heads of 264 do not fit the registers"),
        ({"shape": (1, 2, 2, 256, 256, 264, 64)}, "heads of 264 do not fit the registers"),
        ({"shape": (1, 2, 2, 256, 256, 60, 64)}, "TMA cannot read these strides"),
        ({"shape": (1, 2, 2, 256, 0, 64, 64)}, "TMA cannot read these strides"),
    ],
)
def test_what_neither_kernel_takes(gpu, call, why):
    p, tensors = on_gpu(**call)
    assert reasons(p, *tensors) == (why, why)


@pytest.mark.parametrize("sizes", [(136, 64), (64, 192), (256, 256)])
def test_heads_of_more_than_128_have_kernels(gpu, sizes):
    p, tensors = on_gpu(shape=(1, 2, 2, 256, 256, *sizes))
    assert reasons(p, *tensors) == (None, None)
    assert hopper_backward.tiles(p) == (64, 64)


def test_blocks_must_hold_whole_tiles(gpu):
    p, tensors = on_gpu(mask=causal_block_mask(256, BLOCK_SIZE=(64, 128)))
    assert reasons(p, *tensors) == ("blocks of 64 x 128 are no multiples of 128 x 128", None)
    p, tensors = on_gpu(mask=causal_block_mask(256, BLOCK_SIZE=(128, 64)))
    assert reasons(p, *tensors) == tuple(f"blocks of 128 x 64 are no multiples of {m} x 128" for m in (128, 64))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus(gpu, capability):
    gpu(*capability)
    p, tensors = on_gpu()
    assert reasons(p, *tensors) == ("the GPU is not a Hopper",) * 2
    p, tensors = dataclasses.replace(p, device=torch.device("cpu")), tensors
    assert reasons(p, *tensors) == ("the GPU is not a Hopper",) * 2


def test_the_callers_own_tiles_are_the_plain_kernels(gpu):
    p, tensors = on_gpu(BLOCK_N=64)
    assert reasons(p, *tensors) == ("kernel_options ask for tiles or warps of their own", None)
    p, tensors = on_gpu(bwd_num_warps=4)
    assert reasons(p, *tensors) == (None, "kernel_options ask for tiles or warps of their own")
    p, tensors = on_gpu(DETERMINISTIC=True)
    assert reasons(p, *tensors) == (None, None)


def test_a_table_without_stages_says_that_the_plain_kernel_is_faster(gpu, monkeypatch):
    p, tensors = on_gpu()
    monkeypatch.setattr(problem, "table_options", lambda *_: {"BLOCK_N": 128, "BLOCK_M": 64, "STAGES": 0})
    assert reasons(p, *tensors) == ("for d64 16-bit plain the plain kernel is faster",) * 2


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
def test_an_older_triton(gpu, monkeypatch, version):
    monkeypatch.setattr(common_gluon, "gluon", None)
    monkeypatch.setattr(triton, "__version__", version)
    p, tensors = on_gpu()
    assert reasons(p, *tensors) == (f"Triton is {version}, needs 3.8 for Gluon's TMA",) * 2


def explained(monkeypatch, **call):
    p, tensors = on_gpu(**call)
    with monkeypatch.context() as patch:
        patch.setattr(operator, "_resolved", lambda *_: (Plan(p), None, None))
        return flex_attention.explain(*tensors).splitlines()


def test_explain_says_which_forward_kernel_runs(gpu, monkeypatch):
    lines = explained(monkeypatch)
    assert lines[1] == "forward: warp-specialised for Hopper, tiles of 128 x 128"
    assert lines[2] == "backward_dkdv: warp-specialised for Hopper, tiles of 64 x 128"
    assert not any(line.startswith(("forward: BLOCK_M", "backward_dkdv: BLOCK_M")) for line in lines)
    lines = explained(monkeypatch, dtype=torch.float32)
    assert lines[1] == "forward: the kernel for any GPU, because torch.float32 has no 16-bit matrix instruction"
    assert lines[2].startswith("forward: BLOCK_M 64, BLOCK_N 32")
    assert not any(line.startswith("forward") for line in explained(monkeypatch, shape=(1, 2, 2, 1, 4096, 64, 64)))


def test_a_short_call_has_the_least_to_launch(gpu, monkeypatch):
    """The forward pass through pointers; one query or one key more, and Hopper's kernel takes it."""
    lines = explained(monkeypatch, shape=(1, 2, 2, 128, 128, 64, 64))
    assert (
        lines[1]
        == "forward: the kernel for any GPU, because the call is short, and the plain kernel has less to set up"
    )
    assert lines[2].endswith("TMA False")
    for M, N, heads in ((136, 128, 2), (128, 136, 2), (128, 128, 133)):  # or more heads than there are multiprocessors
        p, tensors = on_gpu(shape=(1, heads, heads, M, N, 64, 64))
        assert reasons(p, *tensors) == (None, None)


# The kernel of all three gradients.


def large_on_gpu(shape=(1, 2, 2, 4096, 4096, 64, 64), mask=None, **options):
    """The problem of a call too large for this machine's memory: its tensors are one number."""
    B, Hq, Hkv, M, N, D, Dv = shape
    tensors = [torch.zeros(1, dtype=torch.bfloat16).expand(B, *s) for s in ((Hq, M, D), (Hkv, N, D), (Hkv, N, Dv))]
    p, _ = cases.resolved(*tensors, None, mask, None, Hq != Hkv, options)
    return dataclasses.replace(p, device=torch.device("cuda"))


@pytest.mark.parametrize(
    ("shape", "heads"),
    [
        ((1, 2, 2, 4096, 4096, 64, 64), None),
        ((32, 16, 16, 512, 512, 64, 64), 512),
        ((16, 16, 16, 1024, 1024, 64, 64), None),
        ((4, 16, 16, 4096, 4096, 128, 128), 64),
        ((2, 32, 8, 8192, 8192, 128, 128), 4),
        ((1, 32, 8, 16384, 16384, 128, 128), None),
        ((1, 32, 32, 16384, 16384, 128, 128), 4),
        ((1, 8, 8, 131072, 131072, 128, 128), None),
    ],
)
def test_counters_where_the_workspace_holds_too_few_heads(of_an_h200, shape, heads):
    why = fused.slower(large_on_gpu(shape))
    assert why == (heads and f"the workspace holds ds of {heads} key heads, enough for a launch")


@pytest.mark.parametrize(
    ("asks", "heads", "counted"), [("a tensor", 16, True), ("a tensor", 4, False), ("numbers", 16, False)]
)
def test_counters_where_a_mask_asks_a_tensor_and_the_workspace_does_not_hold_all(of_an_h200, asks, heads, counted):
    """Documents' items are few and of any length; a workspace that holds all heads is one launch all the same."""
    ids, window = torch.zeros(16384, dtype=torch.int32), 1024
    mods = {"a tensor": lambda b, h, m, n: ids[m] == ids[n], "numbers": lambda b, h, m, n: m - n < window}
    mask = BlockMask.from_kv_blocks(
        torch.ones(1, 1, 128, dtype=torch.int32), torch.zeros(1, 1, 128, 128, dtype=torch.int32)
    )
    mask.mask_mod = mods[asks]
    why_not = fused.slower(large_on_gpu((1, heads, heads, 16384, 16384, 128, 128), mask=mask))
    assert (why_not is None) == counted


TOKENS = 4096
IDS, OTHER_IDS, ROWS_OF_IDS, LAST = (torch.zeros(size, dtype=torch.int32) for size in (TOKENS, TOKENS, (4, TOKENS), 4))
DOCUMENTS = {
    "documents": mods.document(IDS, mods.causal),
    "documents of rows": mods.document(ROWS_OF_IDS),
    "the other way": lambda b, h, m, n: (m >= n) & (IDS[n] == IDS[m]) & (IDS[m] >= 0),
}
OTHERS = {
    "padding": lambda b, h, m, n: n < LAST[b],
    "only queries' numbers": lambda b, h, m, n: IDS[m] == IDS[m],
    "an order of numbers": lambda b, h, m, n: IDS[m] <= IDS[n],
    "a neighbour's number": lambda b, h, m, n: IDS[m] == IDS[n // 2],
    "another tensor's numbers": lambda b, h, m, n: IDS[m] == OTHER_IDS[n],
    "causal": mods.causal,
}


def masked(mask_mod, shape, **options):
    lists = (
        torch.ones(1, 1, TOKENS // 128, dtype=torch.int32),
        torch.zeros(1, 1, *(TOKENS // 128,) * 2, dtype=torch.int32),
    )
    return large_on_gpu(shape, mask=BlockMask.from_kv_blocks(*lists, mask_mod=mask_mod), **options)


@pytest.mark.parametrize("name", [*DOCUMENTS, *OTHERS])
def test_documents_keep_ds_where_the_workspace_holds_all_heads(of_an_h200, name):
    """dq's sums are all queries', however few blocks are visited; where few heads are held, counters are faster."""
    mask_mod = (DOCUMENTS | OTHERS)[name]
    for heads, held in ((16, name in DOCUMENTS), (17, False)):
        why_not = fused.slower(masked(mask_mod, (4, heads, heads, TOKENS, TOKENS, 64, 64)))
        assert why_not == ("the workspace holds ds of 64 key heads, enough for a launch" if held else None)


@pytest.mark.parametrize(("D", "N", "items"), [(64, 8192, 2), (128, 2048, 2), (128, 4096, 1), (256, 512, 1)])
def test_the_next_items_queries_come_early_where_memory_is_left(of_an_h200, D, N, items):
    assert hopper.USUAL.tiling(large_on_gpu((1, 2, 2, N, N, D, D)), {}).KEPT == items


def test_no_workspace_no_sums(of_an_h200):
    assert fused.slower(large_on_gpu(WORKSPACE=0)) == "kernel_options allow no WORKSPACE"


def test_a_workspace_smaller_than_a_heads_sums_is_kept_to(of_an_h200):
    shape = (1, 4, 1, 32768, 32768, 128, 128)
    assert fused.slower(large_on_gpu(shape, WORKSPACE=2**26)) is None
    said = "dq's sums for a key head take 67108864 bytes, more than the WORKSPACE of kernel_options"
    assert fused.slower(large_on_gpu(shape, WORKSPACE=2**26 - 1)) == said


# Tiles of keys cut into more items, ds into bands.


def that_tma_reads(*args, **options):
    """``large_on_gpu``, of tensors as long as they are wide."""
    p = large_on_gpu(*args, **options)
    return dataclasses.replace(p, layouts={name: (strides, True) for name, (strides, _) in p.layouts.items()})


def lists_of(M, N, mask_mod=lambda b, h, m, n: n <= m):
    """A block mask of one block a row: how many there are says nothing of how it is cut."""
    rows, columns = M // 128, N // 128
    lists = torch.ones(1, 1, rows, dtype=torch.int32), torch.zeros(1, 1, rows, columns, dtype=torch.int32)
    return BlockMask.from_kv_blocks(*lists, mask_mod=mask_mod, seq_lengths=(M, N))


GIB = 2**30


@pytest.mark.parametrize(
    ("shape", "options", "way"),
    [
        ((1, 32, 2, 8192, 8192, 128, 128), {}, ("stored", 1, 16, 8192, 4, 1)),
        ((1, 4, 1, 32768, 32768, 128, 128), {}, ("stored", 1, 1, 32768, 1, 1)),
        ((1, 4, 1, 32768, 32768, 64, 64), {}, ("counters", 1, 4, 32768, 4, 1)),
        ((1, 4, 2, 32768, 32768, 256, 256), {}, ("stored", 1, 1, 32768, 1, 1)),
        ((1, 4, 2, 131072, 131072, 256, 256), {}, ("stored", 1, 1, 8192, 1, 1)),
        ((1, 1, 1, 8192, 8192, 128, 128), {}, ("stored", 1, 1, 8192, 1, 4)),
        ((1, 64, 8, 8192, 8192, 64, 64), {}, ("counters", 8, 8, 8192, 4, 1)),
        ((1, 4, 1, 131072, 131072, 64, 64), {}, ("counters", 1, 4, 131072, 4, 1)),
        ((1, 4, 1, 131072, 131072, 128, 128), {}, ("counters", 1, 4, 131072, 4, 1)),
        ((1, 4, 1, 131072, 131072, 128, 128), {"WORKSPACE": GIB // 2}, None),
        ((1, 4, 2, 32768, 32768, 256, 256), {"WORKSPACE": GIB}, ("stored", 1, 1, 16384, 1, 1)),
        ((1, 4, 2, 32768, 32768, 256, 256), {"WORKSPACE": 0}, None),
        ((1, 4, 4, 32768, 32768, 128, 128), {}, None),
        ((2, 32, 8, 8192, 8192, 128, 128), {}, None),
        ((4, 16, 16, 4096, 4096, 64, 64), {}, None),
        ((32, 16, 16, 512, 512, 256, 256), {}, None),
    ],
)
def test_few_tiles_of_keys_are_cut_and_many_are_not(gpu, shape, options, way):
    p = that_tma_reads(shape, lists_of(*shape[3:5]), **options)
    chosen = cost.cut(p)
    assert way == (chosen and chosen[:-1])
    usual, others = cost.candidates(p)
    assert chosen is None or chosen.time <= 1.02 * min(one.time for one in others) < usual.time


@pytest.mark.parametrize("D", [64, 128, 256])
def test_a_mask_of_unknown_blocks_is_cut_only_where_ds_would_be_computed_twice(gpu, D):
    for mask_mod in (mods.sliding_window(64), mods.document(torch.zeros(32768, dtype=torch.int32)), mods.causal):
        cut = cost.cut(that_tma_reads((1, 4, 1, 32768, 32768, D, D), lists_of(32768, 32768, mask_mod)))
        assert (cut is not None) == (D == 256 or mask_mod is mods.causal)


@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("G", [1, 3, 16])
@pytest.mark.parametrize("WORKSPACE", [2**31, 2**27, 10**6])
def test_a_cut_keeps_to_the_workspace(gpu, D, G, WORKSPACE):
    p = that_tma_reads((1, 2 * G, 2, 20000, 20000, D, D), WORKSPACE=WORKSPACE)
    for one in cost.candidates(p)[1]:
        if one.way == "stored":
            columns = -(-one.columns // 128) * 128
            assert one.pairs * one.heads * 20096 * columns * 2 <= WORKSPACE
            assert one.columns == p.M or one.columns % 128 == 0
        sums = one.pairs * one.splits * p.N * 2 * D * 4
        beside = WORKSPACE // 8
        if one.way == "counters":
            beside += WORKSPACE - one.pairs * one.heads * 20096 * max(D, 64) * 4
        assert sums <= beside


@pytest.mark.parametrize(
    ("D", "N", "mask", "split", "kept"),
    [
        (64, 4096, "causal", True, 2),
        (64, 4096, "causal", False, 2),
        (128, 2048, "causal", False, 2),
        (128, 2048, "causal", True, 1),
        (128, 4096, "causal", False, 1),
        (128, 4096, "padding", False, 1),
        (128, 4096, "documents", False, 2),
        (128, 4096, "documents of rows", False, 2),
        (128, 4096, "documents", True, 1),
        (128, 4096, None, False, 2),
        (128, 4096, None, True, 1),
    ],
)
def test_long_items_of_large_heads_leave_the_cache_room_where_their_loop_spills(of_an_h200, D, N, mask, split, kept):
    mask = mask and lists_of(N, N, (DOCUMENTS | OTHERS)[mask])
    p = large_on_gpu((4, 2, 2, N, N, D, D), mask)
    assert hopper_backward.tiling(p, True, split, {}).KEPT == kept


def test_a_band_of_few_tiles_of_queries_is_multiplied_in_smaller_ones(gpu):
    p = that_tma_reads((1, 4, 1, 131072, 131072, 128, 128))
    tiles = [stored_ds.options(p, heads, queries)["BLOCK_M"] for heads, queries in ((1, 8192), (4, 8192), (1, 131072))]
    assert tiles == [64, 128, 128]


def test_explain_says_how_it_is_cut_and_what_is_predicted(gpu):
    p = that_tma_reads((1, 32, 2, 8192, 8192, 128, 128), lists_of(8192, 8192))
    lines = str(Plan(p)).split("\n")
    assert lines[2] == (
        "backward: ds of 16 heads x 8192 queries a launch, 4 items (4 of heads x 1 of queries) a tile of keys, "
        "because 128 items of a tile of keys each would keep 132 multiprocessors 48% busy"
    )
    predicted = next(
        line for line in lines if line.startswith("backward, predicted for an H200: dq by counters, 1 item a")
    )
    assert predicted.count(" ms") == 4
