"""What is ordered before what: vector clocks, and the accesses of one piece of memory that no wait has ordered.

Every partition, and every operation that a partition starts and that runs on without it (a copy, a matrix product), is
an *actor* with a lane in the vector clocks. A clock says for each lane up to which tick its owner is known to have
come. Waits join clocks; nothing else does. Two accesses of which neither knows the other are a race, however the
schedule at hand happened to run them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.gluon_model.source import Place


def join(clock: dict, other: dict) -> None:
    """Let ``clock`` know all that ``other`` knows."""
    for lane, tick in other.items():
        if clock.get(lane, 0) < tick:
            clock[lane] = tick


def knows(clock: dict, other: dict) -> bool:
    """Whether everything in ``other`` has come to the knowledge of ``clock``."""
    return all(clock.get(lane, 0) >= tick for lane, tick in other.items())


class Lanes:
    """Hands out lanes. That of an operation is used again once the newcomer knows it is over: clocks stay short."""

    def __init__(self):
        self._last: list[int] = []
        self._passing: list[int] = []  # lanes that operations have one after the other

    def own(self) -> int:
        """A lane for an actor that stays: a partition, or a queue of operations."""
        self._last.append(0)
        return len(self._last) - 1

    def borrow(self, clock: dict) -> int:
        """A lane for one operation whose issuer has this knowledge."""
        for lane in self._passing:
            if clock.get(lane, 0) >= self._last[lane]:
                return lane
        self._passing.append(self.own())
        return self._passing[-1]

    def tick(self, lane: int, clock: dict) -> int:
        """Advance a lane by one event, known to its owner's clock."""
        self._last[lane] += 1
        clock[lane] = self._last[lane]
        return clock[lane]


@dataclass(eq=False, slots=True)
class Access:
    """One read or write of a box of memory by one actor at one tick."""

    write: bool
    label: str  # what is touched, as the kernel calls it: a[1]
    partition: object  # who did it, or who issued the operation that did
    operation: object | None  # the asynchronous operation; None if the partition touched the memory itself
    lane: int
    tick: int
    place: Place
    waits: int  # how many waits the partition had behind it

    def known_to(self, clock: dict) -> bool:
        """Whether an actor with this clock knows that the access is over."""
        return clock.get(self.lane, 0) >= self.tick


@dataclass(eq=False, slots=True)
class Cell:
    """One box of an allocation: who wrote it last, and who has read it since."""

    writer: Access | None = None
    readers: dict[int, Access] = field(default_factory=dict)


Box = tuple[tuple[int, int], ...]


def _overlap(a: Box, b: Box) -> bool:
    return all(start < other_stop and other < stop for (start, stop), (other, other_stop) in zip(a, b))


def _inside(a: Box, b: Box) -> bool:
    return all(start >= other and stop <= other_stop for (start, stop), (other, other_stop) in zip(a, b))


class History:
    """The accesses of one allocation that a later access could still collide with."""

    def __init__(self):
        self._cells: dict[Box, Cell] = {}

    def access(self, box: Box, new: Access, clock: dict):
        """Record an access; yield the earlier ones that it is not ordered after."""
        for other, cell in list(self._cells.items()):
            if not _overlap(box, other):
                continue
            if cell.writer is not None and not cell.writer.known_to(clock):
                yield cell.writer
            if new.write:
                yield from [reader for reader in cell.readers.values() if not reader.known_to(clock)]
                if _inside(other, box):
                    del self._cells[other]
        if new.write:
            self._cells[box] = Cell(new)
        else:
            self._cells.setdefault(box, Cell()).readers[new.lane] = new

    def writers(self, box: Box):
        """The last writers of everything that overlaps ``box``."""
        return [c.writer for other, c in self._cells.items() if c.writer is not None and _overlap(box, other)]
