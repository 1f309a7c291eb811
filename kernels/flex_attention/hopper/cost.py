"""How long the ways of the backward pass take on a Hopper GPU, by a small model, and when to cut the work into more items.

    time = products / rate, on the program that has the most of them,  + bytes of partial sums / MEMORY + LAUNCH a launch

A launch is over when its busiest program is: items are dealt out in advance, so who has how much is counted, not guessed.
RATES are those of a GPU that is busy to the end. A mask's items are taken for a causal mask's.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kernels.flex_attention import problem
from kernels.flex_attention.hopper import backward, dealing, fused, parts, walks
from kernels.flex_attention.portable import stored_ds
from kernels.flex_attention.problem import cdiv

#: TFLOP/s of one H200 at its 132 multiprocessors, by the widest head of the class: dk and dv with ds stored (four products),
#: dq from ds (one), all five with counters, dq without ds (three). Solved from recorded times of layers of the tuning half,
#: B 1 and 4, H 16 and 32, M 4096 to 32768; a score mod's instructions are not in them, and slow all ways alike.
RATES = {
    64: {"dkdv": 385, "dq_from_ds": 230, "counters": 420, "dq": 250},
    128: {"dkdv": 590, "dq_from_ds": 450, "counters": 458, "dq": 300},
    256: {"dkdv": 540, "dq_from_ds": 480, "counters": None, "dq": 200},
}
MULTIPROCESSORS = 132
MEMORY = 4.0e9  # bytes a millisecond
LAUNCH = 0.006  # ms from one launch's last item to the next one's first
GAIN = 1.02  # a cut must promise this
BANDS = 64  # launches that share a head's queries, at most


class Cut(NamedTuple):
    """A way of the backward pass, and how it is cut.

    way: "stored" (ds in a workspace), "counters" (dq added up in memory) or "recomputed" (ds twice). pairs, heads, columns:
    of pairs of batch row and key head, of heads of queries a pair and of queries, how many a launch has. slices, parts: as in
    ``dealing.Split``. time: predicted, in ms.
    """

    way: str
    pairs: int
    heads: int
    columns: int
    slices: int
    parts: int
    time: float

    @property
    def pieces(self):
        """Items of a launch a tile of keys."""
        return self.slices * self.parts

    def __str__(self):
        items = "1 item" if self.pieces == 1 else f"{self.pieces} items ({self.slices} of heads x {self.parts} of queries)"
        if self.way == "counters":
            return f"dq by counters, {items} a tile of keys"
        if self.way == "recomputed":
            return f"ds computed twice, {items} a tile of keys"
        heads = self.pairs * self.heads
        return f"ds of {heads} head{'s' * (heads > 1)} x {self.columns} queries a launch, {items} a tile of keys"


def cut(p):
    """The ``Cut`` that the call runs, or ``None``: as the table has it, every tile of keys in one item."""
    if backward.reason_not(p, True) is not None or not p.B * p.Hq * p.M * p.N:
        return None
    if _unknown(p) and (fused.reason_not(p) is None or p.remember(stored_ds.heads)):
        return None
    usual, others = candidates(p)
    best = min(others, key=lambda one: one.time, default=usual)
    return best if best.time * GAIN < usual.time else None


def candidates(p):
    """``(what runs uncut, what could be cut)``, each a ``Cut`` with its predicted time; no cuts where even a GPU that is busy
    to the end would gain nothing. Which way is faster uncut, the table says, for it was measured.

    A mask's blocks are on the GPU, and nobody waits for them here. What is neither without a mask nor causal may have few,
    for which sums in parts are dear: it is cut only where ds would be computed twice.
    """
    return p.remember(_candidates)


def _candidates(p):
    each = p.shared * p.G
    held = p.remember(stored_ds.heads)
    counted = fused.reason_not(p) is None
    usual = _counters(p, 1) if counted else _stored(p, held, each, p.M, 1, 1) if held else _recomputed(p)
    others = []
    if usual.way != "recomputed" and _unknown(p):
        return usual, others
    if _ideal(p, "stored") * GAIN < usual.time:
        cuts = [(*launch, *pieces) for launch in _launches(p) for pieces in _pieces(p, *launch)]
        others += [_stored(p, *one) for one in cuts if one[1:] != (each, p.M, 1, 1)]
    counts = _rates(p)["counters"] and fused.unfit(p) is None and p.options.get("WORKSPACE", 1)
    if counts and _ideal(p, "counters") * GAIN < usual.time:
        slices = [n for n in _shares(each)[1:] if n * parts.bytes_of(p) <= parts.most(fused.workspace(p))]
        others += [_counters(p, n) for n in slices]
    return usual, others


def _unknown(p):
    """Whether there is a mask whose generated code is not that of ``mods.causal``."""
    code = [] if p.mask is None else [line.strip() for line in p.mask.text.split("def mask_mod")[-1].split("\n")[1:]]
    code = [line for line in code if line and line[0] != "#"]
    return p.sparse and code not in (["return q_idx >= kv_idx"], ["return kv_idx <= q_idx"])


def _launches(p):
    """``(pairs, heads, columns)`` that the workspace holds at a time: whole pairs, whole heads, or a band of one head."""
    if not p.remember(stored_ds.whole_tiles):
        return
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    rows, columns = p.remember(stored_ds.size)
    heads = p.workspace // (rows * columns * p.dtype.itemsize)
    multiple = math.lcm(stored_ds.DS_MULTIPLE, p.SPARSE_M or 1)
    band = p.workspace // (rows * p.dtype.itemsize) // multiple * multiple
    if heads >= each:
        yield min(pairs, heads // each), each, p.M
    elif heads:
        yield 1, cdiv(each, cdiv(each, heads)), p.M
    elif band and cdiv(p.M, band) <= BANDS:
        band = cdiv(cdiv(p.M, cdiv(p.M, band)), multiple) * multiple
        yield 1, 1, band


def _pieces(p, pairs, heads, columns):
    """``(slices, parts)`` of which the sums fit: heads are shared out before walks are."""
    walk = cdiv(min(columns, p.M), backward.tiles(p)[0])
    for slices in _shares(heads):
        for some in (1, 2, 4, 8):
            if some == 1 or (slices == heads and walk >= 8 * some):
                if pairs * slices * some * parts.bytes_of(p) <= parts.most(p.workspace):
                    yield slices, some


def _shares(heads):
    """1, 2, 4, ... and all of them."""
    return sorted({min(2**n, heads) for n in range(heads.bit_length() + 1)})


def lengths(p, cut, band):
    """How long an item of each tile of keys is in a launch of these queries, in tiles of queries, and one for the rest."""
    BLOCK_M, BLOCK_N = backward.tiles(p)
    heads = cdiv(cut.heads, cut.slices)
    return _lengths(p.sparse, p.N, min(band + cut.columns, p.M), band, BLOCK_M, BLOCK_N, heads, cut.parts)


@lru_cache
def _lengths(masked, N, stop, band, BLOCK_M, BLOCK_N, heads, parts):
    n0 = np.arange(0, N, BLOCK_N)
    begin = np.maximum(n0 // BLOCK_M * BLOCK_M, band) if masked else np.full_like(n0, band)
    return tuple(int(n) for n in heads * -(-np.maximum(stop - begin, 0) // BLOCK_M) // parts + 1)


def _step(p, kernel, products, BLOCK_M, BLOCK_N):
    """ms for one tile of scores on one multiprocessor."""
    columns = (p.D + p.Dv) / 2
    return 2e-9 * products * BLOCK_M * BLOCK_N * columns * MULTIPROCESSORS / _rates(p)[kernel]


def _rates(p):
    return RATES[next(d for d in problem.HEADS if max(p.D, p.Dv) <= d)]


def _work(p):
    """ms of one product at a rate of 1."""
    scores = p.M * p.N - (min(p.M, p.N) ** 2 // 2 if p.sparse else 0)
    busy = dealing.multiprocessors(p.device) / MULTIPROCESSORS
    return 2e-9 * p.B * p.Hq * scores * (p.D + p.Dv) / 2 / busy


def _ideal(p, way):
    """ms on a GPU that is busy to the end."""
    rates = _rates(p)
    return _work(p) * (5 / rates["counters"] if way == "counters" else 4 / rates["dkdv"] + 1 / rates["dq_from_ds"])


def _stored(p, pairs, heads, columns, slices, parts_):
    one = Cut("stored", pairs, heads, columns, slices, parts_, 0.0)
    all_pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    launches = cdiv(all_pairs, pairs) * cdiv(each, heads)
    units = pairs * one.pieces
    step = _step(p, "dkdv", 4, *backward.tiles(p))
    programs = min(units * cdiv(p.N, backward.tiles(p)[1]), dealing.multiprocessors(p.device))
    time = 0.0
    bands = range(0, p.M, columns)
    for band in bands:
        items = lengths(p, one, band)
        order = dealing.order_of(items, units, programs)
        time += launches * (max(dealing.shares_of(items, units, programs, *order.values())) * step + 2 * LAUNCH)
    if one.pieces > 1 or heads < each or len(bands) > 1:
        sums = all_pairs * one.pieces * parts.bytes_of(p)
        visited = 0.5 + 0.5 / len(bands) if p.sparse else 1.0  # what a launch adds to: read, and written again
        again = cdiv(each, heads) * len(bands) * visited
        time += sums * (2 * again) / MEMORY + cdiv(all_pairs, pairs) * 2 * LAUNCH
    return one._replace(time=float(time) + _work(p) / _rates(p)["dq_from_ds"])


def _recomputed(p):
    """Uncut, without ds: dk and dv by the same kernel, and dq by one of its own."""
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    one = _stored(p, pairs, each, p.M, 1, 1)
    rates = _rates(p)
    return one._replace(way="recomputed", time=one.time + _work(p) * (3 / rates["dq"] - 1 / rates["dq_from_ds"]))


def _counters(p, slices):
    """Parts of dq wait for each other (``walks.end_of``)."""
    pairs, each = p.remember(fused.at_once, slices), p.shared * p.G
    launches = cdiv(p.Bkv * p.Hkv, pairs)
    BLOCK_M, tiles = fused.options(p)["BLOCK_M"], cdiv(p.N, fused.BLOCK_N)
    heads = cdiv(each, slices)
    units = pairs * slices
    programs = min(units * tiles, dealing.multiprocessors(p.device))
    order = walks.dealt(units, tiles, programs, p.sparse, None if slices == 1 else heads)  # as ``fused`` deals them
    end = walks.end_of(units, tiles, programs, p.sparse, heads, *order)
    scale = cdiv(p.M, BLOCK_M) / (2 * tiles)  # its tiles of queries are two a tile of keys
    time = end * scale * _step(p, "counters", 5, BLOCK_M, fused.BLOCK_N) + 2 * LAUNCH
    if slices > 1:
        time += units * parts.bytes_of(p) * 2 / MEMORY + 2 * LAUNCH
    return Cut("counters", pairs, each, p.M, slices, 1, float(launches * time))


def told(p):
    """The predicted times, as text: of what would run uncut, and of the best of the other cuts."""
    usual, others = candidates(p)
    best = sorted(others, key=lambda one: one.time)[:3]
    return "; ".join(f"{one}: {one.time:.3g} ms" for one in (usual, *best))


def because(p):
    """Why a call is cut, as text."""
    usual = candidates(p)[0]
    if usual.way == "recomputed":
        return f"ds of all queries of a key head does not fit the workspace of {p.workspace} bytes"
    tiles, many = p.Bkv * p.Hkv * cdiv(p.N, backward.tiles(p)[1]), dealing.multiprocessors(p.device)
    busy = _ideal(p, usual.way) / usual.time
    return f"{tiles} items of a tile of keys each would keep {many} multiprocessors {busy:.0%} busy"
