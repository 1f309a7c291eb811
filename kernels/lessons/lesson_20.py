"""What lesson 20 goes on with, made from notebooks/20_recurrent_attention_forward.ipynb: see this package."""

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, o_ptr, T, H, K, V, c, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    n, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_k, mask_v = offs_k < K, offs_v < V

    S = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    for t in range(T):
        row = (n * T + t) * H + h
        q = tl.load(q_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + row).to(tl.float32)
        S *= tl.exp(g)
        S += k[:, None] * v[None, :]
        o = c * tl.sum(S * q[:, None], axis=0)
        tl.store(o_ptr + row * V + offs_v, o, mask=mask_v)
