"""How long the ways of the backward pass take on a Hopper GPU, by a small model, and when to cut the work into more items.

A launch is over when its busiest program is: items have a fixed order, so who has how much is counted, not guessed.

    stored   = over launches:  share / rate  +  max(dq / rate, bytes of ds / memory)  +  2 launch;   and  sums / memory
    counters = over launches:  end / rate  +  2 launch;                                              and  sums / memory

share: the most tiles of scores that a program has, two more for an item's beginning and end and one for each head that it
visits. dq: the product with ds, which a narrow band has too few programs for. end: when the last program ends that waits for
others (``visits``). sums: bytes of partial sums, written and read. A mask's items are taken for a causal mask's.

``python -m benchmarks.populations.fit_flex_attention`` finds rates, memory and launch from recorded times and writes
``costs.json``; nothing is timed here, so a plan stays a pure function of shape, dtype and GPU.
"""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernels.flex_attention import problem, stored_ds
from kernels.flex_attention.hopper import backward, fused, parts, scheduler, visits
from kernels.flex_attention.problem import cdiv

GAIN = 1.08  # a cut must promise this: the model is off by some 5 %
SAME = 1.02  # so many times the fastest one's time is as fast
BANDS = 64  # launches that share a head's queries, at most
#: Tiles of scores in whose time an item begins and ends, a head's lists are read, and an item with counters begins and ends.
ITEM, VISIT, COUNTED = 2, 1, 4
ROUNDS = 32  # items of a program, at most, where heads are shared out among items with counters


class Cut(NamedTuple):
    """A way of the backward pass, and how it is cut.

    way: "stored" (ds in a workspace), "counters" (dq added up in memory) or "recomputed" (ds twice). pairs, heads, columns:
    of pairs of batch row and key head, of heads of queries a pair and of queries, how many a launch has. head_splits,
    query_splits: as in ``scheduler.Split``. time: predicted, in ms.
    """

    way: str
    pairs: int
    heads: int
    columns: int
    head_splits: int
    query_splits: int
    time: float

    @property
    def splits(self):
        """Items of a launch a tile of keys."""
        return self.head_splits * self.query_splits

    def __str__(self):
        items = (
            "1 item"
            if self.splits == 1
            else f"{self.splits} items ({self.head_splits} of heads x {self.query_splits} of queries)"
        )
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
    if p.N < 2:  # one key: nothing that is worth sharing out
        return None
    if _unknown(p) and (fused.reason_not(p) is None or p.cached(stored_ds.heads)):
        return None
    return choice(p, *candidates(p))


def choice(p, usual, others):
    """The fastest of the others, if it promises enough; of those that are as fast, one with the fewest launches."""
    fastest = min((one.time for one in others), default=usual.time)
    if fastest * GAIN >= usual.time:
        return None
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    launches = lambda one: cdiv(pairs, one.pairs) * cdiv(each, one.heads) * cdiv(p.M, one.columns)  # noqa: E731
    return min((one for one in others if one.time <= SAME * fastest), key=lambda one: (launches(one), one.time))


def candidates(p):
    """``(what runs uncut, what could be cut)``, each a ``Cut`` with its predicted time; no cuts where even a GPU that is busy
    to the end would gain nothing. Which way is faster uncut, the table says, for it was measured.

    A mask's blocks are on the GPU, and nobody waits for them here. What is neither without a mask nor causal may have few,
    for which partial sums are dear: it is cut only where ds would be computed twice.
    """
    return p.cached(_candidates)


def _candidates(p):
    each = p.shared * p.G
    held = p.cached(stored_ds.heads)
    counted = fused.reason_not(p) is None
    whole = ("stored", held) if held else ("recomputed", p.Bkv * p.Hkv)
    usual = _counters(p, 1) if counted else _timed(p, *whole, each, p.M, 1, 1)
    others = []
    if usual.way != "recomputed" and _unknown(p):
        return usual, others
    if _ideal(p, "stored") * GAIN < usual.time:
        cuts = [(*launch, *splits) for launch in _launches(p) for splits in _splits(p, *launch)]
        others += [_timed(p, "stored", *one) for one in cuts if one[1:] != (each, p.M, 1, 1)]
    counts = _rates(p, costs())["counters"] and fused.unfit(p) is None and p.options.get("WORKSPACE", 1)
    if counts and _ideal(p, "counters") * GAIN < usual.time:
        others += [_counters(p, n) for n in _shares(each)[1:] if _worth_counting(p, n)]
    return usual, others


def _unknown(p):
    """Whether there is a mask whose generated code is not that of ``mods.causal``."""
    code = [] if p.mask is None else [line.strip() for line in p.mask.text.split("def mask_mod")[-1].split("\n")[1:]]
    code = [line for line in code if line and line[0] != "#"]
    return p.sparse and code not in (["return q_idx >= kv_idx"], ["return kv_idx <= q_idx"])


def _launches(p):
    """``(pairs, heads, columns)`` that the workspace holds at a time: whole pairs, whole heads, or a band of one head."""
    if not p.cached(stored_ds.whole_tiles):
        return
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    rows, columns = p.cached(stored_ds.size)
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


def _splits(p, pairs, heads, columns):
    """``(head splits, query splits)`` of which the sums fit: heads are shared out before queries are."""
    tiles = cdiv(min(columns, p.M), backward.tiles(p)[0])
    for of_heads in _shares(heads):
        for of_queries in (1, 2, 4, 8):
            if of_queries == 1 or (of_heads == heads and tiles >= 8 * of_queries):
                if pairs * of_heads * of_queries * parts.bytes_of(p) <= parts.most(p.workspace):
                    yield of_heads, of_queries


def _worth_counting(p, splits):
    """Whether all sums fit the workspace, and programs have few enough items."""
    pairs = p.cached(fused.at_once, splits)
    return 0 < pairs * splits * cdiv(p.N, fused.BLOCK_N) <= ROUNDS * scheduler.multiprocessors(p.device)


def _shares(heads):
    """1, 2, 4, ... and all of them."""
    return sorted({min(2**n, heads) for n in range(heads.bit_length() + 1)})


def lengths(p, cut, band):
    """How long an item of each tile of keys is in a launch of these queries, in tiles of queries."""
    BLOCK_M, BLOCK_N = backward.tiles(p)
    heads = cdiv(cut.heads, cut.head_splits)
    return _lengths(p.sparse, p.N, min(band + cut.columns, p.M), band, BLOCK_M, BLOCK_N, heads, cut.query_splits)


@lru_cache
def _lengths(masked, N, stop, band, BLOCK_M, BLOCK_N, heads, query_splits):
    n0 = np.arange(0, N, BLOCK_N)
    begin = np.maximum(n0 // BLOCK_M * BLOCK_M, band) if masked else np.full_like(n0, band)
    steps = -(-np.maximum(stop - begin, 0) // BLOCK_M)
    return tuple(int(n) for n in heads * (-(-steps // query_splits) + VISIT) + ITEM)


@lru_cache
def costs():
    """The fitted parameters: TFLOP/s by the widest head of the class, at ``multiprocessors``; bytes of a ms, and ms. Other
    Hopper GPUs are taken for this one: what is compared are ways on the same GPU."""
    return json.loads((Path(__file__).parent / "costs.json").read_text())["NVIDIA H200"]


def _rates(p, known):
    return known["rates"][str(next(d for d in problem.HEADS if max(p.D, p.Dv) <= d))]


def _step(p, known, kernel, products, BLOCK_M, BLOCK_N):
    """ms for one tile of scores on one multiprocessor."""
    return 2e-9 * products * BLOCK_M * BLOCK_N * _columns(p) * known["multiprocessors"] / _rates(p, known)[kernel]


def _columns(p):
    """Columns of a product, those that a tile has too many of included."""
    return (problem.columns(p.D) + problem.columns(p.Dv)) / 2


def _work(p, known):
    """ms of one product at a rate of 1."""
    scores = p.M * p.N - (min(p.M, p.N) ** 2 // 2 if p.sparse else 0)
    busy = scheduler.multiprocessors(p.device) / known["multiprocessors"]
    return 2e-9 * p.B * p.Hq * scores * _columns(p) / busy


def _ideal(p, way):
    """ms on a GPU that is busy to the end."""
    rates = _rates(p, costs())
    products = {"counters": {"counters": 5}, "recomputed": {"dkdv": 4, "dq": 3}}.get(way, {"dkdv": 4, "dq_from_ds": 1})
    return _work(p, costs()) * sum(count / rates[kernel] for kernel, count in products.items())


def predicted(p, cut, known):
    """ms of a ``Cut`` by the parameters ``known`` (``costs``)."""
    return sum(terms(p, cut, known))


def terms(p, cut, known):
    """The same in two terms: all but the product of ds with the keys, and that product."""
    if cut.way == "counters":
        return _counted(p, cut, known), 0.0
    time = product = 0.0
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    step = _step(p, known, "dkdv", 4, *backward.tiles(p))
    units = cut.pairs * cut.splits
    programs = min(units * cdiv(p.N, backward.tiles(p)[1]), scheduler.multiprocessors(p.device))
    launches = cdiv(pairs, cut.pairs) * cdiv(each, cut.heads)
    bands = range(0, p.M, cut.columns)
    for band in bands:
        items = lengths(p, cut, band)
        order = scheduler.tile_order_of(items, units, programs)
        time += launches * (max(scheduler.shares_of(items, units, programs, *order.values())) * step + known["launch"])
        if cut.way == "stored":
            dq = _dq_from_ds(p, known, cut.pairs * cut.heads, band, min(band + cut.columns, p.M))
            product += launches * (dq + known["launch"])
    if cut.way == "recomputed":
        product = _work(p, known) * 3 / _rates(p, known)["dq"] + known["launch"]
    if cut.splits > 1 or cut.heads < each or len(bands) > 1:
        sums = pairs * cut.splits * parts.bytes_of(p)
        visited = 0.5 + 0.5 / len(bands) if p.sparse else 1.0  # what a launch adds to: read, and written again
        again = cdiv(each, cut.heads) * len(bands) * visited
        time += sums * (2 * again) / known["memory"] + cdiv(pairs, cut.pairs) * 2 * known["launch"]
    return float(time), float(product)


def _dq_from_ds(p, known, heads, band, stop):
    """ms of the product of so many heads' ds, of a band, with the keys: that of the multiprocessors, or of memory."""
    options = stored_ds.options(p, heads, stop - band)
    BLOCK_M, BLOCK_N = options["BLOCK_M"], options["BLOCK_N"]
    ends = np.arange(band, stop, BLOCK_M) + BLOCK_M if p.sparse else np.full(cdiv(stop - band, BLOCK_M), p.N)
    steps = -(-np.minimum(ends, p.N) // BLOCK_N)
    tiles = steps.sum() * heads
    most = max(steps.max(), tiles / scheduler.multiprocessors(p.device))
    bytes_of_ds = tiles * BLOCK_M * BLOCK_N * p.dtype.itemsize
    return max(most * _step(p, known, "dq_from_ds", 1, BLOCK_M, BLOCK_N), bytes_of_ds / known["memory"])


def _counted(p, cut, known):
    """Programs' parts of dq wait for each other (``visits.end_of``)."""
    BLOCK_M, tiles = fused.options(p)["BLOCK_M"], cdiv(p.N, fused.BLOCK_N)
    heads = cdiv(cut.heads, cut.head_splits)
    units = cut.pairs * cut.head_splits
    programs = min(units * tiles, scheduler.multiprocessors(p.device))
    order = visits.bundle_order(
        units, tiles, programs, p.sparse, None if cut.head_splits == 1 else heads
    )  # as ``fused`` deals them
    end = visits.end_of(units, tiles, programs, p.sparse, heads, *order)
    scale = cdiv(p.M, BLOCK_M) / (2 * tiles)  # its tiles of queries are two a tile of keys
    steps = end * scale + COUNTED * cdiv(units * tiles, programs)
    time = steps * _step(p, known, "counters", 5, BLOCK_M, fused.BLOCK_N) + 2 * known["launch"]
    if cut.head_splits > 1:
        time += units * parts.bytes_of(p) * 2 / known["memory"] + 2 * known["launch"]
    return float(cdiv(p.Bkv * p.Hkv, cut.pairs) * time)


def _timed(p, *sizes):
    cut = Cut(*sizes, 0.0)
    return cut._replace(time=predicted(p, cut, costs()))


def _counters(p, splits):
    return _timed(p, "counters", p.cached(fused.at_once, splits), p.shared * p.G, p.M, splits, 1)


def predictions(p):
    """The predicted times, as text: of what would run uncut, and of the best of the other cuts."""
    usual, others = candidates(p)
    best = sorted(others, key=lambda one: one.time)[:3]
    return "; ".join(f"{one}: {one.time:.3g} ms" for one in (usual, *best))


def because(p):
    """Why a call is cut, as text."""
    usual = candidates(p)[0]
    if usual.way == "recomputed":
        return f"ds of all queries of a key head does not fit the workspace of {p.workspace} bytes"
    tiles, many = p.Bkv * p.Hkv * cdiv(p.N, backward.tiles(p)[1]), scheduler.multiprocessors(p.device)
    busy = _ideal(p, usual.way) / usual.time
    return f"{tiles} items of a tile of keys each would keep {many} multiprocessors {busy:.0%} busy"
