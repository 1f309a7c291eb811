"""Masks that let a query see few keys side by side: the plain forward kernel, without what such short lists make dear.

The lists are asked for before the queries, and of the partial blocks at their ends the tiles are left out that are farther
off than the mask lets any of the program's queries see: its extent, ``(behind, ahead)``. Nothing is lost, in whichever order
the blocks are. Where the mask is nothing but these two ends, a tile wholly between them needs no mask code either.
"""

import triton
import triton.language as tl

from kernels.flex_attention import plain, problem
from kernels.flex_attention.plain import (
    Axis,
    Mods,
    attend,
    attend_tile,
    head_of,
    list_row,
    load_rows,
    logits,
    nothing_seen,
    over_list,
    queries_of_program,
    store_attention,
    tiles_within,
    visited,
)


@triton.jit
def list_begin(lists, b, h, r):
    """``(row, its number of blocks, the first of them)`` of block row r; of a list without blocks whatever is there."""
    row = list_row(lists, b, h, r)
    some = tl.load(lists.num_blocks + row)
    return row, some, tl.load(lists.indices + row * lists.width, mask=lists.width > 0, other=0)


@triton.jit
def trimmed(lists, row, some, first, first_seen, last_seen, SPARSE: tl.constexpr, BLOCK: tl.constexpr):
    """``(begin, end)`` of the tiles of a list of ``some`` blocks without those, in its first block and in its last, that end
    before key ``first_seen`` or begin behind ``last_seen``."""
    TILES: tl.constexpr = (SPARSE + BLOCK - 1) // BLOCK
    last = tl.load(lists.indices + row * lists.width + some - 1, mask=some > 0, other=0)
    before = tl.maximum(first_seen - first * SPARSE, 0) // BLOCK
    within = tiles_within(last_seen - last * SPARSE, BLOCK)
    return tl.minimum(before, TILES), tl.where(some > 0, (some - 1) * TILES + tl.minimum(within, TILES), 0)


@triton.jit
def attend_between(
    acc,
    l,
    top,
    n0,
    n_end,
    q,
    keys,
    values,
    at,
    ends,
    scores,
    sizes,
    mods,
    T,
    EDGE: tl.constexpr,
    MASK_MOD: tl.constexpr,
):
    """``attend_tile``, without the mask in a tile whose keys are all between ``ends``, if any: every query sees these."""
    if ends is None or MASK_MOD is None:
        return attend_tile(acc, l, top, n0, n_end, q, keys, values, at, scores, sizes, mods, T, EDGE, MASK_MOD)
    else:
        b, h, m = at
        k = load_rows(keys, n0, n_end, T.D, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision=T.PRECISION)
        n, inside = visited(n0, n_end, sizes.N, T.BLOCK_N, EDGE)
        z = logits(s, scores.scale, b, h, m, n, inside if EDGE else None, scores.score_tables, (), mods.SCORE_MOD, None)
        if (n0 < ends[0]) | (n0 + T.BLOCK_N - 1 > ends[1]):
            z = tl.where(MASK_MOD(b, h, m, n, scores.mask_tables), z, float("-inf"))
        return attend(acc, l, top, z, values, n0, n_end, scores.unit, T, EDGE)


@triton.jit
def over_trimmed(state, given, partial, full, start, start_full, seen, axis, MASK_MOD: tl.constexpr):
    """``attend_between`` to the tiles of two lists; start, start_full: their ``list_begin``; seen: the first and the last key
    that a query sees."""
    TILES: tl.constexpr = (axis.SPARSE + axis.BLOCK - 1) // axis.BLOCK
    row, some, first = start
    begin, end = trimmed(partial, row, some, first, *seen, axis.SPARSE, axis.BLOCK)
    block = tl.load(partial.indices + row * partial.width + begin // TILES, mask=begin < end, other=0)
    state = over_list(attend_between, state, given, partial, row, begin, end, block, axis, MASK_MOD)
    if full is not None:
        row, some, first = start_full
        if some > 0:
            state = over_list(attend_between, state, given, full, row, 0, some * TILES, first, axis, None)
    return state


@triton.jit
def attention_narrow_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    top_ptr,
    partial,
    full,
    scores,
    extent,
    sizes,
    strides,
    SCORE_MOD: tl.constexpr,
    MASK_MOD: tl.constexpr,
    EXACT: tl.constexpr,
    T: tl.constexpr,
):
    """What ``attention_forward_kernel`` makes. extent: ``(behind, ahead)``; EXACT: the mask is nothing but these ends."""
    b, h, h_kv, r, m0, m_end = queries_of_program(sizes, T)
    keys = head_of(k_ptr, b // sizes.shared, h_kv, strides.k, T.TMA)
    values = head_of(v_ptr, b // sizes.shared, h_kv, strides.v, T.TMA)
    start = list_begin(partial, b, h, r)
    start_full = list_begin(full, b, h, r) if full is not None else None
    q = load_rows(head_of(q_ptr, b, h, strides.q, False), m0, m_end, T.D, T.EDGE_M, False, T.BLOCK_M, T.BLOCK_D)
    m = tl.minimum(m0 + tl.arange(0, T.BLOCK_M), sizes.M - 1)[:, None]
    m_last = tl.minimum(m0 + T.BLOCK_M, m_end) - 1
    ends = m_last - extent[0], m0 + extent[1]
    state = over_trimmed(
        nothing_seen(T),
        (q, keys, values, (b, h, m), ends if EXACT else None, scores, sizes, Mods(SCORE_MOD), T),
        partial,
        full,
        start,
        start_full,
        (m0 - extent[0], m_last + extent[1]),
        Axis(sizes.N, T.SPARSE_N, T.BLOCK_N, T.EDGE_N),
        MASK_MOD,
    )
    store_attention(*state, o_ptr, lse_ptr, top_ptr, b, h, m0, m_end, sizes, strides.o, T)


BECAUSE = "the mask leaves a query few keys side by side, and the plain kernel with smaller tiles reads fewer others"


def reason_not(p):
    """Why this kernel is not for the call, as text, or ``None``."""
    if not p.sparse or not p.extent.keys:
        return "no mask is known to leave a query few keys side by side"
    if plain.is_short(p):
        return "the call is short"
    if p.options.keys() & set(problem.OPTIONS):
        return "kernel_options ask for tiles, which need stages and registers of their own"
    most = max(p.M, p.N)
    if not is_window(p) and most > problem.table_options("forward_narrow", p.key, p.device)["LONGEST"]:
        return f"the mask leaves a query too many of {most} keys"
    return None


def is_window(p):
    """Whether the mask lets a query see so few keys side by side that smaller tiles are faster."""
    return 0 < p.extent.keys <= problem.table_options("forward_narrow", p.key, p.device)["WIDEST"]


def launch_options(p):
    """What the table says; TRIM 2: the mask is nothing but its ends, and they are compared in its place."""
    table = problem.table_options("forward_narrow", p.key, p.device)
    trim = {"TRIM": min(table["TRIM"], 2 if p.extent.exact else 1)}
    return p.launch_options("forward_narrow") | {"maxnreg": table["maxnreg"]} | trim


def prepared(p):
    """The ``Launch`` of the forward pass."""
    options = launch_options(p)
    exact = options.pop("TRIM") == 2
    made = plain.prepared(p, attention_narrow_kernel, options)
    return made._replace(meta=made.meta | {"EXACT": exact})
