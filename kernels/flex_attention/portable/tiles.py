"""What every kernel here does with tiles: read rows, apply the mods, find a row's list of blocks."""

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.flex_attention.problem import columns


class Strides(NamedTuple):
    """Of a tensor [B, H, M or N, D]; of one number a row, [B, H, M], 0 for d."""

    b: int
    h: int
    n: int
    d: int = 0


@triton.jit
def load_rows(
    source, row, end, D: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Rows row ... row + BLOCK - 1 of a matrix [., D], zero from ``end`` on (where EDGE) and past D.

    source: ``(pointer, stride of rows, stride of columns)``; with TMA ``(descriptor of [B, H, ., D], b, h)``: one thread asks
    TMA for the whole tile, and no thread computes an address.
    """
    if TMA:
        return source[0].load([source[1], source[2], row, 0]).reshape([BLOCK, BLOCK_D])
    else:
        offs_r = row.to(tl.int64) + tl.arange(0, BLOCK)
        offs_d = tl.arange(0, BLOCK_D)
        at = source[0] + offs_r[:, None] * source[1] + offs_d[None, :].to(tl.int64) * source[2]
        if EDGE:
            return tl.load(at, mask=(offs_r < end)[:, None] & (offs_d < D)[None, :], other=0.0)
        elif BLOCK_D != D:
            return tl.load(at, mask=(offs_d < D)[None, :], other=0.0)
        else:
            return tl.load(at)


@triton.jit
def source_of(x, b, h, stride_b, stride_h, stride_r, stride_d, TMA: tl.constexpr):
    """What ``load_rows`` reads of x [B, H, ., D]: the matrix of batch b and head h."""
    if TMA:
        return x, b, h
    else:
        return x + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h, stride_r, stride_d


@triton.jit
def logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr):
    """f(scale s), minus infinity where the mask or ``inside`` forbids. Without a score mod the scale is left to the caller:
    s itself, which costs no instruction."""
    x = s if SCORE_MOD is None else SCORE_MOD(s * scale, b, h, m, n, score_tables)
    if MASK_MOD is not None:
        x = tl.where(MASK_MOD(b, h, m, n, mask_tables), x, float("-inf"))
    if inside is not None:
        x = tl.where(inside, x, float("-inf"))
    return x


@triton.jit
def tiles_within(reach, BLOCK_N: tl.constexpr):
    """How many tiles, side by side from key 0 on, hold keys up to key ``reach``."""
    return (tl.maximum(reach, -1) + BLOCK_N) // BLOCK_N


@triton.jit
def list_row(lists, b, h, r):
    """Where in a pair of lists ``(num_blocks, indices, batch stride, head stride, width)`` block row r of (b, h) lies."""
    return b.to(tl.int64) * lists[2] + h * lists[3] + r


def fits_tma(t):
    """Whether TMA can read a tensor: columns side by side, all else at multiples of 16 bytes."""
    return t.data_ptr() % 16 == 0 and steps_fit_tma(t.shape, t.stride(), t.dtype.itemsize)


@functools.lru_cache(4096)
def steps_fit_tma(shape, strides, itemsize):
    """The same, of sizes and strides alone."""
    steps = [stride * itemsize for stride in strides[:-1]]
    return 0 not in shape and strides[-1] == 1 and all(step % 16 == 0 and step > 0 for step in steps)


def tiled(t, BLOCK):
    """A tensor [B, H, ., D] as TMA reads it in tiles of BLOCK rows."""
    return TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, BLOCK, columns(t.shape[-1])])
