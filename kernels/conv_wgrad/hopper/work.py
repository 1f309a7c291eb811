"""How a sum is shared out among programs that stay: whole waves of splits, or one equal share for each program."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

from kernels.conv_wgrad.split_k import MOST, equal_splits

# What a share costs beside its pixels, in pixels: filling the pipeline and storing a tile; ending another tile and beginning
# the next; a partial sum written and read.
START = 320
NEXT = 130
PARTIAL = 800


class Schedule(NamedTuple):
    """A ``Work`` as the kernels read it; tiles_m: tiles along output channels."""

    items: int
    programs: int
    whole: int
    tiles: int
    tiles_m: int
    blocks: int
    per: int


class FixUpSchedule(NamedTuple):
    """A ``FixUp`` as its kernel reads it; rests: shares of what the splits leave, most: partial sums of a tile."""

    items: int
    programs: int
    full: int
    tiles: int
    tiles_m: int
    blocks: int
    per: int
    splits: int
    rest: int
    rests: int
    most: int


@dataclass(frozen=True)
class Work:
    """``tiles`` sums over ``blocks`` blocks of pixels each, cut into shares of at most ``per`` blocks.

    The first ``splits`` * ``per`` blocks of a tile are cut into ``splits``, each a share. What is left of the tile,
    fewer than ``per`` blocks, is laid end to end with what is left of the others, and cut into shares of ``per`` blocks, too:
    such a share may end one tile and begin the next. The first splits of all tiles come first, then the second ones: programs
    that run at the same time read the same pixels.
    """

    tiles: int
    blocks: int
    splits: int
    per: int

    @property
    def rest(self):
        """Blocks of a tile behind its splits; 0 where the last split is the shorter one."""
        return max(0, self.blocks - self.splits * self.per)

    @property
    def segments(self):
        """Tiles that a share sums some blocks of, at most: rests are short where many lie end to end in a share."""
        return min(self.tiles, 1 + -(-self.per // self.rest)) if self.rest else 1

    @property
    def slots(self):
        """Partial sums of a tile, at most: a rest is no longer than a share, so it lies in one of them or in two."""
        return self.splits + (0 if not self.rest else 1 if self.per % self.rest == 0 else 2)

    @property
    def whole(self):
        """Shares that are splits, of all tiles together."""
        return self.tiles * self.splits

    @property
    def items(self):
        """Shares."""
        return self.whole + -(-self.tiles * self.rest // self.per)

    def schedule(self, tiles_m, processors):
        """As the kernels read it, for so many programs at once."""
        programs = min(self.items, processors)
        return Schedule(self.items, programs, self.whole, self.tiles, tiles_m, self.blocks, self.per)


@dataclass(frozen=True)
class FixUp(Work):
    """The same, but a tile's partial sums are added where its last one is made: the last to come of its shares waits for the
    others' and adds them to its own. ``rounds`` of ``programs`` more tiles come first, a share each.

    A share waits for earlier ones alone: what is left of the tiles comes before their splits, and a share goes through the
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

    def schedule(self, tiles_m, processors):
        """As its kernel reads it; who is waited for runs at once, so there are as many programs as it was made for."""
        programs, rests = self.programs if self.rounds else self.cut, self.cut - self.whole
        of_tiles = self.tiles, tiles_m, self.blocks, self.per, self.splits, self.rest
        return FixUpSchedule(self.items, programs, self.full, *of_tiles, rests, self.others)


MOST_FIXED_UP = 4  # partial sums of a tile, at most: a single program adds them


def fix_ups(tiles, blocks, programs, split_k=None):
    """Every ``FixUp`` work of so many tiles and programs that is worth a prediction: whole rounds of tiles that are not cut,
    and the others cut into one equal share for each program, or into a few splits each."""
    if split_k is not None:
        found = [FixUp(tiles, blocks, *equal_splits(blocks, split_k), programs)]
    else:
        found, most = [], tiles // programs
        for rounds in {most, max(0, most - 1)} - {tiles / programs}:
            cut = tiles - rounds * programs
            per = -(-cut * blocks // programs)
            few = range(2, 1 + min(MOST_FIXED_UP, programs // cut, blocks))
            cuts = {(blocks // per, per), *(equal_splits(blocks, n) for n in few)}
            found += [FixUp(cut, blocks, *pair, programs, rounds) for pair in sorted(cuts)]
    return [work for work in found if 1 < work.slots <= MOST_FIXED_UP and work.cut <= programs]


@functools.cache
def share_out(tiles, blocks, block, programs, split_k=None):
    """The ``Work`` with the smallest modelled time: whole waves of splits, or one equal share for each program.

    Args:
        tiles: output tiles.
        blocks: length of the reduction in blocks.
        block: pixels in a block.
        programs: how many run at once.
        split_k: splits of every tile, or ``None`` to choose.
    """

    def cut(splits):
        return Work(tiles, blocks, *equal_splits(blocks, splits))

    def cost(work):
        waves = -(-work.items // programs)
        written = PARTIAL * tiles * work.slots / programs if work.slots > 1 else 0
        return waves * (work.per * block + START + (work.segments - 1) * NEXT) + written

    if split_k is not None:
        return cut(split_k)
    per = -(-tiles * blocks // programs)
    return min([*map(cut, range(1, min(blocks, MOST) + 1)), Work(tiles, blocks, blocks // per, per)], key=cost)
