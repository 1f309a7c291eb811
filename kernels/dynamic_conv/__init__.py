"""Dynamic causal convolution: a short convolution whose kernel is different for every token."""

from kernels.dynamic_conv.module import DynamicShortConvolution
from kernels.dynamic_conv.operator import dynamic_conv, dynamic_conv_step

__all__ = ["DynamicShortConvolution", "dynamic_conv", "dynamic_conv_step"]
