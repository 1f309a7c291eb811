"""The gradients of ``plain``'s attention, on any GPU: what lesson 34 ends in, with strides, grouped heads and every option.

delta = sum_d o do - dlse / ln 2 is a row's mean of the probabilities' gradients, less the gradient of its lse, which, as the
lse, counts in base 2:

    p  = 2^(z log2 e - lse)                the forward pass's probabilities once more; zero where the mask forbids
    dz = p (do v^T - delta)                through the softmax
    ds = f'(s) dz                          through the score mod; zero where z is minus infinity, whatever f' is there
    dq = c ds k,   dk = c ds^T q,   dv = p^T do

One kernel owns queries and visits keys: dq, and the sums that are the gradients of captured tensors. Another owns keys and
visits the queries of all heads that share them (and of all batch rows, where keys serve them all): dk and dv, transposed, so
that a tile's rows are always what the program owns, its columns what it visits. dq, dk and dv each have one owner and one
order: the same bits every time. What is added to a captured tensor's gradient comes from many programs, by atomics; asked for
the same bits, they add integers (``gradients_of_captured``).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.common.operator import launch
from kernels.flex_attention.plain import (
    Axis,
    Mods,
    Strides,
    fits_tma,
    head_of,
    keys_read,
    load_rows,
    logits,
    over_tiles,
    queries_of_program,
    row_of,
    rows_of_tile,
    scores_of,
    sizes_of,
    store_rows,
    strides_of,
    tile_of,
    tiled,
    visited,
)
from kernels.flex_attention.problem import like_strided

# Of every query: its lse and its delta.


@triton.jit
def load_lse(lse_at, m, end, EDGE: tl.constexpr):
    """Of queries m, such that p = 2^(z log2 e - lse) is 0 where there is no row (lse = inf) or no key (z = -inf, lse = 0)."""
    if EDGE:
        lse = tl.load(lse_at + m, mask=m < end, other=float("inf"))
    else:
        lse = tl.load(lse_at + m)
    return tl.where(lse == float("-inf"), 0.0, lse)


@triton.jit
def load_delta(delta_at, m, end, EDGE: tl.constexpr):
    """Of queries m."""
    if EDGE:
        return tl.load(delta_at + m, mask=m < end, other=0.0)
    else:
        return tl.load(delta_at + m)


@triton.jit
def delta_of_tiles(o, do, dlse):
    """sum_d o do - dlse / ln 2, in float32; the kernels' lse counts in base 2."""
    return tl.sum(o.to(tl.float32) * do.to(tl.float32), 1) - dlse * 1.4426950408889634


@triton.jit
def load_dlse(dlse_ptr, b, h, m, M, strides):
    """Of queries m, zero from M on and where there is no tensor."""
    if dlse_ptr is None:
        return 0.0
    else:
        at = dlse_ptr + b.to(tl.int64) * strides.b + h.to(tl.int64) * strides.h + m.to(tl.int64) * strides.n
        return tl.load(at, mask=m < M, other=0.0)


@triton.jit
def delta_of_rows(o_ptr, do_ptr, dlse_ptr, b, h, m0, M, o_strides, do_strides, dlse_strides, DV, BLOCK_M, BLOCK_DV):
    """``delta_of_tiles`` of rows m0 ... m0 + BLOCK_M - 1, zero from M on."""
    o = load_rows(head_of(o_ptr, b, h, o_strides, False), m0, M, DV, True, False, BLOCK_M, BLOCK_DV)
    do = load_rows(head_of(do_ptr, b, h, do_strides, False), m0, M, DV, True, False, BLOCK_M, BLOCK_DV)
    dlse = load_dlse(dlse_ptr, b, h, m0 + tl.arange(0, BLOCK_M), M, dlse_strides)
    return delta_of_tiles(o, do, dlse)


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, dlse_ptr, delta_ptr, M, H, strides, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr
):
    """delta [B, H, M], in float32; strides: those of o, do and dlse."""
    tiles = tl.cdiv(M, BLOCK_M)
    pid = tl.program_id(0)
    m0 = (pid % tiles).to(tl.int64) * BLOCK_M
    bh = (pid // tiles).to(tl.int64)
    delta = delta_of_rows(o_ptr, do_ptr, dlse_ptr, bh // H, bh % H, m0, M, *strides, DV, BLOCK_M, BLOCK_DV)
    offs_m = m0 + tl.arange(0, BLOCK_M)
    tl.store(delta_ptr + bh * M + offs_m, delta, mask=offs_m < M)


# Gradients of queries, and of what the score mod captures.


@triton.jit
def through_mod(dz, s, z, b, h, m, n, counts, scores, targets, mods):
    """ds = f'(s) dz; and into ``targets`` what pairs add to the gradients of captured tensors, those where ``counts``."""
    ds = dz
    if mods.SCORE_MOD is not None:
        live = z != float("-inf")
        score = s * scores.scale
        if mods.SCATTER is not None:
            mods.SCATTER(score, b, h, m, n, dz, live & counts, scores.score_tables, targets, mods.PASS)
        ds = tl.where(live, mods.SCORE_GRADIENT(score, b, h, m, n, dz, scores.score_tables), 0.0)
    return ds


@triton.jit
def dq_tile(
    dq, n0, n_end, rows, keys, values, at, scores, sizes, targets, mods, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr
):
    """What a tile of keys adds to dq; rows: ``(q, do, lse, delta, whether they exist)`` of the queries."""
    q, do, lse, delta, exist = rows
    b, h, m = at
    k = load_rows(keys, n0, n_end, T.D, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_D)
    v = load_rows(values, n0, n_end, T.DV, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_DV)
    s = tl.dot(q, tl.trans(k), input_precision=T.PRECISION)
    n, inside = visited(n0, n_end, sizes.N, T.BLOCK_N, EDGE)
    tables = scores.score_tables, scores.mask_tables
    z = logits(s, scores.scale, b, h, m, n, inside if EDGE else None, *tables, mods.SCORE_MOD, MASK_MOD)
    p = tl.exp2(z * scores.unit - lse[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision=T.PRECISION)
    ds = through_mod(p * (dp - delta[:, None]), s, z, b, h, m, n, exist[:, None], scores, targets, mods)
    return (tl.dot(ds.to(k.dtype), k, dq, input_precision=T.PRECISION),)


@triton.jit
def attention_dq_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    partial,
    full,
    scores,
    targets,
    sizes,
    strides,
    SCORE_MOD: tl.constexpr,
    SCORE_GRADIENT: tl.constexpr,
    SCATTER: tl.constexpr,
    PASS: tl.constexpr,
    MASK_MOD: tl.constexpr,
    T: tl.constexpr,
):
    """dq of BLOCK_M queries, programs in the forward kernel's order. SCATTER, if any, adds to ``targets`` what PASS says."""
    b, h, h_kv, r, m0, m_end = queries_of_program(sizes, T)
    keys = head_of(k_ptr, b // sizes.shared, h_kv, strides.k, T.TMA)
    values = head_of(v_ptr, b // sizes.shared, h_kv, strides.v, T.TMA)
    queries, gradients = head_of(q_ptr, b, h, strides.q, False), head_of(do_ptr, b, h, strides.do, False)
    q = load_rows(queries, m0, m_end, T.D, T.EDGE_M, False, T.BLOCK_M, T.BLOCK_D)
    do = load_rows(gradients, m0, m_end, T.DV, T.EDGE_M, False, T.BLOCK_M, T.BLOCK_DV)
    offs_m = m0 + tl.arange(0, T.BLOCK_M)
    lse = load_lse(lse_ptr + row_of(b, h, sizes), offs_m, m_end, T.EDGE_M)
    delta = load_delta(delta_ptr + row_of(b, h, sizes), offs_m, m_end, T.EDGE_M)
    rows = q, do, lse, delta, offs_m < m_end
    m = tl.minimum(offs_m, sizes.M - 1)[:, None]

    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_D: tl.constexpr = T.BLOCK_D
    (dq,) = over_tiles(
        dq_tile,
        (tl.zeros([BLOCK_M, BLOCK_D], tl.float32),),
        (rows, keys, values, (b, h, m), scores, sizes, targets, Mods(SCORE_MOD, SCORE_GRADIENT, SCATTER, PASS), T),
        partial,
        full,
        (b, h, r),
        Axis(sizes.N, T.SPARSE_N, T.BLOCK_N, T.EDGE_N),
        MASK_MOD,
    )
    store_rows(dq * scores.scale, dq_ptr, b, h, m0, m_end, strides.dq, T.D)


# Gradients of keys and values.


@triton.jit
def dkdv_tile(dk, dv, m0, m_end, own, heads, at, scores, sizes, mods, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr):
    """What a tile of queries adds to dk and dv; all its matrices of scores are [keys, queries].

    own: ``(k, v)``; heads: of the head that is visited q, do, and where its lse and its delta are; at: ``(b, h, n)``.
    """
    k, v = own
    queries, gradients, lse_at, delta_at = heads
    b, h, n = at
    q = load_rows(queries, m0, m_end, T.D, EDGE, T.TMA, T.BLOCK_M, T.BLOCK_D)
    do = load_rows(gradients, m0, m_end, T.DV, EDGE, T.TMA, T.BLOCK_M, T.BLOCK_DV)
    offs_m = m0 + tl.arange(0, T.BLOCK_M)
    lse, delta = load_lse(lse_at, offs_m, m_end, EDGE), load_delta(delta_at, offs_m, m_end, EDGE)
    s = tl.dot(k, tl.trans(q), input_precision=T.PRECISION)
    m, inside = visited(m0, m_end, sizes.M, T.BLOCK_M, EDGE)
    tables = scores.score_tables, scores.mask_tables
    z = logits(s, scores.scale, b, h, m, n, inside if EDGE else None, *tables, mods.SCORE_MOD, MASK_MOD)
    p = tl.exp2(z * scores.unit - lse[None, :])
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision=T.PRECISION)
    dp = tl.dot(v, tl.trans(do), input_precision=T.PRECISION)
    ds = through_mod(p * (dp - delta[None, :]), s, z, b, h, m, n, None, scores, None, mods).to(q.dtype)
    dk = tl.dot(ds, q, dk, input_precision=T.PRECISION)
    return dk, dv


@triton.jit
def attention_dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    partial,
    full,
    scores,
    sizes,
    strides,
    SCORE_MOD: tl.constexpr,
    SCORE_GRADIENT: tl.constexpr,
    MASK_MOD: tl.constexpr,
    T: tl.constexpr,
):
    """dk and dv of BLOCK_N keys, over the batch rows and heads of queries that share them. partial, full: ``Lists`` of blocks
    of queries, or ``None``."""
    BLOCK_N: tl.constexpr = T.BLOCK_N
    BLOCK_D: tl.constexpr = T.BLOCK_D
    BLOCK_DV: tl.constexpr = T.BLOCK_DV
    pid = tl.program_id(0)
    head = pid // sizes.tiles
    b_kv, h_kv = head // sizes.Hkv, head % sizes.Hkv
    # The first keys, which a causal mask lets the most queries see, come first.
    r, n0, n_end = rows_of_tile(pid % sizes.tiles, sizes.N, T.SPARSE_N, BLOCK_N)
    keys, values = head_of(k_ptr, b_kv, h_kv, strides.k, False), head_of(v_ptr, b_kv, h_kv, strides.v, False)
    k = load_rows(keys, n0, n_end, T.D, T.EDGE_N, False, BLOCK_N, BLOCK_D)
    v = load_rows(values, n0, n_end, T.DV, T.EDGE_N, False, BLOCK_N, BLOCK_DV)
    n = tl.minimum(n0 + tl.arange(0, BLOCK_N), sizes.N - 1)[:, None]

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for j in range(0, sizes.shared * sizes.G):
        b = b_kv * sizes.shared + j // sizes.G
        h = h_kv * sizes.G + j % sizes.G
        queries, gradients = head_of(q_ptr, b, h, strides.q, T.TMA), head_of(do_ptr, b, h, strides.do, T.TMA)
        heads = queries, gradients, lse_ptr + row_of(b, h, sizes), delta_ptr + row_of(b, h, sizes)
        dk, dv = over_tiles(
            dkdv_tile,
            (dk, dv),
            ((k, v), heads, (b, h, n), scores, sizes, Mods(SCORE_MOD, SCORE_GRADIENT), T),
            partial,
            full,
            (b, h, r),
            Axis(sizes.M, T.SPARSE_M, T.BLOCK_M, T.EDGE_M),
            MASK_MOD,
        )
    store_rows(dk * scores.scale, dk_ptr, b_kv, h_kv, n0, n_end, strides.dk, T.D)
    store_rows(dv, dv_ptr, b_kv, h_kv, n0, n_end, strides.dv, T.DV)


# Launches.


class Outputs(NamedTuple):
    """Of the forward pass o and the lse, and their gradients; dlse: of the lse in base 2, or ``None``."""

    do: torch.Tensor
    dlse: torch.Tensor | None
    o: torch.Tensor
    lse: torch.Tensor


class Rows(NamedTuple):
    """What the backward pass has of every query's row."""

    do: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor


def strides_of_rows(o, do, dlse):
    """The ``Strides`` of what ``delta_of_rows`` reads."""
    return tuple(None if t is None else Strides(*t.stride()) for t in (o, do, dlse))


def new_gradients(x):
    """Memory for dq, dk and dv."""
    return [like_strided(t, t.shape) for t in x.callers]


def rows_of(p, do, dlse, o, lse):
    """The ``Rows`` of a call: ``delta_kernel``'s delta is [B, Hq, M] in float32."""
    delta, BLOCK_M = torch.empty_like(lse), 64
    programs, tile = -(-p.M // BLOCK_M) * p.B * p.Hq, {"DV": p.Dv, "BLOCK_M": BLOCK_M, "BLOCK_DV": p.BLOCK_DV}
    strides = tuple([None if t is None else Strides(*t.stride()) for t in (o, do, dlse)])
    launch(delta_kernel, (programs,), o, do, dlse, delta, p.M, p.Hq, strides, **tile)
    return Rows(do, lse, delta)


def _of_queries(p):
    """``(grid, sizes, compile-time arguments)`` of the queries' kernel."""
    meta = tile_of(p, p.launch_options("backward_dq")) | p.mods()
    tiles = p.tiles(p.M, p.SPARSE_M, meta["T"].BLOCK_M)
    return (p.B * p.Hq * tiles,), sizes_of(p, tiles), meta


def launch_dq(p, x, rows, dq, targets=(), PASS="add"):
    """Launch ``attention_dq_kernel``; targets: where the sums for captured tensors go, if any."""
    grid, sizes, meta = p.cached(_of_queries)
    tensors = x.query, *keys_read(x, meta["T"]), *rows, dq, x.partial, x.full, scores_of(p, x), targets
    strides = strides_of(p, do=rows.do, dq=dq)
    scatter = p.score.scatter if targets else None
    launch(attention_dq_kernel, grid, *tensors, sizes, strides, SCATTER=scatter, PASS=PASS, **meta)


def gradients_of_captured(p, x, rows, dq):
    """The gradients of the captured tensors, by the queries' kernel; dq comes with them.

    A target is three tensors: the sums, a scale, and the sum of what is not finite. Where the same bits are asked for the
    kernel runs twice: the first run measures the largest addend of each target; in the second every addend becomes a whole
    number of 2^-k, the smallest step whose sums cannot overflow 64 bits, and integers can be added in any order.
    """
    shapes = p.score.target_shapes
    new = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=p.device)  # noqa: E731
    if not shapes or not p.options["DETERMINISTIC"]:
        sums = [new(shape, torch.float32) for shape in shapes]
        launch_dq(p, x, rows, dq, tuple((s, s, s) for s in sums))
    else:
        largest = new(len(shapes), torch.float32)
        launch_dq(p, x, rows, dq, tuple((largest[i],) * 3 for i in range(len(shapes))), "measure")
        addends = max(1, p.B * p.Hq * p.M * p.N)
        # 2^k with largest * addends * 2^k < 2^62; a power of two, so that scaling rounds nothing
        exponent = 62 - addends.bit_length() - torch.frexp(largest).exponent
        unit = torch.exp2(exponent.clamp(-126, 126).float())
        counts = [new(shape, torch.int64) for shape in shapes]
        infinite = [new(shape, torch.float32) for shape in shapes]  # the sum of addends that are not finite
        launch_dq(p, x, rows, dq, tuple((count, unit[i], infinite[i]) for i, count in enumerate(counts)), "count")
        sums = [(count.double() / unit[i]).float() + infinite[i] for i, count in enumerate(counts)]
    return p.score.gradients(x.captured, x.numbers, sums)


def _of_keys(p, by_tma):
    """``(tiles of keys, compile-time arguments)`` of the keys' kernel."""
    options = p.launch_options("backward_dkdv")
    meta = tile_of(p, options | {"TMA": options["TMA"] and by_tma}) | p.mods()
    return p.tiles(p.N, p.SPARSE_N, meta["T"].BLOCK_N), meta


def launch_dkdv(p, x, rows, dk, dv):
    """Launch ``attention_dkdv_kernel``."""
    tiles, meta = p.cached(_of_keys, fits_tma(rows.do))
    query, do, T = x.query, rows.do, meta["T"]
    if T.TMA:
        query, do = tiled(query, T.BLOCK_M), tiled(do, T.BLOCK_M)
    tensors = query, x.key, x.value, do, rows.lse, rows.delta, dk, dv, *x.transposed
    strides = strides_of(p, do=rows.do, dk=dk, dv=dv)
    launch(attention_dkdv_kernel, (p.Bkv * p.Hkv * tiles,), *tensors, scores_of(p, x), sizes_of(p, tiles), strides, **meta)


def reason_not(p):
    """It takes every call."""


def gradients(p, x, outputs, hopper=None, needs=(True, True, True, False)):
    """``[dq, dk, dv, those of captured tensors ...]`` as far as they are needed, ds computed by both kernels.

    hopper: what launches Hopper's kernel of keys (``hopper.backward``), or ``None``: this file's runs. needs: of which
    they are wanted: query, key, value and captured tensors.
    """
    need_q, need_k, need_v, need_captured = needs
    dq = dk = dv = None
    captured = []
    if need_q or need_captured or hopper is None:
        rows = rows_of(p, *outputs)
    if need_q or need_captured:
        dq = like_strided(x.query, x.query.shape)
    if need_captured:
        captured = gradients_of_captured(p, x, rows, dq)
    elif need_q:
        launch_dq(p, x, rows, dq)
    if need_k or need_v:
        if hopper is None:
            dk, dv = (like_strided(t, t.shape) for t in (x.key, x.value))
            launch_dkdv(p, x, rows, dk, dv)
        else:
            dk, dv = hopper.launch_dkdv(p, x, outputs)
    return [dq, dk, dv, *captured]
