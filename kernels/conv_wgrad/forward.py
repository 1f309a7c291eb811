"""The forward pass and the input gradient, both by torch, in NHWC: what makes the weight gradient part of a convolution."""

import torch
import torch.nn.functional as F


def forward(input, weight, bias, g):
    """y [N, P, Q, Co], contiguous, of the ``Geometry`` g.

    Args:
        input: [N, H, W, Ci]; its NCHW view is what torch convolves, channels_last where input is contiguous.
        weight: [Co, R, S, Ci/groups].
        bias: [Co], or ``None``.
        g: their ``Geometry``.
    """
    if 0 in g.output_shape or input.numel() == 0:  # torch refuses most of these; no products, so y is the bias
        y = input.new_zeros(g.output_shape)
        return y if bias is None else y + bias
    symmetric, excess = split_padding(g)
    x = F.pad(input.permute(0, 3, 1, 2), excess) if any(excess) else input.permute(0, 3, 1, 2)
    y = F.conv2d(x, weight.permute(0, 3, 1, 2), bias, g.stride, symmetric, g.dilation, g.groups)
    return y.permute(0, 2, 3, 1).contiguous()


def input_grad(grad_output, weight, g):
    """dx [N, H, W, Ci], contiguous: the transposed convolution of ``grad_output`` [N, P, Q, Co] with ``weight``."""
    if 0 in g.output_shape or 0 in g.input_shape:
        return grad_output.new_zeros(g.input_shape)
    symmetric, (left, right, top, bottom) = split_padding(g)
    padded = grad_output.new_empty(g.N, g.H + top + bottom, g.W + left + right, g.Ci)  # its shape is all that is used
    dx, _, _ = torch.ops.aten.convolution_backward(
        grad_output.permute(0, 3, 1, 2), padded.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2),
        None, g.stride, symmetric, g.dilation, False, [0, 0], g.groups, [True, False, False],
    )  # fmt: skip
    return dx.permute(0, 2, 3, 1)[:, top : top + g.H, left : left + g.W].contiguous()


def split_padding(g):
    """``((h, w), (left, right, top, bottom))``: padding that torch's convolution can do, and the rest for ``F.pad``."""
    top, bottom, left, right = g.padding
    h, w = min(top, bottom), min(left, right)
    return (h, w), (left - w, right - w, top - h, bottom - h)
