"""Flex attention on any GPU: what lessons 30 to 33 end in, with strides, grouped heads and every option. Of its gradients
see ``plain_backward``.

A program owns BLOCK_M queries of one head and visits their tiles of keys. Of each, with the logit z = f(c q k) where the mask
allows and minus infinity elsewhere, and in base 2, as all that kernels keep:

    top' = max(top, max_n z log2 e)          running maximum
    p    = 2^(z log2 e - top')
    l   <- l 2^(top - top') + sum_n p        running denominator
    acc <- acc 2^(top - top') + p v          running numerator

and at the end o = acc / l, lse = top + log2 l: the natural logarithm's lse, over ln 2. Of a row that has seen no key top is
minus infinity, and 0 is subtracted in its place.

Columns are visited tile by tile: all of them side by side, or the blocks in a block mask's two lists. In those of ``full``
every pair is allowed, and no mask code runs.
"""

import functools
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.gpu import multiprocessors
from kernels.flex_attention import problem
from kernels.flex_attention.problem import columns, has_edge


class Strides(NamedTuple):
    """Of a tensor [B, H, M or N, D]; of one number a row, [B, H, M], 0 for d."""

    b: int
    h: int
    n: int
    d: int = 0


class Layouts(NamedTuple):
    """The ``Strides`` of query, key, value, and of what else a kernel reads or writes."""

    q: Strides
    k: Strides
    v: Strides
    o: Strides | None = None
    do: Strides | None = None
    dq: Strides | None = None
    dk: Strides | None = None
    dv: Strides | None = None


class Sizes(NamedTuple):
    """M queries, N keys, Hkv heads of keys, each for G heads of queries and ``shared`` batch rows. A launch has a program for
    each of ``tiles`` tiles of a head: of queries, or, in the keys' kernel, of keys."""

    M: int
    N: int
    Hkv: int
    G: int
    shared: int
    tiles: int


class Scores(NamedTuple):
    """What makes logits of products: s is ``scale`` q k, the logit in base 2 ``unit`` times what ``logits`` returns; the
    tables are what the mods capture."""

    scale: float
    unit: float
    score_tables: tuple
    mask_tables: tuple


class Tile(NamedTuple):
    """Compile-time numbers of a kernel. Tiles of BLOCK_M queries and BLOCK_N keys; heads of D and DV columns, filled up with
    zeros to BLOCK_D and BLOCK_DV. SPARSE_M, SPARSE_N: sizes of a mask's blocks, 0 without one. EDGE_M, EDGE_N: whether some
    tile goes past the end or past its block. TMA: whether what is visited is read by Hopper's copy engine (the tensor memory
    accelerator). PRECISION: how float32 is multiplied."""

    D: int
    DV: int
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_D: int
    BLOCK_DV: int
    SPARSE_M: int
    SPARSE_N: int
    EDGE_M: bool
    EDGE_N: bool
    TMA: bool
    PRECISION: str


class Mods(NamedTuple):
    """Functions: the score mod, its derivative, and what adds to the gradients of its captured tensors, each ``None`` where
    there is none; and what the latter does in this run, ``"add"``, ``"measure"`` or ``"count"``."""

    SCORE_MOD: Any
    SCORE_GRADIENT: Any = None
    SCATTER: Any = None
    PASS: Any = None


class Axis(NamedTuple):
    """Of what is visited: how many there are, SPARSE of them in a block, BLOCK in a tile, and EDGE as in ``Tile``."""

    length: Any
    SPARSE: Any
    BLOCK: Any
    EDGE: Any


# Rows of one head, and tiles of them.


@triton.jit
def head_of(x, b, h, strides, TMA: tl.constexpr):
    """What ``load_rows`` reads of x [B, H, ., D]: the matrix of batch row b and head h."""
    if TMA:
        return x, b, h
    else:
        return x + b.to(tl.int64) * strides.b + h.to(tl.int64) * strides.h, strides.n, strides.d


@triton.jit
def load_rows(matrix, row, end, D: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr, BLOCK, BLOCK_D):
    """Rows row ... row + BLOCK - 1 of a matrix [., D], zero from ``end`` on (where EDGE; by TMA, past the tensor's end) and
    past D.

    matrix: ``(pointer, stride of rows, stride of columns)``; with TMA ``(descriptor of [B, H, ., D], b, h)``: one thread asks
    for the whole tile, and no thread computes an address.
    """
    if TMA:
        return matrix[0].load([matrix[1], matrix[2], row, 0]).reshape([BLOCK, BLOCK_D])
    else:
        offs_r = row.to(tl.int64) + tl.arange(0, BLOCK)
        offs_d = tl.arange(0, BLOCK_D)
        at = matrix[0] + offs_r[:, None] * matrix[1] + offs_d[None, :].to(tl.int64) * matrix[2]
        if EDGE:
            return tl.load(at, mask=(offs_r < end)[:, None] & (offs_d < D)[None, :], other=0.0)
        elif BLOCK_D != D:
            return tl.load(at, mask=(offs_d < D)[None, :], other=0.0)
        else:
            return tl.load(at)


@triton.jit
def store_rows(tile, x_ptr, b, h, row, end, strides, D: tl.constexpr):
    """Write rows row ... end - 1 of x [B, H, ., D], those that the tile has."""
    offs_r = tl.arange(0, tile.shape[0])
    offs_d = tl.arange(0, tile.shape[1])
    at = x_ptr + b.to(tl.int64) * strides.b + h.to(tl.int64) * strides.h
    at += (row.to(tl.int64) + offs_r)[:, None] * strides.n + offs_d[None, :].to(tl.int64) * strides.d
    tl.store(at, tile.to(x_ptr.dtype.element_ty), mask=(row + offs_r < end)[:, None] & (offs_d < D)[None, :])


@triton.jit
def row_of(b, h, sizes):
    """The first row of a head of queries in lse, top and delta [B, Hkv G, M]."""
    return (b.to(tl.int64) * sizes.Hkv * sizes.G + h) * sizes.M


# Which rows a program owns, which columns it visits.


@triton.jit
def rows_of_tile(tile, length, SPARSE: tl.constexpr, BLOCK: tl.constexpr):
    """``(r, first, end)``: its block row in the lists, and its rows first ... end - 1, the first BLOCK of them. Tiles never
    cross blocks."""
    if SPARSE:
        TILES: tl.constexpr = (SPARSE + BLOCK - 1) // BLOCK
        r = tile // TILES
        return r, r * SPARSE + (tile % TILES) * BLOCK, tl.minimum(length, (r + 1) * SPARSE)
    else:
        return 0, tile * BLOCK, length


@triton.jit
def queries_of_program(sizes, T):
    """``(b, h, h_kv, r, m0, m_end)``. Heads that share keys run side by side; rows with the most keys (the last ones, under
    a causal mask) come first."""
    pid = tl.program_id(0)
    g = pid % sizes.G
    tile = sizes.tiles - 1 - (pid // sizes.G) % sizes.tiles
    head = pid // (sizes.G * sizes.tiles)
    b, h_kv = head // sizes.Hkv, head % sizes.Hkv
    r, m0, m_end = rows_of_tile(tile, sizes.M, T.SPARSE_M, T.BLOCK_M)
    return b, h_kv * sizes.G + g, h_kv, r, m0, m_end


@triton.jit
def list_row(lists, b, h, r):
    """Where in ``Lists`` (``checks``: num_blocks, indices and their strides) block row r of (b, h) is."""
    return b.to(tl.int64) * lists.stride_b + h * lists.stride_h + r


@triton.jit
def tiles_within(extent, BLOCK_N: tl.constexpr):
    """How many tiles, side by side from key 0 on, hold keys up to key ``extent``."""
    return (tl.maximum(extent, -1) + BLOCK_N) // BLOCK_N


@triton.jit
def over_list(TILE: tl.constexpr, state, given, lists, row, begin, end, block, axis, MASK_MOD: tl.constexpr):
    """``over_tiles`` begin ... end - 1 of one row's list of blocks; ``block`` is the first one's block."""
    TILES: tl.constexpr = (axis.SPARSE + axis.BLOCK - 1) // axis.BLOCK
    for i in range(begin, end):
        first = block * axis.SPARSE + (i % TILES) * axis.BLOCK
        last = tl.minimum((block + 1) * axis.SPARSE, axis.length)  # of a full block, too: a tile may go past its block
        # The next block's number is asked for one tile ahead: loads of the tile do not wait for it.
        block = tl.load(lists.indices + row * lists.width + (i + 1) // TILES, mask=i + 1 < end, other=0)
        state = TILE(*state, first, last, *given, axis.EDGE, MASK_MOD)
    return state


@triton.jit
def over_row(TILE: tl.constexpr, state, given, lists, place, axis, MASK_MOD: tl.constexpr):
    """``over_tiles`` of all blocks in the list of block row r of (b, h); place: ``(b, h, r)``."""
    row = list_row(lists, *place)
    end = tl.load(lists.num_blocks + row) * ((axis.SPARSE + axis.BLOCK - 1) // axis.BLOCK)
    block = tl.load(lists.indices + row * lists.width, mask=end > 0, other=0)
    return over_list(TILE, state, given, lists, row, 0, end, block, axis, MASK_MOD)


@triton.jit
def over_tiles(TILE: tl.constexpr, state, given, partial, full, place, axis, MASK_MOD: tl.constexpr):
    """``state``, what the loop carries, after every tile of columns that is visited: ``TILE(*state, first, end, *given, EDGE,
    MASK_MOD)`` is the next state, of ``given``, what stays, and the tile that begins at column ``first``; columns from
    ``end`` on don't count."""
    if partial is None:
        whole = axis.length // axis.BLOCK * axis.BLOCK
        for first in range(0, whole, axis.BLOCK):
            state = TILE(*state, tl.cast(first, tl.int32), axis.length, *given, False, None)
        if axis.EDGE:
            state = TILE(*state, tl.cast(whole, tl.int32), axis.length, *given, True, None)
    else:
        state = over_row(TILE, state, given, partial, place, axis, MASK_MOD)
        if full is not None:
            state = over_row(TILE, state, given, full, place, axis, None)
    return state


@triton.jit
def visited(first, end, length, BLOCK: tl.constexpr, EDGE: tl.constexpr):
    """``(numbers, inside)`` of a tile's columns, [1, BLOCK]. One past the length has the number of the last one: what a mod
    captures is read inside its bounds in every tile."""
    offs = (first + tl.arange(0, BLOCK))[None, :]
    return tl.minimum(offs, length - 1) if EDGE else offs, offs < end


@triton.jit
def logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr):
    """f(scale s), minus infinity where the mask or ``inside`` forbids. Without a score mod the scale is left to the caller:
    s itself, which costs no instruction."""
    z = s if SCORE_MOD is None else SCORE_MOD(s * scale, b, h, m, n, score_tables)
    if MASK_MOD is not None:
        z = tl.where(MASK_MOD(b, h, m, n, mask_tables), z, float("-inf"))
    if inside is not None:
        z = tl.where(inside, z, float("-inf"))
    return z


# Forward.


@triton.jit
def attend(acc, l, top, z, values, n0, n_end, unit, T, EDGE: tl.constexpr):
    """One step of the online softmax, over a tile's logits."""
    new_top = tl.maximum(top, tl.max(z, 1) * unit)  # ``unit`` is above 0: ``Problem.score_mod`` sees to it
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen no key yet: 2^(-inf - 0) = 0
    p = tl.exp2(z * unit - shift[:, None])
    alpha = tl.exp2(top - shift)
    l = l * alpha + tl.sum(p, 1)
    v = load_rows(values, n0, n_end, T.DV, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_DV)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=T.PRECISION)
    return acc, l, new_top


@triton.jit
def attend_tile(
    acc, l, top, n0, n_end, q, keys, values, at, scores, sizes, mods, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr
):
    """``attend`` to a tile of keys; at: ``(b, h, m)`` of the queries."""
    b, h, m = at
    k = load_rows(keys, n0, n_end, T.D, EDGE, T.TMA, T.BLOCK_N, T.BLOCK_D)
    s = tl.dot(q, tl.trans(k), input_precision=T.PRECISION)
    n, inside = visited(n0, n_end, sizes.N, T.BLOCK_N, EDGE)
    tables = scores.score_tables, scores.mask_tables
    z = logits(s, scores.scale, b, h, m, n, inside if EDGE else None, *tables, mods.SCORE_MOD, MASK_MOD)
    return attend(acc, l, top, z, values, n0, n_end, scores.unit, T, EDGE)


@triton.jit
def nothing_seen(T):
    """``(acc, l, top)`` before the first tile of keys."""
    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_DV: tl.constexpr = T.BLOCK_DV
    top = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    return tl.zeros([BLOCK_M, BLOCK_DV], tl.float32), tl.zeros([BLOCK_M], tl.float32), top


@triton.jit
def store_attention(acc, l, top, o_ptr, lse_ptr, top_ptr, b, h, m0, m_end, sizes, strides, T):
    """o = acc / l and lse; of a row without any allowed key 0 and minus infinity."""
    l = tl.where(l == 0.0, 1.0, l)
    offs_m = m0 + tl.arange(0, T.BLOCK_M)
    rows = row_of(b, h, sizes) + offs_m
    tl.store(lse_ptr + rows, top + tl.log2(l), mask=offs_m < m_end)
    if top_ptr is not None:
        tl.store(top_ptr + rows, top, mask=offs_m < m_end)
    store_rows(acc / l[:, None], o_ptr, b, h, m0, m_end, strides, T.DV)


@triton.jit
def attention_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    top_ptr,
    partial,
    full,
    scores,
    sizes,
    strides,
    SCORE_MOD: tl.constexpr,
    MASK_MOD: tl.constexpr,
    T: tl.constexpr,
):
    """o, lse and, where it is asked for, top (the largest logit) of BLOCK_M queries. partial, full: ``Lists`` of blocks of
    keys, or ``None``; keys and values are descriptors where they are read by TMA."""
    b, h, h_kv, r, m0, m_end = queries_of_program(sizes, T)
    keys = head_of(k_ptr, b // sizes.shared, h_kv, strides.k, T.TMA)
    values = head_of(v_ptr, b // sizes.shared, h_kv, strides.v, T.TMA)
    queries = head_of(q_ptr, b, h, strides.q, False)
    q = load_rows(queries, m0, m_end, T.D, T.EDGE_M, False, T.BLOCK_M, T.BLOCK_D)
    m = tl.minimum(m0 + tl.arange(0, T.BLOCK_M), sizes.M - 1)[:, None]

    state = over_tiles(
        attend_tile,
        nothing_seen(T),
        (q, keys, values, (b, h, m), scores, sizes, Mods(SCORE_MOD), T),
        partial,
        full,
        (b, h, r),
        Axis(sizes.N, T.SPARSE_N, T.BLOCK_N, T.EDGE_N),
        MASK_MOD,
    )
    store_attention(*state, o_ptr, lse_ptr, top_ptr, b, h, m0, m_end, sizes, strides.o, T)


# Launches, for a ``Problem`` and its ``Inputs``.


class Launch(NamedTuple):
    """What a plan knows of a launch: ``kernel[grid]`` and, behind the tensors, ``sizes``, ``strides`` and compile-time
    ``meta``."""

    kernel: Any
    grid: tuple[int]
    sizes: Sizes
    strides: Layouts
    meta: dict


def tile_of(p, options):
    """``{"T": the Tile of these launch options, ...}`` with what Triton takes of them."""
    options, tile = dict(options), {}
    for name in ("BLOCK_M", "BLOCK_N", "TMA"):
        tile[name] = options.pop(name)
    edges = has_edge(p.M, p.SPARSE_M, tile["BLOCK_M"]), has_edge(p.N, p.SPARSE_N, tile["BLOCK_N"])
    heads = {"D": p.D, "DV": p.Dv, "BLOCK_D": columns(p.D), "BLOCK_DV": columns(p.Dv)}
    blocks = {"SPARSE_M": p.SPARSE_M, "SPARSE_N": p.SPARSE_N, "EDGE_M": edges[0], "EDGE_N": edges[1]}
    return {"T": Tile(**heads, **blocks, **tile, PRECISION=p.precision), **options}


def sizes_of(p, tiles):
    """The ``Sizes`` of a launch of so many tiles a head."""
    return Sizes(p.M, p.N, p.Hkv, p.G, p.shared, tiles)


def strides_of(p, **more):
    """The ``Layouts`` of query, key, value and more tensors."""
    of_more = {name: Strides(*t.stride()) for name, t in more.items()}
    return Layouts(*[Strides(*strides) for strides, _ in p.layouts.values()], **of_more)


def scores_of(p, x):
    """The ``Scores`` of a call."""
    return Scores(p.scale, p.unit, x.score_tables, x.mask_tables)


def fits_tma(t):
    """Whether TMA can read a tensor: columns side by side, all else at multiples of 16 bytes."""
    return t.data_ptr() % 16 == 0 and steps_fit_tma(t.shape, t.stride(), t.dtype.itemsize)


@functools.lru_cache(4096)
def steps_fit_tma(shape, strides, itemsize):
    """The same, of sizes and strides alone."""
    steps = [stride * itemsize for stride in strides[:-1]]
    return 0 not in shape and strides[-1] == 1 and all(step % 16 == 0 and step > 0 for step in steps)


def aligned(t):
    """t if TMA can read it, else a copy whose rows begin at multiples of 16 bytes."""
    if fits_tma(t):
        return t
    order = sorted(range(3), key=lambda i: -t.stride(i))
    unit = 16 // t.element_size()
    memory = t.new_empty(*[t.shape[i] for i in order], -(-t.shape[3] // unit) * unit)
    return memory.permute(*[order.index(i) for i in range(3)], 3)[..., : t.shape[3]].copy_(t)


def tiled(t, BLOCK):
    """A tensor [B, H, ., D] as TMA reads it in tiles of BLOCK rows."""
    return TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, BLOCK, columns(t.shape[-1])])


def keys_read(x, T):
    """Key and value as a kernel visits them."""
    return (tiled(x.key, T.BLOCK_N), tiled(x.value, T.BLOCK_N)) if T.TMA else (x.key, x.value)


def is_short(p):
    """Whether the call is short and leaves the GPU idle: then this kernel has less to set up than Hopper's."""
    few = problem.table_options("forward", p.key, p.device).get("SHORT", 0)
    return max(p.M, p.N) <= few and p.B * p.Hq <= multiprocessors(p.device)


def reason_not(p):
    """It takes every call."""


def launch_options(p):
    """Of the forward kernel: a short call would be over before TMA is set up."""
    options = p.launch_options("forward")
    return options | {"TMA": options["TMA"] and not is_short(p)}


def prepared(p, kernel=attention_forward_kernel, options=None):
    """The ``Launch`` of the forward pass, by this kernel or another of its kind."""
    meta = tile_of(p, options or launch_options(p)) | {"SCORE_MOD": p.score_mod, "MASK_MOD": p.mask_mod}
    tiles = p.tiles(p.M, p.SPARSE_M, meta["T"].BLOCK_M)
    strides = strides_of(p)._replace(o=Strides(*p.outputs[1]))
    return Launch(kernel, (p.B * p.Hq * tiles,), sizes_of(p, tiles), strides, meta)
