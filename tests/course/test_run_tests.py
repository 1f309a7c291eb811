"""`make test` says what ran, and fails whenever anything did."""

import re
import shutil
import subprocess
import sys

import pytest

from tools import run_tests
from tools.kernel_environment import ROOT


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "tests" / "course").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "test_a.py").write_text(
        "import pytest\n\n\ndef test_one():\n    pass\n\n\n@pytest.mark.skip\ndef test_two():\n    pass\n"
    )
    (tmp_path / "tests" / "course" / "test_mutants.py").write_text("def test_no_mask():\n    pass\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "BUILD", tmp_path / "build")
    # One process, without plugins that cost seconds to start.
    monkeypatch.setitem(run_tests.PYTEST, "unit", ["-p", "pytest_timeout", "tests"])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def run(capfd, *suites):
    code = run_tests.main(list(suites))
    return code, capfd.readouterr().out.splitlines()


def test_the_last_lines_count_tests_and_mutants_and_a_skip_is_no_pass(repository, capfd):
    code, lines = run(capfd, "lint", "unit")
    assert code == 0 and lines[-1] == "3 passed, 0 failed"
    assert lines[-4].startswith("lint: 1 passed, 0 failed")
    assert sorted(line.split(" (")[0] for line in lines[-3:-1]) == [
        "mutants: 1 passed, 0 failed",
        "unit tests: 1 passed, 0 failed, 1 skipped",
    ]


@pytest.mark.parametrize(
    ("name", "text", "summary"),
    [
        ("tests/test_b.py", "def test_bad():\n    assert False\n", "2 passed, 1 failed"),
        ("tests/test_b.py", "import nothing_of_this_name  # noqa: F401\n", "0 passed, 1 failed"),
        ("tests/course/test_mutants.py", "def test_no_mask():\n    assert False\n", "1 passed, 1 failed"),
        ("tests/conftest.py", "raise SystemExit(3)\n", "0 passed, 1 failed"),
    ],
    ids=["a failing test", "a file that cannot be imported", "a mutant that lives", "a crash before any test"],
)
def test_any_failure_fails(repository, capfd, name, text, summary):
    (repository / name).write_text(text)
    code, lines = run(capfd, "unit")
    assert code == 1 and lines[-1] == summary


def test_nothing_to_run_is_a_failure(repository, capfd):
    shutil.rmtree(repository / "tests")
    (repository / "tests").mkdir()
    code, lines = run(capfd, "unit")
    assert code == 1 and lines[-1] == "0 passed, 1 failed"


def test_a_students_copy_says_that_it_has_none(repository, capfd):
    shutil.rmtree(repository / "tests")
    assert run_tests.main(["lint", "unit"]) == 1
    said = capfd.readouterr()
    assert "a student's copy" in said.err and said.out == ""


def test_what_the_loop_leaves_out_is_the_rest(repository, capfd, monkeypatch):
    """Of five cases marked ``share(2)`` three are in the loop; each test is in one of the two."""
    shutil.copy(ROOT / "conftest.py", repository)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setitem(run_tests.PYTEST, "rest", [*run_tests.PYTEST["unit"], *run_tests.PYTEST["rest"][-2:]])
    (repository / "tests" / "test_a.py").write_text(
        "import pytest\n\n\n@pytest.mark.share(2)\n@pytest.mark.parametrize('n', range(5))\ndef test_one(n):\n    pass\n\n\n"
        "@pytest.mark.thorough\ndef test_two():\n    pass\n\n\n"
        "@pytest.mark.thorough\n@pytest.mark.slow\ndef test_three():\n    pass\n"
    )
    assert run(capfd, "unit")[1][-1] == "4 passed, 0 failed"  # with the mutant
    assert run(capfd, "rest")[1][-1] == "3 passed, 0 failed"


def test_an_operator_is_proved_by_a_share_of_its_tests_its_cases_and_its_planted_bugs(repository, capfd, monkeypatch):
    shutil.copy(ROOT / "conftest.py", repository)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setitem(run_tests.PYTEST, "operator", ["-p", "pytest_timeout", *run_tests.PYTEST["operator"][-1:]])
    case = "import pytest\n\n\n@pytest.mark.parametrize('n', {})\ndef test_one(n):\n    pass\n"
    for path, values in {
        "dynamic_conv/test_a.py": list(range(9)),  # of which it takes the first and the last
        "flex_attention/test_a.py": [0],
        "common/test_a.py": ["dynamic_conv", "flex_attention"],
        "course/test_mutants.py": ["dynamic_conv_dx: no mask", "dynamic_conv_dx: no tail", "im2col: no mask"],
    }.items():
        (repository / "tests" / path).parent.mkdir(exist_ok=True)
        (repository / "tests" / path).write_text(case.format(values))
    code = run_tests.main(["operator", "--", "dynamic_conv"])
    lines = capfd.readouterr().out.splitlines()
    assert code == 0 and lines[-3].startswith("tests of the operator: 3 passed") and lines[-1] == "5 passed, 0 failed"


@pytest.mark.parametrize("names", [[], ["flex"], ["dynamic_conv", "conv_wgrad"]])
def test_an_operator_that_there_is_not_is_told_which_there_are(repository, capfd, names):
    assert run_tests.main(["operator", "--", *names]) == 1
    there = sorted(path.parent.name for path in ROOT.glob("kernels/*/operator.py") if path.parent.name != "common")
    assert capfd.readouterr().err == f"NAME is {' '.join(names)!r}, needs one of {', '.join(there)}\n"


def test_an_old_report_is_not_counted(repository, capfd):
    run(capfd, "unit")
    (repository / "tests" / "conftest.py").write_text("raise SystemExit(3)\n")
    code, lines = run(capfd, "unit")
    assert code == 1 and lines[-1] == "0 passed, 1 failed"


def test_the_linter_finds_a_name_that_only_tritons_interpreter_leaks_into_a_notebook(repository, capfd):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    (repository / "notebooks").mkdir()
    nbformat.write(new_notebook(cells=[new_code_cell("x = math.ceil(1.5)")]), repository / "notebooks" / "a.ipynb")
    code, lines = run(capfd, "lint")
    assert code == 1 and lines[-1] == "0 passed, 1 failed" and any("F821" in line for line in lines)


def test_without_git_it_says_so(repository, capfd, monkeypatch):
    monkeypatch.setattr(run_tests.shutil, "which", lambda name: None)
    assert run_tests.main(["lint"]) == 1
    assert "need git" in capfd.readouterr().err


def test_nothing_is_printed_after_the_summary():
    asked = ["tests/course/test_environment.py", "-k", "pip_section"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", *asked]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.stderr == "" and re.fullmatch(r"1 passed, .*", ran.stdout.splitlines()[-1]), ran.stdout + ran.stderr
