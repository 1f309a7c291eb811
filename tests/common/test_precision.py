"""PyTorch's switches for float32 products, old and new, mean the same to every operator, and none of them raises."""

import contextlib

import pytest
import torch

from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad
from kernels.flex_attention import flex_attention
from kernels.recurrent_attention import recurrent_attention

MATMUL = {
    "set_float32_matmul_precision high": lambda: torch.set_float32_matmul_precision("high"),
    "set_float32_matmul_precision medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "matmul.fp32_precision": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


def in_tf32(switches):
    """What the operators read."""
    return switches.fp32_precision == "tf32"


@contextlib.contextmanager
def defaults_afterwards():
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.conv.fp32_precision = "tf32"
        torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("switch", MATMUL)
def test_every_switch_of_matrix_products_is_seen_and_none_raises(switch):
    q = torch.randn(1, 1, 20, 16, device=runtime.device)
    with defaults_afterwards():
        assert not in_tf32(torch.backends.cuda.matmul)
        MATMUL[switch]()
        assert in_tf32(torch.backends.cuda.matmul)
        assert flex_attention(q, q, q).isfinite().all()
        assert recurrent_attention(q.mT, q.mT, q.mT, mode="chunk")[0].isfinite().all()
    assert not in_tf32(torch.backends.cuda.matmul)


def test_the_switch_of_convolutions():
    x = torch.randn(1, 5, 5, 4, device=runtime.device)
    with defaults_afterwards():
        assert in_tf32(torch.backends.cudnn.conv)
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        assert not in_tf32(torch.backends.cudnn.conv)
        assert conv2d_wgrad(x, x, 3, 3, padding=1).isfinite().all()
    assert in_tf32(torch.backends.cudnn.conv)
