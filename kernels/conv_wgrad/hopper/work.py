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


@dataclass(frozen=True)
class Joined(Work):
    """The same, but a tile's partial sums are added where its last one is made: the last to come of its shares waits for the
    others' and adds them to its own. ``rounds`` of ``programs`` more tiles come first, a share each.

    A share waits for earlier ones alone: what is left of the tiles comes before their pieces, and a share goes through the
    tiles that it meets from the last to the first, so that it leaves the beginning of a tile at once and ends another last.
    All shares of tiles that are cut are in the last round, so that who is waited for runs as soon as who waits does.
    """

    programs: int
    rounds: int = 0

    @property
    def full(self):
        """Tiles that are not cut, beside ``tiles``, which are."""
        return self.rounds * self.programs

    @property
    def cut(self):
        """Shares of tiles that are cut; no more than programs."""
        return super().items

    @property
    def items(self):
        """Shares."""
        return self.full + self.cut

    @property
    def others(self):
        """Partial sums that the last of a tile's shares adds to its own, at most."""
        return self.slots - 1


MOST_JOINED = 4  # partial sums of a tile, at most: a single program adds them


def joined(tiles, blocks, programs, split_k=None):
    """Every ``Joined`` work of so many tiles and programs that is worth a prediction: whole rounds of tiles that are not cut,
    and the others cut into one equal share for each program, or into a few pieces each."""
    if split_k is not None:
        found = [Joined(tiles, blocks, *pieces(blocks, split_k), programs)]
    else:
        found, most = [], tiles // programs
        for rounds in {most, max(0, most - 1)} - {tiles / programs}:
            cut = tiles - rounds * programs
            per = -(-cut * blocks // programs)
            few = range(2, 1 + min(MOST_JOINED, programs // cut, blocks))
            cuts = {(blocks // per, per), *(pieces(blocks, n) for n in few)}
            found += [Joined(cut, blocks, *pair, programs, rounds) for pair in sorted(cuts)]
    return [work for work in found if 1 < work.slots <= MOST_JOINED and work.cut <= programs]


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
