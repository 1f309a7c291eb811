"""What lesson 22 goes on with, made from notebooks/22_recurrent_attention_backward.ipynb: see this package."""

import triton
import triton.language as tl

from kernels.lessons.lesson_21 import faded


@triton.jit
def again_kernel(
    k_ptr, v_ptr, do_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, first_ptr, dq_ptr, T, H, K, V, c,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    n, h, block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    offs_k, offs_v = tl.arange(0, BLOCK_K), block * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_k, mask_v = offs_k < K, offs_v < V
    offs_s, mask_s = ((n * H + h) * K + offs_k[:, None]) * V + offs_v[None, :], mask_k[:, None] & mask_v[None, :]
    share = tl.num_programs(0).to(tl.int64) * T * H * K * block

    S = tl.load(first_ptr + offs_s, mask=mask_s, other=0.0)
    for t in range(T):
        row = (n * T + t) * H + h
        k = tl.load(k_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        do = tl.load(do_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        S = faded(S, row, h, offs_k, offs_v, g_ptr, gamma_ptr, gk_ptr, gv_ptr, K, V)
        S += k[:, None] * v[None, :]
        dq = c * tl.sum(S * do[None, :], axis=1)
        tl.store(dq_ptr + share + row * K + offs_k, dq, mask=mask_k)


@triton.jit
def back_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, dlast_ptr, dk_ptr, dv_ptr, dfirst_ptr,
    T, H, K, V, c, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    n, h, block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    offs_k, offs_v = tl.arange(0, BLOCK_K), block * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_k, mask_v = offs_k < K, offs_v < V
    offs_s, mask_s = ((n * H + h) * K + offs_k[:, None]) * V + offs_v[None, :], mask_k[:, None] & mask_v[None, :]
    share = tl.num_programs(0).to(tl.int64) * T * H * K * block

    dS = tl.load(dlast_ptr + offs_s, mask=mask_s, other=0.0)
    for i in range(T):
        row = (n * T + T - 1 - i) * H + h
        q = tl.load(q_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        do = tl.load(do_ptr + row * V + offs_v, mask=mask_v, other=0.0).to(tl.float32)
        dS += c * q[:, None] * do[None, :]
        dk = tl.sum(dS * v[None, :], axis=1)
        dv = tl.sum(dS * k[:, None], axis=0)
        dS = faded(dS, row, h, offs_k, offs_v, g_ptr, gamma_ptr, gk_ptr, gv_ptr, K, V)
        tl.store(dk_ptr + share + row * K + offs_k, dk, mask=mask_k)
        tl.store(dv_ptr + row * V + offs_v, dv, mask=mask_v)
    tl.store(dfirst_ptr + offs_s, dS, mask=mask_s)
