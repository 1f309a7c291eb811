"""Random shapes, masks, blocks, tiles, dtypes and layouts against the float64 reference."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import runtime
from kernels.flex_attention import AuxRequest, flex_attention, mods, or_masks, problem
from tests.flex_attention import cases

MASKS = [
    None,
    mods.causal,
    mods.sliding_window(5),
    or_masks(mods.prefix(4), mods.dilated_sliding_window(30, 7)),
    lambda b, h, q_idx, kv_idx: (q_idx * 7 + kv_idx * 3 + b) % 11 < 4,
    lambda b, h, q_idx, kv_idx: (q_idx + kv_idx) % 32 < 3,
]
SCORES = [
    None,
    mods.alibi(4),
    mods.softcap(2.0),
    lambda score, b, h, q_idx, kv_idx: score - (kv_idx - q_idx).abs() * 0.1,
]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    B=st.integers(1, 2), Hkv=st.integers(1, 2), G=st.integers(1, 3), M=st.integers(1, 70), N=st.integers(1, 70),
    D=st.integers(1, 40), DV=st.integers(1, 40), mask=st.sampled_from(MASKS), score=st.sampled_from(SCORES),
    BLOCK_SIZE=st.sampled_from([16, 32, 128, (16, 32), (40, 24)]), layout=st.sampled_from(cases.LAYOUTS),
    broadcast=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_random_problems(B, Hkv, G, M, N, D, DV, mask, score, BLOCK_SIZE, layout, broadcast, seed):
    cases.check(
        shape=(B, Hkv * G, Hkv, M, N, D, DV), mask_mod=mask, score_mod=score, BLOCK_SIZE=BLOCK_SIZE, layout=layout,
        kv_batch=1 if broadcast else None, seed=seed,
    )  # fmt: skip


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    tiles=st.tuples(*[st.sampled_from([16, 32, 64])] * 4), mask=st.sampled_from(MASKS), score=st.sampled_from(SCORES),
    BLOCK_SIZE=st.sampled_from([32, 64, (64, 32)]),
)  # fmt: skip
def test_the_tile_is_no_part_of_the_answer(tiles, mask, score, BLOCK_SIZE):
    names = ("BLOCK_M", "BLOCK_N", "bwd_BLOCK_M", "bwd_BLOCK_N")
    cases.check(
        shape=(1, 2, 1, 70, 61, 16, 16), mask_mod=mask, score_mod=score, BLOCK_SIZE=BLOCK_SIZE,
        **dict(zip(names, tiles, strict=True)),
    )  # fmt: skip


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype, layout):
    cases.check("alibi", dtype=dtype, layout=layout)


@pytest.mark.skipif(not runtime.interpreted, reason="on a GPU that has the copy engine, its table says so")
@pytest.mark.parametrize("shape", [(2, 2, 1, 37, 41, 20, 24), (1, 2, 2, 2, 80, 16, 32)])
@pytest.mark.parametrize("name", ["nothing", "causal", "learned alibi"])
@pytest.mark.parametrize("layout", ["flat", "heads inside"])
def test_loads_by_the_copy_engine(name, shape, layout, monkeypatch):
    """Descriptors instead of pointers, where a tensor's strides allow it."""
    described = []
    cases.replace_launch(
        monkeypatch, lambda launch: lambda *a, **m: (described.append("T" in m and m["T"].TMA), launch(*a, **m))
    )
    original = problem.table_options
    monkeypatch.setattr(problem, "table_options", lambda *a: original(*a) | {"TMA": True})
    cases.check(name, shape=shape, layout=layout, BLOCK_N=32, bwd_BLOCK_M=32, bwd_BLOCK_N=16)
    assert True in described
    cases.check(name, shape=(*shape[:5], 21, 24), layout=layout, BLOCK_N=32)  # rows of 21 floats: pointers


@pytest.mark.parametrize("name", ["nothing", "causal", "softcap", "plus 100", "jagged"])
@pytest.mark.parametrize("M, N", [(37, 41), (64, 1), (70, 64), (71, 41), (37, 65)])
def test_keys_that_are_one_tile_and_one_more(name, M, N):
    cases.check(
        name, shape=(2, 4, 2, M, N, 20, 24), BLOCK_SIZE=(32, 64), bwd_BLOCK_M=32, bwd_BLOCK_N=64, tolerance=2e-5
    )


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_outputs_lie_in_memory_as_the_query_does(layout):
    q, k, v = (cases.place(torch.randn(2, 4, n, 16), layout).requires_grad_() for n in (20, 30, 30))
    o = flex_attention(q, k, v)
    grads = torch.autograd.grad(o.sum(), (q, k, v))
    order = lambda t: sorted(range(4), key=lambda i: t.stride(i))  # noqa: E731
    for out, like in ((o, q), *zip(grads, (q, k, v), strict=True)):
        assert order(out) == order(like) and out.numel() == out.untyped_storage().nbytes() // out.element_size()


def test_the_same_call_gives_the_same_bits():
    runs = []
    for _ in range(2):
        o, grads = cases.check("learned alibi")
        runs.append((o, *grads))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_large_scores_do_not_overflow():
    """Logits of +-10^4: their exponentials do not fit, their differences do."""
    q, k = torch.randn(1, 1, 20, 16) * 100, torch.randn(1, 1, 30, 16) * 100
    q, k = cases.place(q), cases.place(k)
    o, aux = flex_attention(q, k, k, return_aux=AuxRequest(lse=True))
    want = cases.flex_attention_reference(q.double(), k.double(), k.double())
    assert o.isfinite().all() and aux.lse.isfinite().all()
    assert cases.relative_error(o, want) < 1e-2


@pytest.mark.slow
def test_every_product_of_options():
    for dtype, layout, mask, score, G, BLOCK_SIZE in itertools.product(
        cases.TOLERANCE, cases.LAYOUTS, MASKS, SCORES, (1, 2), (16, (40, 24))
    ):
        cases.check(
            shape=(2, 2 * G, 2, 37, 41, 20, 24), dtype=dtype, layout=layout, mask_mod=mask, score_mod=score,
            BLOCK_SIZE=BLOCK_SIZE,
        )  # fmt: skip
