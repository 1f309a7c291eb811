"""The exercises are what nbgrader makes of the solutions; an unsolved one runs to its end and earns nothing."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.utils.capture import capture_output

from kernels import check, runtime
from kernels.check import VERDICTS
from tests.course.mutants import ROOT, TABLE, section, slips, submission, targets
from tools.kernel_environment import kernel_environment, too_old_for

NAMES = sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir())
CHECKED = [check.exercise_of(name) for name in check.EXERCISES if name != "vector_add"]
BY_NAME = {exercise.name: exercise for exercise in CHECKED}
WORTH = {name: exercise.worth for name, exercise in BY_NAME.items()}
REGION = re.compile(r"^ *### BEGIN SOLUTION\n(.*?)^ *### END SOLUTION(?:\n|\Z)", flags=re.MULTILINE | re.DOTALL)
STUB = re.compile(r"^ *# your lines here\n *pass(?:\n|\Z)", flags=re.MULTILINE)
EXERCISES = [name for name in NAMES if name[0].isdigit()]  # the others are clinics: no kernel is written there
each_assignment = pytest.mark.parametrize("name", NAMES)
each_exercise = pytest.mark.parametrize("name", EXERCISES)
each_target = pytest.mark.parametrize("target", targets(), ids=lambda target: target.function)


def read(folder, name):
    return nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)


def needs_newer_triton(name):
    """Skip what would run an assignment that the installed Triton cannot."""
    if why := too_old_for(ROOT / "solutions" / name / f"{name}.ipynb"):
        pytest.skip(why)


def prose(notebook) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def graded(notebook):
    return [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]


def nbgrader(folder: Path, *commands: list[str], **environ: str):
    """Commands, each an app of nbgrader's and its arguments, all in one process: it takes seconds to start."""
    loop = "import json, sys\nfrom nbgrader import apps\nfor name, *arguments in json.loads(sys.argv[1]):\n"
    loop += "    app = getattr(apps, name); app.launch_instance(arguments); app.clear_instance()"
    python(folder, "-c", loop, json.dumps(commands), **environ)


def python(folder: Path, *arguments: str, **environ: str):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # it calls `alembic` by name
    environment = kernel_environment({**os.environ, "PATH": path, "TRITON_INTERPRET": "1", **environ})
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def course(tmp_path):
    return copy_course(tmp_path)


def copy_course(folder: Path) -> Path:
    """A course folder with the solutions and no exercises."""
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    shutil.copytree(ROOT / "solutions", folder / "solutions", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return folder


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A course folder with the exercises that nbgrader's command makes."""
    folder = copy_course(tmp_path_factory.mktemp("course"))
    nbgrader(folder, *(["GenerateAssignmentApp", name, "--create", "--force", "--no-db"] for name in NAMES))
    return folder


@each_assignment
def test_the_exercise_is_what_nbgrader_makes_of_the_solution(released, name):
    made, stored = (folder / "exercises" / name / f"{name}.ipynb" for folder in (released, ROOT))
    assert made.read_bytes() == stored.read_bytes(), "out of date: make release"


def test_no_exercise_lacks_its_solution():
    assert sorted(path.name for path in (ROOT / "exercises").iterdir() if not path.name.startswith(".")) == NAMES


@each_assignment
def test_solving_only_replaces_marked_lines(name):
    solution, exercise = read("solutions", name), read("exercises", name)
    assert [cell.id for cell in solution.cells] == [cell.id for cell in exercise.cells]
    for solved, unsolved in zip(solution.cells, exercise.cells, strict=True):
        regions = len(REGION.findall(solved.source))
        assert regions == len(STUB.findall(unsolved.source))
        assert bool(regions) == bool(solved.metadata.get("nbgrader", {}).get("solution")), solved.id
        assert REGION.sub("@", solved.source).strip() == STUB.sub("@", unsolved.source).strip()


@each_assignment
def test_the_title_says_the_points_that_there_are(name):
    notebook = read("exercises", name)
    said = re.search(r"\*\*\d+ minutes · (\d+) points", notebook.cells[0].source)
    assert int(said[1]) == sum(cell.metadata.nbgrader.points for cell in graded(notebook))


@each_assignment
def test_an_unsolved_exercise_runs_to_its_end_and_earns_what_it_announces(name, shell, monkeypatch):
    """Nothing. In a shell of this process, not in a kernel of Jupyter's: of these, starting takes longest."""
    needs_newer_triton(name)
    monkeypatch.chdir(ROOT / "exercises" / name)
    notebook, seen = read("exercises", name), []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            with capture_output() as printed:
                done = shell.run_cell(cell.source, store_history=True)
            assert done.success and not printed.stderr, (cell.id, printed.stdout, printed.stderr)
            if cell in graded(notebook):
                assert done.result == 0 and printed.stdout.startswith("missing: ")
                seen.append(printed.stdout.rpartition("Out[")[0])
    assert seen == re.findall(r"Before you solve it.*?\n```\n(.*?)```", prose(notebook), flags=re.DOTALL)


@each_assignment
def test_the_solution_earns_every_point(name):
    notebook = read("solutions", name)
    for cell in graded(notebook):
        assert cell.outputs[-1].data["text/plain"] == str(cell.metadata.nbgrader.points)


@pytest.mark.share(2)
@pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")
@each_target
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough), pytest.param(2, marks=pytest.mark.slow)])
def test_the_solution_passes_with_other_numbers_and_shapes(target, seed):
    hold_solution(target, seed, ("right", "cheap"))


@pytest.mark.thorough
@pytest.mark.skipif(not runtime.interpreted, reason="where kernels are compiled, the test before compiles them")
@each_target
def test_the_solution_compiles_with_other_shapes(target):
    """What the compiler sees of them is whether 16 divides a stride; the notebook has it compiled for its own."""
    hold_solution(target, 0, "compiles")


def hold_solution(target, seed, verdicts):
    """A solution has every point of these verdicts, with the numbers and shapes of a grading."""
    needs_newer_triton(target.assignment)
    points, printed = target.check(submission(target), seed=seed, grading=True, verdicts=verdicts)
    assert points == sum(points for verdict, points in WORTH[target.function].items() if verdict in verdicts), printed


@each_exercise
def test_the_table_of_points_is_the_checks_own(name):
    text = prose(read("exercises", name))
    for target in targets():
        if target.assignment == name:
            assert BY_NAME[target.function].terms() in text
            assert set(WORTH[target.function]) == set(VERDICTS)
    for cell in graded(read("exercises", name)):
        function = re.search(r"check\.(\w+)\(", cell.source)[1]
        assert cell.metadata.nbgrader.points == sum(WORTH[function].values())


@pytest.mark.thorough
def test_half_a_solution_earns_part_of_the_points(course):
    """nbgrader from release to mark: the store is not masked, so six properties fail; it compiles and is cheap."""
    name = "01_row_softmax"
    submitted = course / "submitted" / "ada" / name / f"{name}.ipynb"
    submitted.parent.mkdir(parents=True)
    notebook = read("exercises", name)
    for cell, solved in zip(notebook.cells, read("solutions", name).cells, strict=True):
        if cell.id == "kernel":
            cell.source = solved.source.replace(", p, mask=mask_n)", ", p)")
        if cell.id == "check-row-softmax":
            cell.source = "10"  # an edited check is put back
    nbformat.write(notebook, submitted)
    release = ["GenerateAssignmentApp", name, "--create", "--force"]
    nbgrader(course, release, ["AutogradeApp", name], ["ExportApp", "--to", "marks.csv"], KERNELS_GRADING="1")
    with open(course / "marks.csv") as marks:
        (row,) = csv.DictReader(marks)
    assert (row["student_id"], float(row["score"]), float(row["max_score"])) == ("ada", 9, 15)


@pytest.mark.parametrize("exercise", CHECKED, ids=lambda exercise: exercise.name)
def test_each_property_points_to_a_step_that_exists(exercise):
    for item in (*exercise.properties, *filter(None, (exercise.compiles, exercise.cheap))):
        lesson, step = re.fullmatch(r"Lesson (\d\d), step (\d)", item.lesson).groups()
        (path,) = ROOT.glob(f"notebooks/{lesson}_*.ipynb")
        assert f"## Step {step}: " in prose(nbformat.read(path, as_version=4)), f"{item}: {item.lesson}"


def test_the_kill_table_lists_the_mutants_that_there_are():
    text = TABLE.read_text().split("\n## How much of a solution")[0]
    assert "\n\n".join(map(section, targets())) in text, "out of date: python -m tests.course.mutants"
    assert text.endswith(slips() + "\n"), "out of date: python -m tests.course.mutants"
    for target in targets():
        assert {mutant.verdict for mutant in target.mutants} == set(VERDICTS), target.function
