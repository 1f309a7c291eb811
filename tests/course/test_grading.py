"""A class is graded: solutions, planted bugs and attacks come to the marks that they are known to deserve."""

import csv
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import pytest

from tests.course import hostile
from tests.course.mutants import cells, patched, submission, targets
from tools.grade import main
from tools.grading.sandbox import why_not
from tools.kernel_environment import ROOT, too_old_for

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a sandbox")


PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def course(tmp_path, monkeypatch):
    if "TRITON_CACHE_DIR" not in os.environ:  # what the judge has compiled is not compiled again here
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")
    return tmp_path


def grade(course, *more, seconds=10, python=sys.executable, **variables):
    command = [python, "-m", "tools.grade", "--course", str(course), "--seconds", str(seconds), *more]
    environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500)


def marks(course):
    with open(course / "build" / "marks.csv", newline="") as file:
        return {(row["student_id"], row["assignment"]): row for row in csv.DictReader(file)}


def result(course, student, name):
    return json.loads((course / "build" / "grading" / name / f"{student}.json").read_text())


def hand_in(course, student, name, answers=None):
    """The released notebook, with these answer cells."""
    made = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4)
    for cell in made.cells:
        cell.source = (answers or {}).get(cell.id, cell.source) if cell.cell_type == "code" else cell.source
    hostile.write(course / "submitted" / student / name, made, name)


def solution(name):
    """The sources of an assignment's answer cells."""
    released = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4)
    wanted = [cell.id for cell in released.cells if cell.metadata.get("nbgrader", {}).get("solution")]
    return {id: cells(name)[id] for id in wanted}


def planted(target, mutant):
    """The same with one bug."""
    answers, cell = solution(target.assignment), mutant.cell or target.cells[0]
    return answers | {cell: patched(cells(target.assignment)[cell], mutant.patch)}


def holding_only(course, target):
    """Of the released exercise, the checks of other functions are left out: nobody looks at their marks here."""
    path = course / "exercises" / target.assignment / f"{target.assignment}.ipynb"
    made = nbformat.read(path, as_version=4)
    made.cells = [one for one in made.cells if not one.source.startswith("check.") or target.function in one.source]
    path.write_text(nbformat.writes(made))


def digests(course):
    """All that a submission could change: the package, and what was released."""
    paths = (*(ROOT / "kernels").rglob("*.py"), *(course / "exercises").glob("*/*.ipynb"))
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def hold_attacks(course, before, attacks=hostile.ATTACKS):
    """Nobody has a mark that was not earned, everybody has a status, and nothing is damaged."""
    found, wrong = marks(course), []
    for attack in attacks:
        row = found[hostile.student(attack), hostile.NAME]
        said, points = f"{row['reason']} {row['notes']}", float(row["score"]) if row["score"] else None
        if (row["status"], points) != (attack.status, attack.points) or attack.says not in said:
            wrong.append(
                f"{attack.name}: {row['status']}, {points}, {said}; wanted {attack.status}, {attack.points}, {attack.says}"
            )
    assert not wrong, "\n".join(wrong)
    assert digests(course) == before


def truth(target, student, course, patch=(), cell=""):
    """What the check gives the same function in this process, with the seed that the judge drew."""
    judged = result(course, student, target.assignment)
    one = next(each for each in judged["checks"] if each["function"] == target.function)
    os.environ["KERNELS_PROGRESS"] = "0"  # what is printed is compared
    points, printed = target.check(submission(target, patch, cell), seed=one["seed"], grading=True)
    return one, points, printed


def hold_truth(course, students):
    """Marks and diagnoses are those of the check by itself, wherever it runs."""
    for student, target, mutant in students:
        one, points, printed = truth(
            target, student, course, mutant.patch if mutant else (), mutant.cell if mutant else ""
        )
        if mutant and mutant.name == "summed by torch":  # at home torch may add; a submission's launcher may not
            assert one["points"] < points and "sum computes outside a kernel" in one["printed"], one["printed"]
            continue
        assert one["points"] == points, (student, one["printed"], printed)
        same = [line.split(" in line ")[0] for line in printed.splitlines()]
        assert [line.split(" in line ")[0] for line in one["printed"].splitlines()] == same, student
        assert mutant is None or points < one["most"]


ONE_OF_EACH = list({(attack.status, attack.says): attack for attack in reversed(hostile.ATTACKS)}.values())
BUGS = [("flash_forward", -1)]
BUGS += [("row_softmax", 0), ("row_softmax", 4), ("wgrad_split", 1), ("emit_value", 2), ("mended_relay", 0)]


@pytest.mark.timeout(1200)  # nearly a hundred submissions
@pytest.mark.parametrize(
    ("attacks", "bugs"),
    [(ONE_OF_EACH, BUGS[:1]), pytest.param(hostile.ATTACKS, BUGS, marks=pytest.mark.thorough)],
    ids=["one of each kind", "all"],
)
def test_marks_are_the_known_truth(course, attacks, bugs):
    for attack in attacks:
        attack.plant(course / "submitted" / hostile.student(attack) / hostile.NAME)
    students = []
    by_function = {target.function: target for target in targets()}
    for function, number in bugs:
        target = by_function[function]
        if not too_old_for(ROOT / "solutions" / target.assignment / f"{target.assignment}.ipynb"):
            students.append((f"bug-{function}-{number}", target, target.mutants[number]))
            holding_only(course, target)
    students.append(("ada", by_function["row_softmax"], None))
    for student, target, mutant in students:
        hand_in(course, student, target.assignment, planted(target, mutant) if mutant else solution(target.assignment))
    before = digests(course)
    done = grade(course, "--jobs", "1")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{len(attacks) + len(students)} submissions: "), done.stdout
    hold_attacks(course, before, attacks)
    hold_truth(course, students)
    assert marks(course)["ada", hostile.NAME]["score"] == str(float(hostile.FULL))


@pytest.mark.classroom
def test_a_class_of_thirty(course):
    """One hands in the published solutions, notebook by notebook; each of the others has planted bugs in every exercise, one
    a function; and the attackers."""
    before, draw = digests(course), random.Random(16)
    usable = [t for t in targets() if not too_old_for(ROOT / "solutions" / t.assignment / f"{t.assignment}.ipynb")]
    students = [("ada", target, None) for target in usable]
    for name in {target.assignment for target in usable}:
        shutil.copytree(ROOT / "solutions" / name, course / "submitted" / "ada" / name)
    for number in range(1, 30):
        target = usable[number % len(usable)]
        mutant = draw.choice(target.mutants)
        hand_in(course, f"student-{number:02}", target.assignment, planted(target, mutant))
        students.append((f"student-{number:02}", target, mutant))
    for attack in hostile.ATTACKS:
        attack.plant(course / "submitted" / hostile.student(attack) / hostile.NAME)
    grade(course, seconds=30)
    found = marks(course)
    for name in {target.assignment for target in usable}:
        row = found["ada", name]
        assert (row["status"], row["score"]) == ("graded", row["max_score"]), name
    hold_attacks(course, before)
    hold_truth(course, students)


def test_nothing_submitted_is_said(course, capsys):
    assert main(["--course", str(course)]) == 1
    said = capsys.readouterr().err
    assert "Nothing to grade" in said and said.count("\n") == 1


def test_a_mark_outlives_the_folder_of_its_submission(course):
    for student in ("ada", "bob"):
        hand_in(course, student, hostile.NAME)
    assert grade(course).returncode == 0
    shutil.rmtree(course / "submitted" / "ada")
    assert grade(course).returncode == 0
    row = marks(course)["ada", hostile.NAME]
    assert (row["status"], row["score"]) == ("graded", "0.0") and "is gone" in row["notes"]


def test_a_full_disk_is_a_sentence(course, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hand_in(course, "ada", hostile.NAME)
    monkeypatch.setattr("tools.grading.files.write", full)
    assert main(["--course", str(course), "--jobs", "1"]) == 2
    assert "No space left on device. What is judged is kept" in capsys.readouterr().err


def test_without_a_sandbox_nothing_is_graded(course, capsys, monkeypatch):
    hand_in(course, "ada", hostile.NAME)
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["--course", str(course)]) == 2
    said = capsys.readouterr().err
    assert "bubblewrap is not installed" in said and "--unsafe" in said and not (course / "build").exists()


def test_without_a_sandbox_and_unsafe_all_is_graded_and_the_risk_is_said(course):
    for student, answers in (("ada", solution(hostile.NAME)), ("bob", None)):
        hand_in(course, student, hostile.NAME, answers)
    done = grade(course, "--unsafe", "--jobs", "1", PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("--unsafe: without a sandbox a submission can read and change whatever you can")
    assert {student: row["score"] for (student, _), row in marks(course).items()} == {
        "ada": str(float(hostile.FULL)), "bob": "0.0",
    }  # fmt: skip


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="Python is the system's own, which lies where it lies")
def test_a_python_that_lies_in_tmp_is_a_submissions_too(course):
    """Its own /tmp would hide what Triton imports as it goes: everybody would get 0."""
    hand_in(course, "ada", "01_row_softmax", solution("01_row_softmax"))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = Path(folder, ".venv")
        environment.symlink_to(sys.prefix)
        found = grade(course, python=environment / "bin" / "python", PYTHONPATH=str(ROOT))
    assert found.returncode == 0, found.stdout + found.stderr
    assert marks(course)["ada", "01_row_softmax"]["score"] == "15.0"


def state(stat):
    """A process's state and its parent's number, by its file in /proc; of one that is gone, those of a zombie."""
    try:
        return stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ["Z", "0"]


@pytest.mark.classroom
def test_a_killed_run_goes_on_and_a_newer_submission_is_graded(course):
    for number in range(4):
        hand_in(course, f"s{number}", hostile.NAME, solution(hostile.NAME) if number % 2 else None)
    command = [sys.executable, "-m", "tools.grade", "--course", str(course), "--jobs", "1"]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = course / "build" / "grading" / hostile.NAME
    while running.poll() is None and not list(folder.glob("*.json")):
        time.sleep(0.05)
    judges = [path for path in Path("/proc").glob("[0-9]*/stat") if state(path)[1] == str(running.pid)]
    assert judges
    running.kill()
    running.wait()
    while any(state(path)[0] != "Z" for path in judges):  # they end with it, or this test does not
        time.sleep(0.05)
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    hand_in(course, "s3", hostile.NAME)  # a newer submission, unsolved
    done = grade(course)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("4 submissions: 4 graded.")
    assert all((folder / name).stat().st_mtime_ns == then for name, then in kept.items() if name != "s3.json")
    assert {student: row["score"] for (student, _), row in marks(course).items()} == {
        "s0": "0.0", "s1": str(float(hostile.FULL)), "s2": "0.0", "s3": "0.0",
    }  # fmt: skip
    assert not list(Path(folder).glob(".part-*"))
