"""Releasing, grading and exporting, on an assignment of one function and two points."""

import csv
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.kernel_environment import ROOT

ANSWER = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
CHECK = """import os
graded = os.environ.get("KERNELS_GRADING") == os.environ.get("TRITON_INTERPRET") == "1"
2 if graded and double(3) == 6 else 0"""  # full marks only with fresh numbers and in the interpreter


def nbgrader_cell(id, source, **wanted):
    fields = {"grade": False, "solution": False, "locked": False, "task": False, "grade_id": id, "schema_version": 3}
    return new_code_cell(source, id=id, metadata={"nbgrader": fields | wanted})


@pytest.fixture
def course(tmp_path):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    (tmp_path / "tools").mkdir()
    for name in ("grade.py", "kernel_environment.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    source = tmp_path / "solutions" / "01_double"
    source.mkdir(parents=True)
    cells = [
        new_markdown_cell("Double a number.", id="task"),
        nbgrader_cell("answer", ANSWER, solution=True),
        nbgrader_cell("check", CHECK, grade=True, locked=True, points=2),
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": spec}), source / "01_double.ipynb")
    return tmp_path


def grade(course):
    environ = {name: value for name, value in os.environ.items() if name not in ("KERNELS_GRADING", "TRITON_INTERPRET")}
    command = [sys.executable, "-m", "tools.grade"]
    return subprocess.run(command, cwd=course, env=environ, capture_output=True, text=True, timeout=110)


def submit(course, student, source):
    folder = course / "submitted" / student / "01_double"
    shutil.copytree(course / "solutions" / "01_double", folder)
    nb = nbformat.read(folder / "01_double.ipynb", as_version=4)
    nb.cells[1].source = source
    nbformat.write(nb, folder / "01_double.ipynb")


def test_the_marks_of_all_who_can_be_graded_are_exported(course):
    submit(course, "ada", "def double(x):\n    return x + x")
    submit(course, "bob", "def double(x):\n    pass")
    submit(course, "eve", "import os\nos._exit(0)")
    done = grade(course)
    with open(course / "build" / "marks.csv") as file:
        marks = {row["student_id"]: row["score"] for row in csv.DictReader(file)}
    assert marks["ada"] == "2.0" and marks["bob"] == "0.0"
    assert done.returncode == 1 and "01_double: at least one submission was not graded" in done.stderr


def test_what_students_receive_runs_and_shows_no_solution(course):
    submit(course, "ada", ANSWER)
    assert grade(course).returncode == 0
    released = nbformat.read(course / "exercises" / "01_double" / "01_double.ipynb", as_version=4)
    assert released.cells[1].source == "def double(x):\n    # your lines here\n    pass"


def test_nothing_submitted_is_said(course):
    done = grade(course)
    assert done.returncode == 1 and "Nothing to grade" in done.stderr and done.stderr.count("\n") == 1
