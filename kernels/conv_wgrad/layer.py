"""``Conv2d``'s call: its checks, and the shorter way of a call that is alike an earlier one."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import runtime
from kernels.common import checks
from kernels.common.checks import (
    FLOAT_DTYPES,
    autocast,
    check_tensor,
    left_to_reference,
    nobody_asks,
    public,
    refuse_transforms,
)
from kernels.common.plan import Remembered
from kernels.conv_wgrad import plan
from kernels.conv_wgrad.forward import convolution_of, forward, memory_format
from kernels.conv_wgrad.operator import OPERATOR


def layer(module, input, weight, bias):
    """The call of a ``module`` of padding mode "zeros" that is alike an earlier one, without its checks; else ``None``."""
    if module.padding_mode != "zeros" or not nobody_asks(input, weight, bias):
        return None
    held = module.stride, module.padding, module.dilation, module.groups
    try:
        known = _known_layers.get(_layer_key(input, weight, bias, held))
    except (AttributeError, RuntimeError):  # no tensors, or none that are dense: the checks say so
        return None
    if known is None:
        return None
    run, options, _ = known
    return OPERATOR.directly(run, (input, weight, bias, *options), (input, weight, bias))


_known_layers = Remembered()  # of a layer's call -> (what it runs, the options, checked, the layer's own)


def _layer_key(input, weight, bias, held):
    """All that the checks, the choice of the operator and its forward pass look at. ``held``: the layer's options, which an
    entry keeps: that they are the same objects is all that is asked, since 1.0 is not 1 to the checks."""
    return (
        checks.runtime.interpreted, input.shape, input.stride(), input.dtype, input.device, weight.shape, weight.stride(),
        weight.dtype, weight.device, None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
        *map(id, held),
    )  # fmt: skip


_CONSTANT = {int, str, tuple}


@functools.partial(public, name="Conv2d", refuses=False)  # what is torch's own convolution is so under transforms, too
def conv2d_layer(input, weight, bias, stride, padding, dilation, groups, padding_mode="zeros", held=None):
    """``Conv2d``'s call: images [N, Ci, H, W] or [Ci, H, W], weight [Co, Ci/groups, R, S], all else as ``conv2d``.

    padding: (top, bottom, left, right), of ``padding_mode``, one of ``torch.nn.Conv2d``'s. held: the layer's options as they
    stand there, to know its next call by.
    """
    if isinstance(input, Tensor) and input.ndim == 3:
        return conv2d_layer(input[None], weight, bias, stride, padding, dilation, groups, padding_mode)[0]
    input, weight, bias = autocast(input, weight, bias)
    if padding_mode != "zeros":
        _check_planes(input, weight, bias, groups)
        top, bottom, left, right = padding
        input, padding = F.pad(input, (left, right, top, bottom), mode=padding_mode), (0, 0, 0, 0)
    _check_planes(input, weight, bias, groups)
    Co, _, R, S = sizes(weight)
    N, Ci, H, W = sizes(input)
    g = plan.checked((N, H, W, Ci), Co, R, S, stride, padding, dilation, groups)
    g.check_output()
    here = input.is_cuda and not runtime.interpreted  # the quicker question first
    other = not here and (left_to_reference("Conv2d", input) or input.device.type != runtime.device.type)
    if other or input.dtype not in FLOAT_DTYPES or torch.jit.is_tracing():
        return forward(input, weight, bias, g)
    refuse_transforms("Conv2d", (input, weight, bias))
    rest = g.stride, g.padding, g.dilation, g.groups
    if held is None or padding_mode != "zeros" or not nobody_asks(input, weight, bias):
        return OPERATOR(input, weight, bias, *rest)
    known = OPERATOR.known(convolution_of(g, memory_format(input, weight)), backward_of=plan.Backward(rest).of)
    if all(type(option) in _CONSTANT for option in held):  # else they may change in place
        _known_layers.keep(_layer_key(input, weight, bias, held), (known, rest, held))
    return OPERATOR.directly(known, (input, weight, bias, *rest), (input, weight, bias))


def _check_planes(input, weight, bias, groups):
    kept = {"like": ("input", input), "dtypes": (getattr(input, "dtype", None),)}  # any, and the same for all
    Co, Ci_group, R, S = sizes(weight)
    check_tensor("input", input, (None, Ci_group * groups, None, None), "[N, Ci, H, W]", **kept)
    check_tensor("weight", weight, (Co, Ci_group, R, S), "[Co, Ci/groups, R, S]", **kept)
    if bias is not None:
        check_tensor("bias", bias, (Co,), "[Co]", **kept)


def sizes(tensor):
    """A tensor's shape, in integers where ``torch.jit.trace`` makes tensors of it."""
    return tuple(int(size) for size in tensor.shape) if torch.jit.is_tracing() else tuple(tensor.shape)
