"""Sums of dk and dv in parts: several items a tile of keys, or several launches, and one kernel that adds up what they left.

Sums in float32 depend on their order. Here it is fixed by who adds: an item has a place of its own in memory, [64 keys,
columns] in float32; a launch adds to what the launch before it left there, launches of a stream run one after another, and
``sums_kernel`` adds the places of one tile of keys from the first to the last.
"""

import torch
import triton
import triton.language as tl

from kernels.common.operator import launch
from kernels.flex_attention.plain import Strides
from kernels.flex_attention.problem import cdiv
from kernels.flex_attention.problem import columns as columns_of


@triton.jit(do_not_specialize=["N", "splits", "first"])  # N: a 1 would be no tensor, and has no .to
def sums_kernel(
    sums_ptr,
    out_ptr,
    strides,
    scale,
    N,
    Hkv,
    splits,
    first,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_N keys of a pair: the sum of its splits [splits, N, D] from the first to the last, scaled and rounded."""
    tiles = tl.cdiv(N, BLOCK_N)
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    offs_n = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_n < N)[:, None] & (offs_d < D)[None, :]
    at = sums_ptr + pair * splits * N * D + offs_n.to(tl.int64)[:, None] * D + offs_d[None, :]
    total = tl.load(at, mask=mask, other=0.0)
    for _ in range(1, splits):
        at += N.to(tl.int64) * D
        total += tl.load(at, mask=mask, other=0.0)
    b, h = (first + pair) // Hkv, (first + pair) % Hkv
    at = out_ptr + b * strides.b + h * strides.h + offs_n.to(tl.int64)[:, None] * strides.n
    tl.store(at + offs_d.to(tl.int64)[None, :] * strides.d, (total * scale).to(out_ptr.dtype.element_ty), mask=mask)


def sums(units, p, device):
    """Memory for the sums of dk and dv of as many units, float32, contiguous."""
    return [torch.empty((units, p.N, columns), dtype=torch.float32, device=device) for columns in (p.D, p.Dv)]


def bytes_of(p):
    """Of one unit's sums."""
    return p.N * (p.D + p.Dv) * 4


def most(workspace):
    """Bytes that the sums of all units may take beside a workspace of ds, or of dq's sums: an eighth of it."""
    return workspace // 8


def add_up(p, parts, splits, dk, dv, first, count):
    """dk and dv of ``count`` pairs from ``first`` on, of the sums of their units."""
    for x, out, scale, columns in ((parts[0], dk, p.scale, p.D), (parts[1], dv, 1.0, p.Dv)):
        BLOCK_D = columns_of(columns)
        tile = {"D": columns, "BLOCK_D": BLOCK_D, "BLOCK_N": max(1, 2048 // BLOCK_D)}
        programs = (count * cdiv(p.N, tile["BLOCK_N"]),)
        launch(sums_kernel, programs, x, out, Strides(*out.stride()), scale, p.N, p.Hkv, splits, first, **tile)
