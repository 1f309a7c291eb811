"""nbval fails what the course must not store: each case is a small broken notebook that pytest has to refuse."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.kernel_environment import ROOT, kernel_environment
from tools.run_tests import PYTEST


def cell(source, text=None, *tags, count=1):
    outputs = [new_output("stream", name="stdout", text=text)] if text is not None else []
    return new_code_cell(source, id="only", execution_count=count, outputs=outputs, metadata={"tags": list(tags)})


KILLED = "import os\nos._exit(3)"
ADDRESSES = "import kernels\nprint(object())\nprint(kernels.__file__)"
BACKEND = "import matplotlib, os\nprint('inline' in matplotlib.get_backend(), os.environ['TRITON_DEFAULT_FP_FUSION'])"
MODE = f"import kernels.runtime as r\nprint(r.interpreted, r.__file__ == {str(ROOT / 'kernels' / 'runtime.py')!r})"
FRESH = "import sys\nprint({'kernels', 'triton'} & set(sys.modules), 'torch' in globals())"
NOTEBOOKS = {
    "true": [cell("print(1 + 1)", "2\n")],
    "wrong": [cell("print(1 + 1)", "3\n")],
    "ignored": [cell("print(1 + 1)", "3\n", "nbval-ignore-output")],
    "unexecuted": [cell("print(1 + 1)", None, count=None)],
    "unexecuted-and-ignored": [cell("print(1 + 1)", None, "nbval-ignore-output", count=None)],
    "empty": [cell("print(1)", "1\n"), cell("", count=None)],
    "raising": [cell("1 / 0")],
    "killed": [cell(KILLED), cell("print(1)", "1\n")],
    "addresses": [cell(ADDRESSES, "<object object at 0xdead>\n/another/place/kernels/__init__.py\n")],
    "backend": [cell(BACKEND, "True 1\n")],
    "mode": [cell(MODE, "True True\n")],
    "fresh": [cell(FRESH, "set() False\n")],
}


@pytest.fixture(scope="module")
def nbval(tmp_path_factory):
    """Runs nbval over all of them, once, as `make test` does: name -> (passed, what was said of it, seconds)."""
    folder = tmp_path_factory.mktemp("notebooks")
    for name, cells in NOTEBOOKS.items():
        for number, each in enumerate(cells):
            each.id = f"cell-{number}"
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    flags = [flag for flag in PYTEST["notebooks"] if flag.startswith(("--nbval", "-ptools."))]
    assert "-ptools.forked_kernels" in flags
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags]
    command += [f"--rootdir={ROOT}", "-c", ROOT / "pyproject.toml", "-p", "conftest"]
    command += [f"--junitxml={folder / 'junit.xml'}", folder]
    environment = {**os.environ, "MPLBACKEND": "svg", "TRITON_INTERPRET": "1"}  # as the user has chosen
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 1, child.stdout + child.stderr  # some failed: it did run
    found = {}
    for name, cells in NOTEBOOKS.items():
        its = re.compile(rf"(.*\.)?{name}\.ipynb")
        cases = [c for c in xml.parse(folder / "junit.xml").iter("testcase") if its.fullmatch(c.get("classname"))]
        assert len(cases) == len(cells), child.stdout
        said = "".join(text for case in cases for outcome in case for text in outcome.itertext())
        assert all(outcome.tag in ("failure", "error") for case in cases for outcome in case)  # no skip
        found[name] = not any(map(len, cases)), said, sum(float(case.get("time")) for case in cases)
    return found


def test_a_true_notebook_passes(nbval):
    assert nbval["true"][0]


def test_a_wrong_output_fails(nbval):
    passed, said, _ = nbval["wrong"]
    assert not passed and "Cell outputs differ" in said


def test_an_output_that_is_ignored_may_differ(nbval):
    assert nbval["ignored"][0]


@pytest.mark.parametrize("name", ["unexecuted", "unexecuted-and-ignored"])
def test_a_cell_stored_unexecuted_fails(nbval, name):
    passed, said, _ = nbval[name]
    assert not passed and "stored without having been executed" in said


def test_an_empty_cell_need_not_be_executed(nbval):
    assert nbval["empty"][0]


def test_an_exception_fails(nbval):
    passed, said, _ = nbval["raising"]
    assert not passed and "ZeroDivisionError" in said


def test_a_kernel_that_dies_fails_at_once(nbval):
    passed, said, seconds = nbval["killed"]
    assert not passed and "the kernel died while it ran this cell" in said
    assert seconds < 60  # the cell timeout alone is 120


def test_addresses_and_paths_do_not_count(nbval):
    assert nbval["addresses"][0]


def test_figures_show_whatever_backend_the_user_has_chosen(nbval):
    assert nbval["backend"][0]


def test_the_kernels_of_this_checkout_are_imported_and_the_users_mode_wins(nbval):
    assert nbval["mode"][0]


def test_no_kernel_knows_of_one_before(nbval):
    assert nbval["fresh"][0], nbval["fresh"][1]


def test_the_environment_keeps_what_the_user_set():
    environment = kernel_environment({"OMP_NUM_THREADS": "7", "PYTHONPATH": "/mine", "MPLBACKEND": "svg"})
    assert environment["OMP_NUM_THREADS"] == "7" and "MPLBACKEND" not in environment
    assert environment["PYTHONPATH"].split(":") == [str(ROOT), "/mine"]
