"""Split-K: how a reduction is cut into splits that different programs sum."""

import functools
import math
from dataclasses import dataclass

# What a program costs beside its pixels, in pixels: filling the pipeline and storing its tile; partial sums written and read.
START = 256
PARTIAL = 800
MOST = 256
AT_ONCE = 16  # partial sums that are loaded before the first addition waits
FEW = 4
SIDES = (16, 32)  # of a turned block: a thread has one element, or four where partial sums are few


@dataclass(frozen=True)
class Cut:
    """A launch of ``tiles`` * ``splits`` programs: each sums one tile over ``per`` of the reduction's ``blocks``.

    ``options`` are the kernel's constexpr arguments and number of warps; ``tile`` its extent along rows, columns, reduction.
    """

    options: dict
    tile: tuple[int, int, int]
    tiles: int
    blocks: int
    splits: int
    per: int


def cut(sizes, options, groups=1, split_k=None, length=1):
    """The ``Cut`` of a sum with these sizes.

    Args:
        sizes: (rows, columns, reduction) of one group. A kernel without BLOCK_N has a program for each column.
        options: of the kernel, and ``HELD``: how many programs the GPU runs at once; without it ``split_k`` must be given,
            and tiles are taken as long as they are.
        groups: how many such sums there are.
        split_k: splits of the reduction, or ``None`` for as many as cost least.
        length: pixels in one step of the reduction.
    """
    held = options.get("HELD")
    names = "BLOCK_M", "BLOCK_N", "BLOCK_K"
    # no tile is more than twice as long as what it covers, but matrix units need 16; a model of tiles takes them whole
    most = [math.inf if held is None else max(16, 1 << max(0, size - 1).bit_length()) for size in sizes]
    tile = tuple(min(options.get(name, 1), limit) for name, limit in zip(names, most, strict=True))
    options = {name: value for name, value in options.items() if name != "HELD"}
    options |= {name: size for name, size in zip(names, tile, strict=True) if name in options}
    rows, columns, blocks = (-(-size // width) for size, width in zip(sizes, tile, strict=True))
    tiles = rows * columns * groups
    active, per = equal_splits(
        blocks, choose_split(tiles, blocks, tile[2] * length, held) if split_k is None else split_k
    )
    return Cut(options, tile, tiles, blocks, active, per)


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

    def cost(splits):
        active, per = equal_splits(blocks, splits)
        waves = -(-tiles * active // held)
        return waves * (per * block + START) + (PARTIAL * tiles * active / held if active > 1 else 0)

    return min(range(1, min(max(blocks, 1), MOST) + 1), key=cost)
