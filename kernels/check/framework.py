"""What every check does: run a learner's function on inputs that catch a known mistake, and name the mistake.

A check is an :class:`Exercise`: a list of named :class:`Property` objects, each worth points. A property draws a few
:class:`Case` objects, each one call of the learner's function together with the answer it must give. Three experiments,
not guesses, lead from a wrong answer to its cause:

* every tensor is the inner part of a larger buffer. What lies around an input is poison (NaN), what lies around and in
  the output is a bit pattern that no arithmetic makes, so a store outside the output, and an element that was never
  stored, are seen exactly;
* after a wrong answer the call is repeated with harmless surroundings, then with poison beyond one end of one axis of
  one input at a time: the run that goes wrong again names the mask that is missing. In the interpreter the addresses
  themselves say which ends to try;
* failing that, the answer is compared with what known mistakes would give (:attr:`Exercise.suspects`).

The learner's code runs behind one line, ``contestant.Contestant``: a call goes over it, and comes back as the tensors that it
wrote, its trace and its error. On this side stand the cases, the answers, the comparison and the points.
"""

import os
import secrets
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from kernels import runtime
from kernels.check.cases import Case, Failed, Output, Run, Seen, Stray
from kernels.check.contestant import Contestant
from kernels.check.experiments import NO_KERNEL, NOTHING, Finding, judge, shares, touches
from kernels.check.explanations import CHECKS_OWN, explain
from kernels.check.tensors import NAN, UNTOUCHED, Draw, Fenced

__all__ = [
    "ADDRESSES",
    "CHECKS_OWN",
    "NAN",
    "UNTOUCHED",
    "Case",
    "Draw",
    "Exercise",
    "Fenced",
    "Finding",
    "Output",
    "Property",
    "Run",
    "Seen",
    "Stray",
    "check",
    "explain",
]

ADDRESSES = "no mask can mend this: look at the strides and offsets in the address"


@dataclass(frozen=True)
class Property:
    """One thing that must hold.

    ``cases(draw)`` gives the calls; ``otherwise`` is the likely cause when no experiment names one, ``not_finite`` that
    of NaN or infinity where a number is due; ``lesson`` says what to read again. Where an earlier property failed, a
    guess gives way to it: one bug, one cause.
    ``needs`` is "gpu" or "interpreter" where the property can only be seen there; such a property is worth no points.
    ``addresses`` asks for the addresses a call touches instead of its answer, ``shared_updates`` for elements of an
    output that several programs of one launch update: they come in no fixed order.
    """

    name: str
    points: int
    lesson: str
    cases: Callable[[Draw], Iterable[Case]]
    otherwise: str = "the answer is not the formula's"
    not_finite: str = ""
    needs: str = ""
    addresses: bool = False
    shared_updates: bool = False


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes, and what must hold for it."""

    name: str
    missing: str  # what an unsolved exercise lacks
    properties: tuple[Property, ...]
    suspects: Callable[[Case, Output], Iterable[tuple[str, torch.Tensor]]]  # known mistakes, the answer each would give
    masks: dict = field(default_factory=dict)  # (tensor, axis, side) -> the mask's name, where it is not mask_<axis>
    unit: str = "points"  # what is counted

    @property
    def points(self) -> int:
        """The most a submission can earn."""
        return sum(item.points for item in self.properties)

    def mask(self, tensor: str, axis: str, side: str) -> str:
        """The name of the mask that keeps an access from passing this end of ``axis``, if there is one."""
        return self.masks.get((tensor, axis, side), f"mask_{axis.lower()}" if side == "after" else "")


def check(exercise: Exercise, fn, *, seed=0, grading: bool | None = None) -> int:
    """Hold ``fn`` to every property of ``exercise``, print one line a property, return the points earned.

    ``seed`` fixes the values; None draws a fresh one. ``grading=True`` draws other shapes too. Where ``grading`` is not
    given, ``KERNELS_GRADING=1`` in the environment asks for both: so autograding needs no change in the notebook.
    A learner's error is explained, never raised.
    """
    if grading is None:
        grading = os.environ.get("KERNELS_GRADING") == "1"
        seed = None if grading else seed
    if seed is None:
        seed = secrets.randbits(32)
    contestant = fn if isinstance(fn, Contestant) else Contestant(fn)
    if not isinstance(fn, Contestant) and not callable(fn):
        print(f"{exercise.name}: nothing to check, the function is {fn!r}. Run the cell that defines it first.")
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # poison makes numpy warn, and nbgrader counts anything on stderr as a failure
        earned = _check(exercise, contestant, seed, grading)
    drawn = f" (graded with seed {seed})" if grading else ""
    print(f"{exercise.name}: {earned} of {exercise.points} {exercise.unit}{drawn}")
    return earned


def _check(exercise, contestant, seed, grading) -> int:
    earned, failed, printed = 0, [], set()
    for number, item in enumerate(exercise.properties):
        experiment = touches if item.addresses else shares if item.shared_updates else judge
        if item.needs and (item.needs == "the interpreter") != runtime.interpreted:
            print(f"not verified on this machine: {item.name} (needs {item.needs})")
            continue
        finding = None
        for case in item.cases(Draw(f"{seed}, {exercise.name}, {item.name}", grading)):
            try:
                finding = experiment(exercise, item, contestant, case)
            except Failed as raised:
                finding = Finding(f"an error with {case.sizes}", *raised.args)
            if finding:
                break
        if number == 0 and finding and finding.where in (NOTHING, NO_KERNEL):
            print(f"missing: {exercise.missing if finding.where is NOTHING else 'no Triton kernel stores anything.'}")
            return 0
        if not finding:
            earned += item.points
            worth = f" ({item.points} point{'s' * (item.points != 1)})" if exercise.unit == "points" else ""
            print(f"passed  {item.name}{worth}")
            continue
        if finding.cause in printed:
            print(f"FAILED  {item.name}: as above, {finding.cause}.")
        elif finding.cause == item.otherwise and failed:
            print(f'FAILED  {item.name}: {finding.where}; mend "{failed[0]}" first, then look again.')
        else:
            print(f"FAILED  {item.name}: {finding.where}, {finding.amount}: {finding.cause}. {item.lesson}.")
        failed.append(item.name)
        printed.add(finding.cause)
    return earned
