"""Backward pass: two kernels that recompute the probabilities from q, k and lse, and never meet on the same address.

With delta = sum_d o do - dlse (the rows' inner product of probabilities and their gradients, and the lse's own gradient):

    p  = 2^(t log2 e - lse)                the forward pass's probabilities, zero wherever the mask forbids
    dz = p (do v^T - delta)                through the softmax
    ds = f'(s) dz                          through the score mod; zero wherever z is minus infinity, whatever f' is there
    dq = c ds k,   dk = c ds^T q,   dv = p^T do

The first kernel owns queries and walks over keys: dq, and the sums of the captured tensors' gradients. The second owns keys
and walks over the queries of all heads that share them (and over the batch, where keys serve all of it): dk and dv, computed
transposed, so that keys are the rows of every tile. Each sum has one owner and one order: the same bits every time.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.launch import launch
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.portable.delta import delta_of_rows
from kernels.flex_attention.portable.forward import like_strided, list_row, load_rows, logits, source_of, sources


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, dlse_ptr, delta_ptr, M, H,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_db, stride_dh, stride_dm, stride_dd,
    stride_lb, stride_lh, stride_lm,
    HAS_DLSE: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """delta [B, H, M], in float32."""
    tiles = tl.cdiv(M, BLOCK_M)
    pid = tl.program_id(0)
    m0 = (pid % tiles).to(tl.int64) * BLOCK_M
    bh = (pid // tiles).to(tl.int64)
    b, h = bh // H, bh % H
    offs_m = tl.arange(0, BLOCK_M)
    delta = delta_of_rows(
        o_ptr, do_ptr, dlse_ptr, b, h, m0, M,
        stride_ob, stride_oh, stride_om, stride_od,
        stride_db, stride_dh, stride_dm, stride_dd,
        stride_lb, stride_lh, stride_lm,
        HAS_DLSE, DV, BLOCK_M, BLOCK_DV,
    )  # fmt: skip
    mask = m0 + offs_m < M
    tl.store(delta_ptr + bh * M + m0 + offs_m, delta, mask=mask)


@triton.jit
def load_lse_and_delta(lse_base, delta_base, m, end, EDGE: tl.constexpr):
    """Of queries m; lse such that p = 2^(x - lse) is 0 where a row does not exist (lse = inf) or has no key (x = -inf, lse =
    0)."""
    if EDGE:
        lse = tl.load(lse_base + m, mask=m < end, other=float("inf"))
        delta = tl.load(delta_base + m, mask=m < end, other=0.0)
    else:
        lse = tl.load(lse_base + m)
        delta = tl.load(delta_base + m)
    return tl.where(lse == float("-inf"), 0.0, lse), delta


@triton.jit
def dq_tile(
    dq, q, do, lse, delta, k_source, v_source, n0, n_end, N, scale, unit, b, h, m, mask_m, score_tables, mask_tables, sinks,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, SINKS: tl.constexpr, MASK_MOD: tl.constexpr, PASS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """What one tile of keys adds to dq, and to the captured tensors' sums."""
    offs_n = tl.arange(0, BLOCK_N)
    k = load_rows(k_source, n0, n_end, D, EDGE, TMA, BLOCK_N, BLOCK_D)
    v = load_rows(v_source, n0, n_end, DV, EDGE, TMA, BLOCK_N, BLOCK_DV)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    n = (n0 + offs_n)[None, :]
    inside = None
    if EDGE:
        inside = n < n_end
        n = tl.minimum(n, N - 1)
    x = logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, MASK_MOD)
    p = tl.exp2(x * unit - lse[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    ds = p * (dp - delta[:, None])
    if SCORE_MOD is not None:
        live = x != float("-inf")
        if SINKS is not None:
            SINKS(s * scale, b, h, m, n, ds, live & mask_m[:, None], score_tables, sinks, PASS)
        ds = tl.where(live, SCORE_GRADIENT(s * scale, b, h, m, n, ds, score_tables), 0.0)
    return tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit
def dq_list(
    dq, q, do, lse, delta, k_source, v_source, lists, r, N, scale, unit, b, h, m, mask_m, score_tables, mask_tables, sinks,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, SINKS: tl.constexpr, MASK_MOD: tl.constexpr, PASS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, EDGE: tl.constexpr, SPARSE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """All tiles of one row's list of blocks."""
    TILES: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    row = list_row(lists, b, h, r)
    blocks_ptr = lists[1] + row * lists[4]
    end = tl.load(lists[0] + row) * TILES
    block = tl.load(blocks_ptr, mask=end > 0, other=0)  # the next block's number is asked for one tile ahead
    for i in range(0, end):
        n0 = block * SPARSE_N + (i % TILES) * BLOCK_N
        n_end = tl.minimum((block + 1) * SPARSE_N, N)
        block = tl.load(blocks_ptr + (i + 1) // TILES, mask=i + 1 < end, other=0)
        dq = dq_tile(
            dq, q, do, lse, delta, k_source, v_source, n0, n_end, N, scale, unit, b, h, m, mask_m,
            score_tables, mask_tables, sinks,
            SCORE_MOD, SCORE_GRADIENT, SINKS, MASK_MOD, PASS, D, DV, EDGE, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    return dq


@triton.jit
def attention_dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, partial, full, score_tables, mask_tables, sinks,
    scale, unit, M, N, Hkv, G, tiles_m, shared,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_db, stride_dh, stride_dm, stride_dd,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, SINKS: tl.constexpr, MASK_MOD: tl.constexpr, PASS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    SPARSE: tl.constexpr, HAS_FULL: tl.constexpr, SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries; programs in the forward kernel's order. stride_o* are those of do, stride_d* those of dq."""
    pid = tl.program_id(0)
    g = pid % G
    tile = tiles_m - 1 - (pid // G) % tiles_m
    b = pid // (G * tiles_m) // Hkv
    h_kv = pid // (G * tiles_m) % Hkv
    h = h_kv * G + g

    TILES_M: tl.constexpr = (SPARSE_M + BLOCK_M - 1) // BLOCK_M
    r = tile // TILES_M if SPARSE else 0
    m0 = r * SPARSE_M + (tile % TILES_M) * BLOCK_M if SPARSE else tile * BLOCK_M
    m_end = tl.minimum(M, (r + 1) * SPARSE_M) if SPARSE else M
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = m0 + offs_m < m_end
    b_kv = b // shared
    k_source = source_of(k_ptr, b_kv, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, TMA)
    v_source = source_of(v_ptr, b_kv, h_kv, stride_vb, stride_vh, stride_vn, stride_vd, TMA)
    q_source = source_of(q_ptr, b, h, stride_qb, stride_qh, stride_qm, stride_qd, False)
    do_source = source_of(do_ptr, b, h, stride_ob, stride_oh, stride_om, stride_od, False)
    q = load_rows(q_source, m0, m_end, D, EDGE_M, False, BLOCK_M, BLOCK_D)
    do = load_rows(do_source, m0, m_end, DV, EDGE_M, False, BLOCK_M, BLOCK_DV)
    rows = (b.to(tl.int64) * Hkv * G + h) * M
    lse, delta = load_lse_and_delta(lse_ptr + rows, delta_ptr + rows, m0 + offs_m, m_end, EDGE_M)
    m = tl.minimum(m0 + offs_m, M - 1)[:, None]

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if SPARSE:
        dq = dq_list(
            dq, q, do, lse, delta, k_source, v_source, partial, r, N, scale, unit, b, h, m, mask_m,
            score_tables, mask_tables, sinks,
            SCORE_MOD, SCORE_GRADIENT, SINKS, MASK_MOD, PASS, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION,
            BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
        if HAS_FULL:
            dq = dq_list(
                dq, q, do, lse, delta, k_source, v_source, full, r, N, scale, unit, b, h, m, mask_m,
                score_tables, mask_tables, sinks,
                SCORE_MOD, SCORE_GRADIENT, SINKS, None, PASS, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION,
                BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
    else:
        for n0 in range(0, N // BLOCK_N * BLOCK_N, BLOCK_N):
            dq = dq_tile(
                dq, q, do, lse, delta, k_source, v_source, tl.cast(n0, tl.int32), N, N, scale, unit, b, h, m, mask_m,
                score_tables, mask_tables, sinks,
                SCORE_MOD, SCORE_GRADIENT, SINKS, None, PASS, D, DV, False, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
        if EDGE_N:
            dq = dq_tile(
                dq, q, do, lse, delta, k_source, v_source, tl.cast(N // BLOCK_N * BLOCK_N, tl.int32), N, N,
                scale, unit, b, h, m, mask_m, score_tables, mask_tables, sinks,
                SCORE_MOD, SCORE_GRADIENT, SINKS, None, PASS, D, DV, True, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip

    at = dq_ptr + b.to(tl.int64) * stride_db + h.to(tl.int64) * stride_dh
    at += (m0.to(tl.int64) + offs_m)[:, None] * stride_dm + offs_d[None, :].to(tl.int64) * stride_dd
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask_m[:, None] & (offs_d < D)[None, :])


@triton.jit
def stored_ds(ds_ptr, slot, rows, columns, TMA: tl.constexpr):
    """One head's matrix of a workspace [slots, rows, columns]: ``(descriptor, slot)`` or ``(pointer, stride of rows)``."""
    if TMA:
        return ds_ptr, slot
    else:
        return ds_ptr + slot.to(tl.int64) * rows * columns, columns


@triton.jit
def at_ds(ds, n0, m0, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """Addresses of its tile of keys n0 ... and queries m0 ..."""
    offs_n = n0.to(tl.int64) + tl.arange(0, BLOCK_N)
    return ds[0] + offs_n[:, None] * ds[1] + (m0 + tl.arange(0, BLOCK_M))[None, :]


@triton.jit
def dkdv_tile(
    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0,
    m0, m_end, M, scale, unit, b, h, n, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, MASK_MOD: tl.constexpr, STORE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    EDGE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """What one tile of queries adds to dk and dv; every matrix of scores stands transposed, [keys, queries]."""
    offs_m = tl.arange(0, BLOCK_M)
    q = load_rows(q_source, m0, m_end, D, EDGE, TMA, BLOCK_M, BLOCK_D)
    do = load_rows(do_source, m0, m_end, DV, EDGE, TMA, BLOCK_M, BLOCK_DV)
    lse, delta = load_lse_and_delta(lse_base, delta_base, m0 + offs_m, m_end, EDGE)
    s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    m = (m0 + offs_m)[None, :]
    inside = None
    if EDGE:
        inside = m < m_end
        m = tl.minimum(m, M - 1)
    x = logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, MASK_MOD)
    p = tl.exp2(x * unit - lse[None, :])
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
    ds = p * (dp - delta[None, :])
    if SCORE_MOD is not None:
        ds = tl.where(x != float("-inf"), SCORE_GRADIENT(s * scale, b, h, m, n, ds, score_tables), 0.0)
    ds = ds.to(q.dtype)
    if STORE:
        if TMA:
            ds_sink[0].store([ds_sink[1], n0, m0], ds.reshape([1, BLOCK_N, BLOCK_M]))
        else:
            tl.store(at_ds(ds_sink, n0, m0, BLOCK_N, BLOCK_M), ds)
    dk = tl.dot(ds, q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def dkdv_list(
    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0, lists, r,
    M, scale, unit, b, h, n, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, MASK_MOD: tl.constexpr, STORE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    EDGE: tl.constexpr, SPARSE_M: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """All tiles of one row's list of blocks of queries."""
    TILES: tl.constexpr = (SPARSE_M + BLOCK_M - 1) // BLOCK_M
    row = list_row(lists, b, h, r)
    blocks_ptr = lists[1] + row * lists[4]
    end = tl.load(lists[0] + row) * TILES
    block = tl.load(blocks_ptr, mask=end > 0, other=0)
    for i in range(0, end):
        m0 = block * SPARSE_M + (i % TILES) * BLOCK_M
        m_end = tl.minimum((block + 1) * SPARSE_M, M)
        block = tl.load(blocks_ptr + (i + 1) // TILES, mask=i + 1 < end, other=0)
        dk, dv = dkdv_tile(
            dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0,
            m0, m_end, M, scale, unit, b, h, n, score_tables, mask_tables,
            SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, D, DV, EDGE, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    return dk, dv


@triton.jit
def attention_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, ds_ptr, partial, full, score_tables, mask_tables,
    scale, unit, M, N, Hkv, G, tiles_n, batches, first, ds_rows, ds_columns,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, MASK_MOD: tl.constexpr, STORE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    SPARSE: tl.constexpr, HAS_FULL: tl.constexpr, SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys, over ``batches`` batch rows (one, or all that share the keys) and G heads. STORE: keep ds
    for ``dq_from_ds_kernel``; (batch, key head) pairs are counted from ``first`` on."""
    pid = tl.program_id(0)
    tile = pid % tiles_n  # the first keys, which a causal mask lets the most queries see, come first
    group = first + pid // tiles_n
    b_kv = group // Hkv
    h_kv = group % Hkv

    TILES_N: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    r = tile // TILES_N if SPARSE else 0
    n0 = r * SPARSE_N + (tile % TILES_N) * BLOCK_N if SPARSE else tile * BLOCK_N
    n_end = tl.minimum(N, (r + 1) * SPARSE_N) if SPARSE else N
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    k_source = source_of(k_ptr, b_kv, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, False)
    v_source = source_of(v_ptr, b_kv, h_kv, stride_vb, stride_vh, stride_vn, stride_vd, False)
    k = load_rows(k_source, n0, n_end, D, EDGE_N, False, BLOCK_N, BLOCK_D)
    v = load_rows(v_source, n0, n_end, DV, EDGE_N, False, BLOCK_N, BLOCK_DV)
    n = tl.minimum(n0 + offs_n, N - 1)[:, None]

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for j in range(0, batches * G):
        b = b_kv * batches + j // G
        h = h_kv * G + j % G
        q_source = source_of(q_ptr, b, h, stride_qb, stride_qh, stride_qm, stride_qd, TMA)
        do_source = source_of(do_ptr, b, h, stride_ob, stride_oh, stride_om, stride_od, TMA)
        lse_base = lse_ptr + (b.to(tl.int64) * Hkv * G + h) * M
        delta_base = delta_ptr + (b.to(tl.int64) * Hkv * G + h) * M
        ds_sink = stored_ds(ds_ptr, (group - first) * batches * G + j, ds_rows, ds_columns, TMA) if STORE else ()
        if SPARSE:
            dk, dv = dkdv_list(
                dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0, partial, r,
                M, scale, unit, b, h, n, score_tables, mask_tables,
                SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, D, DV, EDGE_M, SPARSE_M, TMA, PRECISION,
                BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
            if HAS_FULL:
                dk, dv = dkdv_list(
                    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0, full, r,
                    M, scale, unit, b, h, n, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, D, DV, EDGE_M, SPARSE_M, TMA, PRECISION,
                    BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                )  # fmt: skip
        else:
            for m0 in range(0, M // BLOCK_M * BLOCK_M, BLOCK_M):
                dk, dv = dkdv_tile(
                    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0,
                    tl.cast(m0, tl.int32), M, M, scale, unit, b, h, n, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, D, DV, False, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                )  # fmt: skip
            if EDGE_M:
                dk, dv = dkdv_tile(
                    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, n0,
                    tl.cast(M // BLOCK_M * BLOCK_M, tl.int32), M, M, scale, unit, b, h, n, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, D, DV, True, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                )  # fmt: skip

    mask_n = n0 + offs_n < n_end
    at = dk_ptr + b_kv.to(tl.int64) * stride_dkb + h_kv.to(tl.int64) * stride_dkh
    at += (n0.to(tl.int64) + offs_n)[:, None] * stride_dkn + offs_d[None, :].to(tl.int64) * stride_dkd
    tl.store(at, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask_n[:, None] & (offs_d < D)[None, :])
    at = dv_ptr + b_kv.to(tl.int64) * stride_dvb + h_kv.to(tl.int64) * stride_dvh
    at += (n0.to(tl.int64) + offs_n)[:, None] * stride_dvn + offs_dv[None, :].to(tl.int64) * stride_dvd
    tl.store(at, dv.to(dv_ptr.dtype.element_ty), mask=mask_n[:, None] & (offs_dv < DV)[None, :])


@triton.jit
def dq_from_ds_list(
    dq, ds, k_source, lists, r, b, h, m0, N, D: tl.constexpr, EDGE: tl.constexpr, SPARSE_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq of all tiles of one row's list of blocks."""
    TILES: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    row = list_row(lists, b, h, r)
    blocks_ptr = lists[1] + row * lists[4]
    end = tl.load(lists[0] + row) * TILES
    block = tl.load(blocks_ptr, mask=end > 0, other=0)
    for i in range(0, end):
        n0 = block * SPARSE_N + (i % TILES) * BLOCK_N
        block = tl.load(blocks_ptr + (i + 1) // TILES, mask=i + 1 < end, other=0)
        dq = dq_from_ds_tile(dq, ds, k_source, n0, m0, N, D, EDGE, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D)
    return dq


@triton.jit
def dq_from_ds_tile(
    dq, ds, k_source, n0, m0, N, D: tl.constexpr, EDGE: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq += ds k; what stands in queries that do not exist stays in their rows."""
    k = load_rows(k_source, n0, N, D, EDGE, TMA, BLOCK_N, BLOCK_D)
    if TMA:
        tile = ds[0].load([ds[1], n0, m0]).reshape([BLOCK_N, BLOCK_M])
    else:
        tile = tl.load(at_ds(ds, n0, m0, BLOCK_N, BLOCK_M))
    if EDGE:  # of keys that do not exist anything may stand there
        tile = tl.where((n0 + tl.arange(0, BLOCK_N) < N)[:, None], tile, 0.0).to(k.dtype)
    return tl.dot(tl.trans(tile), k, dq, input_precision=PRECISION)


@triton.jit
def dq_from_ds_kernel(
    ds_ptr, k_ptr, dq_ptr, partial, full, scale, M, N, Hkv, G, tiles_m, batches, first, ds_rows, ds_columns,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_db, stride_dh, stride_dm, stride_dd,
    D: tl.constexpr, DV: tl.constexpr, SPARSE: tl.constexpr, HAS_FULL: tl.constexpr,
    SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries from the ds that ``attention_dkdv_kernel`` stored: one product instead of three."""
    pid = tl.program_id(0)
    tile = tiles_m - 1 - pid % tiles_m
    slot = pid // tiles_m
    group = first + slot // (batches * G)
    j = slot % (batches * G)
    h_kv = group % Hkv
    b_kv = group // Hkv
    b = b_kv * batches + j // G
    h = h_kv * G + j % G

    TILES_M: tl.constexpr = (SPARSE_M + BLOCK_M - 1) // BLOCK_M
    r = tile // TILES_M if SPARSE else 0
    m0 = r * SPARSE_M + (tile % TILES_M) * BLOCK_M if SPARSE else tile * BLOCK_M
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    k_source = source_of(k_ptr, b_kv, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, TMA)
    ds = stored_ds(ds_ptr, slot, ds_rows, ds_columns, TMA)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if SPARSE:
        dq = dq_from_ds_list(
            dq, ds, k_source, partial, r, b, h, m0, N, D, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D
        )
        if HAS_FULL:
            dq = dq_from_ds_list(
                dq, ds, k_source, full, r, b, h, m0, N, D, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D
            )
    else:
        for i in range(0, tl.cdiv(N, BLOCK_N)):
            n0 = tl.cast(i * BLOCK_N, tl.int32)
            dq = dq_from_ds_tile(dq, ds, k_source, n0, m0, N, D, EDGE_N, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D)

    at = dq_ptr + b.to(tl.int64) * stride_db + h.to(tl.int64) * stride_dh
    at += (m0.to(tl.int64) + offs_m)[:, None] * stride_dm + offs_d[None, :].to(tl.int64) * stride_dd
    mask = (m0 + offs_m < M)[:, None] & (offs_d < D)[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask)


def backward(problem, do, dlse, query, key, value, o, lse, needs, need_learned):
    """Launch the backward pass.

    Args:
        problem: the forward pass's ``Problem``.
        do: gradient of o [B, Hq, M, Dv]; dlse: of the lse in base 2 [B, Hq, M], or ``None``.
        query, key, value, o, lse: as the forward pass was given and gave them.
        needs: three bools, whether the gradients of query, key and value are wanted.
        need_learned: whether those of the captured tensors are.

    Returns:
        a list: dq, dk, dv, each in its tensor's dtype and order of strides, ``None`` where not wanted; then the gradients of
        ``problem.score.learned``.
    """
    p = problem
    need_q, need_k, need_v = needs
    mods = {"SCORE_MOD": p.score_mod, "SCORE_GRADIENT": p.score_gradient, "MASK_MOD": p.mask_mod}
    groups, shared = key.shape[0] * p.Hkv, p.shared(key)
    stored = heads_with_stored_ds(p, groups, shared) if need_q and (need_k or need_v) and not need_learned else 0
    on_hopper = (need_k or need_v) and hopper_backward.reason_not(p, query, key, value, do) is None
    rows = hopper_backward.rows_of(p, do, dlse, o, lse) if on_hopper else None
    delta = None
    if not on_hopper or need_learned or (need_q and not stored):
        delta = delta_of(p, do, dlse, o, lse)

    def queries(dq, sinks, PASS):
        meta = p.launch_options("backward_dq")
        tiles_m = p.tiles(p.M, p.SPARSE_M, meta["BLOCK_M"])
        meta["TMA"], (k, v) = sources(meta["TMA"], meta["BLOCK_N"], key, value)
        launch(
            attention_dq_kernel,
            (p.B * p.Hq * tiles_m,),
            query, k, v, do, lse, delta, dq, p.partial, p.full, p.score_tables, p.mask_tables, sinks,
            p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_m, p.shared(key),
            *query.stride(), *key.stride(), *value.stride(), *do.stride(), *dq.stride(),
            outputs=(dq,),
            SINKS=p.score.compiled.sinks if sinks else None, PASS=PASS,
            HAS_FULL=p.full is not None, **mods, **p.static(meta), **meta,
        )  # fmt: skip

    dq = like_strided(query, query.shape) if need_q or need_learned else None
    learned = []
    if need_learned:
        learned = p.score.gradients(sums_of_sinks(p, lambda sinks, PASS: queries(dq, sinks, PASS)))
    elif need_q and not stored:
        queries(dq, (), "add")

    dk = dv = None
    if need_k or need_v:
        dk, dv = like_strided(key, key.shape), like_strided(value, value.shape)
        ds, size = None, (0, 0)
        if stored:
            size = tuple(triton.cdiv(length, DS_MULTIPLE) * DS_MULTIPLE for length in (p.N, p.M))
            ds = torch.empty(min(stored, groups) * shared * p.G, *size, dtype=query.dtype, device=query.device)
        for first in range(0, groups, stored or max(groups, 1)):
            count = min(stored or groups, groups - first)
            if on_hopper:
                hopper_backward.launch_dkdv(p, query, key, value, do, rows, dk, dv, ds, first, count)
            else:
                launch_dkdv(p, query, key, value, do, lse, delta, dk, dv, ds, size, first, count, mods)
            if stored:
                dq_from_ds(p, ds, size, key, dq, first, count, shared)
    return [dq if need_q else None, dk if need_k else None, dv if need_v else None, *learned]


def delta_of(p, do, dlse, o, lse):
    """Launch ``delta_kernel``."""
    delta = torch.empty_like(lse)
    BLOCK_M, BLOCK_DV = 64, max(16, triton.next_power_of_2(p.Dv))
    launch(
        delta_kernel,
        (p.B * p.Hq * triton.cdiv(p.M, BLOCK_M),),
        o, do, dlse, delta, p.M, p.Hq,
        *o.stride(), *do.stride(), *((0, 0, 0) if dlse is None else dlse.stride()),
        HAS_DLSE=dlse is not None, DV=p.Dv, BLOCK_M=BLOCK_M, BLOCK_DV=BLOCK_DV,
    )  # fmt: skip
    return delta


def launch_dkdv(p, query, key, value, do, lse, delta, dk, dv, ds, size, first, count, mods):
    """Launch ``attention_dkdv_kernel`` for ``count`` (batch, key head) pairs from ``first`` on; ds: their workspace."""
    partial, full = p.transposed
    meta = p.launch_options("backward_dkdv")
    tiles_n = p.tiles(p.N, p.SPARSE_N, meta["BLOCK_N"])
    TMA, (q, do_rows) = sources(meta["TMA"], meta["BLOCK_M"], query, do)
    launch(
        attention_dkdv_kernel,
        (count * tiles_n,),
        q, key, value, do_rows, lse, delta, dk, dv, described(ds, TMA, meta),
        partial, full, p.score_tables, p.mask_tables,
        p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_n, p.shared(key), first, *size,
        *query.stride(), *key.stride(), *value.stride(), *do.stride(), *dk.stride(), *dv.stride(),
        outputs=(dk, dv, ds),
        HAS_FULL=full is not None, STORE=ds is not None, **mods, **p.static(meta), **meta | {"TMA": TMA},
    )  # fmt: skip


DS_MULTIPLE = 128  # stored matrices are whole tiles, of any size up to this


def heads_with_stored_ds(problem, groups, shared):
    """How many key heads' ds fit the workspace that the table allows, at most all; 0: dq recomputes everything it needs.

    Stored, the backward pass is five matrix products instead of seven, at the price of writing and reading ds once.
    """
    p = problem
    tiles = [p.launch_options(name) for name in ("backward_dkdv", "backward_dq_from_ds")]
    whole = all(
        o["BLOCK_M"] <= DS_MULTIPLE >= o["BLOCK_N"] and p.SPARSE_M % o["BLOCK_M"] == 0 == p.SPARSE_N % o["BLOCK_N"]
        for o in tiles
    )
    rows, columns = (triton.cdiv(length, DS_MULTIPLE) * DS_MULTIPLE for length in (p.N, p.M))
    head = rows * columns * p.dtype.itemsize * shared * p.G
    return min(groups, p.workspace // head) if whole and head else 0


def described(ds, TMA, options):
    """The workspace as kernels take it."""
    if ds is None or not TMA:
        return ds
    return TensorDescriptor(ds, list(ds.shape), list(ds.stride()), [1, options["BLOCK_N"], options["BLOCK_M"]])


def dq_from_ds(problem, ds, size, key, dq, first, count, shared):
    """Launch the product for the queries of ``count`` key heads from ``first`` on."""
    p = problem
    meta = p.launch_options("backward_dq_from_ds")
    tiles_m = p.tiles(p.M, p.SPARSE_M, meta["BLOCK_M"])
    meta["TMA"], (k,) = sources(meta["TMA"], meta["BLOCK_N"], key)
    launch(
        dq_from_ds_kernel,
        (count * shared * p.G * tiles_m,),
        described(ds, meta["TMA"], meta), k, dq, p.partial, p.full,
        p.scale, p.M, p.N, p.Hkv, p.G, tiles_m, shared, first, *size, *key.stride(), *dq.stride(),
        outputs=(dq,),
        HAS_FULL=p.full is not None, **p.static(meta), **meta,
    )  # fmt: skip


def sums_of_sinks(problem, run):
    """The sums that the score mod's sinks collect, float32, from one run that adds or two that count.

    Two runs: the first measures the largest addend of each sink; in the second every addend becomes a whole number of the
    smallest unit whose sums cannot overflow 64 bits, and integers can be added in any order.
    """
    p = problem
    shapes = p.score.compiled.sink_shapes
    new = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=p.device)  # noqa: E731
    if not shapes:
        run((), "add")
        return []
    if not p.options["DETERMINISTIC"]:
        sums = [new(shape, torch.float32) for shape in shapes]
        run(tuple((s, s, s) for s in sums), "add")
        return sums
    largest = new(len(shapes), torch.float32)
    run(tuple((largest[i],) * 3 for i in range(len(shapes))), "measure")
    addends = max(1, p.B * p.Hq * p.M * p.N)
    # 2^k with largest * addends * 2^k < 2^62; a power of two, so that scaling rounds nothing
    exponent = 62 - addends.bit_length() - torch.frexp(largest).exponent
    unit = torch.exp2(exponent.clamp(-126, 126).float())
    counts = [new(shape, torch.int64) for shape in shapes]
    infinite = [new(shape, torch.float32) for shape in shapes]  # the sum of addends that are not finite
    run(tuple((count, unit[i], infinite[i]) for i, count in enumerate(counts)), "count")
    return [(count.double() / unit[i]).float() + infinite[i] for i, count in enumerate(counts)]
