"""A pytest plugin for `make test`: the longest tests first, and one line that says how much is done and how long it takes.

How long each file's tests took is remembered in build/durations.json; what tools/durations.json says is taken where
nothing is remembered yet. Both only say what is long and what is short: how fast this machine is shows while it runs.
"""

import json
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tqdm import tqdm

from tools.kernel_environment import ROOT

KNOWN = ROOT / "tools" / "durations.json"
REMEMBERED = ROOT / "build" / "durations.json"
SECONDS_BETWEEN_LINES = 20  # where there is no terminal to draw a bar in


def durations() -> dict[str, float]:
    """Mean seconds a test, by file."""
    return {
        name: seconds
        for path in (KNOWN, REMEMBERED)
        if path.exists()
        for name, seconds in json.loads(path.read_text()).items()
    }


def file_of(nodeid: str) -> str:
    return nodeid.split("::")[0]


EXPECTED = pytest.StashKey[dict[str, float]]()


def pytest_configure(config):
    config.stash[EXPECTED] = durations()
    if not hasattr(config, "workerinput"):  # of the processes of pytest-xdist, the one that hears of all tests
        config.pluginmanager.register(Progress(config.stash[EXPECTED]), "progress")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Files whose tests take longest come first, notebooks by the time they take as a whole; within a file, as written."""
    expected = config.stash[EXPECTED]
    tests = Counter(file_of(item.nodeid) for item in items)

    def seconds(item):
        name = file_of(item.nodeid)
        return expected.get(name, 1.0) * (tests[name] if name.endswith(".ipynb") else 1)

    items.sort(key=seconds, reverse=True)


class Progress:
    """Counts tests as they end, weighs them by what they are expected to take, and draws the line."""

    def __init__(self, expected: dict[str, float], stream=None):
        self.expected = expected
        self.stream = stream or sys.__stderr__
        self.start = self.drawn = time.monotonic()
        self.left: set[str] = set()
        self.tests = 0
        self.total = self.done = 0.0  # in expected seconds
        self.took: dict[str, float] = defaultdict(float)  # by test
        self.bar = None

    def weight(self, nodeid: str) -> float:
        """What a test is expected to take; a file that is not known yet counts as an average one."""
        known = self.expected.get(file_of(nodeid))
        return known if known is not None else sum(self.expected.values()) / max(len(self.expected), 1) or 1.0

    def expect(self, ids) -> None:
        if not self.left and not self.took:
            self.left = set(ids)
            self.tests = len(self.left)
            self.total = sum(map(self.weight, self.left))
            self.start = self.drawn = time.monotonic()
            if self.stream.isatty():
                form = "{percentage:3.0f} %|{bar}| {postfix}"
                self.bar = tqdm(total=100, file=self.stream, bar_format=form, leave=False, dynamic_ncols=True)

    def pytest_collection_finish(self, session):
        self.expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.expect(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report):
        """The line stands for the dots; failures are named as they come."""
        if hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return "failed" if report.when == "call" else "error", "", ""
        return "skipped" if report.skipped else "passed" if report.when == "call" else "", "", ""

    def pytest_runtest_logreport(self, report):
        self.took[report.nodeid] += report.duration
        if report.failed:
            self.say(f"FAILED {report.nodeid}")
        if report.when == "teardown" and report.nodeid in self.left:
            self.left.remove(report.nodeid)
            self.done += self.weight(report.nodeid)
            self.draw()

    def line(self) -> str:
        """``1234 of 4567 tests, 3 min left``."""
        said = f"{self.tests - len(self.left)} of {self.tests} tests"
        if not self.done:
            return said
        seconds = (time.monotonic() - self.start) * (self.total - self.done) / self.done
        return f"{said}, " + (f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left")

    def share(self) -> float:
        """Percent of the work that is done."""
        return 100 * self.done / self.total if self.total else 100.0

    def draw(self) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(self.line(), refresh=False)
            self.bar.update(self.share() - self.bar.n)
        elif time.monotonic() - self.drawn >= SECONDS_BETWEEN_LINES:
            self.drawn = time.monotonic()
            self.say(f"{self.share():3.0f} %  {self.line()}")

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

    def pytest_sessionfinish(self):
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        if not self.left and REMEMBERED.parent.exists():
            remember(self.took, REMEMBERED)


def remember(took: dict[str, float], path: Path) -> None:
    """Store the mean seconds a test of each file that ran; other files' stay."""
    tests, seconds = Counter(), Counter()
    for nodeid, duration in took.items():
        tests[file_of(nodeid)] += 1
        seconds[file_of(nodeid)] += duration
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {name: round(seconds[name] / tests[name], 3) for name in tests}
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
    unfinished.replace(path)
