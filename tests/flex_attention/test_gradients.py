"""Gradients of captured tensors: by atomics, in two deterministic passes, alone, and in every dtype."""

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import causal_block_mask, flex_attention, mods
from kernels.flex_attention.reference import flex_attention_reference
from tests.flex_attention import cases

# The interpreter computes with numpy, which reports what a mod makes of the scores that are masked afterwards.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")

LEARNED = [name for name in cases.ZOO if cases.zoo(name)[1]]


@pytest.mark.parametrize("name", LEARNED)
def test_by_atomics(name):
    """The zoo's own test takes the two passes, because it runs with torch's deterministic algorithms on."""
    cases.check(name, DETERMINISTIC=False)


def test_there_are_learned_cases_of_every_kind():
    assert {"learned alibi", "relative bias", "temperature", "same tensor twice", "chained"} <= set(LEARNED)


def gradients(score_mod, learned, **options):
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 50, 16, generator=generator).to(runtime.device) for _ in range(3))
    o = flex_attention(q, k, v, score_mod, causal_block_mask(50, BLOCK_SIZE=32), kernel_options=options)
    return torch.autograd.grad(o.square().sum(), learned)


def test_deterministic_sums_do_not_depend_on_the_order_of_programs():
    """Tiles of another size add in another order: integers give the same sums, up to the addends' own rounding."""
    slopes = torch.rand(2, device=runtime.device, requires_grad=True)
    table = torch.rand(2, 99, device=runtime.device, requires_grad=True)
    for learned, mod in (([slopes], mods.learned_alibi(slopes)), ([table], mods.relative_table(table))):
        (one,) = gradients(mod, learned, DETERMINISTIC=True)
        (same,) = gradients(mod, learned, DETERMINISTIC=True)
        assert torch.equal(one, same)
        (other,) = gradients(mod, learned, DETERMINISTIC=True, bwd_BLOCK_M=16, bwd_BLOCK_N=16)
        (atomic,) = gradients(mod, learned, DETERMINISTIC=False)
        assert cases.relative_error(other, one) < 1e-6 and cases.relative_error(atomic, one) < 1e-6


def test_the_default_follows_torch(monkeypatch):
    passes = []
    cases.replace_launch(
        monkeypatch, lambda launch: lambda *a, **meta: (passes.append(meta.get("PASS")), launch(*a, **meta))
    )
    slopes = torch.rand(2, device=runtime.device, requires_grad=True)
    for deterministic in (True, False):
        torch.use_deterministic_algorithms(deterministic)
        gradients(mods.learned_alibi(slopes), [slopes])
    assert [p for p in passes if p] == ["measure", "count", "add"]


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e6, 1e25])
def test_the_unit_of_deterministic_sums_fits_the_addends(size):
    scales = (torch.rand(2, device=runtime.device) * size).requires_grad_()
    q, k, v = (torch.randn(1, 2, 20, 16, device=runtime.device) / (1 if i else size) for i in range(3))
    k = k * min(1, 1 / size)
    mod = mods.head_scale(scales)
    do = torch.randn(1, 2, 20, 16, device=runtime.device)
    o = flex_attention(q, k, v, mod, kernel_options={"DETERMINISTIC": True})
    want = flex_attention_reference(q.double(), k.double(), v.double(), mod)
    (got,), (expected,) = (torch.autograd.grad(out, scales, do.to(out.dtype)) for out in (o, want))
    assert (
        cases.relative_error(got / got.abs().max(), expected / expected.abs().max()) < 1e-3 or expected.abs().max() == 0
    )


def test_a_gradient_that_is_not_finite_stays_so():
    scales = torch.ones(2, device=runtime.device, requires_grad=True)
    q, k, v = (torch.randn(1, 2, 20, 16, device=runtime.device) for _ in range(3))
    o = flex_attention(q, k, v, mods.head_scale(scales), kernel_options={"DETERMINISTIC": True})
    do = torch.ones_like(o)
    do[0, 1, 3] = float("inf")
    (got,) = torch.autograd.grad(o, scales, do)
    assert not got.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16])
def test_dtypes_of_inputs_and_tables_are_independent(dtype, table_dtype):
    bias = torch.rand(2, 30, 30, device=runtime.device).to(table_dtype).requires_grad_()
    q, k, v = (torch.randn(1, 2, 30, 16, device=runtime.device).to(dtype) for _ in range(3))
    do = torch.randn(1, 2, 30, 16, device=runtime.device).to(dtype)
    (got,) = torch.autograd.grad(flex_attention(q, k, v, mods.relative_bias(bias)), bias, do)
    exact = bias.detach().double().requires_grad_()
    want = flex_attention_reference(q.double(), k.double(), v.double(), mods.relative_bias(exact))
    (expected,) = torch.autograd.grad(want, exact, do.double())
    assert got.dtype == table_dtype
    assert cases.relative_error(got, expected) <= max(cases.TOLERANCE[dtype], cases.TOLERANCE[table_dtype])


@pytest.mark.parametrize("needed", [("q",), ("k",), ("v",), ("slopes",), ("q", "slopes"), ("k", "v")])
def test_only_what_is_needed_is_launched(needed, monkeypatch):
    launched = []
    cases.replace_launch(
        monkeypatch, lambda launch: lambda k, *a, **m: (launched.append(k.__name__), launch(k, *a, **m))
    )
    tensors = {name: torch.randn(1, 2, 9, 16, device=runtime.device) for name in "qkv"}
    tensors["slopes"] = torch.rand(2, device=runtime.device)
    for name in needed:
        tensors[name].requires_grad_()
    flex_attention(*(tensors[n] for n in "qkv"), mods.learned_alibi(tensors["slopes"])).sum().backward()
    assert all((t.grad is not None) == (name in needed) for name, t in tensors.items())
    assert ("attention_dq_kernel" in launched) == ("q" in needed or "slopes" in needed)
    assert ("attention_dkdv_kernel" in launched) == ("k" in needed or "v" in needed)


def test_a_tensor_captured_by_the_mask_needs_no_gradient():
    weights = torch.ones(9, device=runtime.device, requires_grad=True)
    q = torch.randn(1, 1, 9, 16, device=runtime.device, requires_grad=True)
    cases.check(mask_mod=lambda b, h, q_idx, kv_idx: weights[kv_idx] > 0, shape=(1, 1, 1, 9, 9, 16, 16))
    assert weights.grad is None and q.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_slope_before_long_distances_collects_what_rounding_o_leaves(dtype):
    """As the docstring says: ds = p (dp - do . o) with the o that was stored, so that a row's ds no longer adds up to 0."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(1, 2, 128, 64, generator=generator).to(dtype).to(runtime.device) for _ in range(4))
    slopes = torch.tensor([0.5, 0.8], device=runtime.device, requires_grad=True)  # the likely keys are the last ones
    o = flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx))
    (found,) = torch.autograd.grad(o, slopes, do)

    wide_q, wide_k, wide_v, wide_do = (t.double() for t in (q, k, v, do))
    distance = torch.arange(128, device=runtime.device) - torch.arange(128, device=runtime.device)[:, None]
    p = (wide_q @ wide_k.mT / 8 + slopes.detach().double()[:, None, None] * distance).softmax(-1)
    stored_o, exact = o.detach().double(), p @ wide_v

    def of(stored):
        ds = p * (wide_do @ wide_v.mT - (wide_do * stored).sum(-1, keepdim=True))
        return (ds * distance).sum((0, 2, 3))

    def off(a, b):
        return ((a - b).norm() / b.norm()).item()

    assert off(found.double(), of(stored_o)) < 2e-2
    assert (off(of(stored_o), of(exact)) > 5e-2) == (dtype == torch.bfloat16)
