"""How a sum is shared out among programs that stay: whole waves of pieces, or one equal share for each program."""

import functools
from dataclasses import dataclass

from kernels.conv_wgrad.split_k import MOST, pieces

# What a share costs beside its pixels, in pixels: filling the pipeline and storing a tile; ending another tile and beginning
# the next; a partial sum written and read.
START = 320
NEXT = 130
PARTIAL = 800


@dataclass(frozen=True)
class Work:
    """``tiles`` sums over ``blocks`` blocks of pixels each, cut into shares of at most ``per`` blocks.

    The first ``pieces`` * ``per`` blocks of a tile are cut into ``pieces`` pieces, each a share. What is left of the tile,
    fewer than ``per`` blocks, is laid end to end with what is left of the others, and cut into shares of ``per`` blocks, too:
    such a share may end one tile and begin the next. The first pieces of all tiles come first, then the second ones: programs
    that run at the same time read the same pixels.
    """

    tiles: int
    blocks: int
    pieces: int
    per: int

    @property
    def rest(self):
        """Blocks of a tile behind its pieces; 0 where the last piece is the shorter one."""
        return max(0, self.blocks - self.pieces * self.per)

    @property
    def met(self):
        """Tiles that a share sums some blocks of, at most: rests are short where many lie end to end in a share."""
        return min(self.tiles, 1 + -(-self.per // self.rest)) if self.rest else 1

    @property
    def slots(self):
        """Partial sums of a tile, at most: a rest is no longer than a share, so it lies in one of them or in two."""
        return self.pieces + (0 if not self.rest else 1 if self.per % self.rest == 0 else 2)

    @property
    def whole(self):
        """Shares that are pieces, of all tiles together."""
        return self.tiles * self.pieces

    @property
    def items(self):
        """Shares."""
        return self.whole + -(-self.tiles * self.rest // self.per)


@functools.cache
def share_out(tiles, blocks, block, programs, split_k=None):
    """The ``Work`` with the smallest modelled time: whole waves of pieces, or one equal share for each program.

    Args:
        tiles: output tiles.
        blocks: length of the reduction in blocks.
        block: pixels in a block.
        programs: how many run at once.
        split_k: pieces of every tile, or ``None`` to choose.
    """

    def cut(splits):
        return Work(tiles, blocks, *pieces(blocks, splits))

    def cost(work):
        waves = -(-work.items // programs)
        written = PARTIAL * tiles * work.slots / programs if work.slots > 1 else 0
        return waves * (work.per * block + START + (work.met - 1) * NEXT) + written

    if split_k is not None:
        return cut(split_k)
    per = -(-tiles * blocks // programs)
    return min([*map(cut, range(1, min(blocks, MOST) + 1)), Work(tiles, blocks, blocks // per, per)], key=cost)
