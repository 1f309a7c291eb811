"""The verdicts "compiles" and "cheap": the limits are those of the lessons' schemes, and every function has both."""

import re
from types import SimpleNamespace

import pytest
import triton
import triton.language as tl

from kernels import runtime
from kernels.check import compiling
from kernels.check.costs import cost
from kernels.check.framework import Draw
from kernels.lab import compile_report
from tests.course.mutants import submission, targets
from tests.course.test_exercises import BY_NAME, needs_newer_triton

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")
FUNCTIONS = [target for target in targets() if not target.assignment.startswith("09")]


@pytest.mark.parametrize("target", FUNCTIONS, ids=lambda target: target.function)
def test_the_solution_is_what_the_limits_say(target):
    """Not under them: a limit that lets more pass than the lesson's scheme needs would be none."""
    needs_newer_triton(target.assignment)
    spec = BY_NAME[target.function].cheap
    best = spec.tiers[0]
    for case in spec.calls(Draw(0, False)):
        found = cost(spec, case, case.traced(BY_NAME[target.function].submission(submission(target))).launches)
        assert found.steps == 1.0
        assert found.written == best.written
        assert 0.96 * best.read < found.read < 1.02 * best.read
        assert found.sectors < 1.02 * spec.sectors


@pytest.mark.parametrize("target", FUNCTIONS, ids=lambda target: target.function)
def test_each_scheme_costs_more_than_the_one_before_and_earns_less(target):
    tiers = BY_NAME[target.function].cheap.tiers
    for better, worse in zip(tiers, tiers[1:], strict=False):
        assert better.points > worse.points > 0
        assert better.read < worse.read and better.written <= worse.written and better.steps < worse.steps


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Loop-carried variable acc has initial type fp32 but is re-assigned to fp16 in loop!", "`acc` is a number"),
        ("NameError: z is not defined", "nothing defines `z` on every way there"),
        ("min is not defined", "Python's own `min` does not exist in a kernel"),
        ("zip is not defined", "a loop in a kernel runs over range"),
        ("'Tuple' object has no attribute 'func'", "a loop in a kernel runs over range"),
        ("Cannot access global variable EPS from within @jit'ed function", "EPS = tl.constexpr(...)"),
        ("Cannot have `return` statements inside `while` or `for`", "cannot leave from inside a loop"),
        ("unsupported AST node type: Break", "has no break and no continue"),
        ("unsupported AST node type: Lambda", "Lambda is not part of it"),
        ("Boolean value of Tensor with more than one value is ambiguous", "use tl.where or a mask"),
        ("arange's arguments must be of type tl.constexpr", "known when the kernel is compiled"),
        ("Input shapes should have M >= 1, N >= 1 and K >= 16", "no axis below 16"),
        ("Unsupported function referenced: <function helper>", "a kernel calls `helper`, so it is decorated"),
        ("int32[] used as tl.static_range start value is not a constexpr", "tl.constexpr in the signature"),
        ("'tensor' object cannot be interpreted as an integer", "no comprehensions"),
        ("Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32", "different shapes meet"),
        ("Did you forget to add @triton.jit ? (`_semantic` argument must be provided)", "triton.cdiv is tl.cdiv there"),
        ("arange's range must be a power of 2", "lanes come in powers of two"),
        ("AssertionError:", "picks from a tuple"),
        ("error encountered during parsing", "leaves the step with another type or shape"),
        ("something that nobody has seen", "Triton's interpreter takes this, its compiler does not"),
    ],
)
def test_the_compilers_reasons_have_words(reason, words):
    assert words in compiling.in_words(reason)


def test_the_innermost_line_and_reason_are_found():
    message = (
        "k does not compile: for sm_80: CompilationError: at 11:8:\ndef k(x):\n    y = helper(x)\n        ^\n"
        "CompilationError: at 2:4:\ndef helper(x):\n    return sum([x])\n           ^\nNameError('sum is not defined')"
    )
    assert tuple(compiling._refused(message)) == ("return sum([x])", "sum is not defined")
    twice = "k does not compile: at 2:4:\n    acc += x\n    ^\nno shape: 8 and 16 ValueError: no shape: 8 and 16"
    assert tuple(compiling._refused(twice)) == ("acc += x", "no shape: 8 and 16")
    nowhere = "k does not compile: for sm_80: RuntimeError: Unsupported function referenced: <function f at 0x7f3b>"
    assert compiling._refused(nowhere).reason == "Unsupported function referenced: <function f>"
    assert re.search("9", compiling._refused("the process ended with status -9").reason)


def test_what_printing_spills_is_not_called_a_large_block():
    spec = compiling.Compiles(calls=lambda draw: (), lesson="")
    for ptx, words in (("call vprintf", "device_print is for looking"), ("", "more blocks are alive")):
        report = SimpleNamespace(ptx=ptx, spill_bytes=24, sass="")
        found = compiling._look(spec, "with N = 1", [(SimpleNamespace(kernel="k"), {80: report})], 80, False)
        assert words in found.cause


@triton.jit
def squared(x, out, N: tl.constexpr):
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tile = tl.load(x + place)
    tl.store(out + place, tl.dot(tile, tile))


@pytest.mark.share(2)
@pytest.mark.parametrize("pointer, warps", [("*fp16", 4), ("*fp16", 2), ("*fp32", 4), ("*fp64", 4), ("*i8", 4)])
def test_ptx_says_which_products_stand_in_the_code(pointer, warps):
    out = {"*fp16": "*fp32", "*i8": "*i32"}.get(pointer, pointer)
    for arch, report in compile_report(squared, pointer, out, N=64, arch=(80, 90), num_warps=warps).items():
        for instruction in ("HMMA", "HGMMA"):
            assert compiling._multiplies(report, instruction) == bool(report.count(instruction)), (arch, instruction)


def test_a_product_that_no_tensor_core_makes_is_named():
    spec = compiling.Compiles(calls=lambda draw: (), lesson="", products={80: "HMMA"})
    for ptx, where in (("fma.rn.f32", "no HMMA stands"), ("\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {", "")):
        report = SimpleNamespace(ptx=ptx, spill_bytes=0)
        found = compiling._look(spec, "with N = 1", [(SimpleNamespace(kernel="k"), {80: report})], 80, True)
        assert where in found.where if where else found is None
