"""How long a launch would take, by a model of a few terms whose parameters were fitted to measured layers.

    time    = launch + (compute^2 + memory^2)^(1/2) + sums                  all in microseconds
    compute = over waves of programs:  start + per step(r)                  r programs share a multiprocessor in that wave
    step(r) = (alone^4 + (r busy)^4)^(1/4)  nearly the larger one: a lone program waits for memory, many for each other
    memory  = both tensors once, and more where rows begin within a line of the L2 cache, at the GPU's bandwidth;
              elements copied first, at their own rate
    sums    = sum + turns turn + bytes / partials    where a sum is cut into splits: a second launch adds them, a few a turn

``busy`` and ``alone`` belong to a tile: how long a multiprocessor needs for a step of it, and how long a step takes at least;
that is no less than what memory answers in, shared among the steps that are under way. Everything else is the GPU's.

``python -m benchmarks.populations.fit`` finds them from recorded times and writes ``costs.json``, by the names of
GPUs; nothing is timed here, so a plan stays a pure function of shape, dtype and GPU. On a GPU that has none, ``choose_split``
weighs full waves of programs against partial sums.
"""

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

AT_ONCE = 64  # partial sums that are loaded before the first addition waits, at most
MOST = 528  # splits of a sum
LINE = 128  # bytes of the L2 cache's
LATENCY = 1.0  # microseconds in which memory answers a lone program
INSTRUCTION = 64  # rows of a Hopper matrix instruction
WAVES = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6)  # of programs, that a sum may be cut into


class Load(NamedTuple):
    """What a launch asks of the GPU.

    ``items`` programs of ``per`` steps each, ``held`` of them on a multiprocessor at once, each step ``volume`` times what
    the tile's parameters are for; ``slots`` partial sums of ``numel`` elements; ``bytes`` of the tensors. ``copied``:
    elements that are copied first, into rows that TMA can read. ``astray``: bytes that programs read in rows which begin
    within a line of the L2 cache.
    """

    items: int
    per: int
    held: int
    slots: int
    numel: int
    bytes: int
    volume: float = 1.0
    copied: int = 0
    astray: int = 0


class Cut(NamedTuple):
    """How a sum is shared out: ``tiles`` of a kernel with these ``options``, each over ``blocks`` of pixels, which are cut
    into ``splits`` of ``per`` blocks, the last of them maybe shorter."""

    options: dict
    tiles: int
    blocks: int
    splits: int = 1
    per: int = 0

    @property
    def items(self):
        """How many sums there are over a split."""
        return self.tiles * self.splits

    def into(self, asked):
        """The same in so many splits, or as many as there are blocks."""
        splits, per = equal_splits(self.blocks, asked)
        return self._replace(splits=splits, per=per)


class Candidate(NamedTuple):
    """A ``tile`` with its parameters, the ``cut`` that a kernel is launched for, and the predicted microseconds."""

    tile: dict
    cut: Cut
    time: float

    def __str__(self):
        options = self.cut.options
        tile = "x".join(str(options[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in options)
        more = [f"{name} {options[name]}" for name in ("GROUPS", "RUN", "STAGES", "num_warps") if name in options]
        return f"{tile}, {', '.join(more)}, split-K {self.cut.splits}: {self.time:.1f} us"


@functools.cache
def _costs():
    return json.loads((Path(__file__).parent / "costs.json").read_text())


def costs_of(options):
    """The parameters that a line of the table of configurations names, ``{"COSTS": GPU}``; ``None`` where it says options."""
    return _costs()[options["COSTS"]] if "COSTS" in options else None


def tiles_of(costs, kind):
    """The tiles of a kind; where nothing was measured of x that is im2col already, those of x that is not."""
    return costs["tiles"].get(kind) or costs["tiles"][kind.replace(" rows", " im2col")]


def predicted(costs, kind, tile, load):
    """Microseconds of a ``Load`` in tiles with the parameters ``tile``; kind: "product", "hopper" or "depthwise"."""
    full, rest = divmod(load.items, costs["multiprocessors"] * load.held)
    start, steps = costs["start"][kind], load.per * load.volume
    compute = full * (start + steps * step(tile, load.held))
    if rest:
        compute += start + steps * step(tile, -(-rest // costs["multiprocessors"]))
    memory = (load.bytes + costs["astray"] * load.astray) / costs["bandwidth"]
    time = costs["launch"] + math.hypot(compute, memory)
    if load.slots > 1:
        turns = -(-load.slots // AT_ONCE)
        time += costs["sum"] + turns * costs["turn"] + 8 * load.slots * load.numel / costs["partials"]
    if load.copied:
        time += costs["launch"] + load.copied / costs["copies"]
    return time


def astray(g, rows, columns):
    """Bytes that a product's tiles read, every ``rows`` output channels x and every ``columns`` input channels dy, in pixels
    that begin within a line, if pixels lie side by side."""
    share = lambda channels: 1 - math.gcd(2 * channels, LINE) / LINE  # noqa: E731
    x, dy = g.columns * -(-g.Co // rows) * share(g.Ci), g.Co * -(-g.columns // columns) * share(g.Co)
    return int(2 * g.M * (x + dy))


def step(tile, sharing):
    """Microseconds of a step of a program that shares a multiprocessor with others, ``sharing`` in all."""
    alone = max(tile["alone"], LATENCY / (tile["STAGES"] - 1)) if tile.get("STAGES", 1) > 1 else tile["alone"]
    return (alone**4 + (sharing * tile["busy"]) ** 4) ** 0.25


def weighed(costs, kind, tile, cut, load, split_k=None):
    """A ``Candidate`` of every ``Cut`` that is worth a prediction: the tiles' blocks in few splits, or in as many as fill the
    GPU in whole waves. ``load``: of a program, with the partial sums of a split for ``slots``."""
    programs, counts = costs["multiprocessors"] * load.held, {split_k}
    if split_k is None:
        counts = {1, 2, 3, *(int(waves * programs) // cut.tiles for waves in WAVES), -(-programs // cut.tiles)}
    found = []
    for splits, per in sorted({equal_splits(cut.blocks, count) for count in counts if 1 <= count <= (split_k or MOST)}):
        own = load._replace(items=cut.tiles * splits, per=per, slots=load.slots * splits)
        found.append(Candidate(tile, cut._replace(splits=splits, per=per), predicted(costs, kind, tile, own)))
    return found


def fitting(tiles, rows, columns):
    """Those of ``tiles`` whose sides are less than twice ``rows`` and ``columns``, and those of one matrix instruction."""
    fits = lambda tile, name, size: tile.get(name, 1) < 2 * max(size, INSTRUCTION)  # noqa: E731
    return [tile for tile in tiles if fits(tile, "BLOCK_M", rows) and fits(tile, "BLOCK_N", columns)]


def options_of(tile):
    """What a kernel is launched with, of a tile's line."""
    return {name: value for name, value in tile.items() if name not in ("alone", "busy", "held")}


def cheapest(candidates):
    """The candidate with the least predicted time, the first of equal ones."""
    return min(candidates, key=lambda candidate: candidate.time)


def equal_splits(blocks, asked):
    """``(active, per)``: split i of ``active`` owns ``per`` blocks from i * per on; none is empty, the last may have fewer.

    Args:
        blocks: length of the reduction in blocks.
        asked: splits asked for; there are at most as many as blocks.
    """
    if blocks == 0:
        return 0, 0
    per = -(-blocks // min(asked, blocks))
    return -(-blocks // per), per


@functools.cache
def choose_split(tiles, blocks, block, held):
    """The number of splits with the smallest modelled time: full waves of programs, few partial sums.

    Args:
        tiles: output tiles, each a program a split.
        blocks: length of the reduction in blocks.
        block: pixels in a block.
        held: programs that the GPU runs at once.
    """

    # pixels' time: to fill the pipeline and store a tile, and of a partial sum written and read
    START, PARTIAL = 256, 800

    def cost(splits):
        active, per = equal_splits(blocks, splits)
        waves = -(-tiles * active // held)
        return waves * (per * block + START) + (PARTIAL * tiles * active / held if active > 1 else 0)

    return min(range(1, min(max(blocks, 1), 256) + 1), key=cost)
