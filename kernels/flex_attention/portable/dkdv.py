"""Gradients of keys and values: one program owns keys and walks over the queries of all heads that share them."""

import triton
import triton.language as tl

from kernels.common.operator import launch
from kernels.flex_attention.portable.alone import load_lse_and_sum_delta, rows_alone, store_dq, strides_of_alone
from kernels.flex_attention.portable.delta import load_lse_and_delta
from kernels.flex_attention.portable.stored_ds import at_ds, stored_ds, tiled_ds
from kernels.flex_attention.portable.tiles import fits_tma, list_row, load_rows, logits, source_of, tiled


@triton.jit
def dkdv_tile(
    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0,
    m0, m_end, M, scale, unit, b, h, n, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, MASK_MOD: tl.constexpr, STORE: tl.constexpr, ALONE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    EDGE: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """What one tile of queries adds to dk and dv; every matrix of scores stands transposed, [keys, queries]."""
    offs_m = tl.arange(0, BLOCK_M)
    q = load_rows(q_source, m0, m_end, D, EDGE, TMA, BLOCK_M, BLOCK_D)
    do = load_rows(do_source, m0, m_end, DV, EDGE, TMA, BLOCK_M, BLOCK_DV)
    if ALONE:
        lse, delta = load_lse_and_sum_delta(lse_base, alone, do, m0, m_end, DV, BLOCK_M, BLOCK_DV)
    else:
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
    if ALONE:
        store_dq(ds, k, alone, scale, n0, m0, m_end, D, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D)
    return dk, dv


@triton.jit
def dkdv_list(
    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0, lists, r,
    M, scale, unit, b, h, n, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, MASK_MOD: tl.constexpr, STORE: tl.constexpr, ALONE: tl.constexpr,
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
            dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0,
            m0, m_end, M, scale, unit, b, h, n, score_tables, mask_tables,
            SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, ALONE, D, DV, EDGE, TMA, PRECISION,
            BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
    return dk, dv


@triton.jit
def attention_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, ds_ptr, o_ptr, dlse_ptr, dq_ptr,
    partial, full, score_tables, mask_tables,
    scale, unit, M, N, Hkv, G, tiles_n, batches, first, ds_rows, ds_columns,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd, strides_alone,
    SCORE_MOD: tl.constexpr, SCORE_GRADIENT: tl.constexpr, MASK_MOD: tl.constexpr, STORE: tl.constexpr, ALONE: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr,
    SPARSE: tl.constexpr, HAS_FULL: tl.constexpr, SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys, over ``batches`` batch rows (one, or all that share the keys) and G heads. STORE: keep ds
    for ``dq_from_ds_kernel``; (batch, key head) pairs are counted from ``first`` on. ALONE: these are all keys;
    delta and dq are made here, see ``alone``."""
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
        delta_base = lse_base if ALONE else delta_ptr + (b.to(tl.int64) * Hkv * G + h) * M
        ds_sink = stored_ds(ds_ptr, (group - first) * batches * G + j, ds_rows, ds_columns, TMA) if STORE else ()
        alone = rows_alone(o_ptr, dlse_ptr, dq_ptr, strides_alone, b, h, N) if ALONE else ()
        if SPARSE:
            dk, dv = dkdv_list(
                dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0, partial, r,
                M, scale, unit, b, h, n, score_tables, mask_tables,
                SCORE_MOD, SCORE_GRADIENT, MASK_MOD, STORE, ALONE, D, DV, EDGE_M, SPARSE_M, TMA, PRECISION,
                BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
            if HAS_FULL:
                dk, dv = dkdv_list(
                    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0, full, r,
                    M, scale, unit, b, h, n, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, ALONE, D, DV, EDGE_M, SPARSE_M, TMA, PRECISION,
                    BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                )  # fmt: skip
        else:
            for m0 in range(0, M // BLOCK_M * BLOCK_M, BLOCK_M):
                dk, dv = dkdv_tile(
                    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0,
                    tl.cast(m0, tl.int32), M, M, scale, unit, b, h, n, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, ALONE, D, DV, False, TMA, PRECISION,
                    BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                )  # fmt: skip
            if EDGE_M:
                dk, dv = dkdv_tile(
                    dk, dv, k, v, q_source, do_source, lse_base, delta_base, ds_sink, alone, n0,
                    tl.cast(M // BLOCK_M * BLOCK_M, tl.int32), M, M, scale, unit, b, h, n, score_tables, mask_tables,
                    SCORE_MOD, SCORE_GRADIENT, None, STORE, ALONE, D, DV, True, TMA, PRECISION,
                    BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
                )  # fmt: skip

    mask_n = n0 + offs_n < n_end
    at = dk_ptr + b_kv.to(tl.int64) * stride_dkb + h_kv.to(tl.int64) * stride_dkh
    at += (n0.to(tl.int64) + offs_n)[:, None] * stride_dkn + offs_d[None, :].to(tl.int64) * stride_dkd
    tl.store(at, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask_n[:, None] & (offs_d < D)[None, :])
    at = dv_ptr + b_kv.to(tl.int64) * stride_dvb + h_kv.to(tl.int64) * stride_dvh
    at += (n0.to(tl.int64) + offs_n)[:, None] * stride_dvn + offs_dv[None, :].to(tl.int64) * stride_dvd
    tl.store(at, dv.to(dv_ptr.dtype.element_ty), mask=mask_n[:, None] & (offs_dv < DV)[None, :])


def _prepare(p, TMA, STORE, ALONE):
    """``(tiles of keys, sizes, strides, compile-time arguments)``."""
    meta = p.launch_options("backward_dkdv") | {"TMA": TMA}
    tiles_n = p.tiles(p.N, p.SPARSE_N, meta["BLOCK_N"])
    static = {"STORE": STORE, "ALONE": ALONE, **p.mods(), "HAS_FULL": p.HAS_FULL, **p.static(meta)}
    sizes = p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_n, p.shared
    return tiles_n, sizes, p.strides("query", "key", "value"), static


def _wants_tma(p):
    return p.launch_options("backward_dkdv")["TMA"]


def launch_dkdv(p, x, do, lse, delta, dk, dv, ds, first, count, o=None, dlse=None, dq=None):
    """Launch ``attention_dkdv_kernel`` for ``count`` (batch, key head) pairs from ``first`` on; ds: their workspace. With o,
    dlse and dq instead of delta: the kernel that makes all gradients."""
    # alone, it would be over before TMA has been told
    TMA = dq is None and p.remember(_wants_tma) and fits_tma(do)
    tiles_n, sizes, strides, meta = p.remember(_prepare, TMA, ds is not None, dq is not None)
    query, gradient, kept = x.query, do, ds
    if TMA:
        query, gradient, kept = tiled(query, meta["BLOCK_M"]), tiled(do, meta["BLOCK_M"]), tiled_ds(ds, meta)
    launch(
        attention_dkdv_kernel,
        (count * tiles_n,),
        query, x.key, x.value, gradient, lse, delta, dk, dv, kept, o, dlse, dq,
        *x.transposed, x.score_tables, x.mask_tables,
        *sizes, first, *((0, 0) if ds is None else ds.shape[1:]), *strides, *do.stride(), *dk.stride(), *dv.stride(),
        strides_of_alone(o, dlse, dq),
        **meta,
    )  # fmt: skip
