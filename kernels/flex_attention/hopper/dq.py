"""dq of what the backward pass's kernel left: a product with ds, or the sums that were added up."""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.gpu import multiprocessors
from kernels.common.operator import launch
from kernels.flex_attention import plain
from kernels.flex_attention.plain import (
    Axis,
    Strides,
    head_of,
    list_row,
    load_rows,
    over_tiles,
    rows_of_tile,
    store_rows,
    tiled,
)

LEAST = 64  # queries of a tile that is not cut in half


class Kept(NamedTuple):
    """The descriptor of a workspace [blocks, keys, queries], a row's first block, and the tile's first query in it."""

    ds: Any
    block: Any
    m0: Any


@triton.jit
def product_tile(dq, i, n0, n_end, kept, keys, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr):
    """dq += ds k of the row's i-th tile; what is stored in queries that do not exist stays in their rows."""
    k = load_rows(keys, n0, n_end, T.D, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_D)
    block, row = kept.block, n0
    if T.SPARSE_N:
        block += i // ((T.SPARSE_N + T.BLOCK_N - 1) // T.BLOCK_N)
        row = n0 % T.SPARSE_N
    ds = kept.ds.load([block, row, kept.m0]).reshape([T.BLOCK_N, T.BLOCK_M])
    if EDGE:  # of keys that do not exist anything may be stored
        ds = tl.where((n0 + tl.arange(0, T.BLOCK_N) < n_end)[:, None], ds, 0.0).to(k.dtype)
    return tl.dot(tl.trans(ds), k, dq, input_precision=T.PRECISION), i + 1


@triton.jit(do_not_specialize=["first", "begin", "heads", "band", "blocks"])
def product_kernel(
    ds, k_ptr, dq_ptr, rows, first, begin, heads, band, blocks, scale, sizes, k_strides, dq_strides, T: tl.constexpr
):  # fmt: skip
    """dq = c ds k of BLOCK_M queries: one product instead of three.

    rows: ``visits.Rows`` or ``None``; first: where the launch's pairs of batch row and key head begin; begin, heads, band:
    of a ``visits.Part``, of whose heads and queries there is ds; blocks: of a head in the workspace.
    """
    pid = tl.program_id(0)
    slot = tl.num_programs(0) // sizes.tiles - 1 - pid // sizes.tiles  # the last heads' ds is still in the cache
    head = first + slot // heads
    j = begin + slot % heads
    tile = sizes.tiles - 1 - pid % sizes.tiles
    if T.SPARSE_M:
        tile += band // T.SPARSE_M * ((T.SPARSE_M + T.BLOCK_M - 1) // T.BLOCK_M)
    else:
        tile += band // T.BLOCK_M
    b_kv, h_kv = head // sizes.Hkv, head % sizes.Hkv
    b, h = b_kv * sizes.shared + j // sizes.G, h_kv * sizes.G + j % sizes.G

    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_D: tl.constexpr = T.BLOCK_D
    r, m0, _ = rows_of_tile(tile, sizes.M, T.SPARSE_M, BLOCK_M)
    kept = Kept(ds, slot, m0 - band)
    lists = None
    if T.SPARSE_M:
        lists = rows.lists
        kept = Kept(ds, slot * blocks + tl.load(rows.starts + list_row(lists, b, h, r)), m0 % T.SPARSE_M)
    dq, _ = over_tiles(
        product_tile,
        (tl.zeros([BLOCK_M, BLOCK_D], tl.float32), tl.cast(0, tl.int32)),
        (kept, head_of(k_ptr, b_kv, h_kv, k_strides, T.TMA), T),
        lists,
        None,
        (b, h, r),
        Axis(sizes.N, T.SPARSE_N, T.BLOCK_N, T.EDGE_N),
        None,
    )
    store_rows(dq * scale, dq_ptr, b, h, m0, sizes.M, dq_strides, T.D)


def options(p, heads, queries):
    """Launch options of the product for so many heads and queries of each: tiles of half as many queries as the table has
    where there would be fewer programs than multiprocessors."""
    options = p.launch_options("backward_dq_from_ds")
    programs = heads * p.tiles(queries, p.SPARSE_M, options["BLOCK_M"])
    if programs < multiprocessors(p.device) and options["BLOCK_M"] > LEAST:
        options["BLOCK_M"] //= 2
    return options


def _prepare(p, heads, queries):
    """Of so many heads and queries, ``(tiles of queries, compile-time arguments)``."""
    meta = plain.tile_of(p, options(p, heads, queries))
    return p.tiles(queries, p.SPARSE_M, meta["T"].BLOCK_M), meta


def multiply(p, x, space, dq, pairs, part, rows):
    """Launch the product for the queries of ``pairs``, ``(first, count)``, and of a ``visits.Part``; rows: ``visits.Rows`` or
    ``None``; space: ``backward.Workspace``."""
    first, count = pairs
    tiles, meta = p.cached(_prepare, count * part.heads, part.stop - part.band)
    T, ds = meta["T"], space.ds
    described = TensorDescriptor(ds, list(ds.shape), list(ds.stride()), [1, T.BLOCK_N, T.BLOCK_M])
    key = tiled(x.key, T.BLOCK_N) if T.TMA else x.key
    tensors = described, key, dq, rows, first, part.begin, part.heads, part.band, space.blocks, p.scale
    strides = Strides(*p.layouts["key"][0]), Strides(*dq.stride())
    launch(product_kernel, (count * part.heads * tiles,), *tensors, plain.sizes_of(p, tiles), *strides, **meta)


@triton.jit(do_not_specialize=["Hq", "first", "blocks", "tiles"])
def scaled_kernel(
    sums_ptr,
    counters_ptr,
    dq_ptr,
    strides,
    scale,
    M,
    Hq,
    first,
    blocks,
    tiles,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """dq of WIDTH queries: their sums [blocks, BLOCK_D, WIDTH] scaled, rounded and transposed; zero where nobody came."""
    pid = tl.program_id(0)
    block = pid % blocks
    slot = (pid // blocks).to(tl.int64)
    b, h = (first + slot) // Hq, (first + slot) % Hq
    came = tl.load(counters_ptr + slot * tiles + block * tiles // blocks)
    offs_d, offs_m = tl.arange(0, BLOCK_D), tl.arange(0, WIDTH)
    at = sums_ptr + (slot * blocks + block) * BLOCK_D * WIDTH
    here = (offs_m < tl.where(came > 0, WIDTH, 0))[None, :]
    x = tl.load(at + offs_d[:, None] * WIDTH + offs_m[None, :], mask=here, other=0.0)
    x = tl.trans(x * scale).to(dq_ptr.dtype.element_ty)
    m = block * WIDTH + offs_m
    at = dq_ptr + b * strides.b + h * strides.h + m.to(tl.int64)[:, None] * strides.n
    tl.store(at + offs_d.to(tl.int64)[None, :] * strides.d, x, mask=(m < M)[:, None] & (offs_d < D)[None, :])


def scale(p, space, dq, pairs):
    """Launch the scaling of the sums of dq of ``pairs``, ``(first, count)``."""
    first, count = pairs
    sums, heads, (slots, tiles) = space.sums, p.shared * p.G, space.counters.shape
    numbers = p.scale, p.M, p.Hq, first * heads, space.blocks, tiles
    tile = {"D": p.D, "BLOCK_D": sums.shape[0] // (slots * space.blocks), "WIDTH": sums.shape[1]}
    programs, strides = (count * heads * space.blocks,), Strides(*dq.stride())
    launch(scaled_kernel, programs, sums, space.counters, dq, strides, *numbers, **tile)
