"""What lesson 24 goes on with, made from notebooks/24_chunked_attention.ipynb: see this package."""

import torch
import triton
import triton.language as tl


def decays_back(g):
    later = g.clamp(min=-104).flip(0).cumsum(0).flip(0)
    apart = later[:, None] - later[None, :]
    return apart.masked_fill(torch.ones_like(apart).tril(-1).bool(), -torch.inf).exp()


LOWEST = tl.constexpr(-104.0)  # e to the power of it is 0 in float32


@triton.jit
def load_rows(ptr, rows, mask_t, start, size, BLOCK: tl.constexpr):  # [C, BLOCK]: some columns of some tokens
    cols = start + tl.arange(0, BLOCK)
    mask = mask_t[:, None] & (cols < size)[None, :]
    return tl.load(ptr + rows[:, None] * size + cols[None, :], mask=mask, other=0.0)


@triton.jit
def chunk_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, S_ptr, o_ptr, S_last_ptr, T, H, K, V, c,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    b, h, v0 = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H, tl.program_id(1) * BLOCK_V
    t, offs_k, offs_v = tl.arange(0, C), tl.arange(0, BLOCK_K), v0 + tl.arange(0, BLOCK_V)
    at_state = ((b * H + h) * K + offs_k[:, None]) * V + offs_v[None, :]
    mask_state = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    S = tl.load(S_ptr + at_state, mask=mask_state, other=0.0)
    for m in range(tl.cdiv(T, C)):
        mask_t = m * C + t < T
        rows = (b * T + m * C + t) * H + h
        q = load_rows(q_ptr, rows, mask_t, 0, K, BLOCK_K)
        k = load_rows(k_ptr, rows, mask_t, 0, K, BLOCK_K)
        v = load_rows(v_ptr, rows, mask_t, v0, V, BLOCK_V)
        g = tl.load(g_ptr + rows, mask=mask_t, other=0.0)
        Gamma = tl.cumsum(tl.maximum(g, LOWEST), 0)
        Gamma_C = tl.sum(tl.where(t == C - 1, Gamma, 0.0), 0)
        decay = tl.exp(tl.where(t[:, None] >= t[None, :], Gamma[:, None] - Gamma[None, :], float("-inf")))
        A = (decay * tl.dot(q, tl.trans(k), input_precision="ieee")).to(v.dtype)
        o = tl.exp(Gamma)[:, None] * tl.dot(q, S.to(q.dtype), input_precision="ieee")
        o += tl.dot(A, v, input_precision="ieee")
        v = (v * tl.exp(Gamma_C - Gamma)[:, None]).to(v.dtype)
        S = tl.exp(Gamma_C) * S + tl.dot(tl.trans(k), v, input_precision="ieee")
        tl.store(o_ptr + rows[:, None] * V + offs_v[None, :], c * o, mask=mask_t[:, None] & (offs_v < V)[None, :])
    tl.store(S_last_ptr + at_state, S, mask=mask_state)
