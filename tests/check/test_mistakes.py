"""The mistakes that the checks know: each is named, and each gives an answer in every case."""

import itertools

import pytest
import torch

from kernels import check, runtime
from kernels.check.exercises import dynamic_conv, flash_attention
from kernels.check.framework import Draw
from tests.course.mutants import failures, submission, targets

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")


DIAGNOSED = (  # mistakes that no test lets pass, and that are named all the same
    (
        "row_softmax",
        ("d = load_block(x_row, start + lanes", "d = load_block(x_row, lanes"),
        "every step adds the first",
    ),
    (
        "dynamic_conv_forward",
        ("time * stride_xt", "time * stride_kt"),
        "stride_kt is a stride of weight, and this is an",
    ),
    (
        "dynamic_conv_dx",
        ("load(dy_ptrs, mask=(time < T) & mask_d, other=0.0", "load(dy_ptrs, mask=(time < T) & mask_d, other=1.0")
        + ("load(k_ptrs, mask=(time < T) & mask_d, other=0.0", "load(k_ptrs, mask=(time < T) & mask_d, other=1.0"),
        "masked lanes hold 1.0",
    ),
    ("dynamic_conv_dweight", ("grid = (B, triton.cdiv(T, BLOCK_T)", "grid = (B, T // BLOCK_T"), "the grid (2, 0"),
    ("im2col", ("w = tl.where(w < 0, w + g.W, w)", "if w < 0:\n        w += g.W"), "this is a block of answers"),
    ("wgrad", ("offs_m = block * BLOCK_K", "offs_m = block"), "block b begins at pixel b: offs_m moves by BLOCK_K"),
    ("tiled_matmul", ("min(end, K), BLOCK_K)", "min(end, K))"), "the loop advances by 1, so columns are added again"),
    ("chunk_outputs", ("i[:, None] >= i", "i[:, None] <= i"), "the triangle is turned over"),
    ("chunk_outputs", ("v[None, :, :], axis=1)", "v[:, None, :], axis=0)"), "the pairs are turned over"),
    ("chunk_outputs", ("tl.dot(q, tl.trans(k)", "tl.dot(k, tl.trans(q)"), "q and k are exchanged"),
)


@pytest.mark.parametrize(("function", "patch", "says"), DIAGNOSED)
def test_a_mistake_is_named(function, patch, says):
    (target,) = (target for target in targets() if target.function == function)
    _, printed = target.check(submission(target, patch), until=lambda printed: says in printed, verdicts="right")
    assert says in next(iter(failures(printed).values())), printed


def test_a_derivation_is_right_or_says_what_is_not(capsys):
    def gather(dy, weight, dilation, times=1.0, round_the_end=False):
        dx, W = torch.zeros_like(dy), weight.shape[-1]
        for w in range(W):
            given, later = times * dy * weight[..., w], (W - 1 - w) * dilation
            dx += given.roll(-later, 1) if round_the_end else dynamic_conv.at(given, later)
        return dx

    assert check.derivation("dynamic_conv_dx", gather)
    assert not check.derivation("dynamic_conv_dx", lambda *p, **how: gather(*p, **how, times=0.5))
    assert not check.derivation("dynamic_conv_dx", lambda *p, **how: gather(*p, **how, round_the_end=True))
    right, half, rolled = capsys.readouterr().out.splitlines()
    assert "in all of 28 cases" in right and half.endswith("every element is 0.5 times what it should be.")
    assert rolled.endswith("into which outputs does it go, and with which weight.")


def test_what_goes_wrong_in_a_given_helper_is_its_callers_doing(cell, capsys):
    """``at(stride, ...)`` takes four strides, and is given three."""
    (target,) = (target for target in targets() if target.function == "chunk_states")
    three = "at((stride_g[0], stride_g[1], stride_g[2]), b, t[:, None], h, offs_v)"
    fn = submission(target, ("at(stride_g, b, t[:, None], h, offs_v)", three))
    check.chunk_states(fn, verdicts="right")
    first = capsys.readouterr().out.splitlines()[0]
    assert f"of your cell, `g = tl.load(g_ptr + {three}, mask=mask_t[:, None] & mask_v, other=0.0)`" in first
    assert "a tensor has one stride for each of its axes" in first


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.function)
def test_without_addresses_poison_names_the_load_mask(target, monkeypatch):
    """As on a GPU: the same verdict from the values alone, but for the property that reads addresses."""
    monkeypatch.setattr(runtime, "interpreted", False)
    for mutant in target.mutants:
        if "not masked" in mutant.says and mutant.fails != "stays inside its tensors":
            fn, wanted = submission(target, mutant.patch, mutant.cell), mutant.fails
            printed = target.check_properties(fn, lambda each: [one for one in each if one.name == wanted or one.addresses])  # noqa: B023
            assert mutant.says in failures(printed)[mutant.fails], printed
            assert "not verified on this machine: stays inside its tensors (needs the interpreter)" in printed


def test_a_missing_mask_is_no_narrow_index():
    """Both send a load far away where strides need 64 bits; with near ones the mask alone does."""
    (target,) = (target for target in targets() if target.function == "dynamic_conv_dx")
    own = "k = tl.load(k_ptrs, mask=(time < T)", "k = tl.load(k_ptrs, mask=mask_t"
    printed = target.check_properties(submission(target, own), lambda each: [one for one in each if one.name == "strides"])
    assert "the load of weight is not masked along T (time < T)" in failures(printed)["strides"]


NAMES = [name for name in check.EXERCISES if not name.startswith("mended_")]
EXERCISES = [*map(check.exercise_of, NAMES), flash_attention.TEMPERATURE]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("grading", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_each_known_mistake_gives_an_answer_in_each_case(exercise, grading):
    """What a suspect raised would be taken for the learner's error."""
    for item in exercise.properties:
        for case in item.cases(Draw(1, grading)):
            for out in (out for out in case.outs if out.expected is not None):
                answers = [(cause, out.array(answer)) for cause, answer in exercise.suspects(case, out)]
                causes = [cause for cause, _ in itertools.groupby(answers, key=lambda one: one[0])]  # its answers together
                assert len(set(causes)) == len(causes) > 2


def test_no_draw_asks_for_gradients_that_are_rounding_alone():
    """Of a single key every score's gradient is 0: a right kernel's rounding cannot be told from a wrong answer."""
    ragged = next(item for item in flash_attention.BACKWARD.properties if item.name == "ragged sizes")
    *_, smallest = ragged.cases(Draw("5, flash_backward, ragged sizes", True))  # this seed drew one key of 1..15
    assert all(out.expected.abs().max() > 1e-3 for out in smallest.outs)
