"""Block masks: analytic builders equal torch's, torch's own objects are accepted, and what is skipped is skipped."""

import inspect

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex

from kernels import runtime
from kernels.flex_attention import (
    BlockMask,
    causal_block_mask,
    create_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    sliding_window_block_mask,
)
from kernels.flex_attention import block_mask as masks
from tests.flex_attention import cases

SIZES = [(37, 41, 16), (64, 64, 16), (50, 20, (16, 8)), (20, 50, (8, 16)), (1, 40, 16), (40, 1, 16), (16, 16, 16)]
LISTS = ("kv", "full_kv", "q", "full_q")


def assert_same(ours, theirs):
    assert ours.shape[-2:] == theirs.shape[-2:] and ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for name in LISTS:
        (num, indices), (want_num, want_indices) = (
            (getattr(m, f"{name}_num_blocks"), getattr(m, f"{name}_indices")) for m in (ours, theirs)
        )
        assert indices.is_contiguous(), name  # torch's kernels take them for granted
        columns = want_indices.shape[-1]
        got = masks.dense_blocks(num, indices, columns).expand(*want_num.shape, columns)
        assert torch.equal(got, masks.dense_blocks(want_num, want_indices, columns)), name


@pytest.mark.parametrize(("M", "N", "BLOCK_SIZE"), SIZES)
def test_causal_builder(M, N, BLOCK_SIZE):
    theirs = create_block_mask(mods.causal, 1, 1, M, N, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
    assert_same(causal_block_mask(M, N, BLOCK_SIZE=BLOCK_SIZE), theirs)


@pytest.mark.parametrize("window", [0, 3, 16, 100])
@pytest.mark.parametrize(("M", "N", "BLOCK_SIZE"), SIZES)
def test_sliding_window_builder(M, N, BLOCK_SIZE, window):
    mod = mods.sliding_window(window)
    theirs = create_block_mask(mod, 1, 1, M, N, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
    assert_same(sliding_window_block_mask(window, M, N, BLOCK_SIZE=BLOCK_SIZE), theirs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(56,), (5, 20, 1, 30), (16, 16, 24), (1,) * 56, (15, 2, 39)])
@pytest.mark.parametrize("BLOCK_SIZE", [16, (8, 16), (16, 8), 64])
def test_document_builder(lengths, BLOCK_SIZE, causal):
    ids = cases.document_ids(*lengths)
    mod = mods.document(ids, mods.causal if causal else None)
    theirs = create_block_mask(mod, 1, 1, 56, 56, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
    assert_same(document_block_mask(ids, causal=causal, BLOCK_SIZE=BLOCK_SIZE), theirs)


@pytest.mark.share(4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("BLOCK_SIZE", [16, (8, 16), (16, 8), 64])
@pytest.mark.parametrize("order", ["padding", "falling", "interleaved", "random"])
def test_document_builder_with_ids_in_any_order(order, BLOCK_SIZE, causal):
    """-1 for padding behind the last document is the usual case of ids that fall."""
    ids = {
        "padding": [0] * 20 + [1] * 15 + [-1] * 21,
        "falling": [3] * 20 + [2] * 1 + [1] * 20 + [0] * 15,
        "interleaved": [0, 1] * 28,
        "random": torch.randint(0, 4, (56,), generator=torch.Generator().manual_seed(0)).tolist(),
    }[order]
    ids = torch.tensor(ids, device=runtime.device)
    ours = document_block_mask(ids, causal=causal, BLOCK_SIZE=BLOCK_SIZE)
    dense = create_block_mask(ours.mask_mod, 1, 1, 56, 56, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
    listed = ours.to_dense()[..., : dense.to_dense().shape[-2], : dense.to_dense().shape[-1]]
    assert bool((listed >= dense.to_dense()).all()), "a block with an allowed pair is left out"
    cases.check(shape=(1, 2, 1, 56, 56, 16, 16), block_mask=ours)


def test_document_builder_without_tokens():
    mask = document_block_mask(torch.zeros(0, dtype=torch.int64, device=runtime.device), BLOCK_SIZE=16)
    q = torch.randn(1, 1, 0, 16, device=runtime.device)
    assert flex_attention(q, q, q, block_mask=mask).shape == (1, 1, 0, 16)


def test_document_builder_with_a_batch():
    ids = torch.stack([cases.document_ids(5, 36), cases.document_ids(20, 21)])
    theirs = create_block_mask(mods.document(ids, mods.causal), 2, None, 41, 41, device=runtime.device, BLOCK_SIZE=16)
    assert_same(document_block_mask(ids, BLOCK_SIZE=16), theirs)
    cases.check(shape=(2, 2, 1, 41, 41, 16, 16), block_mask=document_block_mask(ids, BLOCK_SIZE=16))


def test_builders_need_memory_for_blocks_alone():
    """A million tokens: the dense mask would have 10^12 elements."""
    mask = sliding_window_block_mask(1024, 2**20, BLOCK_SIZE=4096)
    assert mask.kv_indices.shape[-2:] == (256, 256) and mask.sparsity() > 99


def check_mask(mask, M=64, N=64, **options):
    cases.check(shape=(1, 2, 1, M, N, 16, 16), block_mask=mask, **options)


@pytest.mark.skipif(
    "separate_full_blocks" not in inspect.signature(create_block_mask).parameters, reason="this torch has no such masks"
)
def test_torchs_masks_are_accepted_whole_and_without_full_blocks():
    for separate in (True, False):
        mask = create_block_mask(
            mods.causal, None, None, 64, 64, device=runtime.device, BLOCK_SIZE=16, separate_full_blocks=separate
        )
        assert (mask.full_kv_num_blocks is None) is not separate
        check_mask(mask)


@pytest.mark.parametrize("compute_q_blocks", [True, False])
def test_masks_from_lists(compute_q_blocks):
    """Lists need not be sorted, and what stands past their end does not count."""
    num = torch.tensor([[[1, 2, 0, 1]]], dtype=torch.int32, device=runtime.device)
    indices = torch.tensor([[[[1, 9, 9, 9], [3, 0, 9, 9], [9, 9, 9, 9], [2, 9, 9, 9]]]], dtype=torch.int32)
    full_num = torch.tensor([[[1, 1, 0, 3]]], dtype=torch.int32, device=runtime.device)
    full_indices = torch.tensor([[[[3, 9, 9, 9], [2, 9, 9, 9], [9, 9, 9, 9], [3, 0, 1, 9]]]], dtype=torch.int32)
    if compute_q_blocks:  # torch's own transposition needs indices inside the matrix
        indices, full_indices = (t.masked_fill(t == 9, 0) for t in (indices, full_indices))
    mask = BlockMask.from_kv_blocks(
        num, indices.to(runtime.device), full_num, full_indices.to(runtime.device), BLOCK_SIZE=16,
        mask_mod=lambda b, h, q_idx, kv_idx: (q_idx + kv_idx) % 3 != 0, compute_q_blocks=compute_q_blocks,
    )  # fmt: skip
    check_mask(mask)


def test_lists_that_are_cut_short():
    """kv_indices need only be as wide as the longest list."""
    whole = sliding_window_block_mask(16, 64, BLOCK_SIZE=16)
    mask = BlockMask.from_kv_blocks(
        whole.kv_num_blocks, whole.kv_indices[..., :2], whole.full_kv_num_blocks, whole.full_kv_indices[..., :1],
        BLOCK_SIZE=16, mask_mod=whole.mask_mod, seq_lengths=(64, 64), compute_q_blocks=False,
    )  # fmt: skip
    check_mask(mask)


def test_a_sliced_mask_with_its_mask_mod_set_again():
    """Queries 32 to 63 of 64, as in decoding: positions are shifted by where the part begins."""
    whole = create_block_mask(mods.causal, 1, 1, 64, 64, device=runtime.device, BLOCK_SIZE=16)
    part = whole[:, :, torch.tensor([2, 3], device=runtime.device)]
    part.mask_mod = lambda b, h, q_idx, kv_idx: q_idx + 32 >= kv_idx
    part.seq_lengths = (32, 64)
    check_mask(part, 32, 64)


def test_heads_and_batch_of_a_mask_may_be_cut():
    whole = create_block_mask(
        lambda b, h, q_idx, kv_idx: q_idx >= kv_idx + b + h, 3, 4, 48, 48, device=runtime.device, BLOCK_SIZE=16
    )
    part = whole[:1, :2]
    part.mask_mod = whole.mask_mod
    cases.check(shape=(1, 2, 1, 48, 48, 16, 16), block_mask=part)


def test_adjusted_masks():
    mask = create_block_mask(mods.causal, 1, 1, 64, 64, device=runtime.device, BLOCK_SIZE=16)._adjust(40, 50)
    if mask.seq_lengths != (40, 50):
        pytest.skip("this torch adjusts to whole blocks only")
    check_mask(mask, 40, 50)


@pytest.mark.parametrize("BLOCK_SIZE", [1, 7, 16, 24, 48, 100, 128, 2**30, (16, 64), (64, 16), (24, 40)])
def test_any_block_size(BLOCK_SIZE):
    if BLOCK_SIZE == 1:
        mask = create_block_mask(mods.causal, 1, 1, 9, 8, device=runtime.device, BLOCK_SIZE=1)
        cases.check(shape=(1, 1, 1, 9, 8, 16, 16), block_mask=mask)
    elif BLOCK_SIZE == 2**30:  # one partial block for everything, as torch makes where there is no mask
        ones, zeros = (torch.full((1, 1, 1), i, dtype=torch.int32, device=runtime.device) for i in (1, 0))
        mask = BlockMask.from_kv_blocks(
            ones, zeros[..., None], BLOCK_SIZE=BLOCK_SIZE, mask_mod=mods.causal, seq_lengths=(50, 60)
        )
        check_mask(mask, 50, 60)
    else:
        mask = create_block_mask(mods.sliding_window(20), 1, 1, 50, 60, device=runtime.device, BLOCK_SIZE=BLOCK_SIZE)
        check_mask(mask, 50, 60)


@pytest.mark.parametrize(("M", "N"), [(48, 64), (64, 48), (1, 48)])
@pytest.mark.parametrize("mask_mod", [mods.noop_mask, mods.causal])
def test_tiles_of_the_last_block_that_lie_behind_the_end(mask_mod, M, N):
    """Tiles of 16 divide the lengths, blocks of 32 don't: nothing is behind the last key, and nobody asks behind the last
    query."""
    mask = create_block_mask(mask_mod, 1, 1, M, N, device=runtime.device, BLOCK_SIZE=32)
    tiles = {"BLOCK_M": 16, "BLOCK_N": 16, "bwd_BLOCK_M": 16, "bwd_BLOCK_N": 16}
    cases.check(shape=(1, 1, 1, M, N, 16, 16), block_mask=mask, **tiles)
    cases.check(shape=(1, 1, 1, M, N, 16, 16), block_mask=mask, WORKSPACE=0, **tiles)


def test_blocks_that_are_not_listed_are_never_read():
    """Keys and values of skipped blocks are NaN; queries of skipped blocks too."""
    mask = sliding_window_block_mask(8, 64, BLOCK_SIZE=16)
    q, k, v = (torch.randn(1, 1, 64, 16, device=runtime.device) for _ in range(3))
    with torch.no_grad():
        want = flex_attention(q, k, v, block_mask=mask)[:, :, 48:]
        k[:, :, :32], v[:, :, :32] = float("nan"), float("nan")
        got = flex_attention(q, k, v, block_mask=mask)[:, :, 48:]
    assert torch.equal(got, want)


def test_full_blocks_run_no_mask_code():
    """A mask_mod that forbids everything has no say in a full block."""
    mask = causal_block_mask(64, BLOCK_SIZE=16)
    mask.mask_mod = lambda b, h, q_idx, kv_idx: q_idx < 0
    check_mask(mask)


def test_torchs_mask_of_everything_is_of_any_length():
    q, k = (torch.randn(1, 2, n, 16, device=runtime.device) for n in (40, 50))
    everything = torch_flex._create_empty_block_mask(q, k)
    torch.testing.assert_close(flex_attention(q, k, k, block_mask=everything), flex_attention(q, k, k))


def test_explain_counts_what_is_skipped():
    q = torch.randn(1, 1, 64, 16, device=runtime.device)
    text = flex_attention.explain(q, q, q, block_mask=causal_block_mask(64, BLOCK_SIZE=16))
    assert "16 blocks, 6 full (no mask code), 4 partial (mask mod runs), 6 skipped" in text
    assert "no code runs" in text and "mask: none" in flex_attention.explain(q, q, q)
    assert "score mod runs" in flex_attention.explain(q, q, q, mods.softcap(2.0))
