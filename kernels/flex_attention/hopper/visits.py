"""Which tiles of queries an item of the backward pass visits, and in which order: of a mask's blocks, or of all."""

import threading
from collections import namedtuple
from functools import cached_property

import torch
from torch.utils.weak import WeakIdRef, WeakTensorKeyDictionary

from kernels.common import gluon as common_gluon
from kernels.flex_attention import block_mask as masks
from kernels.flex_attention.checks import listed
from kernels.flex_attention.hopper.scheduler import Items
from kernels.flex_attention.problem import cdiv

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    from kernels.flex_attention.hopper.scheduler import bundled, item_of_turn

_cached = WeakTensorKeyDictionary()  # the first of a mask's lists -> (state, what was made of it, what graphs read)
_NOTHING = None, {}, ()
_lock = threading.Lock()

# Of each block of keys, int32, those that are visited most coming first; rows as in ``checks.Lists``.
#
# order: the blocks' numbers. entries: the blocks of queries that each visits, from the last to the first: twice the block's
# number, and one more if the block is full. ranks: how many blocks of keys before it visit that block of queries. places:
# where among the head's blocks of ds that pair of blocks is.
Visits = namedtuple("Visits", "order num_blocks entries ranks places stride_b stride_h width")

# The same of each block of queries: ``checks.Lists`` of the blocks of keys that visit it, and the first one's place.
Rows = namedtuple("Rows", "lists starts")

# Of a head, at most: blocks that are visited, and those that one block of keys visits.
Counts = namedtuple("Counts", "blocks longest")

# What of a key head's work a launch has: heads of queries begin ... begin + heads - 1 of those that read it, of all its batch
# rows, shared out among ``splits`` items a tile of keys; and of them queries band ... stop - 1. fresh: 1 if no launch before
# has left sums of the same items.
Part = namedtuple("Part", "begin heads splits band stop fresh")

# The kernels' arguments of these two, for whose values nothing is compiled anew.
NUMBERS = [*Items._fields, *Part._fields]

# A tile of keys, where it stands in their order, the unit it is of, the unit's pair, and the pair's batch row and head of
# keys. A unit is a share of a pair's heads of queries.
Item = namedtuple("Item", "tile place unit pair b h")

# A head of queries that an item reads: its batch row and number, how many tiles, where its lists begin, and where in the
# workspace its ds is.
Head = namedtuple("Head", "b h end at slot")


class Visited:
    """What a mask visits: ``Visits``, ``Rows``, and ``Counts`` in a tensor."""

    def __init__(self, by_keys, by_queries, counts):
        self.by_keys, self.by_queries, self.counts = by_keys, by_queries, counts

    @cached_property
    def most(self):
        """Its ``Counts``. The first time this waits for the GPU."""
        return Counts(*self.counts.tolist())


def visited_of(p, x, band, stop):
    """``Visited`` of queries band ... stop - 1, ``None`` without a mask; kept as long as the mask lives: layers and steps
    share masks, and to build the lists takes a dozen small kernels.

    What a CUDA graph is captured with is read again whenever that is replayed: it lives as long as the lists do, whatever
    becomes of them.
    """
    if not p.sparse:
        return None
    pairs = [x.lists.get(name) for name in ("kv", "full_kv", "q", "full_q")]
    lists = [t for one in pairs for t in ((None, None) if one is None else (one.indices, one.num_blocks))]
    capturing = is_capturing(lists[0])
    state = (p.M, p.N, p.SPARSE_M, p.SPARSE_N, *(None if t is None else (WeakIdRef(t), t._version) for t in lists))
    with _lock:
        known, made, captured = _cached.get(lists[0], _NOTHING)
        if known == state and (band, stop) in made:
            found = made[band, stop]
            if capturing and not any(one is found for one in captured):
                _cached[lists[0]] = known, made, (*captured, found)
            return found
    new = _visited(p, x, band, stop)
    if not capturing:  # a graph's memory is filled when it is replayed
        with _lock:
            known, made, captured = _cached.get(lists[0], _NOTHING)
            _cached[lists[0]] = state, (made if known == state else {}) | {(band, stop): new}, captured
    return new


def is_capturing(t):
    """Whether what is launched for ``t`` now goes into a CUDA graph."""
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def most_of(p, x):
    """``Counts`` of a call with a mask: of all blocks, if a CUDA graph is captured and they have not been counted before."""
    of = visited_of(p, x, 0, p.M)
    return every(p) if is_capturing(of.counts) and "most" not in vars(of) else of.most


def every(p):
    """``Counts`` of a head all of whose blocks are visited; without a mask it is one block."""
    rows = cdiv(p.M, p.SPARSE_M) if p.sparse else 1
    return Counts(rows * (cdiv(p.N, p.SPARSE_N) if p.sparse else 1), rows)


def _visited(p, x, band, stop):
    columns = cdiv(p.M, p.SPARSE_M)
    partial, full = (None if lists is None else masks.dense_blocks(*lists[:2], columns) for lists in x.transposed)
    visited = partial if full is None else partial | full
    full = torch.zeros_like(visited) if full is None else full.expand_as(visited)
    visited[..., : band // p.SPARSE_M] = False
    visited[..., cdiv(stop, p.SPARSE_M) :] = False
    of_queries = visited.sum(-2, dtype=torch.int32)
    starts = of_queries.cumsum(-1, dtype=torch.int32) - of_queries
    places = visited.cumsum(-2, dtype=torch.int32) - visited.int() + starts[..., None, :]
    by_queries = Rows(listed(*masks.ordered_lists(visited.mT)), starts.contiguous())
    counts = torch.stack([of_queries.sum(-1).max(), visited.sum(-1).max()])
    order = visited.sum((0, 1, 3)).argsort(descending=True, stable=True)
    visited, full = visited[:, :, order], full[:, :, order]
    ranks = visited.cumsum(-2, dtype=torch.int32) - visited.int()
    num_blocks, backwards = masks.ordered_lists(visited.flip(-1))
    blocks = (columns - 1 - backwards).long()
    entries = 2 * blocks.int() + full.gather(-1, blocks).int()
    B, H, rows, width = visited.shape
    strides = H * rows if B > 1 else 0, rows if H > 1 else 0
    of_entries = [t.gather(-1, blocks).contiguous() for t in (ranks, places[:, :, order])]
    by_keys = Visits(order.int(), num_blocks, entries.contiguous(), *of_entries, *strides, width)
    return Visited(by_keys, by_queries, counts)


if common_gluon.gluon is not None:

    @gluon.jit
    def item_of_program(turn, call, T: gl.constexpr):
        """This program's ``Item`` number ``turn``."""
        items, visits = call.items, call.visits
        place, unit = bundled(item_of_turn(turn, T.SERPENTINE), items)
        tile = place
        if visits is not None:
            tile = gl.load(visits.order + place // T.TILES_N) * T.TILES_N + place % T.TILES_N
        pair = unit // call.part.splits
        return Item(tile, place, unit, pair, (items.first + pair) // items.Hkv, (items.first + pair) % items.Hkv)

    @gluon.jit
    def heads_of_item(item, part):
        """``(first head of queries, last + 1)`` of an item, of those that read a key head."""
        share = item.unit % part.splits
        return part.begin + part.heads * share // part.splits, part.begin + part.heads * (share + 1) // part.splits

    @gluon.jit
    def head_of_item(j, item, call, T: gl.constexpr):
        """The item's ``Head`` number j, of ``batches`` rows of G heads."""
        sizes, visits, part = call.sizes, call.visits, call.part
        b = item.b * sizes.batches + j // sizes.G
        h = item.h * sizes.G + j % sizes.G
        slot = item.pair * part.heads + j - part.begin
        if visits is None:
            return Head(b, h, gl.cdiv(part.stop - part.band, T.BLOCK_M), None, slot)
        else:
            row = b.to(gl.int64) * visits.stride_b + h * visits.stride_h + item.place // T.TILES_N
            return Head(b, h, gl.load(visits.num_blocks + row) * T.TILES_M, row * visits.width, slot)

    @gluon.jit
    def visit(i, head, call, T: gl.constexpr):
        """``(first query of the i-th tile, whether its block is partial)``; anything for i behind the end."""
        if call.visits is None:
            return call.part.band + (head.end - 1 - i) * T.BLOCK_M, False
        else:
            entry = gl.load(call.visits.entries + head.at + i // T.TILES_M, mask=i < head.end, other=0)
            return (entry >> 1) * T.SPARSE_M + (T.TILES_M - 1 - i % T.TILES_M) * T.BLOCK_M, entry & 1 == 0

    @gluon.jit
    def place_of_ds(i, m0, n0, head, call, T: gl.constexpr):
        """Where in the workspace ds of the i-th tile, of queries m0 ... and keys n0 ..., is: block, row and column."""
        if call.visits is None:
            return head.slot, n0, m0 - call.part.band
        else:
            place = gl.load(call.visits.places + head.at + i // T.TILES_M)
            return place + head.slot * call.items.blocks, n0 % (T.TILES_N * T.GROUPS * T.ROWS), m0 % T.SPARSE_M
