"""A pytest plugin for `make test`: notebook kernels that are forked, each, from a process that has imported the libraries.

Of what a kernel takes to start, most is torch and matplotlib, read anew for each notebook. A forked kernel is as fresh as
one of its own: where it comes from no cell has run, and neither the course nor Triton has been imported, so that a notebook
which forgets an import, or imports Triton first, fails here as it does at home. What is stored comes from kernels that start
from nothing (``make refresh``), and they check it once more in ``make nbval-portable``.
"""

import atexit
import json
import os
import subprocess
import sys
import time

LAUNCHER = "ipykernel_launcher"
NOT_COMPARED = ("PYTEST_", "JPY_")  # what differs from kernel to kernel; each is given its own


class Parent:
    """The process that kernels are forked from: it has the environment of the first, and leaves with this process."""

    def __init__(self, python: list[str], environment: dict[str, str]):
        self.environment = environment
        self.process = subprocess.Popen(
            [*python, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches pytest alone, which ends its kernels
            text=True,
        )

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that forks kernels ended with {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        self.process.stdin.close(), self.process.wait(), self.process.stdout.close()


class Kernel:
    """A forked kernel, for jupyter_client: of ``subprocess.Popen``, what it uses."""

    stdin = stdout = stderr = returncode = None

    def __init__(self, parent: Parent, pid: int):
        self.parent, self.pid = parent, pid

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.parent.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(LAUNCHER, timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, signal: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal)


_parent: Parent | None = None


def launch_kernel(command, env=None, cwd=None, **streams) -> Kernel:
    """In place of jupyter_client's: fork what ``command`` would start. Its streams lead nowhere; what cells print doesn't."""
    global _parent
    at = command.index(LAUNCHER)
    env = dict(os.environ if env is None else env)
    shared = {name: value for name, value in env.items() if not name.startswith(NOT_COMPARED)}
    if _parent is None or _parent.environment != shared:
        end()
        _parent = Parent(command[: at - 1], shared)  # without -m
    return Kernel(_parent, _parent.ask(argv=command[at:], cwd=str(cwd or os.getcwd()), env=env))


def pytest_configure(config):
    if hasattr(os, "fork"):
        from jupyter_client.provisioning import local_provisioner

        local_provisioner.launch_kernel = launch_kernel


def pytest_unconfigure():
    end()


def end() -> None:
    """End the process that kernels are forked from."""
    global _parent
    if _parent is not None:
        _parent.end()
    _parent = None


def serve() -> None:
    """Import what lessons import of libraries; then fork a kernel for each line that asks for one."""
    del sys.path[0]  # the folder of this file, which no kernel sees
    answers = os.fdopen(os.dup(1), "w")
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # read at import: a kernel ends when this process has
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # a kernel's choice, read at import, too

    import gc
    import random

    import ipykernel.kernelapp
    import matplotlib.backends.backend_agg  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import numpy
    import torch  # noqa: F401

    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    gc.collect(), gc.freeze()  # no kernel looks through these objects again
    while request := sys.stdin.readline():
        request = json.loads(request)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), file=answers, flush=True)
        elif os.fork() == 0:
            os.setsid()
            os.dup2(1, 0)
            print(os.getpid(), file=answers, flush=True)
            answers.close()
            os.chdir(request["cwd"])
            os.environ.clear(), os.environ.update(request["env"], JPY_PARENT_PID=str(os.getppid()))
            random.seed(), numpy.random.seed()
            sys.argv = request["argv"]
            status = 1
            try:
                ipykernel.kernelapp.launch_new_instance()
                status = 0
            finally:
                atexit._run_exitfuncs()
                os._exit(status)


if __name__ == "__main__":
    serve()
