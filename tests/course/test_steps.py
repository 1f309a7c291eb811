"""Every "Your turn" of every lesson: its stub runs, its answer is right, and each wrong answer gets its diagnosis."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from kernels.check.lessons import Turn, as_given, by_model
from tests.course import turns
from tools import lesson_kernels
from tools.kernel_environment import too_old_for

TURNS = [turn for path in turns.lessons() for turn in turns.turns_of(path)]
by_step = {"ids": lambda turn: turn.step}


@pytest.fixture(autouse=True)
def triton_is_new_enough(request):
    """A lesson that the oldest Triton of the course cannot run is skipped there, as its notebook is."""
    turn = getattr(request.node, "callspec", None) and request.node.callspec.params.get("turn")
    if turn and (why := too_old_for(turn.path)):
        pytest.skip(why)


#: Of the turns that run on the model, wrong answers: what is exchanged in the right one, and a phrase of the diagnosis.
#: Those of the others are their slips, which tests/course/test_lesson_kernels.py plants.
WRONG = {
    "50-late": [
        ("STAGES - 2) % STAGES), count=1, pred=i > 1", "STAGES - 1) % STAGES), count=1, pred=i > 0", "may still run"),
        ("i > 1", "i > 0", "in the first two steps"),
        ("i > 1", "True", "in the first two steps"),
        ("i > 1", "i > 2", "Nobody can go on"),
        ("(i + STAGES - 2) % STAGES", "s", "Nobody can go on"),
        ("(i + STAGES - 2) % STAGES), count=1, pred=i > 1", "s), count=1, pred=True", "You hand a buffer back"),
        ("i + STAGES - 2", "i - 2", "i − 2 is negative"),
        ("(i + STAGES - 2) % STAGES", "i + STAGES - 2", "it is below STAGES"),
        ("(i + STAGES - 2) % STAGES", "(i + 1) % STAGES", "the one of step i − 2"),
        ("wait(2", "wait(1", "at most 2 products are in flight"),
        ("wait(2", "wait(0", "at most 1 product is in flight"),
    ],
    "52-store": [
        ("tile // SUMS & 1", "(tile // SUMS + 1) & 1", "another round than its own"),
        ("tile // SUMS & 1", "tile & 1", "another round than its own"),
        ("tile // SUMS & 1", "tile // SUMS", "take it modulo 2"),
        ("tile % SUMS", "tile % 2", "how many there are is SUMS"),
        ("tile % SUMS", "0", "or signals for another accumulator"),
        ("arrive(stored", "arrive(done", "the multiplier waits to be told"),
        ("stored.index(slot)", "stored.index(0)", "or signals for another accumulator"),
    ],
    "53-last": [
        ("(tiles - 1) % STAGES", "tiles % STAGES", "The model's finding"),
        ("(tiles - 1) // STAGES & 1", "tiles // STAGES & 1", "whose number is tiles − 1"),
        ("(tiles - 1) // STAGES & 1", "((tiles - 1) // STAGES & 1) ^ 1", "whose number is tiles − 1"),
        ("(tiles - 1) // STAGES & 1", "(tiles - 1) // STAGES", "take it modulo 2"),
        ("wait(0", "wait(1", "let none of them run on"),
        ("(tiles - 1) % STAGES", "tiles - 1", "a slot is below STAGES"),
        ("(tiles - 1) % STAGES", "0", "The model's finding"),
    ],
}
ON_THE_MODEL = {turn.step: turn for turn in TURNS if turn.step in by_model.TURNS}


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


@pytest.mark.parametrize(
    ("turn", "old", "new", "phrase"),
    [(turn, *wrong) for name, turn in ON_THE_MODEL.items() for wrong in WRONG[name]],
)
def test_a_wrong_answer_gets_its_diagnosis(turn, old, new, phrase):
    assert turn.answer.count(old) == 1
    said = turns.said(turn, turn.answer.replace(old, new))
    assert f"Your turn {turn.step}: not yet. " in said and phrase in said


def test_every_cell_has_a_check_and_every_check_a_cell():
    lessons = {turn.step[:2] for turn in TURNS}
    data = [name for lesson in lessons for name in lesson_kernels.turns(lesson)]
    assert sorted([*data, *by_model.TURNS]) == sorted(turn.step for turn in TURNS)
    assert sorted(WRONG) == sorted(by_model.TURNS)


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
    wanted = Turn("which lanes exist", as_given, {"five lanes": {"N": 5}}, run=turns.masked)
    turns.made_up(monkeypatch, {"77-guard": wanted}, ANSWER.format("<").replace("below", "").replace(" * LIMIT", ""))

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
    assert "not yet. five lanes: mask[5] is 1, expected 0" in turns.said(turn, ANSWER.format("<="))


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
        lesson_kernels.replaced(lesson().source, "def other():\n    pass\n")


def test_an_answer_takes_the_place_of_all_that_it_defines():
    source = 'a = ...\nb = 3  # given\n\n@f\ndef g():\n    return ...\ncheck.step("77-guard", a)'
    assert lesson_kernels.replaced(source, "a = 1\ndef g():\n    return 2\n").splitlines() == [
        "a = 1", "def g():", "    return 2", "b = 3  # given", "", 'check.step("77-guard", a)',
    ]  # fmt: skip
