"""The reference is the equation: loops over every index, torch's own convolution and autograd, and gradcheck agree."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.reference import conv2d_bias_grad_reference, conv2d_reference, conv2d_wgrad_reference

CASES = {
    "1x1": dict(R=1, S=1),
    "3x3, padded": dict(padding=1),
    "stride 2": dict(stride=2, padding=1),
    "stride 2, 1x1": dict(R=1, S=1, stride=2),
    "stride longer than the filter": dict(R=2, S=3, stride=(3, 4)),
    "asymmetric stride": dict(stride=(2, 1), padding=1),
    "asymmetric padding": dict(padding=(0, 2, 1, 3)),
    "dilated": dict(dilation=(2, 1), padding=(2, 1)),
    "two groups": dict(groups=2, padding=1),
    "depthwise": dict(groups=4, padding=1),
}


def tensors(R=3, S=3, groups=1, **rest):
    generator = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)  # noqa: E731
    return make(2, 6, 7, 4), make(8, R, S, 4 // groups), make(8)


def options(case):
    return {k: v for k, v in CASES[case].items() if k not in ("R", "S")}


def by_torch(x, w, b, stride=1, padding=0, dilation=1, groups=1):
    top, bottom, left, right = geometry(x.shape, w.shape[0], 1, 1, padding=padding).padding
    x = F.pad(x.permute(0, 3, 1, 2), (left, right, top, bottom))
    return F.conv2d(x, w.permute(0, 3, 1, 2), b, stride, 0, dilation, groups).permute(0, 2, 3, 1)


@pytest.mark.parametrize("case", CASES)
def test_forward_and_gradients_are_torchs(case):
    x, w, b = tensors(**CASES[case])
    y, want = conv2d_reference(x, w, b, **options(case)), by_torch(x, w, b, **options(case))
    torch.testing.assert_close(y, want)
    dy = torch.randn(want.shape, dtype=torch.float64)
    dx, dw, db = torch.autograd.grad(want, (x, w, b), dy)
    ours = conv2d_wgrad_reference(x, dy, w.shape[1], w.shape[2], **options(case))
    torch.testing.assert_close(ours, dw)
    torch.testing.assert_close(conv2d_bias_grad_reference(dy), db)
    torch.testing.assert_close(torch.autograd.grad(y, (x, w, b), dy), (dx, dw, db))


@pytest.mark.parametrize("case", ["asymmetric padding", "dilated", "stride longer than the filter", "two groups"])
def test_the_gradient_is_its_sum_written_as_loops(case):
    x, w, _ = tensors(**CASES[case])
    g = geometry(x.shape, *w.shape[:3], **options(case))
    dy = torch.randn(g.output_shape, dtype=torch.float64)
    x, want = x.detach(), torch.zeros(g.weight_shape, dtype=torch.float64)
    for p, q, r, s in itertools.product(range(g.P), range(g.Q), range(g.R), range(g.S)):
        h = p * g.stride[0] + r * g.dilation[0] - g.padding[0]
        v = q * g.stride[1] + s * g.dilation[1] - g.padding[2]
        if 0 <= h < g.H and 0 <= v < g.W:
            for o in range(g.Co):
                first = o // g.Co_group * g.Ci_group
                want[o, r, s] += dy[:, p, q, o] @ x[:, h, v, first : first + g.Ci_group]
    torch.testing.assert_close(conv2d_wgrad_reference(x, dy, g.R, g.S, **options(case)), want)


@pytest.mark.parametrize("case", ["stride 2", "depthwise"])
def test_gradcheck(case):
    x, w, b = tensors(**CASES[case])
    x = x.detach()[:1].requires_grad_()
    forward = lambda *a: conv2d_reference(*a, **options(case))  # noqa: E731
    assert torch.autograd.gradcheck(forward, (x, w, b), fast_mode=True)
    dy = conv2d_reference(x, w, b, **options(case)).detach().requires_grad_()
    function = lambda x, dy: conv2d_wgrad_reference(x, dy, w.shape[1], w.shape[2], **options(case))  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, dy), fast_mode=True)


def test_no_pixels_are_a_sum_of_nothing():
    x = torch.randn(0, 5, 5, 3)
    assert torch.equal(conv2d_wgrad_reference(x, torch.randn(0, 3, 3, 2), 3, 3), torch.zeros(2, 3, 3, 3))
    x = torch.randn(2, 2, 5, 3)
    assert torch.equal(conv2d_wgrad_reference(x, torch.randn(2, 0, 3, 2), 3, 3), torch.zeros(2, 3, 3, 3))
