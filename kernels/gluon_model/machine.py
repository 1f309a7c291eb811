"""One program's machine: its partitions, the operations that they have in flight, its memory, and what is observed."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

from kernels.gluon_model import memory
from kernels.gluon_model.barriers import Arrival, Barrier
from kernels.gluon_model.clusters import Cluster
from kernels.gluon_model.counters import Polls
from kernels.gluon_model.races import Access, join
from kernels.gluon_model.report import Conflicts
from kernels.gluon_model.schedule import Scheduler
from kernels.gluon_model.source import Place
from kernels.gluon_model.values import ModelError

_SEATS = 1000  # partitions of a CTA, at most: they are numbered through


class Partition:
    """Some warps that run one function, as one thread of the model."""

    def __init__(self, name: str, number: int, num_warps: int, body=None, fills: bool = False, cta: int = 0, role=None):
        self.name, self.number, self.num_warps, self.body = name, number, num_warps, body
        self.fills = fills  # whether its code loads or multiplies into memory that others read
        self.cta, self.role = cta, role or name  # role: its name, but for the CTA
        self.meets: Place | None = None  # where it waits for the cluster's other CTAs
        self.inits = False  # whether it has initialized barriers and not used them yet
        self.lane, self.clock, self.fenced = 0, {}, {}
        self.baton, self.ready, self.ended = threading.Semaphore(0), None, False
        self.waits: list = []  # every wait on a barrier, in order
        self.blocked = None  # the wait that it is in
        self.products = Queue("tensor core")
        self.stores: list[Operation] = []  # that may still read shared memory
        self.sent: list[Operation] = []  # that may not have reached global memory


class Queue:
    """Operations of one partition that complete in the order in which they were issued."""

    def __init__(self, engine: str):
        self.engine, self.operations, self.lane = engine, [], None


class Operation:
    """Something that a partition started and that goes on without it: a copy, a product, a commit."""

    number = math.inf  # its seat among the partitions in a round-robin

    def __init__(self, what: str, engine: str, issuer: Partition, place: Place, act, queue: Queue | None):
        self.what, self.engine, self.issuer, self.place, self.act, self.queue = what, engine, issuer, place, act, queue
        self.landed = False
        self.before = queue.operations[-1] if queue and queue.operations else None
        self.signals: list[tuple[Barrier, int]] = []  # which phase of which barrier it helps to complete
        self.lane, self.tick, self.clock, self.fenced = 0, 0, {}, {}
        self.reads, self.writes = [], []

    @property
    def first_in_line(self) -> bool:
        """Whether it may land: all before it in its queue have."""
        return self.before is None or self.before.landed

    def __str__(self) -> str:
        return f"the {self.what} that {self.issuer.name} issued"


class Event(NamedTuple):
    """One line of the log behind the timeline."""

    step: int
    kind: str  # one of picture.LETTERS; pass: a wait that is over; land: an operation that is; barrier: a new state
    who: str
    what: str
    place: Place
    detail: object  # the wait, the operation, or the barrier's (phase, arrivals missing, bytes missing)


class Machine:
    """Runs one program of the grid."""

    current: Machine | None = None  # the one whose kernel is running; there is only one at a time

    def __init__(self, run, program: tuple[int, int, int], policy, num_warps: int, most_steps: int, ctas: int = 1):
        self.run, self.program = run, program
        self.conflicts = Conflicts(self)
        self.polls = Polls(self)
        self.lanes = run.lanes
        self.cluster = Cluster(self, ctas) if ctas > 1 else None
        self.roots = [self._partition(run.name, cta, 0, num_warps) for cta in range(ctas)]
        for root in self.roots:
            self._start(root, {}, {})
        self.partitions = list(self.roots)
        self.everybody = list(self.roots)  # also those of warp_specialize regions that are over
        self.in_flight: list[Operation] = []
        self.operations: list[Operation] = []
        self.allocations: list[memory.Allocation] = []
        self.events: list[Event] = []
        self.scheduler = Scheduler(self, policy, most_steps)
        self.scheduler.running = self.roots[0]

    def _partition(self, name: str, cta: int, number: int, *rest) -> Partition:
        full = name if self.cluster is None else self.cluster.named(name, cta)
        return Partition(full, cta * _SEATS + number, *rest, cta=cta, role=name)

    def execute(self, function) -> None:
        """Run the kernel, once for every CTA; none leaves before all have come to their end."""
        if self.cluster is None:
            function()
            return
        for root in self.roots:
            root.body = function
        self.scheduler.run(self.roots)
        self._gather(self.roots[0], self.roots)

    def _start(self, partition: Partition, clock: dict, fenced: dict) -> None:
        partition.clock, partition.fenced = dict(clock), dict(fenced)
        partition.lane = self.lanes.own()
        self.lanes.tick(partition.lane, partition.clock)

    @property
    def me(self) -> Partition:
        """The partition that is running."""
        return self.scheduler.running

    def place(self) -> Place:
        """The line that the kernel is on."""
        return self.run.locator.place()

    # What is written down.

    def log(self, kind: str, what: str, detail=None, who: str | None = None, place: Place | None = None) -> None:
        """Add an event to the log."""
        place = place or self.run.locator.place()
        self.events.append(Event(len(self.events), kind, who or self.me.name, what, place, detail))

    def note(self, kind: str, view) -> None:
        """Log that the running partition touches a view."""
        self.log(kind, view.label)

    # Time.

    def step(self, aside: bool = False) -> None:
        """A point at which others may come in between; ``aside``: they go first."""
        self.scheduler.step(aside=aside)

    def tick(self) -> int:
        """Count one event of the running partition."""
        return self.lanes.tick(self.me.lane, self.me.clock)

    # Memory.

    def allocate(self, kind: str, dtype, shape, layout, pair: bool = False) -> memory.View:
        """A new allocation, named after the variable that it goes to; ``pair``: two CTAs of a cluster share it."""
        shape = [int(size) for size in shape]
        name = self.run.locator.target()
        if name is None:
            name = f"the {kind} of line {self.place().line}"
        if self.cluster is None:
            allocation = memory.Allocation(kind, name, dtype, shape)
            self.allocations.append(allocation)
        else:
            allocation = self.cluster.allocate(kind, name, dtype, shape, layout, pair)
        return memory.View.whole(self, allocation, layout)

    def touch(self, view, write: bool, operation: Operation | None = None) -> None:
        """Check one access against all that came before, and remember it."""
        me = self.me
        if operation is None:
            clock, fenced, lane, tick = me.clock, me.fenced, me.lane, self.tick()
        else:
            clock, fenced, lane, tick = operation.clock, operation.fenced, operation.lane, operation.tick
            (operation.writes if write else operation.reads).append(view)
        new = Access(write, view.label, me, operation, lane, tick, self.place(), len(me.waits))
        history = view.allocation.history
        if not write:
            writers = history.writers(view.box)
            if operation is not None and view.allocation.kind == memory.SHARED:
                for old in writers:
                    if old.operation is None and old.known_to(clock) and not old.known_to(fenced):
                        self.conflicts.missing_fence(old, new)
            pending = any(w.operation is not None and not w.operation.landed for w in writers)
            if not pending and not bool(view.written.all()):
                self.conflicts.uninitialized(view, new)
        for old in history.access(view.box, new, clock):
            if (old.lane, old.tick) != (lane, tick):
                self.conflicts.race(view.allocation, old, new)

    # Operations.

    def issue(self, what: str, engine: str, act, reads=(), writes=(), queue: Queue | None = None) -> Operation:
        """Start an operation: it knows what its issuer knows and, in a queue, all that went before it there."""
        me = self.me
        self.tick()
        new = Operation(what, engine, me, self.place(), act, queue)
        new.clock, new.fenced = dict(me.clock), dict(me.fenced)
        if queue is None:
            new.lane = self.lanes.borrow(new.clock)
        else:
            if queue.lane is None:
                queue.lane = self.lanes.own()
            new.lane = queue.lane
            queue.operations.append(new)
        new.tick = self.lanes.tick(new.lane, new.clock)
        for view in reads:
            self.touch(view, False, new)
        for view in writes:
            self.touch(view, True, new)
        self.in_flight.append(new)
        self.operations.append(new)
        self.log("issue", what, new)
        return new

    def land(self, operation: Operation) -> None:
        """An operation takes effect: only now are its sources read and its results written."""
        self.in_flight.remove(operation)
        operation.landed = True
        operation.act(operation)
        operation.act = None  # it holds on to the numbers
        self.log("land", operation.what, operation, operation.issuer.name, operation.place)

    def join(self, operation: Operation) -> None:
        """Block until an operation has landed, and know it."""
        if not operation.landed:
            self.scheduler.step(ready=lambda: operation.landed)
        join(self.me.clock, operation.clock)
        join(self.me.fenced, operation.fenced)

    def known(self, operation: Operation) -> bool:
        """Whether the running partition has waited for an operation."""
        return self.me.clock.get(operation.lane, 0) >= operation.tick

    # Barriers.

    def barrier(self, view, use: str) -> Barrier:
        """The barrier that a view names, ready for ``use``."""
        if not isinstance(view, memory.View) or view.allocation.kind != memory.BARRIER:
            raise ModelError(f"{use} needs an mbarrier, not {getattr(view, 'label', view)!r}")
        if view.numel != 1:
            raise ModelError(f"{use} needs one mbarrier; {view.label} holds {view.numel}: take .index(i)")
        if self.cluster is not None and use not in ("init", "invalidate"):
            self.cluster.publish()
        key = tuple(start for start, _ in view.box)
        barrier = view.allocation.barriers.setdefault(key, Barrier(self, view.label))
        self.touch(view, use in ("init", "invalidate"))
        if use == "init":
            view.fill(0)
        elif not barrier.ready:
            self.conflicts.unready_barrier(barrier, use)
        return barrier

    def arrive(self, barrier: Barrier, count: int, operation: Operation | None = None) -> None:
        """Arrive for the running partition, or for an operation of its that lands."""
        if operation is None:
            self.tick()
            clock, fenced, partition, place = self.me.clock, self.me.fenced, self.me, self.place()
        else:
            clock, fenced, partition, place = operation.clock, operation.fenced, operation.issuer, operation.place
        barrier.arrive(clock, fenced, Arrival(partition, operation, place, count))

    def wait(self, barrier: Barrier, parity: int) -> None:
        """Block until the last completed phase has this parity."""
        me = self.me
        wait = barrier.begin_wait(me, parity, self.tick(), self.place())
        me.waits.append(wait)
        self.log("wait", barrier.label, wait)
        if not barrier.passes(parity):
            me.blocked = wait
            self.scheduler.step(ready=lambda: barrier.passes(parity))
            me.blocked = None
        barrier.end_wait(wait)
        self.log("pass", barrier.label, wait)

    def fence(self) -> None:
        """Make what the running partition knows of ordinary stores visible to copies and products."""
        join(self.me.fenced, self.me.clock)
        self.log("fence", "shared memory")

    # Partitions.

    def warp_specialize(self, names, warps, bodies, fills):
        """Run one body a partition, the first in place of the caller, and return what the first returns."""
        root = self.me
        if root not in self.roots:
            raise ModelError("warp_specialize cannot be called inside one of its own partitions")
        if self.cluster is not None:
            self.cluster.publish()
        numbers, warps = range(len(names)), [root.num_warps, *warps]
        inner = [self._partition(n, root.cta, *what) for n, *what in zip(names, numbers, warps, bodies, fills)]
        for partition in inner:
            self._start(partition, root.clock, root.fenced)
        self._replace([root], inner)
        self.everybody += inner
        result = self.scheduler.run(inner)
        self._gather(root, inner)
        self._replace(inner, [root])
        return result

    def _replace(self, old: list[Partition], new: list[Partition]) -> None:
        """Others run from now on; the order of CTAs stays."""
        at = self.partitions.index(old[0])
        self.partitions[at : at + len(old)] = new

    def _gather(self, root: Partition, partitions: list[Partition]) -> None:
        """Whoever waited for partitions to end knows what they did."""
        for partition in partitions:
            join(root.clock, partition.clock)
            join(root.fenced, partition.fenced)
        self.tick()
