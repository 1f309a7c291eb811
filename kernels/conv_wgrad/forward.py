"""The forward pass and the input gradient, both by torch, in NCHW: what makes the weight gradient part of a convolution."""

import functools

import torch
import torch.nn.functional as F

from kernels.common.checks import PLAIN


def memory_format(*tensors):
    """The format torch's convolutions give their output: channels last where one of these NCHW tensors is stored so."""
    formats = [_format_of(x) for x in tensors]
    return torch.channels_last if torch.channels_last in formats else torch.contiguous_format


def _format_of(x):
    if type(x) not in PLAIN and any(isinstance(size, torch.SymInt) for size in (*x.shape, *x.stride())):
        return torch._prims_common.suggest_memory_format(x)
    return format_of(x.shape, x.stride())


@functools.lru_cache(1024)
def format_of(shape, strides):
    """``memory_format`` of a tensor that lies so: torch asks in Python, for as long as a launch takes."""
    return torch._prims_common.suggest_memory_format(torch.empty_strided(shape, strides, device="meta"))


def forward(input, weight, bias, g):
    """y [N, Co, P, Q] of the ``Geometry`` g.

    Args:
        input: [N, Ci, H, W].
        weight: [Co, Ci/groups, R, S].
        bias: [Co], or ``None``.
        g: their ``Geometry``.
    """
    nothing, symmetric, excess = _padding_of(g)
    if nothing:  # torch refuses most of these; no products, so y is the bias
        y = input.new_zeros(g.N, g.Co, g.P, g.Q)
        return y if bias is None else y + bias[:, None, None]
    x = F.pad(input, excess) if excess else input
    # Not by its name in torch.nn.functional, under which a program may have put ours.
    return torch.conv2d(x, weight, bias, g.stride, symmetric, g.dilation, g.groups)


def convolution_of(g, layout):
    """``run(input, weight, bias, ...)``: ``forward`` of the ``Geometry`` g, its output in the memory format ``layout``."""
    nothing, symmetric, excess = _padding_of(g)
    if nothing or excess:
        return lambda input, weight, bias, *_: forward(input, weight, bias, g).contiguous(memory_format=layout)
    stride, dilation, groups = g.stride, g.dilation, g.groups

    def run(input, weight, bias, *_):
        y = torch.conv2d(input, weight, bias, stride, symmetric, dilation, groups)
        return y.contiguous(memory_format=layout)  # whatever torch chose, as the operator's fake says

    return run


def input_grad_of(g, layout):
    """``run(grad_output, input, weight)``: dx [N, Ci, H, W] of the ``Geometry`` g, in the memory format ``layout``, which is
    that of ``input``: the transposed convolution of ``grad_output`` [N, Co, P, Q] with ``weight``."""
    nothing, symmetric, excess = _padding_of(g)
    if nothing:
        return lambda dy, *_: dy.new_zeros(g.N, g.Ci, g.H, g.W).contiguous(memory_format=layout)
    options = g.stride, symmetric, g.dilation, False, (0, 0), g.groups, (True, False, False)
    convolution_backward = torch.ops.aten.convolution_backward.default

    def run(dy, input, weight):  # of the input its shape and format are all that is used
        dx, _, _ = convolution_backward(dy, input, weight, None, *options)
        return dx.contiguous(memory_format=layout)

    def run_padded(dy, input, weight):
        left, right, top, bottom = excess
        size = g.N, g.Ci, g.H + top + bottom, g.W + left + right
        dx, _, _ = convolution_backward(dy, dy.new_empty(size).to(memory_format=layout), weight, None, *options)
        return dx[:, :, top : top + g.H, left : left + g.W].contiguous(memory_format=layout)

    return run_padded if excess else run


def _padding_of(g):
    """``(whether there is nothing to multiply, what torch can pad, the rest for F.pad or None)``."""
    if torch.compiler.is_compiling():
        return _make_padding(g)
    known = vars(g).get("padding_of_torch")  # beside the fields: to hash them takes longer than all else here
    if known is None:
        known = vars(g)["padding_of_torch"] = _make_padding(g)
    return known


def _make_padding(g):
    symmetric, excess = split_padding(g)
    return 0 in g.output_shape or 0 in g.input_shape, symmetric, excess if any(excess) else None


def split_padding(g):
    """``((h, w), (left, right, top, bottom))``: padding that torch's convolution can do, and the rest for ``F.pad``."""
    top, bottom, left, right = g.padding
    h, w = min(top, bottom), min(left, right)
    return (h, w), (left - w, right - w, top - h, bottom - h)
