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
)
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import dq, visits
from kernels.flex_attention.hopper import forward as hopper
from kernels.flex_attention.hopper.visits import every
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


def reasons(p):
    return hopper.USUAL.reason_not(p), hopper_backward.reason_not(p)


def test_a_hopper_takes_16_bit_heads_of_up_to_128(gpu):
    for D, dtype in [(64, torch.bfloat16), (80, torch.float16), (128, torch.bfloat16)]:
        p, tensors = on_gpu(shape=(1, 2, 2, 256, 256, D, D), dtype=dtype)
        assert reasons(p) == (None, None)


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
    assert reasons(p) == (why, why)


@pytest.mark.parametrize("sizes", [(136, 64), (64, 192), (256, 256)])
def test_heads_of_more_than_128_have_kernels(gpu, sizes):
    p, tensors = on_gpu(shape=(1, 2, 2, 256, 256, *sizes))
    assert reasons(p) == (None, None)
    assert hopper_backward.tiles(p) == (64, 64)


def test_blocks_must_hold_whole_tiles(gpu):
    p, tensors = on_gpu(mask=causal_block_mask(256, BLOCK_SIZE=(64, 128)))
    assert reasons(p) == ("blocks of 64 x 128 are no multiples of 128 x 128", None)
    p, tensors = on_gpu(mask=causal_block_mask(256, BLOCK_SIZE=(128, 64)))
    assert reasons(p) == tuple(f"blocks of 128 x 64 are no multiples of {m} x 128" for m in (128, 64))


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus(gpu, capability):
    gpu(*capability)
    p, tensors = on_gpu()
    assert reasons(p) == ("the GPU is not a Hopper",) * 2
    p, tensors = dataclasses.replace(p, device=torch.device("cpu")), tensors
    assert reasons(p) == ("the GPU is not a Hopper",) * 2


def test_the_callers_own_tiles_are_the_plain_kernels(gpu):
    p, tensors = on_gpu(BLOCK_N=64)
    assert reasons(p) == ("kernel_options ask for tiles or warps of their own", None)
    p, tensors = on_gpu(bwd_num_warps=4)
    assert reasons(p) == (None, "kernel_options ask for tiles or warps of their own")
    p, tensors = on_gpu(DETERMINISTIC=True)
    assert reasons(p) == (None, None)


def test_a_table_without_stages_says_that_the_plain_kernel_is_faster(gpu, monkeypatch):
    p, tensors = on_gpu()
    monkeypatch.setattr(problem, "table_options", lambda *_: {"BLOCK_N": 128, "BLOCK_M": 64, "STAGES": 0})
    assert reasons(p) == ("for d64 16-bit plain the plain kernel is faster",) * 2


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
def test_an_older_triton(gpu, monkeypatch, version):
    monkeypatch.setattr(common_gluon, "gluon", None)
    monkeypatch.setattr(triton, "__version__", version)
    p, tensors = on_gpu()
    assert reasons(p) == (f"Triton is {version}, needs 3.8 for Gluon's TMA",) * 2


def explained(monkeypatch, **call):
    p, tensors = on_gpu(**call)
    with monkeypatch.context() as patch:
        patch.setattr(operator, "_resolved", lambda *_: (Plan(p), None, None))
        return flex_attention.explain(*tensors).splitlines()


def test_explain_says_which_forward_kernel_runs(gpu, monkeypatch):
    lines = explained(monkeypatch)
    assert lines[1] == "forward: warp-specialised for Hopper, tiles of 128 x 128"
    assert lines[2].startswith("backward: one kernel, warp-specialised for Hopper, tiles of 64 x 128; ")
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
        assert reasons(p) == (None, None)


# How the backward pass is dealt.


def that_tma_reads(shape, mask=None, **options):
    """The problem of a call too large for this machine's memory: its tensors are one number, as long as they are wide."""
    B, Hq, Hkv, M, N, D, Dv = shape
    tensors = [torch.zeros(1, dtype=torch.bfloat16).expand(B, *s) for s in ((Hq, M, D), (Hkv, N, D), (Hkv, N, Dv))]
    p, _ = cases.resolved(*tensors, None, mask, None, Hq != Hkv, options)
    layouts = {name: (strides, True) for name, (strides, _) in p.layouts.items()}
    return dataclasses.replace(p, device=torch.device("cuda"), layouts=layouts)


def lists_of(M, N, mask_mod=mods.causal):
    """A block mask of one block a row: how many there are says nothing of how it is cut."""
    rows, columns = M // 128, N // 128
    lists = torch.ones(1, 1, rows, dtype=torch.int32), torch.zeros(1, 1, rows, columns, dtype=torch.int32)
    return BlockMask.from_kv_blocks(*lists, mask_mod=mask_mod, seq_lengths=(M, N))


@pytest.mark.parametrize(("D", "N", "items"), [(64, 8192, 2), (128, 2048, 2), (128, 4096, 1), (256, 512, 1)])
def test_the_next_items_queries_come_early_where_memory_is_left(of_an_h200, D, N, items):
    assert hopper.USUAL.tiling(that_tma_reads((1, 2, 2, N, N, D, D)), {}).KEPT == items


GIB = 2**30


@pytest.mark.parametrize(
    ("shape", "options", "cut"),
    [  # added: pairs, heads, queries, splits
        ((4, 16, 16, 4096, 4096, 64, 64), {}, (True, 64, 1, 4096, 1)),
        ((16, 16, 16, 1024, 1024, 64, 64), {}, (True, 256, 1, 1024, 1)),
        ((1, 32, 8, 8192, 8192, 64, 64), {}, (True, 8, 4, 8192, 1)),
        ((1, 4, 1, 131072, 131072, 64, 64), {}, (True, 1, 4, 131072, 1)),
        ((1, 4, 1, 16384, 16384, 64, 64), {}, (True, 1, 4, 16384, 2)),  # few items: their heads are dealt out
        ((32, 16, 16, 512, 512, 64, 64), {}, (False, 512, 1, 512, 1)),  # few queries
        ((1, 4, 1, 1024, 16384, 64, 64), {}, (False, 1, 4, 1024, 2)),  # many keys, and all wait for 64 tiles of queries
        ((1, 8, 1, 512, 16384, 64, 64), {}, (False, 1, 8, 512, 2)),
        ((4, 16, 16, 4096, 4096, 128, 128), {}, (False, 64, 1, 4096, 1)),
        ((2, 32, 8, 8192, 8192, 128, 128), {}, (False, 4, 4, 8192, 1)),
        ((1, 32, 2, 8192, 8192, 128, 128), {}, (False, 1, 16, 8192, 4)),
        ((1, 32, 32, 16384, 16384, 128, 128), {}, (False, 4, 1, 16384, 1)),
        ((1, 4, 1, 32768, 32768, 128, 128), {}, (False, 1, 1, 32768, 1)),
        ((1, 4, 2, 131072, 131072, 256, 256), {}, (False, 1, 1, 8192, 1)),  # bands
        ((1, 4, 2, 32768, 32768, 256, 256), {"WORKSPACE": GIB}, (False, 1, 1, 16384, 1)),
        ((1, 1, 1, 8192, 8192, 128, 128), {}, (False, 1, 1, 8192, 1)),  # nothing to deal out
    ],
)
def test_how_it_is_dealt(gpu, shape, options, cut):
    p = that_tma_reads(shape, lists_of(*shape[3:5]), **options)
    assert hopper_backward.cut(p, every(p)) == cut


@pytest.mark.parametrize(
    ("shape", "most", "cut"),
    [
        ((1, 32, 8, 32768, 32768, 128, 128), (256 * 257 // 2, 256), (False, 1, 1, 32768, 1)),
        ((1, 32, 8, 32768, 32768, 128, 128), (3753, 47), (False, 4, 4, 32768, 1)),  # documents
        ((1, 40, 8, 16384, 16384, 128, 128), (4160, 64), (False, 3, 5, 16384, 1)),  # two of one length
        ((2, 16, 2, 8192, 8192, 128, 128), (341, 13), (False, 4, 8, 8192, 2)),  # a long one among short ones
    ],
)
def test_the_fewer_blocks_are_visited_the_more_heads_a_launch_has(gpu, shape, most, cut):
    assert hopper_backward.cut(that_tma_reads(shape, lists_of(*shape[3:5])), visits.Counts(*most)) == cut


@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("heads", [1, 3, 16])
@pytest.mark.parametrize("M", [300, 5000, 20000])
@pytest.mark.parametrize("SPARSE_M", [None, 384])
def test_a_cut_keeps_to_the_workspace_and_reaches_enough_items(gpu, D, heads, M, SPARSE_M):
    mask = SPARSE_M and causal_block_mask(M, 20000, BLOCK_SIZE=(SPARSE_M, 128))
    for WORKSPACE in (2**33, 2**31, 2**27, 10**7, 10**6, 0):
        p = that_tma_reads((2, 2 * heads, 2, M, 20000, D, D), mask, WORKSPACE=WORKSPACE)
        cut = hopper_backward.cut(p, every(p))
        if cut is None:
            assert WORKSPACE <= 10**7 or 20000 * 2 * D * 4 > WORKSPACE / 4
            continue
        assert 1 <= cut.splits <= cut.heads <= heads and 1 <= cut.pairs <= 4 and 1 <= cut.queries <= M
        assert cut.queries == M or cut.queries % 128 == cut.queries % (SPARSE_M or 1) == 0
        if cut.added:
            assert D == 64 and (cut.heads, cut.queries) == (heads, M)
            taken = cut.pairs * heads * -(-M // 384) * 384 * 64 * 4
        else:
            taken = cut.pairs * cut.heads * 20096 * -(-cut.queries // 128) * 128 * 2
            assert cut.heads == heads or cut.pairs == 1
        parts = cut.splits > 1 or cut.heads < heads or cut.queries < M
        assert taken <= WORKSPACE and parts * cut.pairs * cut.splits * 20000 * 2 * D * 4 <= WORKSPACE / 4
        if WORKSPACE == 2**33:
            items = cut.pairs * cut.heads * 20000 / (64 if D == 256 else 128)
            assert items >= 4 * 132 or cut[1:3] == (4, heads)


@pytest.mark.parametrize("D", [64, 128, 256])
def test_no_workspace_computes_ds_twice_and_explain_says_why(gpu, D):
    p = that_tma_reads((1, 4, 2, 4096, 4096, D, D), WORKSPACE=0)
    why = "a workspace of 0 bytes holds neither ds of enough queries nor the sums of a head's dq"
    assert hopper_backward.reason_not(p) == why
    lines = str(Plan(p)).split("\n")
    assert f"backward_dkdv: warp-specialised for Hopper, tiles of 64 x {64 if D == 256 else 128}" in lines
    assert f"dq: ds is computed again, seven matrix products in all, because {why}" in lines


def test_a_band_of_few_tiles_of_queries_is_multiplied_in_smaller_ones(gpu):
    p = that_tma_reads((1, 4, 1, 131072, 131072, 128, 128))
    tiles = [dq.options(p, heads, queries)["BLOCK_M"] for heads, queries in ((1, 8192), (4, 8192), (1, 131072))]
    assert tiles == [64, 128, 128]


@pytest.mark.parametrize(
    ("D", "says"),
    [(64, "dq: added up in memory in an order that counters fix"), (128, "dq: one product with ds, which is kept")],
)
def test_explain_says_how_it_is_dealt_and_what_becomes_of_ds(gpu, D, says):
    lines = str(Plan(that_tma_reads((1, 8, 1, 8192, 8192, D, D), lists_of(8192, 8192)))).split("\n")
    assert lines[2].endswith("; 8 heads x 8192 queries a launch, 4 items a tile of keys")
    assert lines[3].startswith(says) and lines[3].endswith("five matrix products in all")
