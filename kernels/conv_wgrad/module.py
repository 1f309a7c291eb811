"""``Conv2d``: torch.nn.Conv2d whose weight and bias gradients are this room's kernels."""

import torch
import torch.nn.functional as F
from torch import nn

from kernels.common.validate import check_tensor
from kernels.conv_wgrad.operator import conv2d


class Conv2d(nn.Conv2d):
    """A drop-in for ``torch.nn.Conv2d``: its constructor, its state_dict, images [N, C, H, W] or [C, H, W].

    Inside, channels are last. An input in ``torch.channels_last`` is not copied, and the output always is in that format, so
    that a chain of these layers converts once.

    Raises:
        ValueError: on a call, where the input's shape, dtype or device does not fit.

    Every argument is that of ``torch.nn.Conv2d``, ``padding="same"`` and ``padding_mode`` included.
    """

    def forward(self, input):
        """y [N, Co, P, Q] of ``input`` [N, Ci, H, W], or the same without N."""
        if isinstance(input, torch.Tensor) and input.ndim == 3:
            return self.forward(input[None])[0]  # not self(...): hooks are called once a call
        check_tensor("input", input, (None, self.in_channels, None, None), "[N, Ci, H, W]")
        padding = self._zeros_around()
        if self.padding_mode != "zeros":
            top, bottom, left, right = padding
            input = F.pad(input, (left, right, top, bottom), mode=self.padding_mode)
            padding = (0, 0, 0, 0)
        x = input.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        y = conv2d(
            x, self.weight.permute(0, 2, 3, 1), self.bias, self.stride, padding, self.dilation, self.groups
        )  # fmt: skip
        return y.permute(0, 3, 1, 2)

    def _zeros_around(self):
        if self.padding == "valid":
            return 0, 0, 0, 0
        if self.padding == "same":  # as many rows as the filter's span takes away, the odd one at the bottom
            missing = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return tuple(side for total in missing for side in (total // 2, total - total // 2))
        return self.padding[0], self.padding[0], self.padding[1], self.padding[1]
