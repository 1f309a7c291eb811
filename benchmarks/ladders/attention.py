"""What the ladders of flex attention share: inputs, exact answers of the last head, and torch's own kernels."""

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from benchmarks.flex_attention import SDPA

LAST = (slice(-1, None), slice(-1, None))  # the head that is compared: the last, whose addresses are the largest


def inputs(device, names, B, H, M, D, dtype):
    """Tensors [B, H, M, D] of these names."""
    torch.manual_seed(0)
    return {name: torch.randn(B, H, M, D, dtype=dtype, device=device) for name in names}


def exact(q, k, v, allowed=None):
    """Attention with its matrix, for few heads in float64."""
    z = q.shape[-1] ** -0.5 * q @ k.mT
    return (z if allowed is None else z.masked_fill(~allowed, -torch.inf)).softmax(-1) @ v


def scaled_dot_product(name, causal):
    """torch's ``scaled_dot_product_attention`` by the backend of this name, of q, k, v."""

    def call(q, k, v):
        with sdpa_kernel(SDPA[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call
