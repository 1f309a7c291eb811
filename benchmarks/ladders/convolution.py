"""What the ladders of convolutions share: a layer's tensors, sizes as the lessons' kernels take them, and torch's own."""

import torch

from benchmarks.conv_wgrad import by_torch
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.reference import conv2d_wgrad_reference

FEW = 8  # output channels that are compared: the last, whose addresses are the largest


def layer(N, Ci, Co, H, R, stride=1):
    """The ``Geometry`` of a layer with square images and filters."""
    return geometry((N, H, H, Ci), Co, R, R, stride, R // 2)


def sizes(g):
    """A geometry as the lessons' kernels take it."""
    return (g.M, g.P, g.Q, g.H, g.W, g.R, g.S, g.Ci, g.Co, *g.stride, g.padding[0], g.padding[2], *g.dilation)


def inputs(device, g, dtype, *shapes):
    """Random tensors in ``dtype``: of the input's shape, and of these."""
    torch.manual_seed(0)
    return [torch.randn(shape, device=device).to(dtype) for shape in (g.input_shape, *shapes)]


def exact(x, dy, g):
    """The weight gradient of the last output channels, summed in float64 image by image, as rows of J numbers."""
    last = dy[..., -FEW:]
    total = 0
    for n in range(0, g.N, 8):
        some = slice(n, n + 8)
        total = total + conv2d_wgrad_reference(x[some].double(), last[some].double(), g.R, g.S, g.stride, g.padding)
    return total.flatten(1)


def cudnn(t, g):
    """torch's weight gradient, channels last, in memory made at the first call: a call that gives its last rows."""
    if "cuDNN" not in t:
        t["cuDNN"] = by_torch(t["x"], t["dy"], g, torch.channels_last)
    return {"dw": t["cuDNN"]()[-FEW:].flatten(1)}
