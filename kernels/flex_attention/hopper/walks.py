"""Which tiles of queries a tile of keys visits, in which order, and whose turn it is to add to their dq."""

import threading
from functools import lru_cache

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from kernels.common import gluon as common_gluon
from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.problem import cdiv

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

_remembered = WeakTensorKeyDictionary()
_lock = threading.Lock()


def walk_of(p, x):
    """``(num_blocks, entries, ranks, batch stride, head stride, width)`` of each block of keys, int32; ``None`` without mask.

    entries: the blocks of queries that it visits, from the last to the first: twice the block's number, and one more if the
    block is full. ranks: how many blocks of keys before it visit that block of queries. Remembered as long as the mask
    lives: layers and steps share masks, and building the lists takes a dozen small kernels.
    """
    if not p.sparse:
        return None
    given = x.lists
    lists = [given.get(name) for name in LISTS]
    capturing = lists[0].is_cuda and torch.cuda.is_current_stream_capturing()
    state = (p.M, p.N, *((None if t is None else (t.data_ptr(), t._version, t.shape)) for t in lists))
    with _lock:
        known = _remembered.get(lists[0])
        if known is not None and known[0] == state:
            return known[1]
    walk = _walk(p, x)
    if not capturing:  # a graph's memory is filled when it is replayed
        with _lock:
            _remembered[lists[0]] = (state, walk)
    return walk


LISTS = ("kv_indices", "kv_num_blocks", "full_kv_indices", "full_kv_num_blocks")
LISTS += ("q_indices", "q_num_blocks", "full_q_indices", "full_q_num_blocks")


def _walk(p, x):
    columns = cdiv(p.M, p.SPARSE_M)
    partial, full = (_dense(lists, columns) for lists in x.transposed)
    visited = partial if full is None else partial | full
    full = torch.zeros_like(visited) if full is None else full.expand_as(visited)
    ranks = visited.cumsum(-2, dtype=torch.int32) - visited.int()
    num_blocks, backwards = masks.ordered_lists(visited.flip(-1))
    blocks = (columns - 1 - backwards).long()
    entries = 2 * blocks.int() + full.gather(-1, blocks).int()
    B, H, rows, width = visited.shape
    strides = H * rows if B > 1 else 0, rows if H > 1 else 0
    return num_blocks, entries.contiguous(), ranks.gather(-1, blocks).contiguous(), *strides, width


def _dense(lists, columns):
    """bool [B, H, blocks of keys, ``columns``] of one of ``Inputs.transposed``."""
    return None if lists is None else masks.dense_blocks(lists[0], lists[1], columns)


LAG = 1.2  # tiles' time from one key tile's visit to the earliest visit of the next: a sum's way to memory, a counter's back


@lru_cache
def dealt(pairs, tiles, programs, masked):
    """``(BUNDLE, BACK_AND_FORTH)``: the order of items that ends first, by a simulation of who waits for whom.

    BUNDLE pairs are at work together, all their first key tiles, then all their second ones. The more there are, the fewer
    key tiles of one pair run at a time, which wait for each other; the fewer, the more tiles of queries are found in the
    cache. The smallest BUNDLE within 2 % of the best is taken. Under a mask items are taken for a causal mask's.
    """
    if not pairs or not tiles:
        return 1, False
    bundles = sorted({cdiv(pairs, parts) for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if parts <= pairs})
    lengths = 2.0 * (np.arange(tiles, 0, -1) if masked else np.full(tiles, tiles)) + 1  # and one for what is not its tiles
    ends = {(b, back): _end(pairs, lengths, programs, b, back) for b in bundles for back in (False, True)}
    return next(names for names in ends if ends[names] <= 1.02 * min(ends.values()))


def _end(pairs, lengths, programs, bundle, back_and_forth):
    """When the last program ends: a key tile begins when its program is free, LAG after the pair's key tile before it."""
    tiles = len(lengths)
    items = np.arange(pairs * tiles)
    first = items // (bundle * tiles) * bundle
    here = np.minimum(bundle, pairs - first)
    inside = items - first * tiles
    tile = inside // here
    begins = np.zeros(len(items))
    free = np.zeros(programs)
    for begin in range(0, len(items), programs):
        end = min(begin + programs, len(items))
        order = np.arange(programs)
        if back_and_forth and begin // programs % 2:
            order = order[::-1]
        at = begin
        while at < end:  # as many at a time as do not wait for each other
            stop = min(end, at + int(here[at]))
            who = order[at - begin : stop - begin]
            starts = free[who]
            waits = tile[at:stop] > 0
            before = begins[items[at:stop] - here[at:stop]] + LAG
            starts = np.where(waits, np.maximum(starts, before), starts)
            begins[at:stop] = starts
            free[who] = starts + lengths[tile[at:stop]]
            at = stop
    return free.max()


# The same as the kernel reads it.

if common_gluon.gluon is not None:

    @gluon.jit
    def bundled(item, tiles_n, items, BUNDLE):
        """``(tile of keys, pair of batch row and key head)``: BUNDLE pairs at a time, of all one tile before the next."""
        bundle = item // (BUNDLE * tiles_n)
        inside = item - bundle * BUNDLE * tiles_n
        here = gl.minimum(BUNDLE, items // tiles_n - bundle * BUNDLE)
        return inside // here, bundle * BUNDLE + inside % here

    @gluon.jit
    def entries_of(b, h, tile, walk, M, SPARSE: gl.constexpr, TILES_M: gl.constexpr, TILES_N: gl.constexpr,
                   BLOCK_M: gl.constexpr):  # fmt: skip
        """``(how many tiles of queries a tile of keys visits, where its row of the lists begins)``."""
        if SPARSE:
            row = b.to(gl.int64) * walk[3] + h * walk[4] + tile // TILES_N
            return gl.load(walk[0] + row) * TILES_M, row * walk[5]
        else:
            return gl.cdiv(M, BLOCK_M), 0

    @gluon.jit
    def visit(i, end, at, walk, SPARSE: gl.constexpr, SPARSE_M: gl.constexpr, TILES_M: gl.constexpr,
              BLOCK_M: gl.constexpr):  # fmt: skip
        """``(first query of the i-th tile, whether its block is partial)``; anything for i behind the end."""
        if SPARSE:
            entry = gl.load(walk[1] + at + i // TILES_M, mask=i < end, other=0)
            return (entry >> 1) * SPARSE_M + (TILES_M - 1 - i % TILES_M) * BLOCK_M, entry & 1 == 0
        else:
            return (end - 1 - i) * BLOCK_M, False
