"""The programs of a launch: one after the other, but where one waits for a counter in global memory the others go on.

They begin in the order of the grid, under the schedule "random" in any.

Every atomic that changes nothing, a question how a counter stands, hands the turn to another program of the grid, as if all
of them ran at once: that a kernel needs more programs at once than a GPU holds is not found.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque

from kernels.gluon_model.machine import Machine
from kernels.gluon_model.races import History


class Programs:
    """Runs ``execute(program)`` for each program of a grid, one at a time; it answers whether the program came to its end."""

    def __init__(self, programs, execute, schedule: str, seed: int):
        self.fresh, self.execute = deque(programs), execute
        self.waiting: list[_Seat] = []  # programs in the middle of a poll
        self.stopped, self.error = False, None
        self._random = random.Random(seed) if schedule == "random" else None
        if self._random:
            self._random.shuffle(self.fresh)
        self._launch = None  # where the launch's own thread waits when it has no program of its own left
        self.counters: dict[int, tuple[dict, dict]] = defaultdict(lambda: ({}, {}))  # clocks released at an address
        self.blocks: dict[tuple, History] = defaultdict(History)  # who sent what to a block of global memory
        self.touches: list = []  # loads and stores through pointers, in order
        self.touched: dict[tuple, object] = {}  # and by tensor, who stored and who loaded each element last

    def run(self) -> None:
        """All of them, to their ends, or until something keeps one from its end."""
        while not self.stopped and self.fresh:
            self._one(self.fresh.popleft())
        while self.waiting:
            self._launch = _Seat(None)
            self._next()()
            self._launch.sit()
        if self.error is not None:
            raise self.error

    def _one(self, program) -> None:
        try:
            self.stopped |= not self.execute(program)
        except BaseException as error:
            self.stopped, self.error = True, self.error or error

    def _thread(self, program) -> None:
        self._one(program)
        going_on = self.waiting or (self.fresh and not self.stopped)
        (self._next() if going_on else self._launch.go)()

    def _next(self):
        """What lets another program go on: one that has not begun, if there is any, or the one that has waited longest."""
        begin = bool(self.fresh) and not self.stopped
        waiting = len(self.waiting)
        number = self._random.randrange(waiting + begin) if self._random else waiting if begin else 0
        if number < waiting:
            return self.waiting.pop(number).go
        return threading.Thread(target=self._thread, args=(self.fresh.popleft(),), daemon=True).start

    def poll(self, machine) -> None:
        """A program asks how a counter stands: let others go on; if all of them only ask, nobody can."""
        mine = _Seat(machine)
        everybody = [mine, *self.waiting]
        if not self.fresh and all(seat.machine.polls.idle for seat in everybody):
            for seat in everybody:
                seat.machine.conflicts.spinning(seat.machine.polls)
            self.stopped = True
        elif self.fresh or self.waiting:
            go = self._next()
            self.waiting.append(mine)
            go()
            mine.sit()
            Machine.current = machine
        if self.stopped:
            machine.scheduler.stop()


class _Seat:
    """Where a program, or the launch, waits for its turn."""

    def __init__(self, machine):
        self.machine, self._baton = machine, threading.Semaphore(0)

    def go(self) -> None:
        """Let it go on."""
        self._baton.release()

    def sit(self) -> None:
        """Wait for the turn."""
        self._baton.acquire()
