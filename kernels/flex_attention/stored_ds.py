"""ds kept by the keys' kernel for some heads at a time: dq is one product with it then, not three.

dq = c ds k,   ds as ``plain_backward.gradients_of_tile`` has it, transposed, in a workspace [heads, keys, queries]
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.gpu import multiprocessors
from kernels.common.operator import launch
from kernels.flex_attention import plain, plain_backward
from kernels.flex_attention.plain import (
    Axis,
    head_of,
    load_rows,
    over_tiles,
    rows_of_tile,
    store_rows,
    tiled,
)
from kernels.flex_attention.plain_backward import gradients_of_tile, load_delta, load_lse
from kernels.flex_attention.problem import cdiv

LEAST = 64  # queries of a tile that is not cut in half
DS_MULTIPLE = 128  # stored matrices are whole tiles, of any size up to this


class Stored(NamedTuple):
    """A workspace [., keys, queries], read and written by TMA where ``ds`` is its descriptor."""

    ds: Any
    keys: int
    queries: int


@triton.jit
def at_ds(kept, slot, n0, m0, BLOCK_N, BLOCK_M):
    """Addresses of a tile of keys n0 ... and queries m0 ... of one head's matrix."""
    offs_n = n0.to(tl.int64) + tl.arange(0, BLOCK_N)
    base = kept.ds + slot.to(tl.int64) * kept.keys * kept.queries
    return base + offs_n[:, None] * kept.queries + (m0 + tl.arange(0, BLOCK_M))[None, :]


@triton.jit
def store_tile(
    dk, dv, m0, m_end, own, heads, at, kept, scores, sizes, mods, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr
):
    """``plain_backward.dkdv_tile``, and ds to the workspace."""
    k, v, n0 = own
    queries, gradients, lse_at, delta_at, slot = heads
    q = load_rows(queries, m0, m_end, T.D, EDGE, T.TMA, T.BLOCK_M, T.BLOCK_D)
    do = load_rows(gradients, m0, m_end, T.DV, EDGE, T.TMA, T.BLOCK_M, T.BLOCK_DV)
    offs_m = m0 + tl.arange(0, T.BLOCK_M)
    lse, delta = load_lse(lse_at, offs_m, m_end, EDGE), load_delta(delta_at, offs_m, m_end, EDGE)
    dk, dv, ds = gradients_of_tile(
        dk, dv, k, v, q, do, lse, delta, m0, m_end, at, scores, sizes, mods, T, EDGE, MASK_MOD
    )
    if T.TMA:
        kept.ds.store([slot, n0, m0], ds.reshape([1, T.BLOCK_N, T.BLOCK_M]))
    else:
        tl.store(at_ds(kept, slot, n0, m0, T.BLOCK_N, T.BLOCK_M), ds)
    return dk, dv


@triton.jit
def product_tile(dq, n0, n_end, kept, slot, keys, m0, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr):
    """dq += ds k; what is stored in queries that do not exist stays in their rows."""
    k = load_rows(keys, n0, n_end, T.D, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_D)
    if T.TMA:
        ds = kept.ds.load([slot, n0, m0]).reshape([T.BLOCK_N, T.BLOCK_M])
    else:
        ds = tl.load(at_ds(kept, slot, n0, m0, T.BLOCK_N, T.BLOCK_M))
    if EDGE:  # of keys that do not exist anything may be stored
        ds = tl.where((n0 + tl.arange(0, T.BLOCK_N) < n_end)[:, None], ds, 0.0).to(k.dtype)
    return (tl.dot(tl.trans(ds), k, dq, input_precision=T.PRECISION),)


@triton.jit
def dq_from_ds_kernel(kept, k_ptr, dq_ptr, partial, full, split, scale, sizes, k_strides, dq_strides, T: tl.constexpr):
    """dq of BLOCK_M queries from the ds that was stored: one product instead of three.

    split: a ``Split``, of whose heads and queries there is ds, or ``None``: of all.
    """
    pid = tl.program_id(0)
    tile = sizes.tiles - 1 - pid % sizes.tiles
    slot = pid // sizes.tiles
    column = 0
    if split is None:
        head = sizes.first + slot // (sizes.shared * sizes.G)
        j = slot % (sizes.shared * sizes.G)
    else:  # its numbers are given times 16
        head = sizes.first + slot // (split.heads // 16)
        j = split.begin // 16 + slot % (split.heads // 16)
        column = split.band // 16
        if T.SPARSE_M:
            tile += column // T.SPARSE_M * ((T.SPARSE_M + T.BLOCK_M - 1) // T.BLOCK_M)
        else:
            tile += column // T.BLOCK_M
    b_kv, h_kv = head // sizes.Hkv, head % sizes.Hkv
    b, h = b_kv * sizes.shared + j // sizes.G, h_kv * sizes.G + j % sizes.G

    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_D: tl.constexpr = T.BLOCK_D
    r, m0, _ = rows_of_tile(tile, sizes.M, T.SPARSE_M, BLOCK_M)
    (dq,) = over_tiles(
        product_tile,
        (tl.zeros([BLOCK_M, BLOCK_D], tl.float32),),
        (kept, slot, head_of(k_ptr, b_kv, h_kv, k_strides, T.TMA), m0 - column, T),
        partial,
        full,
        (b, h, r),
        Axis(sizes.N, T.SPARSE_N, T.BLOCK_N, T.EDGE_N),
        None,
    )
    store_rows(dq * scale, dq_ptr, b, h, m0, sizes.M, dq_strides, T.D)


def heads(p):
    """How many key heads' ds fit the workspace that the table allows, at most all; 0: dq recomputes everything it needs.

    Stored, the backward pass is five matrix products instead of seven, at the price of writing and reading ds once.
    """
    rows, columns = p.cached(size)
    head = rows * columns * p.dtype.itemsize * p.shared * p.G
    return min(p.Bkv * p.Hkv, p.workspace // head) if whole_tiles(p) and head else 0


def whole_tiles(p):
    """Whether no tile of either kernel goes past its block, or past the workspace."""
    tiles = [p.launch_options(name) for name in ("backward_dkdv", "backward_dq_from_ds")]
    return all(
        o["BLOCK_M"] <= DS_MULTIPLE >= o["BLOCK_N"] and p.SPARSE_M % o["BLOCK_M"] == 0 == p.SPARSE_N % o["BLOCK_N"]
        for o in tiles
    )


def size(p, queries=None):
    """Rows and columns of one head's ds in the workspace, of so many queries or all."""
    return tuple(cdiv(length, DS_MULTIPLE) * DS_MULTIPLE for length in (p.N, p.M if queries is None else queries))


def workspace(p, like, slots=None, queries=None):
    """Memory for ds of as many heads as are kept at a time."""
    slots = p.cached(heads) * p.shared * p.G if slots is None else slots
    return torch.empty((slots, *p.cached(size, queries)), dtype=like.dtype, device=like.device)


def stored(ds, T):
    """The workspace as a kernel with these tiles takes it."""
    tile = [1, T.BLOCK_N, T.BLOCK_M]
    return Stored(TensorDescriptor(ds, list(ds.shape), list(ds.stride()), tile) if T.TMA else ds, *ds.shape[1:])


def options(p, heads, queries):
    """Launch options of the product for so many heads and queries of each: tiles of half as many queries as the table has
    where there would be fewer programs than multiprocessors, and the caller asks for none."""
    options = p.launch_options("backward_dq_from_ds")
    programs = heads * p.tiles(queries, p.SPARSE_M, options["BLOCK_M"])
    if programs < multiprocessors(p.device) and options["BLOCK_M"] > LEAST and "bwd_BLOCK_M" not in p.options:
        options["BLOCK_M"] //= 2
    return options


def _prepare(p, heads, queries):
    """Of so many heads and queries, ``(tiles of queries, compile-time arguments)``."""
    meta = plain.tile_of(p, options(p, heads, queries))
    return p.tiles(queries, p.SPARSE_M, meta["T"].BLOCK_M), meta


def reason_not(p, tma):
    """Why ds is not kept, as text, or ``None``."""
    return None if p.cached(heads) else "ds does not fit the workspace"


def gradients(p, x, outputs, hopper):
    """dq, dk and dv, of as many key heads at a time as ds is kept of; hopper: as of ``plain_backward.gradients``."""
    most, pairs = p.cached(heads), p.Bkv * p.Hkv
    rows = (hopper or plain_backward).rows_of(p, *outputs)
    dq, dk, dv = grads = plain_backward.new_gradients(x)
    ds = workspace(p, x.query)
    for first in range(0, pairs, most):
        count = min(most, pairs - first)
        if hopper is None:
            kept = stored(ds, plain_backward.of_keys(p, rows)[1]["T"])
            plain_backward.launch_dkdv(p, x, rows, dk, dv, store_tile, kept, (first, count))
        else:
            hopper.launch_dkdv(p, x, outputs.do, rows, (dk, dv), ds, (first, count))
        dq_from_ds(p, x, ds, dq, first, count)
    return grads


def dq_from_ds(p, x, ds, dq, first, count, split=None):
    """Launch the product for the queries of ``count`` key heads from ``first`` on; split: a ``Split``, or all of them."""
    heads, queries = (p.shared * p.G, p.M) if split is None else (split.heads, split.stop - split.band)
    tiles, meta = p.cached(_prepare, count * heads, queries)
    T = meta["T"]
    key = tiled(x.key, T.BLOCK_N) if T.TMA else x.key
    tensors = stored(ds, T), key, dq, x.partial, x.full, split and split.given(), p.scale
    strides = plain.Strides(*p.layouts["key"][0]), plain.Strides(*dq.stride())
    launch(dq_from_ds_kernel, (count * heads * tiles,), *tensors, plain.sizes_of(p, tiles, first), *strides, **meta)
