"""A check of a "Your turn" cell: not written yet, not yet and why, or right; and the helpers that checks are made of."""

import functools
import sys

import pytest
import torch
import triton.language as tl

from kernels import check
from kernels.check import steps
from kernels.check.steps import helpers
from kernels.check.steps.helpers import block, call, difference, empty, launch, outside, strided, values

GUARD = """
@triton.jit
def guard(offs, N):
    return offs {} N
"""
COPY = """
@triton.jit
def copy(x_ptr, out_ptr, N, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < {}
    tl.store(out_ptr + offs, tl.load(x_ptr + offs * stride, mask=mask), mask=mask)


def launcher(x, out, N):
    copy[(triton.cdiv(N, 8),)](x, out, N, x.stride(0), BLOCK=8)
"""


@pytest.fixture
def step(monkeypatch):
    """``step(check)`` registers a check and returns what judges an answer by it."""
    monkeypatch.setattr(steps, "_STEPS", {})

    def register(function, name="77-topic"):
        steps.step(name, "which lanes exist")(function)
        return functools.partial(steps.verdict, name)

    return register


@pytest.fixture
def guard(step):
    return step(lambda answer: difference("mask", block(answer, torch.arange(8), 5), torch.arange(8) < 5))


def test_a_right_answer_and_a_wrong_one_take_a_line_each(guard, cell):
    assert guard(cell(GUARD.format("<"))["guard"]) == "Your turn 77-topic: right, which lanes exist."
    said = guard(cell(GUARD.format("<="))["guard"])
    assert said == "Your turn 77-topic: not yet. mask[5] is 1, expected 0."


BARE = """
@triton.jit
def total(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask={})
    tl.store(out_ptr, {})
"""


@pytest.mark.parametrize(
    ("mask", "result", "said"),
    [
        ("offs < N, other=0.0", "tl.sum(x, axis=0)", "right"),
        ("offs < N", "tl.sum(tl.where(offs < N, x, 0.0), axis=0)", "right"),
        ("offs < N", "tl.sum(x, axis=0)", "not yet. `x = tl.load(x_ptr + offs, mask=offs < N)`: `other` is missing."),
        (
            "offs < N",
            "tl.maximum(tl.sum(tl.where(x > 0, x, 0.0), axis=0), 0.0)",
            "`other` is missing.",
        ),  # NaN > 0 is no
        ("offs < N", "2 * tl.sum(x, axis=0)", "not yet. out[0] is 6, expected 3."),  # wrong anyhow: first things first
        ("offs < N and offs >= 0, other=0.0", "tl.sum(x, axis=0)", "`offs < N and offs >= 0`: use `&`"),
        ("offs < N & offs >= 0, other=0.0", "tl.sum(x, axis=0)", "bind more tightly"),
    ],
)
def test_what_a_mask_leaves_undefined_and_how_masks_are_joined(step, cell, mask, result, said):
    def sums(kernel):
        x, out = torch.ones(3), empty(1)
        launch(kernel, (1,), x, out, 3, BLOCK=4)
        return difference("out", out, [3])

    assert said in step(sums)(cell(BARE.format(mask, result))["total"])


def test_the_verdict_is_printed(step, cell, capsys):
    step(lambda answer: "it is odd" if answer % 2 else "")
    check.step("77-topic", 3)
    assert capsys.readouterr().out == "Your turn 77-topic: not yet. it is odd.\n"


@pytest.mark.parametrize(
    ("source", "answer", "place"),
    [
        ("@triton.jit\ndef f(offs, N):\n    mask = ...  # yours\n    return mask", "f", "line 3"),
        ("\n\ndef f(offs):\n    mask = offs < ...\n    return mask", "f", "line 4"),
        ("f = lambda x: ...", "f", "line 1"),
        ("fs = [\n    lambda x: ...,\n]\nf = fs[0]", "f", "line 2"),
        ("class Layer:\n    @staticmethod\n    def forward(ctx, x):\n        return ...", "Layer", "still has"),
        ("class Layer:\n    def forward(self, x):\n        return ...\nlayer = Layer()", "layer", "still has"),
        ("class Layer:\n    def forward(self, x):\n        return ...\nlayer = Layer().forward", "layer", "line 3"),
        ("import functools\ndef f(x, y):\n    return ...\ng = functools.partial(f, 1)", "g", "line 3"),
        ("@triton.jit\ndef kernel(x):\n    ...\n\ndef f(x):\n    kernel[(1,)](x)", "f", "line 3"),
        ("x = ...", "x", "the value is still"),
        ("x = (3, ...)", "x", "a value is still"),
        ("x = {'a': ...}", "x", "a value is still"),
    ],
)
def test_what_is_unwritten_is_found(guard, cell, source, answer, place):
    said = guard(cell(source)[answer])
    assert said.startswith("Your turn 77-topic: not written yet (") and place in said


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x[..., 0]",
        "def f(x) -> tuple[int, ...]:\n    '''one ... more'''\n    return (x,)",
        "f = len",
    ],
)
def test_dots_that_are_none_of_the_stubs_are_let_be(step, cell, source):
    assert "right" in step(lambda answer: "")(cell(source)["f"])


def test_a_function_without_source_is_judged_by_what_it_does(step):
    namespace = {}
    exec("def f(x):\n    return x\ndef g(x):\n    return ...", namespace)
    judge = step(lambda answer: "" if answer(3) == 3 else "wrong")
    assert "right" in judge(namespace["f"])
    assert "not written yet (it still has" in judge(namespace["g"])


def test_the_wrong_number_of_things_is_said(step):
    judge = step(lambda got, size, tolerance=1: "")
    assert judge(1).endswith("not checked. The check takes 3 things (got, size, tolerance), and was given 1.")
    assert "right" in judge(1, 2)
    assert "right" in step(lambda *things: "", "77-many")(1, 2, 3, 4)


def test_a_name_that_no_lesson_has_is_refused(step):
    step(lambda answer: "")
    with pytest.raises(ValueError, match="the steps of lesson 77 are 77-topic"):
        steps.find("77-other")


def test_a_module_that_a_lessons_steps_lack_is_not_taken_for_no_steps(monkeypatch, tmp_path):
    (tmp_path / "lesson_78.py").write_text("import no_such_module_lesson_78\n")
    monkeypatch.setattr(steps, "__path__", [*steps.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "kernels.check.steps.lesson_78", raising=False)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_lesson_78"):
        steps.find("78-topic")


def test_an_error_of_plain_python_is_explained_as_such(step, cell):
    judge = step(lambda answer: difference("sum", answer(torch.arange(4)), 6))
    said = judge(cell("def f(x):\n    return x.sum().nothing")["f"])
    assert "in line 2 of your cell, `return x.sum().nothing`: Python cannot run this line" in said
    assert "the signature of g do not agree" in judge(cell("def f(x):\n    return g(x)\ndef g():\n    pass")["f"])
    assert "sum is None: the function returns nothing." in judge(cell("def f(x):\n    x.sum()")["f"])


def test_an_error_of_triton_is_explained_as_such(guard, cell):
    said = guard(cell("@triton.jit\ndef f(offs, N):\n    return offs.nothing")["f"])
    assert "in line 3 of your cell, `return offs.nothing`: Triton cannot run this line" in said
    said = guard(cell("@triton.jit\ndef f(offs, N):\n    return offs < M")["f"])
    assert "a name is used that no line above defines" in said


def test_an_answer_of_another_kind_is_named(step, guard):
    said = guard(3)
    assert "A Triton function is asked for here, and this is 3: is it decorated with @triton.jit?" in said
    said = step(helpers.strided, "77-kind")((3, 4))
    assert "The check cannot use what it was given (a tuple): AttributeError: 'tuple' object has no" in said


class TestBlock:
    def test_gives_blocks_numbers_and_constants(self, cell):
        f = cell("@triton.jit\ndef f(offs, n, SIZE: tl.constexpr):\n    return offs * n + tl.arange(0, SIZE)")["f"]
        assert block(f, torch.arange(4), 3, tl.constexpr(4)).tolist() == [0, 4, 8, 12]

    def test_of_two_dimensions(self, cell):
        f = cell("@triton.jit\ndef f(a, b):\n    return (a < b) & (b < 3)")["f"]
        rows, columns = torch.arange(2)[:, None], torch.arange(4)[None, :]
        assert torch.equal(block(f, rows, columns), ((rows < columns) & (columns < 3)).double())

    def test_of_another_shape_and_of_several(self, cell):
        f = cell("@triton.jit\ndef f(a):\n    return tl.sum(a, axis=1), tl.max(a, axis=1)")["f"]
        total, top = block(f, torch.arange(8.0).view(2, 4), shape=(2,), results=2)
        assert total.tolist() == [6, 22] and top.tolist() == [3, 7]

    def test_a_number_fills_the_block(self, cell):
        f = cell("@triton.jit\ndef f(offs):\n    return tl.sum(offs, axis=0)")["f"]
        assert block(f, torch.arange(4)).tolist() == [6] * 4
        assert block(f, torch.arange(4), shape=()).item() == 6

    def test_a_helper_that_returns_nothing_is_told(self, cell):
        f = cell("@triton.jit\ndef f(offs):\n    mask = offs < 3")["f"]
        with pytest.raises(helpers.Diagnosis, match="f returns nothing"):
            block(f, torch.arange(4))

    def test_a_length_that_no_block_has_is_the_authors_mistake(self, cell):
        with pytest.raises(ValueError, match="power of two"):
            block(cell(GUARD.format("<"))["guard"], torch.arange(5), 3)


class TestLaunch:
    def test_runs_the_kernel(self, cell):
        x, out = strided(values(13)), empty(13)
        recorded = launch(cell(COPY.format("N"))["copy"], (2,), x, out, 13, x.stride(0), BLOCK=8)
        assert recorded.writes_everywhere("out_ptr") and difference("out", out, x) == ""

    @pytest.mark.parametrize(("bound", "lanes"), [("N + 1", "1 lane,"), ("N + 2", "2 lanes,")])
    def test_an_access_outside_is_a_sentence(self, cell, bound, lanes):
        x, out = values(13), empty(13)
        with pytest.raises(helpers.Diagnosis) as raised:
            launch(cell(COPY.format(bound))["copy"], (2,), x, out, 13, 1, BLOCK=8)
        said = str(raised.value)
        assert said.startswith(
            f"Program 1 reads outside x [13], with {lanes} the first at the element 13 after its first"
        )
        assert "(2 accesses do so): `tl.store(out_ptr + offs" in said

    def test_a_wild_address_does_no_harm(self, cell):
        x, out = values(13), empty(13)
        recorded = launch(cell(COPY.format("N"))["copy"], (2,), x, out, 13, 500_000_000, BLOCK=8, out_of_bounds=True)
        assert "reads outside x [13]" in outside(recorded)

    def test_a_launcher_is_looked_at_too(self, cell):
        x, out = values(13), empty(13)
        assert call(cell(COPY.format("N"))["launcher"], x, out, 13)[0] is None
        assert difference("out", out, x) == ""
        with pytest.raises(helpers.Diagnosis, match="Program 1 reads outside x"):
            call(cell(COPY.format("N + 1"))["launcher"], x, out, 13)
        with pytest.raises(helpers.Diagnosis, match="this is 3"):
            call(3)

    def test_a_race_inside_a_program_is_a_sentence(self, cell):
        added = "\n    tl.store(x_ptr + offs, tl.load(out_ptr), mask=mask)\n\n\ndef"
        made, x, out = cell(COPY.format("N").replace("\n\n\ndef", added)), values(8), empty(8)
        with pytest.raises(helpers.Diagnosis, match=r"^out\[0\] is stored by one lane of a program and then loaded by"):
            launch(made["copy"], (1,), x, out, 8, 1, BLOCK=8)
        with pytest.raises(helpers.Diagnosis, match=r"^out\[0\] is stored by one lane of a program and then loaded by"):
            call(made["launcher"], x, out, 8)

    def test_what_is_no_kernel_is_told(self):
        with pytest.raises(helpers.Diagnosis, match="the function <lambda>: is it decorated"):
            launch(lambda x: x, (1,), values(3))


class TestDifference:
    @pytest.mark.parametrize(
        ("got", "expected", "says"),
        [
            ([1, 2, 3], [1, 2, 3], ""),
            (torch.tensor([1.0, 2.0]) + 1e-7, [1, 2], ""),
            ([1, 2, 4], [1, 2, 3], "out[2] is 4, expected 3."),
            (
                [[1, 0], [4, 0]],
                [[1, 2], [3, 0]],
                "out[0, 1] is 0, expected 2 (2 of 4 elements are wrong, this one first).",
            ),
            (3, 4, "out is 3, expected 4."),
            ([1.0, float("nan")], [1.0, 2.0], "out[1] is nan, expected 2."),
            ([float("nan")], [float("nan")], ""),
            ([float("-inf")], [float("-inf")], ""),
            ([1.0], [float("inf")], "out[0] is 1, expected inf."),
            ([1.0001], [1.0], "out[0] is 1.0001, expected 1."),
            ([1, 2], [1, 2, 3], "out has shape (2,), expected (3,)."),
            ("text", [1], "out is 'text', and numbers are asked for."),
            (None, [1], "out is None: the function returns nothing."),
            (torch.tensor([True, False]), [1, 0], ""),
        ],
    )
    def test_names_the_first_wrong_element(self, got, expected, says):
        assert difference("out", got, expected) == says

    def test_the_tolerance_is_the_authors(self):
        assert difference("out", [1.01], [1.0], tolerance=0.02) == ""


def test_inputs_are_the_same_each_time_and_outputs_show_what_was_not_stored():
    assert torch.equal(values(2, 3), values(2, 3)) and not torch.equal(values(4), values(4, seed=1))
    assert empty(3).isnan().all() and (empty(3, dtype=torch.int32) == -7).all()
    x = values(3, 4)
    assert torch.equal(strided(x), x) and strided(x).stride() == (18, 2)
