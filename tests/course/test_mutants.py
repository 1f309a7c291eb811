"""Every planted bug passes a naive test and fails the property named for it, with that property's own diagnosis."""

import ast
import re

import pytest

from kernels import runtime
from tests.course.mutants import ROOT, cells, failures, passes_naively, submission, targets, tiled_matmul
from tools.kernel_environment import too_old_for

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="checks read addresses in Triton's interpreter")

PLANTED = [
    pytest.param(target, mutant, id=f"{target.function}: {mutant.name}")
    for target in targets()
    for mutant in target.mutants
]
IN_A_PROPERTY = [one for one in PLANTED if one.values[1].verdict == "right"]


def planted(target, mutant):
    """The submission with the bug, which a naive test does not see."""
    if why := too_old_for(ROOT / "solutions" / target.assignment / f"{target.assignment}.ipynb"):
        pytest.skip(why)
    fn = submission(target, mutant.patch, mutant.cell)
    assert passes_naively(target, fn), "a naive test catches it already"
    return fn


@pytest.mark.parametrize(("target", "mutant"), IN_A_PROPERTY)
def test_its_property_catches_it(target, mutant):
    """By itself: what the other properties say of the bug, the whole check shows, at several times the price."""
    fn = planted(target, mutant)
    printed = target.check_properties(fn, lambda each: [item for item in each if item.name == mutant.fails])
    assert mutant.says in failures(printed)[mutant.fails], printed


COMPILED = [one.values[1].name for one in PLANTED if one.values[1].verdict == "compiles"]
FIRST = {name: next(one for one in PLANTED if one.values[1].name == name) for name in COMPILED}


def marks(one):
    """Compiling takes seconds: of a bug that only the compiler sees, planted in several exercises, the loop has the first."""
    again = one.values[1].verdict == "compiles" and one is not FIRST[one.values[1].name]
    return [pytest.mark.thorough] * (again or one in IN_A_PROPERTY)


@pytest.mark.parametrize(
    ("target", "mutant"), [pytest.param(*one.values, id=one.id, marks=marks(one)) for one in PLANTED]
)
def test_the_whole_check_says_what_its_row_of_the_kill_table_says(target, mutant):
    points, printed = target.check(planted(target, mutant), verdicts=mutant.verdict)
    failed = failures(printed)
    assert mutant.fails in failed, printed
    assert mutant.says in failed[mutant.fails], printed
    most = int(re.search(rf"^{target.function}: \d+ of (\d+) points", printed, re.MULTILINE)[1])
    assert 0 <= points < most


@pytest.mark.parametrize("mutant", tiled_matmul.OBVIOUS, ids=lambda mutant: mutant.name)
def test_a_bug_that_any_test_sees_is_named(mutant):
    target = tiled_matmul.TARGET
    _, printed = target.check(submission(target, mutant.patch), until=lambda printed: "FAILED" in printed, verdicts="right")
    assert mutant.says in failures(printed)[mutant.fails]


def masks():
    """Each mask of each solution: taken away whole, and each of the conditions it is made of."""
    for target in targets():
        for cell in target.cells:
            source = cells(target.assignment)[cell]
            for call in ast.walk(ast.parse(source)):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in ("tl.load", "tl.store"):
                    yield from ((target, cell, *deletion) for deletion in deletions(source, call))


def deletions(source, call):
    """The text of a load or store, the same without its mask or a condition of it, and that condition."""
    mask = next((keyword for keyword in call.keywords if keyword.arg == "mask"), None)
    if mask is None:  # one number, whose place is always inside
        return
    text = ast.get_source_segment(source, call)
    bare = [keyword for keyword in call.keywords if keyword.arg not in ("mask", "other")]
    yield text, ast.unparse(ast.Call(call.func, call.args, bare)), None
    conditions = list(operands(mask.value))
    for gone in conditions if len(conditions) > 1 else ():
        left = " & ".join(f"({ast.unparse(kept)})" for kept in conditions if kept is not gone)
        name = ast.unparse(gone.value if isinstance(gone, ast.Subscript) else gone)
        yield text, text.replace(ast.get_source_segment(source, mask.value), left), name


def operands(node):
    """The conditions of ``a & b & c``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield from operands(node.left)
        yield from operands(node.right)
    else:
        yield node


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("target", "cell", "old", "new", "name"),
    [pytest.param(*mask, id=f"{mask[0].function}: {mask[3]}") for mask in masks()],
)
def test_deleted_mask(target, cell, old, new, name):
    access = "the load of" if old.startswith("tl.load") else "the store of"

    def diagnosed(printed):
        lines = [line for line in failures(printed).values() if access in line and "not masked" in line]
        return any(name is None or re.search(rf"\([^()]*\b{re.escape(name)}\b[^()]*\)", line) for line in lines)

    # What reads addresses first: it sees most of them, and in one call.
    fn = submission(target, (old, new), cell)
    printed = target.check_properties(fn, lambda each: sorted(each, key=lambda item: not item.addresses), until=diagnosed)
    assert diagnosed(printed), printed
