"""The chunked form, backward: the states and costates at the chunks' edges, then every chunk by itself.

With P_ts = do_t . v_s, the state S that enters a chunk, and the costate Z (the state's gradient) that enters from behind:

    dq_t = c e^{Gamma_t} . (S do_t)           + c sum_{s <= t} P_ts e^{Gamma_t - Gamma_s} . k_s
    dk_s = e^{Gamma_C - Gamma_s} . (Z v_s)    + c sum_{t >= s} P_ts e^{Gamma_t - Gamma_s} . q_t
    dv_s = Z^T (k_s e^{Gamma_C - Gamma_s})    + c sum_{t >= s} A_ts do_t

A gate's gradient is the sum over all pairs of tokens whose path crosses it, s < t <= r, a term for each place the two can
be: both inside the chunk, s before it, r behind it, or both outside. All four are sums of products and nothing is subtracted:
a gate of -20 has a gradient with as many right digits as any other.
"""

from collections import namedtuple

import triton
import triton.language as tl

from kernels.recurrent_attention.chunk.decays import decay_matrix, level_of_rows, load_mask, over_its_unit
from kernels.recurrent_attention.chunk.rows import load_rows, locate_chunk, store_rows
from kernels.recurrent_attention.plain import head_at, load_state, own_at, zeros
from kernels.recurrent_attention.plain_backward import right_of_middle

#: Where gradients go, or where those through the states went, ``None`` for those not wanted. For a scalar gate dg has a part
#: of so many numbers for each tile. The products P are for ``inside_kernel``.
Gradients = namedtuple("Gradients", "dq dk dg dv products dg_per_tile", defaults=(None,) * 3)


@triton.jit
def gradients_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, decays, S_ptr, Z_ptr, grads, packing, scale, chunks, sizes, strides, TILE: tl.constexpr
):
    """BLOCK_K components of dq and dk and BLOCK_V of dv of one chunk of one head, and their part of dg.

    With gates on components q and k come decayed; what is written is P, dv, and of dq, dk and the gates only the part through
    the states, without the decays in front of it: ``inside_kernel`` adds the rest.
    """
    T, H, K, V, heads_k, heads_v = sizes
    C: tl.constexpr = TILE.C
    BLOCK_K: tl.constexpr = TILE.BLOCK_K
    BLOCK_V: tl.constexpr = TILE.BLOCK_V
    DTYPE: tl.constexpr = TILE.DTYPE
    PRECISION: tl.constexpr = TILE.PRECISION
    VECTOR: tl.constexpr = decays.scores is not None
    GATED: tl.constexpr = decays.from_start is not None
    GATES: tl.constexpr = grads.dg is not None
    pid = tl.program_id(0)
    tiles = tl.maximum(tl.cdiv(K, BLOCK_K), tl.cdiv(V, BLOCK_V))
    tile = pid % tiles
    place = (pid // tiles).to(tl.int64)  # of this chunk and head
    h = place % H
    b, begin, L, first, where = locate_chunk(pid // tiles // H, chunks, T, packing, TILE)
    offs_c = tl.arange(0, C)
    own_k = tile * BLOCK_K
    own_v = tile * BLOCK_V
    offs_k = own_k + tl.arange(0, BLOCK_K)
    offs_v = own_v + tl.arange(0, BLOCK_V)
    q_at = head_at(q_ptr, strides.q, b, h)
    k_at = head_at(k_ptr, strides.k, b, h // heads_k)
    v_at = head_at(v_ptr, strides.v, b, h // heads_v)
    do_at = head_at(do_ptr, strides.do, b, h)
    head = b * T * H + h

    # Along the value components: P = do v^T, and what comes to the own components of dq and dk through the states.
    P = zeros(C, C)
    dq = zeros(C, BLOCK_K)
    dk = zeros(C, BLOCK_K)
    through = tl.zeros([BLOCK_K], tl.float32)  # sum_j S_ij Z_ij
    for start_v in range(0, V, BLOCK_V):
        v = load_rows(v_at, where, start_v, V, BLOCK_V, DTYPE, TILE.WIDE)
        do = load_rows(do_at, where, start_v, V, BLOCK_V, DTYPE, TILE.WIDE)
        S = load_state(S_ptr + place * K * V, offs_k, start_v + tl.arange(0, BLOCK_V), K, V).to(DTYPE)
        Z = load_state(Z_ptr + place * K * V, offs_k, start_v + tl.arange(0, BLOCK_V), K, V).to(DTYPE)
        P = tl.dot(do, tl.trans(v), P, input_precision=PRECISION)
        dq = tl.dot(do, tl.trans(S), dq, input_precision=PRECISION)
        dk = tl.dot(v, tl.trans(Z), dk, input_precision=PRECISION)
        if GATES:
            through += tl.sum(S.to(tl.float32) * Z.to(tl.float32), 1)

    # Along the key components: A = q k^T with its decays, and what comes to the own components of dv through the costate.
    A = zeros(C, C)
    dv = zeros(C, BLOCK_V)
    for start_k in range(0, K, BLOCK_K):
        k = load_rows(k_at, where, start_k, K, BLOCK_K, DTYPE, TILE.WIDE)
        Z = load_state(Z_ptr + place * K * V, start_k + tl.arange(0, BLOCK_K), offs_v, K, V).to(DTYPE)
        dv = tl.dot(k, Z, dv, input_precision=PRECISION)
        if not VECTOR:
            q = load_rows(q_at, where, start_k, K, BLOCK_K, DTYPE, TILE.WIDE)
            A = tl.dot(q, tl.trans(k), A, input_precision=PRECISION)
    if VECTOR:
        A = load_rows(own_at(decays.scores, head, H, C), where, 0, C, C, DTYPE)
    else:
        M = decay_matrix(decays, place, 0, C, C)
        A *= M
    dq *= scale
    if GATED:
        to_end = tl.load(decays.to_end + place * C + offs_c)
        dq *= tl.load(decays.from_start + place * C + offs_c)[:, None]
        dk *= to_end[:, None]
        dv *= to_end[:, None]
    do = load_rows(do_at, where, own_v, V, BLOCK_V, DTYPE, TILE.WIDE)
    # one gate a component: the scores hold the scale already, and their rounding would show in dv
    dv = tl.dot(tl.trans((A if VECTOR else A * scale).to(DTYPE)), do, dv, input_precision=PRECISION)
    if decays.rest is not None:
        rest = load_rows(own_at(decays.rest, head, H, C), where, 0, C, C, DTYPE)
        dv = tl.dot(tl.trans(rest), do, dv, input_precision=PRECISION)
    store_rows(own_at(grads.dv, head, H, V), where, own_v, V, dv, BLOCK_V)

    q = load_rows(q_at, where, own_k, K, BLOCK_K, DTYPE, TILE.WIDE)
    k = load_rows(k_at, where, own_k, K, BLOCK_K, DTYPE, TILE.WIDE)
    t = offs_c[:, None]
    s = offs_c[None, :]
    if VECTOR:
        # P_ts where s <= t and P_st elsewhere: what the pairs inside the chunk need, whichever of the two comes first
        products = tl.where(s <= t, P, 0.0) + tl.trans(tl.where(s < t, P, 0.0))
        if tile == 0:
            store_rows(own_at(grads.products, head, H, C), where, 0, C, products * scale, C)
        if GATES:
            whole = tl.load(decays.chunk_decay + place * K + offs_k, mask=offs_k < K, other=0.0)
            # sums over r >= t and over s < t, as products with triangles of ones
            from_t_on = (s >= t).to(DTYPE)
            before_t = (s < t).to(DTYPE)
            dg = tl.dot(from_t_on, (q * dq).to(DTYPE), input_precision=PRECISION)
            dg = tl.dot(before_t, (k * dk).to(DTYPE), dg, input_precision=PRECISION) + (whole * through)[None, :]
            store_rows(own_at(grads.dg, head, H, K), where, own_k, K, dg, BLOCK_K)
    else:
        if GATES:
            after = tl.sum(k * dk, 1)
            before = tl.sum(q * dq, 1)
            crossing = tl.where(s < t, after[None, :], 0.0) + tl.where(s >= t, before[None, :], 0.0)
            if tile == 0:  # pairs inside the chunk, which are no tile's own
                W = tl.where(s < t, A * P, 0.0) * scale
                inside = tl.dot((s >= t).to(DTYPE), W.to(DTYPE), input_precision=PRECISION)  # over r >= t, for every s
                crossing += tl.where(s < t, inside, 0.0)
            dg = tl.sum(crossing, 1) + tl.load(decays.chunk_decay + place) * tl.sum(through, 0)
            row, rows, exists = where
            tl.store(grads.dg + tile.to(tl.int64) * grads.dg_per_tile + head + (row + rows) * H, dg, mask=exists)
        PM = (P * M * scale).to(DTYPE)
        dq = tl.dot(PM, k, dq, input_precision=PRECISION)
        dk = tl.dot(tl.trans(PM), q, dk, input_precision=PRECISION)
    store_rows(own_at(grads.dq, head, H, K), where, own_k, K, dq, BLOCK_K)
    store_rows(own_at(grads.dk, head, H, K), where, own_k, K, dk, BLOCK_K)


@triton.jit
def inside_kernel(
    q_ptr, k_ptr, decays, parted_ptr, crossed_ptr, through, grads, packing, chunks, sizes, strides, TILE: tl.constexpr
):
    """For gates on key components: what a chunk's own pairs of tokens add to dq, dk and the gate gradients.

    Level by level, as A was made: with X_l the rows of a level (q behind the edge, k before it, each with its decay) and P_l
    those P_ts that the level parts, in either order, Y = P_l X_l is all that both sides need: dq = e^{..} . Y behind the
    edge, dk = e^{..} . Y before it, and a gate between the edge and token t is crossed by what X_l . Y has in row t.
    The decays in front of what came through the states are applied here, too. P, q and k are divided by powers of two, so
    that the products' operands fit into float16, as in ``scores_kernel``.
    """
    T, H, K, V, heads_k, heads_v = sizes
    C: tl.constexpr = TILE.C
    BLOCK_K: tl.constexpr = TILE.BLOCK_K
    DTYPE: tl.constexpr = TILE.DTYPE
    tiles_k = tl.cdiv(K, BLOCK_K)
    pid = tl.program_id(0)
    start_k = pid % tiles_k * BLOCK_K
    h = (pid // tiles_k % H).to(tl.int64)
    b, begin, L, first, where = locate_chunk(pid // tiles_k // H, chunks, T, packing, TILE)
    head = b * T * H + h
    gamma_at = own_at(decays.gamma, head, H, K)
    t = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]

    q = load_rows(head_at(q_ptr, strides.q, b, h), where, start_k, K, BLOCK_K, DTYPE, TILE.WIDE)
    k = load_rows(head_at(k_ptr, strides.k, b, h // heads_k), where, start_k, K, BLOCK_K, DTYPE, TILE.WIDE)
    gamma = load_rows(gamma_at, where, start_k, K, BLOCK_K, tl.float32)
    P = load_rows(own_at(through.products, head, H, C), where, 0, C, C, tl.float32)
    FINE: tl.constexpr = tl.float16 if DTYPE == tl.bfloat16 else DTYPE
    P, unit_p = over_its_unit(P, DTYPE)
    itself = tl.sum(tl.where(s == t, P, 0.0), 1)[:, None]
    P = P.to(FINE)
    q, unit_q = over_its_unit(q, DTYPE)
    k, unit_k = over_its_unit(k, DTYPE)
    q, k = q.to(DTYPE), k.to(DTYPE)

    dq = itself * k
    dk = itself * q
    dg = zeros(C, BLOCK_K)
    for LEVEL in tl.range(TILE.LEVELS, num_stages=1):
        behind = right_of_middle(t, LEVEL)
        X, factor = level_of_rows(q, k, gamma, gamma_at, where, L - 1 - first, start_k, K, LEVEL, TILE)
        P_l = P * load_mask(parted_ptr, LEVEL, C, FINE)
        Y = tl.dot(P_l, X.to(FINE), input_precision=TILE.PRECISION)
        dq += tl.where(behind, factor * Y, 0.0)
        dk += tl.where(behind, 0.0, factor * Y)
        if grads.dg is not None:
            crossed = load_mask(crossed_ptr, LEVEL, C, FINE)
            dg += tl.dot(crossed, (X * Y).to(FINE), input_precision=TILE.PRECISION)
    # behind the edge X is q's and Y is k's, before it the other way round
    dq *= unit_p * unit_k
    dk *= unit_p * unit_q

    last = tl.minimum(L - 1 - first, C - 1).to(tl.int32) + tl.zeros([1], tl.int32)
    last = (where[0], -last if TILE.REVERSE else last, last >= 0)
    gamma_C = load_rows(gamma_at, last, start_k, K, BLOCK_K, tl.float32)
    dq_through = load_rows(own_at(through.dq, head, H, K), where, start_k, K, BLOCK_K, tl.float32)
    dk_through = load_rows(own_at(through.dk, head, H, K), where, start_k, K, BLOCK_K, tl.float32)
    store_rows(own_at(grads.dq, head, H, K), where, start_k, K, dq + tl.exp2(gamma) * dq_through, BLOCK_K)
    dk += tl.exp2(gamma_C - gamma) * dk_through
    store_rows(own_at(grads.dk, head, H, K), where, start_k, K, dk, BLOCK_K)
    if grads.dg is not None:
        dg_through = load_rows(own_at(through.dg, head, H, K), where, start_k, K, BLOCK_K, tl.float32)
        dg = dg * (unit_p * unit_q * unit_k) + dg_through
        store_rows(own_at(grads.dg, head, H, K), where, start_k, K, dg, BLOCK_K)
