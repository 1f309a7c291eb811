"""Tiles of a chunk of tokens: rows of one head's tensors, loaded and stored."""

import triton
import triton.language as tl

# Where a tile lies: the chunk's first row is a 64-bit offset, the rows and components counted from there are 32-bit unless a
# stride is so large that WIDE says otherwise. Addresses are what these kernels spend most registers on.


@triton.jit
def chunk_rows(begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr):
    """The chunk that begins with token ``first``: ``(its first row, the rows counted from there, which of them exist)``."""
    offs_c = tl.arange(0, C)
    if REVERSE:
        return begin + L - 1 - first, -offs_c, first + offs_c < L
    return begin + first, offs_c, first + offs_c < L



@triton.jit
def tile_offsets(stride_t, stride_d, rows, offs_d, WIDE: tl.constexpr):
    """Offsets [rows, components] from a tile's first element."""
    if WIDE:
        rows = rows.to(tl.int64)
        offs_d = offs_d.to(tl.int64)
    return rows[:, None] * stride_t + offs_d[None, :] * stride_d



@triton.jit
def load_rows(
    base, stride_t, stride_d, where, start, size, BLOCK: tl.constexpr, DTYPE: tl.constexpr, WIDE: tl.constexpr
):
    """A tile [C, BLOCK] of one head: components ``start`` to ``start + BLOCK`` of ``size``, zero where there is none."""
    row, rows, exists = where
    offs_d = start + tl.arange(0, BLOCK)
    mask = exists[:, None] & (offs_d < size)[None, :]
    base += row * stride_t
    return tl.load(base + tile_offsets(stride_t, stride_d, rows, offs_d, WIDE), mask=mask, other=0.0).to(DTYPE)



@triton.jit
def store_rows(base, stride_t, where, start, size, values, BLOCK: tl.constexpr):
    """The reverse of ``load_rows``, for a tensor of our own, whose last dimension is contiguous."""
    row, rows, exists = where
    offs_d = start + tl.arange(0, BLOCK)
    mask = exists[:, None] & (offs_d < size)[None, :]
    base += row * stride_t
    tl.store(base + rows[:, None] * stride_t + offs_d[None, :], values.to(base.dtype.element_ty), mask=mask)
