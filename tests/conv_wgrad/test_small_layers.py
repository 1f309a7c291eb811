"""Small layers: all gradients of a layer, with as few launches and workspaces as there need be."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d_wgrad
from tests.conv_wgrad import cases
from tests.tensors import relative_error

LAYERS = {
    "3x3": dict(channels=(16, 40), size=(9, 11), kernel_size=3, padding=1),
    "odd channels": dict(channels=(5, 7), size=(6, 5), kernel_size=3, padding=1),
    "1x1": dict(channels=(24, 40), size=(5, 7), kernel_size=1),
    "two groups": dict(channels=(32, 48), size=(8, 8), kernel_size=3, groups=2),
    "two wide groups": dict(channels=(128, 192), size=(5, 5), kernel_size=1, groups=2),
    "patches": dict(channels=(3, 32), size=(8, 8), kernel_size=4, stride=4),
    "depthwise": dict(channels=(16, 16), size=(7, 7), kernel_size=3, groups=16),
    "strided": dict(channels=(16, 32), size=(9, 9), kernel_size=3, stride=2, dilation=2, padding=2),
}
TILES = dict(BLOCK_M=16, BLOCK_N=32, BLOCK_K=32)


def layer(dtype=torch.float16, memory_format=torch.channels_last, *, channels, size, **options):
    """``(ours, torch's in float64, images)``."""
    torch.manual_seed(0)
    ours = Conv2d(*channels, **options).to(runtime.device, dtype, memory_format=memory_format)
    theirs = torch.nn.Conv2d(*channels, **options).double()
    theirs.load_state_dict({name: t.cpu().double() for name, t in ours.state_dict().items()})
    x = torch.randn(2, channels[0], *size).to(runtime.device, dtype).contiguous(memory_format=memory_format)
    return ours, theirs, x.requires_grad_()


def gradients(layer, x, dy):
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], dy)


@pytest.mark.share(3)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layers_gradients(name, tma, memory_format):
    ours, theirs, x = layer(memory_format=memory_format, **LAYERS[name])
    dy = torch.randn(theirs(x.detach().cpu().double()).shape).half()
    with cases.configuration(**TILES, TMA=tma), cases.launches() as seen:
        got = gradients(ours, x, dy.to(runtime.device))
        again = gradients(ours, x, dy.to(runtime.device))
    want = gradients(theirs, x.detach().cpu().double().requires_grad_(), dy.double())
    for what, one, other, expected in zip(("dx", "dw", "db"), got, again, want, strict=True):
        assert torch.equal(one, other), what
        assert one.shape == expected.shape and relative_error(one, expected) <= 6e-4, what
    if runtime.interpreted:
        main = "depthwise_kernel" if name == "depthwise" else "wgrad_kernel"
        assert [kernel.__name__ for kernel, *_ in seen] == [main, "bias_kernel"] * 2


def test_a_bias_without_gradient_launches_nothing():
    ours, _, x = layer(**LAYERS["3x3"])
    ours.bias.requires_grad_(False)
    with cases.configuration(**TILES), cases.launches() as seen:
        torch.autograd.grad(ours(x).sum(), ours.weight)
    if runtime.interpreted:
        assert [grid for _, grid, *_ in seen] == [(3 * -(-9 * 16 // 32),)]


def test_partial_sums_of_a_layer():
    ours, theirs, x = layer(**LAYERS["3x3"])
    dy = torch.randn(2, 40, 9, 11).half()
    with cases.configuration(**TILES, HELD=1000), cases.launches() as seen:
        got = gradients(ours, x, dy.to(runtime.device))
    want = gradients(theirs, x.detach().cpu().double().requires_grad_(), dy.double())
    assert all(relative_error(a, b) <= 6e-4 for a, b in zip(got, want, strict=True))
    if runtime.interpreted:
        assert [kernel.__name__ for kernel, *_ in seen][:2] == ["wgrad_kernel", "sum_kernel"]
        assert "bias_kernel" in [kernel.__name__ for kernel, *_ in seen]


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_gradient_in_another_layout_is_rounded_once(accumulate):
    """One split is written in the result's dtype, and copied; a sum is made in float32."""
    x, dy, _ = cases.problem((2, 6, 5, 16), 32, 3, 3, dtype=torch.bfloat16)
    dense = torch.randn(32, 3, 3, 16, device=runtime.device).bfloat16()
    planes = dense.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    for out in (dense, planes):
        conv2d_wgrad(x, dy, 3, 3, out=out, accumulate=accumulate)
    assert not planes.is_contiguous() and torch.equal(dense, planes)
