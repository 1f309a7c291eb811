"""Small layers: all gradients of a layer, with as few launches, descriptors and workspaces as there need be."""

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common import configs
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


def short(pixels, bias=2**30):
    """Within this, sums over so many pixels are short; and those that a program may sum a bias over alone."""
    says = configs._says
    return configs.instead(
        lambda package, kernel, *rest: {"PIXELS": pixels, "BIAS": bias} if kernel == "short" else says(package, kernel, *rest)
    )


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
        alone = [] if name != "depthwise" else ["bias_kernel"]
        main = "depthwise_kernel" if name == "depthwise" else "wgrad_kernel"
        assert [kernel.__name__ for kernel, *_ in seen] == [main, *alone] * 2


def test_each_channel_is_summed_by_one_program_behind_the_products():
    ours, _, x = layer(**LAYERS["3x3"])
    with cases.configuration(**TILES), cases.launches() as seen:
        gradients(ours, x, torch.ones(2, 40, 9, 11, device=runtime.device).half())
        ours.bias.requires_grad_(False)
        torch.autograd.grad(ours(x).sum(), ours.weight)
    if runtime.interpreted:
        tiles = 3 * -(-9 * 16 // 32)
        assert [grid for _, grid, *_ in seen] == [(tiles + 3,), (tiles,)]


def test_partial_sums_leave_the_bias_to_a_launch_of_its_own():
    ours, theirs, x = layer(**LAYERS["3x3"])
    dy = torch.randn(2, 40, 9, 11).half()
    with cases.configuration(**TILES, HELD=1000), cases.launches() as seen:
        got = gradients(ours, x, dy.to(runtime.device))
    want = gradients(theirs, x.detach().cpu().double().requires_grad_(), dy.double())
    assert all(relative_error(a, b) <= 6e-4 for a, b in zip(got, want, strict=True))
    if runtime.interpreted:
        assert [kernel.__name__ for kernel, *_ in seen][:2] == ["wgrad_kernel", "sum_kernel"]
        assert "bias_kernel" in [kernel.__name__ for kernel, *_ in seen]


@pytest.mark.parametrize("bias, beside", [(197, False), (198, True)])
def test_a_long_sum_of_the_bias_has_a_launch_of_its_own(bias, beside):
    """A program that walks all pixels alone would come last."""
    ours, theirs, x = layer(**LAYERS["3x3"])
    dy = torch.randn(2, 40, 9, 11).half()
    with cases.configuration(**TILES), short(0, bias), cases.launches() as seen:
        got = gradients(ours, x, dy.to(runtime.device))
    want = gradients(theirs, x.detach().cpu().double().requires_grad_(), dy.double())
    assert all(relative_error(a, b) <= 6e-4 for a, b in zip(got, want, strict=True))
    if runtime.interpreted:
        assert [kernel.__name__ for kernel, *_ in seen] == ["wgrad_kernel", *["bias_kernel"] * (not beside)]


@pytest.mark.parametrize("pixels, described", [(197, True), (198, False)])
def test_tma_is_not_told_of_a_short_sum(pixels, described):
    x, dy, g = cases.problem((2, 9, 11, 16), 32, 3, 3, dtype=torch.float16, padding=1)
    assert g.M == 198
    with cases.configuration(TMA=True), short(pixels), cases.launches() as seen:
        conv2d_wgrad(x, dy, 3, 3, padding=1)
        said = conv2d_wgrad.explain(x, dy, 3, 3, padding=1)
    assert f"TMA {described}" in said
    if runtime.interpreted:
        assert isinstance(seen[0][2][0], TensorDescriptor) == described


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_gradient_in_another_layout_is_rounded_once(accumulate):
    """One split is written in the result's dtype, and copied; a sum is made in float32."""
    x, dy, _ = cases.problem((2, 6, 5, 16), 32, 3, 3, dtype=torch.bfloat16)
    dense = torch.randn(32, 3, 3, 16, device=runtime.device).bfloat16()
    planes = dense.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    for out in (dense, planes):
        conv2d_wgrad(x, dy, 3, 3, out=out, accumulate=accumulate)
    assert not planes.is_contiguous() and torch.equal(dense, planes)
