"""Time: a call that does not end is ended, with its reason; a check that takes long shows that it is at work."""

import contextlib
import ctypes
import os
import threading
import time

CALL_SECONDS = 10  # of computing, one call of the learner's function
WAIT_SECONDS = 60  # one that waits instead, for a lock or for a busy machine
AGAIN_SECONDS = 2  # until it is raised again: Python drops what is raised inside a destructor or a weak reference's callback
PATIENCE_SECONDS = 3  # until a check shows what it is at

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class TooSlow(BaseException):
    """The call in this thread has taken too long. No ``Exception``: a learner's ``except Exception`` must not keep it."""


@contextlib.contextmanager
def limited():
    """Raise ``TooSlow`` in this thread, whichever it is, once the block has computed, or waited, for too long.

    Python code is ended between two of its steps, so one call of a library comes to its own end first.
    """
    seconds, waiting = CALL_SECONDS, WAIT_SECONDS
    thread, clock = ctypes.c_ulong(threading.get_ident()), _clock(threading.get_ident())
    began, began_waiting = clock(), time.monotonic()
    lock, over = threading.Lock(), threading.Event()

    def watch():
        pause = 0.1
        while not over.wait(pause):
            if clock() - began > seconds or time.monotonic() - began_waiting > waiting:
                with lock:
                    if not over.is_set():
                        _raise_in(thread, ctypes.py_object(TooSlow))
                pause = AGAIN_SECONDS

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            over.set()
            _raise_in(thread, None)  # what was raised a moment ago and has not arrived


def _clock(thread: int):
    """A thread's own computing time where the system tells it, else the time of day."""
    if hasattr(time, "pthread_getcpuclockid"):
        number = time.pthread_getcpuclockid(thread)
        return lambda: time.clock_gettime(number)
    return time.monotonic


class Progress:
    """One line that says what a check is at, and about how long it still takes, once it has taken a while.

    ``KERNELS_PROGRESS=0`` keeps it quiet, where what is printed is stored or compared. ``of`` is how many things there are.
    """

    def __init__(self, of: int):
        self.of, self.number, self.now = of, 0, ""
        self.began, self.shown = time.monotonic(), 0
        self.quiet = os.environ.get("KERNELS_PROGRESS") == "0" or os.environ.get("KERNELS_GRADING") == "1"

    def at(self, what: str) -> None:
        """Show it, after a while."""
        if what != self.now:
            self.number, self.now = self.number + 1, what
        took = time.monotonic() - self.began
        if took > PATIENCE_SECONDS and not self.quiet:
            self.clear()
            text = f"{what}: {self.number} of {self.of}, after {took:.0f} s"
            if self.number > 1:
                text += f", about {took / (self.number - 1) * (self.of - self.number + 1):.0f} s left"
            print(f"\r{text}", end="", flush=True)
            self.shown = len(text)

    def clear(self) -> None:
        """Take the line away, before something else is printed."""
        if self.shown:
            print("\r" + " " * self.shown + "\r", end="", flush=True)
            self.shown = 0
