"""Decoding: few queries, many keys. Heads that share keys are packed into one tile, and the keys are split among programs.

With few queries the plain pass has too few programs to fill a GPU, and each reads the keys again for every head that shares
them. Here a tile's rows are (head, query) pairs, so keys are read once; each of S programs attends to its part of the keys
and leaves a normalised o_s and lse_s, and a second, tiny kernel puts the parts together:

    lse = log2 sum_s 2^lse_s,   o = sum_s 2^(lse_s - lse) o_s
"""

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.common.operator import launch
from kernels.flex_attention import plain, problem
from kernels.flex_attention.plain import (
    Axis,
    Mods,
    Strides,
    attend_tile,
    head_of,
    list_row,
    nothing_seen,
    over_list,
    row_of,
)

ROWS = 64  # (head, query) pairs that fit a tile
AT_ONCE = 32  # splits of a row that are loaded at once


@triton.jit
def over_part(state, given, lists, row, begin, end, axis, MASK_MOD: tl.constexpr):
    """``attend_tile`` to tiles begin ... end - 1 of one row's list of blocks."""
    TILES: tl.constexpr = (axis.SPARSE + axis.BLOCK - 1) // axis.BLOCK
    block = tl.load(lists.indices + row * lists.width + begin // TILES, mask=begin < end, other=0)
    return over_list(attend_tile, state, given, lists, row, begin, end, block, axis, MASK_MOD)


@triton.jit
def over_split(state, given, partial, full, place, split, splits, axis, MASK_MOD: tl.constexpr):
    """``attend_tile`` to one of ``splits`` equal parts of all tiles; the two lists of blocks end to end are one list."""
    if partial is None:
        tiles = tl.cdiv(axis.length, axis.BLOCK)
    else:
        TILES: tl.constexpr = (axis.SPARSE + axis.BLOCK - 1) // axis.BLOCK
        row = list_row(partial, *place)
        tiles_partial = tl.load(partial.num_blocks + row) * TILES
        tiles = tiles_partial
        if full is not None:
            row_full = list_row(full, *place)
            tiles += tl.load(full.num_blocks + row_full) * TILES
    share = tl.cdiv(tiles, splits)
    begin = tl.minimum(split * share, tiles)
    end = tl.minimum(begin + share, tiles)
    if partial is None:
        for i in range(begin, end):
            state = attend_tile(*state, tl.cast(i * axis.BLOCK, tl.int32), axis.length, *given, axis.EDGE, None)
    else:
        part = tl.minimum(begin, tiles_partial), tl.minimum(end, tiles_partial)
        state = over_part(state, given, partial, row, *part, axis, MASK_MOD)
        if full is not None:
            part = tl.maximum(begin - tiles_partial, 0), tl.maximum(end - tiles_partial, 0)
            state = over_part(state, given, full, row_full, *part, axis, None)
    return state


@triton.jit
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    top_ptr,
    partial,
    full,
    scores,
    PACK,
    rows_total,
    splits,
    sizes,
    strides,
    SCORE_MOD: tl.constexpr,
    MASK_MOD: tl.constexpr,
    T: tl.constexpr,
):
    """One split of the keys for PACK heads: o [splits, rows, DV], lse and top [splits, rows], rows = (batch, head, query)."""
    pid = tl.program_id(0)
    split = pid % splits
    group = pid // splits  # of PACK heads
    groups = sizes.Hkv * (sizes.G // PACK)
    b = group // groups
    h0 = group % groups * PACK
    h_kv = h0 // sizes.G
    offs_r = tl.arange(0, T.BLOCK_M)
    offs_d = tl.arange(0, T.BLOCK_D)
    offs_dv = tl.arange(0, T.BLOCK_DV)
    mask_r = offs_r < PACK * sizes.M
    h = tl.minimum(h0 + offs_r // sizes.M, h0 + PACK - 1)
    m = offs_r % sizes.M
    at = q_ptr + b.to(tl.int64) * strides.q.b + (h.to(tl.int64) * strides.q.h + m.to(tl.int64) * strides.q.n)[:, None]
    q_at = at + offs_d[None, :].to(tl.int64) * strides.q.d
    q = tl.load(q_at, mask=mask_r[:, None] & (offs_d < T.D)[None, :], other=0.0)
    keys = head_of(k_ptr, b // sizes.shared, h_kv, strides.k, T.TMA)
    values = head_of(v_ptr, b // sizes.shared, h_kv, strides.v, T.TMA)

    acc, l, top = over_split(
        nothing_seen(T),
        (q, keys, values, (b, h[:, None], m[:, None]), scores, sizes, Mods(SCORE_MOD), T),
        partial,
        full,
        (b, h0, 0),
        split,
        splits,
        Axis(sizes.N, T.SPARSE_N, T.BLOCK_N, T.EDGE_N),
        MASK_MOD,
    )
    l = tl.where(l == 0.0, 1.0, l)
    rows = split.to(tl.int64) * rows_total + row_of(b, h, sizes) + m
    tl.store(lse_ptr + rows, top + tl.log2(l), mask=mask_r)
    if top_ptr is not None:
        tl.store(top_ptr + rows, top, mask=mask_r)
    mask = mask_r[:, None] & (offs_dv < T.DV)[None, :]
    tl.store(o_ptr + rows[:, None] * T.DV + offs_dv[None, :], acc / l[:, None], mask=mask)


@triton.jit
def combine_kernel(
    part_ptr,
    lse_part_ptr,
    top_part_ptr,
    o_ptr,
    lse_ptr,
    top_ptr,
    M,
    H,
    rows_total,
    splits,
    strides,
    DV: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):
    """Put the splits of BLOCK_R rows together, in one pass over them: the online softmax once more.

    BLOCK_S splits are loaded before the first is waited for: one after the other, they take a load's time each.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_dv = tl.arange(0, BLOCK_DV)
    mask_r = rows < rows_total
    mask = mask_r[:, None] & (offs_dv < DV)[None, :]
    acc = tl.zeros([BLOCK_R, BLOCK_DV], tl.float32)
    l = tl.zeros([BLOCK_R], tl.float32)
    top = tl.zeros([BLOCK_R], tl.float32) - float("inf")
    largest = top
    for first in range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        at = split.to(tl.int64)[:, None] * rows_total + rows[None, :]
        exists = (split < splits)[:, None] & mask_r[None, :]
        lse = tl.load(lse_part_ptr + at, mask=exists, other=float("-inf"))
        part = tl.load(part_ptr + at[:, :, None] * DV + offs_dv, mask=exists[:, :, None] & (offs_dv < DV), other=0.0)
        new_top = tl.maximum(top, tl.max(lse, 0))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        alpha = tl.exp2(top - shift)
        weight = tl.exp2(lse - shift[None, :])
        acc = acc * alpha[:, None] + tl.sum(part * weight[:, :, None], 0)
        l = l * alpha + tl.sum(weight, 0)
        top = new_top
        if top_ptr is not None:
            largest = tl.maximum(largest, tl.max(tl.load(top_part_ptr + at, mask=exists, other=float("-inf")), 0))
    l = tl.where(l == 0.0, 1.0, l)
    tl.store(lse_ptr + rows, top + tl.log2(l), mask=mask_r)
    if top_ptr is not None:
        tl.store(top_ptr + rows, largest, mask=mask_r)
    bh = rows // M
    o_at = o_ptr + (bh // H * strides.b + bh % H * strides.h + rows % M * strides.n)[:, None]
    o_at += offs_dv[None, :].to(tl.int64) * strides.d
    tl.store(o_at, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=mask)


def reason_not(p):
    """Why the call is not decoded, as text, or ``None``."""
    splits, _, reason = p.cached(choose)
    return None if splits else reason


def choose(p):
    """``(splits, heads packed in a tile, reason)``: 0 splits where the plain pass is the better one."""
    # Heads whose lists of blocks differ cannot share a tile.
    pack = p.G if p.list_heads == 1 else 1
    if not 0 < pack * p.M <= ROWS:
        return 0, pack, f"{pack} heads x {p.M} queries do not fit one tile of {ROWS} rows"
    if p.SPARSE_M and p.M > p.SPARSE_M:
        return 0, pack, "the queries lie in several blocks of the mask"
    options = problem.table_options("decoding", p.key, p.device)
    tiles = problem.cdiv(p.N, p.launch_options("decoding")["BLOCK_N"])
    programs = p.B * p.Hq // pack
    splits = max(1, min(options["PROGRAMS"] // max(programs, 1), tiles // options["LEAST_TILES"]))
    if splits == 1 and pack == 1:
        return 0, pack, f"{programs} programs fill the GPU, or {p.N} keys are too few to split"
    return splits, pack, f"{pack} heads x {p.M} queries fit one tile; {programs} tiles, keys in {splits} parts"


def _prepare(p):
    """``(splits, heads in a tile, programs, compile-time arguments, those of ``combine_kernel``)``."""
    splits, pack, _ = p.cached(choose)
    meta = plain.tile_of(p, p.launch_options("decoding") | {"BLOCK_M": problem.columns(pack * p.M)})
    meta |= {"SCORE_MOD": p.score_mod, "MASK_MOD": p.mask_mod}
    combined = {"DV": p.Dv, "BLOCK_DV": problem.columns(p.Dv), "BLOCK_S": min(AT_ONCE, triton.next_power_of_2(splits))}
    combined["BLOCK_R"] = 16 if runtime.interpreted else 1  # rows are few, and a GPU's programs run at the same time
    return splits, pack, (p.B * p.Hq // pack * splits,), meta, combined


def forward(p, x, o, lse, top):
    """The forward pass of a few queries; into o, lse and top, a tensor or ``None``."""
    splits, pack, programs, meta, combined = p.cached(_prepare)
    rows = p.B * p.Hq * p.M
    new = lambda *shape: torch.empty(shape, dtype=torch.float32, device=x.query.device)  # noqa: E731
    parts = new(splits, rows, p.Dv), new(splits, rows), new(splits, rows) if top is not None else None
    tensors = x.query, *plain.keys_read(x, meta["T"]), *parts, x.partial, x.full, plain.scores_of(p, x)
    numbers = pack, rows, splits, plain.sizes_of(p, 1), plain.strides_of(p)
    launch(decode_kernel, programs, *tensors, *numbers, **meta)
    sizes = p.M, p.Hq, rows, splits, Strides(*o.stride())
    launch(combine_kernel, (problem.cdiv(rows, combined["BLOCK_R"]),), *parts, o, lse, top, *sizes, **combined)
