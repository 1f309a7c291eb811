"""Work items: in which order they are dealt to the programs, and which tiles one of them visits."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from kernels.common import gluon as common_gluon
from kernels.common.gpu import multiprocessors  # noqa: F401 (both kernels ask it here)
from kernels.flex_attention.plain import list_row, tiles_within

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

# Orders of the items, the ones that are kinder to the cache first: (TILES_FIRST, BACK_AND_FORTH).
ORDERS = [(False, False), (False, True), (True, True)]


class Split(NamedTuple):
    """What of a key head's work a launch has, and into how many items it cuts a tile of keys; ``None`` is all of it, in one.

    begin, heads: the launch has heads of queries begin ... begin + heads - 1 of those that read a key head, of all its batch
    rows, and of them the queries band ... stop - 1. slices, parts: an item has one of ``slices`` equal shares of these heads,
    and of each head's walk one of ``parts`` equal shares. fresh: 1 if no launch before has left sums of the same items.
    """

    begin: Any
    heads: Any
    slices: Any
    parts: Any
    band: Any
    stop: Any
    fresh: Any

    def given(self):
        """To a kernel, every number times 16: Triton would compile anew for 1, and for multiples of 16, of any of them."""
        return self._make(16 * number for number in self)


@lru_cache
def order(groups, tiles, together, programs):
    """The compile-time arguments that say how items are dealt to the programs.

    The first of ``ORDERS`` whose longest share of a causal mask, in which each tile is a block shorter than the one before,
    is at most 5 % longer than the best one's. Items of ``together`` heads that share keys are equally long.
    """
    lengths = tuple(range(tiles + 1, 1, -1))  # an item costs a block's time for what is not its blocks
    return order_of(lengths, groups, programs, together)


@lru_cache
def order_of(lengths, groups, programs, together=1):
    """``order`` of items of these lengths."""
    shares = {names: max(shares_of(lengths, groups, programs, *names, together), default=0) for names in ORDERS}
    best = next(names for names in ORDERS if shares[names] <= 1.05 * min(shares.values()))
    return dict(zip(("TILES_FIRST", "BACK_AND_FORTH"), best, strict=True))


def shares_of(lengths, groups, programs, TILES_FIRST, BACK_AND_FORTH, together=1):
    """How long each program works on items of these lengths."""
    lengths = np.asarray(lengths)  # numpy: a default device of torch must neither hold this nor be waited for
    dealt = lengths.repeat(together * groups) if TILES_FIRST else np.tile(lengths.repeat(together), groups)
    rounds = np.pad(dealt, (0, -len(dealt) % max(programs, 1))).reshape(-1, max(programs, 1))
    if BACK_AND_FORTH:
        rounds[1::2] = rounds[1::2, ::-1].copy()
    return rounds.sum(0)


if common_gluon.gluon is not None:

    @gluon.jit
    def place(turn, BACK_AND_FORTH: gl.constexpr):
        """This program's place in a round of items: 0 1 2 .. every time, or 0 1 2 .. and .. 2 1 0 by turns."""
        back = BACK_AND_FORTH and turn % 2 == 1
        return gl.where(back, gl.num_programs(0) - 1 - gl.program_id(0), gl.program_id(0))

    @gluon.jit
    def items_of_program(items, BACK_AND_FORTH: gl.constexpr):
        """How many of the items this program gets."""
        rounds = items // gl.num_programs(0)
        return rounds + (place(rounds, BACK_AND_FORTH) < items % gl.num_programs(0)).to(gl.int32)

    @gluon.jit
    def item_of(item, items, tiles_m, G, Hkv, TILES_FIRST: gl.constexpr):
        """``(b, h_kv, h, tile of queries)`` of a work item: the last queries, which see the most keys, come first.

        All tiles of heads that share keys come one after another, so that the keys stay in the cache; with TILES_FIRST a tile
        of all heads comes before the next tile.
        """
        if TILES_FIRST:
            heads = items // tiles_m
            tile = tiles_m - 1 - item // heads
            bh = item % heads // G
        else:
            tile = tiles_m - 1 - (item // G) % tiles_m
            bh = item // (G * tiles_m)
        return bh // Hkv, bh % Hkv, bh % Hkv * G + item % G, tile

    @gluon.jit
    def item_of_keys(item, tiles_n, items, TILES_FIRST: gl.constexpr):
        """``(tile of keys, pair of batch row and key head)``; the first keys, seen by the most queries, come first.

        TILES_FIRST: a tile of all pairs before the next tile, as in ``item_of``.
        """
        if TILES_FIRST:
            pairs = items // tiles_n
            return item // pairs, item % pairs
        else:
            return item % tiles_n, item // tiles_n

    @gluon.jit
    def pair_of(unit, split):
        """The pair of batch row and key head that a unit, ``pair * pieces + piece``, belongs to."""
        if split is None:
            return unit
        else:
            return unit // (split.slices // 16 * (split.parts // 16))

    @gluon.jit
    def keys_of_program(turn, tiles_n, items, first, Hkv, split, TILES_FIRST: gl.constexpr, BACK_AND_FORTH: gl.constexpr):
        """``(tile of keys, unit)`` of this program's item number ``turn``, then of the unit ``(pair, batch row of keys, key
        head)``; the launch's pairs count from ``first``."""
        item = turn * gl.num_programs(0) + place(turn, BACK_AND_FORTH)
        tile, unit = item_of_keys(item, tiles_n, items, TILES_FIRST)
        pair = pair_of(unit, split)
        return tile, unit, pair, (first + pair) // Hkv, (first + pair) % Hkv

    @gluon.jit
    def heads_of_unit(unit, each, split):
        """``(first head of queries, last + 1, part of their walks)`` of a unit, of the ``each`` that read a key head."""
        if split is None:
            return 0, each, 0
        else:
            slices, parts = split.slices // 16, split.parts // 16
            begin, heads = split.begin // 16, split.heads // 16
            piece = unit % (slices * parts)
            share = piece // parts
            return begin + heads * share // slices, begin + heads * (share + 1) // slices, piece % parts

    @gluon.jit
    def share_of_walk(some, end, part, split, SPARSE: gl.constexpr, BLOCK: gl.constexpr):
        """``(first tile, first tile that is not masked, last tile + 1)`` of a part of a walk of ``end`` tiles, of which
        ``some`` are masked; a block mask's lists are already the band's alone."""
        if split is None:
            return 0, some, end
        else:
            parts = split.parts // 16
            first = 0
            if not SPARSE:
                first = split.band // 16 // BLOCK
                end = gl.minimum(end, gl.cdiv(split.stop // 16, BLOCK))
            begin = first + (end - first) * part // parts
            stop = first + (end - first) * (part + 1) // parts
            return begin, gl.minimum(gl.maximum(some, begin), stop), stop

    @gluon.jit
    def slot_of(pair, j, batches, G, split):
        """Where in the workspace ds of a pair's j-th head of queries lies."""
        if split is None:
            return pair * batches * G + j
        else:
            return pair * (split.heads // 16) + j - split.begin // 16

    @gluon.jit
    def column_of(m0, split):
        """And of its queries m0 ..."""
        if split is None:
            return m0
        else:
            return m0 - split.band // 16

    @gluon.jit
    def lists_of(b, h, r, partial, full, length, SPARSE: gl.constexpr, HAS_FULL: gl.constexpr, TILES: gl.constexpr,
                 BLOCK: gl.constexpr):  # fmt: skip
        """``(tiles to mask, all tiles, where the two lists begin)`` of block row r; of all ``length`` rows if not SPARSE."""
        if SPARSE:
            row = list_row(partial, b, h, r)
            some = gl.load(partial[0] + row) * TILES
            at = partial[1] + row * partial[4]
            if HAS_FULL:
                row_full = list_row(full, b, h, r)
                return some, some + gl.load(full[0] + row_full) * TILES, at, full[1] + row_full * full[4]
            else:
                return some, some, at, at
        else:
            return 0, gl.cdiv(length, BLOCK), 0, 0

    @gluon.jit
    def first_row(i, some, end, at, at_full, SPARSE: gl.constexpr, SPARSE_ROWS: gl.constexpr, TILES: gl.constexpr,
                  BLOCK: gl.constexpr):  # fmt: skip
        """Where tile i of the two lists end to end begins; any row for i behind their end."""
        if SPARSE:
            chosen = gl.where(i < some, at + i // TILES, at_full + (i - some) // TILES)
            block = gl.load(chosen, mask=i < end, other=0)
            return block * SPARSE_ROWS + i % TILES * BLOCK  # ``some`` is a multiple of TILES
        else:
            return i * BLOCK

    @gluon.jit
    def row_of_walk(
        i, some, end, at, at_full, SPARSE: gl.constexpr, SPARSE_N: gl.constexpr, TILES_N: gl.constexpr,
        BLOCK_N: gl.constexpr, BACKWARDS: gl.constexpr,
    ):  # fmt: skip
        """Where tile i of a walk begins. BACKWARDS: the last tile comes first, of lists' tiles the last one to mask."""
        j = i
        if BACKWARDS and SPARSE:
            j = gl.where(i < some, some - 1 - i, i)
        elif BACKWARDS:
            j = end - 1 - i
        return first_row(j, some, end, at, at_full, SPARSE, SPARSE_N, TILES_N, BLOCK_N)

    @gluon.jit
    def tiles_unseen(
        some, end, at, last_query, reach, SPARSE_N: gl.constexpr, TILES_N: gl.constexpr, BLOCK_N: gl.constexpr
    ):
        """How many tiles, of those to mask the last ones, no query up to ``last_query`` reaches; never all of a walk."""
        last = gl.load(at + some // TILES_N - 1, mask=some > 0, other=0)
        unseen = gl.where(some > 0, TILES_N - tiles_within(last_query + reach[1] - last * SPARSE_N, BLOCK_N), 0)
        return gl.minimum(gl.maximum(unseen, 0), end - 1)

    @gluon.jit
    def queries_of_keys(
        j, r, b_kv, h_kv, batches, G, partial, full, M, part, split, SPARSE: gl.constexpr, HAS_FULL: gl.constexpr,
        SPARSE_M: gl.constexpr, TILES_M: gl.constexpr, BLOCK_M: gl.constexpr,
    ):  # fmt: skip
        """``(b, h, tiles to mask, where the two lists begin, the item's share of the walk, its first tile's first row)`` of
        block column r: of the j-th head of queries, of ``batches`` rows of G heads, that reads a head of keys."""
        b = b_kv * batches + j // G
        h = h_kv * G + j % G
        some, end, at, at_full = lists_of(b, h, r, partial, full, M, SPARSE, HAS_FULL, TILES_M, BLOCK_M)
        share = share_of_walk(some, end, part, split, SPARSE, BLOCK_M)
        m0 = first_row(share[0], some, share[2], at, at_full, SPARSE, SPARSE_M, TILES_M, BLOCK_M)
        return b, h, some, at, at_full, share, m0
