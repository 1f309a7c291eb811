"""Clusters: several CTAs that run a program together, each with partitions, memory and barriers of its own.

A CTA's blocks have the whole's sizes; whose part is whose says the layout's ``cga_layout``, and what memory holds in place of
the others' is poison. The CTAs have the same code, so the nth allocation of the one stands for the nth of the other.
"""

from __future__ import annotations

import functools
from collections import Counter

import torch

from kernels.gluon_model.memory import BARRIER, TENSOR, Allocation
from kernels.gluon_model.races import join
from kernels.gluon_model.values import ModelError


@functools.lru_cache(maxsize=4096)
def part(bases: tuple, shape: tuple, cta: int) -> tuple[torch.Tensor | None, tuple[int, ...]]:
    """``(mask, holders)``: which elements of a block are a CTA's, None for all; and the CTAs that hold the same ones.

    bases: for each bit of a CTA's number, the step along each dimension, in parts; nothing but zeros: both hold the same.
    """
    parts, at, holders = [1] * len(shape), [0] * len(shape), [cta]
    for bit, basis in enumerate(bases):
        steps = [(d, n) for d, n in enumerate(basis, len(shape) - len(basis)) if n and shape[d] > 1]
        if not steps:
            holders += [other ^ 1 << bit for other in holders]
        for d, n in steps:
            parts[d] *= 2
            at[d] += n * (cta >> bit & 1)
    if any(size % n for size, n in zip(shape, parts)):
        raise ModelError(f"a block {list(shape)} cannot be cut into {parts} parts, one a CTA")
    if max(parts, default=1) == 1:
        return None, tuple(sorted(holders))
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[tuple(slice(size // n * i, size // n * (i + 1)) for size, n, i in zip(shape, parts, at))] = True
    return mask, tuple(sorted(holders))


class Meeting:
    """CTAs that wait for each other: how many have come, what they know together, and what one of them tells all."""

    def __init__(self):
        self.came, self.clock, self.fenced, self.answer = 0, {}, {}, None


class Cluster:
    """What the CTAs of one program share."""

    def __init__(self, machine, size: int):
        self.machine, self.size = machine, size
        self._slots: dict[tuple, list[Allocation]] = {}
        self._meetings: dict[tuple, Meeting] = {}
        self._counts: Counter = Counter()

    def named(self, name: str, cta: int) -> str:
        """A partition's name with its CTA."""
        return f"{name} of CTA {cta}"

    def _turn(self, what: str) -> tuple:
        """The running partition's next turn of some kind, by a name that all CTAs have for it."""
        me = self.machine.me
        self._counts[what, me.role, me.cta] += 1
        return me.role, self._counts[what, me.role, me.cta]

    # Whose part is whose.

    def part(self, layout, shape, cta: int | None = None):
        """``part`` of a block with a layout, of the running CTA if no other is named."""
        cta = self.machine.me.cta if cta is None else cta
        if len(shape) == 0:
            return None, tuple(range(self.size))
        bases = getattr(layout, "cga_layout", None) or ()
        if 2 ** len(bases) != self.size:
            what = "a block without a layout that the model knows" if layout is None else f"{layout}"
            raise ModelError(
                f"{what} does not say how {self.size} CTAs share a block {list(shape)}: that takes a cga_layout of "
                f"{self.size.bit_length() - 1} bases"
            )
        return part(tuple(map(tuple, bases)), tuple(shape), cta)

    def lanes(self, layout, shape, alone: bool) -> torch.Tensor:
        """The running CTA's lanes of an access; ``alone``: where several hold an element, the first of them alone."""
        mask, holders = self.part(layout, shape)
        if alone and holders[0] != self.machine.me.cta:
            return torch.zeros(shape, dtype=torch.bool)
        return torch.ones(shape, dtype=torch.bool) if mask is None else mask

    def check_within(self, wanted: torch.Tensor | None, held: torch.Tensor | None, what: str) -> None:
        """That the running CTA holds all that it wants (masks, None: everything)."""
        if held is not None and not bool((held if wanted is None else held | ~wanted).all()):
            raise ModelError(
                f"{what}: CTA {self.machine.me.cta} needs what another CTA holds, by their layouts' cga_layout. "
                "The model moves blocks from CTA to CTA by multicast copies alone"
            )

    # Memory.

    def allocate(self, kind: str, name: str, dtype, shape, layout, pair: bool) -> Allocation:
        """The running CTA's own piece of an allocation that all of them make; ``pair``: one for every two of them."""
        if kind == TENSOR:
            raise ModelError("tensor memory is not modelled in a cluster of several CTAs")
        turn = self._turn("allocation")
        if turn not in self._slots:
            peers: list[Allocation] = []
            for cta in range(self.size):
                if pair and cta % 2:
                    peers.append(peers[-1])
                    continue
                new = Allocation(kind, name, dtype, shape)
                if kind != BARRIER:
                    new.hold(self.part(layout, shape, cta)[0])
                if not pair or self.size > 2:
                    new.owner = f"CTAs {cta} and {cta + 1}" if pair else f"CTA {cta}"
                new.peers, new.lead, new.sharing = peers, cta, 1 + pair
                peers.append(new)
                self.machine.allocations.append(new)
            self._slots[turn] = peers
        return self._slots[turn][self.machine.me.cta]

    # Meetings.

    def meet(self, relaxed: bool = False) -> Meeting:
        """Wait for the same partition of all other CTAs; then, unless ``relaxed``, each knows what any of them knew."""
        me, machine = self.machine.me, self.machine
        meeting = self._meetings.setdefault(self._turn("meeting"), Meeting())
        machine.tick()
        if not relaxed:
            join(meeting.clock, me.clock)
            join(meeting.fenced, me.fenced)
        meeting.came += 1
        if meeting.came < self.size:
            me.meets = machine.place()
            machine.scheduler.step(ready=lambda: meeting.came == self.size)
            me.meets = None
        join(me.clock, meeting.clock)
        join(me.fenced, meeting.fenced)
        return meeting

    def once(self, act):
        """What the first CTA does for all of them, as an atomic on one number: they meet before and after, and all have its
        answer."""
        meeting = self.meet()
        if self.machine.me.cta == 0:
            meeting.answer = act()
        self.meet()
        return meeting.answer

    def publish(self) -> None:
        """The compiler lets the CTAs meet between the last ``mbarrier.init`` and the first use of a barrier."""
        if self.machine.me.inits:
            self.machine.me.inits = False
            self.meet()
