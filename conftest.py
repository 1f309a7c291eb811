"""Pytest for the whole course: the environment tests and notebook kernels run in, and three gaps of nbval closed."""

import atexit
import gc
import os
import time
from collections import Counter
from queue import Empty

import pytest

from tools.kernel_environment import kernel_environment, too_old_for

# Unit tests draw without a screen; notebook kernels choose their own backend (kernel_environment drops this again).
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
os.environ.setdefault("KERNELS_PROGRESS", "0")


def pytest_addoption(parser):
    text = "of each test the first case and every N-th, outside of tests/course"
    parser.addoption("--every", type=int, default=1, metavar="N", help=text)


def pytest_configure(config):
    if not config.getoption("numprocesses", None):  # who collects: with workers, they
        gc.disable()  # what is imported now stays: to search it for garbage, again and again as it grows, takes seconds
    if config.getoption("nbval", default=False):
        environment = kernel_environment()
        os.environ.clear()
        os.environ.update(environment)
        fail_as_soon_as_the_kernel_dies()


def pytest_collection_finish():
    gc.freeze()  # nor is it searched between tests
    gc.enable()
    # What is left at the end is searched, or nanobind would print a page about it behind the summary. pytest_unconfigure is
    # too late for it: a busy machine's workers are ended before.
    atexit.register(gc.unfreeze)


def fail_as_soon_as_the_kernel_dies():
    """nbval waits its whole cell timeout for a kernel that is gone; ask twice a second whether it still lives."""
    from nbval.kernel import RunningKernel

    def get_message(self, stream, timeout=None):
        channel = {"iopub": self.kc.get_iopub_msg, "shell": self.kc.get_shell_msg}[stream]
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            alive = self.is_alive()
            left = 0.5 if end is None else min(0.5, end - time.monotonic())
            try:
                return channel(timeout=max(left, 0))
            except Empty:
                if not alive:
                    raise RuntimeError("the kernel died while it ran this cell") from None
                if end is not None and time.monotonic() >= end:
                    raise

    RunningKernel.get_message = get_message


@pytest.hookimpl(tryfirst=True)  # before pytest looks which marks are asked for
def pytest_collection_modifyitems(config, items):
    """Of a test marked ``share(n)``, all cases but the first and every n-th are thorough, and so by ``--every``; a notebook
    that needs a newer Triton than the oldest of the course is skipped there, cell by cell."""
    place = Counter()
    for item in items:
        share = item.get_closest_marker("share")
        every = share.args[0] if share else 1 if item.path.parent.name == "course" else config.getoption("every")
        if every > 1:
            test = item.nodeid.split("[")[0]
            if place[test] % every:
                item.add_marker("thorough")
            place[test] += 1
        if item.path.suffix == ".ipynb" and (why := too_old_for(item.path)):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """A code cell that was stored without being executed has nothing to compare with: nbval would let it pass."""
    cell = getattr(item, "cell", None)
    if cell is not None and cell.get("execution_count") is None and cell.get("source", "").strip():
        raise pytest.fail.Exception(
            f"cell {cell.get('id')!r} is stored without having been executed: run `make refresh`", pytrace=False
        )
