"""What the interpreter runs and what the compiler sees are one program; and nobody is told more than an answer needs."""

import json

import pytest

from tests.course.hostile.plant import FULL, NAME, cell, notebook
from tools.grading import submission
from tools.grading.assignment import read_all
from tools.grading.judge import Judge
from tools.grading.sandbox import ROOT, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a sandbox")
ASSIGNMENTS = read_all(ROOT / "exercises")
CLINIC = "clinic_0_foundations"


@pytest.fixture(scope="module")
def judge():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_CACHE_DIR", raising=False)
        made = Judge(seconds=20)
        yield made
        made.close()


def judged(judge, name, edited, edit):
    """What becomes of a solution of which one cell was edited."""
    made, assignment = notebook(True, name), ASSIGNMENTS[name]
    one = cell(made, edited)
    changed = edit(one.source)
    assert changed != one.source
    one.source = changed
    return judge.judge("ada", assignment, submission.read(json.dumps(made).encode(), assignment))


DIFFER = "comes out otherwise when it is compiled", "no GPU can run"
ROWS = "[row for _ in range(1)][0]"  # which no compiler takes


@pytest.mark.parametrize(
    ("line", "points"),
    (
        (f"row = row if tl.constexpr(1) is 1 else {ROWS}", FULL - 2),
        (f"if f'{{tl.constexpr(1)}}' != '1':\n        row = {ROWS}", FULL - 2),
        (f"for _ in tl.static_range(0 if tl.constexpr(1) is 1 else 1):\n        row = {ROWS}", FULL - 2),
        (f"row = row + 0 * (tl.constexpr(1) is not 1 and {ROWS})", FULL - 2),
        ("if tl.constexpr(1) is 1:\n        return", FULL - 2),  # compiled to nothing
        ("if tl.constexpr(1) is 1:\n        N = 0", FULL - 2),  # or to loops without a turn
        (f"row = row if BLOCK_N > 64 else {ROWS}", FULL - 2),
        ("row = row + 0 if BLOCK_N < 1024 else row", FULL),  # the compiler is asked for the calls that took each way
        ("if x_ptr.dtype.element_ty == tl.float32:\n        row += 0\n    elif BLOCK_N > 32:\n        row += 0", FULL),
    ),
)
def test_the_compiler_sees_what_is_run(judge, line, points):
    found = judged(judge, NAME, "kernel", lambda source: source.replace("    lanes = ", f"    {line}\n    lanes = ", 1))
    assert (found.status, found.points) == ("graded", points), found.checks[0].printed
    assert any(said in found.checks[0].printed for said in DIFFER) == (points < FULL)


@pytest.mark.parametrize(
    ("held", "line", "points"),
    (
        ("SEEN = [0.0]\n\n\n", "SEEN.append(row)", FULL - 2),  # nobody can read there what no compiler takes
        ("SEEN = {}\n\n\n", "SEEN[0] = row", 0),
        ("SEEN = tl.constexpr([0.0])\n\n\n", "SEEN.value.append(row)", FULL - 2),
    ),
)
def test_what_a_kernel_leaves_in_a_table_is_worth_nothing(judge, held, line, points):
    edit = lambda source: held + source.replace("    lanes = ", f"    {line}\n    lanes = ", 1)  # noqa: E731
    found = judged(judge, NAME, "kernel", edit)
    assert (found.status, found.points) == ("graded", points), found.checks[0].printed


def test_a_compiler_of_mods_does_not_count(judge):
    counts = (
        "SEEN = [1]\n\n\ndef emit_value(mod):\n    SEEN[0] += 1\n"
        "    return emit(mod).replace('return ', f'return {SEEN[0]} * ')\n\n\ndef emit(mod):"
    )
    edit = lambda source: source.replace("def emit_value(mod):", counts)  # noqa: E731
    found = judged(judge, "07_score_mod_compiler", "value-kernel", edit)
    (one,) = (check for check in found.checks if check.function == "emit_value")
    assert (found.status, one.points) == ("graded", 0.0), one.printed
    assert "SCORE_MOD of value_kernel is" in one.printed


TEST = "def finds_a(row_softmax{}):\n    {}\n"
COUNTS = "SEEN.append(1)\n    return len(SEEN) % 2 == 1"
CLOSED = """def counted():
    SEEN = []
    def finds_a(row_softmax):
        SEEN.append(1)
        return len(SEEN) % 2 == 1
    return finds_a

finds_a = counted()"""


@pytest.mark.parametrize(
    "answer",
    (
        f"SEEN = []\n{TEST.format('', COUNTS)}",
        TEST.format(", SEEN=[]", COUNTS),
        CLOSED,
    ),
)
def test_a_test_knows_nothing_of_the_kernels_before(judge, answer):
    found = judged(judge, CLINIC, "test-a", lambda source: answer)
    (one,) = (check for check in found.checks if check.function == "finds_a")
    assert (found.status, one.points) == ("graded", 0.0), found.reason
    assert "tells the broken kernel from a right one: it " in one.printed


def test_a_trace_tells_a_test_no_line(judge):
    lines = (
        "x = torch.zeros(1, 16)\n    with trace.recording() as seen:\n        row_softmax(x, x)\n"
        "    raise ValueError([(access.kind, access.source) for access in seen.launches[0].accesses][0])"
    )
    found = judged(judge, CLINIC, "test-a", lambda source: TEST.format("", lines))
    assert "ValueError: ('load', '')" in next(one for one in found.checks if one.function == "finds_a").printed
