"""An mbarrier: a counter of arrivals and of bytes, whose phases complete one after the other.

A phase is complete when all arrivals that ``init`` asked for have come *and* all bytes that were announced have
landed. ``wait(parity)`` lets pass as soon as the last completed phase has that parity; a fresh barrier counts as
having completed a phase of parity 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from kernels.gluon_model.races import join, knows
from kernels.gluon_model.source import Place


@dataclass(eq=False, slots=True)
class Wait:
    """One wait of one partition; ``phase``: the first completed phase that lets it pass, −1 on a fresh barrier."""

    barrier: Barrier
    partition: object
    parity: int
    phase: int
    tick: int
    place: Place


@dataclass(eq=False, slots=True)
class Arrival:
    """Who arrived, from where, how often; the operation is None if the partition arrived itself."""

    partition: object
    operation: object | None
    place: Place
    count: int


class Barrier:
    """The state of one mbarrier and, for the report, its history."""

    def __init__(self, machine, label: str):
        self.machine, self.label = machine, label
        self.ready = False  # between init and invalidate
        self.ended: Place | None = None  # where it was invalidated
        self._reset(0)

    def _reset(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = 0  # announced and not yet landed
        self.phase = 0  # the phase that is not complete yet
        self.done: list[tuple[dict, dict]] = []  # the clocks of the completed phases
        self._known: dict = {}
        self.clock, self.fenced = {}, {}
        self.waits: list[Wait] = []
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)
        self.announced, self.loaded = Counter(), Counter()  # bytes by phase, as the issuing partition counts phases
        self.announcers, self.loads = {}, defaultdict(list)

    def init(self, count: int) -> None:
        """Start a fresh phase 0 that takes ``count`` arrivals."""
        self._reset(count)
        self.ready = True
        self._log()

    def known(self, partition) -> int:
        """How many phases have completed for certain, by all that a partition knows now."""
        phases = self._known.get(partition, 0)
        while phases < len(self.done) and knows(partition.clock, self.done[phases][0]):
            phases += 1
        self._known[partition] = phases
        return phases

    def arrive(self, clock: dict, fenced: dict, arrival: Arrival) -> None:
        """Count arrivals, and complete the phase if they were the last that it needed."""
        if self.phase and not knows(clock, self.done[self.phase - 1][0]):
            self.machine.conflicts.early_arrival(self, arrival)
        if self.pending < arrival.count:
            self.machine.conflicts.too_many_arrivals(self, arrival)
        self.arrivals[self.phase].append(arrival)
        self.pending = max(self.pending - arrival.count, 0)
        self._gather(clock, fenced)

    def expect(self, nbytes: int) -> None:
        """Let the phase last until so many more bytes have landed."""
        self.bytes += nbytes
        self._log()

    def land(self, nbytes: int, clock: dict, fenced: dict) -> None:
        """Bytes of a copy have landed."""
        self.bytes -= nbytes
        self._gather(clock, fenced)

    def _gather(self, clock: dict, fenced: dict) -> None:
        join(self.clock, clock)
        join(self.fenced, fenced)
        if self.pending == 0 and self.bytes == 0:
            self.done.append((self.clock, self.fenced))
            self.clock, self.fenced = {}, {}
            self.pending = self.count
            self.phase += 1
            self._overtaken([wait for wait in self.waits if wait.phase == self.phase - 2])
            self.waits = [wait for wait in self.waits if wait.phase >= self.phase - 1]
        self._log()

    def _log(self) -> None:
        self.machine.log("barrier", self.label, (self.phase, self.pending, self.bytes))

    def passes(self, parity: int) -> bool:
        """Whether a wait for this parity passes now."""
        return self.phase % 2 != parity

    def begin_wait(self, partition, parity: int, tick: int, place: Place) -> Wait:
        """Note a wait before it blocks; which phase must let it pass follows from what the partition knows."""
        known = self.known(partition)
        wait = Wait(self, partition, parity, known if known % 2 == parity else known - 1, tick, place)
        self.waits.append(wait)
        if self.phase > wait.phase + 1:
            self._overtaken([wait])
        return wait

    def end_wait(self, wait: Wait) -> None:
        """Let the partition know what the phase that it waited for knows: that one, not a later one seen by luck."""
        if wait.phase >= 0:
            clock, fenced = self.done[wait.phase]
            join(wait.partition.clock, clock)
            join(wait.partition.fenced, fenced)

    def _overtaken(self, waits) -> None:
        """A phase has completed that makes an earlier wait block: fine only if it came after that wait."""
        for wait in waits:
            if self.done[wait.phase + 1][0].get(wait.partition.lane, 0) < wait.tick:
                self.machine.conflicts.overtaken_wait(wait)
