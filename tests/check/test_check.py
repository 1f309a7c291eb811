"""The framework of the checks: what it sees of a call, and what it says of a learner's error."""

import pytest
import torch

from kernels import check, runtime
from kernels.check import (
    chunked_attention,
    dynamic_conv,
    flash_attention,
    recurrent_attention,
    row_softmax,
    score_mod_compiler,
    tiled_matmul,
    vector_add,
)
from kernels.check.framework import NAN, Draw, Exercise, Fenced, Output, Seen
from tests.course.mutants import failures, submission, targets

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")

KERNEL = """
@triton.jit
def kernel(x_ptr, out_ptr, N, stride_xm, stride_xn, stride_om, stride_on, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    p = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(p, axis=0)
    tl.store(out_ptr + row * stride_om + offs_n * stride_on, p / tl.where(total == 0.0, 1.0, total), mask=mask_n)


def row_softmax(x, out, BLOCK_N=None):
    M, N = x.shape
    BLOCK_N = max(BLOCK_N or 0, triton.next_power_of_2(N))  # a row in one block, however wide
    kernel[(M,)](x, out, N, *x.stride(), *out.stride(), BLOCK_N=BLOCK_N)
"""


@pytest.fixture
def softmax(cell):
    """A row softmax with some of its text replaced."""

    def build(old="", new=""):
        assert old in KERNEL
        return cell(KERNEL.replace(old, new) if old else KERNEL)["row_softmax"]

    return build


def test_a_right_answer_earns_every_point_and_says_so(softmax, capsys):
    assert check.row_softmax(softmax()) == 10
    printed = capsys.readouterr()
    assert printed.out.endswith("row_softmax: 10 of 10 points\n")
    assert printed.out.count("passed  ") == 9
    assert printed.err == ""  # nbgrader takes anything there for a failure


def test_what_is_not_verified_is_said_and_is_not_passed(softmax, capsys):
    check.row_softmax(softmax())
    assert "not verified on this machine: bfloat16 (needs a GPU)" in capsys.readouterr().out


def test_poison_makes_no_noise(softmax, capsys):
    assert check.row_softmax(softmax(', mask=mask_n, other=-float("inf")')) < 10
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fn", [None, 3, "row_softmax"])
def test_without_a_function_there_is_nothing_to_check(fn, capsys):
    assert check.row_softmax(fn) == 0
    assert capsys.readouterr().out == (
        f"row_softmax: nothing to check, the function is {fn!r}. Run the cell that defines it first.\n"
    )


def test_an_error_is_shortened_to_the_learners_line_and_explained(softmax, capsys):
    assert check.row_softmax(softmax("mask_n = offs_n < N", "mask = offs_n < N")) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert "NameError: name 'mask_n' is not defined in line 7 of your cell, `x = tl.load(" in first
    assert "a name is used that no line above defines" in first
    assert second == "FAILED  strides: as above, a name is used that no line above defines."


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
    assert check.row_softmax(softmax(old, new)) == 0
    assert means in capsys.readouterr().out


TWICE = """    again = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n{})
    total = tl.sum(tl.where(again == again, p, 1.0), axis=0)
"""


def test_a_mask_without_other_fails_where_its_lanes_count(softmax, capsys):
    assert check.row_softmax(softmax("    total = tl.sum(p, axis=0)\n", TWICE.format(", other=0.0"))) == 10
    assert check.row_softmax(softmax("    total = tl.sum(p, axis=0)\n", TWICE.format(""))) < 10
    assert "mask=mask_n)`: `other` is missing. What a masked lane holds is undefined" in capsys.readouterr().out


def test_a_mask_without_other_is_right_where_its_lanes_do_not_count(softmax):
    mended = ").to(tl.float32)\n    x = tl.where(mask_n, x, -float('inf'))"
    assert check.row_softmax(softmax(', other=-float("inf")).to(tl.float32)', mended)) == 10


def test_an_input_that_is_written_to_is_a_failure(softmax, capsys):
    fn = softmax("    p = tl.exp", "    tl.store(x_ptr + row * stride_xm, 0.0)\n    p = tl.exp")
    assert check.row_softmax(fn) <= 1
    assert "x changed" in capsys.readouterr().out


def test_an_answer_without_a_kernel_earns_nothing(capsys):
    assert check.row_softmax(lambda x, out, BLOCK_N=None: out.copy_(torch.softmax(x, 1))) == 0
    assert capsys.readouterr().out.startswith("missing: no Triton kernel stores anything.")


def test_an_access_that_would_end_the_process_is_not_performed(softmax, capsys):
    assert check.row_softmax(softmax("x_ptr + row * stride_xm", "x_ptr + row * 500_000_000")) <= 2
    assert "a load reaches far outside x, `x = tl.load(" in capsys.readouterr().out


def test_the_same_seed_draws_the_same_and_grading_draws_anew(softmax):
    def drawn(**how):
        seen = []
        fn = softmax()
        check.row_softmax(lambda x, out, **block: (seen.append(x.clone().nan_to_num(7.0)), fn(x, out, **block)), **how)
        return seen

    first = drawn()
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(), strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, drawn(seed=1)))
    assert [a.shape for a in first] == [a.shape for a in drawn(seed=1)]
    assert any([a.shape for a in first] != [a.shape for a in drawn(seed=seed, grading=True)] for seed in range(3))


def test_the_environment_asks_for_grading(softmax, capsys, monkeypatch):
    monkeypatch.setenv("KERNELS_GRADING", "1")
    assert check.row_softmax(softmax()) == 10
    first = capsys.readouterr().out.splitlines()[-1]
    check.row_softmax(softmax())
    assert first.startswith("row_softmax: 10 of 10 points (graded with seed ")
    assert capsys.readouterr().out.splitlines()[-1] != first


def test_rebinding_what_compares_earns_nothing(softmax, monkeypatch):
    import numpy

    wrong = softmax("p / tl.where", "2 * p / tl.where")
    before = check.row_softmax(wrong)
    for module in (torch, numpy):
        for name in ("equal", "allclose", "isclose", "isnan", "abs", "mean", "argwhere"):
            monkeypatch.setattr(module, name, lambda *args, **kwargs: True, raising=False)
    monkeypatch.setattr(torch.testing, "assert_close", lambda *args, **kwargs: None)
    assert check.row_softmax(wrong) <= before < 3


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.function)
def test_without_addresses_poison_names_the_load_mask(target, monkeypatch):
    """As on a GPU: the same verdict from the values alone, but for the property that reads addresses."""
    monkeypatch.setattr(runtime, "interpreted", False)
    for mutant in target.mutants:
        if "not masked" in mutant.says and mutant.fails != "stays inside its tensors":
            _, printed = target.check(submission(target, mutant.patch, mutant.cell))
            assert mutant.says in failures(printed)[mutant.fails], printed
            assert "not verified on this machine: stays inside its tensors (needs the interpreter)" in printed


MODULES = (vector_add, row_softmax, tiled_matmul, dynamic_conv, recurrent_attention, chunked_attention)
MODULES += (flash_attention, score_mod_compiler)
EXERCISES = [value for module in MODULES for value in vars(module).values() if isinstance(value, Exercise)]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("grading", [False, True])
def test_each_known_mistake_gives_an_answer_in_each_case(exercise, grading):
    """What a suspect raised would be taken for the learner's error."""
    for item in exercise.properties:
        for case in item.cases(Draw(1, grading)):
            for out in case.outs:
                causes = [cause for cause, answer in exercise.suspects(case, out) if out.array(answer) is not None]
                assert len(set(causes)) == len(causes) > 2


def test_small_elements_that_matter_are_judged_among_themselves():
    values = torch.tensor([1.0, 2.0, 1e-8, 2e-8], dtype=torch.float64)
    tensor = Fenced("out", "N", torch.empty(4))
    got = Output(tensor, values).array(values + torch.tensor([0.0, 0.0, 0.0, 2e-8]))
    assert Output(tensor, values).wrong(got).tolist() == [False] * 4
    groups = torch.tensor([0, 0, 1, 1])
    assert Output(tensor, values, groups).wrong(got).tolist() == [False, False, False, True]
    assert Output(tensor, 0 * values, groups).wrong(got * 0).tolist() == [False] * 4


def test_entries_that_are_free_may_hold_anything_or_nothing():
    tensor = Fenced("idx", "C", torch.empty(3, dtype=torch.int32))
    out = Output(tensor, torch.tensor([4.0, 7.0, 0.0]), free=torch.tensor([False, False, True]))
    tensor.erase()
    tensor.view[0] = 4
    seen = Seen(out.array(tensor.view.double()), *tensor.touched())
    assert out.wrong(seen.got).tolist() == out.unstored(seen).tolist() == [False, True, False]
    tensor.view[1:] = torch.tensor([7, 9], dtype=torch.int32)
    assert not out.wrong(out.array(tensor.view.double())).any()


class TestFenced:
    def tensor(self, **how):
        return Fenced("x", "MN", torch.arange(6.0).view(2, 3), fence={"M": 1, "N": 4}, **how)

    @pytest.mark.parametrize("order", ["MN", "NM"])
    def test_holds_its_values_and_what_is_around_them(self, order):
        x = self.tensor(order=order)
        x.fill(7.0, [("N", "after")])
        assert x.view.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert x.slab("N", "after").isnan().all() and x.slab("N", "after").shape == (2, 4)
        assert (x.slab("N", "before") == 7).all() and (x.slab("M", "after") == 7).all()
        assert x.intact()
        x.view[1, 2] = 0
        assert not x.intact()

    @pytest.mark.parametrize("order", ["MN", "NM"])
    @pytest.mark.parametrize("index", [(0, 0), (1, 2), (1, 3), (-1, 0), (2, 6), (0, -4)])
    def test_finds_the_index_of_an_address(self, order, index):
        x = self.tensor(order=order)
        distance = sum(i * stride for i, stride in zip(index, x.view.stride()))
        assert x.locate(distance) == dict(zip("MN", index))
        assert x.locate(1 << 40) is None

    def test_repeats_one_element_along_a_shared_axis(self):
        x = Fenced("x", "MN", torch.ones(1, 3).expand(2, 3), fence={"N": 1}, shared="M")
        assert x.view.shape == (2, 3) and x.view.stride(0) == 0
        assert x.ends() == [("N", "before"), ("N", "after")]

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
    def test_what_cannot_be_nan_has_another_poison(self, dtype):
        x = Fenced("mask", "MN", torch.zeros(1, 3, dtype=dtype).expand(2, 3), fence={"N": 4}, shared="M")
        x.fill(0, [("N", "after")])
        assert x.slab("N", "after").all() and not x.slab("N", "before").any() and x.intact()
        x.fill(None)
        assert x.slab("N", "before").all() and x.intact()
        x.view[0, 0] = 1
        assert not x.intact()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_knows_what_was_stored_even_where_nan_was(self, dtype):
        x = Fenced("out", "MN", torch.empty(2, 3, dtype=dtype), fence={"M": 1, "N": 4})
        x.erase()
        assert not x.touched()[0].any() and x.touched()[1] == []
        x.view[0, 1] = NAN
        assert x.touched()[0].tolist() == [[False, True, False], [False] * 3]
        x.slab("N", "after")[1, 0] = 1.0
        assert x.touched()[1] == [("N", "after")]
        x.erase()
        x.flat[0] = 0.0
        assert x.touched()[1] == [("", "")]


def test_a_size_divides_as_asked():
    shown = Draw(0, grading=False)
    assert shown.size(13, 9, 15) == 13
    graded = [Draw(seed, grading=True).size(20, 17, 47, but_not_of=16) for seed in range(50)]
    assert set(graded) <= set(range(17, 48)) - {32} and len(set(graded)) > 5
