"""nbval fails what the course must not store: each case is a small broken notebook that pytest has to refuse."""

import os
import subprocess
import sys
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.kernel_environment import ROOT, kernel_environment
from tools.run_tests import PYTEST


def cell(source, text=None, *tags, count=1):
    outputs = [new_output("stream", name="stdout", text=text)] if text is not None else []
    return new_code_cell(source, id="only", execution_count=count, outputs=outputs, metadata={"tags": list(tags)})


@pytest.fixture
def nbval(tmp_path):
    """Runs nbval as `make test` does over one notebook of the given cells; returns (passed, what it printed)."""

    def run(*cells, **environ):
        for number, each in enumerate(cells):
            each.id = f"cell-{number}"
        nbformat.write(new_notebook(cells=list(cells)), tmp_path / "broken.ipynb")
        flags = [flag for flag in PYTEST["notebooks"] if flag.startswith("--nbval")]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, f"--rootdir={ROOT}"]
        command += ["-c", ROOT / "pyproject.toml", "-p", "conftest", tmp_path / "broken.ipynb"]
        child = subprocess.run(command, cwd=ROOT, env=environ or None, capture_output=True, text=True, timeout=110)
        assert child.returncode in (0, 1), child.stdout + child.stderr  # 0 all passed, 1 some failed: it did run
        return child.returncode == 0, child.stdout

    return run


def test_a_true_notebook_passes(nbval):
    assert nbval(cell("print(1 + 1)", "2\n"))[0]


def test_a_wrong_output_fails(nbval):
    passed, printed = nbval(cell("print(1 + 1)", "3\n"))
    assert not passed and "Cell outputs differ" in printed


def test_an_output_that_is_ignored_may_differ(nbval):
    assert nbval(cell("print(1 + 1)", "3\n", "nbval-ignore-output"))[0]


@pytest.mark.parametrize("tags", [(), ("nbval-ignore-output",)])
def test_a_cell_stored_unexecuted_fails(nbval, tags):
    passed, printed = nbval(cell("print(1 + 1)", None, *tags, count=None))
    assert not passed and "stored without having been executed" in printed


def test_an_empty_cell_need_not_be_executed(nbval):
    assert nbval(cell("print(1)", "1\n"), cell("", count=None))[0]


def test_an_exception_fails(nbval):
    passed, printed = nbval(cell("1 / 0"))
    assert not passed and "ZeroDivisionError" in printed


def test_a_kernel_that_dies_fails_at_once(nbval):
    start = time.monotonic()
    passed, printed = nbval(cell("import os\nos._exit(3)"), cell("print(1)", "1\n"))
    assert not passed and "the kernel died while it ran this cell" in printed
    assert time.monotonic() - start < 60  # the cell timeout alone is 120


def test_addresses_and_paths_do_not_count(nbval):
    source = "import kernels\nprint(object())\nprint(kernels.__file__)"
    assert nbval(cell(source, "<object object at 0xdead>\n/another/place/kernels/__init__.py\n"))[0]


def test_figures_show_whatever_backend_the_user_has_chosen(nbval):
    source = (
        "import matplotlib, os\nprint('inline' in matplotlib.get_backend(), os.environ['TRITON_DEFAULT_FP_FUSION'])"
    )
    assert nbval(cell(source, "True 1\n"), **{**os.environ, "MPLBACKEND": "svg"})[0]


def test_the_kernels_of_this_checkout_are_imported_and_the_users_mode_wins(nbval):
    source = (
        f"import kernels.runtime as r\nprint(r.interpreted, r.__file__ == {str(ROOT / 'kernels' / 'runtime.py')!r})"
    )
    environ = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    assert nbval(cell(source, "True True\n"), **environ, TRITON_INTERPRET="1")[0]


def test_the_environment_keeps_what_the_user_set():
    environment = kernel_environment({"OMP_NUM_THREADS": "7", "PYTHONPATH": "/mine", "MPLBACKEND": "svg"})
    assert environment["OMP_NUM_THREADS"] == "7" and "MPLBACKEND" not in environment
    assert environment["PYTHONPATH"].split(":") == [str(ROOT), "/mine"]
