"""Each proven fault of the published kernel that concerns any GPU, as a test that bears its name."""

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import Conv2d, conv2d, conv2d_bias_grad, conv2d_wgrad
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from tests.conv_wgrad import cases
from tests.tensors import relative_error


def test_W1_the_portable_kernel_runs_wherever_triton_does():
    assert conv2d_wgrad.explain(cases.randn(1, 4, 4, 8), cases.randn(1, 4, 4, 8), 1, 1, backend="triton").startswith(
        "triton: "
    )


@pytest.mark.parametrize("Co", [3, 5, 10, 21])
def test_W2_output_channels_need_not_fill_a_vector(Co):
    cases.check((2, 6, 6, 16), Co, padding=1, dtype=torch.bfloat16)


@pytest.mark.parametrize("R, stride, padding", [(16, 16, 0), (14, 14, 3), (3, 11, 1)])
def test_W3_strides_longer_than_eight(R, stride, padding):
    """The patches of a vision transformer, and strides that skip pixels."""
    cases.check((2, 48, 32, 3), 24, R, R, stride=stride, padding=padding, dtype=torch.bfloat16)


@pytest.mark.parametrize("size, R, padding", [(140, 130, 0), (3, 2, 129), (9, 200, 100)])
def test_W4_large_filters_and_wide_padding(size, R, padding):
    cases.check((1, size, size, 1), 2, R, 3, padding=(padding, padding, 1, 0))


def test_W5_dilation_groups_asymmetric_padding_and_the_bias():
    for convolution in (dict(dilation=3), dict(groups=2), dict(groups=8), dict(padding=(0, 1, 2, 3))):
        cases.check((2, 9, 9, 8), 8, **convolution)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_W6_the_fp32_sum_can_be_had_and_accumulated(dtype):
    x, dy, _ = cases.problem((2, 7, 7, 8), 16, 3, 3, dtype=dtype)
    want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), 3, 3)
    full = conv2d_wgrad(x, dy, 3, 3, out_dtype=torch.float32)
    assert full.dtype == torch.float32 and relative_error(full, want) < 2e-6
    grad = cases.randn(*full.shape)
    before = grad.clone()
    assert conv2d_wgrad(x, dy, 3, 3, out=grad, accumulate=True) is grad
    assert relative_error(grad, before.cpu().double() + want) < 2e-6
    bias = cases.randn(16)
    before = bias.clone()
    assert conv2d_bias_grad(dy, out=bias, accumulate=True) is bias
    assert relative_error(bias, before.cpu().double() + dy.cpu().double().sum((0, 1, 2))) < 2e-6


def test_W6_accumulation_is_rounded_once():
    """2048 + 1 is no float16, but 2048 + (1 + 1) is: the sum of the splits is added to out before it is rounded."""
    x = torch.ones(2, 1, 1, 1, dtype=torch.float16, device=runtime.device)
    out = torch.full((1, 1, 1, 1), 2048.0, dtype=torch.float16, device=runtime.device)
    with cases.configuration(BLOCK_K=16):
        conv2d_wgrad(x, x, 1, 1, out=out, accumulate=True)
    assert out.item() == 2050


def test_W7_workspace_and_tensors_are_addressed_with_64_bits():
    """Images 2^31 elements apart, and rows of one image 2^31 elements apart: both beyond the reach of 32 bits."""
    far = 2**31
    storage = torch.UntypedStorage(2 * (far + 4096), device=runtime.device)  # never touched but at its ends
    memory = torch.empty(0, dtype=torch.float16, device=runtime.device).set_(storage)
    for strides in ((far, 24, 8, 1), (24, far, 8, 1)):
        x = memory.as_strided((2, 2, 3, 8), strides)
        x.copy_(cases.randn(2, 2, 3, 8))
        for groups in (1, 8):
            dy = cases.randn(2, 2, 3, 8, dtype=torch.float16)
            want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), 3, 3, 1, 1, 1, groups)
            assert relative_error(conv2d_wgrad(x, dy, 3, 3, 1, 1, 1, groups), want) < 4e-4
    dy = memory.as_strided((2, 1, 1, 8), (far, far, far, 1))
    dy.copy_(cases.randn(2, 1, 1, 8))
    x = cases.randn(2, 1, 1, 8, dtype=torch.float16)
    want = conv2d_wgrad_reference(x.cpu().double(), dy.cpu().double(), 1, 1)
    assert relative_error(conv2d_wgrad(x, dy, 1, 1), want) < 4e-4


@pytest.mark.gpu
def test_W7_partial_sums_of_more_than_two_to_the_31_elements():
    """600 splits of 2048 x 2048 weights, of 256 pixels or more each: 2.5e9 partial sums, 10 GB."""
    x, dy = (cases.randn(600, 16, 16, 2048, dtype=torch.bfloat16) for _ in range(2))
    with cases.launches() as seen:
        ours = conv2d_wgrad(x, dy, 1, 1, backend="triton", split_k=600, out_dtype=torch.float32)
    assert seen[-1][2][0].numel() > 2**31
    want = dy.flatten(0, 2).T.float() @ x.flatten(0, 2).float()
    assert relative_error(ours[:, 0, 0], want) < 1e-4


def test_W8_nothing_is_timed_or_cached_by_batch_size():
    """The launch is a function of the arguments: the same options before and after other shapes have run."""

    def options(N):
        with cases.launches() as seen:
            conv2d_wgrad(cases.randn(N, 4, 4, 8), cases.randn(N, 4, 4, 8), 1, 1)
        return [(grid, meta) for _, grid, _, meta in seen]

    before = options(3)
    for N in (1, 2, 5):
        options(N)
    assert options(3) == before


def test_W10_a_channels_last_view_is_read_in_place_and_others_are_copied_with_a_reason():
    images = cases.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    x, dy = images.permute(0, 2, 3, 1), cases.randn(2, 6, 6, 16)
    assert "copies" not in conv2d_wgrad.explain(x, dy, 1, 1)
    with cases.launches() as seen:
        conv2d_wgrad(x, dy, 1, 1)
    _, _, (dy_seen, x_seen, *_), _ = seen[0]
    assert (dy_seen.data_ptr(), x_seen.data_ptr()) == (dy.data_ptr(), x.data_ptr())
    planes = images.contiguous().permute(0, 2, 3, 1)
    assert "copies input: strides (288, 6, 1, 36), its channels are not adjacent" in conv2d_wgrad.explain(
        planes, dy, 1, 1
    )
    torch.testing.assert_close(conv2d_wgrad(planes, dy, 1, 1), conv2d_wgrad(x, dy, 1, 1), rtol=0, atol=0)
    margin = cases.randn(2, 6, 8, 16)[:, :, 1:7]
    assert "copies grad_output" in conv2d_wgrad.explain(x, margin, 1, 1)


@pytest.mark.parametrize("R, stride", [(1, 2), (2, 3), (3, 4)])
def test_U5_pixels_that_no_output_saw_have_a_gradient_of_zero(R, stride):
    x, weight = cases.randn(2, 8, 8, 4, grad=True), cases.randn(8, R, R, 4)
    y = conv2d(x, weight, None, stride)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    seen = torch.zeros(8, dtype=torch.bool, device=x.device)
    for r in range(R):
        seen[r : r + (y.shape[1] - 1) * stride + 1 : stride] = True
    assert (dx[:, ~seen] == 0).all() and (dx[:, :, ~seen] == 0).all() and (dx[:, seen][:, :, seen] != 0).all()


def test_a_second_derivative_is_refused_clearly():
    x, layer = cases.randn(1, 4, 5, 5, grad=True), Conv2d(4, 4, 3).to(runtime.device)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative.*kernels.conv_wgrad.reference.conv2d_reference"):
        dx.sum().backward()


def test_a_gradient_of_a_gradient_is_refused_as_what_it_is():
    x, dy = cases.randn(1, 5, 5, 4, grad=True), cases.randn(1, 3, 3, 8, grad=True)
    for of, name in ((conv2d_wgrad(x, dy, 3, 3), "conv2d_wgrad"), (conv2d_bias_grad(dy), "conv2d_bias_grad")):
        reference = f"kernels.conv_wgrad.reference.{name}_reference"
        with pytest.raises(RuntimeError, match=f"{name} is not differentiable: .* no backward pass.*{reference}"):
            of.sum().backward()
