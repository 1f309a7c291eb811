"""The line of `make test`: what it counts, how it estimates, in which order the tests come."""

import io
import json
from types import SimpleNamespace

import pytest

from tools import progress, run_tests
from tools.kernel_environment import ROOT


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """A stream without a terminal; nothing is remembered."""
    monkeypatch.setattr(progress, "REMEMBERED", tmp_path / "no such folder" / "durations.json")
    return io.StringIO()


def report(nodeid, when="call", outcome="passed", duration=0.0):
    named = {name: outcome == name for name in ("passed", "failed", "skipped")}
    return SimpleNamespace(nodeid=nodeid, when=when, duration=duration, outcome=outcome, **named)


def run(line, nodeid, **call):
    for when in ("setup", "call", "teardown"):
        line.pytest_runtest_logreport(report(nodeid, when, **(call if when == "call" else {})))


def test_the_time_left_is_weighed_by_what_tests_are_known_to_take(clock, shown):
    line = progress.Progress({"long.py": 9.0, "short.py": 1.0}, shown)
    line.pytest_xdist_node_collection_finished(None, ["long.py::a", "short.py::a", "short.py::b", "new.py::c"])
    line.pytest_xdist_node_collection_finished(None, ["long.py::a", "short.py::a", "short.py::b", "new.py::c"])
    assert line.share() == 0 and line.line() == "0 of 4 tests"
    clock.now += 90  # this machine takes ten times as long as the one that is remembered
    run(line, "long.py::a")
    assert line.share() == pytest.approx(100 * 9 / 16) and line.line() == "1 of 4 tests, 70 s left"
    run(line, "new.py::c")  # of a file that is not known: as an average one
    assert line.line() == "2 of 4 tests, 13 s left"
    clock.now += 1000
    run(line, "short.py::b")
    run(line, "short.py::a")
    assert line.share() == pytest.approx(100) and line.line() == "4 of 4 tests, 0 s left"


def test_without_a_terminal_a_line_comes_now_and_then_and_a_failure_at_once(clock, shown):
    line = progress.Progress({}, shown)
    line.expect([f"test_a.py::{i}" for i in range(100)])
    for i in range(50):
        clock.now += 1
        run(line, f"test_a.py::{i}", outcome="failed" if i == 3 else "passed")
    lines = shown.getvalue().splitlines()
    assert lines[0] == "FAILED test_a.py::3"
    assert lines[1:] == [" 20 %  20 of 100 tests, 80 s left", " 40 %  40 of 100 tests, 60 s left"]


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(clock, shown):
    shown.isatty = lambda: True
    line = progress.Progress({}, shown)
    line.expect(["test_a.py::1", "test_a.py::2"])
    clock.now += 10
    run(line, "test_a.py::1", outcome="failed")
    line.bar.refresh()
    assert "FAILED test_a.py::1\n" in shown.getvalue() and "1 of 2 tests, 10 s left" in shown.getvalue()
    line.pytest_sessionfinish()
    assert line.bar is None


def test_the_line_stands_for_dots_but_not_for_outcomes():
    line = progress.Progress({}, io.StringIO())
    assert line.pytest_report_teststatus(report("a")) == ("passed", "", "")
    assert line.pytest_report_teststatus(report("a", "setup")) == ("", "", "")
    assert line.pytest_report_teststatus(report("a", "setup", "skipped")) == ("skipped", "", "")
    assert line.pytest_report_teststatus(report("a", outcome="failed")) == ("failed", "", "")
    assert line.pytest_report_teststatus(report("a", "setup", outcome="failed")) == ("error", "", "")
    expected = report("a", outcome="skipped")
    expected.wasxfail = ""
    assert line.pytest_report_teststatus(expected) is None


def test_what_took_long_is_remembered_by_file_and_only_of_a_run_to_the_end(monkeypatch, tmp_path, clock):
    monkeypatch.setattr(progress, "REMEMBERED", tmp_path / "durations.json")
    monkeypatch.setattr(progress, "KNOWN", tmp_path / "known.json")
    (tmp_path / "known.json").write_text(json.dumps({"test_a.py": 7.0, "test_c.py": 5.0}))
    (tmp_path / "durations.json").write_text(json.dumps({"test_b.py": 8.0}))
    line = progress.Progress({}, io.StringIO())
    line.expect(["test_a.py::1", "test_a.py::2"])
    run(line, "test_a.py::1", duration=1.0)
    line.pytest_sessionfinish()
    assert progress.durations() == {"test_a.py": 7.0, "test_b.py": 8.0, "test_c.py": 5.0}
    run(line, "test_a.py::2", duration=2.0)
    line.pytest_sessionfinish()
    assert progress.durations() == {"test_a.py": 1.5, "test_b.py": 8.0, "test_c.py": 5.0}


def test_long_tests_come_first_and_a_file_stays_together():
    names = ["test_short.py::1", "test_long.py::1", "a.ipynb::1", "test_long.py::2", "a.ipynb::2", "b.ipynb::1"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    expected = {"test_short.py": 0.1, "test_long.py": 4.0, "a.ipynb": 1.5, "b.ipynb": 2.0}
    progress.pytest_collection_modifyitems(SimpleNamespace(stash={progress.EXPECTED: expected}), items)
    assert [item.nodeid for item in items] == [
        *("test_long.py::1", "test_long.py::2", "a.ipynb::1", "a.ipynb::2", "b.ipynb::1", "test_short.py::1")
    ]


def test_what_is_known_of_every_file_is_a_number():
    known = json.loads(progress.KNOWN.read_text())
    assert known and all(isinstance(seconds, float | int) and seconds >= 0 for seconds in known.values())
    assert all(name.startswith(("tests/", "notebooks/", "solutions/")) for name in known)


def test_what_runs_with_one_version_of_triton_only_uses_none():
    for name in run_tests.WITHOUT_TRITON:
        text = (ROOT / "tests" / "course" / f"test_{name}.py").read_text()
        assert not any(
            line.startswith(("import triton", "from triton", "from kernels", "import kernels"))
            for line in text.splitlines()
        )
