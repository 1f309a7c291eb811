"""How far a mask looks: what interval analysis of its recording finds holds for every pair that it lets through."""

import math
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import runtime
from kernels.flex_attention import mods
from kernels.flex_attention.mods import extent
from kernels.flex_attention.mods.bind import bind
from kernels.flex_attention.mods.trace import trace

M, N = 23, 29
TABLE = torch.randint(0, N, (64,), generator=torch.Generator().manual_seed(0))
INF = math.inf


def span_of(mask, *sizes):
    bound = bind(mask, "mask_mod", runtime.device)
    return bound.compiled.extent(tuple(bound.numbers), *(sizes or (M, N)))


def seen(mask):
    """``[M, N]``, and every pair's q_idx - kv_idx."""
    q, k = torch.arange(M)[:, None], torch.arange(N)[None]
    zero = torch.tensor(0)
    return torch.broadcast_to(mask(zero, zero, q, k), (M, N)), q - k


# Random masks, as functions of (b, h, q, k).

small = st.integers(-9, 40)
constant = small.map(lambda c: lambda b, h, q, k: torch.full_like(q, c))
positions = [lambda b, h, q, k: q, lambda b, h, q, k: k, lambda b, h, q, k: q - k, lambda b, h, q, k: TABLE[q]]
leaves = st.one_of(st.sampled_from(positions), constant)


def combined(function, *parts):
    return lambda *args: function(*(part(*args) for part in parts))


def integers_of(inner):
    two = st.sampled_from([operator.add, operator.sub, torch.minimum, torch.maximum])
    by = st.integers(-3, 9).filter(bool)
    one = st.one_of(
        st.sampled_from([operator.neg, torch.abs, lambda x: x.long()]),
        st.builds(lambda c, f: lambda x: f(x, c), by, st.sampled_from([operator.mul, operator.floordiv, operator.mod])),
        st.builds(lambda c, f: lambda x: f(c, x), small, st.sampled_from([operator.add, operator.sub])),
        st.builds(lambda a, b: lambda x: x.clamp(a, a + b), small, st.integers(0, 20)),
        st.builds(lambda a: lambda x: x.clamp(max=a), small),
    )
    return st.one_of(st.builds(combined, two, inner, inner), st.builds(combined, one, inner))


integers = st.recursive(leaves, integers_of, max_leaves=4)
comparisons = st.builds(
    combined, st.sampled_from([getattr(operator, name) for name in ("le", "lt", "ge", "gt", "eq", "ne")]), integers, integers
)
close = st.builds(  # what masks are made of, more often than chance would make them
    lambda f, c, d: lambda b, h, q, k: f(q + c, k + d),
    st.sampled_from([operator.le, operator.ge, operator.lt, operator.gt]),
    small,
    small,
)


def bools_of(inner):
    two = st.sampled_from([operator.and_, operator.or_, operator.xor, torch.logical_and, torch.logical_or, operator.mul])
    return st.one_of(
        st.builds(combined, two, inner, inner), st.builds(combined, st.just(operator.invert), inner),
        st.builds(combined, st.just(torch.where), inner, inner, inner),
    )


masks = st.recursive(st.one_of(close, comparisons), bools_of, max_leaves=5)


@settings(max_examples=60, deadline=None)
@given(masks)
def test_every_pair_that_is_seen_is_within_the_extent(mask):
    span = extent.extent_of_trace(trace(mask, "mask_mod"))((), M, N)
    allowed, distance = seen(mask)
    within = (distance <= span.behind) & (-distance <= span.ahead)
    assert not (allowed & ~within).any()
    if span.exact:
        assert torch.equal(allowed, within)


def offset_window(off, window):
    """As a cache's: queries begin at ``off``."""

    def mask(b, h, q_idx, kv_idx):
        q_idx = q_idx + off
        return (kv_idx <= q_idx) & (kv_idx > q_idx - window)

    return mask


def transformers_window(window, offset):
    """As transformers writes it: ``and_masks(sliding_window_overlay, causal)`` behind an offset, and the padding."""
    padding = torch.ones(1, N, dtype=torch.bool, device=runtime.device)

    def overlay(b, h, q_idx, kv_idx):
        return kv_idx > q_idx - window

    def not_padded(b, h, q_idx, kv_idx):
        return padding[b, kv_idx]

    def all_of(*functions):
        def and_mask(b, h, q_idx, kv_idx):
            result = q_idx.new_ones((), dtype=torch.bool)
            for function in functions:
                result = result & function(b, h, q_idx, kv_idx).to(result.device)
            return result

        return and_mask

    inner = all_of(overlay, mods.causal, not_padded)
    return lambda b, h, q_idx, kv_idx: inner(b, h, q_idx + offset, kv_idx)


DOCUMENTS = torch.arange(64, device=runtime.device) // 10


@pytest.mark.parametrize(
    ("mask", "behind", "ahead", "exact"),
    [
        (mods.causal, INF, 0, True),
        (mods.sliding_window(128), 128, 0, True),
        (mods.noop_mask, INF, INF, None),
        (lambda b, h, q, k: (q - k).abs() <= 7, 7, 7, False),
        (lambda b, h, q, k: k >= q - 5, 5, INF, True),
        (lambda b, h, q, k: ~((q - k > 50) | (k > q)), 50, 0, True),
        (lambda b, h, q, k: 2 * q - 2 * k < 7, 3, INF, True),
        (lambda b, h, q, k: torch.minimum(q - k, k - q) >= -4, 4, 4, False),
        (lambda b, h, q, k: (q >= k) & (TABLE.to(q.device)[q] == 3), INF, 0, False),
        (mods.document(DOCUMENTS, mods.sliding_window(9)), 9, 0, False),
        (mods.or_masks(mods.sliding_window(9), lambda b, h, q, k: (q - k).abs() <= 3), 9, 3, False),
        (mods.prefix_causal(5), INF, INF, False),
        (mods.batched(mods.causal, 8), 7, 7, False),
        (lambda b, h, q, k: (q // 4 - k // 4).abs() <= 1, 7, 7, False),
        (offset_window(5, 20), 14, 5, True),
        (transformers_window(8, 0), 7, 0, False),
        (transformers_window(8, 3), 4, 3, False),
        (lambda b, h, q, k: q - k <= 2**31 - 1, INF, INF, False),  # larger than what arithmetic is followed with
        (lambda b, h, q, k: q.to(torch.int8) - k.to(torch.int8) <= 3, INF, INF, False),  # goes round at 128
        (lambda b, h, q, k: q - k <= 3.5, INF, INF, False),  # fractions are not followed
    ],
)
def test_masks_as_people_write_them(mask, behind, ahead, exact):
    span = span_of(mask)
    assert span[:2] == (behind, ahead)
    assert exact is None or span.exact == exact


def test_natten_is_narrow():
    span = span_of(mods.natten(28, 28, 7), 784, 784)
    q, k = torch.arange(784)[:, None], torch.arange(784)[None]
    least = (q - k)[mods.natten(28, 28, 7)(None, None, q, k)].max()
    assert least <= span.behind <= 8 * 28 and span.ahead <= 8 * 28


def test_numbers_that_change_keep_the_mod_and_move_the_ends():
    windows = [bind(offset_window(off, 20), "mask_mod", runtime.device) for off in (3, 4, 6, 9)]
    assert len({bound.compiled for bound in windows[1:]}) == 1
    found = [bound.compiled.extent(tuple(bound.numbers), M, N) for bound in windows]
    assert [span[:2] for span in found] == [(19 - off, off) for off in (3, 4, 6, 9)]
    assert len({extent.rounded(span) for span in found}) == 1


def test_classes():
    exact, some = (lambda *ends: extent.Span(*ends, True)), extent.Span
    assert extent.rounded(exact(127, 0)) == (128, True) and extent.rounded(exact(128, 0)) == (256, True)
    assert extent.rounded(some(4095, 0)) == (4096, False) and extent.rounded(some(4096, 0)) == (extent.ONE_END, False)
    assert extent.rounded(exact(INF, 7)).keys == extent.ONE_END and extent.rounded(exact(INF, INF)) == extent.ENDLESS
    assert extent.rounded(exact(-5, 2)).keys == extent.rounded(extent.NONE).keys == 128  # no pair at all
