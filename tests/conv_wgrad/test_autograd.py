"""Custom operators: conv2d's gradients, torch's own checks, torch.compile in one graph, CUDA graphs, several GPUs."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from kernels.conv_wgrad.convolution import convolve
from kernels.conv_wgrad.operator import _bias_grad, _bias_grad_into, _wgrad, _wgrad_into
from kernels.conv_wgrad.reference import conv2d_reference
from tests.conv_wgrad import cases
from tests.conv_wgrad.test_against_reference import GEOMETRIES
from tests.tensors import capture, relative_error

# torch's forward pass on the GPU may multiply by transforms, with another error than the direct sum's.
CONVOLUTION = {torch.float32: 2e-6 if runtime.interpreted else 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", CONVOLUTION, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_conv2d_and_its_three_gradients(name, dtype):
    convolution = {"R": 3, "S": 3} | GEOMETRIES[name]
    R, S = convolution.pop("R"), convolution.pop("S")
    x, _, g = cases.problem((2, 9, 11, 8), 16, R, S, dtype=dtype, **convolution)
    leaves = [x.requires_grad_(), *(cases.randn(*size, dtype=dtype, grad=True) for size in (g.weight_shape, (16,)))]
    exact = [t.detach().cpu().double().requires_grad_() for t in leaves]
    y, want = conv2d(*leaves, **convolution), conv2d_reference(*exact, **convolution)
    dy = cases.randn(*g.output_shape, dtype=dtype)
    grads, wanted = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, exact, dy.cpu().double())
    assert y.is_contiguous() and y.dtype == dtype
    for what, got, expected in zip(("y", "dx", "dw", "db"), (y, *grads), (want, *wanted), strict=True):
        assert got.shape == expected.shape and got.dtype == dtype, what
        assert relative_error(got, expected) <= CONVOLUTION[dtype], what


@pytest.mark.parametrize("wanted", ["x", "weight", "bias"])
def test_only_the_gradients_that_are_wanted_are_computed(wanted):
    leaves = {"x": cases.randn(1, 5, 5, 4), "weight": cases.randn(8, 3, 3, 4), "bias": cases.randn(8)}
    leaves[wanted].requires_grad_()
    y = conv2d(*leaves.values())
    with cases.launches() as seen:
        y.sum().backward()
    kernels = {kernel.__name__ for kernel, *_ in seen}
    assert kernels == {"x": set(), "weight": {"wgrad_kernel"}, "bias": {"bias_kernel"}}[wanted]
    assert leaves[wanted].grad.shape == leaves[wanted].shape


@pytest.mark.parametrize("shape", [(0, 5, 5, 4), (2, 5, 5, 0)])
def test_no_images_and_no_channels(shape):
    x, weight, bias = (
        cases.randn(*shape, grad=True),
        cases.randn(8, 3, 3, shape[-1], grad=True),
        cases.randn(8, grad=True),
    )
    y = conv2d(x, weight, bias)
    assert torch.equal(y, bias.expand(shape[0], 3, 3, 8))
    y.sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight)) and torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(bias.grad, torch.full_like(bias, 9.0 * shape[0]))


BACKWARD = torch.ops.kernels_from_math.conv2d_backward.default
ARGUMENTS = ([2, 1], [0, 1, 1, 2], [1, 1], 1)


def test_opcheck():
    planes, weight, bias = cases.randn(2, 4, 6, 7), cases.randn(8, 4, 3, 3), cases.randn(8)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        stored = planes.contiguous(memory_format=memory_format)
        torch.library.opcheck(convolve, (*(t.clone().requires_grad_() for t in (stored, weight, bias)), *ARGUMENTS))
        dy = torch.randn_like(convolve(stored, weight, bias, *ARGUMENTS))
        torch.library.opcheck(BACKWARD, (dy, stored, weight, *ARGUMENTS, [True, True, True]))
        torch.library.opcheck(BACKWARD, (dy, stored, weight, *ARGUMENTS, [False, True, False]))
    x, dy = planes.permute(0, 2, 3, 1), dy.permute(0, 2, 3, 1)
    torch.library.opcheck(_wgrad, (x, dy, 3, 3, *ARGUMENTS, "auto", None, torch.float16))
    out = torch.zeros(8, 3, 3, 4, device=x.device)
    torch.library.opcheck(_wgrad_into, (out, x, dy, 3, 3, *ARGUMENTS, "auto", 2, True))
    torch.library.opcheck(_bias_grad, (dy,))
    torch.library.opcheck(_bias_grad_into, (torch.zeros_like(bias), dy, True))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(dynamic):
    """One graph, forward and backward, and the function that writes in place, with the same numbers as eager."""
    backend = "aot_eager" if runtime.interpreted else "inductor"
    layer = Conv2d(4, 8, 3, stride=(2, 1), padding="valid").to(runtime.device)
    function = lambda x: layer(x).square().sum()  # noqa: E731
    x = cases.randn(2, 4, 6, 7)
    grads = []
    for f in (function, torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)):
        layer.zero_grad()
        f(x).backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)

    def accumulated(x, dy, out):
        return conv2d_wgrad(x, dy, 3, 3, out=out, accumulate=True) * 2

    x, dy, out = cases.randn(2, 6, 7, 4), cases.randn(2, 4, 5, 8), torch.ones(8, 3, 3, 4, device=x.device)
    eager = accumulated(x, dy, out.clone())
    compiled = torch.compile(accumulated, fullgraph=True, backend=backend, dynamic=dynamic)(x, dy, out)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(out, eager / 2)


def test_under_autocast():
    layer = Conv2d(4, 8, 3).to(runtime.device)
    with torch.autocast(runtime.device.type, dtype=torch.bfloat16):
        y = layer(cases.randn(2, 4, 6, 6))
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_explain_names_the_choice_and_the_reason():
    x, dy = cases.randn(2, 6, 7, 4), cases.randn(2, 6, 7, 8)
    text = conv2d_wgrad.explain(x, dy, 3, 3, padding=1, split_k=1)
    assert text.startswith("triton: product [8 x 84][84 x 36]") or not runtime.interpreted
    with cases.configuration(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16):
        text = conv2d_wgrad.explain(x, dy, 3, 3, padding=1, split_k=4)
    waste = 16 / 8 * 48 / 36 * 96 / 84
    assert f"BLOCK_M 16, BLOCK_N 16, BLOCK_K 16, STAGES" in text  # noqa: F541
    assert f"3 tiles, split-K 3; tile waste {waste:.2f}" in text
    text = conv2d_wgrad.explain(x, dy, 3, 3, padding=1, groups=2)
    assert "product [8 x 84][84 x 36] in 2 groups, 2 of them multiplied together;" in text
    wide = cases.randn(2, 6, 7, 128)
    assert "product [64 x 84][84 x 576] in 2 groups;" in conv2d_wgrad.explain(wide, wide, 3, 3, padding=1, groups=2)
    assert "sums of 8 channels and 9 taps over 84 pixels, no product" in conv2d_wgrad.explain(x, dy, 3, 3, 1, 1, 1, 4)
    assert "nothing to sum" in conv2d_wgrad.explain(x[:0], dy[:0], 3, 3, padding=1)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph():
    x, dy = cases.randn(4, 16, 16, 64, dtype=torch.bfloat16), cases.randn(4, 16, 16, 64, dtype=torch.bfloat16)
    out = torch.zeros(64, 3, 3, 64, device=x.device)
    work = lambda: (conv2d_wgrad(x, dy, 3, 3, 1, 1), conv2d_wgrad(x, dy, 3, 3, 1, 1, out=out), conv2d_bias_grad(dy))  # noqa: E731
    graph, outputs = capture(work)
    x.copy_(torch.randn_like(x))
    graph.replay()
    captured = [o.clone() for o in outputs]
    for replayed, eager in zip(captured, work(), strict=True):
        assert torch.equal(replayed, eager)


@pytest.mark.gpu
def test_never_waits_for_the_gpu():
    layer, x = Conv2d(64, 64, 3, padding=1).cuda(), cases.randn(2, 64, 16, 16, grad=True)
    layer(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_runs_on_the_tensors_own_device():
    x, dy = torch.randn(2, 6, 6, 16), torch.randn(2, 6, 6, 16)
    there = conv2d_wgrad(x.to("cuda:1"), dy.to("cuda:1"), 3, 3, 1, 1)
    here = conv2d_wgrad(x.to("cuda:0"), dy.to("cuda:0"), 3, 3, 1, 1)
    assert there.device.index == 1 and torch.equal(there.cpu(), here.cpu())
