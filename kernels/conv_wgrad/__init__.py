"""2-D convolution whose weight gradient is an implicit matrix product over all output pixels."""

from kernels.conv_wgrad.convolution import Conv2d, conv2d
from kernels.conv_wgrad.operator import conv2d_bias_grad, conv2d_wgrad

__all__ = ["Conv2d", "conv2d", "conv2d_bias_grad", "conv2d_wgrad"]
