"""Judges side by side on this machine, each a process with a sandbox of its own; one that is lost is replaced."""

import atexit
import collections
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from tools.grading.results import Result
from tools.grading.worker import Task, begin, judged

TRIES = 2  # how often a submission is tried whose judge came to its end


class Judges:
    """``jobs`` judges, which start at once."""

    def __init__(self, jobs: int, *how):
        self.jobs, self._how = jobs, how
        self._pool = self._started(jobs)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _started(self, jobs: int) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, self._how)
        self._first = pool.submit(int)  # the first call starts the processes
        return pool

    def _replaced(self, jobs: int) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._started(jobs)

    def results(self, tasks: list[Task], begun: Callable[[Task], None]) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, as they arrive; ``begun(task)`` is called when one is handed to a judge.

        The first are handed over at once. This comes back when a judge has imported what it needs, or cannot: until then the
        cores are its own.
        """
        waiting = collections.deque((task, 1) for task in tasks)
        running: dict[Future, tuple[Task, int]] = {}
        self._hand_over(self.jobs, waiting, running, begun)
        wait([self._first])
        return self._arriving(waiting, running, begun)

    def _arriving(self, waiting, running, begun):
        again: collections.deque = collections.deque()  # was being judged when a judge's process came to its end
        while True:
            yield from self._until_one_is_lost(self.jobs, waiting, running, again, begun)
            if not waiting:
                break
            self._replaced(self.jobs)
        while again:  # one at a time: so the one that ends its judge is the one that is named
            self._replaced(1)
            yield from self._until_one_is_lost(1, again, {}, again, begun)

    def _hand_over(self, jobs, waiting, running, begun) -> None:
        while waiting and len(running) < jobs:
            task, attempt = waiting.popleft()
            begun(task)
            running[self._submitted(task)] = task, attempt

    def _until_one_is_lost(self, jobs, waiting, running, again, begun):
        """Judge until nothing waits, or until a judge's process is gone: then its submissions are tried once more."""
        try:
            while waiting or running:
                self._hand_over(jobs, waiting, running, begun)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task, attempt = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        running[future] = task, attempt
                        raise
                    except Exception as error:  # the judge's own mistake, named with the submission that shows it
                        result = _crashed(task, f"the judge failed: {type(error).__name__}: {error}")
                    yield task, result
        except BrokenProcessPool:
            lost = list(running.values())
            running.clear()
            for task, attempt in lost:
                if attempt < TRIES:
                    again.append((task, attempt + 1))
                else:
                    yield task, _crashed(task, "the judge's process came to its end twice")

    def _submitted(self, task: Task) -> Future:
        try:
            return self._pool.submit(judged, task)
        except BrokenProcessPool as error:  # it ended before it had anything to do: as if it had ended at this task
            future = Future()
            future.set_exception(error)
            return future


def _begin(*how) -> None:
    atexit.register(_leave)  # before anything else is registered: so it comes last
    threading.Thread(target=_follow, daemon=True).start()
    begin(*how)


def _follow() -> None:
    """End with the process that started this one, however it ended: nobody else would end a judge."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _leave() -> None:
    """End a judge's process without taking its interpreter apart, in which Triton's bindings complain of all they hold."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _crashed(task: Task, why: str) -> Result:
    return Result(task.student, task.assignment, "crashed", why)
