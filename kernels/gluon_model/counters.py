"""Order across programs: counters in global memory that one releases and another acquires, and sums that need an order."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.gluon_model.races import Access, join
from kernels.gluon_model.source import Place

_PATIENCE = 50  # polls in a row without any other event before a program counts as stuck


class Polls:
    """One program's polls: where each partition's last one stands, and how many came without any other event between."""

    def __init__(self, machine):
        self._machine, self._values, self._count, self._events = machine, {}, 0, -1
        self.places: dict = {}  # by partition: the line, what is polled, and how it stands

    def note(self, what: str, value) -> bool:
        """Count a poll; whether it found anything new."""
        me, events = self._machine.me, len(self._machine.events)
        new = self._values.get((me, what)) != value
        self._values[me, what] = value
        self.places[me] = self._machine.place(), what, value
        self._count = self._count + 1 if not new and events == self._events else 0
        self._events = events
        return new

    @property
    def idle(self) -> bool:
        """Whether the last polls, many of them, found nothing new and nothing else happened."""
        return self._count >= _PATIENCE and len(self._machine.events) == self._events


def meet(machine, pointer, offsets, sem: str | None) -> None:
    """An atomic orders events: what was released at an address is known to whoever acquires it there."""
    me = machine.me
    machine.tick()
    for offset in offsets.flatten().tolist():
        address = pointer.base.data_ptr() + offset * pointer.base.element_size()
        clock, fenced = machine.run.programs.counters[address]
        if sem in (None, "acquire", "acq_rel"):
            join(me.clock, clock)
            join(me.fenced, fenced)
        if sem in (None, "release", "acq_rel"):
            join(clock, me.clock)
            join(fenced, me.fenced)


def send(machine, descriptor, coord, operation, adds: bool) -> None:
    """A copy to global memory: two to one block, of one program or of two, need an order if one of them adds."""
    base = descriptor.base
    box = tuple((start, start + length) for start, length in zip(coord, descriptor.block_shape))
    operation.adds, operation.arrival = adds, machine.lanes.borrow(operation.clock)
    operation.arrived = machine.lanes.tick(operation.arrival, {})
    label = f"{descriptor.name}[{', '.join(f'{a}:{b}' for a, b in box)}]"
    new = Access(True, label, machine.me, operation, operation.arrival, operation.arrived, machine.place(), 0)
    blocks = machine.run.programs.blocks[base.data_ptr(), *descriptor.sizes, *descriptor.steps]
    for old in blocks.access(box, new, operation.clock):
        if adds or old.operation.adds:
            machine.conflicts.order_of_sums(old, new)


class Touch(NamedTuple):
    """A load or a store through pointers: of which partition, when, on which line."""

    write: bool
    partition: object
    tick: int
    place: Place


class Touched:
    """Who stored each element of a tensor last, and who has loaded it last, as numbers of touches; -1: nobody."""

    def __init__(self, length: int):
        self.stored, self.loaded = (torch.full((length,), -1, dtype=torch.int32) for _ in range(2))


def touch(machine, pointer, flat, at, write: bool) -> None:
    """A load of the elements ``at`` of a tensor, or a store that changes them: what it meets of other partitions and programs
    needs an order."""
    me, programs = machine.me, machine.run.programs
    key = flat.data_ptr(), len(flat)
    if key not in programs.touched:
        programs.touched[key] = Touched(len(flat))
    touched = programs.touched[key]
    new, at = Touch(write, me, machine.tick(), machine.place()), at.reshape(-1)
    met = [touched.stored[at], touched.loaded[at]] if write else [touched.stored[at]]
    for number in torch.unique(torch.cat(met)).tolist():
        if number >= 0:
            old = programs.touches[number]
            if old.tick > me.clock.get(old.partition.lane, 0):
                machine.conflicts.unordered(pointer.name, old, new)
    programs.touches.append(new)
    (touched.stored if write else touched.loaded)[at] = len(programs.touches) - 1
