"""``Conv2d``: torch.nn.Conv2d whose weight and bias gradients are this package's kernels."""

import functools

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
from kernels.conv_wgrad.operator import by_torch, checked, convolve


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
        stride, dilation = _two("stride", self.stride), _two("dilation", self.dilation)
        sides = self._zeros_around() if self.padding_mode == "zeros" else self._pixels_around()
        return conv2d_layer(input, weight, bias, stride, sides, dilation, self.groups, self.padding_mode)

    def _pixels_around(self):
        """What torch's ``forward`` reads in every other mode than zeros: made of ``padding`` once, and set by programs."""
        left, right, top, bottom = self._reversed_padding_repeated_twice
        return top, bottom, left, right

    def _zeros_around(self):
        if isinstance(self.padding, str):
            return self.padding
        h, w = _two("padding", self.padding)
        return h, h, w, w

    def __prepare_scriptable__(self):
        """torch's own layer, for ``torch.jit.script``, which cannot read ours."""
        if type(self) is not Conv2d:
            return self
        theirs = nn.Conv2d.__new__(nn.Conv2d)
        theirs.__dict__.update(self.__dict__)
        return theirs


def _two(name, value):
    """``(h, w)`` of what torch's convolution takes: that, ``(h,)`` for both, or, set after construction, a number."""
    if type(value) is tuple and len(value) == 2:
        return value
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
    if padding_mode != "zeros":
        _check_planes(input, weight, bias, groups)
        top, bottom, left, right = padding
        input, padding = F.pad(input, (left, right, top, bottom), mode=padding_mode), (0, 0, 0, 0)
    _check_planes(input, weight, bias, groups)
    Co, _, R, S = _sizes(weight)
    N, Ci, H, W = _sizes(input)
    g = checked((N, H, W, Ci), Co, R, S, stride, padding, dilation, groups).g
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
