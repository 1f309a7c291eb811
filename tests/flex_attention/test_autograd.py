"""Autograd, torch.compile, tracebacks of the second derivative, CUDA graphs, several GPUs, large tensors."""

import pytest
import torch

from kernels import runtime
from kernels.flex_attention import AuxRequest, causal_block_mask, flex_attention, mods
from kernels.flex_attention.reference import flex_attention_reference
from tests.flex_attention import cases
from tests.tensors import capture


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, device=runtime.device, dtype=dtype).requires_grad_(grad)


def test_a_second_derivative_is_refused_clearly():
    q, k = randn(1, 1, 4, 16, grad=True), randn(1, 1, 5, 16)
    (dq,) = torch.autograd.grad(flex_attention(q, k, k).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="flex_attention has no second derivative"):
        dq.sum().backward()


def test_the_lse_alone_is_differentiable():
    q, k = randn(1, 2, 9, 16, grad=True), randn(1, 2, 11, 16, grad=True)
    _, lse = flex_attention(q, k, k, mods.alibi(2), return_lse=True)
    _, want = flex_attention_reference(q, k, k, mods.alibi(2), return_lse=True)
    for got, expected in zip(*(torch.autograd.grad(t.sum(), (q, k)) for t in (lse, want)), strict=True):
        assert cases.relative_error(got, expected) < 1e-5


def test_the_largest_logits_carry_no_gradient():
    q = randn(1, 1, 4, 16, grad=True)
    _, aux = flex_attention(q, q, q, return_aux=AuxRequest(lse=True, max_scores=True))
    assert aux.lse.requires_grad and not aux.max_scores.requires_grad


def test_two_halves_of_the_keys_merge_by_their_lse():
    """What ring attention and split caches do: o = sum_i exp(lse_i - lse) o_i, and its gradient through both."""
    q, k, v = randn(1, 2, 9, 16, grad=True), randn(1, 2, 20, 16, grad=True), randn(1, 2, 20, 16, grad=True)
    halves = [flex_attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 12), slice(12, 20))]
    lse = torch.logaddexp(halves[0][1], halves[1][1])
    merged = sum(o * (part - lse).exp()[..., None] for o, part in halves)
    whole = flex_attention(q, k, v)
    weights = randn(*whole.shape)
    for got, want in zip(
        (merged, *torch.autograd.grad((merged * weights).sum(), (q, k, v))),
        (whole, *torch.autograd.grad((whole * weights).sum(), (q, k, v))),
        strict=True,
    ):
        assert cases.relative_error(got, want) < 1e-5


def test_inputs_are_never_modified():
    tensors = [randn(1, 2, 9, 16, grad=True) for _ in range(3)]
    slopes = randn(2, grad=True)
    before = [t.detach().clone() for t in (*tensors, slopes)]
    flex_attention(*tensors, mods.learned_alibi(slopes), causal_block_mask(9)).sum().backward()
    assert all(torch.equal(t, b) for t, b in zip((*tensors, slopes), before, strict=True))


@pytest.mark.skipif(not runtime.interpreted, reason="aot_eager is the interpreter's backend here")
def test_inside_a_compiled_model():
    """torch.compile may break the graph at the call; results and gradients stay right."""
    slopes = torch.nn.Parameter(torch.rand(2))
    proj = torch.nn.Linear(16, 16)
    mask = causal_block_mask(9)

    def model(x):
        q = proj(x)
        return flex_attention(q, x, x, mods.learned_alibi(slopes), mask).relu().sum()

    x = randn(1, 2, 9, 16)
    results = []
    for f in (model, torch.compile(model, backend="aot_eager")):
        loss = f(x)
        results.append((loss, *torch.autograd.grad(loss, [slopes, *proj.parameters()])))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph():
    q, k, v = (randn(2, 4, 300, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
    slopes = randn(4, grad=True)
    mask = causal_block_mask(300)

    def work():
        o = flex_attention(q, k, v, mods.learned_alibi(slopes), mask)
        few = flex_attention(q[:, :, :1].detach(), k.detach(), v.detach())
        return o, few, *torch.autograd.grad(o.sum(), (q, k, v, slopes))

    graph, outputs = capture(work)
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
    graph.replay()
    for captured, eager in zip(outputs, work(), strict=True):
        assert torch.equal(captured, eager)


@pytest.mark.gpu
def test_never_waits_for_the_gpu():
    q, k, v = (randn(1, 4, 300, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
    slopes = randn(4, grad=True)
    mask = causal_block_mask(300)
    torch.cuda.set_sync_debug_mode("error")
    try:
        flex_attention(q, k, v, mods.learned_alibi(slopes), mask).sum().backward()
        with torch.no_grad():
            flex_attention(q[:, :, :1], k, v)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("D", [64, 128, 256])
@pytest.mark.parametrize("name", ["causal", "alibi", "softcap", "document causal", "learned alibi", "relative bias"])
def test_large_tiles(name, D, dtype):
    """The tiles of the GPU's own table, on lengths that none of them divides."""
    # A slope's gradient weighs ds with distances up to 517. A row's ds sum to zero but for delta's rounding, which is that of
    # o, stored in 16 bits: what is left of it is weighed, too.
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 6e-2}.get(dtype) if name == "learned alibi" else None
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        cases.check(name, shape=(2, 2, 1, 37, 41, D, D), dtype=dtype, BLOCK_SIZE=128, tolerance=tolerance)
        if name not in ("document causal", "relative bias"):
            cases.check(name, shape=(1, 2, 1, 517, 523, D, D), dtype=dtype, BLOCK_SIZE=128, tolerance=tolerance)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_on_the_tensors_own_device():
    q, k = torch.randn(1, 2, 40, 64), torch.randn(1, 2, 50, 64)
    there = [t.to("cuda:1").requires_grad_() for t in (q, k)]
    o = flex_attention(there[0], there[1], there[1])
    o.sum().backward()
    here = flex_attention(q.to("cuda:0"), k.to("cuda:0"), k.to("cuda:0"))
    assert o.device.index == there[0].grad.device.index == 1 and torch.equal(o.cpu(), here.cpu())


@pytest.mark.gpu
def test_more_than_65535_heads_and_2_to_the_31_elements():
    """70 000 heads in one batch row; and 2^31 elements of q."""
    q = randn(1, 70_000, 17, 16, dtype=torch.float16)
    last = q[:, -1:]
    want = flex_attention_reference(last, last, last)
    torch.testing.assert_close(flex_attention(q, q, q)[:, -1:], want, rtol=1e-2, atol=1e-2)
    q = randn(1, 1, 2**20 + 64, 2048 // 8, dtype=torch.float16)
    big = q.expand(9, 1, -1, -1).contiguous()[:, :, -64:]
    want = flex_attention(big.contiguous(), big.contiguous(), big.contiguous())
    assert torch.equal(flex_attention(big, big, big), want)
