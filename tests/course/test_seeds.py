"""Grading draws fresh numbers: a right answer stays far inside what a check allows, whatever the seed, and a bug outside."""

import numpy
import pytest

from kernels import check, runtime
from kernels.check.framework import Draw
from tests.course.mutants import ROOT, submission, targets
from tools.kernel_environment import too_old_for

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")

TARGETS = {target.function: target for target in targets()}
BACKWARD = TARGETS["flash_backward"]
# With 405525620 a query's dtau is a thousandth of the terms that cancel in it, with 4047 every slope is nearly 0.
CANCELS, SATURATES = 405525620, 4047
MOST = 0.5  # a float16 output's own rounding is 2**-11 of 1e-3


def shares(target, fn, seed, wanted=lambda item: True):
    """Property, output -> the most that an element of ``fn``'s answers has of the error that is allowed there."""
    found, exercise = {}, check.exercise_of(target.function)
    submission = exercise.submission(fn)
    for item in exercise.properties:
        if item.addresses or item.shared_updates or item.conflicts or item.needs or not wanted(item):
            continue
        for case in item.cases(Draw(f"{seed}, {exercise.name}, {item.name}", grading=True)):
            seen = case.run(submission).seen
            for out in (out for out in case.outs if out.expected is not None and out.expected.numel()):
                most = numpy.max(out.share(seen[out.name].got))  # NaN where one is
                found[item.name, out.name] = numpy.maximum(most, found.get((item.name, out.name), 0.0))
    return found


def test_terms_that_cancel_are_allowed_what_rounding_makes_of_them():
    found = shares(BACKWARD, submission(BACKWARD), CANCELS, lambda item: item.name == "float16")
    assert {out for _, out in found} == {"delta", "dq", "dk", "dv", "dtau"}
    assert max(found.values()) < MOST, found


def test_slopes_that_are_nearly_0_are_allowed_the_rounding_of_1():
    target = TARGETS["emit_gradient"]
    found = shares(target, submission(target), SATURATES, lambda item: item.name == "large scores")
    assert found["large scores", "ds"] < MOST


ROUNDED = [mutant for mutant in BACKWARD.mutants if mutant.fails == "float16"]


@pytest.mark.parametrize("seed", [CANCELS, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 6))])
@pytest.mark.parametrize("mutant", ROUNDED, ids=lambda mutant: mutant.name)
def test_what_is_rounded_to_fewer_digits_is_seen_with_every_seed(mutant, seed):
    fn = submission(BACKWARD, mutant.patch, mutant.cell)
    assert max(shares(BACKWARD, fn, seed, lambda item: item.name == "float16").values()) > 2


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "target", [one for one in TARGETS.values() if one.assignment != "09_pipeline_clinic"], ids=lambda target: target.function
)
def test_a_solution_stays_far_inside_what_is_allowed(target, seed):
    if why := too_old_for(ROOT / "solutions" / target.assignment / f"{target.assignment}.ipynb"):
        pytest.skip(why)
    found = shares(target, submission(target), seed)
    assert found and max(found.values()) < MOST, found
