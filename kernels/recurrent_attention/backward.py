"""Backward pass of the recurrence: the same walk from the last token to the first, C tokens at a time, nothing subtracted.

Gamma and Phi are the log-decays of the state's rows and columns, summed from the block's first token on; S is the state that
enters the block, Z the costate (the gradient at the state) that enters it from behind. P_rs = do_r . v_s e^{Phi_r - Phi_s},
A_rs = c q_r e^{Gamma_r - Gamma_s} . k_s, and

    dq_r = c [ e^{Gamma_r} . S (do_r e^{Phi_r})              + sum_{s <= r} P_rs e^{Gamma_r - Gamma_s} . k_s ]
    dk_s = e^{Gamma_C - Gamma_s} . Z (v_s e^{Phi_C - Phi_s})  + sum_{r >= s} P_rs e^{Gamma_r - Gamma_s} . c q_r
    dv_s = e^{Phi_C - Phi_s} . Z^T (k_s e^{Gamma_C - Gamma_s}) + sum_{r >= s} A_rs e^{Phi_r - Phi_s} . do_r

The gradient of the gate at t is the sum over all paths that cross it, from a write at s < t to a read at r >= t: s and r may
each lie in the block or outside, which makes four sums. The published form takes the difference of two running sums instead,
and at a gate of -20 that difference has no right digit left. Here each decay is the exponential of a sum of the very gates
it spans, so a gate of -inf needs no care: its decays, and its gradient, are 0.

A program owns BV columns of one head's state, with the costate in registers. States are not kept: a first kernel writes one
every EVERY blocks, and the walk advances from the nearest. What several programs contribute to is added up in a fixed order.
"""

import torch
import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.common.sequences import sequence_span
from kernels.recurrent_attention.chunk_backward import over_group
from kernels.recurrent_attention.chunk_forward import load_state, store_state, strides
from kernels.recurrent_attention.forward import configured, heads_per_kv
from kernels.recurrent_attention.gates import (
    block_columns,
    decay_matrix,
    decays_to_edges,
    decays_to_middle,
    load_columns,
    load_log_decays,
    store_columns,
    sum_over_paths,
)


@triton.jit
def advance(
    S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt, mask_k, mask_v,
    begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state behind a block: e^{Gamma_C} . S . e^{Phi_C} + sum_s (k_s e^{Gamma_C - Gamma_s}) (v_s e^{Phi_C - Phi_s})^T."""
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    k = load_columns(k_at, stride_kt, times, mask_t, mask_k)
    v = load_columns(v_at, stride_vt, times, mask_t, mask_v)
    here, after = load_log_decays(g_at, stride_gt, gamma, gk_at, stride_gkt, mask_k, begin, L, first, C, REVERSE)
    unused, to_edge, whole = decays_to_edges(here, after)
    S *= whole[:, None]
    k *= to_edge
    if gv_at is not None:
        here, after = load_log_decays(None, 0, 0.0, gv_at, stride_gvt, mask_v, begin, L, first, C, REVERSE)
        unused, to_edge, whole = decays_to_edges(here, after)
        S *= whole[None, :]
        v *= to_edge
    return S + tl.dot(k, tl.trans(v), input_precision=PRECISION)


@triton.jit
def place_of_checkpoint(n, begin, T, RUN: tl.constexpr, PACKED: tl.constexpr):
    """Where sequence n's checkpoints begin, one every RUN tokens; packed ones share a list as in ``cut_into_runs``."""
    if PACKED:
        return begin // RUN + n
    return n * tl.cdiv(T, RUN)


@triton.jit
def checkpoints_kernel(
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
    n = (pid // tiles_v // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    k_at = k_ptr + row * stride_kb + h // group * stride_kh + offs_k * stride_kk
    v_at = v_ptr + row * stride_vb + h // group * stride_vh + offs_v * stride_vv
    g_at = None if g_ptr is None else g_ptr + row * stride_gb + h * stride_gh
    gk_at = None if gk_ptr is None else gk_ptr + row * stride_gkb + h * stride_gkh + offs_k * stride_gkk
    gv_at = None if gv_ptr is None else gv_ptr + row * stride_gvb + h * stride_gvh + offs_v * stride_gvv
    gamma = 0.0 if gamma_ptr is None else tl.load(gamma_ptr + h * stride_gamma).to(tl.float32)

    S = tl.zeros([BK, BV], tl.float32)
    if initial_ptr is not None:
        at = initial_ptr + n * stride_sn + h * stride_sh + offs_k[:, None] * stride_sk + offs_v[None, :] * stride_sv
        S = tl.load(at, mask=mask_k[:, None] & mask_v[None, :], other=0.0).to(tl.float32)
    place = place_of_checkpoint(n, begin, T, C * EVERY, PACKED)
    for checkpoint in range(tl.cdiv(L, C * EVERY)):
        store_state(states_ptr + ((place + checkpoint) * H + h) * K * V, offs_k, offs_v, K, V, S)
        for i in range(EVERY):
            S = advance(
                S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt,
                mask_k, mask_v, begin, L, (checkpoint * EVERY + i) * C, C, REVERSE, PRECISION,
            )  # fmt: skip


@triton.jit
def recurrent_backward_kernel(
    do_ptr, dfinal_ptr, q_ptr, k_ptr, v_ptr, g_ptr, gamma_ptr, gk_ptr, gv_ptr, states_ptr, cu_ptr,
    dq_ptr, dk_ptr, dv_ptr, dg_ptr, dgk_ptr, dgv_ptr, dinitial_ptr,
    scale, T, H, group, tiles_v, tokens,
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
    """dq, dk, dg and dgk are [tiles_v, tokens = B T, H, ...], one partial sum for each tile of columns. What is None is not
    wanted; dg stands for g and g_gamma."""
    GK: tl.constexpr = gk_ptr is not None
    GV: tl.constexpr = gv_ptr is not None
    NEED_K: tl.constexpr = dg_ptr is not None or dgk_ptr is not None
    NEED_V: tl.constexpr = dgv_ptr is not None
    pid = tl.program_id(0)
    tile = (pid % tiles_v).to(tl.int64)
    h = pid // tiles_v % H
    n = (pid // tiles_v // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    offs_t = tl.arange(0, C)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = tile * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    q_at = q_ptr + row * stride_qb + h * stride_qh + offs_k * stride_qk
    k_at = k_ptr + row * stride_kb + h // group * stride_kh + offs_k * stride_kk
    v_at = v_ptr + row * stride_vb + h // group * stride_vh + offs_v * stride_vv
    do_at = do_ptr + row * stride_dob + h * stride_doh + offs_v * stride_dov
    g_at = None if g_ptr is None else g_ptr + row * stride_gb + h * stride_gh
    gk_at = None if gk_ptr is None else gk_ptr + row * stride_gkb + h * stride_gkh + offs_k * stride_gkk
    gv_at = None if gv_ptr is None else gv_ptr + row * stride_gvb + h * stride_gvh + offs_v * stride_gvv
    gamma = 0.0 if gamma_ptr is None else tl.load(gamma_ptr + h * stride_gamma).to(tl.float32)
    head = row * T * H + h  # outputs are contiguous

    Z = tl.zeros([BK, BV], tl.float32)
    if dfinal_ptr is not None:
        at = dfinal_ptr + n * stride_fn + h * stride_fh + offs_k[:, None] * stride_fk + offs_v[None, :] * stride_fv
        Z = tl.load(at, mask=mask_k[:, None] & mask_v[None, :], other=0.0).to(tl.float32)
    place = place_of_checkpoint(n, begin, T, C * EVERY, PACKED)
    u = offs_t[:, None]
    t = offs_t[None, :]
    blocks = tl.cdiv(L, C)
    for back in range(blocks):
        block = blocks - 1 - back
        first = block * C
        S = load_state(states_ptr + ((place + block // EVERY) * H + h) * K * V, offs_k, offs_v, K, V)
        for i in range(block // EVERY * EVERY, block):
            S = advance(
                S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt,
                mask_k, mask_v, begin, L, i * C, C, REVERSE, PRECISION,
            )  # fmt: skip

        times, mask_t = block_columns(begin, L, first, C, REVERSE)
        q = load_columns(q_at, stride_qt, times, mask_t, mask_k) * scale
        k = load_columns(k_at, stride_kt, times, mask_t, mask_k)
        v = load_columns(v_at, stride_vt, times, mask_t, mask_v)
        do = load_columns(do_at, stride_dot, times, mask_t, mask_v)
        here_k, after_k = load_log_decays(
            g_at, stride_gt, gamma, gk_at, stride_gkt, mask_k, begin, L, first, C, REVERSE
        )
        q_from, k_to, whole_k = decays_to_edges(here_k, after_k)
        q_decayed = q * q_from
        do_decayed = do
        v_decayed = v
        Z_decayed = Z * whole_k[:, None]
        if GV:
            here_v, after_v = load_log_decays(None, 0, 0.0, gv_at, stride_gvt, mask_v, begin, L, first, C, REVERSE)
            o_from, v_to, whole_v = decays_to_edges(here_v, after_v)
            do_decayed *= o_from
            v_decayed *= v_to
            Z_decayed *= whole_v[None, :]

        # Paths that cross the block's edges: a read from S, a write that Z reads, and the passage from S to Z.
        dq = q_from * tl.dot(S, do_decayed, input_precision=PRECISION)
        dk = k_to * tl.dot(Z, v_decayed, input_precision=PRECISION)
        dv = tl.dot(tl.trans(Z), k * k_to, input_precision=PRECISION)
        if GV:
            dv *= v_to
        if NEED_K:
            gate_k = sum_over_paths(q * dq, u >= t, GK, PRECISION) + sum_over_paths(k * dk, u < t, GK, PRECISION)
            through = tl.sum(S * Z_decayed, 1)
            gate_k += through[:, None] if GK else tl.sum(through, 0)
        if NEED_V:
            o = o_from * tl.dot(tl.trans(S), q_decayed, input_precision=PRECISION)
            gate_v = sum_over_paths(do * o, u >= t, True, PRECISION) + sum_over_paths(v * dv, u < t, True, PRECISION)
            gate_v += tl.sum(S * Z_decayed, 0)[:, None]
        Z = Z_decayed + tl.dot(q_decayed, tl.trans(do_decayed), input_precision=PRECISION)

        # Paths inside the block, from s to r.
        if GK or GV:
            # s = r, then the pairs whose numbers first differ in the same binary digit: s left of a middle, r right of it.
            P_tt = tl.sum(do * v, 0)[None, :]
            dq += P_tt * k
            dk += P_tt * q
            dv += tl.sum(q * k, 0)[None, :] * do
            for digit in tl.static_range(4):
                right = (t >> digit) % 2 == 1
                pairs = (u >> digit) ^ (t >> digit) == 1  # in either order
                crossed = (u >> digit == t >> digit) & (
                    right == (u >= t)
                )  # the gate at t, by paths that end or begin at u
                x = tl.where(right, q, k)
                y = tl.where(right, do, v)
                decay_k = decays_to_middle(here_k, after_k, digit)
                x_decayed = x * decay_k
                y_decayed = y
                if GV:
                    decay_v = decays_to_middle(here_v, after_v, digit)
                    y_decayed *= decay_v
                A = tl.where(pairs, tl.dot(tl.trans(x_decayed), x_decayed, input_precision=PRECISION), 0.0)
                P = tl.where(pairs, tl.dot(tl.trans(y_decayed), y_decayed, input_precision=PRECISION), 0.0)
                dx = decay_k * tl.dot(x_decayed, P, input_precision=PRECISION)
                dy = tl.dot(y_decayed, A, input_precision=PRECISION)
                if GV:
                    dy *= decay_v
                dq += tl.where(right, dx, 0.0)
                dk += tl.where(right, 0.0, dx)
                dv += tl.where(right, 0.0, dy)
                if NEED_K:
                    gate_k += sum_over_paths(x * dx, crossed, GK, PRECISION)
                if NEED_V:
                    gate_v += sum_over_paths(y * dy, crossed, True, PRECISION)
        else:
            # One decay for each pair of tokens: everything is C x C.
            M = decay_matrix(here_k)
            A = M * tl.dot(tl.trans(q), k, input_precision=PRECISION)  # [r, s]
            products = tl.dot(tl.trans(do), v, input_precision=PRECISION)
            P = M * products
            dq += tl.dot(k, tl.trans(P), input_precision=PRECISION)
            dk += tl.dot(q, P, input_precision=PRECISION)
            dv += tl.dot(do, A, input_precision=PRECISION)
            if NEED_K:
                paths = tl.where(u > t, A * products, 0.0)  # from s to r, both inside
                paths = tl.dot((u <= t).to(tl.float32), paths, input_precision=PRECISION)  # over r >= the first index
                gate_k += tl.sum(tl.where(u > t, paths, 0.0), 1)[None, :]  # and over s < it

        partial = tile * tokens * H + head
        if dq_ptr is not None:
            store_columns(dq_ptr + partial * K + offs_k, H * K, times, mask_t, mask_k, dq * scale)
        if dk_ptr is not None:
            store_columns(dk_ptr + partial * K + offs_k, H * K, times, mask_t, mask_k, dk)
        if dv_ptr is not None:
            store_columns(dv_ptr + head * V + offs_v, H * V, times, mask_t, mask_v, dv)
        if dg_ptr is not None:
            tl.store(dg_ptr + partial + times * H, tl.sum(gate_k, 0), mask=mask_t)
        if dgk_ptr is not None:
            store_columns(dgk_ptr + partial * K + offs_k, H * K, times, mask_t, mask_k, gate_k)
        if dgv_ptr is not None:
            store_columns(dgv_ptr + head * V + offs_v, H * V, times, mask_t, mask_v, gate_v)

    if dinitial_ptr is not None:
        store_state(dinitial_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, Z)


def backward(do, dfinal, q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, needs):
    """Launch the backward pass of the recurrence.

    Args:
        do: gradient of o [B, T, H, V].
        dfinal: gradient of the final state [N, H, K, V], or ``None``.
        q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens: as the operator got them.
        needs: whether q, k, v, g, g_gamma, gk, gv and initial_state need a gradient.

    Returns:
        their gradients, ``None`` for those not needed, each in its tensor's dtype.
    """
    need_q, need_k, need_v, need_g, need_gamma, need_gk, need_gv, need_initial = needs
    B, T, H, K = q.shape
    V = v.shape[-1]
    packed = cu_seqlens is not None
    N = cu_seqlens.shape[0] - 1 if packed else B
    group = heads_per_kv(q, k)
    options, tiles_v = configured("backward", q, v)
    options |= {"REVERSE": reverse, "PACKED": packed}
    gates = (*strides(g, 3), *strides(g_gamma, 1), *strides(gk), *strides(gv))

    RUN = options["C"] * options["EVERY"]
    places = T // RUN + N if packed else N * triton.cdiv(T, RUN)
    states = torch.empty(places, H, K, V, dtype=torch.float32, device=q.device)
    walk, tiles_walk = configured("checkpoints", q, v)
    launch(
        checkpoints_kernel,
        (N * H * tiles_walk,),
        k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, states,
        T, H, group, tiles_walk,
        *k.stride(), *v.stride(), *gates, *strides(initial_state),
        **options | walk,
    )  # fmt: skip

    def partial(need, dtype, *size):
        """Room for a gradient to which every tile of columns contributes; float32 unless the first is the whole."""
        dtype = dtype if tiles_v == 1 else torch.float32
        return torch.empty(tiles_v, B, T, H, *size, dtype=dtype, device=q.device) if need else None

    shared = group > 1
    dq = partial(need_q, q.dtype, K)
    dk = partial(need_k, torch.float32 if shared else k.dtype, K)
    dv = torch.empty(B, T, H, V, dtype=torch.float32 if shared else v.dtype, device=q.device) if need_v else None
    dg = partial(need_g or need_gamma, torch.float32)
    dgk = partial(need_gk, gk.dtype if need_gk else None, K)
    dgv = torch.empty(B, T, H, V, dtype=gv.dtype, device=q.device) if need_gv else None
    dinitial = torch.empty(N, H, K, V, dtype=initial_state.dtype, device=q.device) if need_initial else None
    outputs = (dq, dk, dv, dg, dgk, dgv, dinitial)
    launch(
        recurrent_backward_kernel,
        (N * H * tiles_v,),
        do, dfinal, q, k, v, g, g_gamma, gk, gv, states, cu_seqlens, *outputs,
        scale, T, H, group, tiles_v, B * T,
        *do.stride(), *strides(dfinal), *q.stride(), *k.stride(), *v.stride(), *gates,
        outputs=[t for t in outputs if t is not None],
        **options,
    )  # fmt: skip

    def total(partials):
        return partials[0] if tiles_v == 1 else partials.sum(0)

    dg = None if dg is None else total(dg)
    return (
        total(dq).to(q.dtype) if need_q else None,
        over_group(total(dk), k).to(k.dtype) if need_k else None,
        over_group(dv, v) if need_v else None,
        dg.to(g.dtype) if need_g else None,
        dg.sum((0, 1)).to(g_gamma.dtype) if need_gamma else None,
        total(dgk).to(gk.dtype) if need_gk else None,
        dgv,
        dinitial,
    )
