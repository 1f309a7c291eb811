"""Forward pass, one token at a time with the state in registers, and the one-token step for decoding.

    S_t = D_t * S_{t-1} + k_t v_t^T,        o_t = c S_t^T q_t,        D_t = exp(g_t + gamma + gk_t 1^T + 1 gv_t^T)

A program owns BV columns of one head's state, all K rows of them. A column of S needs no other column, so the sum over K
that makes o is complete within the program, and there are many programs. Tokens follow each other, so what counts is the
time of one step: the rows of token t + 1 are asked for before token t is computed, and addresses move on by one addition.
"""

import torch
import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.common.math import strides
from kernels.common.sequences import clear_outside, sequence_span
from kernels.recurrent_attention.gates import OF_A_TOKEN, strides_of


@triton.jit
def load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v):
    """One token's rows and gates; a gate that is absent is 0."""
    q = tl.load(q_at, mask=mask_k, other=0.0)
    k = tl.load(k_at, mask=mask_k, other=0.0)
    v = tl.load(v_at, mask=mask_v, other=0.0)
    zero = tl.zeros([], tl.float32)
    g = tl.load(g_at) if g_at is not None else zero
    gk = tl.load(gk_at, mask=mask_k, other=0.0) if gk_at is not None else zero
    gv = tl.load(gv_at, mask=mask_v, other=0.0) if gv_at is not None else zero
    return q, k, v, g, gk, gv


@triton.jit
def decayed(S, g, gamma, gk, gv, SCALAR: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr):
    """D * S: the gates of a whole state and of its rows in one factor, those of its columns in another."""
    if KEYS:
        S *= tl.exp(gk.to(tl.float32) + (g.to(tl.float32) + gamma))[:, None]
    elif SCALAR:
        S *= tl.exp(g.to(tl.float32) + gamma)
    if VALUES:
        S *= tl.exp(gv.to(tl.float32))[None, :]
    return S


@triton.jit
def recurrent_forward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, initial_ptr, cu_ptr, o_ptr, final_ptr,
    scale, T, H, group, tiles_v,
    stride_qb, stride_qt, stride_qh, stride_qk,
    stride_kb, stride_kt, stride_kh, stride_kk,
    stride_vb, stride_vt, stride_vh, stride_vv,
    stride_gb, stride_gt, stride_gh,
    stride_gamma,
    stride_gkb, stride_gkt, stride_gkh, stride_gkk,
    stride_gvb, stride_gvt, stride_gvh, stride_gvv,
    stride_sn, stride_sh, stride_sk, stride_sv,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """A gate, a state or an output that does not exist is None; ``group`` query heads share a head of k and v."""
    SCALAR: tl.constexpr = g_ptr is not None or gamma_ptr is not None
    pid = tl.program_id(0)
    nh = pid // tiles_v
    h = nh % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    row, begin, L = sequence_span((nh // H).to(tl.int64), T, cu_ptr, PACKED)
    n = (nh // H).to(tl.int64)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V

    step = -1 if REVERSE else 1
    first = begin + (L - 1 if REVERSE else 0)
    q_at = q_ptr + row * stride_qb + first * stride_qt + h * stride_qh + offs_k * stride_qk
    k_at = k_ptr + row * stride_kb + first * stride_kt + kv_head * stride_kh + offs_k * stride_kk
    v_at = v_ptr + row * stride_vb + first * stride_vt + kv_head * stride_vh + offs_v * stride_vv
    o_at = o_ptr + ((row * T + first) * H + h) * V + offs_v
    g_at = None
    gk_at = None
    gv_at = None
    gamma = tl.zeros([], tl.float32)
    if g_ptr is not None:
        g_at = g_ptr + row * stride_gb + first * stride_gt + h * stride_gh
    if gamma_ptr is not None:
        gamma = tl.load(gamma_ptr + h * stride_gamma).to(tl.float32)
    if gk_ptr is not None:
        gk_at = gk_ptr + row * stride_gkb + first * stride_gkt + h * stride_gkh + offs_k * stride_gkk
    if gv_ptr is not None:
        gv_at = gv_ptr + row * stride_gvb + first * stride_gvt + h * stride_gvh + offs_v * stride_gvv

    S = tl.zeros([BK, BV], tl.float32)
    mask_s = mask_k[:, None] & mask_v[None, :]
    if initial_ptr is not None:
        s_at = initial_ptr + n * stride_sn + h * stride_sh + offs_k[:, None] * stride_sk + offs_v[None, :] * stride_sv
        S = tl.load(s_at, mask=mask_s, other=0.0).to(tl.float32)

    if L > 0:
        q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)
        for t in range(L):
            q_t, k_t, v_t, g_t, gk_t, gv_t = q, k, v, g, gk, gv
            on = tl.where(t + 1 < L, step, 0)  # after the last token the last is loaded once more
            q_at += on * stride_qt
            k_at += on * stride_kt
            v_at += on * stride_vt
            if g_ptr is not None:
                g_at += on * stride_gt
            if gk_ptr is not None:
                gk_at += on * stride_gkt
            if gv_ptr is not None:
                gv_at += on * stride_gvt
            q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)

            S = decayed(S, g_t, gamma, gk_t, gv_t, SCALAR, gk_ptr is not None, gv_ptr is not None)
            S += k_t.to(tl.float32)[:, None] * v_t.to(tl.float32)[None, :]
            o = tl.sum(q_t.to(tl.float32)[:, None] * S, 0) * scale
            tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=mask_v)
            o_at += step * H * V

    if final_ptr is not None:
        s_at = final_ptr + nh.to(tl.int64) * K * V + offs_k[:, None] * V + offs_v[None, :]
        tl.store(s_at, S, mask=mask_s)


@triton.jit
def recurrent_step_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, state_ptr, slots_ptr, o_ptr,
    scale, H, group, tiles_v,
    stride_qb, stride_qh, stride_qk,
    stride_kb, stride_kh, stride_kk,
    stride_vb, stride_vh, stride_vv,
    stride_gb, stride_gh,
    stride_gamma,
    stride_gkb, stride_gkh, stride_gkk,
    stride_gvb, stride_gvh, stride_gvv,
    stride_sn, stride_sh, stride_sk, stride_sv, stride_slots,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token: the state is read, decayed, written to, read by q, and stored where it was."""
    pid = tl.program_id(0)
    h = pid // tiles_v % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    b = (pid // tiles_v // H).to(tl.int64)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    g_at = None
    gk_at = None
    gv_at = None
    gamma = tl.zeros([], tl.float32)
    if g_ptr is not None:
        g_at = g_ptr + b * stride_gb + h * stride_gh
    if gamma_ptr is not None:
        gamma = tl.load(gamma_ptr + h * stride_gamma).to(tl.float32)
    if gk_ptr is not None:
        gk_at = gk_ptr + b * stride_gkb + h * stride_gkh + offs_k * stride_gkk
    if gv_ptr is not None:
        gv_at = gv_ptr + b * stride_gvb + h * stride_gvh + offs_v * stride_gvv

    slot = tl.load(slots_ptr + b * stride_slots).to(tl.int64) if slots_ptr is not None else b
    there = slot >= 0  # else the row is padding
    s_at = state_ptr + slot * stride_sn + h * stride_sh + offs_k[:, None] * stride_sk + offs_v[None, :] * stride_sv
    mask_s = mask_k[:, None] & mask_v[None, :] & there
    S = tl.load(s_at, mask=mask_s, other=0.0)
    q, k, v, g, gk, gv = load_token(
        q_ptr + b * stride_qb + h * stride_qh + offs_k * stride_qk,
        k_ptr + b * stride_kb + kv_head * stride_kh + offs_k * stride_kk,
        v_ptr + b * stride_vb + kv_head * stride_vh + offs_v * stride_vv,
        g_at, gk_at, gv_at, mask_k, mask_v,
    )  # fmt: skip
    S = decayed(S, g, gamma, gk, gv, g_ptr is not None or gamma_ptr is not None, gk_ptr is not None, gv_ptr is not None)
    S += k.to(tl.float32)[:, None] * v.to(tl.float32)[None, :]
    tl.store(s_at, S, mask=mask_s)
    o = tl.where(there, tl.sum(q.to(tl.float32)[:, None] * S, 0) * scale, 0.0)
    tl.store(o_ptr + (b * H + h) * V + offs_v, o.to(o_ptr.dtype.element_ty), mask=mask_v)


def forward(p, x, want_final):
    """Launch the forward pass.

    Args:
        p: the call's ``RecurrencePlan``.
        x: its ``Inputs``.
        want_final: whether the final state is wanted.

    Returns:
        ``(o, final_state, None)``: o [B, T, H, V] in q's dtype; the state float32 [N, H, K, V], or ``None``.
    """
    q, k, v, gates, initial_state, cu_seqlens, scale, *_ = x
    B, T, H, K = q.shape
    V = v.shape[3]
    o = torch.empty(B, T, H, V, dtype=q.dtype, device=q.device)
    final = torch.empty(p.N, H, K, V, dtype=torch.float32, device=q.device) if want_final else None

    def told():
        grid, numbers, meta = p.walk
        of_inputs = *q.stride(), *k.stride(), *v.stride(), *strides_of(gates), *strides(initial_state)
        return grid, (scale, *numbers, *of_inputs), meta

    x.launch(recurrent_forward_kernel, told, q, k, v, *gates, initial_state, cu_seqlens, o, final)
    clear_outside(cu_seqlens, T, o)
    return o, final, None


def step(planned, q, k, v, state, gates, slots, scale):
    """Make the step that is ``planned``, a ``Launch``: arguments as ``recurrent_attention_step`` has validated them. Updates
    ``state``, returns o."""
    o = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    grid, numbers, meta = planned
    launch(
        recurrent_step_kernel, grid, q, k, v, *gates, state, slots, o, scale, *numbers,
        *q.stride(), *k.stride(), *v.stride(), *strides_of(gates, OF_A_TOKEN), *state.stride(), *strides(slots, 1),
        **meta,
    )  # fmt: skip
    return o
