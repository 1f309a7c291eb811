"""Sums of dk and dv in parts: several items a tile of keys, or several launches, and one kernel that adds up what they left.

Sums in float32 depend on their order. Here it is fixed by who adds: an item has a place of its own in memory, [64 keys,
columns] in float32; a launch adds to what the launch before it left there, launches of a stream run one after another, and
``sums_kernel`` adds the places of one tile of keys from the first to the last.
"""

import torch
import triton
import triton.language as tl

from kernels.common import gluon as common_gluon
from kernels.common.operator import launch
from kernels.flex_attention.problem import cdiv
from kernels.flex_attention.problem import columns as columns_of

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    @gluon.jit
    def add_rows(x, ptr, unit, n0, N, fresh, D: gl.constexpr):
        """Add x to rows n0 ... of a unit's sums [N, D], or, if they are fresh, write it there."""
        layout: gl.constexpr = x.type.layout
        offs_n = n0 + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
        offs_d = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
        at = ptr + unit.to(gl.int64) * N * D + gl.expand_dims(offs_n.to(gl.int64) * D, 1) + gl.expand_dims(offs_d, 0)
        inside = gl.expand_dims(offs_d < D, 0)
        there = gl.where(fresh > 0, 0, N)
        x += gl.load(at, mask=gl.expand_dims(offs_n < there, 1) & inside, other=0.0)
        gl.store(at, x, mask=gl.expand_dims(offs_n < N, 1) & inside)


@triton.jit(do_not_specialize=["N", "pieces", "first"])  # N: a 1 would be no tensor, and has no .to
def sums_kernel(
    sums_ptr, out_ptr, scale, N, Hkv, pieces, first, stride_b, stride_h, stride_n, stride_d,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_N keys of a pair: the sum of its pieces [pieces, N, D] from the first to the last, scaled and rounded."""
    tiles = tl.cdiv(N, BLOCK_N)
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    offs_n = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_n < N)[:, None] & (offs_d < D)[None, :]
    at = sums_ptr + pair * pieces * N * D + offs_n.to(tl.int64)[:, None] * D + offs_d[None, :]
    total = tl.load(at, mask=mask, other=0.0)
    for _ in range(1, pieces):
        at += N.to(tl.int64) * D
        total += tl.load(at, mask=mask, other=0.0)
    b, h = (first + pair) // Hkv, (first + pair) % Hkv
    at = out_ptr + b * stride_b + h * stride_h + offs_n.to(tl.int64)[:, None] * stride_n
    tl.store(at + offs_d.to(tl.int64)[None, :] * stride_d, (total * scale).to(out_ptr.dtype.element_ty), mask=mask)


def sums(units, p, device):
    """Memory for the sums of dk and dv of as many units, float32, contiguous."""
    return [torch.empty((units, p.N, columns), dtype=torch.float32, device=device) for columns in (p.D, p.Dv)]


def bytes_of(p):
    """Of one unit's sums."""
    return p.N * (p.D + p.Dv) * 4


def most(workspace):
    """Bytes that the sums of all units may take beside a workspace of ds, or of dq's sums: an eighth of it."""
    return workspace // 8


def add_up(p, parts, pieces, dk, dv, first, count):
    """dk and dv of ``count`` pairs from ``first`` on, of the sums of their units."""
    for x, out, scale, columns in ((parts[0], dk, p.scale, p.D), (parts[1], dv, 1.0, p.Dv)):
        BLOCK_D = columns_of(columns)
        BLOCK_N = max(1, 2048 // BLOCK_D)
        launch(
            sums_kernel,
            (count * cdiv(p.N, BLOCK_N),),
            x, out, scale, p.N, p.Hkv, pieces, first, *out.stride(),
            D=columns, BLOCK_D=BLOCK_D, BLOCK_N=BLOCK_N,
        )  # fmt: skip
