"""The README's tables, the reading site's front page, the instructor's plan and each exercise's first cell say the same."""

import re
from pathlib import Path

import nbformat
import pytest

from kernels.check import exercise_of
from tools.grading.assignment import CLINICS, read
from tools.kernel_environment import ROOT

README = (ROOT / "README.md").read_text()
KILLED = (ROOT / "docs" / "kill_table.md").read_text()
PLAN = (ROOT / "docs" / "instructor_guide.md").read_text()
FRONT = (ROOT / "docs" / "index.md").read_text()
EXERCISES = sorted(ROOT.glob("solutions/*/*.ipynb"))
ROW = re.compile(r"^\| (\[.+? · .+?\]\()(\S+\)) \|.*?\| (\d+)(?: \| \d+)? \|$", flags=re.MULTILINE)
STOP = re.compile(r"^1\. (\[.+?\]\(\S+\))$", flags=re.MULTILINE)
WEEK = re.compile(r"^\| [\d–]+ \| ([\d, ]+) \| (.+?) \| ([\d, ]+) \| ([\d, ]+) \|$", flags=re.MULTILINE)


def weeks() -> list[tuple[list[str], list[tuple[str, str, str]]]]:
    """Of each row of the plan its lessons, and its exercises: the first words of the title, minutes, points."""
    rows = [[part.split(", ") for part in row] for row in WEEK.findall(PLAN)]
    return [(lessons, list(zip(names, minutes, points, strict=True))) for lessons, names, minutes, points in rows]


def stated(path: Path) -> tuple[str, str, str]:
    """An exercise's minutes, its points, and the last lesson that it asks for, as its first cell says."""
    first = nbformat.read(path, as_version=4).cells[0].source
    minutes, points = re.search(r"\*\*(\d+) minutes · (\d+) points", first).groups()
    asked = re.search(r"after lessons? (.*?)(?:\n\n|$)", first, flags=re.DOTALL)[1]
    return minutes, points, max(re.findall(r"\[(\d\d)\]", asked))


def handed_out(path: Path) -> str:
    """What the plan calls an exercise: `01 row softmax`, `clinic 0`."""
    number = re.match(r"clinic_\d|\d\d", path.stem)[0].replace("_", " ")
    return next(name for _, exercises in weeks() for name, *_ in exercises if name.startswith(number))


@pytest.mark.parametrize("path", [*sorted(ROOT.glob("notebooks/*.ipynb")), *EXERCISES], ids=lambda path: path.stem)
def test_a_notebook_has_the_name_that_the_readme_gives_it(path):
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    (name,) = re.findall(rf"^\| \[(.+?)\]\((?:notebooks|exercises/{path.stem})/{path.name}\)", README, flags=re.MULTILINE)
    assert title in (f"# {name}", f"# Exercise {name}")


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_the_readme_says_what_an_exercise_says_of_itself(path):
    row = next(line for line in README.splitlines() if line.startswith("|") and f"(exercises/{path.stem}/" in line)
    lesson, minutes, points = (cell.strip() for cell in row.split("|")[-4:-1])
    assert (minutes, points, lesson) == stated(path)


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_the_plan_hands_out_an_exercise_behind_its_lessons(path):
    minutes, points, lesson = stated(path)
    name, read = handed_out(path), []
    for lessons, exercises in weeks():
        read += lessons
        if found := [rest for title, *rest in exercises if title == name]:
            assert found == [[minutes, points]] and lesson in read
            return
    pytest.fail(f"no week hands out {name}")


def test_the_front_page_has_the_hours_and_the_names_of_the_readme():
    minutes = {f"{name}../{target}": int(last) for name, target, last in ROW.findall(README)}
    of = {kind: sum(time for link, time in minutes.items() if kind in link) for kind in ("notebooks/", "exercises/")}
    assert f"**{of['notebooks/'] / 60:.0f} hours of lessons, {of['exercises/'] / 60:.0f} hours of exercises.**" in FRONT
    for begin in ("I have an afternoon", "I want attention"):
        (route,) = re.findall(rf"^### {begin}\n(.*?)^##", FRONT, flags=re.MULTILINE | re.DOTALL)
        whole = sum(minutes[stop] for stop in STOP.findall(route))
        assert re.search(r"(\d+) hours", route)[1] == f"{whole / 60:.0f}"


def test_the_plan_has_every_lesson_once():
    planned = [lesson for lessons, _ in weeks() for lesson in lessons]
    assert sorted(planned) == sorted(path.name[:2] for path in ROOT.glob("notebooks/*.ipynb"))


KERNELS = [one for path in EXERCISES for one in read(path).checks if not one.name.startswith(CLINICS)]


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.name)
def test_a_function_is_worth_what_the_guide_says(one):
    stated = {
        name.lower(): int(points) for name, points in re.findall(r"\*(Right|Compiles|Cheap)\* \((\d+)[ )]", PLAN)
    }
    exercise = exercise_of(one.name)
    assert exercise.worth == stated and one.points == sum(stated.values())
    assert [tier[0] for tier in exercise.cheap.tiers] == [stated["cheap"], 1]


MISTAKES = re.findall(r"^\| (\d\d|all) \| ([^|]+) \| ([^|]+) \|$", PLAN, flags=re.MULTILINE)


@pytest.mark.parametrize(("number", "mistake", "said"), MISTAKES, ids=lambda text: text[:30])
def test_a_check_says_of_a_mistake_what_the_guide_says(number, mistake, said):
    sections = KILLED.split("\n## ")
    rows = [row for one in sections if number == "all" or one.startswith(f"{number}_") for row in one.splitlines()]
    told = [row.rsplit(" | ", 1)[1].removesuffix(" |") for row in rows if row.count(" | ") == 3]
    assert any(len(one) >= 20 and (one in said or said in one) for one in told), mistake
