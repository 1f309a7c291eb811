"""The clinics: right answers earn every point, plausible wrong ones do not, and a test that knows nothing earns none."""

import contextlib
import io
import linecache

import pytest
import torch

from kernels import check, lab, runtime
from kernels.check.clinics import CAUSES, CHECKS, FAULTY, WORKSHEETS, worksheets
from kernels.check.clinics.faulty_kernel import launcher
from tests.course.mutants import ROOT, cells
from tools.grading.assignment import read, read_all
from tools.grading.judge import Judge, exercise_of
from tools.grading.sandbox import why_not
from tools.grading.submission import Submission

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="each launch is traced, in Triton's interpreter")
NAMES = sorted(path.name for path in (ROOT / "solutions").glob("clinic_*"))
each = pytest.mark.parametrize("faulty", FAULTY.values(), ids=FAULTY)


def held(name, answer, **how) -> tuple[int, str]:
    """Points and what is printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        points = CHECKS[name](answer, **how)
    return points, out.getvalue()


def notebook(key) -> dict[str, str]:
    (name,) = (name for name in NAMES if name.startswith(f"clinic_{key[0]}_"))
    return cells(name)


def defined(key, cell) -> object:
    """What the solution's answer cell for this kernel defines."""
    namespace = {"torch": torch, "device": runtime.device, "trace": lab.trace}
    exec(notebook(key)[f"{cell}-{key[1]}"], namespace)
    return namespace[f"{'finds' if cell == 'test' else 'diagnosis'}_{key[1]}"]


@each
def test_the_notebook_shows_the_kernel_of_the_check(faulty):
    shown = notebook(faulty.key)
    assert shown[f"found-{faulty.key[1]}"].strip() == faulty.source.strip()
    assert "#" not in faulty.source and '"""' not in faulty.source  # nothing in it tells
    assert faulty.cause in CAUSES and set(faulty.lines) <= {line.strip() for line in faulty.source.splitlines()}
    assert len(faulty.broken) >= 2 and len(faulty.sound) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_lists_every_cause_and_holds_three_kernels(name):
    book = read(ROOT / "exercises" / name / f"{name}.ipynb")
    text = "\n".join(cell.source for cell in book.notebook.cells if cell.cell_type == "markdown")
    assert all(f"| `{word}` | {said} |" in text for word, said in CAUSES.items())
    assert len(book.checks) == 6 and {one.points for one in book.checks} == {4.0, 6.0}
    for one in book.checks:
        assert exercise_of(one.name) is WORKSHEETS[one.name] and one.points == WORKSHEETS[one.name].points
        assert getattr(check, one.name) is CHECKS[one.name]


@pytest.mark.share(3)
@each
def test_each_part_of_a_diagnosis_counts_alone(faulty):
    """By number or by text, and each plausible slip costs its own part; nothing printed says what is right."""
    right = defined(faulty.key, "diagnosis")
    number = [line.strip() for line in faulty.source.splitlines()].index(right["line"].strip()) + 1
    name, small = f"diagnosis_{faulty.key}", right["smallest"]
    larger = [small | {axis: allowed[allowed.index(small[axis]) + 1]} for axis, allowed in faulty.sizes.items()
              if small[axis] != allowed[-1]]  # fmt: skip
    none = {axis: allowed[0] for axis, allowed in faulty.sizes.items()}
    other = next(word for word in CAUSES if word != faulty.cause)
    assert held(name, right | {"line": number})[0] == 4
    wrong = right | {"line": number - 1, "cause": other}
    for smallest in (*larger[:2], none, {}, small | {"Z": 1}, None):
        points, printed = held(name, wrong | {"smallest": smallest})
        assert points == 0 and "passed" not in printed
        assert faulty.cause not in printed.split("one of")[0] and right["line"] not in printed, printed
    points, printed = held(name, wrong | {"smallest": small})
    assert points == 2 and "FAILED  line: not accepted" in printed and "FAILED  cause: not accepted" in printed
    assert held(name, {"line": number})[0] == 1


def test_what_is_no_diagnosis_is_missing():
    for answer in (None, ..., "line 3", {"where": 3}, 7):
        points, printed = held("diagnosis_0a", answer)
        assert points == 0 and printed.startswith("missing: ")
    assert "it is one of neutral, mask" in held("diagnosis_0a", {"cause": "typo"})[1]


@each
def test_a_test_that_knows_nothing_earns_nothing(faulty):
    name = f"finds_{faulty.key}"
    for answer in (True, False, "broken", 1):
        points, printed = held(name, lambda kernel, answer=answer: answer)
        assert points == 0 and "passed" not in printed, printed
    for nothing in (None, lambda kernel: None, 3):
        points, printed = held(name, nothing)
        assert points == 0 and printed.startswith("missing: "), printed
    points, printed = held(name, lambda kernel: kernel(1))
    assert points == 0 and "your test ends in an error with" in printed


@each
def test_a_naive_test_does_not_find_it(faulty):
    """What the notebook shows first passes: the broken kernel gets through the test that its author wrote."""
    space = {"torch": torch, "device": runtime.device, "check": check, "trace": lab.trace}
    space |= {faulty.function: launcher(faulty.source, faulty.function), "print": lambda *said: None}
    seen = []
    space["compare"] = lambda name, got, want: seen.append(torch.allclose(got, want, atol=1e-4))
    exec(notebook(faulty.key)[f"first-look-{faulty.key[1]}"], space)
    assert seen and all(seen)


@pytest.mark.share(3)
@each
def test_the_solutions_test_finds_every_relative_and_accuses_none(faulty):
    points, printed = held(f"finds_{faulty.key}", defined(faulty.key, "test"), grading=True, seed=3)
    assert points == 6 and "graded with seed 3" in printed, printed


@each
def test_a_test_that_knows_one_kernel_finds_no_relative(faulty, monkeypatch):
    monkeypatch.setattr(worksheets, "disguised", lambda text, seed: text)
    points, printed = held(f"finds_{faulty.key}", lambda kernel: text_of(kernel).endswith(faulty.source))
    assert points == 4, printed
    for one in faulty.broken:
        assert f"it lets {one.said} pass" in printed
    points, printed = held(f"finds_{faulty.key}", lambda kernel: not text_of(kernel).endswith(faulty.right))
    assert points == 4 and all(f"it accuses {one.said}" in printed for one in faulty.sound), printed


def text_of(kernel) -> str:
    return "".join(linecache.getlines(kernel.__code__.co_filename))


KNOWS = """def finds_b(matmul):
    a, out = torch.ones(16, 16, device=device), torch.empty(16, 16, device=device)
    with trace.recording() as seen:
        matmul(a, a, out)
    lines = [access.source for launch in seen.launches for access in launch.accesses]
    return KNOWN.get(" | ".join(lines), True)
"""


def test_no_kernel_is_known_by_its_lines(monkeypatch):
    """A submission that looks up what the trace says of each published kernel earns nothing."""
    faulty, space = FAULTY["0b"], {"torch": torch, "device": runtime.device, "trace": lab.trace}
    exec(KNOWS.replace("KNOWN.get(", "(").replace(", True)", ")"), space)
    shown = [one for members in worksheets._groups(faulty).values() for one in members]
    kernels = [launcher(worksheets.patched(faulty.right, patch), faulty.function) for _, patch, _ in shown]
    known = {space["finds_b"](kernel): wanted for kernel, (_, _, wanted) in zip(kernels, shown, strict=True)}
    submitted = f"KNOWN = {known!r}\n\n\n{KNOWS}"
    exec(submitted, space)
    assert held("finds_0b", space["finds_b"], grading=True)[0] == 0
    monkeypatch.setattr(worksheets, "disguised", lambda text, seed: text)
    assert held("finds_0b", space["finds_b"], grading=True)[0] == 6


RECORDS = """import os

def finds_c(matvec):
    a, wide = torch.ones(5, 9), torch.full((10,), float("nan"))
    with check.guarded(), trace.recording() as seen:
        matvec(a, torch.ones(9), wide[::2], BLOCK_K=16)
    stored = {int(place) for access in seen.launches[0].accesses if access.kind == "store" for place in access.offsets}
    assert stored and stored <= set(range(5)) and wide[1::2].isnan().all() and not os.listdir("/proc")
    return tells(matvec)

"""


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a sandbox")
def test_a_solved_clinic_is_judged_in_the_sandbox():
    """Two kernels solved, slips in the answers of the others cost what they cost at one's desk; a test is any Python."""
    name = NAMES[0]
    book, judge = read(ROOT / "exercises" / name / f"{name}.ipynb"), Judge()
    answers = {cell: cells(name)[cell] for cell in book.answers}
    answers |= {
        "diagnosis-a": answers["diagnosis-a"].replace("'neutral'", "'mask'"),
        "test-a": "def finds_a(row_softmax):\n    return True",
        "test-b": "def finds_b(matmul):\n    return matmul(1)",
        "test-c": RECORDS + answers["test-c"].replace("finds_c", "tells", 1),
    }
    try:
        result = judge.judge("bob", book, Submission(answers))
    finally:
        judge.close()
    said = "\n".join(one.printed for one in result.checks)
    assert (result.status, [one.points for one in result.checks]) == ("graded", [3, 0, 4, 0, 4, 6]), said
    assert "your test ends in an error" in result.checks[3].printed


def test_every_check_of_every_assignment_asks_for_something():
    for name, book in read_all(ROOT / "exercises").items():
        for one in book.checks:
            assert sum(item.points for item in exercise_of(one.name).properties) > 0, (name, one.name)
