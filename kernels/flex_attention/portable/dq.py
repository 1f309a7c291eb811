"""Backward pass: two kernels that recompute the probabilities from q, k and lse, and never meet on the same address.

With delta = sum_d o do - dlse (the rows' inner product of probabilities and their gradients, and the lse's own gradient):

    p  = 2^(t log2 e - lse)                the forward pass's probabilities, zero wherever the mask forbids
    dz = p (do v^T - delta)                through the softmax
    ds = f'(s) dz                          through the score mod; zero wherever z is minus infinity, whatever f' is there
    dq = c ds k,   dk = c ds^T q,   dv = p^T do

This kernel owns queries and walks over keys: dq, and the sums of the captured tensors' gradients. ``dkdv``'s owns keys
and walks over the queries of all heads that share them (and over the batch, where keys serve all of it): dk and dv, computed
transposed, so that keys are the rows of every tile. Each sum has one owner and one order: the same bits every time.
"""

import triton
import triton.language as tl

from kernels.common.operator import launch
from kernels.flex_attention.portable.delta import load_lse_and_delta
from kernels.flex_attention.portable.tiles import list_row, load_rows, logits, source_of, tiled


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


def _prepare(p):
    """``(programs, sizes and strides, compile-time arguments)``."""
    meta = p.launch_options("backward_dq")
    tiles_m = p.tiles(p.M, p.SPARSE_M, meta["BLOCK_M"])
    sizes = p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_m, p.shared, *p.strides("query", "key", "value")
    static = {**p.mods(), "HAS_FULL": p.HAS_FULL, **p.static(meta)}
    return (p.B * p.Hq * tiles_m,), sizes, static


def launch_dq(p, x, do, lse, delta, dq, sinks=(), PASS="add"):
    """Launch ``attention_dq_kernel``; sinks: where the sums for captured tensors go, if any."""
    programs, sizes, static = p.remember(_prepare)
    key, value = (tiled(t, static["BLOCK_N"]) if static["TMA"] else t for t in (x.key, x.value))
    launch(
        attention_dq_kernel,
        programs,
        x.query, key, value, do, lse, delta, dq, x.partial, x.full, x.score_tables, x.mask_tables, sinks,
        *sizes, *do.stride(), *dq.stride(),
        SINKS=p.score.scatter if sinks else None, PASS=PASS,
        **static,
    )  # fmt: skip
