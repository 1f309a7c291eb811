"""A limit on what this process itself may work on a submission, which no submission needs and a hostile one could take."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

MOST_PATIENCE = 4.0


def patience() -> float:
    """How many times longer than alone a step may take now: as many as there are processes for each core, within limits.

    A submission has one process, so it makes nobody wait for itself.
    """
    return min(MOST_PATIENCE, max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))))


class TooLong(BaseException):
    """More time was taken than any submission needs."""


@contextlib.contextmanager
def within(seconds: Callable[[], float]):
    """Raise ``TooLong`` in the block after ``seconds()``, which may have become more by then.

    Signals reach the main thread alone, elsewhere there is no limit.
    """
    start = time.monotonic()

    def ring(*_):
        left = start + seconds() - time.monotonic()
        if left <= 0:
            raise TooLong
        signal.setitimer(signal.ITIMER_REAL, left)

    watched = threading.current_thread() is threading.main_thread()
    if watched:
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds())
    try:
        yield
    finally:
        if watched:
            signal.setitimer(signal.ITIMER_REAL, 0)
