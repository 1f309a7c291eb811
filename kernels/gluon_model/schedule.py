"""Who goes next: partitions as threads of which one runs at a time, operations in flight that land in their turn."""

from __future__ import annotations

import random
import threading

SCHEDULES = ("round-robin", "greedy", "eager", "random")


class Stopped(BaseException):
    """Unwinds a partition's stack after a deadlock or an error elsewhere; kernels cannot catch it by accident."""


class EndlessLoop(Stopped):
    """The program has taken more steps than a run allows."""


class Policy:
    """One of the schedules.

    "round-robin": partitions take turns, and once a round the oldest operation in flight lands. "greedy": a partition
    runs until it blocks, and operations land only when no partition can move: as late as possible. "eager":
    operations land at once: what a lucky test sees. "random": anybody, from ``seed``.
    """

    def __init__(self, name: str, seed: int = 0):
        if name not in SCHEDULES:
            raise ValueError(f"schedule is {name!r}: it must be one of {', '.join(map(repr, SCHEDULES))}")
        self.name, self._random, self._last = name, random.Random(seed), None

    def choose(self, partitions: list, operations: list):
        """The next partition or operation, of those that can move."""
        if self.name == "random":
            everybody = partitions + operations
            return everybody[self._random.randrange(len(everybody))]
        if self.name == "round-robin":
            turns = partitions + operations[:1]
            self._last = next(
                (one for one in turns if self._last is not None and one.number > self._last.number), turns[0]
            )
        elif operations and (self.name == "eager" or not partitions):
            return operations[0]
        elif self._last not in partitions:
            self._last = partitions[0]
        return self._last


class Scheduler:
    """Hands the baton from partition to partition; whoever holds it decides who is next."""

    def __init__(self, machine, policy: Policy, most_steps: int):
        self.machine, self.policy, self.steps_left = machine, policy, most_steps
        self.failure: BaseException | None = None
        self.running = None

    def step(self, ready=None, aside: bool = False) -> None:
        """Let others move; come back when it is this partition's turn and ``ready()`` holds. ``aside``: not before one of
        them has moved, if one can."""
        me = self.running
        me.ready = ready
        chosen = self._next(me if aside else None)
        if chosen is None:
            self.stop()
        if chosen is not me:
            self._pass(chosen)
            me.baton.acquire()
            if self.failure is not None:
                raise Stopped
        me.ready = None

    def stop(self) -> None:
        """End the program from the partition that is running."""
        self.failure = self.failure or Stopped()
        if self.running is not self.machine.partitions[0]:
            self._pass(self.machine.partitions[0])
            raise Stopped
        raise self.failure

    def _pass(self, partition) -> None:
        self.running = partition
        partition.baton.release()

    def _next(self, aside=None):
        """The next partition to move, after landing the operations whose turn comes first; None in a deadlock."""
        while True:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.failure = EndlessLoop("the kernel does not end: raise most_steps if it is meant to run that long")
                return None
            movable = [p for p in self.machine.partitions if not p.ended and (p.ready is None or p.ready())]
            landing = [o for o in self.machine.in_flight if o.first_in_line]
            if not movable and not landing:
                self.machine.conflicts.deadlock()
                return None
            others = [p for p in movable if p is not aside]
            chosen = self.policy.choose(others if others or landing else movable, landing)
            if chosen in movable:
                return chosen
            self.machine.land(chosen)

    def run(self, partitions: list):
        """Run the first partition here and the others in threads, until all have ended; what the first returns."""
        threads = [threading.Thread(target=self._thread, args=(p,), daemon=True) for p in partitions[1:]]
        for thread in threads:
            thread.start()
        outside, self.running, result = self.running, partitions[0], None
        partitions[0].baton = outside.baton  # the same thread
        try:
            result = partitions[0].body()
            self.step(ready=lambda: all(p.ended for p in partitions[1:]))
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            for partition in partitions[1:]:
                if not partition.ended:
                    partition.baton.release()
            for thread in threads:
                thread.join()
        if self.failure is not None:
            raise self.failure
        self.running = outside
        return result

    def _thread(self, partition) -> None:
        partition.baton.acquire()
        if self.failure is not None:
            return
        try:
            partition.body()
        except Stopped:
            return  # whoever stopped us has passed the baton already
        except BaseException as error:
            self.failure = self.failure or error
            self._pass(self.machine.partitions[0])
            return
        partition.ended = True
        chosen = self._next()
        if chosen is None:
            self.failure = self.failure or Stopped()
            chosen = self.machine.partitions[0]
        self._pass(chosen)
