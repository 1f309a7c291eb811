"""The process that forks the children of ``_child.py``: it has imported Triton before the first is needed."""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

TIMEOUT_SECONDS = 300  # a job; whoever grades a class sets less


class Nursery:
    """The process that forks the children: it has imported Triton, and torch once a child needed it, so they need not.

    It leaves when it has had no work for a while, and with this process.
    """

    _started: dict = {}  # by process and mode
    _lock = threading.Lock()

    @classmethod
    def raise_child(cls, interpreted: bool, job: str, folder: Path) -> int | None:
        """Have a child do the job in ``folder``; its exit status, or None if it took too long."""
        with cls._lock:
            for _ in range(2):  # again if it left just now
                nursery = cls.running(interpreted)
                with contextlib.suppress(EOFError):
                    return nursery.send(job, folder)
        raise RuntimeError(f"no process can be started: {sys.executable} ended with {nursery.process.returncode}")

    @classmethod
    def running(cls, interpreted: bool) -> "Nursery":
        """The process of this mode, started if there is none with the environment of now."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "TRITON_INTERPRET": str(int(interpreted)),
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
            "CUDA_VISIBLE_DEVICES": "",
        }
        key = os.getpid(), interpreted
        nursery = cls._started.get(key)
        if nursery is None or nursery.environment != environment or nursery.process.poll() is not None:
            if nursery is not None:
                nursery.end()
            nursery = cls._started[key] = cls(environment)
        return nursery

    def __init__(self, environment: dict[str, str]):
        self.environment, self.owner = environment, os.getpid()
        # -P: this folder holds a trace.py, which must not stand in for the standard library's.
        # In a session of its own, so that Ctrl-C reaches this process alone, and one signal ends it with its child.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("_child_main.py"))],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.end)

    def send(self, job: str, folder: Path) -> int | None:
        try:
            with contextlib.suppress(BrokenPipeError):  # it has left: no answer comes
                self.process.stdin.write(json.dumps([job, str(folder), os.getcwd()]).encode() + b"\n")
                self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)[0]:
                self.end()
                return None
            answer = self.process.stdout.readline()
            if not answer:
                self.end()
                raise EOFError
            return int(answer)
        except BaseException:  # a timer's, too: the answer, when it comes, must not be taken for the next job's
            self.end()
            raise

    def end(self) -> None:
        """End the process and the child that it may have."""
        atexit.unregister(self.end)
        if os.getpid() != self.owner:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


def make_ready() -> None:
    """Start the process that compiles, without waiting: it imports Triton meanwhile."""
    with Nursery._lock:
        Nursery.running(interpreted=False)
