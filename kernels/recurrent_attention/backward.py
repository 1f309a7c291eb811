"""Backward pass of the recurrence: the same walk from the last token to the first, C tokens at a time, nothing subtracted.

Gamma and Phi are the log-decays of the state's rows and columns, summed from the block's first token on; S is the state that
enters the block and Z the costate (the gradient at the state) that enters it from behind. P_rs = do_r . v_s e^{Phi_r - Phi_s},
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
from kernels.recurrent_attention.chunk_forward import chunk_rows, load_state, store_state, strides
from kernels.recurrent_attention.forward import configured, heads_per_kv


@triton.jit
def load_tile(at, stride_t, rows, mask_t, mask):
    """float32 rows of a tile: ``at`` [D] points to the components of time 0."""
    tile = tl.load(at[None, :] + rows[:, None] * stride_t, mask=mask_t[:, None] & mask[None, :], other=0.0)
    return tile.to(tl.float32)


@triton.jit
def store_tile(at, stride_t, rows, mask_t, mask, tile):
    """The reverse of ``load_tile``."""
    at = at[None, :] + rows[:, None] * stride_t
    tl.store(at, tile.to(at.dtype.element_ty), mask=mask_t[:, None] & mask[None, :])


@triton.jit
def load_log_decay(g_at, stride_gt, gamma, gates_at, stride_gates_t, rows, mask_t, mask):
    """Log-decays of some rows: [rows, D] with a gate for every component, else [rows, 1]; 0 where there is no token."""
    log_decay = tl.where(mask_t, gamma, 0.0)[:, None]
    if g_at is not None:
        log_decay += tl.load(g_at + rows * stride_gt, mask=mask_t, other=0.0).to(tl.float32)[:, None]
    if gates_at is not None:
        log_decay += load_tile(gates_at, stride_gates_t, rows, mask_t, mask)
    return log_decay


@triton.jit
def decays_to_edges(
    g_at, stride_gt, gamma, gates_at, stride_gates_t, mask, begin, L, t0, C: tl.constexpr, REVERSE: tl.constexpr
):  # fmt: skip
    """``(from_edge, to_edge, whole)``: decays from before the block to after token t, from there to its end, and of all of it.

    Each is the exponential of a sum over just the gates it spans: no sum is subtracted from another.
    """
    rows, mask_t = chunk_rows(begin, L, t0, C, REVERSE)
    here = load_log_decay(g_at, stride_gt, gamma, gates_at, stride_gates_t, rows, mask_t, mask)
    rows, mask_t = chunk_rows(begin, L, t0 + 1, C, REVERSE)
    mask_t &= tl.arange(0, C) < C - 1
    after = load_log_decay(g_at, stride_gt, gamma, gates_at, stride_gates_t, rows, mask_t, mask)
    return tl.exp(tl.cumsum(here, 0)), tl.exp(tl.cumsum(after, 0, reverse=True)), tl.exp(tl.sum(here, 0))


@triton.jit
def advance(
    S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt, mask_k, mask_v,
    begin, L, t0, C: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state behind a block: e^{Gamma_C} . S . e^{Phi_C} + sum_s (k_s e^{Gamma_C - Gamma_s}) (v_s e^{Phi_C - Phi_s})^T."""
    rows, mask_t = chunk_rows(begin, L, t0, C, REVERSE)
    k = load_tile(k_at, stride_kt, rows, mask_t, mask_k)
    v = load_tile(v_at, stride_vt, rows, mask_t, mask_v)
    from_edge, to_edge, whole = decays_to_edges(
        g_at, stride_gt, gamma, gk_at, stride_gkt, mask_k, begin, L, t0, C, REVERSE
    )
    S *= whole[:, None]
    k *= to_edge
    if gv_at is not None:
        from_edge, to_edge, whole = decays_to_edges(None, 0, 0.0, gv_at, stride_gvt, mask_v, begin, L, t0, C, REVERSE)
        S *= whole[None, :]
        v *= to_edge
    return S + tl.dot(tl.trans(k), v, input_precision=PRECISION)


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
    NEED_KEY_GATES: tl.constexpr = dg_ptr is not None or dgk_ptr is not None
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
    before_t = (offs_t[:, None] > offs_t[None, :]).to(tl.float32)  # products with it sum over s < t,
    from_t_on = (offs_t[:, None] <= offs_t[None, :]).to(tl.float32)  # and with this one over r >= t
    blocks = tl.cdiv(L, C)
    for back in range(blocks):
        block = blocks - 1 - back
        t0 = block * C
        S = load_state(states_ptr + ((place + block // EVERY) * H + h) * K * V, offs_k, offs_v, K, V)
        for i in range(block // EVERY * EVERY, block):
            S = advance(
                S, k_at, stride_kt, v_at, stride_vt, g_at, stride_gt, gamma, gk_at, stride_gkt, gv_at, stride_gvt,
                mask_k, mask_v, begin, L, i * C, C, REVERSE, PRECISION,
            )  # fmt: skip

        rows, mask_t = chunk_rows(begin, L, t0, C, REVERSE)
        q = load_tile(q_at, stride_qt, rows, mask_t, mask_k) * scale
        k = load_tile(k_at, stride_kt, rows, mask_t, mask_k)
        v = load_tile(v_at, stride_vt, rows, mask_t, mask_v)
        do = load_tile(do_at, stride_dot, rows, mask_t, mask_v)

        # Paths that cross the block's edges.
        q_from, k_to, whole_k = decays_to_edges(
            g_at, stride_gt, gamma, gk_at, stride_gkt, mask_k, begin, L, t0, C, REVERSE
        )
        if gv_ptr is not None:
            v_from, v_to, whole_v = decays_to_edges(None, 0, 0.0, gv_at, stride_gvt, mask_v, begin, L, t0, C, REVERSE)
            do_decayed = do * v_from
            v_decayed = v * v_to
        else:
            whole_v = tl.full([1], 1.0, tl.float32)
            do_decayed = do
            v_decayed = v
        dq = q_from * tl.dot(do_decayed, tl.trans(S), input_precision=PRECISION)
        dk = k_to * tl.dot(v_decayed, tl.trans(Z), input_precision=PRECISION)
        dv = tl.dot(k * k_to, Z, input_precision=PRECISION)
        across = S * Z * whole_k[:, None] * whole_v[None, :]
        if NEED_KEY_GATES:
            gate_k = tl.dot(from_t_on, q * dq, input_precision=PRECISION)
            gate_k += tl.dot(before_t, k * dk, input_precision=PRECISION)
            gate_k += tl.sum(across, 1)[None, :]
        if gv_ptr is not None:
            dv *= v_to
        if dgv_ptr is not None:
            o = v_from * tl.dot(q * q_from, S, input_precision=PRECISION)
            gate_v = tl.dot(from_t_on, do * o, input_precision=PRECISION)
            gate_v += tl.dot(before_t, v * dv, input_precision=PRECISION)
            gate_v += tl.sum(across, 0)[None, :]
        Z = Z * whole_k[:, None] * whole_v[None, :] + tl.dot(
            tl.trans(q * q_from), do_decayed, input_precision=PRECISION
        )

        # Paths inside the block, from every s to all r >= s; ``between`` sums the gates s+1 ... r, grown by one a step.
        between_k = tl.zeros([C, BK if gk_ptr is not None else 1], tl.float32)
        if gv_ptr is not None:
            between_v = tl.zeros([C, BV], tl.float32)
        for step in range(C):
            s = C - 1 - step
            after = (offs_t > s)[:, None]
            is_s = (offs_t == s)[:, None]
            rows_s, mask_s = chunk_rows(begin, L, t0 + s + 1, 1, REVERSE)
            next_gate = load_log_decay(g_at, stride_gt, gamma, gk_at, stride_gkt, rows_s, mask_s, mask_k)
            between_k = tl.where(after, between_k + next_gate, 0.0)
            decay_k = tl.where(after | is_s, tl.exp(between_k), 0.0)
            if gv_ptr is not None:
                between_v = tl.where(after, between_v + load_tile(gv_at, stride_gvt, rows_s, mask_s, mask_v), 0.0)
                decay_v = tl.exp(between_v)
            else:
                decay_v = tl.full([C, 1], 1.0, tl.float32)
            rows_s, mask_s = chunk_rows(begin, L, t0 + s, 1, REVERSE)
            k_s = load_tile(k_at, stride_kt, rows_s, mask_s, mask_k)
            v_s = load_tile(v_at, stride_vt, rows_s, mask_s, mask_v)
            P_s = decay_k * tl.sum(do * decay_v * v_s, 1)[:, None]
            A_s = decay_v * tl.sum(q * decay_k * k_s, 1)[:, None]
            dq += P_s * k_s
            dk += tl.where(is_s, tl.sum(P_s * q, 0)[None, :], 0.0)
            dv += tl.where(is_s, tl.sum(A_s * do, 0)[None, :], 0.0)
            if NEED_KEY_GATES:
                paths = tl.where(after, P_s * q * k_s, 0.0)
                gate_k += tl.where(after, tl.cumsum(paths, 0, reverse=True), 0.0)
            if dgv_ptr is not None:
                paths = tl.where(after, A_s * do * v_s, 0.0)
                gate_v += tl.where(after, tl.cumsum(paths, 0, reverse=True), 0.0)

        partial = tile * tokens * H + head
        if dq_ptr is not None:
            store_tile(dq_ptr + partial * K + offs_k, H * K, rows, mask_t, mask_k, dq * scale)
        if dk_ptr is not None:
            store_tile(dk_ptr + partial * K + offs_k, H * K, rows, mask_t, mask_k, dk)
        if dv_ptr is not None:
            store_tile(dv_ptr + head * V + offs_v, H * V, rows, mask_t, mask_v, dv)
        if dg_ptr is not None:
            tl.store(dg_ptr + partial + rows * H, tl.sum(gate_k, 1), mask=mask_t)
        if dgk_ptr is not None:
            store_tile(dgk_ptr + partial * K + offs_k, H * K, rows, mask_t, mask_k, gate_k)
        if dgv_ptr is not None:
            store_tile(dgv_ptr + head * V + offs_v, H * V, rows, mask_t, mask_v, gate_v)

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
