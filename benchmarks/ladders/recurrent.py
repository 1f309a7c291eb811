"""What the ladders of recurrent attention share: lesson 20's PyTorch for all heads, and the exact answers."""

import torch

from kernels.recurrent_attention.reference import recurrent_attention_reference

LAST = slice(-1, None)  # the sequence that is compared: the last, whose addresses are the largest


def for_all_heads(function, q, k, v, g):
    """Lesson 20's ``quadratic`` or ``recurrence``, written for one head, of all heads of all sequences, in float32."""
    scale = q.shape[-1] ** -0.5
    heads = torch.vmap(lambda *x: function(*x, scale), in_dims=1, out_dims=1)
    return torch.vmap(heads)(*(x.float() for x in (q, k, v, g)))


def exact(t):
    """Outputs of the last sequence, float64, from its inputs in ``t``."""
    q, k, v, g = (t[name][LAST].double() for name in "qkvg")
    return recurrent_attention_reference(q, k, v, g=g)[0]


def inputs(device, B, T, H, K, dtype):
    """q, k, v in ``dtype`` and a gate for each token in float32."""
    torch.manual_seed(0)
    make = lambda: torch.randn(B, T, H, K, dtype=dtype, device=device)  # noqa: E731
    return {"q": make(), "k": make(), "v": make(), "g": -torch.rand(B, T, H, device=device)}


def walk(names, t, BLOCK_V, num_warps, B=None):
    """Lesson 20's kernel on the first B sequences, or all."""
    q, k, v, g, o = (t[name][:B] for name in "qkvgo")
    (B, T, H, K), V = q.shape, v.shape[-1]
    grid = B, H, -(-V // BLOCK_V)
    names["forward_kernel"][grid](q, k, v, g, o, T, H, K, V, K**-0.5, K, BLOCK_V, num_warps=num_warps)
