"""Tiles of a chunk of tokens: what kernels are compiled for, and rows of one head's tensors, loaded and stored."""

from collections import namedtuple

import triton
import triton.language as tl

from kernels.common.sequences import locate_run

#: What a kernel is compiled for: tokens in a chunk, components in a tile, the formats of numbers. WIDE: 64-bit offsets in a
#: chunk. ONE_RUN: each sequence is one. ROWS: a program's tokens of a chunk. LEVELS: of gates on components. BLOCK_H: heads.
Tile = namedtuple(
    "Tile", "C BLOCK_K BLOCK_V DTYPE PRECISION REVERSE WIDE ONE_RUN ROWS LEVELS BLOCK_H", defaults=(None,) * 10
)

#: Of q and v, and how many heads of q share one of k, of v.
Sizes = namedtuple("Sizes", "T H K V heads_k heads_v")

#: How many runs there are, and the tokens in each.
Runs = namedtuple("Runs", "count size")

#: Of packed sequences: ``cu_seqlens``, and the sequence of each run and of each chunk.
Packing = namedtuple("Packing", "cu runs chunks", defaults=(None,) * 3)

#: What the gates come to in every chunk; what is not there is ``None``.
#: One gate a token: gamma, resets, from_start, to_end [chunks, H, C] and chunk_decay [chunks, H].
#: A gate for every key component: gamma [B, T, H, K] and chunk_decay [chunks, H, K], scores [B, T, H, C] and the rest that
#: rounding them left.
Decays = namedtuple("Decays", "gamma resets from_start to_end chunk_decay scores rest", defaults=(None,) * 7)

#: The states that a loop begins with, those before each chunk, those at its end; how a run decays them.
States = namedtuple("States", "start each end run_decay", defaults=(None,) * 4)

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
def locate_chunk(r, chunks, T, packing, TILE: tl.constexpr):
    """Where chunk r lies: ``(batch row, its sequence's first token, and length, the chunk's first, chunk_rows)``."""
    n, b, begin, L, first = locate_run(r, chunks, T, TILE.C, packing.chunks, packing.cu, packing.cu is not None)
    return b, begin, L, first, chunk_rows(begin, L, first, TILE.C, TILE.REVERSE)


@triton.jit
def load_rows(at, where, start, size, BLOCK: tl.constexpr, DTYPE: tl.constexpr, WIDE: tl.constexpr = False):
    """A tile [C, BLOCK] of one head: components ``start`` to ``start + BLOCK`` of ``size``, zero where there is none."""
    base, stride_t, stride_d = at
    row, rows, exists = where
    offs_d = start + tl.arange(0, BLOCK)
    mask = exists[:, None] & (offs_d < size)[None, :]
    if WIDE:
        rows = rows.to(tl.int64)
        offs_d = offs_d.to(tl.int64)
    base += row * stride_t
    return tl.load(base + (rows[:, None] * stride_t + offs_d[None, :] * stride_d), mask=mask, other=0.0).to(DTYPE)


@triton.jit
def store_rows(at, where, start, size, values, BLOCK: tl.constexpr):
    """The reverse of ``load_rows``, for a tensor of our own (``own_at``)."""
    base, stride_t, one = at
    row, rows, exists = where
    offs_d = start + tl.arange(0, BLOCK)
    mask = exists[:, None] & (offs_d < size)[None, :]
    base += row * stride_t
    tl.store(base + rows[:, None] * stride_t + offs_d[None, :], values.to(base.dtype.element_ty), mask=mask)
