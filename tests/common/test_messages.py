"""No message of an operator's prints a tensor, a mask or anything else that is long: it says what it was given."""

import inspect

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d, conv2d_bias_grad, conv2d_wgrad
from kernels.dynamic_conv import DynamicShortConvolution, dynamic_conv, dynamic_conv_step
from kernels.flex_attention import (
    causal_block_mask,
    document_block_mask,
    flex_attention,
    mods,
    sliding_window_block_mask,
)
from kernels.recurrent_attention import recurrent_attention, recurrent_attention_step


def randn(*shape):
    return torch.randn(shape, device=runtime.device)


Q, X = randn(2, 3, 9, 16), randn(2, 5, 8)
WRONG = {
    "a tensor": randn(2, 3, 3000),
    "a tensor of whole numbers": torch.arange(3000, device=runtime.device),
    "a mask": causal_block_mask(4096, BLOCK_SIZE=16),
    "a function": mods.causal,
    "a list of tensors": [randn(300)] * 3,
    "a dict of tensors": {"a": randn(300)},
    "a word": "word " * 1000,
    "a pair": (randn(300), randn(300)),
}
CALLS = {
    flex_attention: {"query": Q, "key": Q, "value": Q},
    causal_block_mask: {"M": 8},
    sliding_window_block_mask: {"window": 3, "M": 8},
    document_block_mask: {"ids": torch.arange(8, device=runtime.device)},
    dynamic_conv: {"x": X, "weight": randn(8, 4)},
    dynamic_conv_step: {"x": X[:, 0], "weight": randn(8, 4), "state": randn(2, 8, 3)},
    DynamicShortConvolution: {"hidden_size": 8, "kernel_size": 4},
    recurrent_attention: {"q": Q, "k": Q, "v": Q},
    recurrent_attention_step: {"q": Q[:, 0], "k": Q[:, 0], "v": Q[:, 0], "state": randn(2, 9, 16, 16)},
    conv2d_wgrad: {"input": Q, "grad_output": Q, "R": 1, "S": 1},
    conv2d_bias_grad: {"grad_output": Q},
    conv2d: {"input": Q, "weight": randn(4, 1, 1, 16)},
}
ARGUMENTS = [
    (function, name)
    for function in CALLS
    for name, parameter in inspect.signature(function).parameters.items()
    if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "device"  # torch reads that
]


@pytest.mark.parametrize(("function", "name"), ARGUMENTS, ids=[f"{f.__name__}-{name}" for f, name in ARGUMENTS])
def test_what_is_wrong_is_named_in_a_few_words(function, name):
    for what, wrong in WRONG.items():
        try:
            function(**CALLS[function] | {name: wrong})
        except Exception as error:
            text = str(error)
            assert len(text) < 700 and "tensor([" not in text and "BlockMask(" not in text, f"{what}: {text}"
