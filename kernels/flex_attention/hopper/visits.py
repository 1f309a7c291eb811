"""Which blocks of queries a block of keys visits, in which order, and whose turn it is to add to their dq."""

import threading
from collections import namedtuple
from functools import lru_cache

import numpy as np
import torch
from torch.utils.weak import WeakIdRef, WeakTensorKeyDictionary

from kernels.common import gluon as common_gluon
from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.problem import cdiv

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

_cached = WeakTensorKeyDictionary()  # the first of a mask's lists -> (state, what was made of it, what graphs read)
_NOTHING = None, {}, ()
_lock = threading.Lock()

# Of each block of keys, int32, rows as in ``checks.Lists``.
#
# entries: the blocks of queries that it visits, from the last to the first: twice the block's number, and one more if the
# block is full. ranks: how many blocks of keys before it visit that block of queries.
Visits = namedtuple("Visits", "num_blocks entries ranks stride_b stride_h width")

# A head of queries that an item reads: its batch row and number, how many tiles, and where its lists begin.
Visited = namedtuple("Visited", "b h end at")


def visits_of(p, x):
    """``Visits`` of a call, ``None`` without a mask; kept as long as the mask lives: layers and steps share masks, and to
    build the lists takes a dozen small kernels."""
    if not p.sparse:
        return None
    return kept(p, x, "visits", lambda: _visits(p, x))


def kept(p, x, name, make):
    """``make()``, made once for as long as the lists of x's mask live and nobody writes to them.

    What a CUDA graph is captured with is read again whenever that is replayed: it lives as long as the lists do, whatever
    becomes of them.
    """
    pairs = [x.lists.get(name) for name in ("kv", "full_kv", "q", "full_q")]
    lists = [t for one in pairs for t in ((None, None) if one is None else (one.indices, one.num_blocks))]
    capturing = is_capturing(lists[0])
    state = (p.M, p.N, p.SPARSE_M, p.SPARSE_N, *(None if t is None else (WeakIdRef(t), t._version) for t in lists))
    with _lock:
        known, made, captured = _cached.get(lists[0], _NOTHING)
        if known == state and name in made:
            if capturing and not any(one is made[name] for one in captured):
                _cached[lists[0]] = known, made, (*captured, made[name])
            return made[name]
    new = make()
    if not capturing:  # a graph's memory is filled when it is replayed
        with _lock:
            known, made, captured = _cached.get(lists[0], _NOTHING)
            _cached[lists[0]] = state, (made if known == state else {}) | {name: new}, captured
    return new


def is_capturing(t):
    """Whether what is launched for ``t`` now goes into a CUDA graph."""
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def _visits(p, x):
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
    return Visits(num_blocks, entries.contiguous(), ranks.gather(-1, blocks).contiguous(), *strides, width)


def _dense(lists, columns):
    """bool [B, H, blocks of keys, ``columns``] of one of ``Inputs.transposed``."""
    return None if lists is None else masks.dense_blocks(lists[0], lists[1], columns)


MOST_HEADS = 16
LAG = 1.2  # tiles' time from one key tile's visit to the earliest visit of the next: a sum's way to memory, a counter's back


@lru_cache
def bundle_order(pairs, tiles, programs, masked, heads=None):
    """``(BUNDLE, SERPENTINE)``: the order of items that ends first, by a simulation of who waits for whom.

    BUNDLE pairs are at work together, all their first key tiles, then all their second ones. The more there are, the fewer
    key tiles of one pair run at a time, which wait for each other; the fewer, the more tiles of queries are found in the
    cache. The smallest BUNDLE within 2 % of the best is taken. Under a mask items are taken for a causal mask's. heads: of
    units that share out a pair's heads, how many an item visits one after another; such units are small, and so BUNDLE is
    not.
    """
    if not pairs or not tiles:
        return 1, False
    bundles = {cdiv(pairs, n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if n <= pairs}
    if heads is not None:
        bundles = {bundle for bundle in bundles if bundle >= min(pairs, 16)}
    orders = [(bundle, back) for bundle in sorted(bundles) for back in (False, True)]
    ends = {names: end_of(pairs, tiles, programs, masked, heads or 1, *names) for names in orders}
    return next(names for names in ends if ends[names] <= 1.02 * min(ends.values()))


@lru_cache
def end_of(pairs, tiles, programs, masked, heads, bundle, serpentine):
    """When the last program ends, in tiles of queries, in one order."""
    lengths = (
        2.0 * (np.arange(tiles, 0, -1) if masked else np.full(tiles, tiles)) + 1
    )  # and one for what is not its tiles
    simulated = min(heads, MOST_HEADS)  # of more, as many take the time of all: the simulation's time grows with them
    return _end(pairs, lengths * (heads / simulated), programs, bundle, serpentine, simulated)


def _end(pairs, lengths, programs, bundle, serpentine, heads=1):
    """When the last program ends: a key tile begins when its program is free, LAG after the pair's key tile before it; and so
    it does with every head of queries that it visits. Under a causal mask the key tile before it is longer with each head:
    items of several heads go at the pace of the longest that is at work."""
    tiles = len(lengths)
    items = np.arange(pairs * tiles)
    first = items // (bundle * tiles) * bundle
    here = np.minimum(bundle, pairs - first)
    inside = items - first * tiles
    tile = inside // here
    begins = np.zeros((heads, len(items)))
    free = np.zeros(programs)
    for begin in range(0, len(items), programs):
        end = min(begin + programs, len(items))
        order = np.arange(programs)
        if serpentine and begin // programs % 2:
            order = order[::-1]
        at = begin
        while at < end:  # as many at a time as do not wait for each other
            stop = min(end, at + int(here[at]))
            who = order[at - begin : stop - begin]
            starts = free[who]
            waits = tile[at:stop] > 0
            for head in range(heads):
                if head:
                    starts = starts + lengths[tile[at:stop]] - 1
                before = begins[head, items[at:stop] - here[at:stop]] + LAG
                starts = np.where(waits, np.maximum(starts, before), starts)
                begins[head, at:stop] = starts
            free[who] = starts + lengths[tile[at:stop]]
            at = stop
    return free.max()


if common_gluon.gluon is not None:

    @gluon.jit
    def visited_head(j, item, call, T: gl.constexpr):
        """The item's j-th, of ``batches`` rows of G heads."""
        sizes, visits = call.sizes, call.lists
        b = item.b * sizes.batches + j // sizes.G
        h = item.h * sizes.G + j % sizes.G
        if visits is None:
            return Visited(b, h, gl.cdiv(sizes.M, T.BLOCK_M), None)
        else:
            row = b.to(gl.int64) * visits.stride_b + h * visits.stride_h + item.tile // T.TILES_N
            return Visited(b, h, gl.load(visits.num_blocks + row) * T.TILES_M, row * visits.width)

    @gluon.jit
    def visit(i, head, visits, T: gl.constexpr):
        """``(first query of the i-th tile, whether its block is partial)``; anything for i behind the end."""
        if visits is None:
            return (head.end - 1 - i) * T.BLOCK_M, False
        else:
            entry = gl.load(visits.entries + head.at + i // T.TILES_M, mask=i < head.end, other=0)
            return (entry >> 1) * T.SPARSE_M + (T.TILES_M - 1 - i % T.TILES_M) * T.BLOCK_M, entry & 1 == 0
