"""How float32 is multiplied: which of PyTorch's switches decides it.

=====================  ==================================  =========================  =======================================
room                   PyTorch's switch                    float32 by default         float32 with TF32; float16 and bfloat16
=====================  ==================================  =========================  =======================================
dynamic_conv           none: no matrix products            float32                    float32, sums too
recurrent_attention    matmul                              recurrence: float32;       recurrence: float32; chunks: TF32;
                                                           chunks: three TF32         bfloat16 stays so, float16 is multiplied
                                                           products (tf32x3)          in TF32, which has all of its bits
flex_attention         matmul                              IEEE products              TF32; 16 bits as they are
conv_wgrad             cudnn.conv                          TF32, as torch's own       TF32; 16 bits as they are
=====================  ==================================  =========================  =======================================

Sums are float32 everywhere. ``matmul`` is ``torch.set_float32_matmul_precision``, ``torch.backends.cuda.matmul.allow_tf32``
or ``torch.backends.cuda.matmul.fp32_precision``; after the last of them is set PyTorch refuses to read the first two, while
the last always tells what any of them asked for. The operators read the same two attributes themselves, behind the
dispatcher, where a function more would be one more on the way of every call.
"""

import torch


def matmul_in_tf32():
    """Whether torch allows float32 matrix products to be made of TF32."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def convolution_in_tf32():
    """Whether torch allows float32 convolutions to be made of TF32."""
    return torch.backends.cudnn.conv.fp32_precision == "tf32"
