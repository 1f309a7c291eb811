"""Custom operators: torch's own checks, torch.compile without a graph break, autocast, CUDA graphs, several GPUs."""

import re

import pytest
import torch

from kernels import runtime
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step
from kernels.dynamic_conv.operator import _convolve, _step
from tests.tensors import capture


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, device=runtime.device, dtype=dtype).requires_grad_(grad)


def test_opcheck_forward():
    x, weight = randn(1, 5, 4, grad=True), randn(1, 5, 4, 3, grad=True)
    cu = torch.tensor([0, 2, 5], device=runtime.device)
    torch.library.opcheck(_convolve, (x, weight, randn(4, grad=True), None, "silu", randn(2, 4, 2, grad=True), True, cu))
    torch.library.opcheck(_convolve, (x, weight, None, x, None, None, False, None))


def test_opcheck_backward_and_step():
    x, weight = randn(1, 5, 4), randn(4, 3)
    arguments = (x, None, x, weight, None, None, None, None, False, [True, True, False, False])
    torch.library.opcheck(torch.ops.kernels_from_math.dynamic_conv_backward.default, arguments)
    torch.library.opcheck(_step, (randn(2, 4), weight, randn(2, 4, 2), None, None, "silu", None))


@pytest.mark.parametrize("default_device", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_compiles_without_a_graph_break(packed, default_device, request):
    """One graph, forward and backward, with the same numbers as eager; also where a program has set a default device."""
    if default_device:
        request.addfinalizer(lambda: torch.set_default_device(None))
        torch.set_default_device(runtime.device)
    model = DynamicShortConvolution(8, 3).to(runtime.device)
    torch.nn.init.normal_(model.w2.weight)
    cu = torch.tensor([0, 4, 9], device=runtime.device) if packed else None
    function = lambda x: model(x, cu_seqlens=cu).square().sum()  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager" if runtime.interpreted else "inductor")
    x = randn(1, 9, 8)
    grads = []
    for f in (function, compiled):
        model.zero_grad()
        f(x).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_under_autocast():
    model = DynamicShortConvolution(8, 4).to(runtime.device)
    torch.nn.init.normal_(model.w2.weight)
    x = randn(2, 6, 8)
    with torch.autocast(runtime.device.type, dtype=torch.bfloat16):
        y = model(x)
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and all(p.grad.isfinite().all() for p in model.parameters())


def test_explain_names_the_choice_and_the_reason():
    x, weight = randn(2, 5, 8), randn(2, 5, 8, 3)
    forward, backward = dynamic_conv.explain(x, weight).splitlines()
    assert forward == "whole words: 2 channels of 4 bytes fill 64 bits"
    assert re.fullmatch(r"backward: \d+ runs of \d+ tokens.*", backward)
    assert "the 7 channels do not divide" in dynamic_conv.explain(x[..., :7], weight[:, :, :7])
    assert "weight has strides" in dynamic_conv.explain(
        x, weight.transpose(1, 2).contiguous().transpose(1, 2).flip(0)[..., :2]
    )
    assert "x has strides" in dynamic_conv.explain(x.mT.contiguous().mT, weight)
    assert "25 taps" in dynamic_conv.explain(x, randn(8, 25))


@pytest.mark.gpu
def test_captured_in_a_cuda_graph():
    x, weight = randn(2, 64, 32, grad=True), randn(2, 64, 32, 4, grad=True)
    state = randn(2, 32, 3)
    cu = torch.tensor([0, 0, 64], device=runtime.device)

    def work():
        y = dynamic_conv(x, weight, activation="silu")
        packed = dynamic_conv(x[:1], weight[:1], cu_seqlens=cu, output_final_state=True)
        return y, *packed, *torch.autograd.grad(y.sum(), (x, weight)), dynamic_conv_step(x[:, 0], weight[:, 0], state)

    graph, outputs = capture(work)
    before = state.clone()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    state.copy_(before)
    for captured, eager in zip(outputs, work(), strict=True):
        assert torch.equal(captured, eager)


@pytest.mark.gpu
def test_never_waits_for_the_gpu():
    x, weight, state = randn(1, 64, 32, grad=True), randn(1, 64, 32, 4, grad=True), randn(1, 32, 3)
    cu = torch.tensor([0, 20, 64], device=runtime.device)
    slots = torch.zeros(1, dtype=torch.int64, device=runtime.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, _ = dynamic_conv(x, weight, cu_seqlens=cu, output_final_state=True)
        y.sum().backward()
        dynamic_conv_step(x[:, 0].detach(), weight[:, 0].detach(), state, slots=slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_on_the_tensors_own_device():
    x, weight = (t.to("cuda:1").requires_grad_() for t in (torch.randn(1, 9, 8), torch.randn(1, 9, 8, 4)))
    y = dynamic_conv(x, weight)
    y.sum().backward()
    here = dynamic_conv(x.detach().to("cuda:0"), weight.detach().to("cuda:0"))
    assert y.device.index == x.grad.device.index == 1 and torch.equal(y.cpu(), here.cpu())


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements():
    """One packed sequence of 175 000 tokens, D = 3072, W = 4: T * D * W passes 2^31."""
    T, D, W = 175_000, 3072, 4
    x, weight = randn(1, T, D, dtype=torch.bfloat16, grad=True), randn(1, T, D, W, dtype=torch.bfloat16, grad=True)
    y = dynamic_conv(x, weight)
    dy = torch.ones_like(y)
    dx, dk = torch.autograd.grad(y, (x, weight), dy)
    tail = slice(T - 100, T)
    x64, k64 = x.detach()[:, T - 103 :].double(), weight.detach()[:, tail].double()
    want = sum(k64[..., w] * x64[:, w : w + 100] for w in range(W))
    assert ((y[:, tail].double() - want).norm() / want.norm()) < 6e-3
    assert torch.equal(dk[:, -1, :, -1], x[:, -1])
    assert torch.equal(dx[:, -1], weight[:, -1, :, -1])
