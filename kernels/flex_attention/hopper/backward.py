"""The backward pass on Hopper GPUs: which calls it takes, how their work is dealt, and its launches.

Programs take items: a tile of keys of one key head, with a share of the heads of queries that read it. A launch makes ds of
as many heads and queries as its workspace holds; where there are several, or several items a tile of keys, dk and dv are sums
of parts. Sums in float32 depend on their order, and each is fixed: an item has a place of its own in memory, a launch adds to
what the launch before it left there, and ``sums_kernel`` adds the places from the first to the last.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.common import gluon as common_gluon
from kernels.common.descriptors import Descriptors
from kernels.common.operator import launch
from kernels.flex_attention import problem
from kernels.flex_attention.hopper import backward_kernel, dq, fit, scheduler, wide_kernel
from kernels.flex_attention.hopper.rows import rows_of
from kernels.flex_attention.hopper.scheduler import Sizes, Tables
from kernels.flex_attention.hopper.tiles import Descs, Tiling
from kernels.flex_attention.hopper.visits import Part, every, most_of, visited_of
from kernels.flex_attention.plain import Strides
from kernels.flex_attention.plain_backward import new_gradients
from kernels.flex_attention.problem import cdiv, columns, has_edge

if common_gluon.gluon is not None:
    from triton.experimental.gluon import language as gl

ADDED_TO = 64  # columns of a head up to which the registers hold a tile's dq, too
ADDED_FROM = 1024  # queries from which on it is the faster way
ROUNDS = 2  # items that a program should have: a long one of a causal mask, and a short one
BUNDLE = 16  # units at work together, without a mask, where dq is added up: their tiles are found in the cache
SHORT = 2048  # keys up to which items are so short that shared memory is better spent on the next item's
LEAST_BAND = 2048  # queries of a launch, if more heads can make room for them
MULTIPLE = 128  # kept matrices are whole tiles, of any size up to this


# Which calls.


def unfit(p):
    """Why the kernels cannot take the call, as text, or ``None``."""
    why = fit.unfit(p, "backward_hopper", "bwd_", 256, p.tma("query", "key", "value"))
    BLOCK_M, BLOCK_N = tiles(p)
    if why is None and p.sparse and (p.SPARSE_N % BLOCK_N or p.SPARSE_M % BLOCK_M):
        return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
    return why


def reason_not(p):
    """Why they do not make all three gradients, as text, or ``None``."""
    why = unfit(p)
    if why is None and p.cached(cut, every(p)) is None:
        return f"a workspace of {p.workspace} bytes holds neither ds of enough queries nor the sums of a head's dq"
    return why


def options(p):
    """BLOCK_M and STAGES of the table."""
    return problem.table_options("backward_hopper", p.key, p.device)


def wide(p):
    """Whether both groups own the same keys (``wide_kernel``)."""
    return max(p.D, p.Dv) > 128


def tiles(p):
    """Queries and keys of an inner step."""
    return options(p)["BLOCK_M"], fit.ROWS if wide(p) else fit.GROUPS * fit.ROWS


# How the work is dealt.


class Cut(NamedTuple):
    """What a launch has: of so many pairs of batch row and key head so many heads of queries each, and of these so many
    queries; shared out among ``splits`` items a tile of keys. added: whether dq is added up, else ds is kept."""

    added: bool
    pairs: int
    heads: int
    queries: int
    splits: int

    def counts(self, p):
        """Whether there would be fewer launches if it were known how many blocks the mask visits."""
        whole = self.pairs * self.heads == p.Bkv * p.Hkv * p.shared * p.G and self.queries >= p.M
        return p.sparse and not self.added and not whole

    def __str__(self):
        items = "1 item" if self.splits == 1 else f"{self.splits} items"
        heads = self.pairs * self.heads
        return f"{heads} head{'s' * (heads > 1)} x {self.queries} queries a launch, {items} a tile of keys"


def cut(p, most):
    """The ``Cut`` of a call, ``None`` if the workspace holds nothing; most: ``visits.Counts``.

    dq is added up where the registers allow it and the queries are many: the tiles of queries of all heads must outnumber the
    programs, or these wait for one another. Else ds of the blocks that are visited is kept: of whole heads, enough for ROUNDS
    items a program, or, where these do not fit, of a band of their queries.
    """
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    programs = scheduler.multiprocessors(p.device)
    many = p.M >= ADDED_FROM and cdiv(p.M, tiles(p)[0]) * pairs * each >= 2 * programs
    held = p.workspace // max(bytes_of_sums(p), 1)
    if max(p.D, p.Dv) <= ADDED_TO and many and held:
        held = min(held, pairs)
        return Cut(True, held, each, p.M, splits(p, held, each, every(p)))

    wanted = min(pairs * each, max(1, ROUNDS * programs // max(tiles_of_keys(p), 1)))
    held = p.workspace // max(most.blocks * math.prod(block_of_ds(p, p.M)) * p.dtype.itemsize, 1)
    if held >= wanted and (held >= each or parts_fit(p, 1)):
        heads = each if held >= each else cdiv(each, cdiv(each, held))
        launches = cdiv(pairs, max(1, held // each))
        some = cdiv(pairs, max(1, launches))  # launches of one size
        return Cut(False, some, heads, p.M, splits(p, some, heads, most))
    multiple, rows_of_block = math.lcm(MULTIPLE, p.SPARSE_M or 1), block_of_ds(p, p.M)[0]
    rows = cdiv(p.N, rows_of_block) * rows_of_block
    while True:
        heads, some = min(each, wanted), max(1, wanted // each)
        band = p.workspace // (rows * heads * some * p.dtype.itemsize) // multiple * multiple
        fits = parts_fit(p, some) or (heads == each and band >= p.M)
        if fits and band >= min(LEAST_BAND, p.M) or wanted == 1:
            break
        wanted //= 2
    if not band or not fits:
        return None
    band = min(p.M, cdiv(cdiv(p.M, cdiv(p.M, band)), multiple) * multiple)  # bands of one length
    return Cut(False, some, heads, band, splits(p, some, heads, every(p)))


def splits(p, pairs, heads, most):
    """Among how many items the heads of a pair are shared out, if their sums fit: the longest has no less than a program's
    share of all work, divided by ROUNDS."""
    in_all = pairs * most.blocks * (cdiv(p.SPARSE_N, tiles(p)[1]) if p.sparse else tiles_of_keys(p))
    longest = most.longest * ROUNDS * scheduler.multiprocessors(p.device)
    n = 1
    while n < heads and 2 * n * in_all <= longest and parts_fit(p, 2 * n * pairs):
        n *= 2
    return min(n, heads)


def parts_fit(p, units):
    """Whether the sums of so many units' dk and dv fit a quarter of the workspace, beside what it is for."""
    return 4 * units * p.N * (p.D + p.Dv) * 4 <= p.workspace


def tiles_of_keys(p):
    """Of one key head."""
    return cdiv(p.N, tiles(p)[1])


def block_of_ds(p, queries):
    """Rows and columns in the workspace of a block of the mask; without one a head's, of so many queries."""
    whole = [cdiv(length, MULTIPLE) * MULTIPLE for length in (p.N, queries)]
    return tuple(map(min, (p.SPARSE_N, p.SPARSE_M), whole)) if p.sparse else tuple(whole)


def blocks_of_ds(p, queries, most):
    """Of a head in the workspace, of all its queries or a band of so many."""
    if p.sparse and queries < p.M:
        return cdiv(queries, p.SPARSE_M) * cdiv(p.N, p.SPARSE_N)
    return most.blocks


def width_of_sums(p):
    """Queries of a block of dq's sums: a group's share of a tile."""
    return tiles(p)[0] // fit.GROUPS


def blocks_of_sums(p):
    """Of a head's queries, in dq's sums."""
    multiple = max(p.SPARSE_M, MULTIPLE)
    return cdiv(p.M, multiple) * multiple // width_of_sums(p)


def bytes_of_sums(p):
    """Of dq's for one pair of batch row and key head."""
    return p.shared * p.G * blocks_of_sums(p) * width_of_sums(p) * ADDED_TO * 4


# Launches.


def _prepare(p, units, strides_of_do, DS, PARTS):
    """``(programs, sizes, Hkv ... bundle, compile-time arguments, descriptors' makers)``."""
    BLOCK_M, BLOCK_N = tiles(p)
    tiles_n = cdiv(p.N, BLOCK_N)
    programs = min(units * tiles_n, scheduler.multiprocessors(p.device))
    order = scheduler.tile_order(units, tiles_n, 1, programs)
    bundle, serpentine = units if order["TILES_FIRST"] else 1, order["SERPENTINE"]
    if DS == "added":  # so that items wait for one another the least
        bundle, serpentine = units if p.sparse else min(BUNDLE, units), p.sparse
    short = max(p.D, p.Dv) <= 64 or p.N <= SHORT
    KEPT = 2 if short and DS != "added" and not wide(p) else 1  # the next item's keys come while gradients are stored
    T = Tiling(
        D=p.D,
        DV=p.Dv,
        **fit.tiles_of_blocks(p, BLOCK_M, BLOCK_N),
        SPARSE_M=p.SPARSE_M or 1,
        EDGE_M=has_edge(p.M, p.SPARSE_M, BLOCK_M),
        BLOCK_M=BLOCK_M,
        BLOCK_D=max(columns(p.D), ADDED_TO) if DS == "added" else columns(p.D),
        BLOCK_DV=columns(p.Dv),
        ROWS=fit.ROWS,
        GROUPS=1 if wide(p) else fit.GROUPS,
        STAGES=options(p)["STAGES"] - (KEPT > 1 and max(p.D, p.Dv) > 64),
        KEPT=KEPT,
        DS=DS,
        PARTS=PARTS,
        SERPENTINE=serpentine,
    )
    sizes = Sizes(p.M, p.N, p.G, p.shared, p.scale, p.unit)
    rows, WIDTH = fit.described_rows(BLOCK_M), width_of_sums(p)
    layout = gl.NVMMASharedLayout.get_default_for([64, WIDTH], gl.float32)
    descs = Descs(
        q=fit.described(BLOCK_M, T.BLOCK_D),
        do=fit.described(BLOCK_M),
        k=fit.described(T.ROWS, T.BLOCK_D),
        v=fit.described(T.ROWS),
        lse=rows,
        delta=rows,
        ds=Descriptors(lambda ds: fit.descriptor(ds, [1, T.ROWS, BLOCK_M])),
        dq=Descriptors(lambda sums: common_gluon.describe(sums, [64, WIDTH], layout)),
    )
    return (programs,), sizes, (p.Hkv, tiles_n, units * tiles_n, bundle), dict(**p.mods(), T=T), descs


class Workspace(NamedTuple):
    """What dq is made of: ds where it is kept; its sums and their counters where it is added up; blocks of a head in it."""

    blocks: int = 0
    ds: torch.Tensor | None = None
    sums: torch.Tensor | None = None
    counters: torch.Tensor | None = None


def launch_gradients(p, x, do, rows, out, pairs, part, space):
    """Launch the kernel for ``pairs``, ``(first, count)`` of batch row and key head, and a ``Part`` of their work; out: dk
    and dv, or the sums of their parts. What it visits is returned."""
    first, count = pairs
    DS = "kept" if space.ds is not None else "added" if space.sums is not None else ""
    PARTS = out[0].ndim == 3
    units = count * part.splits
    programs, sizes, of_items, constants, described = p.cached(_prepare, units, do.stride(), DS, PARTS)
    kernel = (
        wide_kernel.attention_dkdv_wide_hopper_kernel if wide(p) else backward_kernel.attention_gradients_hopper_kernel
    )
    descs = fit.descs(described, (x.query, do, x.key, x.value, *rows, space.ds, space.sums))
    strides = [Strides(0, 0, 0, 0) if PARTS else Strides(*t.stride()) for t in out]
    visited, tables = visited_of(p, x, part.band, part.stop), Tables(x.score_tables, x.mask_tables)
    tensors = descs, space.counters, *out, *strides, visited and visited.by_keys, tables
    Hkv, tiles_n, items, bundle = of_items
    numbers = Hkv, tiles_n, items, first, bundle, space.blocks, *part
    launch(kernel, programs, *tensors, sizes, *numbers, **constants, num_warps=4, maxnreg=168)
    return visited


def launch_dkdv(p, x, outputs):
    """dk and dv alone."""
    dk_dv = new_gradients(x)[1:]
    part = Part(0, p.shared * p.G, 1, 0, p.M, 1)
    launch_gradients(p, x, outputs.do, rows_of(p, *outputs), dk_dv, (0, p.Bkv * p.Hkv), part, Workspace())
    return dk_dv


def gradients(p, x, outputs, hopper=None):
    """dq, dk and dv."""
    into, *dk_dv = grads = new_gradients(x)
    most, pairs, each = every(p), p.Bkv * p.Hkv, p.shared * p.G
    one = p.cached(cut, most)
    if one.counts(p):
        most = most_of(p, x)
        one = cut(p, most)
    rows = rows_of(p, *outputs)
    new = lambda *shape, dtype: torch.empty(shape, dtype=dtype, device=x.query.device)  # noqa: E731
    parts = one.splits > 1 or one.heads < each or one.queries < p.M
    out = [new(one.pairs * one.splits, p.N, d, dtype=torch.float32) for d in (p.D, p.Dv)] if parts else dk_dv
    if one.added:
        blocks = blocks_of_sums(p)
        sums = new(one.pairs * each * blocks * ADDED_TO, width_of_sums(p), dtype=torch.float32)
        space = Workspace(blocks, None, sums, new(one.pairs * each, blocks // fit.GROUPS, dtype=torch.int32))
    else:
        kept = blocks_of_ds(p, one.queries, most)
        ds = new(one.pairs * one.heads * kept, *block_of_ds(p, one.queries), dtype=x.query.dtype)
        space = Workspace(kept, ds)
    for first in range(0, pairs, one.pairs):
        some = first, min(one.pairs, pairs - first)
        fresh = 1
        for begin in range(0, each, one.heads):
            for band in reversed(range(0, p.M, one.queries)):  # under a causal mask the last one visits all keys
                part = Part(begin, min(one.heads, each - begin), one.splits, band, min(band + one.queries, p.M), fresh)
                if one.added:
                    space.counters.zero_()
                visited = launch_gradients(p, x, outputs.do, rows, out, some, part, space)
                if one.added:
                    dq.scale(p, space, into, some)
                else:
                    dq.multiply(p, x, space, into, some, part, visited and visited.by_queries)
                fresh = 0
        if parts:
            add_up(p, out, one.splits, *dk_dv, some)
    return grads


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
    """BLOCK_N keys of a pair: the sum of its parts [splits, N, D] from the first to the last, scaled and rounded."""
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


def add_up(p, sums, splits, dk, dv, pairs):
    """dk and dv of ``pairs`` from the sums of their units."""
    first, count = pairs
    for x, out, scale, D in ((sums[0], dk, p.scale, p.D), (sums[1], dv, 1.0, p.Dv)):
        tile = {"D": D, "BLOCK_D": columns(D), "BLOCK_N": max(1, 2048 // columns(D))}
        programs = (count * cdiv(p.N, tile["BLOCK_N"]),)
        launch(sums_kernel, programs, x, out, Strides(*out.stride()), scale, p.N, p.Hkv, splits, first, **tile)
