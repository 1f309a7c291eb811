"""A check of a "Your turn" cell: not written yet, not yet and why, or right; and where two answers differ."""

import functools
from fractions import Fraction

import pytest
import torch

from kernels import check
from kernels.check import lessons
from kernels.check.answers import difference
from tests.course import turns

GUARD = """@triton.jit
def guard(offs, N):
    return offs < N
"""
TOTAL = """@triton.jit
def total(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < N, other=0.0)
    tl.store(out_ptr, tl.sum(x, axis=0))
"""


@pytest.fixture
def turn(monkeypatch):
    """``turn(own)`` makes a check of which ``own`` is the right answer, and returns what judges others by it."""

    def make(own: str, *slips, **how):
        how = {"arguments": lambda draw: {"x": torch.arange(4)}, "cases": {"four": {}}} | how
        turns.made_up(monkeypatch, {"77-topic": lessons.Turn("which lanes exist", slips=slips, **how)}, own)
        return functools.partial(lessons.verdict, "77-topic")

    return make


def _summed(kernel, x):
    out = torch.empty(1)
    kernel[(1,)](x, out, len(x), BLOCK=4)
    return out


@pytest.fixture
def guard(turn):
    return turn(GUARD, arguments=lessons.as_given, cases={"five lanes": {"N": 5}}, run=turns.masked)


@pytest.fixture
def total(turn):
    return turn(TOTAL, arguments=lambda draw: {"x": torch.ones(3)}, run=_summed)


def test_a_right_answer_and_a_wrong_one_take_a_line_each(guard, cell):
    assert guard(cell(GUARD)["guard"]) == "Your turn 77-topic: right, which lanes exist."
    said = guard(cell(GUARD.replace("<", "<="))["guard"])
    assert said == "Your turn 77-topic: not yet. five lanes: mask[5] is 1, expected 0 (N = 5)."


@pytest.mark.parametrize(
    ("mask", "result", "said"),
    [
        ("offs < N, other=0.0", "tl.sum(x, axis=0)", "right"),
        ("offs < N", "tl.sum(tl.where(offs < N, x, 0.0), axis=0)", "right"),
        ("offs < N", "tl.sum(x, axis=0)", "`x = tl.load(x_ptr + offs, mask=offs < N)`: `other` is missing"),
        (
            "offs < N",
            "tl.maximum(tl.sum(tl.where(x > 0, x, 0.0), axis=0), 0.0)",
            "`other` is missing",
        ),  # NaN > 0 is no
        ("offs < N", "2 * tl.sum(x, axis=0)", "not yet. four: out[0] is nan, expected 3."),  # wrong with 0 there, too
        ("offs < N and offs >= 0, other=0.0", "tl.sum(x, axis=0)", "`and` asks whether a whole block is true"),
        ("offs < N & offs >= 0, other=0.0", "tl.sum(x, axis=0)", "binds tighter"),
        ("offs < N - 1, other=0.0", "tl.sum(x, axis=0)", "out[0] is 2, expected 3"),
        ("offs < N + 1, other=0.0", "tl.sum(x, axis=0)", "1 lane reads outside x, the first at element 3 of x"),
        ("offs < N + 0 * one.ndim, other=0.0", "tl.sum(x, axis=0)", "The numbers are right, but no GPU's compiler"),
    ],
)
def test_what_a_kernel_is_told(total, cell, mask, result, said):
    source = TOTAL.replace("offs < N, other=0.0", mask).replace("tl.sum(x, axis=0)", result)
    assert said in total(cell(source, one=torch.ones(3))["total"])


def test_the_verdict_is_printed(turn, cell, capsys):
    turn("def f(x):\n    return x + 1\n")
    check.step("77-topic", cell("def f(x):\n    return x")["f"])
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("Your turn 77-topic: not yet. four: the result[0] is 0, expected 1 (4 of 4")


@pytest.mark.parametrize(
    ("source", "answer", "place"),
    [
        ("@triton.jit\ndef f(offs, N):\n    mask = ...  # yours\n    return mask", "f", "line 3"),
        ("\n\ndef f(offs):\n    mask = offs < ...\n    return mask", "f", "line 4"),
        ("f = lambda x: ...", "f", "line 1"),
        ("fs = [\n    lambda x: ...,\n]\nf = fs[0]", "f", "line 2"),
        ("@triton.jit\ndef kernel(x):\n    ...\n\ndef f(x):\n    kernel[(1,)](x)", "f", "line 3"),
        ("x = ...", "x", "the value is still"),
    ],
)
def test_what_is_unwritten_is_found(guard, cell, source, answer, place):
    said = guard(cell(source)[answer])
    assert said.startswith("Your turn 77-topic: not written yet (") and place in said


@pytest.mark.parametrize("body", ["return x[..., 0]", "'''one ... more'''\n    return x[0]"])
def test_dots_that_are_none_of_the_stubs_are_let_be(turn, cell, body):
    judge = turn("def f(x):\n    return x[0]\n")
    assert "right" in judge(cell(f"def f(x) -> tuple[int, ...]:\n    {body}")["f"])


def test_a_function_without_source_is_judged_by_what_it_does(turn):
    namespace = {}
    exec("def f(x):\n    return x\ndef g(x):\n    return ...", namespace)
    judge = turn("def f(x):\n    return x\n")
    assert "right" in judge(namespace["f"])
    assert "not written yet (it still has" in judge(namespace["g"])


def test_a_name_that_no_lesson_has_is_refused():
    with pytest.raises(ValueError, match="name is '77-other': kernels/check/lessons has no turn of this name"):
        check.step("77-other", 3)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(x):\n    return x.sum().nothing", "in line 2 of your cell, `return x.sum().nothing`: Python cannot"),
        ("def f(x):\n    return g(x)\ndef g():\n    pass", "the signature of g do not agree"),
        ("def f(x):\n    x.sum()", "the result is None: the function returns nothing"),
        ("def f(x):\n    return 'text'", "the result is 'text', and numbers are asked for"),
        ("def f(x):\n    return x.sum(), x", "2 things are returned, expected 1"),
        ("def f(x):\n    return x.sum() / 1", "the result must hold whole numbers, and holds numbers: divide with //"),
        ("def f(x):\n    return x.min()", "the result is 0, expected 6: the sum, not the least of them"),
        ("def f(x):\n    y = x.max() + []\n    return y", "`y = x.max() + []`: a number is added to a list"),
    ],
)
def test_an_answer_of_plain_python_is_explained(turn, cell, source, said):
    judge = turn(
        "def f(x):\n    return x.sum()\n",
        ("x.sum()", "x.min()", "the sum, not the least of them"),
        ("x.sum()", "x.max() + [1]", "a number is added to a list"),
    )
    assert said in judge(cell(source)["f"])


def test_an_error_of_triton_is_explained_as_such(guard, cell):
    said = guard(cell("@triton.jit\ndef guard(offs, N):\n    return offs.nothing")["guard"])
    assert "in line 3 of your cell, `return offs.nothing` (N = 5): Triton cannot run this line" in said
    said = guard(cell("@triton.jit\ndef guard(offs, N):\n    return offs < M")["guard"])
    assert "a name is used that no line above defines" in said


def test_an_answer_of_another_kind_is_named(guard, cell):
    said = guard(cell("def guard(offs, N):\n    return offs")["guard"])
    assert "A Triton function is asked for here, and this is the function guard: is it decorated with @triton.jit?" in said
    for other, described in ((3, "3"), ((3, 4), "a tuple"), (torch.ones(2), "a tensor of shape (2,)"), (len, "<built-in")):
        assert f"The check cannot use what it was given ({described}" in guard(other)


def test_of_several_functions_the_one_with_the_slip_is_wrong(turn, cell):
    own = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return 2 * x\n"
    judge = turn(own, ("2 * x", "x", "g doubles"), run=lambda f, g, x: {"f": f(x), "g": g(x)})
    names = cell(own)
    assert "right" in judge(names["f"], names["g"])
    assert "g[1] is 1, expected 2 (3 of 4 elements are wrong, this one first): g doubles." in judge(
        names["f"], cell("def g(x):\n    return x")["g"]
    )


@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        ([1, 2, 3], [1, 2, 3], ""),
        (torch.tensor([1.0, 2.0]) + 1e-7, [1.0, 2.0], ""),
        ([1, 2, 4], [1, 2, 3], "out[2] is 4, expected 3."),
        (
            [[1, 0], [4, 0]],
            [[1, 2], [3, 0]],
            "out[0, 1] is 0, expected 2 (2 of 4 elements are wrong, this one first).",
        ),
        (3, 4, "out is 3, expected 4."),
        (Fraction(3, 4), 0.75, ""),
        ([1.0, float("nan")], [1.0, 2.0], "out[1] is nan, expected 2."),
        ([float("nan")], [float("nan")], ""),
        ([float("-inf")], [float("-inf")], ""),
        ([1.0], [float("inf")], "out[0] is 1, expected inf."),
        ([1.0001], [1.0], "out[0] is 1.0001, expected 1."),
        ([1, 2], [1, 2, 3], "out has shape (2,), expected (3,)."),
        ("text", [1], "out is 'text', and numbers are asked for."),
        (None, [1], "out is None: the function returns nothing."),
        (torch.tensor([True, False]), [1, 0], ""),
        ([1, 0], torch.tensor([True, False]), "out must hold truth values, and holds whole numbers: compare something."),
        ([], torch.zeros(0, dtype=torch.int64), ""),
    ],
)
def test_a_difference_names_the_first_wrong_element(got, expected, says):
    assert difference("out", got, expected) == says


def test_a_differences_tolerance_is_the_authors():
    assert difference("out", [1.01], [1.0], tolerance=0.02) == ""
