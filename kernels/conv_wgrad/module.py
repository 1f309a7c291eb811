"""``Conv2d``: torch.nn.Conv2d whose weight and bias gradients are this room's kernels."""

from torch import Tensor, nn

from kernels.common.checks import shown
from kernels.conv_wgrad.layer import conv2d_layer, layer


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

    def forward(self, input: Tensor) -> Tensor:
        """As torch's, which asks ``nn.Module`` for each parameter by name: these are taken from where they mostly are."""
        own, held = self.__dict__, self._parameters
        if "weight" in held and "bias" in held and "weight" not in own and "bias" not in own:
            return self._conv_forward(input, held["weight"], held["bias"])
        return super().forward(input)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y [N, Co, P, Q] of ``input`` [N, Ci, H, W], or the same without N.

        torch's ``forward`` calls this with the layer's parameters, and so do subclasses and programs with others; some put a
        function of their own in its place.
        """
        y = layer(self, input, weight, bias)
        if y is not None:
            return y
        stride, dilation = _two("stride", self.stride), _two("dilation", self.dilation)
        sides = self._zeros_around() if self.padding_mode == "zeros" else self._pixels_around()
        held = self.stride, self.padding, self.dilation, self.groups
        return conv2d_layer(input, weight, bias, stride, sides, dilation, self.groups, self.padding_mode, held)

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
