"""Forward pass: attention without the matrix of scores, over the blocks that a mask leaves.

One program owns BLOCK_M queries of one head and walks over its tiles of keys. For each tile, with t = f(c q k) and base 2,

    m' = max(m, max_n t log2 e)        running maximum
    p  = 2^(t log2 e - m')
    l  <- l 2^(m - m') + sum_n p       running denominator
    a  <- a 2^(m - m') + p v           running numerator

and at the end o = a / l, lse = m + log2 l. Blocks come in two lists: in full blocks no mask code runs at all.
"""

import triton
import triton.language as tl

from kernels.common.choice import Cost
from kernels.common.gpu import multiprocessors
from kernels.flex_attention import problem
from kernels.flex_attention.portable.tiles import (
    list_row,
    load_rows,
    logits,
    source_of,
    tiles_within,
)


@triton.jit
def attend_tile(
    acc, l, top, q, k_source, v_source, n0, n_end, N, scale, unit, b, h, m, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGE: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    ends=None,
):  # fmt: skip
    """One step of the online softmax: keys n0 ... n0 + BLOCK_N - 1, of which those from n_end on don't count (EDGE). ends:
    keys between these two are seen by all of the tile's queries; a tile that lies between them needs no mask code."""
    offs_n = tl.arange(0, BLOCK_N)
    k = load_rows(k_source, n0, n_end, D, EDGE, TMA, BLOCK_N, BLOCK_D)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    n = (n0 + offs_n)[None, :]
    inside = None
    if EDGE:
        inside = n < n_end
        n = tl.minimum(n, N - 1)  # what a mod captures is read inside its bounds in every tile
    if ends is None:
        x = logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, MASK_MOD)
    else:
        x = logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, None)
        if (n0 < ends[0]) | (n0 + BLOCK_N - 1 > ends[1]):
            x = tl.where(MASK_MOD(b, h, m, n, mask_tables), x, float("-inf"))

    new_top = tl.maximum(top, tl.max(x, 1) * unit)
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen no key yet: 2^(-inf - 0) = 0
    p = tl.exp2(x * unit - shift[:, None])
    alpha = tl.exp2(top - shift)
    l = l * alpha + tl.sum(p, 1)
    v = load_rows(v_source, n0, n_end, DV, EDGE, TMA, BLOCK_N, BLOCK_DV)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
    return acc, l, new_top


@triton.jit
def attend_list(
    acc, l, top, q, k_source, v_source, lists, row, begin, end, N, scale, unit, b, h, m, score_tables, mask_tables,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EDGE: tl.constexpr,
    SPARSE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, first=None, ends=None,
):  # fmt: skip
    """Tiles begin ... end - 1 of one row's list of blocks; first: the number of the first tile's block, if it is known."""
    TILES: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    blocks_ptr = lists[1] + row * lists[4]
    # The next block's number is asked for one tile ahead: loads of keys do not wait for it.
    block = tl.load(blocks_ptr + begin // TILES, mask=begin < end, other=0) if first is None else first
    for i in range(begin, end):
        n0 = block * SPARSE_N + (i % TILES) * BLOCK_N
        n_end = tl.minimum((block + 1) * SPARSE_N, N)
        block = tl.load(blocks_ptr + (i + 1) // TILES, mask=i + 1 < end, other=0)
        acc, l, top = attend_tile(
            acc, l, top, q, k_source, v_source, n0, n_end, N, scale, unit, b, h, m, score_tables, mask_tables,
            SCORE_MOD, MASK_MOD, D, DV, EDGE, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV, ends,
        )  # fmt: skip
    return acc, l, top


@triton.jit
def begin_of_list(lists, b, h, r):
    """``(row, its number of blocks, the first of them or what stands in its place)`` of block row r."""
    row = list_row(lists, b, h, r)
    return row, tl.load(lists[0] + row), tl.load(lists[1] + row * lists[4], mask=lists[4] > 0, other=0)


@triton.jit
def trimmed(lists, row, some, first, m0, m_last, reach, SPARSE_N: tl.constexpr, BLOCK_N: tl.constexpr):
    """``(begin, end)`` of the tiles of a list of ``some`` blocks without those at its ends, in its first block and in its
    last, none of whose keys queries m0 ... m_last reach. Nothing is lost, in whichever order the blocks are."""
    TILES: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    last = tl.load(lists[1] + row * lists[4] + some - 1, mask=some > 0, other=0)
    passed = tl.maximum(m0 - reach[0] - first * SPARSE_N, 0) // BLOCK_N
    reached = tiles_within(m_last + reach[1] - last * SPARSE_N, BLOCK_N)
    return tl.minimum(passed, TILES), tl.where(some > 0, (some - 1) * TILES + tl.minimum(reached, TILES), 0)


@triton.jit
def attention_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, top_ptr, partial, full, score_tables, mask_tables, reach,
    scale, unit, M, N, Hkv, G, tiles_m, shared,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    SPARSE: tl.constexpr, HAS_FULL: tl.constexpr, SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    EARLY: tl.constexpr = False, TRIM: tl.constexpr = 0,
):  # fmt: skip
    """SPARSE: walk over the lists ``partial`` and ``full``; otherwise over all keys. EDGE_M, EDGE_N: some tile of queries
    (keys) reaches past the end or past its block. TMA: k_ptr and v_ptr are descriptors. shared: batch rows that share
    keys. EARLY: ask for the lists before the queries, and leave out a list without blocks: short lists are worth it. TRIM,
    with EARLY: leave out partial blocks' tiles that are out of ``reach``, the mask's ends ``(behind, ahead)``; 2: and the
    mask of those that are wholly inside, where the mask is nothing but its ends."""
    # Heads that share keys run side by side, and rows with the most keys (the last ones, under a causal mask) come first.
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
    offs_dv = tl.arange(0, BLOCK_DV)
    b_kv = b // shared
    k_source = source_of(k_ptr, b_kv, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, TMA)
    v_source = source_of(v_ptr, b_kv, h_kv, stride_vb, stride_vh, stride_vn, stride_vd, TMA)
    if SPARSE and EARLY:
        row, some, first = begin_of_list(partial, b, h, r)
        if HAS_FULL:
            row_full, some_full, first_full = begin_of_list(full, b, h, r)
    q_source = source_of(q_ptr, b, h, stride_qb, stride_qh, stride_qm, stride_qd, False)
    q = load_rows(q_source, m0, m_end, D, EDGE_M, False, BLOCK_M, BLOCK_D)
    m = tl.minimum(m0 + offs_m, M - 1)[:, None]

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    top = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    TILES_N: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    if SPARSE and EARLY:
        begin, end, ends = 0, some * TILES_N, None
        if TRIM:
            m_last = tl.minimum(m0 + BLOCK_M, m_end) - 1
            begin, end = trimmed(partial, row, some, first, m0, m_last, reach, SPARSE_N, BLOCK_N)
            ends = (m_last - reach[0], m0 + reach[1]) if TRIM == 2 else None
            first = None
        acc, l, top = attend_list(
            acc, l, top, q, k_source, v_source, partial, row, begin, end, N, scale, unit, b, h, m, score_tables, mask_tables,
            SCORE_MOD, MASK_MOD, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV, first, ends,
        )  # fmt: skip
        if HAS_FULL:
            if some_full > 0:
                acc, l, top = attend_list(
                    acc, l, top, q, k_source, v_source, full, row_full, 0, some_full * TILES_N, N, scale, unit, b, h, m,
                    score_tables, mask_tables,
                    SCORE_MOD, None, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV, first_full,
                )  # fmt: skip
    elif SPARSE:
        row = list_row(partial, b, h, r)
        acc, l, top = attend_list(
            acc, l, top, q, k_source, v_source, partial, row, 0, tl.load(partial[0] + row) * TILES_N, N, scale, unit, b, h, m,
            score_tables, mask_tables,
            SCORE_MOD, MASK_MOD, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
        if HAS_FULL:
            row = list_row(full, b, h, r)
            acc, l, top = attend_list(
                acc, l, top, q, k_source, v_source, full, row, 0, tl.load(full[0] + row) * TILES_N, N, scale, unit, b, h, m,
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
    else:
        for n0 in range(0, N // BLOCK_N * BLOCK_N, BLOCK_N):
            acc, l, top = attend_tile(
                acc, l, top, q, k_source, v_source, tl.cast(n0, tl.int32), N, N, scale, unit, b, h, m,
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, False, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
        if EDGE_N:
            acc, l, top = attend_tile(
                acc, l, top, q, k_source, v_source, tl.cast(N // BLOCK_N * BLOCK_N, tl.int32), N, N, scale, unit, b, h, m,
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, True, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip

    # A row without any allowed key: o = 0, lse = -inf.
    l = tl.where(l == 0.0, 1.0, l)
    o = acc / l[:, None]
    rows = (b.to(tl.int64) * Hkv * G + h) * M + m0 + offs_m
    mask_m = m0 + offs_m < m_end
    tl.store(lse_ptr + rows, top + tl.log2(l), mask=mask_m)
    if top_ptr is not None:
        tl.store(top_ptr + rows, top, mask=mask_m)
    o_base = o_ptr + b.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    o_at = o_base + (m0.to(tl.int64) + offs_m)[:, None] * stride_om + offs_dv[None, :].to(tl.int64) * stride_od
    tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=mask_m[:, None] & (offs_dv < DV)[None, :])


def is_short(p):
    """Whether the call is short and does not fill the GPU, where the warp-specialised kernel would be faster."""
    return p.short("forward", p.M) and p.B * p.Hq <= multiprocessors(p.device)


def is_narrow(p):
    """Whether the mask lets a query see so few keys side by side, or so few at all, that smaller tiles are faster."""
    return p.remember(_is_narrow)


def _is_narrow(p):
    if not p.sparse or not p.breadth.keys or is_short(p) or p.options.keys() & set(problem.OPTIONS):
        return False  # the caller's tiles need stages and registers of their own
    table = problem.table_options("forward_narrow", p.key, p.device)
    return is_window(p) or max(p.M, p.N) <= table["LONGEST"]


def is_window(p):
    """Whether the mask lets a query see so few keys side by side that smaller tiles are faster."""
    return 0 < p.breadth.keys <= problem.table_options("forward_narrow", p.key, p.device)["WIDEST"]


def reason_not(p):
    """It takes every call."""


def cost(p):
    """Twice the time of the Hopper kernel, which the table rules out where that is not so."""
    return Cost(2, "the warp-specialised kernel is faster")


def launch_options(p):
    """Of its kernel: a short call would be over before TMA has been told."""
    if is_narrow(p):
        table = problem.table_options("forward_narrow", p.key, p.device)
        trim = {"TRIM": min(table["TRIM"], 2 if p.breadth.exact else 1)}
        return p.launch_options("forward_narrow") | {name: table[name] for name in ("maxnreg", "EARLY")} | trim
    options = p.launch_options("forward")
    return options | {"TMA": options["TMA"] and not is_short(p)}


def prepared(p):
    """``(programs, sizes and strides, compile-time arguments)``."""
    meta = launch_options(p)
    tiles_m = p.tiles(p.M, p.SPARSE_M, meta["BLOCK_M"])
    sizes = p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_m, p.shared, *p.strides("query", "key", "value"), *p.outputs[1]
    static = {"SCORE_MOD": p.score_mod, "MASK_MOD": p.mask_mod, "HAS_FULL": p.HAS_FULL, **p.static(meta)}
    return (p.B * p.Hq * tiles_m,), sizes, static
