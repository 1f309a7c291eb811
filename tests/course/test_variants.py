"""Variations of exercises: their own solution earns every point, the published one does not, a seed repeats itself."""

import json
import re

import nbformat
import pytest

from kernels import check, runtime
from kernels.check.framework import Draw
from kernels.lab.source import readable
from tests.course.mutants import ROOT, Target, failures
from tools.desk import main as desk
from tools.grading import assignment
from tools.grading.judge import exercise_of
from tools.grading.submission import Unusable
from tools.variants import build, edits
from tools.variants.__main__ import main

NAMES = list(build.TABLE)
each = pytest.mark.parametrize("name", NAMES)
# Exercises whose functions a variation changes each in another way; of the others one function stands for all.
EACH_ITS_OWN = ("04_recurrent_attention", "05_chunked_attention", "06_flash_attention", "07_score_mod_compiler")


def published(name):
    return nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", as_version=4)


def defined(notebook, tag):
    """What a solution's cells define, as a learner's notebook would: without its checks and experiments."""
    namespace = {}
    for cell in notebook.cells:
        fields = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and fields and "check." not in cell.source:
            filename = f"<{cell.id} {tag}>"  # Triton reads a kernel's source back by this name
            exec(readable(cell.source, filename), namespace)
    return namespace


def checks(notebook):
    """(check, function, what it is asked, points) of each check cell, as the judge reads them."""
    made = assignment.Assignment("made", notebook, "")
    return [(one.name, one.function, one.varied, one.points) for one in made.checks]


def held(name, function, until=None, **how):
    return Target("", name, (), None, ()).check(function, until, **how)


@each
def test_every_variation_can_be_written(name):
    """Each replaced piece is there once, for every choice; the text differs from the published one, and among choices."""
    before, texts = published(name), set()
    for task in build.TABLE[name].variation.others():
        made = build.notebook(before, name, task)
        assert [cell.id for cell in made.cells] == [cell.id for cell in before.cells]
        assert all(one.metadata == other.metadata for one, other in zip(made.cells, before.cells, strict=True))
        assert [varied for _, _, varied, _ in checks(made)] == [task.varied] * len(checks(made))
        for cell in made.cells:
            if cell.cell_type == "code":
                compile(cell.source, cell.id, "exec")
                assert not cell.outputs
        for one, _, varied, points in checks(made):
            exercise = exercise_of(one).varied(varied)
            assert exercise.terms() in next(cell.source for cell in made.cells if cell.id == "points")
            assert exercise.points == points
        for change in build.TABLE[name].edits(task).items():
            assert "### BEGIN" not in "".join(map(str, change[1])), change
        texts.add("".join(cell.source for cell in made.cells))
    assert len(texts) == len(build.TABLE[name].variation.others())


def solved(name, task, verdicts, seed, which=slice(None)):
    """The variation's solution earns all; the published one is told what is asked, in the first place."""
    old = defined(published(name), "published")
    made = build.notebook(published(name), name, task)
    new = defined(made, "varied")
    for formula, of in (("dx_formula", "dynamic_conv_dx"), ("dtau_formula", "flash_dtau")):
        if formula in new:
            assert check.derivation(of, new[formula], varied=task.varied)
            assert not check.derivation(of, old[formula], varied=task.varied)
    for one, function, varied, _ in checks(made)[which]:
        exercise = exercise_of(one).varied(varied)
        how = {"varied": varied, "seed": seed, "grading": True}
        points, printed = held(one, new[function], verdicts=verdicts, **how)
        assert points == sum(exercise.worth[verdict] for verdict in verdicts), f"{task}\n{printed}"
        until = None if verdicts == check.VERDICTS else lambda printed: "FAILED" in printed
        points, printed = held(one, old[function], until, verdicts=verdicts, **how)
        diagnosis = next(iter(failures(printed).values()))
        assert f"asked is {task.asked}" in diagnosis, f"{task}\n{printed}"
        assert points is None or points <= exercise.points / 2, f"{task}\n{printed}"


interpreted = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")


@pytest.mark.share(3)
@interpreted
@each
def test_a_drawn_variation_is_solved_by_its_own_solution_alone(name):
    middle = len(build.TABLE[name].exercises) // 2
    which = slice(None) if name in EACH_ITS_OWN else slice(middle, middle + 1)
    solved(name, build.draw(name, "autumn"), ("right",), "autumn", which)


@interpreted
@pytest.mark.classroom
@each
def test_every_variation_is_solved_by_its_own_solution_alone(name):
    for seed, task in enumerate(build.TABLE[name].variation.others()):
        solved(name, task, check.VERDICTS, seed)


@pytest.mark.classroom
@pytest.mark.parametrize("name", EACH_ITS_OWN)
def test_each_known_mistake_of_a_variation_gives_an_answer(name):
    """What a suspect raised would be taken for the learner's error, and two of one name would hide a mistake."""
    for task in build.TABLE[name].variation.others():
        for exercise in (one.varied(task.varied) for one in build.TABLE[name].exercises):
            calls = [call for item in exercise.properties for call in item.cases(Draw(1, True)) if not item.addresses]
            for call, out in ((one, out) for one in calls for out in one.outs):
                causes = [cause for cause, answer in exercise.suspects(call, out) if out.array(answer) is not None]
                assert len(set(causes)) == len(causes) > 2, (task, exercise.name, out.name)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_seed_gives_the_same_course_again_and_another_one_another(tmp_path, capsys):
    for name in ("solutions", "nbgrader_config.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert main(["one", "--course", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    first = contents(tmp_path / "build" / "variants" / "one")
    assert main(["one", "--course", str(tmp_path)]) == 0
    assert contents(tmp_path / "build" / "variants" / "one") == first
    assert main(["two", "--course", str(tmp_path)]) == 0
    second = contents(tmp_path / "build" / "variants" / "two")
    assert first.keys() == second.keys() and first != second
    for name in NAMES:
        assert re.search(rf"^{name} +{re.escape(build.draw(name, 'one').asked)} \(one of \d+\)$", said, re.MULTILINE)
    for path, data in first.items():
        as_published = path.stem not in NAMES and path.suffix == ".ipynb"
        assert not as_published or data == (ROOT / path).read_bytes()
        assert path.suffix != ".ipynb" or json.loads(data)["nbformat"] == 4


@pytest.mark.parametrize("seed", ["../here", "", "a b", "x" * 65])
def test_a_seed_that_names_no_folder_is_refused(seed, tmp_path, capsys):
    assert main([seed, "--course", str(tmp_path)]) == 2
    assert "the seed is" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_published_text_that_has_changed_is_named(monkeypatch):
    changed = published("01_row_softmax")
    next(cell for cell in changed.cells if cell.id == "kernel").source += "\n# row_sum\n"
    changed.cells[-1].source += " x"
    task = build.draw("01_row_softmax", "one")
    build.notebook(changed, "01_row_softmax", task)
    next(cell for cell in changed.cells if cell.id == "task").source = "Write it."
    with pytest.raises(edits.OutOfDate, match="cell (task|kernel)|occurs 0 times"):
        edits.apply(changed, {"task": ("three times", "twice")})


@pytest.mark.parametrize(
    ("name", "varied", "said"),
    [
        ("row_softmax", {"axis": 0}, r"varied names 'axis': there are factor, base, log"),
        ("row_softmax", {"log": 1}, r"varied\['log'\] is 1: it needs one of False, True"),
        ("tiled_matmul", {"first": "left"}, r"varied\['first'\] is 'left': it needs one of 'low', 'high'"),
        ("vector_add", {"log": True}, "asked in one way only"),
    ],
)
def test_what_is_no_choice_is_refused_before_anything_runs(name, varied, said):
    from kernels.check.framework import check as hold

    exercise = exercise_of(name)
    with pytest.raises(ValueError, match=said):
        hold(exercise, None, varied=varied)


@pytest.mark.parametrize(
    ("name", "said"), [("mended_relay", "one way only"), ("tiled_matmul", "there are offset, first")]
)
def test_the_judge_says_what_an_assignment_cannot_ask(name, said):
    assert exercise_of(name).points and exercise_of(name, {}) is exercise_of(name)
    with pytest.raises(Unusable, match=said):
        exercise_of(name, {"log": True})


def test_the_rubric_names_every_exercise(capsys):
    assert desk(["rubric"]) == 0
    printed = capsys.readouterr().out
    assert all(f"`{one}`" in printed for one in ("row_softmax", "wgrad_split", "emit_value", "mended_relay"))


def test_only_a_literal_variation_is_read_from_a_check_cell():
    assert assignment.check_call("check.f(g, varied={'a': 1})") == ("f", "g", {"a": 1})
    assert assignment.check_call("check.f(g)") == ("f", "g", {})
    for source in ("check.f(g, varied=h())", "check.f(g, varied=[1])", "check.f(g, seed=3)", "check.f(g, **{})"):
        assert assignment.check_call(source) is None, source
