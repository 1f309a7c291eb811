"""Calls with mods and a mask in turn, with other layouts: whatever kernels depend on makes another plan."""

import itertools

import pytest
import torch

from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import create_block_mask, flex_attention
from kernels.flex_attention.checks import LISTS
from tests.tensors import LAYOUTS, agree, hooked, laid_out, takes_the_longer_way

M, BLOCK = 40, 16
MASKS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 9),
    "behind": lambda b, h, q, k: q <= k,
}


@pytest.fixture
def given():
    """``(query, key, value, slopes)``."""
    clear_caches()
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, M, 16, device=runtime.device) for _ in range(3)]
    return *tensors, torch.rand(2, device=runtime.device)


def blocks(mask="causal", **options):
    return create_block_mask(MASKS[mask], None, None, M, M, device=runtime.device, **options)


def call(query, key, value, slopes, mask):
    return flex_attention(query, key, value, score_mod=lambda s, b, h, q, k: s + slopes[h] * (k - q), block_mask=mask)


def expected(query, key, value, slopes, mask="causal"):
    m, n = (torch.arange(M, device=query.device)[at] for at in ((slice(None), None), None))
    s = query @ key.mT / 4 + slopes.float()[:, None, None] * (n - m)
    return s.masked_fill(~MASKS[mask](0, 0, m, n), float("-inf")).softmax(-1) @ value


def held_to(given, mask, name="causal", hook=None, do=None):
    """A call and its gradients are right."""
    leaves = [t.detach().requires_grad_() if t.grad_fn is not None else t.requires_grad_() for t in given[:3]]
    with hooked(hook):
        out = call(*leaves, given[3], mask)
    do = torch.ones_like(out) if do is None else do
    want = expected(*leaves, given[3], name)
    agree([out, *torch.autograd.grad(out, leaves, do)], [want, *torch.autograd.grad(want, leaves, do)])


def test_masks_and_captured_tensors_in_turn(given):
    query, key, value, slopes = given
    wide, odd = torch.rand(8, device=query.device), torch.rand(3, device=query.device)
    masks = {name: blocks(name) for name in MASKS}
    for _, (name, mask) in itertools.product(range(2), masks.items()):
        for other in (slopes, wide[::4], odd[1:], slopes.half(), torch.rand(2, device=query.device), slopes):
            held_to((query, key, value, other), mask, name)
    slopes.mul_(2)  # between calls
    held_to(given, masks["causal"])
    for size in (16, 32, 64):
        held_to(given, blocks(BLOCK_SIZE=size))


def test_a_mask_whose_lists_are_changed_or_given_otherwise(given):
    mask = blocks()
    for _ in range(2):
        held_to(given, mask)
    for name in LISTS:
        held = getattr(mask, name)
        padded = torch.nn.functional.pad(held, (0, 1)) if name.endswith("indices") else held
        for other in (held.long(), laid_out(held, 2), laid_out(held, 3), padded):
            setattr(mask, name, other)
            held_to(given, mask)
        setattr(mask, name, held)
    mask.q_num_blocks = mask.q_indices = mask.full_q_num_blocks = mask.full_q_indices = None
    held_to(given, mask)


@pytest.mark.share(2)
@pytest.mark.parametrize("first", LAYOUTS)
def test_other_layouts(given, first):
    mask, do = blocks(), torch.randn_like(given[0])
    *tensors, slopes = given
    laid = *[laid_out(t, first) for t in tensors], slopes
    held_to(laid, mask)
    for i in LAYOUTS:
        held_to(laid, mask, do=laid_out(do, i))
        held_to((*[laid_out(t, i) for t in tensors], slopes), mask)
    places = len(LISTS) + 6  # query, key, value, o, lse; the slopes; the lists
    for place, i in itertools.product(range(places), LAYOUTS):
        seen = []
        hook = lambda t, i=i: seen.append(t) or (laid_out(t, i) if len(seen) == place + 1 else t)  # noqa: B023, E731
        held_to(laid, mask, hook=hook)
        assert len(seen) == places


def test_what_changes_in_place_between_the_passes_raises(given):
    mask = blocks()
    leaves = [t.requires_grad_() for t in given[:3]]
    for _ in range(2):
        for t in (*leaves, given[3], *(getattr(mask, name) for name in LISTS)):
            out = call(*leaves, given[3], mask)
            with torch.no_grad():
                t.add_(0)
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                torch.autograd.grad(out, leaves, torch.ones_like(out))


def test_captured_tensors_that_want_gradients(given):
    mask, (*tensors, slopes) = blocks(), given
    for _ in range(2):
        held_to(given, mask)
        leaves = [t.requires_grad_() for t in tensors] + [slopes.clone().requires_grad_()]
        out, want = call(*leaves, mask), expected(*leaves)
        do = torch.randn_like(out)
        agree(torch.autograd.grad(out, leaves, do), torch.autograd.grad(want, leaves, do))


def test_who_looks_on_at_a_call(given):
    leaves = [t.requires_grad_() for t in given[:3]]
    mask = blocks()
    held_to(given, mask)
    takes_the_longer_way(call(*leaves, given[3], mask), leaves)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(lambda slopes: call(*given[:3], slopes, mask))(given[3][None])
    with pytest.raises(ValueError, match="has yet to negate"):
        call(*given[:3], torch._neg_view(given[3]), mask)


def test_numbers_that_kernels_are_given(given):
    """From the second value on a number is an argument of the kernel."""
    mask = blocks()
    for number in (1.0, 2.0, 16.0, 2.0, 1.0, 16.0):
        out = flex_attention(*given[:3], score_mod=lambda s, b, h, q, k: s * number, block_mask=mask)  # noqa: B023
        agree([out], [expected(given[0] * number, *given[1:3], torch.zeros(2, device=given[0].device))])
