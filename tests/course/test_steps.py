"""Every "Your turn" of every lesson: its stub runs, its answer is right, and each wrong answer gets its diagnosis."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from kernels.check import steps
from kernels.check.steps import helpers
from tests.course import turns
from tools import lesson_kernels
from tools.kernel_environment import ROOT, too_old_for

TURNS = [turn for path in turns.lessons() for turn in turns.turns_of(path)]
by_step = {"ids": lambda turn: turn.step}


@pytest.fixture(autouse=True)
def triton_is_new_enough(request):
    """A lesson that the oldest Triton of the course cannot run is skipped there, as its notebook is."""
    turn = getattr(request.node, "callspec", None) and request.node.callspec.params.get("turn")
    if turn and (why := too_old_for(turn.path)):
        pytest.skip(why)


def wrong_answers(lesson: str) -> dict[str, list[tuple[str, str]]]:
    """``WRONG`` of a lesson: step -> (definitions, phrase of the diagnosis)."""
    path = Path(__file__).parent / "steps" / f"lesson_{lesson}.py"
    if not path.exists():
        return {}
    spec = importlib.util.spec_from_file_location(f"wrong_answers_{lesson}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WRONG


LESSONS = sorted(
    {path.name[:2] for path in turns.lessons()}
    | {path.stem[-2:] for path in ROOT.glob("kernels/check/steps/lesson_*.py")}
    | {path.stem[-2:] for path in ROOT.glob("tests/course/steps/lesson_*.py")}
)
WRONG = [
    pytest.param(turn, source, phrase, id=f"{turn.step}-{i}")
    for turn in TURNS
    for i, (source, phrase) in enumerate(wrong_answers(turn.step[:2]).get(turn.step, []))
]


def unlike(turn: turns.Turn, stub: str) -> list[str]:
    """What is wrong with how a turn's cell is made, and what its stub says."""
    found = []
    if turn.checked != [turn.step]:
        found.append(f"its cell {turn.id} checks {turn.checked}, not {turn.step!r}")
    if not turn.source.rstrip().splitlines()[-1].startswith("check.step("):
        found.append("its last line is not check.step(…)")
    if f"Your turn {turn.step}: not written yet" not in stub:
        found.append(f"the stub, run as it stands, says {stub!r}")
    if not turn.answer:
        found.append("the next cell has no ```python block within <details>…</details>")
    return found


@pytest.mark.parametrize("turn", TURNS, **by_step)
def test_a_stub_says_that_it_is_not_written_yet(turn):
    assert unlike(turn, turns.said(turn)) == []


@pytest.mark.parametrize("turn", TURNS, **by_step)
def test_the_answer_below_is_right(turn):
    assert f"Your turn {turn.step}: right, " in turns.said(turn, turn.answer)


@pytest.mark.parametrize(("turn", "source", "phrase"), WRONG)
def test_a_wrong_answer_gets_its_diagnosis(turn, source, phrase):
    said = turns.said(turn, source)
    assert f"Your turn {turn.step}: not yet. " in said and phrase in said


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_cell_has_a_step_and_every_step_a_cell_and_two_wrong_answers(lesson):
    data = lesson_kernels.turns(lesson)  # whose wrong answers are their slips
    cells = sorted(turn.step for turn in TURNS if turn.step[:2] == lesson and turn.step not in data)
    assert sorted(steps.of_lesson(lesson)) == cells
    wrong = wrong_answers(lesson)
    assert sorted(wrong) == cells
    assert [name for name in cells if len(wrong[name]) < 2] == []


SETUP = "import torch\nimport kernels\nimport triton\nimport triton.language as tl\nfrom kernels import check\n%precision 3"
STUB = """@triton.jit
def keep(offs, N):
    mask = ...  # which lanes exist
    return below(mask)

check.step("77-guard", keep)"""
ANSWER = "@triton.jit\ndef keep(offs, N):\n    return below(offs {} N * LIMIT)\n"
RIGHT = ANSWER.format("<")


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """``lesson(stub, solution)`` is the turn of a notebook of these two cells, after a setup and a definition."""
    monkeypatch.setattr(steps, "_STEPS", {})

    @steps.step("77-guard", "which lanes exist")
    def guard(answer):
        got = helpers.block(answer, torch.arange(8), 5)
        return helpers.difference("mask", got, torch.arange(8) < 5)

    def build(stub=STUB, solution=RIGHT, tags=()):
        cells = [
            new_code_cell(SETUP, id="setup"),
            new_code_cell(
                "LIMIT: tl.constexpr = tl.constexpr(1)\nbig = launch_nothing()\nalso = big\n\n"
                "@triton.jit\ndef below(m):\n    return m\n"
                "raise RuntimeError('executed')",
                id="define",
                metadata={"tags": list(tags)},
            ),
            new_markdown_cell("### Your turn", id="guard-turn-text"),
            new_code_cell(stub, id="guard-turn"),
            new_markdown_cell(f"<details><summary>Answer</summary>\n\n```python\n{solution}```\n\nSo.\n</details>", id="s"),
        ]
        path = tmp_path / "77_lesson.ipynb"
        nbformat.write(new_notebook(cells=cells), path)
        (turn,) = turns.turns_of(path)
        return turn

    return build


def test_a_turn_is_found_and_its_answer_taken_out_of_its_block(lesson):
    turn = lesson()
    assert (turn.step, turn.checked, turn.index) == ("77-guard", ["77-guard"], 3)
    assert turn.answer == ANSWER.format("<")
    assert unlike(turn, turns.said(turn)) == []
    assert turns.said(turn, turn.answer) == "Your turn 77-guard: right, which lanes exist.\n"
    assert "not yet. mask[5] is 1, expected 0" in turns.said(turn, ANSWER.format("<="))


def test_an_earlier_cell_is_executed_whole_where_it_is_tagged(lesson):
    with pytest.raises(NameError, match="launch_nothing"):
        turns.said(lesson(tags=[turns.WHOLE]))


@pytest.mark.parametrize(
    ("stub", "complaint"),
    [
        (STUB.replace("77-guard", "77-other"), "checks ['77-other'], not '77-guard'"),
        (STUB + "\nprint(3)", "its last line is not"),
        (STUB.replace("...", "offs < N"), "the stub, run as it stands, says"),
    ],
)
def test_a_turn_that_is_made_otherwise_is_seen(lesson, stub, complaint):
    turn = lesson(stub)
    printed = turns.said(turn) if "77-other" not in stub else "Your turn 77-guard: not written yet"
    assert any(complaint in found for found in unlike(turn, printed))


def test_an_answer_for_another_cell_is_refused(lesson):
    with pytest.raises(ValueError, match="the answer defines .'other'., and its cell none of them"):
        turns.filled(lesson(), "def other():\n    pass\n")


def test_an_answer_takes_the_place_of_all_that_it_defines(lesson):
    turn = lesson('a = ...\nb = 3  # given\n\n@f\ndef g():\n    return ...\ncheck.step("77-guard", a)')
    assert turns.filled(turn, "a = 1\ndef g():\n    return 2\n").splitlines() == [
        "a = 1", "def g():", "    return 2", "b = 3  # given", "", 'check.step("77-guard", a)',
    ]  # fmt: skip
