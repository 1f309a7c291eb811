"""The framework of the checks: what it sees of a call, and what it says of a learner's error."""

import re
from dataclasses import replace

import pytest
import torch

from kernels import check, runtime
from kernels.check.exercises.row_softmax import EXERCISE
from kernels.check.explanations import explain
from kernels.check.framework import check as run_check
from kernels.lab.compile_report import compile_prepared
from tests.check.softmax import QUOTIENT, READ_BACK, SUM, right
from tests.course.mutants import failures

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")


def test_a_right_answer_earns_every_point_and_says_so(softmax, capsys):
    assert check.row_softmax(softmax()) == 15
    printed = capsys.readouterr()
    assert printed.out.endswith("row_softmax: 15 of 15 points (right 10/10, compiles 2/2, cheap 3/3)\n")
    assert printed.out.count("passed  ") == 13
    assert printed.err == ""  # nbgrader takes anything there for a failure


def test_what_is_not_verified_is_said_and_is_not_passed(softmax, capsys):
    properties = [replace(item, needs="a GPU") if item.name == "bfloat16" else item for item in EXERCISE.properties]
    assert run_check(replace(EXERCISE, properties=tuple(properties)), softmax()) == 15
    printed = capsys.readouterr().out
    assert "not verified on this machine: bfloat16 (needs a GPU)" in printed and printed.count("passed  ") == 12


def test_poison_makes_no_noise(softmax, capsys):
    assert right(softmax(', mask=mask_n, other=-float("inf")')) < 10
    assert capsys.readouterr().err == ""


def test_a_race_inside_a_program_is_told_with_both_lines_and_its_cure(softmax, capsys):
    two = replace(EXERCISE, properties=EXERCISE.properties[:2])
    odd = "    even = offs_n >= 0 & mask_n\n"  # is not what it looks like, and no cause of this
    assert run_check(two, softmax(QUOTIENT, odd + READ_BACK), verdicts="right") == 0
    first, again = failures(capsys.readouterr().out).values()
    assert first.startswith("out[0, 0] is stored by one lane of a program and then loaded by another, line 11 `tl.store(")
    assert "` and line 14 `q = tl.load(q_ptrs" in first and "(with M = 4, N = 16)" in first
    for line in (first, again):
        assert "put tl.debug_barrier() between the two, or keep the value in registers" in line
    assert run_check(two, softmax(QUOTIENT, "    tl.debug_barrier()\n" + READ_BACK), verdicts="right") == 2


def test_a_function_that_is_not_written_is_missing(capsys):
    assert check.row_softmax(None) == 0
    missing, points = capsys.readouterr().out.splitlines()
    assert missing.startswith("missing: the kernel stores nothing yet") and points == "row_softmax: 0 of 15 points"


@pytest.mark.parametrize("fn", [3, "row_softmax"])
def test_without_a_function_there_is_nothing_to_check(fn, capsys):
    assert right(fn) == 0
    assert capsys.readouterr().out == (
        f"row_softmax: nothing to check, the function is {fn!r}. Run the cell that defines it first.\n"
    )


def test_an_error_is_shortened_to_the_learners_line_and_explained(softmax, capsys):
    assert check.row_softmax(softmax("mask_n = offs_n < N", "mask = offs_n < N")) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert "NameError: name 'mask_n' is not defined in line 7 of your cell, `x = tl.load(" in first
    assert "a name is used that no line above defines" in first
    assert second == 'FAILED  strides: the error of "one block wide" again.'


@pytest.mark.parametrize(
    ("old", "new", "means"),
    [
        ("offs_n = tl.arange(0, BLOCK_N)", "offs_n = tl.arange(0, 7)", "must be a power of two"),
        ("mask_n = offs_n < N", "mask_n = tl.arange(0, 2 * BLOCK_N) < N", "two blocks of different shapes meet"),
        ("stride_xm, stride_xn, stride_om", "stride_xm, stride_om", "the launcher and the kernel's signature do not"),
        ("@triton.jit\n", "", "decorated with @triton.jit"),
    ],
)  # fmt: skip
def test_common_errors_are_explained(softmax, capsys, old, new, means):
    assert right(softmax(old, new)) == 0
    assert means in capsys.readouterr().out


TINY = """
import torch


@triton.jit
def helper(x, y):
    return x + y


@triton.jit
def tiny(x_ptr, N, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    {}
    tl.store(x_ptr + tl.arange(0, BLOCK), x)


def launch(x):
    tiny[(1,)](x, 4, BLOCK=4)
"""


@pytest.mark.parametrize(
    ("line", "launched", "means"),
    [
        ("x = helper(x)", "", "the call and the signature of helper do not agree"),
        ("x = tl.zeros((BLOCK,))", "", "the call and the signature of zeros do not agree"),
        ("pass", "[(1,)](x, BLOCK=4)", "the launcher and the kernel's signature do not agree: hold one beside"),
        ("x += tl.arange(0, N)", "", "a block's length is known when the kernel is compiled"),
        ("x = tl.zeros_like(x_ptr)", "", "an address is no block"),
        ("x = x_ptr + tl.arange(0, BLOCK)", "", "tl.load brings what lies there"),
        ("x = torch.exp(x)", "", "in a kernel it is tl.exp"),
        ("x, y = divmod(x, N)", "", "the quotient is //, the remainder %"),
        ("x = tl.mod(x, N)", "", "Triton has no function of this name"),
        ("x = x @ x", "", "the product of two blocks is tl.dot"),
        ("y = tl.dot(tl.zeros((16, 32), tl.float32), tl.zeros((16, 32), tl.float32))", "", "see tl.trans"),
    ],
    ids=("helper", "zeros", "launcher", "length", "address", "addresses", "torch", "divmod", "mod", "matmul", "dot"),
)  # fmt: skip
def test_an_error_in_a_kernel_is_explained(cell, capsys, line, launched, means):
    source = TINY.format(line).replace("[(1,)](x, 4, BLOCK=4)", launched or "[(1,)](x, 4, BLOCK=4)")
    with check.guarded():
        cell(source)["launch"](torch.zeros(4))
    assert means in capsys.readouterr().out


def test_a_kernel_that_is_called_and_not_launched_is_explained():
    """By its words: Triton's interpreter does not put itself back after such a call."""
    error = AttributeError("'torch.dtype' object has no attribute 'is_ptr'")
    assert explain(error)[1] == "a kernel is launched as kernel[grid](...), not called"


TWICE = """    again = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n{})
    total = tl.sum(tl.where(again == again, p, 1.0), axis=0)
"""


def test_a_mask_without_other_fails_where_its_lanes_count(softmax, capsys):
    assert right(softmax("    total = tl.sum(p, axis=0)\n", TWICE.format(", other=0.0"))) == 10
    assert right(softmax("    total = tl.sum(p, axis=0)\n", TWICE.format(""))) < 10
    assert "mask=mask_n)`: `other` is missing. What a masked lane holds is undefined" in capsys.readouterr().out


def test_a_mask_without_other_is_named_before_what_it_happens_to_do(softmax, capsys):
    assert right(softmax(', other=-float("inf")', "")) < 10
    failed = failures(capsys.readouterr().out)
    says = "`other` is missing. What a masked lane holds is undefined on a GPU, and poison here. And the masked lanes"
    assert says in failed["ragged width"]


def test_a_mask_without_other_is_right_where_its_lanes_do_not_count(softmax):
    mended = ").to(tl.float32)\n    x = tl.where(mask_n, x, -float('inf'))"
    assert right(softmax(', other=-float("inf")).to(tl.float32)', mended)) == 10


def test_an_input_that_is_written_to_is_a_failure(softmax, capsys):
    fn = softmax("    p = tl.exp", "    tl.store(x_ptr + row * stride_xm, 0.0)\n    p = tl.exp")
    assert right(fn) <= 1
    assert "x changed" in capsys.readouterr().out


def test_an_answer_without_a_kernel_earns_nothing(capsys):
    assert right(lambda x, out, entropy, BLOCK_N=None: out.copy_(torch.softmax(x, 1))) == 0
    assert capsys.readouterr().out.startswith("missing: no Triton kernel stores anything.")


def test_an_access_that_would_end_the_process_is_not_performed(softmax, capsys):
    assert right(softmax("x_ptr + row * stride_xm", "x_ptr + row * 500_000_000")) <= 2
    assert "a load reaches far outside x, `x = tl.load(" in capsys.readouterr().out


def test_the_same_seed_draws_the_same_and_grading_draws_anew(softmax):
    def drawn(**how):
        seen = []
        fn = softmax()
        right(lambda x, *outs, **block: (seen.append(x.clone().nan_to_num(7.0)), fn(x, *outs, **block)), **how)
        return seen

    first = drawn()
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(), strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, drawn(seed=1)))
    assert [a.shape for a in first] == [a.shape for a in drawn(seed=1)]
    assert any([a.shape for a in first] != [a.shape for a in drawn(seed=seed, grading=True)] for seed in range(3))


def test_the_environment_asks_for_grading(softmax, capsys, monkeypatch):
    monkeypatch.setenv("KERNELS_GRADING", "1")
    assert check.row_softmax(softmax()) == 15
    first = capsys.readouterr().out.splitlines()[-1]
    check.row_softmax(softmax())
    assert re.match(r"row_softmax: 15 of 15 points \(.+\) \(graded with seed \d+\)$", first)
    assert capsys.readouterr().out.splitlines()[-1] != first


def test_each_verdict_has_its_own_points(softmax, capsys):
    """The sum in a loop whose variable changes its type: right in the interpreter, and no GPU can run it."""
    looped = (
        "    total = 0\n    for _ in range(0, N, BLOCK_N):\n        total += p\n    total = tl.sum(total, axis=0)\n"
    )
    assert check.row_softmax(softmax(SUM, looped)) == 13
    out = capsys.readouterr().out
    assert "`total` is a number, int32, before the loop and a float32 block [4096] after a step" in out
    assert "FAILED  compiles: no GPU can run kernel, the compiler says: Loop-carried variable total" in out
    assert "at `for _ in range(0, N, BLOCK_N):`" in out
    assert out.endswith("row_softmax: 13 of 15 points (right 10/10, compiles 0/2, cheap 3/3)\n")


def test_a_dear_kernel_earns_part_of_what_a_cheap_one_does(softmax, capsys):
    again = "    x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=0.0)\n"
    assert check.row_softmax(softmax(SUM, SUM + 3 * again), verdicts="cheap") == 1
    assert "1 of 3 points: loads ask for 4 times the inputs' bytes, and 3 times do" in capsys.readouterr().out
    assert check.row_softmax(softmax(SUM, SUM + 9 * again), verdicts="cheap") == 0
    line = "most by `x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=0.0)`"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("beyond", "says"),
    [
        (
            "    tl.store(out_ptr + tl.num_programs(0) * stride_om + row, 0.0)\n",
            "a store reaches outside out, `tl.store(",
        ),
        ("    tl.load(x_ptr - 1 - row)\n", "a load reaches outside x, `tl.load("),
        ("    tl.store(x_ptr + row * stride_xm, 0.0)\n", "x changed"),
    ],
)
def test_what_is_fenced_off_is_not_cheap(softmax, capsys, beyond, says):
    """The trace leaves such an access out, so that every value is right, and no byte of it is counted."""
    assert check.row_softmax(softmax(SUM, SUM + beyond), verdicts="cheap") == 0
    assert says in capsys.readouterr().out


def test_what_is_wrong_is_neither_cheap_nor_judged_by_the_compiler(softmax, capsys):
    assert check.row_softmax(softmax("p / tl.where", "2 * p / tl.where")) < 3
    out = capsys.readouterr().out
    assert "not judged: compiles (no answer is right yet)" in out
    assert "FAILED  cheap: out[0..3, 0..63] are wrong" in out and "only a right answer is cheap or dear" in out


def test_a_kernel_is_compiled_once_for_a_text(softmax, monkeypatch):
    from kernels.check import compiling

    made = []
    monkeypatch.setattr(compiling, "_KEPT", {})
    monkeypatch.setattr(
        compiling, "compile_prepared", lambda *job, **how: made.append(job) or compile_prepared(*job, **how)
    )
    first = softmax()
    for fn in (first, first, softmax(), softmax("tl.exp(", "tl.exp(0.0 + ")):
        assert check.row_softmax(fn, verdicts="compiles") == 2
    assert len(made) == 2


def test_verdicts_that_there_are_not(softmax):
    with pytest.raises(ValueError, match="verdicts names fast: there are right, compiles, cheap"):
        check.row_softmax(softmax(), verdicts="fast")


def test_the_failing_tensors_can_be_looked_at(softmax, capsys):
    right(softmax("mask_n = offs_n < N", "mask_n = offs_n < 8"))
    assert 'A look at the numbers: check.case("one block wide")' in capsys.readouterr().out
    seen = check.case()
    assert seen.inputs["x"].shape == seen.got["out"].shape == (4, 16) and seen.error == ""
    assert seen.stored["out"][:, :8].all() and not seen.stored["out"][:, 8:].any()
    assert seen.wrong["out"].any() and torch.equal(seen.expected["out"], torch.softmax(seen.inputs["x"].double(), 1))
    assert "64 of 64 elements wrong, the first at [0, 0]" in repr(seen)
    assert check.case("strides").launch == {}
    with pytest.raises(ValueError, match="name is 'colour': in the last check 'one block wide', .* failed"):
        check.case("colour")
