"""ds kept by the keys' kernel for some heads at a time: dq is one product with it then, not three."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.gpu import multiprocessors
from kernels.common.operator import launch
from kernels.flex_attention.portable.tiles import list_row, load_rows, source_of, tiled
from kernels.flex_attention.problem import cdiv

LEAST = 64  # queries of a tile that is not cut in half
DS_MULTIPLE = 128  # stored matrices are whole tiles, of any size up to this


@triton.jit
def stored_ds(ds_ptr, slot, rows, columns, TMA: tl.constexpr):
    """One head's matrix of a workspace [slots, rows, columns]: ``(descriptor, slot)`` or ``(pointer, stride of rows)``."""
    if TMA:
        return ds_ptr, slot
    else:
        return ds_ptr + slot.to(tl.int64) * rows * columns, columns


@triton.jit
def at_ds(ds, n0, m0, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """Addresses of its tile of keys n0 ... and queries m0 ..."""
    offs_n = n0.to(tl.int64) + tl.arange(0, BLOCK_N)
    return ds[0] + offs_n[:, None] * ds[1] + (m0 + tl.arange(0, BLOCK_M))[None, :]


@triton.jit
def dq_from_ds_tile(
    dq, ds, k_source, n0, m0, N, D: tl.constexpr, EDGE: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq += ds k; what stands in queries that do not exist stays in their rows."""
    k = load_rows(k_source, n0, N, D, EDGE, TMA, BLOCK_N, BLOCK_D)
    if TMA:
        tile = ds[0].load([ds[1], n0, m0]).reshape([BLOCK_N, BLOCK_M])
    else:
        tile = tl.load(at_ds(ds, n0, m0, BLOCK_N, BLOCK_M))
    if EDGE:  # of keys that do not exist anything may stand there
        tile = tl.where((n0 + tl.arange(0, BLOCK_N) < N)[:, None], tile, 0.0).to(k.dtype)
    return tl.dot(tl.trans(tile), k, dq, input_precision=PRECISION)


@triton.jit
def dq_from_ds_list(
    dq, ds, k_source, lists, r, b, h, m0, N, D: tl.constexpr, EDGE: tl.constexpr, SPARSE_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq of all tiles of one row's list of blocks."""
    TILES: tl.constexpr = (SPARSE_N + BLOCK_N - 1) // BLOCK_N
    row = list_row(lists, b, h, r)
    blocks_ptr = lists[1] + row * lists[4]
    end = tl.load(lists[0] + row) * TILES
    block = tl.load(blocks_ptr, mask=end > 0, other=0)
    for i in range(0, end):
        n0 = block * SPARSE_N + (i % TILES) * BLOCK_N
        block = tl.load(blocks_ptr + (i + 1) // TILES, mask=i + 1 < end, other=0)
        dq = dq_from_ds_tile(dq, ds, k_source, n0, m0, N, D, EDGE, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D)
    return dq


@triton.jit
def dq_from_ds_kernel(
    ds_ptr, k_ptr, dq_ptr, partial, full, split, scale, M, N, Hkv, G, tiles_m, batches, first, ds_rows, ds_columns,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_db, stride_dh, stride_dm, stride_dd,
    D: tl.constexpr, DV: tl.constexpr, SPARSE: tl.constexpr, HAS_FULL: tl.constexpr,
    SPARSE_M: tl.constexpr, SPARSE_N: tl.constexpr,
    EDGE_M: tl.constexpr, EDGE_N: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries from the ds that ``attention_dkdv_kernel`` stored: one product instead of three.

    split: a ``dealing.Split``, of whose heads and queries there is ds, or ``None``: of all.
    """
    pid = tl.program_id(0)
    tile = tiles_m - 1 - pid % tiles_m
    slot = pid // tiles_m
    if split is None:
        group = first + slot // (batches * G)
        j = slot % (batches * G)
    else:
        group = first + slot // (split.heads // 16)
        j = split.begin // 16 + slot % (split.heads // 16)
    h_kv = group % Hkv
    b_kv = group // Hkv
    b = b_kv * batches + j // G
    h = h_kv * G + j % G

    TILES_M: tl.constexpr = (SPARSE_M + BLOCK_M - 1) // BLOCK_M
    column = 0
    if split is not None:
        column = split.band // 16
        tile += column // SPARSE_M * TILES_M if SPARSE else column // BLOCK_M
    r = tile // TILES_M if SPARSE else 0
    m0 = r * SPARSE_M + (tile % TILES_M) * BLOCK_M if SPARSE else tile * BLOCK_M
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    k_source = source_of(k_ptr, b_kv, h_kv, stride_kb, stride_kh, stride_kn, stride_kd, TMA)
    ds = stored_ds(ds_ptr, slot, ds_rows, ds_columns, TMA)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if SPARSE:
        dq = dq_from_ds_list(
            dq, ds, k_source, partial, r, b, h, m0 - column, N, D, EDGE_N, SPARSE_N, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D
        )
        if HAS_FULL:
            dq = dq_from_ds_list(
                dq, ds, k_source, full, r, b, h, m0 - column, N, D, EDGE_N, SPARSE_N, TMA, PRECISION,
                BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip
    else:
        for i in range(0, tl.cdiv(N, BLOCK_N)):
            n0 = tl.cast(i * BLOCK_N, tl.int32)
            dq = dq_from_ds_tile(
                dq, ds, k_source, n0, m0 - column, N, D, EDGE_N, TMA, PRECISION, BLOCK_M, BLOCK_N, BLOCK_D
            )

    at = dq_ptr + b.to(tl.int64) * stride_db + h.to(tl.int64) * stride_dh
    at += (m0.to(tl.int64) + offs_m)[:, None] * stride_dm + offs_d[None, :].to(tl.int64) * stride_dd
    mask = (m0 + offs_m < M)[:, None] & (offs_d < D)[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask)


def heads(p):
    """How many key heads' ds fit the workspace that the table allows, at most all; 0: dq recomputes everything it needs.

    Stored, the backward pass is five matrix products instead of seven, at the price of writing and reading ds once.
    """
    rows, columns = p.remember(size)
    head = rows * columns * p.dtype.itemsize * p.shared * p.G
    return min(p.Bkv * p.Hkv, p.workspace // head) if whole_tiles(p) and head else 0


def whole_tiles(p):
    """Whether no tile of either kernel reaches past its block, or past the workspace."""
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
    slots = p.remember(heads) * p.shared * p.G if slots is None else slots
    return torch.empty((slots, *p.remember(size, queries)), dtype=like.dtype, device=like.device)


def tiled_ds(ds, meta):
    """The workspace as TMA moves its tiles, ``None`` of ``None``."""
    if ds is None:
        return None
    return TensorDescriptor(ds, list(ds.shape), list(ds.stride()), [1, meta["BLOCK_N"], meta["BLOCK_M"]])


def options(p, heads, queries):
    """Launch options of the product for so many heads and queries of each: tiles of half as many queries as the table has
    where there would be fewer programs than multiprocessors, and the caller asks for none."""
    options = p.launch_options("backward_dq_from_ds")
    programs = heads * p.tiles(queries, p.SPARSE_M, options["BLOCK_M"])
    if programs < multiprocessors(p.device) and options["BLOCK_M"] > LEAST and "bwd_BLOCK_M" not in p.options:
        options["BLOCK_M"] //= 2
    return options


def _prepare(p, heads, queries):
    """Of so many heads and queries, ``(tiles of queries, sizes, compile-time arguments)``."""
    meta = options(p, heads, queries)
    tiles_m = p.tiles(queries, p.SPARSE_M, meta["BLOCK_M"])
    sizes = p.scale, p.M, p.N, p.Hkv, p.G, tiles_m, p.shared
    return tiles_m, sizes, {"HAS_FULL": p.HAS_FULL, **p.static(meta)}


def dq_from_ds(p, x, ds, dq, first, count, split=None):
    """Launch the product for the queries of ``count`` key heads from ``first`` on; split: a ``Split``, or all of them."""
    heads, queries = (p.shared * p.G, p.M) if split is None else (split.heads, split.stop - split.band)
    tiles_m, sizes, meta = p.remember(_prepare, count * heads, queries)
    kept, key = (tiled_ds(ds, meta), tiled(x.key, meta["BLOCK_N"])) if meta["TMA"] else (ds, x.key)
    launch(
        dq_from_ds_kernel,
        (count * heads * tiles_m,),
        kept, key, dq, x.partial, x.full, split and split.given(), *sizes, first, *ds.shape[1:], *p.strides("key"),
        *dq.stride(),
        **meta,
    )  # fmt: skip
