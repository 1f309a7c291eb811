"""No keys, no queries, and blocks that a mask lists where there are none: nothing is read there."""

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex

from kernels import runtime
from kernels.flex_attention import (
    AuxRequest,
    BlockMask,
    causal_block_mask,
    create_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    sliding_window_block_mask,
)


def randn(*shape):
    return torch.randn(shape, device=runtime.device, requires_grad=True)


def everything(M, N):
    return torch_flex._create_empty_block_mask(torch.empty(1, 1, M, 16), torch.empty(1, 1, N, 16)).to(runtime.device)


def listed(M, N):
    """To every block of queries block 0 of the keys is listed, whether it is there or not, and the other way round."""
    one = torch.ones(1, 1, 1 + max(M, N) // 16, dtype=torch.int32, device=runtime.device)
    lists = one, torch.zeros_like(one)[..., None]
    return BlockMask((M, N), *lists, *lists, *lists, *lists, BLOCK_SIZE=(16, 16), mask_mod=mods.causal)


MASKS = {
    "causal": lambda M, N: causal_block_mask(M, N, BLOCK_SIZE=16),
    "window": lambda M, N: sliding_window_block_mask(4, M, N, BLOCK_SIZE=16),
    "torch's": lambda M, N: create_block_mask(mods.causal, None, None, M, N, device=runtime.device, BLOCK_SIZE=16),
    "torch's of everything": everything,
    "listed": listed,
    "of a captured tensor": lambda M, N: create_block_mask(
        mods.document(torch.zeros(max(M, N), device=runtime.device)),
        None,
        None,
        M,
        N,
        device=runtime.device,
        BLOCK_SIZE=16,
    ),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    "B, H, M, N", [(1, 2, 3, 0), (1, 2, 0, 3), (1, 2, 0, 0), (1, 2, 1, 0), (2, 1, 40, 0), (1, 0, 4, 4)]
)
def test_nothing_under_a_mask(name, B, H, M, N):
    q, k, v, slopes = randn(B, H, M, 16), randn(B, H, N, 16), randn(B, H, N, 24), randn(max(H, 1))
    mask = MASKS[name](M, N)
    o, aux = flex_attention(q, k, v, mods.learned_alibi(slopes), mask, return_aux=AuxRequest(lse=True, max_scores=True))
    assert o.shape == (B, H, M, 24) and torch.equal(o, torch.zeros_like(o))
    for got in aux.lse, aux.max_scores:
        assert torch.equal(got, torch.full((B, H, M), -torch.inf, device=runtime.device))
    (o.sum() + aux.lse.nan_to_num(0, 0, 0).sum()).backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in (q, k, v, slopes))
    if H:
        with torch.no_grad():
            assert torch.equal(flex_attention(q, k, v, block_mask=mask), o)


def test_builders_list_no_block_where_there_is_none():
    ids = torch.zeros(0, dtype=torch.int64, device=runtime.device)
    made = [build(M, N) for build in (MASKS["causal"], MASKS["window"]) for M, N in ((3, 0), (0, 3), (0, 0))]
    for mask in (*made, document_block_mask(ids, BLOCK_SIZE=16)):
        theirs = create_block_mask(mods.causal, 1, 1, *mask.seq_lengths, device=runtime.device, BLOCK_SIZE=16)
        for name in ("kv_indices", "full_kv_indices", "q_indices", "full_q_indices"):
            assert getattr(mask, name).shape == getattr(theirs, name).shape, name


@pytest.mark.parametrize("N", [224, 200])
def test_a_mask_that_is_cut_to_fewer_keys_than_it_was_made_for(N):
    """Blocks that were full are ragged then, and torch leaves the last query's own block listed, which is gone."""
    cut = causal_block_mask(256, BLOCK_SIZE=32)._adjust(256, N)
    if cut.seq_lengths != (256, N):
        pytest.skip("this torch adjusts to whole blocks only")
    check_as_dense(cut, 256, N)


def check_as_dense(block_mask, M, N):
    """Equal to the call with the mask's blocks, as far as there are keys, as a mask of single pairs."""
    parts = []
    for full in ("", "full_"):
        num, indices = (getattr(block_mask, f"{full}kv_{part}")[0, 0].tolist() for part in ("num_blocks", "indices"))
        parts.append([set(row[:count]) for row, count in zip(indices, num, strict=True)])
    BLOCK_M, BLOCK_N = block_mask.BLOCK_SIZE
    m, n = torch.arange(M)[:, None], torch.arange(N)[None]
    allowed = torch.zeros(M, N, dtype=torch.bool)
    for rows, inside in zip(parts, (m >= n, torch.ones_like(allowed)), strict=True):
        for i, blocks in enumerate(rows):
            for block in blocks:
                here = slice(i * BLOCK_M, (i + 1) * BLOCK_M), slice(block * BLOCK_N, (block + 1) * BLOCK_N)
                allowed[here] |= inside[here]
    q, k, v, do = (
        randn(1, 2, M, 16),
        randn(1, 2, N, 16),
        randn(1, 2, N, 16),
        torch.randn(1, 2, M, 16).to(runtime.device),
    )
    scores = (q @ k.mT / 4).masked_fill(~allowed.to(runtime.device), -torch.inf)
    want = (scores.softmax(-1).nan_to_num(0) if N else scores) @ v
    for attend in (flex_attention, torch.compile(flex_attention, backend="eager")):
        o = attend(q, k, v, None, block_mask)
        torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5)
        for one, other in zip(
            *(torch.autograd.grad(x, (q, k, v), do, retain_graph=True) for x in (o, want)), strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def full(num_blocks, indices):
    return {"full_kv_num_blocks": num_blocks, "full_kv_indices": indices}


def with_lists(M, N, **lists):
    """A mask of blocks of 16 with these lists; without ``q`` torch has not transposed them."""
    lists = {name: torch.tensor([[value]], dtype=torch.int32, device=runtime.device) for name, value in lists.items()}
    named = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices")
    none = (
        torch.zeros(1, 1, -(-M // 16), dtype=torch.int32, device=runtime.device),
        torch.zeros(1, 1, -(-M // 16), 1).int(),
    )
    lists = {"full_kv_num_blocks": none[0], "full_kv_indices": none[1].to(runtime.device)} | lists
    return BlockMask((M, N), *map(lists.get, named), None, None, BLOCK_SIZE=(16, 16), mask_mod=mods.causal)


@pytest.mark.parametrize(
    ("N", "lists"),
    [
        (32, {"kv_num_blocks": [1, 2], "kv_indices": [[0, 1], [2, 1]]}),
        (32, {"kv_num_blocks": [1, 1], "kv_indices": [[7], [0]], **full([0, 1], [[0], [9]])}),
        (16, {"kv_num_blocks": [1, 1], "kv_indices": [[1], [0]]}),
        (
            32,
            {
                "kv_num_blocks": [2, 1],
                "kv_indices": [[0, 1], [1, 0]],
                "q_num_blocks": [2, 2],
                "q_indices": [[0, 2], [0, 1]],
            },
        ),
        (0, {"kv_num_blocks": [1, 1], "kv_indices": [[1], [0]]}),
    ],
    ids=range(5),
)
@pytest.mark.parametrize("M", [32, 1])
def test_listed_blocks_that_are_not_there_are_keys_that_are_not_there(M, N, lists, monkeypatch):
    monkeypatch.setenv("KERNELS_CHECK", "1")  # as on the CPU
    check_as_dense(with_lists(32, N, **lists) if M == 32 else _first_query(with_lists(32, N, **lists), N), M, N)


def _first_query(mask, N):
    mask.seq_lengths = 1, N
    return mask


def test_queries_blocks_are_listed_anew_where_the_lists_were_made_for_more():
    mask = causal_block_mask(64, 64, BLOCK_SIZE=16)
    mask.seq_lengths = 40, 64
    check_as_dense(mask, 40, 64)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"kv_num_blocks": [1, 1], "kv_indices": [[0], [-1]]}, "kv_indices lists block -1, needs at least 0"),
        (
            {"kv_num_blocks": [1, 2], "kv_indices": [[0], [1]]},
            "kv_num_blocks counts 2 blocks, needs 0 to 1, as many as kv",
        ),
        ({"kv_num_blocks": [1, -1], "kv_indices": [[0], [1]]}, "kv_num_blocks counts -1 blocks"),
        (
            {"kv_num_blocks": [1, 1], "kv_indices": [[0], [1]], **full([0, 1], [[0], [-2]])},
            "full_kv_indices lists block -2",
        ),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("compiled", [False, True])
def test_counts_and_blocks_that_cannot_be_are_refused(lists, message, compiled, monkeypatch):
    monkeypatch.setenv("KERNELS_CHECK", "1")
    attend = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
    with pytest.raises(ValueError, match=message):
        attend(randn(1, 1, 32, 16), randn(1, 1, 40, 16), randn(1, 1, 40, 16), None, with_lists(32, 40, **lists))
