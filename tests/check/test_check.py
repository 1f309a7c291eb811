"""The framework of the checks: what it sees of a call, and what it says of a learner's error."""

import re

import pytest
import torch

from kernels import check, runtime
from kernels.check.explanations import explain
from kernels.lab.compile_report import compile_prepared
from tests.check.softmax import SUM, right
from tests.course.mutants import failures

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")


def test_a_right_answer_earns_every_point_and_says_so(softmax, capsys):
    assert check.row_softmax(softmax()) == 15
    printed = capsys.readouterr()
    assert printed.out.endswith("row_softmax: 15 of 15 points (right 10 of 10, compiles 2 of 2, cheap 3 of 3)\n")
    assert printed.out.count("passed  ") == 12
    assert printed.err == ""  # nbgrader takes anything there for a failure


def test_what_is_not_verified_is_said_and_is_not_passed(softmax, capsys):
    check.row_softmax(softmax())
    assert "not verified on this machine: bfloat16 (needs a GPU)" in capsys.readouterr().out


def test_poison_makes_no_noise(softmax, capsys):
    assert right(softmax(', mask=mask_n, other=-float("inf")')) < 10
    assert capsys.readouterr().err == ""


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
        ("x = torch.exp(x)", "", "in a kernel it is tl.exp"),
        ("x, y = divmod(x, N)", "", "the quotient is //, the remainder %"),
        ("x = tl.mod(x, N)", "", "Triton has no function of this name"),
        ("x = x @ x", "", "the product of two blocks is tl.dot"),
        ("y = tl.dot(tl.zeros((16, 32), tl.float32), tl.zeros((16, 32), tl.float32))", "", "see tl.trans"),
    ],
    ids=("helper", "zeros", "launcher", "length", "address", "torch", "divmod", "mod", "matmul", "dot"),
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
    assert out.endswith("row_softmax: 13 of 15 points (right 10 of 10, compiles 0 of 2, cheap 3 of 3)\n")


def test_a_dear_kernel_earns_part_of_what_a_cheap_one_does(softmax, capsys):
    again = "    x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=0.0)\n"
    assert check.row_softmax(softmax(SUM, SUM + 3 * again), verdicts="cheap") == 1
    assert "1 of 3 points: loads ask for 4 times the inputs' bytes, and 3 times do" in capsys.readouterr().out
    assert check.row_softmax(softmax(SUM, SUM + 9 * again), verdicts="cheap") == 0
    line = "most by `x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=0.0)`"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stray", "says"),
    [
        (
            "    tl.store(out_ptr + tl.num_programs(0) * stride_om + row, 0.0)\n",
            "a store reaches outside out, `tl.store(",
        ),
        ("    tl.load(x_ptr - 1 - row)\n", "a load reaches outside x, `tl.load("),
        ("    tl.store(x_ptr + row * stride_xm, 0.0)\n", "x changed"),
    ],
)
def test_what_is_fenced_off_is_not_cheap(softmax, capsys, stray, says):
    """The trace leaves such an access out, so that every value is right, and no byte of it is counted."""
    assert check.row_softmax(softmax(SUM, SUM + stray), verdicts="cheap") == 0
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
<<<<<<< HEAD


RUNAWAY = "    step = 0\n    while step < N:\n        step += 0\n    total = tl.sum(p, axis=0)\n"


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
    assert re.search(r"\rat work for \d+ s, now: ragged width", out) and out.splitlines()[-1].endswith("10 of 10 points")


DIAGNOSED = (  # mistakes that no test lets pass, and that are named all the same
    ("row_softmax", ("d = load_block(x_row, start + lanes", "d = load_block(x_row, lanes"), "every step adds the first"),
    ("dynamic_conv_forward", ("time * stride_xt", "time * stride_kt"), "stride_kt is a stride of weight, and this is an"),
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
    assert "in all of 23 cases" in right and half.endswith("every element is 0.5 times what it should be.")
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
        assert load.startswith(line) and "3 lanes read outside x, the first at element 15 of x, which has 15" in load
        assert "3 lanes write outside out" in store and len(seen.launches) == 2
        assert (out[3] == 7).all()

    def test_says_an_error_with_its_line_and_goes_on(self, softmax, capsys):
        with check.guarded():
            softmax("mask_n = offs_n < N", "mask = offs_n < N")(torch.ones(3, 5), torch.ones(3, 5), torch.ones(3))
        (line,) = capsys.readouterr().out.splitlines()
        assert "NameError: name 'mask_n' is not defined in line 7 of your cell" in line

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


MODULES = (vector_add, row_softmax, tiled_matmul, dynamic_conv, recurrent_attention, chunked_attention)
MODULES += (flash_attention, flash_lists, score_mod_compiler)
EXERCISES = [value for module in MODULES for value in vars(module).values() if isinstance(value, Exercise)]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("grading", [False, pytest.param(True, marks=pytest.mark.thorough)])
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


def test_no_draw_asks_for_gradients_that_are_rounding_alone():
    """Of a single key every score's gradient is 0: a right kernel's rounding cannot be told from a wrong answer."""
    ragged = next(item for item in flash_attention.BACKWARD.properties if item.name == "ragged sizes")
    *_, smallest = ragged.cases(Draw("5, flash_backward, ragged sizes", True))  # this seed drew one key of 1..15
    assert all(out.expected.abs().max() > 1e-3 for out in smallest.outs)
=======
>>>>>>> main
