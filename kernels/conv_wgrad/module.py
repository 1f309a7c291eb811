"""``Conv2d``: torch.nn.Conv2d whose weight and bias gradients are this room's kernels."""

from torch import Tensor, nn

from kernels.conv_wgrad.operator import layer


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
        """y [N, Co, P, Q] of ``input`` [N, Ci, H, W], or the same without N."""
        return layer(
            input, self.weight, self.bias, self.stride, self._zeros_around(), self.dilation, self.groups, self.padding_mode
        )

    def _zeros_around(self):
        if self.padding == "valid":
            return 0, 0, 0, 0
        if self.padding == "same":  # as many rows as the filter's span takes away, the odd one at the bottom
            missing = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return tuple(side for total in missing for side in (total // 2, total - total // 2))
        return self.padding[0], self.padding[0], self.padding[1], self.padding[1]
