"""Queries that stand somewhere among the keys, as behind a cache: masks aligned at the bottom right."""

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import (
    causal_block_mask,
    create_block_mask,
    flex_attention,
    mods,
    sliding_window_block_mask,
)
from tests.flex_attention.test_block_mask import assert_same

SIZES = [(37, 61), (1, 61), (1, 1), (64, 64), (61, 37), (40, 1), (16, 48), (5, 0), (0, 5)]
BUILDERS = {
    "causal": (causal_block_mask, lambda m, n: m >= n),
    "window": (
        lambda *sizes, **given: sliding_window_block_mask(9, *sizes, **given),
        lambda m, n: (m >= n) & (m - n <= 9),
    ),
}


def qkv(M, N):
    torch.manual_seed(M + N)
    return [torch.randn(1, 2, n, 16, device=runtime.device, requires_grad=True) for n in (M, N, N)]


def dense(allowed, q, k, v):
    """o and gradients of a dense mask [M, N]."""
    scores = (q @ k.mT / 4).masked_fill(~allowed, -torch.inf)
    weights = torch.where(
        allowed.any(-1, keepdim=True), (scores - scores.amax(-1, keepdim=True).clamp_min(-1e9)).exp(), 0.0
    )
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ v


def check(block_mask, allowed, q, k, v):
    o = flex_attention(q, k, v, block_mask=block_mask)
    if k.shape[2] == 0:
        assert torch.equal(o, torch.zeros_like(o))
        return
    want, do = dense(allowed, q, k, v), torch.randn_like(o)
    torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5)
    grads = (torch.autograd.grad(x, (q, k, v), do) for x in (o, want))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def allowed_by(rule, M, N, offset):
    m, n = (torch.arange(size, device=runtime.device) for size in (M, N))
    return rule(m[:, None] + offset, n[None])


@pytest.mark.parametrize("BLOCK_SIZE", [16, (8, 32)])
@pytest.mark.parametrize(("M", "N"), SIZES)
@pytest.mark.parametrize("name", BUILDERS)
def test_queries_at_the_end_of_the_keys(name, M, N, BLOCK_SIZE):
    build, rule = BUILDERS[name]
    check(build(M, N, offset=N - M, BLOCK_SIZE=BLOCK_SIZE), allowed_by(rule, M, N, N - M), *qkv(M, N))


@pytest.mark.parametrize("offset", [0, 3, 20, 64, 1000, -5, -1000])
@pytest.mark.parametrize("name", BUILDERS)
def test_any_offset(name, offset):
    build, rule = BUILDERS[name]
    mask = build(33, 50, offset=offset, BLOCK_SIZE=16)
    check(mask, allowed_by(rule, 33, 50, offset), *qkv(33, 50))
    theirs = create_block_mask(mask.mask_mod, 1, 1, 33, 50, device=runtime.device, BLOCK_SIZE=16)
    assert_same(mask, theirs)


def test_without_an_offset_the_mods_are_the_zoos_own():
    assert causal_block_mask(40).mask_mod is mods.causal


def test_decoding_token_by_token_is_the_whole_at_once():
    """One kernel for all tokens: the offset is an argument from its second value on."""
    q, k, v = (t.detach() for t in qkv(40, 40))
    for build in (causal_block_mask, lambda *sizes, **more: sliding_window_block_mask(7, *sizes, **more)):
        whole = flex_attention(q, k, v, block_mask=build(40))
        for n in (1, 2, 17, 39, 40):
            mask = build(1, n, offset=n - 1)
            o = flex_attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], block_mask=mask)
            torch.testing.assert_close(o, whole[:, :, n - 1 : n])


MODS = {
    "score": (mods.alibi(2), None),
    "causal score": (mods.causal_score, None),
    "documents": (None, mods.document(torch.arange(60, device=runtime.device) // 25, mods.causal)),
    "prefix": (None, mods.prefix_causal(4)),
    "function": (None, lambda b, h, q_idx, kv_idx: q_idx - 3 >= kv_idx),
}


@pytest.mark.parametrize("given", [int, torch.tensor])
@pytest.mark.parametrize("name", MODS)
def test_any_mod(name, given):
    """The last queries, with an offset, are the last of all."""
    score_mod, mask_mod = MODS[name]
    q, k, v = (t.detach() for t in qkv(60, 60))
    offset = given(40)
    offset = offset.to(runtime.device) if isinstance(offset, torch.Tensor) else offset
    results = []
    for M, shift in ((60, lambda mod: mod), (20, lambda mod: mod and mods.with_offset(mod, offset))):
        score, mask = shift(score_mod), shift(mask_mod)
        blocks = mask and create_block_mask(mask, None, None, M, 60, device=runtime.device, BLOCK_SIZE=16)
        results.append(flex_attention(q[:, :, 60 - M :], k, v, score, blocks)[:, :, -20:])
    torch.testing.assert_close(*results)


def test_inside_torch_compile():
    q, k, v = (t.detach() for t in qkv(8, 24))

    def decode(q, k, v):
        mask = causal_block_mask(q.shape[2], k.shape[2], offset=k.shape[2] - q.shape[2], BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=mask)

    for N in (24, 20, 17):
        torch.testing.assert_close(
            torch.compile(decode, backend="eager")(q, k[:, :, :N], v[:, :, :N]), decode(q, k[:, :, :N], v[:, :, :N])
        )


@pytest.mark.parametrize("offset", [None, 2.5, True, "3"])
def test_what_is_no_offset_is_refused(offset):
    for build in (causal_block_mask, lambda *sizes, **more: sliding_window_block_mask(7, *sizes, **more)):
        with pytest.raises(ValueError, match="offset is .*, needs a whole number, the position of the first query"):
            build(8, offset=offset)


def test_what_is_no_mod_is_refused():
    with pytest.raises(ValueError, match=r"inner takes 3 arguments, needs \(b, h, q_idx, kv_idx\)"):
        mods.with_offset(lambda h, m, n: m >= n, 3)
