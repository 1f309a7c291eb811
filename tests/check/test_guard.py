"""What a learner's notebook does around a check: calls that do not end, cells that were not read, names that were taken."""

import re
import threading
import time

import pytest
import torch

from kernels import check, runtime
from kernels.check import watch
from kernels.check.explanations import explain, explain_slow
from kernels.check.guard import line_first
from tests.check.softmax import KERNEL, QUOTIENT, READ_BACK, RUNAWAY, SUM, right

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_call_that_does_not_end_is_ended(softmax, capsys, monkeypatch, in_a_thread):
    monkeypatch.setattr(watch, "CALL_SECONDS", 0.5)
    points = []
    work = lambda: points.append(check.row_softmax(softmax(SUM, RUNAWAY)))  # noqa: E731
    if in_a_thread:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(30)
    else:
        work()
    assert points == [0]
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert "still running after 0.5 s in line 1" in first and "see whether a loop ever ends" in first
    assert "kernel had executed 1 loads and stores, in program 1" in first
    assert second.startswith("not run: whatever comes after it")
    assert third.startswith("row_softmax: 0 of 15 points")
    assert right(softmax()) == 10  # the interpreter is as it was


def test_a_line_that_a_dataclass_generated_is_nobodys(cell):
    """Its methods have no text to show: the line is the one that called."""
    source = """
    from dataclasses import dataclass, field

    @dataclass
    class Settings:
        tile: int = field(default_factory=[].pop)

    settings = lambda: Settings()
    """
    with pytest.raises(IndexError) as raised:
        cell(source)["settings"]()
    assert explain(raised.value)[0].endswith("in line 8 of your cell, `settings = lambda: Settings()`")
    assert "in line 8 of your cell, `settings" in explain_slow(raised.value, [], 10)[0]


def test_a_launcher_that_waits_is_ended_too(softmax, capsys, monkeypatch):
    monkeypatch.setattr(watch, "WAIT_SECONDS", 0.5)

    def sleeps(x, out, entropy, BLOCK_N=None):
        for _ in range(1000):
            time.sleep(0.01)

    assert check.row_softmax(sleeps) == 0
    assert "`time.sleep(0.01)`" in capsys.readouterr().out


def test_a_long_check_shows_its_progress(softmax, capsys, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0)
    monkeypatch.setenv("KERNELS_PROGRESS", "1")
    assert right(softmax()) == 10
    out = capsys.readouterr().out
    assert re.search(r"\rragged width: 3 of 11, after \d+ s, about \d+ s left", out) and out.splitlines()[-1].endswith(
        "10 of 10 points"
    )


def test_a_cell_that_was_not_read_is_not_graded_by_the_one_before(shell, capsys):
    kernel = KERNEL[: KERNEL.index("def row_softmax")]
    launcher = KERNEL[KERNEL.index("def row_softmax") :]
    for source in ("from kernels import check\nimport triton, triton.language as tl", kernel, launcher):
        assert shell.run_cell(source, store_history=True).success
    shell.run_cell(kernel.replace("tl.max(x, axis=0)", "tl.max(x, axis=0"), store_history=True)
    capsys.readouterr()
    shell.run_cell("print(check.row_softmax(row_softmax, verdicts='right'))", store_history=True)
    said, points = capsys.readouterr().out.splitlines()[:2]
    assert said.startswith("row_softmax: not checked, the cell that defines kernel was not read, '(' was never closed")
    assert "`top = tl.max(x, axis=0`" in said and points == "0"
    shell.run_cell(kernel, store_history=True)
    shell.run_cell("print(check.row_softmax(row_softmax, verdicts='right'))", store_history=True)
    assert capsys.readouterr().out.splitlines()[-1] == "10"


def test_an_error_outside_a_check_is_the_learners_line_first(shell, capsys):
    line_first()
    wrong = KERNEL.replace("mask_n = offs_n < N", "mask = offs_n < N")
    for source in ("import torch, triton, triton.language as tl", wrong):
        assert shell.run_cell(source).success
    result = shell.run_cell("row_softmax(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2))")
    assert type(result.error_in_exec).__name__ == "InterpreterError"
    first, *rest = capsys.readouterr().out.splitlines()
    assert "NameError: name 'mask_n' is not defined in line 6 of your cell, `x = tl.load(" in first
    assert first.endswith("a name is used that no line above defines.") and len(rest) > 5


class TestGuarded:
    def test_says_what_lies_outside_and_leaves_it_alone(self, softmax, capsys):
        x, out = torch.ones(3, 5), torch.full((4, 5), 7.0)
        with check.guarded() as seen:
            softmax(', mask=mask_n, other=-float("inf")', "")(x, out[:3], torch.ones(3))
            softmax(", p / tl.where(total == 0.0, 1.0, total), mask=mask_n)", ", p)")(x, out[:3], torch.ones(3))
        load, store = capsys.readouterr().out.splitlines()
        line = "`x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn).to(tl.float32)` in program (2, 0, 0)"
        said = "3 lanes read outside x, the first at element 15 of x, which has 15: its last is 14."
        assert load.startswith(line) and said in load
        assert "3 lanes write outside out" in store and len(seen.launches) == 2
        assert (out[3] == 7).all()

    def test_says_each_race_inside_a_program_once(self, softmax, capsys):
        for cure, lines in (("", 1), ("    tl.debug_barrier()\n", 0)):
            with check.guarded():
                for _ in range(2):
                    softmax(QUOTIENT, cure + READ_BACK)(torch.ones(3, 5), torch.ones(3, 5), torch.ones(3))
            said = capsys.readouterr().out.splitlines()
            assert len(said) == lines
        assert not said

    def test_says_an_error_with_its_line_and_goes_on(self, softmax, capsys):
        with check.guarded():
            softmax("mask_n = offs_n < N", "mask = offs_n < N")(torch.ones(3, 5), torch.ones(3, 5), torch.ones(3))
        (line,) = capsys.readouterr().out.splitlines()
        assert "NameError: name 'mask_n' is not defined in line 7 of your cell" in line

    def test_says_where_a_nan_comes_from(self, softmax, capsys):
        for length, says in ((5, True), (8, False)):  # a block of 8 has no masked lanes in a row of 8
            with check.guarded():
                softmax(', other=-float("inf")', "")(torch.ones(3, length), torch.ones(3, length), torch.ones(3))
            said = capsys.readouterr().out
            assert (
                said.endswith("hence the nan in the result.\n") and "`other` is missing" in said if says else not said
            )

    def test_ends_what_does_not_end(self, softmax, capsys, monkeypatch):
        monkeypatch.setattr(watch, "CALL_SECONDS", 0.3)
        with check.guarded():
            softmax(SUM, RUNAWAY)(torch.ones(3, 5), torch.ones(3, 5), torch.ones(3))
        assert "still running after 0.3 s" in capsys.readouterr().out


def test_rebinding_what_compares_earns_nothing(softmax, monkeypatch):
    import numpy

    wrong = softmax("p / tl.where", "2 * p / tl.where")
    before = right(wrong)
    for module in (torch, numpy):
        for name in ("equal", "allclose", "isclose", "isnan", "abs", "mean", "argwhere"):
            monkeypatch.setattr(module, name, lambda *args, **kwargs: True, raising=False)
    monkeypatch.setattr(torch.testing, "assert_close", lambda *args, **kwargs: None)
    assert right(wrong) <= before < 3
