"""The chunked form, backward: the states and costates at the chunks' edges, then every chunk by itself.

With P_ts = do_t . v_s, the state S that enters a chunk and the costate Z (the gradient at the state) that enters it from behind:

    dq_t = c e^{Gamma_t} . (S do_t)           + c sum_{s <= t} P_ts e^{Gamma_t - Gamma_s} . k_s
    dk_s = e^{Gamma_C - Gamma_s} . (Z v_s)    + c sum_{t >= s} P_ts e^{Gamma_t - Gamma_s} . q_t
    dv_s = Z^T (k_s e^{Gamma_C - Gamma_s})    + c sum_{t >= s} A_ts do_t

The gradient of a gate is the sum over all pairs of tokens whose path crosses it, s < t <= r, one term for each place the two
can be: both inside the chunk, s before it, r behind it, or both outside. All four are sums of products; nothing is subtracted,
so that a gate of -20 has a gradient with as many right digits as any other.
"""

import torch
import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.common.sequences import locate_run
from kernels.recurrent_attention.chunk_forward import (
    chunk_rows,
    decay,
    decay_matrix,
    load_gates,
    load_rows,
    load_state,
    plan,
    prepare,
    scalar_decay,
    store_rows,
    strides,
    subchunk,
    walk,
)


@triton.jit
def _gradients_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, g_ptr, gamma_ptr, scores_ptr, chunk_decay_ptr, states_ptr, costates_ptr,
    dq_ptr, dk_ptr, dv_ptr, dg_ptr, products_ptr, sequence_of_chunk_ptr, cu_ptr,
    places, T, H, K, V, heads_per_k, heads_per_v, scale,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_v_b, stride_v_t, stride_v_h, stride_v_v, stride_do_b, stride_do_t, stride_do_h, stride_do_v,
    stride_g_b, stride_g_t, stride_g_h, stride_gamma,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, VECTOR: tl.constexpr, GATES: tl.constexpr,
    PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """dq, dk, dv and (with GATES) the gate gradients dg of one chunk of one head.

    With VECTOR, q and k come decayed; what is written is P, dv, and of dq, dk and the gates only the part through the states,
    without the decays in front of it: ``_inside_kernel`` adds the rest.
    """
    GATED: tl.constexpr = USE_G or USE_GAMMA
    pid = tl.program_id(0)
    h = (pid % H).to(tl.int64)
    place = pid // H
    n, b, begin, L, first = locate_run(place, places, T, C, sequence_of_chunk_ptr, cu_ptr, PACKED)
    rows, exists = chunk_rows(begin, L, first, C, REVERSE)
    offs_c = tl.arange(0, C)
    offs_k = tl.arange(0, BLOCK_K)
    state = (place.to(tl.int64) * H + h) * K * V
    v_base = v_ptr + b * stride_v_b + h // heads_per_v * stride_v_h
    do_base = do_ptr + b * stride_do_b + h * stride_do_h
    head = b * T * H + h

    q = load_rows(q_ptr + b * stride_q_b + h * stride_q_h, stride_q_t, stride_q_k, rows, exists, 0, K, BLOCK_K, DTYPE)
    k = load_rows(
        k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h, stride_k_t, stride_k_k, rows, exists, 0, K, BLOCK_K, DTYPE
    )  # fmt: skip
    if VECTOR:
        A = load_rows(scores_ptr + head * C, H * C, 1, rows, exists, 0, C, C, tl.float32)
    else:
        A = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if GATED:
            gamma, gamma_C, resets, resets_C = scalar_decay(
                g_ptr, gamma_ptr, stride_g_b, stride_g_t, stride_g_h, stride_gamma, b, h, rows, exists, C, USE_G, USE_GAMMA
            )  # fmt: skip
            M = decay_matrix(gamma, resets, C, True)
            from_start = decay(gamma, resets == 0)
            to_end = decay(gamma_C - gamma, resets == resets_C)
        else:
            M = decay_matrix(0, 0, C, False)
        A *= M
    back_scores = tl.trans((A * scale).to(DTYPE))

    P = tl.zeros([C, C], tl.float32)
    dq = tl.zeros([C, BLOCK_K], tl.float32)
    dk = tl.zeros([C, BLOCK_K], tl.float32)
    through = tl.zeros([BLOCK_K], tl.float32)  # sum_j S_ij Z_ij
    for start_v in range(0, V, BLOCK_V):
        v = load_rows(v_base, stride_v_t, stride_v_v, rows, exists, start_v, V, BLOCK_V, DTYPE)
        do = load_rows(do_base, stride_do_t, stride_do_v, rows, exists, start_v, V, BLOCK_V, DTYPE)
        offs_v = start_v + tl.arange(0, BLOCK_V)
        S = load_state(states_ptr + state, offs_k, offs_v, K, V).to(DTYPE)
        Z = load_state(costates_ptr + state, offs_k, offs_v, K, V).to(DTYPE)
        P += tl.dot(do, tl.trans(v), input_precision=PRECISION)
        dq += tl.dot(do, tl.trans(S), input_precision=PRECISION)
        dk += tl.dot(v, tl.trans(Z), input_precision=PRECISION)
        dv = tl.dot(k, Z, input_precision=PRECISION)
        if GATED:
            dv *= to_end[:, None]
        dv += tl.dot(back_scores, do, input_precision=PRECISION)
        store_rows(dv_ptr + head * V, H * V, rows, exists, start_v, V, dv, BLOCK_V)
        if GATES:
            through += tl.sum(S.to(tl.float32) * Z.to(tl.float32), 1)
    dq *= scale
    if GATED:
        dq *= from_start[:, None]
        dk *= to_end[:, None]

    row = offs_c[:, None]
    column = offs_c[None, :]
    if VECTOR:
        store_rows(products_ptr + head * C, H * C, rows, exists, 0, C, P, C)
        if GATES:
            whole = tl.load(chunk_decay_ptr + (place.to(tl.int64) * H + h) * K + offs_k, mask=offs_k < K, other=0.0)
            # sums over r >= t and over s < t, as products with triangles of ones
            from_t_on = (column >= row).to(DTYPE)
            before_t = (column < row).to(DTYPE)
            dg = tl.dot(from_t_on, (q * dq).to(DTYPE), input_precision=PRECISION)
            dg += tl.dot(before_t, (k * dk).to(DTYPE), input_precision=PRECISION)
            store_rows(dg_ptr + head * K, H * K, rows, exists, 0, K, dg + (whole * through)[None, :], BLOCK_K)
    else:
        if GATES:
            W = tl.where(row > column, A * P, 0.0) * scale
            from_t_on = (column >= row).to(DTYPE)
            inside = tl.dot(from_t_on, W.to(DTYPE), input_precision=PRECISION)  # over r >= t, for every s
            after = tl.sum(k * dk, 1)
            before = tl.sum(q * dq, 1)
            dg = tl.sum(tl.where(column < row, inside + after[None, :], 0.0), 1)
            dg += tl.sum(tl.where(column >= row, before[None, :], 0.0), 1)
            dg += decay(gamma_C, resets_C == 0) * tl.sum(through, 0)
            tl.store(dg_ptr + head + rows * H, dg, mask=exists)
        PM = (P * M * scale).to(DTYPE)
        dq += tl.dot(PM, k, input_precision=PRECISION)
        dk += tl.dot(tl.trans(PM), q, input_precision=PRECISION)
    store_rows(dq_ptr + head * K, H * K, rows, exists, 0, K, dq, BLOCK_K)
    store_rows(dk_ptr + head * K, H * K, rows, exists, 0, K, dk, BLOCK_K)


@triton.jit
def _inside_kernel(
    q_ptr, k_ptr, g_ptr, gamma_ptr, gk_ptr, products_ptr, dq_through_ptr, dk_through_ptr, dg_through_ptr,
    dq_ptr, dk_ptr, dg_ptr, sequence_of_chunk_ptr, cu_ptr, places, T, H, K, heads_per_k, scale,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_g_b, stride_g_t, stride_g_h, stride_gamma, stride_gk_b, stride_gk_t, stride_gk_h, stride_gk_k,
    C: tl.constexpr, SUB: tl.constexpr, BLOCK_K: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, GATES: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """For gates on key components: what a chunk's own pairs of tokens add to dq, dk and the gate gradients, SUB rows a program.

    As for A: matrix products against the other sub-chunks, with the exponent cut in two at the own one's edge, and
    element-wise inside. The decays in front of what came through the states are applied here, too.
    """
    SUBS: tl.constexpr = C // SUB
    tiles_k = tl.cdiv(K, BLOCK_K)
    pid = tl.program_id(0)
    start_k = pid % tiles_k * BLOCK_K
    m = pid // tiles_k % SUBS
    h = (pid // tiles_k // SUBS % H).to(tl.int64)
    place = pid // tiles_k // SUBS // H
    n, b, begin, L, first = locate_run(place, places, T, C, sequence_of_chunk_ptr, cu_ptr, PACKED)
    offs_t = tl.arange(0, SUB)
    left = K - start_k  # components from here on
    q_base = q_ptr + b * stride_q_b + h * stride_q_h + start_k * stride_q_k
    k_base = k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h + start_k * stride_k_k
    g_base = g_ptr + b * stride_g_b + h * stride_g_h if USE_G else g_ptr
    gk_base = gk_ptr + b * stride_gk_b + h * stride_gk_h + start_k * stride_gk_k
    gamma = tl.load(gamma_ptr + h * stride_gamma).to(tl.float32) if USE_GAMMA else 0.0
    products_base = products_ptr + (b * T * H + h) * C
    offset = (b * T * H + h) * K + start_k

    t0 = first + m * SUB
    rows, exists, to_here, to_end, whole = subchunk(
        g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, t0, left, SUB, BLOCK_K, USE_G, USE_GAMMA, REVERSE
    )  # fmt: skip
    q = load_rows(q_base, stride_q_t, stride_q_k, rows, exists, 0, left, BLOCK_K, tl.float32)
    k = load_rows(k_base, stride_k_t, stride_k_k, rows, exists, 0, left, BLOCK_K, tl.float32)

    dq = tl.zeros([SUB, BLOCK_K], tl.float32)
    before = tl.zeros([BLOCK_K], tl.float32)
    for back in range(m):
        j = m - 1 - back
        rows_j, exists_j, to_here_j, to_end_j, whole_j = subchunk(
            g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, first + j * SUB, left, SUB, BLOCK_K,
            USE_G, USE_GAMMA, REVERSE,
        )  # fmt: skip
        k_j = load_rows(k_base, stride_k_t, stride_k_k, rows_j, exists_j, 0, left, BLOCK_K, tl.float32)
        P = load_rows(products_base, H * C, 1, rows, exists, j * SUB, C, SUB, DTYPE)
        dq += tl.dot(P, (k_j * tl.exp(to_end_j + before[None, :])).to(DTYPE), input_precision=PRECISION)
        before += whole_j
    dq *= tl.exp(to_here)

    dk = tl.zeros([SUB, BLOCK_K], tl.float32)
    across = tl.zeros([BLOCK_K], tl.float32)  # pairs with one token before the sub-chunk and one behind it
    after = tl.zeros([BLOCK_K], tl.float32)
    for i in range(m + 1, SUBS):
        rows_i, exists_i, to_here_i, to_end_i, whole_i = subchunk(
            g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, first + i * SUB, left, SUB, BLOCK_K,
            USE_G, USE_GAMMA, REVERSE,
        )  # fmt: skip
        q_i = load_rows(q_base, stride_q_t, stride_q_k, rows_i, exists_i, 0, left, BLOCK_K, tl.float32)
        q_i = q_i * tl.exp(to_here_i + after[None, :])
        P = load_rows(products_base, H * C, 1, rows_i, exists_i, m * SUB, C, SUB, DTYPE)
        dk += tl.dot(tl.trans(P), q_i.to(DTYPE), input_precision=PRECISION)
        if GATES:
            behind = tl.zeros([SUB, BLOCK_K], tl.float32)
            between = whole
            for back in range(m):
                j = m - 1 - back
                rows_j, exists_j, to_here_j, to_end_j, whole_j = subchunk(
                    g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, first + j * SUB, left, SUB, BLOCK_K,
                    USE_G, USE_GAMMA, REVERSE,
                )  # fmt: skip
                k_j = load_rows(k_base, stride_k_t, stride_k_k, rows_j, exists_j, 0, left, BLOCK_K, tl.float32)
                P = load_rows(products_base, H * C, 1, rows_i, exists_i, j * SUB, C, SUB, DTYPE)
                behind += tl.dot(P, (k_j * tl.exp(to_end_j + between[None, :])).to(DTYPE), input_precision=PRECISION)
                between += whole_j
            across += tl.sum(q_i * behind, 0)
        after += whole_i
    dk *= tl.exp(to_end)

    row = offs_t[:, None]
    column = offs_t[None, :]
    dg = tl.zeros([SUB, BLOCK_K], tl.float32)
    if GATES:
        from_t_on = (column >= row).to(tl.float32)
        before_t = (column < row).to(tl.float32)
        dg += tl.dot(from_t_on, q * dq, input_precision=PRECISION) + tl.dot(before_t, k * dk, input_precision=PRECISION)
        dg += across[None, :]
    # The own sub-chunk, s from last to first: ``between`` is the sum of the gates s+1..t, grown by one gate a step.
    between = tl.zeros([SUB, BLOCK_K], tl.float32)
    for back in range(SUB):
        s = SUB - 1 - back
        row_s, exists_s = chunk_rows(begin, L, t0 + s, 1, REVERSE)
        k_s = load_rows(k_base, stride_k_t, stride_k_k, row_s, exists_s, 0, left, BLOCK_K, tl.float32)  # [1, BLOCK_K]
        row_s, exists_s = chunk_rows(begin, L, t0 + s + 1, 1, REVERSE)
        next_gate = load_gates(
            g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, row_s, exists_s, left, 1, BLOCK_K, USE_G, USE_GAMMA
        )  # fmt: skip
        between = tl.where(row > s, between + next_gate, 0.0)
        P_s = tl.load(products_base + rows * (H * C) + m * SUB + s, mask=exists, other=0.0).to(tl.float32)
        weight = tl.where(row >= s, P_s[:, None] * tl.exp(between), 0.0)
        dk_s = tl.sum(weight * q, 0)
        dk += tl.where(row == s, dk_s[None, :], 0.0)
        dq += weight * k_s
        if GATES:
            crossing = tl.cumsum(tl.where(row > s, weight * q * k_s, 0.0), 0, reverse=True)  # over r >= t
            dg += tl.where(row > s, crossing, 0.0)

    dq_through = load_rows(dq_through_ptr + offset, H * K, 1, rows, exists, 0, left, BLOCK_K, tl.float32)
    dk_through = load_rows(dk_through_ptr + offset, H * K, 1, rows, exists, 0, left, BLOCK_K, tl.float32)
    dq = dq * scale + dq_through * tl.exp(to_here + before[None, :])
    dk = dk * scale + dk_through * tl.exp(to_end + after[None, :])
    store_rows(dq_ptr + offset, H * K, rows, exists, 0, left, dq, BLOCK_K)
    store_rows(dk_ptr + offset, H * K, rows, exists, 0, left, dk, BLOCK_K)
    if GATES:
        dg_through = load_rows(dg_through_ptr + offset, H * K, 1, rows, exists, 0, left, BLOCK_K, tl.float32)
        store_rows(dg_ptr + offset, H * K, rows, exists, 0, left, dg * scale + dg_through, BLOCK_K)


def backward(do, dfinal, q, k, v, g, g_gamma, gk, scale, initial_state, reverse, cu_seqlens, needs):
    """Launch the chunked backward pass.

    Args:
        do: gradient of o [B, T, H, V].
        dfinal: gradient of the final state [N, H, K, V], or ``None``.
        q, k, v, g, g_gamma, gk, scale, initial_state, reverse, cu_seqlens: as the operator got them.
        needs: whether q, k, v, g, g_gamma, gk and initial_state need a gradient.

    Returns:
        their gradients, ``None`` for those not needed, each in its tensor's dtype.
    """
    need_q, need_k, need_v, need_g, need_gamma, need_gk, need_initial = needs
    gates = need_g or need_gamma or need_gk
    p = plan(q, v, g, g_gamma, gk, reverse, cu_seqlens)
    if p.T == 0:
        given = (q, k, v, g, g_gamma, gk)
        zeros = [torch.zeros_like(x) if need else None for x, need in zip(given, needs[:-1], strict=True)]
        return *zeros, p.untouched(dfinal).to(initial_state.dtype) if need_initial else None

    x_q, x_k, scores, chunk_decay = q, k, None, None
    if gk is not None:
        x_q, x_k, scores, chunk_decay = prepare(p, q, k, g, g_gamma, gk)
    edge = torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32
    states, _ = walk(p, x_k, v, g, g_gamma, chunk_decay, initial_state, 1.0, costate=False, each=edge, end=False)
    costates, dinitial = walk(
        p, x_q, do, g, g_gamma, chunk_decay, dfinal, scale, costate=True, each=edge, end=need_initial
    )

    vector = gk is not None
    places, sequence_of_chunk = p.chunks()
    through = torch.float32 if vector else q.dtype
    dq = torch.empty(p.B, p.T, p.H, p.K, dtype=through, device=q.device)
    dk = torch.empty(p.B, p.T, p.H, p.K, dtype=through if p.H == k.shape[2] else torch.float32, device=q.device)
    dv = torch.empty(p.B, p.T, p.H, p.V, dtype=v.dtype if p.H == v.shape[2] else torch.float32, device=q.device)
    products = torch.empty(p.B, p.T, p.H, p.C, dtype=edge, device=q.device) if vector else None
    dg = torch.empty(dq.shape if vector else dq.shape[:3], dtype=torch.float32, device=q.device) if gates else None
    options = p.options("chunk_gradients") | {"VECTOR": vector, "GATES": gates}
    if vector:
        options |= {"USE_G": False, "USE_GAMMA": False}
    launch(
        _gradients_kernel, (places * p.H,),
        x_q, x_k, v, do, g, g_gamma, scores, chunk_decay, states, costates, dq, dk, dv, dg, products,
        sequence_of_chunk, p.cu_seqlens, places, p.T, p.H, p.K, p.V, p.H // x_k.shape[2], p.H // v.shape[2], scale,
        *strides(x_q), *strides(x_k), *strides(v), *strides(do), *strides(g, 3), *strides(g_gamma, 1),
        outputs=[t for t in (dq, dk, dv, dg, products) if t is not None], **options,
    )  # fmt: skip
    if vector:
        dq_through, dk_through, dg_through = dq, dk, dg
        dq = torch.empty_like(dq, dtype=q.dtype)
        dk = torch.empty_like(dk, dtype=k.dtype if p.H == k.shape[2] else torch.float32)
        dg = torch.empty_like(dg) if gates else None
        options = p.options("chunk_inside")
        options.pop("BLOCK_V")
        launch(
            _inside_kernel, (places * p.H * (p.C // options["SUB"]) * triton.cdiv(p.K, options["BLOCK_K"]),),
            q, k, g, g_gamma, gk, products, dq_through, dk_through, dg_through, dq, dk, dg, sequence_of_chunk, p.cu_seqlens,
            places, p.T, p.H, p.K, p.H // k.shape[2], scale,
            *strides(q), *strides(k), *strides(g, 3), *strides(g_gamma, 1), *strides(gk),
            outputs=[t for t in (dq, dk, dg) if t is not None], GATES=gates, **options,
        )  # fmt: skip

    dgk = dg.to(gk.dtype) if need_gk else None
    if need_g or need_gamma:
        dg = dg.sum(-1) if vector else dg  # a scalar gate is added to every component's
    return (
        dq if need_q else None,
        over_group(dk, k) if need_k else None,
        over_group(dv, v) if need_v else None,
        dg.to(g.dtype) if need_g else None,
        dg.sum((0, 1)).to(g_gamma.dtype) if need_gamma else None,
        dgk,
        dinitial.to(initial_state.dtype) if need_initial else None,
    )


def over_group(gradient, tensor):
    """The sum of a gradient [B, T, H, size] over the query heads that share a head of ``tensor`` [B, T, Hkv, size]."""
    B, T, heads, size = tensor.shape
    if gradient.shape[2] == heads:
        return gradient
    return gradient.view(B, T, heads, -1, size).sum(3).to(tensor.dtype)
