"""The process that forks the children of ``_child.py``: it has imported Triton before the first is needed."""

import atexit
import contextlib
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TIMEOUT_SECONDS = 300  # a job; whoever grades a class sets less


class Place(NamedTuple):
    """Where children live: what starts the process that forks them, its environment, and their working directory."""

    command: list[str]
    environment: dict[str, str]
    working: str


_confined: Place | None = None


@contextlib.contextmanager
def confined(place: Place | None) -> Iterator[None]:
    """Children that compile live in ``place`` meanwhile: whoever compiles what others wrote gives them a sandbox."""
    global _confined
    before, _confined = _confined, place
    try:
        yield
    finally:
        _confined = before


class Answer(NamedTuple):
    """What a child left: its exit status, the last lines that it printed, and its answer, empty if there is none."""

    status: int
    words: str
    content: bytes


class ForkServer:
    """The process that forks the children: it has imported Triton, and torch once a child needed it, so they need not.

    It leaves when it has had no work for a while, and with this process.
    """

    _started: dict = {}  # by process, mode and whether it is confined
    _lock = threading.Lock()

    @classmethod
    def run(cls, interpreted: bool, job: str, source: str, details: dict) -> Answer | None:
        """Have a child do the job on a module's text; what it left, or None if it took too long."""
        with cls._lock:
            for _ in range(2):  # again if it left just now
                server = cls.running(interpreted)
                with contextlib.suppress(EOFError):
                    return server.send(job, source, details)
        ended = f"{sys.executable} ended with {server.process.returncode}"
        raise RuntimeError(f"no process can be started: {ended}{_why(server.place)}")

    @classmethod
    def running(cls, interpreted: bool) -> "ForkServer":
        """The process of this mode, started if there is none with the environment of now."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "TRITON_INTERPRET": str(int(interpreted)),
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
            "CUDA_VISIBLE_DEVICES": "",
        }
        # -P: this folder holds a trace.py, which must not stand in for the standard library's.
        command = [sys.executable, "-P", str(Path(__file__).with_name("_child_main.py"))]
        place = Place(command, environment, "") if interpreted or _confined is None else _confined
        key = os.getpid(), interpreted, place is _confined
        server = cls._started.get(key)
        if server is None or server.place != place or server.process.poll() is not None:
            if server is not None:
                server.end()
            server = cls._started[key] = cls(place)
        return server

    def __init__(self, place: Place):
        self.place, self.owner = place, os.getpid()
        self.folder = None if place.working else tempfile.TemporaryDirectory(prefix="kernels_lab_")
        # In a session of its own, so that Ctrl-C reaches this process alone, and one signal ends it with its child.
        self.process = subprocess.Popen(
            place.command + ([self.folder.name] if self.folder else []),
            env=place.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        atexit.register(self.end)

    def send(self, job: str, source: str, details: dict) -> Answer | None:
        """One job's answer; ``EOFError`` if the process is gone."""
        until = time.monotonic() + TIMEOUT_SECONDS
        parts = source.encode(), pickle.dumps(details)
        head = json.dumps([job, self.place.working or os.getcwd(), *map(len, parts)]).encode() + b"\n"
        try:
            for part in (head, *parts):
                self._write(part, until)
            received = bytearray()
            while b"\n" not in received:
                received += self._read(until)
            head, _, content = received.partition(b"\n")
            status, words, size = json.loads(head)
            while len(content) < size:
                content += self._read(until)
            if len(content) > size:
                raise EOFError  # more than was asked for: nothing of it is taken for the next job's
            return Answer(status, words, bytes(content))
        except TimeoutError:
            self.end()
            return None
        except BaseException:  # a timer's, too: the answer, when it comes, must not be taken for the next job's
            self.end()
            raise

    def _write(self, data: bytes, until: float) -> None:
        for begin in range(0, len(data), select.PIPE_BUF):  # so much a pipe takes without waiting once it takes any
            if not select.select([], [self.process.stdin], [], max(0, until - time.monotonic()))[1]:
                raise TimeoutError
            try:
                self.process.stdin.write(data[begin : begin + select.PIPE_BUF])
            except BrokenPipeError:  # it has left
                raise EOFError from None

    def _read(self, until: float) -> bytes:
        if not select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))[0]:
            raise TimeoutError
        data = self.process.stdout.read(1 << 20)
        if not data:
            raise EOFError
        return data

    def end(self) -> None:
        """End the process and the child that it may have."""
        atexit.unregister(self.end)
        if os.getpid() != self.owner:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        if self.folder:
            self.folder.cleanup()


def _why(place: Place) -> str:
    """The error that ends a process as soon as it is started, such as a file beside a script that is named as a module."""
    with tempfile.TemporaryDirectory(prefix="kernels_lab_") as folder, contextlib.suppress(subprocess.TimeoutExpired):
        command = place.command + ([] if place.working else [folder])
        tried = subprocess.run(
            command, env=place.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        if tried.returncode and (errors := re.findall(r"^\w*Error\b.*", tried.stderr, re.MULTILINE)):
            return f", with {errors[-1]}"
    return ""


def make_ready() -> None:
    """Start the process that compiles, without waiting: it imports Triton meanwhile."""
    with ForkServer._lock:
        ForkServer.running(interpreted=False)
