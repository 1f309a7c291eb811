"""What every check does: run a learner's function on inputs that catch a known mistake, and name the mistake.

A check is an :class:`Exercise`, and gives three verdicts. *Compiles* and *cheap* have modules of their own, ``compiling``
and ``costs``. *Right* is a list of named :class:`Property` objects, each worth points. A property draws a few
:class:`Case` objects, each one call of the learner's function together with the answer it must give. Three experiments,
not guesses, lead from a wrong answer to its cause:

* every tensor is the inner part of a larger buffer. What lies around an input is poison (NaN), what lies around and in
  the output is a bit pattern that no arithmetic makes, so a store outside the output, and an element that was never
  stored, are seen exactly;
* after a wrong answer the call is repeated with harmless surroundings, then with poison beyond one end of one axis of
  one input at a time: the run that goes wrong again names the mask that is missing. In the interpreter the addresses
  themselves say which ends to try;
* failing that, the answer is compared with what known mistakes would give (:attr:`Exercise.suspects`).

The learner's code runs behind ``submission.Submission``: its launches are recorded on two other draws of a case's values, and
replayed on the case's own. On this side are the cases, the answers, the comparison and the points.
"""

import os
import secrets
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from kernels import runtime
from kernels.check.cases import Case, Failed, OnHost, Output
from kernels.check.compiling import Compiles, judge_compiled, otherwise_interpreted
from kernels.check.costs import Cheap, Tier, judge_cost
from kernels.check.experiments import NO_KERNEL, NOTHING, Finding, conflicts, judge, shares, touches
from kernels.check.explanations import COLLIDE, RACE, SLOW
from kernels.check.failing import Failing, remember
from kernels.check.say import say
from kernels.check.stale import broken_since
from kernels.check.submission import Submission
from kernels.check.tensors import NAN, Draw, Fenced, Size, one_thread
from kernels.check.watch import CALL_SECONDS, Progress
from kernels.check.wording import (
    exchanged_axes,
    exchanged_indices,
    exchanged_strides,
    foreign_strides,
    misread,
    odd_lanes,
)

__all__ = [
    "NAN", "Case", "Cheap", "Compiles", "Draw", "Exercise", "Fenced", "Output", "Property", "Size", "Tier", "calls", "check",
]  # fmt: skip

VERDICTS = ("right", "compiles", "cheap")
ADDRESSES = "no mask can mend this: look at the strides and offsets in the address"


def calls(make: Callable[..., Case], *each: dict, **common) -> Callable[[Draw], Iterable[Case]]:
    """The cases ``make(draw, **how)`` of a property: ``how`` is each of ``each`` with what is common; ``Size``s are drawn."""

    def cases(draw: Draw) -> Iterable[Case]:
        for one in each or ({},):
            how = (common | one).items()
            yield make(draw, **{name: draw.size(*value) if isinstance(value, Size) else value for name, value in how})

    return cases


@dataclass(frozen=True)
class Property:
    """One thing that must hold.

    ``cases(draw)`` gives the calls; ``otherwise`` is the likely cause when no experiment names one, ``not_finite`` that
    of NaN or infinity where a number is due; ``lesson`` says what to read again. Where an earlier property failed, a
    guess gives way to it: one bug, one cause.
    ``needs`` is "gpu" or "interpreter" where the property can only be seen there; such a property is worth no points.
    ``addresses`` asks for the addresses a call touches instead of its answer, ``shared_updates`` for elements of an
    output that several programs of one launch update: they come in no fixed order; ``conflicts`` for elements that one
    program stores and another reads. ``exponents`` also asks for numbers
    above 0 whose exponential is taken, which a where that comes later hides.
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
    exponents: bool = False
    conflicts: bool = False

    @classmethod
    def stays_inside(
        cls, lesson: str, cases: Callable[[Draw], Iterable[Case]], *, points: int = 1, otherwise: str = ADDRESSES
    ) -> "Property":
        """No access outside a tensor, as the addresses say."""
        name = "stays inside its tensors"
        return cls(name, points, lesson, cases, otherwise, needs="the interpreter", addresses=True)

    @classmethod
    def in_bfloat16(cls, lesson: str, cases: Callable[[Draw], Iterable[Case]]) -> "Property":
        """bfloat16 in and out."""
        return cls("bfloat16", 0, lesson, cases)


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes, and what must hold for it."""

    name: str
    missing: str  # what an unsolved exercise lacks
    properties: tuple[Property, ...]
    # Known mistakes, and the answer that each would give.
    suspects: Callable[[Case, Output], Iterable[tuple[str, torch.Tensor]]] = lambda case, out: ()
    masks: dict = field(default_factory=dict)  # (tensor, axis, side) -> the mask's name, where it is not mask_<axis>
    unit: str = "points"  # what is counted
    given: tuple[str, ...] = ()  # Triton functions of the exercise: what goes wrong in them is their caller's doing
    spoken: dict = field(default_factory=dict)  # (tensor, axis) -> what the exercise calls that axis
    compiles: Compiles | None = None
    cheap: Cheap | None = None
    launcher: Callable = lambda fn: fn  # what is called with a case's tensors, made of the learner's function

    def submission(self, fn) -> Submission:
        """The learner's function, ready to be called with a case's tensors; one that is elsewhere is so already."""
        return fn if isinstance(fn, Submission) else Submission(self.launcher(fn), self.given)

    def report(self, *how) -> "Report":
        """One run of its check."""
        return Report(self, *how)

    def not_here(self) -> str:
        """Why this machine cannot check it, if it cannot."""
        return ""

    @property
    def worth(self) -> dict[str, int]:
        """The most that each verdict can earn."""
        right = sum(item.points for item in self.properties)
        others = {"compiles": self.compiles, "cheap": self.cheap}
        return {"right": right} | {name: spec.points for name, spec in others.items() if spec}

    @property
    def points(self) -> int:
        """The most a submission can earn."""
        return sum(self.worth.values())

    def terms(self) -> str:
        """The row of this function in an exercise's table of points."""
        worth, cells = self.worth, [f"{self.worth['right']}"]
        cells.append(f"{worth['compiles']}" if self.compiles else "–")
        cells.append("–")
        if self.cheap:
            best, *others = self.cheap.tiers
            cells[-1] = f"{best.points}: reads {best.read:g} ×, stores {best.written:g} ×"
            for tier in others:
                cells[-1] += f"; {tier.points}: up to {tier.read:g} ×, {tier.written:g} ×"
        return f"| `{self.name}` | {' | '.join(cells)} |"

    def mask(self, tensor: str, axis: str, side: str) -> str:
        """The name of the mask that keeps an access from passing this end of ``axis``, if there is one."""
        return self.masks.get((tensor, axis, side), f"mask_{axis.lower()}" if side == "after" else "")

    def unmasked(self, access: str, tensor: str, axis: str, side: str) -> str:
        """That a load or store has no mask at this end of ``axis``, where one could be."""
        mask, axis = self.mask(tensor, axis, side), self.spoken.get((tensor, axis), axis)
        return f"the {access} of {tensor} is not masked along {axis} ({mask})" if mask else ""


def asked(verdicts: tuple[str, ...] | str) -> tuple[str, ...]:
    """The verdicts that a check is asked for; ``ValueError`` for one that there is not."""
    verdicts = (verdicts,) if isinstance(verdicts, str) else tuple(verdicts)
    if unknown := set(verdicts) - set(VERDICTS):
        raise ValueError(f"verdicts names {', '.join(sorted(unknown))}: there are {', '.join(VERDICTS)}")
    return verdicts


def seeded(seed, grading: bool | None) -> tuple[int, bool]:
    """The seed, a fresh one for None, and whether this is a grading: where nobody says, the environment does."""
    if grading is None:
        grading = os.environ.get("KERNELS_GRADING") == "1"
        seed = None if grading else seed
    return secrets.randbits(32) if seed is None else seed, grading


def check(exercise: Exercise, fn, *, seed=0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Hold ``fn`` to ``exercise``, print one line a property or verdict, return the points earned.

    ``seed`` fixes the values; None draws a fresh one. ``grading=True`` draws other shapes too. Where ``grading`` is not
    given, ``KERNELS_GRADING=1`` in the environment asks for both: so autograding needs no change in the notebook.
    ``verdicts`` leaves some of them out. A learner's error is explained, never raised.
    """
    verdicts, (seed, grading) = asked(verdicts), seeded(seed, grading)
    if why := exercise.not_here():
        say(f"not verified on this machine: {why}")
        return 0
    if fn is None:
        say(f"missing: {exercise.missing}")
        most = sum(points for name, points in exercise.worth.items() if name in verdicts)
        say(f"{exercise.name}: 0 of {most} {exercise.unit}")
        return 0
    if not isinstance(fn, Submission) and not callable(fn):
        say(f"{exercise.name}: nothing to check, the function is {fn!r}. Run the cell that defines it first.")
        return 0
    if not isinstance(fn, Submission) and (broken := broken_since(fn)):
        say(f"{exercise.name}: {broken}")
        return 0
    submission = exercise.submission(fn)
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")  # poison makes numpy warn, and nbgrader counts anything on stderr as a failure
        things = {name: 1 for name in exercise.worth} | {"right": len(exercise.properties)}
        report = exercise.report(submission, seed, grading, sum(things[name] for name in verdicts if name in things))
        for verdict in VERDICTS:
            if verdict in verdicts and verdict in exercise.worth and not report.over:
                getattr(report, verdict)()
    report.progress.clear()
    worth = {name: points for name, points in exercise.worth.items() if name in verdicts}
    parts = ", ".join(f"{name} {report.earned.get(name, 0)}/{points}" for name, points in worth.items())
    several = f" ({parts})" if len(worth) > 1 and not report.missing and exercise.unit == "points" else ""
    drawn = f" (graded with seed {seed})" if grading else ""
    earned = sum(report.earned.values())
    say(f"{exercise.name}: {earned} of {sum(worth.values())} {exercise.unit}{several}{drawn}")
    if report.failing and not grading:
        remember(report.failing)
        say(f'A look at the numbers: check.case("{next(iter(report.failing))}")')
    return earned


class Report:
    """One run of a check: what is printed, and the points of each verdict."""

    def __init__(self, exercise: Exercise, submission: Submission, seed, grading: bool, of: int):
        self.exercise, self.submission, self.seed, self.grading = exercise, submission, seed, grading
        self.earned: dict[str, int] = {}
        self.failed: list[str] = []
        self.printed: dict[str, str] = {}  # cause -> where it was said first
        self.failing: dict[str, Failing] = {}
        self.over = self.missing = False  # nothing more is looked at
        self.answered = False  # some answer is right
        self.progress = Progress(of)
        self._texts: list[str] | None = None  # of the kernels

    def cases(self, name: str, make: Callable[[Draw], Iterable[Case]]) -> Iterable[Case]:
        """The cases of one property, each with the two other draws of its values that launches are recorded on."""
        draws = (Draw(f"{self.seed}, {self.exercise.name}, {name}", self.grading, turn) for turn in range(3))
        for case, *others in zip(*map(make, draws), strict=True):
            case.draws = tuple(others)
            yield case

    def right(self) -> None:
        """Every property's line."""
        self.earned["right"] = 0
        for number, item in enumerate(self.exercise.properties):
            asked = {touches: item.addresses, shares: item.shared_updates, conflicts: item.conflicts}
            experiment = next((one for one, wanted in asked.items() if wanted), judge)
            if item.needs and (item.needs == "the interpreter") != runtime.interpreted:
                self.say(f"not verified on this machine: {item.name} (needs {item.needs})")
                continue
            finding = None
            for case in self.cases(item.name, item.cases):
                self.progress.at(item.name)
                try:
                    finding = experiment(self.exercise, item, self.submission, case)
                except OnHost as found:
                    finding = Finding(found.args[0], f"with {case.sizes}", found.args[1])
                except Failed as raised:
                    finding = Finding(f"an error with {case.sizes}", *raised.args)
                if finding:
                    break
            if number == 0 and finding and finding.where in (NOTHING, NO_KERNEL):
                what = self.exercise.missing if finding.where is NOTHING else "no Triton kernel stores anything."
                self.say(f"missing: {what}")
                self.over = self.missing = True
                return
            if not finding:
                self.earned["right"] += item.points
                self.answered = self.answered or not item.addresses
                self.passed(item.name, item.points)
                continue
            guesses = item.otherwise, item.not_finite
            self.fail(item.name, self.reworded(finding, case, guesses), item.lesson, guesses)
            self.failing[item.name] = Failing(case, self.submission)
            if finding.cause is SLOW:
                self.say(f"not run: whatever comes after it, until a call ends within {CALL_SECONDS} s.")
                self.over = True
                return

    def compiles(self) -> None:
        """The line of the verdict "compiles"."""
        spec, finding = self.exercise.compiles, None
        self.earned["compiles"] = 0
        if "right" in self.earned and not self.answered:
            self.say("not judged: compiles (no answer is right yet)")
            return
        for case in self.cases("compiles", spec.cases):
            self.progress.at("compiles")
            finding = judge_compiled(spec, self.submission, case)
            if finding:
                self.fail("compiles", finding, spec.lesson)
                return
        if finding := otherwise_interpreted(spec, self.submission):
            self.fail("compiles", finding, spec.lesson)
            return
        self.earned["compiles"] = spec.points
        self.passed("compiles", spec.points)

    def cheap(self) -> None:
        """The line of the verdict "cheap"."""
        spec = self.exercise.cheap
        self.earned["cheap"] = spec.points
        for case in self.cases("cheap", spec.calls):
            self.progress.at("cheap")
            points, finding = judge_cost(spec, self.submission, case)
            self.earned["cheap"] = min(self.earned["cheap"], points)
            if finding:
                some = f"{points} of {spec.points} points: " if points else ""
                self.fail("cheap", finding._replace(where=some + finding.where), spec.lesson)
                return
        self.passed("cheap", spec.points)

    def say(self, line: str) -> None:
        """Print a line of the report."""
        self.progress.clear()
        say(line)

    def passed(self, name: str, points: int) -> None:
        """The line of something that holds."""
        counted = self.exercise.unit == "points"
        self.say(f"passed  {name}" + f" ({points} point{'s' * (points != 1)})" * counted)

    def fail(self, name: str, finding: Finding, lesson: str, guesses: tuple[str, ...] = ()) -> None:
        """The line of something that does not."""
        first = self.printed.get(finding.cause)
        if first and finding.where.startswith("an error "):
            self.say(f'FAILED  {name}: the error of "{first}" again.')
        elif first:
            self.say(f"FAILED  {name}: as above, {finding.cause}.")
        elif finding.cause in guesses and self.failed:
            self.say(f'FAILED  {name}: {finding.where}; mend "{self.failed[0]}" first, then look again.')
        else:
            self.say(f"FAILED  {name}: {finding.where}, {finding.amount}: {finding.cause}. {lesson}.")
        self.failed.append(name)
        self.printed.setdefault(finding.cause, name)

    def reworded(self, finding: Finding, case: Case, guesses: tuple[str, ...]) -> Finding:
        """The finding with its cause out of the kernel's text, where something there is not what it looks like.

        What is merely odd there takes the place of a guess alone.
        """
        if finding.cause in (SLOW, RACE, COLLIDE):
            return finding
        texts = self.texts(case)
        found = [*misread(texts), *foreign_strides(texts)]
        found += [*exchanged_indices(texts, case.tensors), *exchanged_axes(texts, case.tensors)]
        if not found:  # strides of one call may be alike by chance
            found += exchanged_strides(texts, self.submission.kernels(case).numbers, case.tensors)
        found += odd_lanes(texts) if finding.cause in guesses else ()
        return finding._replace(cause="`{}`: {}".format(*found[0])) if found else finding

    def texts(self, case: Case) -> list[str]:
        """The kernels' own texts, asked for once."""
        if self._texts is None:
            self._texts = self.submission.kernels(case).texts
        return self._texts
