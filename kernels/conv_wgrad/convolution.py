"""``conv2d``, and ``Conv2d``, torch.nn.Conv2d, whose weight and bias gradients are this package's kernels.

The forward pass and the input gradient are torch's. A call goes from its checks through PyTorch's dispatcher (``register``)
to ``convolution`` and ``convolution_backward``, of images with channels before height and width.
"""

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import runtime
from kernels.common.checks import (
    FLOAT_DTYPES,
    autocast,
    check_tensor,
    left_to_reference,
    public,
    refuse_transforms,
    shown,
)
from kernels.common.operator import layout, register
from kernels.conv_wgrad.operator import GEOMETRY, bias_grad_into, checked, plan_wgrad, run


@public(casts=("input", "weight", "bias"))
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """A 2-D convolution of images with channels last, whose weight and bias gradients are this package's kernels.

    .. math:: y_{n,p,q,o} = b_o + \\sum_{r,s,c} w_{o,r,s,c}\\;x_{n,h,w,c}
        \\qquad h = p\\,\\sigma_h + r\\,\\delta_h - p_t, \\quad w = q\\,\\sigma_w + s\\,\\delta_w - p_l

    The forward pass and the input gradient are torch's. Differentiable once in every tensor; follows autocast.

    Args:
        input: x [N, H, W, Ci], float32, float16 or bfloat16.
        weight: [Co, R, S, Ci/groups], in input's dtype.
        bias: [Co], in input's dtype, or ``None``.
        stride, padding, dilation, groups: as in ``conv2d_wgrad``.

    Returns:
        y [N, P, Q, Co], contiguous, in input's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; the filter is larger than the padded input.
        RuntimeError: a second derivative, forward mode or a transform of ``torch.func`` is asked for.
    """
    check_tensor("input", input, (None, None, None, None), "[N, H, W, Ci]")
    like = {"dtypes": (input.dtype,), "like": ("input", input)}
    check_tensor("weight", weight, (None, None, None, None), "[Co, R, S, Ci/groups]", **like)
    g, *_ = checked(input.shape, *weight.shape[:3], stride, padding, dilation, groups)
    check_tensor("weight", weight, g.weight_shape, "[Co, R, S, Ci/groups]", **like)
    if bias is not None:
        check_tensor("bias", bias, (g.Co,), "[Co]", **like)
    g.check_output()
    planes = input.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    return convolve(*planes, bias, g.stride, g.padding, g.dilation, g.groups).permute(0, 2, 3, 1).contiguous()


class Conv2d(nn.Conv2d):
    """A drop-in for ``torch.nn.Conv2d``: its constructor, its state_dict, images [N, C, H, W] or [C, H, W].

    The output is stored as torch's layer stores it: contiguous, or ``torch.channels_last`` where the input or the weight is.
    The weight's gradient reads channels last: an input in that format is not copied, another is, once a backward pass.
    What the kernels do not take (float64, the meta device, CPU tensors where kernels are compiled for a GPU) is torch's own
    convolution from beginning to end; CPU tensors there are warned of once.

    Raises:
        ValueError: on a call, where the input's shape, dtype or device does not fit.

    Every argument is that of ``torch.nn.Conv2d``, ``padding="same"`` and ``padding_mode`` included.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y [N, Co, P, Q] of ``input`` [N, Ci, H, W], or the same without N.

        torch's ``forward`` calls this with the layer's parameters, and so do subclasses and programs with others; some put a
        function of their own in its place.
        """
        stride, dilation, padding = _two("stride", self.stride), _two("dilation", self.dilation), self.padding
        if self.padding_mode != "zeros":  # what torch reads then: made of ``padding`` once, and set by programs
            left, right, top, bottom = self._reversed_padding_repeated_twice
            padding = top, bottom, left, right
        elif not isinstance(padding, str):
            padding = _two("padding", padding)
        return conv2d_layer(input, weight, bias, stride, padding, dilation, self.groups, self.padding_mode)

    def __prepare_scriptable__(self):
        """torch's own layer, for ``torch.jit.script``, which cannot read ours."""
        if type(self) is not Conv2d:
            return self
        theirs = nn.Conv2d.__new__(nn.Conv2d)
        theirs.__dict__.update(self.__dict__)
        return theirs


def _two(name, value):
    """``(h, w)`` of what torch's convolution takes: that, ``(h,)`` for both, or, set after construction, a number."""
    pair = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(pair) not in (1, 2):
        raise ValueError(f"{name} is {shown(value)}, needs an int or (h, w)")
    return pair if len(pair) == 2 else pair * 2


@functools.partial(public, name="Conv2d", refuses=False)  # what is torch's own convolution is so under transforms, too
def conv2d_layer(input, weight, bias, stride, padding, dilation, groups, padding_mode="zeros"):
    """``Conv2d``'s call: images [N, Ci, H, W] or [Ci, H, W], weight [Co, Ci/groups, R, S], all else as ``conv2d``.

    padding: (top, bottom, left, right), of ``padding_mode``, one of ``torch.nn.Conv2d``'s.
    """
    if isinstance(input, Tensor) and input.ndim == 3:
        return conv2d_layer(input[None], weight, bias, stride, padding, dilation, groups, padding_mode)[0]
    input, weight, bias = autocast(input, weight, bias)
    _check_planes(input, weight, bias, groups)
    if padding_mode != "zeros":
        top, bottom, left, right = padding
        input, padding = F.pad(input, (left, right, top, bottom), mode=padding_mode), (0, 0, 0, 0)
    Co, _, R, S = _sizes(weight)
    N, Ci, H, W = _sizes(input)
    g, *_ = checked((N, H, W, Ci), Co, R, S, stride, padding, dilation, groups)
    g.check_output()
    here = input.is_cuda and not runtime.interpreted  # the quicker question first
    other = not here and (left_to_reference("Conv2d", input) or input.device.type != runtime.device.type)
    if other or input.dtype not in FLOAT_DTYPES or torch.jit.is_tracing():
        return by_torch(input, weight, bias, g)
    refuse_transforms("Conv2d", (input, weight, bias))
    return convolve(input, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def _check_planes(input, weight, bias, groups):
    kept = {"like": ("input", input), "dtypes": (getattr(input, "dtype", None),)}  # any, and the same for all
    Co, Ci_group, R, S = _sizes(weight)
    check_tensor("input", input, (None, Ci_group * groups, None, None), "[N, Ci, H, W]", **kept)
    check_tensor("weight", weight, (Co, Ci_group, R, S), "[Co, Ci/groups, R, S]", **kept)
    if bias is not None:
        check_tensor("bias", bias, (Co,), "[Co]", **kept)


def _sizes(tensor):
    """A tensor's shape, in integers where ``torch.jit.trace`` makes tensors of it."""
    return tuple(int(size) for size in tensor.shape) if torch.jit.is_tracing() else tuple(tensor.shape)


# Behind the dispatcher: tensors that have been checked.


def convolution(input, weight, bias, stride, padding, dilation, groups):
    """y [N, Co, P, Q] of input [N, Ci, H, W] and weight [Co, Ci/groups, R, S], by torch."""
    y = by_torch(input, weight, bias, _planes(input, weight, stride, padding, dilation, groups))
    return y.contiguous(memory_format=memory_format(input, weight))  # whatever torch chose, as the operator's fake says


def by_torch(input, weight, bias, g):
    """y [N, Co, P, Q] of the ``Geometry`` g."""
    if 0 in g.output_shape or 0 in g.input_shape:  # torch refuses most of these; no products, so y is the bias
        y = input.new_zeros(g.N, g.Co, g.P, g.Q)
        return y if bias is None else y + bias[:, None, None]
    symmetric, excess = g.padding_of_torch
    x = F.pad(input, excess) if any(excess) else input
    # Not by its name in torch.nn.functional, under which a program may have put ours.
    return torch.conv2d(x, weight, bias, g.stride, symmetric, g.dilation, g.groups)


def convolution_backward(dy, input, weight, stride, padding, dilation, groups, needs):
    """The gradients of input, weight and bias, ``None`` where not needed."""
    rows, x = dy.permute(0, 2, 3, 1), input.permute(0, 2, 3, 1)
    convolution = *weight.shape[2:], tuple(stride), tuple(padding), tuple(dilation), groups
    precision = torch.backends.cudnn.conv.fp32_precision
    choice, plan = plan_wgrad(layout(x), layout(rows), convolution, precision, x.device)
    dx = _input_grad(dy, input, weight, choice.equivalent.g) if needs[0] else None
    dw = torch.empty_like(weight) if needs[1] else None
    db = dy.new_empty(dy.shape[1]) if needs[2] else None
    if needs[1]:
        run(plan, x, rows, dw.permute(0, 2, 3, 1), equivalent=choice.equivalent)
    if needs[2]:
        bias_grad_into(db, rows, False)
    return dx, dw, db


def _input_grad(dy, input, weight, g):
    """dx [N, Ci, H, W]: the transposed convolution of dy [N, Co, P, Q] with weight, by torch."""
    stored, (symmetric, excess) = memory_format(input), g.padding_of_torch
    left, right, top, bottom = excess
    if 0 in g.output_shape or 0 in g.input_shape:
        return dy.new_zeros(input.shape).contiguous(memory_format=stored)
    if any(excess):  # of the input its shape and format are all that is used
        input = dy.new_empty(g.N, g.Ci, g.H + top + bottom, g.W + left + right).to(memory_format=stored)
    options = g.stride, symmetric, g.dilation, False, (0, 0), g.groups, (True, False, False)
    dx, _, _ = torch.ops.aten.convolution_backward.default(dy, input, weight, None, *options)
    return dx[:, :, top : top + g.H, left : left + g.W].contiguous(memory_format=stored)


def _planes(input, weight, stride, padding, dilation, groups):
    """The ``Geometry`` of images and weights whose channels come before height and width."""
    N, Ci, H, W = input.shape
    Co, _, R, S = weight.shape
    return checked((N, H, W, Ci), Co, R, S, tuple(stride), tuple(padding), tuple(dilation), groups)[0]


def memory_format(*tensors):
    """The format torch's convolutions give their output: channels last where one of these [N, C, H, W] is stored so."""
    return torch.channels_last if any(map(_is_channels_last, tensors)) else torch.contiguous_format


def _is_channels_last(x):
    """By torch's rule: strides grow from channels to images, and tell channels from images where there is one of each; not
    where a tracer does not know."""
    sizes, steps, least, true = x.shape, x.stride(), 0, bool
    if any(isinstance(number, torch.SymInt) for number in (*sizes, *steps)):
        # to import it takes half a second, unless a tracer has
        from torch.fx.experimental.symbolic_shapes import guard_or_true as true
    if true(steps[1] == 0):
        return False
    for d in (1, 3, 2, 0):
        if true(sizes[d] == 0) or true(steps[d] < least) or d == 0 and least == steps[1]:
            return False
        least = steps[d] * sizes[d]
    return True


# As torch sees it: an operator with known output shapes, in a compiled graph as in an eager one.


def _convolution_shape(input, weight, bias, *rest):
    g = _planes(input, weight, *rest)
    return input.new_empty(g.N, g.Co, g.P, g.Q).contiguous(memory_format=memory_format(input, weight))


def _convolution_backward_shapes(dy, input, weight, *rest):
    dx = input.new_empty(input.shape).contiguous(memory_format=memory_format(input))
    return dx, torch.empty_like(weight), weight.new_empty(weight.shape[:1])


def _flops(input, weight, *rest):
    g = _planes(input, weight, *rest[1:])
    return 2 * g.N * g.P * g.Q * weight.numel()


def _backward_flops(dy, input, weight, *rest):
    return 2 * sum(rest[-1][:2]) * dy.shape[0] * dy.shape[2:].numel() * weight.numel()


convolve = register(
    f"conv2d(Tensor input, Tensor weight, Tensor? bias, {GEOMETRY}) -> Tensor y",
    convolution,
    _convolution_shape,
    backward=convolution_backward,
    gradients=("input", "weight", "bias"),
    saved=("input", "weight"),
    fake_backward=_convolution_backward_shapes,
    operator="conv_wgrad",
    flops=_flops,
    backward_flops=_backward_flops,
)
