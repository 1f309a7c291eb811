"""The tile scheduler: in which order work items go to the programs, and which tiles one of them visits."""

from collections import namedtuple
from functools import lru_cache

import numpy as np

from kernels.common import gluon as common_gluon
from kernels.common.gpu import multiprocessors  # noqa: F401 (all kernels ask it here)
from kernels.flex_attention.plain import list_row, tiles_within

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

# Orders of the items, the ones that are kinder to the cache first: (TILES_FIRST, SERPENTINE).
ORDERS = [(False, False), (False, True), (True, True)]


@lru_cache
def tile_order(groups, tiles, together, programs):
    """The compile-time arguments that say in which order items go to the programs.

    The first of ``ORDERS`` whose longest share of a causal mask, in which each tile is a block shorter than the one before,
    is at most 5 % longer than the best one's. Items of ``together`` heads that share keys are equally long.
    """
    lengths = tuple(range(tiles + 1, 1, -1))  # an item costs a block's time for what is not its blocks
    return tile_order_of(lengths, groups, programs, together)


@lru_cache
def tile_order_of(lengths, groups, programs, together=1):
    """``tile_order`` of items of these lengths."""
    shares = {names: max(shares_of(lengths, groups, programs, *names, together), default=0) for names in ORDERS}
    best = next(names for names in ORDERS if shares[names] <= 1.05 * min(shares.values()))
    return dict(zip(("TILES_FIRST", "SERPENTINE"), best, strict=True))


def shares_of(lengths, groups, programs, TILES_FIRST, SERPENTINE, together=1):
    """How long each program works on items of these lengths."""
    lengths = np.asarray(lengths)  # numpy: a default device of torch must neither hold this nor be waited for
    ordered = lengths.repeat(together * groups) if TILES_FIRST else np.tile(lengths.repeat(together), groups)
    rounds = np.pad(ordered, (0, -len(ordered) % max(programs, 1))).reshape(-1, max(programs, 1))
    if SERPENTINE:
        rounds[1::2] = rounds[1::2, ::-1].copy()
    return rounds.sum(0)


# Arguments of the kernels, and what they make of them.

# Queries, keys; heads of queries, and batch rows, that read one of keys; the scale, and ``Problem.unit``.
Sizes = namedtuple("Sizes", "M N G batches scale unit")

# A launch's work items: heads of keys, tiles of a head, all items.
#
# Of the backward pass alone: where its pairs of batch row and key head begin, units in a bundle (``bundled``), and blocks of
# a head in the workspace, of ds or of dq's sums.
Items = namedtuple("Items", "Hkv tiles count first bundle blocks", defaults=(0, 0, 0))

# A block mask's partial and full blocks, each ``checks.Lists`` or ``None``.
MaskLists = namedtuple("MaskLists", "partial full")

# What the score mod and the mask mod read.
Tables = namedtuple("Tables", "score mask")

# Of a row of a mask's lists: how many tiles to mask, then the end of all, and where the two lists begin, ``None``
# without a mask.
Row = namedtuple("Row", "some end at at_full")


if common_gluon.gluon is not None:

    @gluon.jit
    def position(turn, SERPENTINE: gl.constexpr):
        """This program's position in a round of items: 0 1 2 .. every time, or 0 1 2 .. and .. 2 1 0 by turns."""
        back = SERPENTINE and turn % 2 == 1
        return gl.where(back, gl.num_programs(0) - 1 - gl.program_id(0), gl.program_id(0))

    @gluon.jit
    def items_of_program(count, SERPENTINE: gl.constexpr):
        """How many of the items this program gets."""
        rounds = count // gl.num_programs(0)
        return rounds + (position(rounds, SERPENTINE) < count % gl.num_programs(0)).to(gl.int32)

    @gluon.jit
    def item_of_turn(turn, SERPENTINE: gl.constexpr):
        """The number of this program's item number ``turn``."""
        return turn * gl.num_programs(0) + position(turn, SERPENTINE)

    @gluon.jit
    def queries_of_item(item, items, G, TILES_FIRST: gl.constexpr):
        """``(b, h_kv, h, tile of queries)`` of a work item: the last queries, which see the most keys, come first.

        All tiles of heads that share keys come one after another, so that the keys stay in the cache; with TILES_FIRST a tile
        of all heads comes before the next tile.
        """
        if TILES_FIRST:
            heads = items.count // items.tiles
            tile = items.tiles - 1 - item // heads
            bh = item % heads // G
        else:
            tile = items.tiles - 1 - (item // G) % items.tiles
            bh = item // (G * items.tiles)
        return bh // items.Hkv, bh % items.Hkv, bh % items.Hkv * G + item % G, tile

    @gluon.jit
    def bundled(item, items):
        """``(place of the tile of keys, unit)`` of a work item: of ``items.bundle`` units at a time all one tile before the
        next."""
        bundle = item // (items.bundle * items.tiles)
        inside = item - bundle * items.bundle * items.tiles
        here = gl.minimum(items.bundle, items.count // items.tiles - bundle * items.bundle)
        return inside // here, bundle * items.bundle + inside % here

    @gluon.jit
    def row_of(b, h, r, lists, length, TILES: gl.constexpr, BLOCK: gl.constexpr):
        """``Row`` of block row r; without a mask of all ``length``."""
        if lists.partial is None:
            return Row(0, gl.cdiv(length, BLOCK), None, None)
        else:
            row = list_row(lists.partial, b, h, r)
            some = gl.load(lists.partial.num_blocks + row) * TILES
            at = lists.partial.indices + row * lists.partial.width
            if lists.full is None:
                return Row(some, some, at, at)
            else:
                row_full = list_row(lists.full, b, h, r)
                end = some + gl.load(lists.full.num_blocks + row_full) * TILES
                return Row(some, end, at, lists.full.indices + row_full * lists.full.width)

    @gluon.jit
    def begin_of_tile(i, row, SPARSE: gl.constexpr, TILES: gl.constexpr, BLOCK: gl.constexpr):
        """Where tile i of the two lists end to end begins; anywhere for i behind their end."""
        if row.at is None:
            return i * BLOCK
        else:
            chosen = gl.where(i < row.some, row.at + i // TILES, row.at_full + (i - row.some) // TILES)
            block = gl.load(chosen, mask=i < row.end, other=0)
            return block * SPARSE + i % TILES * BLOCK  # ``some`` is a multiple of TILES

    @gluon.jit
    def first_key(i, row, T: gl.constexpr):
        """Of tile i. BACKWARDS: the last tile comes first, of lists' tiles the last one to mask."""
        j = i
        if T.BACKWARDS and row.at is None:
            j = row.end - 1 - i
        elif T.BACKWARDS:
            j = gl.where(i < row.some, row.some - 1 - i, i)
        return begin_of_tile(j, row, T.SPARSE_N, T.TILES_N, T.BLOCK_N)

    @gluon.jit
    def tiles_unseen(row, last_query, extent, T: gl.constexpr):
        """How many tiles, of those to mask the last ones, no query up to ``last_query`` reaches; never all of a row."""
        last = gl.load(row.at + row.some // T.TILES_N - 1, mask=row.some > 0, other=0)
        unseen = T.TILES_N - tiles_within(last_query + extent[1] - last * T.SPARSE_N, T.BLOCK_N)
        return gl.minimum(gl.maximum(gl.where(row.some > 0, unseen, 0), 0), row.end - 1)
