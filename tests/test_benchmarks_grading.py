"""What grading costs is measured on submissions that share nothing, and the guide says what was recorded."""

import subprocess
import sys

import nbformat
import pytest

from benchmarks import grading as bench
from benchmarks import harness
from tools.grading.assignment import read

RECORD = harness.read("grading")


def test_every_submission_has_kernels_of_its_own(tmp_path):
    for name in bench.FIRST:
        assignment = read(bench.ROOT / "exercises" / name / f"{name}.ipynb")
        ones = [nbformat.read(bench.hand_in(tmp_path, name, n) / f"{name}.ipynb", as_version=4) for n in (1, 2)]
        for cell, other in zip(*(one.cells for one in ones), strict=True):
            answer = assignment.answers.get(cell.id)
            if cell.cell_type == "code" and answer is not None:
                assert cell.source != other.source


def test_what_children_took_is_counted_while_they_live_and_after():
    before = bench.of_tree()
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    alive = bench.of_tree() - before
    child.communicate(b"\n")
    assert 0.28 <= alive <= bench.of_tree() - before + 0.02


def test_the_table_says_what_was_measured():
    record = {
        "machine": {"cpu": "a processor", "cores": 2},
        "first": [{"assignment": "01_row_softmax", "cores_s": 5.0, "clock_s": 4.04, "one_core_s": 5.26}],
        "rows": [{"assignment": "01_row_softmax", "cores_s": 1.2, "clock_s": 1.3}],
    }
    written = bench.table(record)
    assert "2 cores (a processor): one of 01 4.0 seconds (5.3 on one core).\n" in written
    assert "| 01_row_softmax | 1.2 | 1.0 minutes | 6 minutes |\n" in written


def test_the_guide_says_what_was_recorded():
    written = bench.GUIDE.read_text().partition(bench.BEGIN)[2].partition(bench.END)[0]
    if RECORD is None:
        assert not written
        pytest.skip("not recorded yet")
    record = RECORD
    assert written == bench.table(record) and record["machine"]["commit"]
    assert [row["assignment"] for row in record["rows"]] == bench.assignments()
    assert record["machine"]["load"] < 1
