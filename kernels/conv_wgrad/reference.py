"""2-D convolution and its weight and bias gradients in plain PyTorch: slow, obviously right, differentiable by autograd."""

import torch
import torch.nn.functional as F

from kernels.conv_wgrad.geometry import Geometry, geometry

__all__ = ["Geometry", "conv2d_bias_grad_reference", "conv2d_reference", "conv2d_wgrad_reference", "geometry", "im2col"]


def im2col(input, g):
    """What every output pixel sees, [N, P, Q, groups, R, S, Ci/groups]: pixel (p σh + r δh - pt, q σw + s δw - pl).

    Args:
        input: [N, H, W, Ci].
        g: the convolution's ``Geometry``.
    """
    top, bottom, left, right = g.padding
    x = F.pad(input, (0, 0, left, right, top, bottom))
    taps = [
        x[
            :,
            r * g.dilation[0] : r * g.dilation[0] + (g.P - 1) * g.stride[0] + 1 : g.stride[0],
            s * g.dilation[1] : s * g.dilation[1] + (g.Q - 1) * g.stride[1] + 1 : g.stride[1],
        ].reshape(g.N, g.P, g.Q, g.groups, g.Ci_group)
        for r in range(g.R)
        for s in range(g.S)
    ]
    return torch.stack(taps, -2).reshape(g.N, g.P, g.Q, g.groups, g.R, g.S, g.Ci_group)


def conv2d_reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """The forward equation of ``conv2d``: same arguments, same result, computed in input's dtype.

    .. math:: y_{n,p,q,o} = b_o + \\sum_{r,s,c} w_{o,r,s,c}\\;x_{n,h,w,c}
        \\qquad h = p\\,\\sigma_h + r\\,\\delta_h - p_t, \\quad w = q\\,\\sigma_w + s\\,\\delta_w - p_l

    with x zero outside the image, and c running over the channels of o's group.
    """
    Co, R, S, _ = weight.shape
    g = geometry(input.shape, Co, R, S, stride, padding, dilation, groups)
    g.check_output()
    w = weight.reshape(groups, g.Co_group, R, S, g.Ci_group)
    y = torch.einsum("npqgrsc,gorsc->npqgo", im2col(input, g), w).reshape(g.output_shape)
    return y if bias is None else y + bias


def conv2d_wgrad_reference(input, grad_output, R, S, stride=1, padding=0, dilation=1, groups=1):
    """The equation of ``conv2d_wgrad``: the gradient of the weight, [Co, R, S, Ci/groups].

    .. math:: \\bar w_{o,r,s,c} = \\sum_{n,p,q} \\bar y_{n,p,q,o}\\;x_{n,h,w,c}
        \\qquad h = p\\,\\sigma_h + r\\,\\delta_h - p_t, \\quad w = q\\,\\sigma_w + s\\,\\delta_w - p_l
    """
    g = geometry(input.shape, grad_output.shape[-1], R, S, stride, padding, dilation, groups)
    if g.M == 0:
        return input.new_zeros(g.weight_shape)  # the sum over no pixels
    dy = grad_output.reshape(g.N, g.P, g.Q, groups, g.Co_group)
    return torch.einsum("npqgo,npqgrsc->gorsc", dy, im2col(input, g)).reshape(g.weight_shape)


def conv2d_bias_grad_reference(grad_output):
    """The equation of ``conv2d_bias_grad``, :math:`\\bar b_o = \\sum_{n,p,q} \\bar y_{n,p,q,o}`."""
    return grad_output.sum((0, 1, 2))
