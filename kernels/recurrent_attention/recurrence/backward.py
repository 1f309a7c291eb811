"""Backward pass of the recurrence: the same walk from the last token to the first, C tokens at a time, nothing subtracted.

Gamma and Phi are the log-decays of the state's rows and columns, summed from a block's first token on; S is the state that
enters the block, Z the costate (the gradient at the state) that enters it from behind. P_rs = do_r . v_s e^{Phi_r - Phi_s},
A_rs = c q_r e^{Gamma_r - Gamma_s} . k_s, and

    dq_r = c [ e^{Gamma_r} . S (do_r e^{Phi_r})                + sum_{s <= r} P_rs e^{Gamma_r - Gamma_s} . k_s ]
    dk_s = e^{Gamma_C - Gamma_s} . Z (v_s e^{Phi_C - Phi_s})    + sum_{r >= s} P_rs e^{Gamma_r - Gamma_s} . c q_r
    dv_s = e^{Phi_C - Phi_s} . Z^T (k_s e^{Gamma_C - Gamma_s})  + sum_{r >= s} A_rs e^{Phi_r - Phi_s} . do_r

The gradient of the gate at t is the sum over all paths that cross it, from a write at s < t to a read at r >= t. s and r may
each lie in the block or outside, which makes four sums. The published form takes the difference of two running sums instead,
and at a gate of -20 that difference has no right digit left.

Three kernels. The first walks forward and keeps the state before every EVERY-th block. The second walks back, with BV columns
of the costate in registers and the state advanced from the nearest that was kept: the terms through S and Z. The third has a
program for each block, and adds the pairs of tokens inside it. Sums over tiles of columns have a fixed order.
"""

import torch
import triton
import triton.language as tl

from kernels.common.math import strides
from kernels.common.sequences import clear_outside, first_run, sequence_of_runs, sequence_span
from kernels.recurrent_attention.gates import Gates, strides_of
from kernels.recurrent_attention.recurrence.blocks import (
    block_columns,
    decays_to_edges,
    dot,
    load_columns,
    store_columns,
)
from kernels.recurrent_attention.recurrence.pairs import pairs_kernel
from kernels.recurrent_attention.tiles import load_state, over_group, store_state


@triton.jit
def advance(
    S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt, mask_k, mask_v,
    begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state behind a block: e^{Gamma_C} . S . e^{Phi_C} + sum_s (k_s e^{Gamma_C - Gamma_s}) (v_s e^{Phi_C - Phi_s})^T."""
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    k = load_columns(k_at, stride_kt, times, mask_t, mask_k)
    v = load_columns(v_at, stride_vt, times, mask_t, mask_v)
    unused, to_edge, whole = decays_to_edges(
        g_at, stride_gt, gamma, gk_at, stride_gkt, mask_k, begin, L, first, C, REVERSE
    )
    S *= whole[:, None]
    k *= to_edge
    if gv_at is not None:
        unused, to_edge, whole = decays_to_edges(None, 0, 0.0, gv_at, stride_gvt, mask_v, begin, L, first, C, REVERSE)
        S *= whole[None, :]
        v *= to_edge
    return S + dot(k, tl.trans(v), PRECISION)


@triton.jit
def states_kernel(
    k_ptr, v_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, initial_ptr, cu_ptr, states_ptr,
    T, H, group, tiles_v,
    stride_kb, stride_kt, stride_kh, stride_kk,
    stride_vb, stride_vt, stride_vh, stride_vv,
    stride_gb, stride_gt, stride_gh,
    stride_gamma,
    stride_gkb, stride_gkt, stride_gkh, stride_gkk,
    stride_gvb, stride_gvt, stride_gvh, stride_gvv,
    stride_sn, stride_sh, stride_sk, stride_sv,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
    C: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """states[place, h]: the state before every EVERY-th block of C tokens."""
    pid = tl.program_id(0)
    h = pid // tiles_v % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    n = (pid // tiles_v // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    k_at = k_ptr + row * stride_kb + kv_head * stride_kh + offs_k * stride_kk
    v_at = v_ptr + row * stride_vb + kv_head * stride_vh + offs_v * stride_vv
    g_at = None if g_ptr is None else g_ptr + row * stride_gb + h * stride_gh
    gk_at = None if gk_ptr is None else gk_ptr + row * stride_gkb + h * stride_gkh + offs_k * stride_gkk
    gv_at = None if gv_ptr is None else gv_ptr + row * stride_gvb + h * stride_gvh + offs_v * stride_gvv
    gamma = 0.0 if gamma_ptr is None else tl.load(gamma_ptr + h * stride_gamma).to(tl.float32)

    S = tl.zeros([BK, BV], tl.float32)
    if initial_ptr is not None:
        at = initial_ptr + n * stride_sn + h * stride_sh + offs_k[:, None] * stride_sk + offs_v[None, :] * stride_sv
        S = tl.load(at, mask=mask_k[:, None] & mask_v[None, :], other=0.0).to(tl.float32)
    place = first_run(n, begin, T, C * EVERY, PACKED)
    for checkpoint in range(tl.cdiv(L, C * EVERY)):
        store_state(states_ptr + ((place + checkpoint) * H + h) * K * V, offs_k, offs_v, K, V, S)
        for i in range(EVERY):
            S = advance(
                S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt,
                mask_k, mask_v, begin, L, (checkpoint * EVERY + i) * C, C, REVERSE, PRECISION,
            )  # fmt: skip


@triton.jit
def through_kernel(
    do_ptr, dfinal_ptr, q_ptr, k_ptr, v_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, states_ptr, cu_ptr,
    dq_ptr, dk_ptr, dv_ptr, o_ptr, passing_k_ptr, passing_v_ptr, dinitial_ptr,
    scale, T, H, group, tiles_v, tokens, places,
    stride_dob, stride_dot, stride_doh, stride_dov,
    stride_fn, stride_fh, stride_fk, stride_fv,
    stride_qb, stride_qt, stride_qh, stride_qk,
    stride_kb, stride_kt, stride_kh, stride_kk,
    stride_vb, stride_vt, stride_vh, stride_vv,
    stride_gb, stride_gt, stride_gh,
    stride_gamma,
    stride_gkb, stride_gkt, stride_gkh, stride_gkk,
    stride_gvb, stride_gvt, stride_gvh, stride_gvv,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr, PACKED: tl.constexpr,
    C: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The terms of dq / c, dk and dv through the states and costates at the blocks' edges, and the initial state's gradient.

    For gates also o as read from S, and the paths that pass a whole block: for each row of the state (passing_k; one number
    unless there is gk), for each column (passing_v). dq, dk and passing_k have a partial sum for each tile of columns.
    """
    pid = tl.program_id(0)
    tile = (pid % tiles_v).to(tl.int64)
    h = pid // tiles_v % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    n = (pid // tiles_v // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = tile * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    q_at = q_ptr + row * stride_qb + h * stride_qh + offs_k * stride_qk
    k_at = k_ptr + row * stride_kb + kv_head * stride_kh + offs_k * stride_kk
    v_at = v_ptr + row * stride_vb + kv_head * stride_vh + offs_v * stride_vv
    do_at = do_ptr + row * stride_dob + h * stride_doh + offs_v * stride_dov
    g_at = None if g_ptr is None else g_ptr + row * stride_gb + h * stride_gh
    gk_at = None if gk_ptr is None else gk_ptr + row * stride_gkb + h * stride_gkh + offs_k * stride_gkk
    gv_at = None if gv_ptr is None else gv_ptr + row * stride_gvb + h * stride_gvh + offs_v * stride_gvv
    gamma = 0.0 if gamma_ptr is None else tl.load(gamma_ptr + h * stride_gamma).to(tl.float32)
    head = row * T * H + h  # outputs are contiguous
    partial = tile * tokens * H + head

    Z = tl.zeros([BK, BV], tl.float32)
    if dfinal_ptr is not None:
        dfinal_at = (
            dfinal_ptr + n * stride_fn + h * stride_fh + offs_k[:, None] * stride_fk + offs_v[None, :] * stride_fv
        )
        Z = tl.load(dfinal_at, mask=mask_k[:, None] & mask_v[None, :], other=0.0).to(tl.float32)
    kept = first_run(n, begin, T, C * EVERY, PACKED)
    place = first_run(n, begin, T, C, PACKED)
    blocks = tl.cdiv(L, C)
    for back in tl.range(blocks, disable_licm=True):  # else every address in shared memory is kept in a register
        block = blocks - 1 - back
        S = load_state(states_ptr + ((kept + block // EVERY) * H + h) * K * V, offs_k, offs_v, K, V)
        for i in range(block // EVERY * EVERY, block):
            S = advance(
                S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt,
                mask_k, mask_v, begin, L, i * C, C, REVERSE, PRECISION,
            )  # fmt: skip

        first = block * C
        times, mask_t = block_columns(begin, L, first, C, REVERSE)
        q = load_columns(q_at, stride_qt, times, mask_t, mask_k)
        k = load_columns(k_at, stride_kt, times, mask_t, mask_k)
        v = load_columns(v_at, stride_vt, times, mask_t, mask_v)
        do = load_columns(do_at, stride_dot, times, mask_t, mask_v)
        q_from, k_to, whole = decays_to_edges(
            g_at, stride_gt, gamma, gk_at, stride_gkt, mask_k, begin, L, first, C, REVERSE
        )
        q *= q_from * scale
        k *= k_to
        Z_before = Z * whole[:, None]
        if gv_ptr is not None:
            o_from, v_to, whole = decays_to_edges(None, 0, 0.0, gv_at, stride_gvt, mask_v, begin, L, first, C, REVERSE)
            do *= o_from
            v *= v_to
            Z_before *= whole[None, :]

        store_columns(dq_ptr + partial * K + offs_k, H * K, times, mask_t, mask_k, q_from * dot(S, do, PRECISION))
        store_columns(dk_ptr + partial * K + offs_k, H * K, times, mask_t, mask_k, k_to * dot(Z, v, PRECISION))
        dv = dot(tl.trans(Z), k, PRECISION)
        if gv_ptr is not None:
            dv *= v_to
        store_columns(dv_ptr + head * V + offs_v, H * V, times, mask_t, mask_v, dv)
        if passing_k_ptr is not None:
            passing = tl.sum(S * Z_before, 1)
            index = (tile * places + place + block) * H + h
            if gk_ptr is not None:
                tl.store(passing_k_ptr + index * K + offs_k, passing, mask=mask_k)
            else:
                tl.store(passing_k_ptr + index, tl.sum(passing, 0))
        if o_ptr is not None:
            o = o_from * dot(tl.trans(S), q, PRECISION)
            store_columns(o_ptr + head * V + offs_v, H * V, times, mask_t, mask_v, o)
            passing_v_at = passing_v_ptr + ((place + block) * H + h) * V + offs_v
            tl.store(passing_v_at, tl.sum(S * Z_before, 0), mask=mask_v)
        Z = Z_before + dot(q, tl.trans(do), PRECISION)

    if dinitial_ptr is not None:
        store_state(dinitial_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, Z)


def backward(p, x, do, dfinal, scores, needs):
    """Launch the backward pass of the recurrence.

    Args:
        p: the call's ``RecurrencePlan``.
        x: its ``Inputs``.
        do: gradient of o [B, T, H, V].
        dfinal: gradient of the final state [N, H, K, V], or ``None``.
        scores: ``None``.
        needs: whether q, k, v, each gate and initial_state need a gradient.

    Returns:
        their gradients, ``None`` for those not needed, each in its tensor's dtype.
    """
    q, k, v, gates, initial_state, cu_seqlens, scale, *_ = x
    need_q, need_k, need_v, *need_gates, need_initial = needs
    need = Gates(*need_gates)
    B, T, H, K = q.shape
    V = v.shape[3]
    def room(wanted, *shape, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device=q.device) if wanted else None

    states = room(True, p.kept, H, K, V)

    def told():
        grid, numbers, meta = p.states
        return grid, (*numbers, *k.stride(), *v.stride(), *strides_of(gates), *strides(initial_state)), meta

    x.launch(states_kernel, told, k, v, *gates, initial_state, cu_seqlens, states)

    need_row_gates = need.g or need.g_gamma or need.gk
    through = (
        room(True, p.parts, B, T, H, K),
        room(True, p.parts, B, T, H, K),
        room(True, B, T, H, V),
        room(need.gv, B, T, H, V),
        room(need_row_gates, p.parts, p.blocks, H, *(() if gates.gk is None else (K,))),
        room(need.gv, p.blocks, H, V),
    )
    dinitial = room(need_initial, p.N, H, K, V, dtype=initial_state.dtype if need_initial else None)

    def told_of(planned, *more):
        of_inputs = *q.stride(), *k.stride(), *v.stride(), *strides_of(gates)
        return planned.grid, (scale, *planned.numbers, *do.stride(), *more, *of_inputs), planned.meta

    x.launch(
        through_kernel, lambda: told_of(p.back, *strides(dfinal)),
        do, dfinal, q, k, v, *gates, states, cu_seqlens, *through, dinitial,
    )  # fmt: skip

    in_groups = p.group > 1
    outputs = (
        room(need_q, B, T, H, K, dtype=q.dtype),
        room(need_k, B, T, H, K, dtype=torch.float32 if in_groups else k.dtype),
        room(need_v, B, T, H, V, dtype=torch.float32 if in_groups else v.dtype),
        room(need.g or need.g_gamma, B, T, H),
        room(need.gk, B, T, H, K, dtype=gates.gk.dtype if need.gk else None),
        room(need.gv, B, T, H, V, dtype=gates.gv.dtype if need.gv else None),
    )
    x.launch(
        pairs_kernel, lambda: told_of(p.pairs),
        do, q, k, v, *gates, sequence_of_runs(cu_seqlens, p.blocks, p.C), cu_seqlens, *through, *outputs,
    )  # fmt: skip
    clear_outside(cu_seqlens, T, *outputs)

    dq, dk, dv, dg, dgk, dgv = outputs
    dgates = Gates(
        g=dg.to(gates.g.dtype) if need.g else None,
        g_gamma=dg.sum((0, 1)).to(gates.g_gamma.dtype) if need.g_gamma else None,
        gk=dgk,
        gv=dgv,
    )
    return dq, over_group(dk, k) if need_k else None, over_group(dv, v) if need_v else None, *dgates, dinitial
