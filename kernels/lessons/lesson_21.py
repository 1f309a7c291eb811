"""What lesson 21 goes on with, made from notebooks/21_gates_states_packing.ipynb: see this package."""

import torch
import triton
import triton.language as tl


def walls(lengths, reverse):
    ends = torch.tensor(lengths).cumsum(0)
    g = torch.zeros(sum(lengths))
    tokens = ends[:-1] - 1 if reverse else ends[:-1]
    g[tokens] = -torch.inf
    return g


@triton.jit
def faded(S, row, h, offs_k, offs_v, g_ptr, gamma_ptr, gk_ptr, gv_ptr, K, V):
    """The state, faded by the gates of one token: D ⊙ S."""
    if g_ptr is not None:
        S *= tl.exp(tl.load(g_ptr + row).to(tl.float32))
    if gamma_ptr is not None:
        S *= tl.exp(tl.load(gamma_ptr + h).to(tl.float32))
    if gk_ptr is not None:
        gk = tl.load(gk_ptr + row * K + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)
        S *= tl.exp(gk)[:, None]
    if gv_ptr is not None:
        gv = tl.load(gv_ptr + row * V + offs_v, mask=offs_v < V, other=0.0).to(tl.float32)
        S *= tl.exp(gv)[None, :]
    return S


@triton.jit
def token(S, t, h, offs_k, offs_v, q_ptr, k_ptr, v_ptr, o_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, H, K, V, c):
    """The state after token t of the row, whose output it stores."""
    row = t * H + h
    q = tl.load(q_ptr + row * K + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + row * K + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + row * V + offs_v, mask=offs_v < V, other=0.0).to(tl.float32)
    S = faded(S, row, h, offs_k, offs_v, g_ptr, gamma_ptr, gk_ptr, gv_ptr, K, V)
    S += k[:, None] * v[None, :]
    tl.store(o_ptr + row * V + offs_v, c * tl.sum(S * q[:, None], axis=0), mask=offs_v < V)
    return S


@triton.jit
def texts_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, first_ptr, last_ptr, cu_ptr, T, H, K, V, c,
    REVERSE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    n, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    offs_s = ((n * H + h) * K + offs_k[:, None]) * V + offs_v[None, :]
    mask_s = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    S = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
    # one token: S = token(S, t, h, offs_k, offs_v, q_ptr, k_ptr, v_ptr, o_ptr,
    #                      g_ptr, gamma_ptr, gk_ptr, gv_ptr, H, K, V, c)
    begin, L = n * T, T
    if cu_ptr is not None:
        begin = tl.load(cu_ptr + n).to(tl.int64)
        L = tl.load(cu_ptr + n + 1) - begin
    if first_ptr is not None:
        S = tl.load(first_ptr + offs_s, mask=mask_s, other=0.0)
    for i in range(L):
        t = begin + (L - 1 - i if REVERSE else i)
        S = token(S, t, h, offs_k, offs_v, q_ptr, k_ptr, v_ptr, o_ptr,
                  g_ptr, gamma_ptr, gk_ptr, gv_ptr, H, K, V, c)
    tl.store(last_ptr + offs_s, S, mask=mask_s)
