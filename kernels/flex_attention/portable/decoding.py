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
from kernels.common.choice import Cost
from kernels.common.operator import launch
from kernels.flex_attention import problem
from kernels.flex_attention.portable.forward import attend_list, attend_tile
from kernels.flex_attention.portable.tiles import list_row, source_of, tiled

ROWS = 64  # (head, query) pairs that fit a tile
AT_ONCE = 32  # splits of a row that are loaded at once


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, top_ptr, partial, full, score_tables, mask_tables,
    scale, unit, M, N, Hkv, G, PACK, rows_total, splits, shared,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    SPARSE: tl.constexpr, HAS_FULL: tl.constexpr, SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """One split of the keys for PACK heads: o [splits, rows, DV], lse and top [splits, rows], rows = (batch, head, query)."""
    pid = tl.program_id(0)
    split = pid % splits
    group = pid // splits  # of PACK heads
    groups = Hkv * (G // PACK)
    b = group // groups
    h0 = group % groups * PACK
    h_kv = h0 // G
    offs_r = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_dv = tl.arange(0, BLOCK_DV)
    mask_r = offs_r < PACK * M
    h = tl.minimum(h0 + offs_r // M, h0 + PACK - 1)
    m = offs_r % M
    at = q_ptr + b.to(tl.int64) * stride_qb + (h.to(tl.int64) * stride_qh + m.to(tl.int64) * stride_qm)[:, None]
    q = tl.load(at + offs_d[None, :].to(tl.int64) * stride_qd, mask=mask_r[:, None] & (offs_d < D)[None, :], other=0.0)
    k_source = source_of(k_ptr, b // shared, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, TMA)
    v_source = source_of(v_ptr, b // shared, h_kv, stride_vb, stride_vh, stride_vn, stride_vd, TMA)

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    top = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    if SPARSE:
        # The two lists end to end are one list of tiles, cut into equal parts.
        TILES_N: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
        row = list_row(partial, b, h0, 0)
        tiles_partial = tl.load(partial[0] + row) * TILES_N
        tiles = tiles_partial
        if HAS_FULL:
            row_full = list_row(full, b, h0, 0)
            tiles += tl.load(full[0] + row_full) * TILES_N
        share = tl.cdiv(tiles, splits)
        begin = tl.minimum(split * share, tiles)
        end = tl.minimum(begin + share, tiles)
        acc, l, top = attend_list(
            acc, l, top, q, k_source, v_source, partial, row,
            tl.minimum(begin, tiles_partial), tl.minimum(end, tiles_partial), N, scale, unit, b, h[:, None], m[:, None],
            score_tables, mask_tables,
            SCORE_MOD, MASK_MOD, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
        )  # fmt: skip
        if HAS_FULL:
            begin = tl.maximum(begin - tiles_partial, 0)
            end = tl.maximum(end - tiles_partial, 0)
            acc, l, top = attend_list(
                acc, l, top, q, k_source, v_source, full, row_full, begin, end, N, scale, unit, b, h[:, None], m[:, None],
                score_tables, mask_tables,
                SCORE_MOD, None, D, DV, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip
    else:
        tiles = tl.cdiv(N, BLOCK_N)
        share = tl.cdiv(tiles, splits)
        begin = tl.minimum(split * share, tiles)
        for i in range(begin, tl.minimum(begin + share, tiles)):
            acc, l, top = attend_tile(
                acc, l, top, q, k_source, v_source, tl.cast(i * BLOCK_N, tl.int32), N, N,
                scale, unit, b, h[:, None], m[:, None], score_tables, mask_tables,
                SCORE_MOD, None, D, DV, EDGE_N, TMA, PRECISION, BLOCK_N, BLOCK_D, BLOCK_DV,
            )  # fmt: skip

    l = tl.where(l == 0.0, 1.0, l)
    rows = split.to(tl.int64) * rows_total + (b.to(tl.int64) * Hkv * G + h) * M + m
    tl.store(lse_ptr + rows, top + tl.log2(l), mask=mask_r)
    if top_ptr is not None:
        tl.store(top_ptr + rows, top, mask=mask_r)
    mask = mask_r[:, None] & (offs_dv < DV)[None, :]
    tl.store(o_ptr + rows[:, None] * DV + offs_dv[None, :], acc / l[:, None], mask=mask)


@triton.jit
def combine_kernel(
    part_ptr, lse_part_ptr, top_part_ptr, o_ptr, lse_ptr, top_ptr, M, H, rows_total, splits,
    stride_ob, stride_oh, stride_om, stride_od,
    DV: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
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
    o_at = o_ptr + (bh // H * stride_ob + bh % H * stride_oh + rows % M * stride_om)[:, None]
    o_at += offs_dv[None, :].to(tl.int64) * stride_od
    tl.store(o_at, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=mask)


def reason_not(p):
    """Why the call is not decoded, as text, or ``None``."""
    splits, _, reason = p.remember(choose)
    return None if splits else reason


def cost(p):
    """Keys are read once for all heads that share them: where a call can be decoded, nothing is faster."""
    return Cost(0)


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
    """``(splits, programs, sizes and strides, compile-time arguments, those of ``combine_kernel``)``."""
    splits, pack, _ = p.remember(choose)
    meta = p.launch_options("decoding") | {"BLOCK_M": problem.columns(pack * p.M)}
    sizes = p.scale, p.unit, p.M, p.N, p.Hkv, p.G, pack, p.B * p.Hq * p.M, splits, p.shared
    static = {"SCORE_MOD": p.score_mod, "MASK_MOD": p.mask_mod, "HAS_FULL": p.HAS_FULL, **p.static(meta)}
    combined = {
        "DV": p.Dv, "BLOCK_DV": problem.columns(p.Dv), "BLOCK_S": min(AT_ONCE, triton.next_power_of_2(splits)),
        "BLOCK_R": 16 if runtime.interpreted else 1,  # rows are few, and a GPU's programs run at the same time
    }  # fmt: skip
    return splits, (p.B * p.Hq // pack * splits,), (*sizes, *p.strides("query", "key", "value")), static, combined


def forward(p, x, o, lse, top):
    """The forward pass of a few queries; into o, lse and top, a tensor or ``None``."""
    splits, programs, sizes, static, combined = p.remember(_prepare)
    key, value = (tiled(t, static["BLOCK_N"]) if static["TMA"] else t for t in (x.key, x.value))
    rows = p.B * p.Hq * p.M
    new = lambda *shape: torch.empty(shape, dtype=torch.float32, device=x.query.device)  # noqa: E731
    part, lse_part, top_part = new(splits, rows, p.Dv), new(splits, rows), new(splits, rows) if top is not None else None
    launch(
        decode_kernel,
        programs,
        x.query, key, value, part, lse_part, top_part, x.partial, x.full, x.score_tables, x.mask_tables,
        *sizes,
        **static,
    )  # fmt: skip
    launch(
        combine_kernel,
        (problem.cdiv(rows, combined["BLOCK_R"]),),
        part, lse_part, top_part, o, lse, top, p.M, p.Hq, rows, splits, *o.stride(),
        **combined,
    )  # fmt: skip
