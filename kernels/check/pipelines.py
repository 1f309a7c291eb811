"""What a pipeline of exercise 09 is held to: its runs on the model of Gluon under every schedule, its code, its operations.

A kernel must come to its end with the right numbers, and nothing may be found in it, whatever the order of events. What
is wrong is the model's own finding: which partition, which line, which barrier; and the step of the lesson that explains it.
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.check.compiling import compiled, refusal
from kernels.check.experiments import Finding
from kernels.check.explanations import explain
from kernels.check.framework import Draw, Exercise, Property, Report
from kernels.check.say import say
from kernels.lab.compile_report import CompileError, prepare

#: What each kind of finding of the model usually means, and the lesson and its step to read again.
MEANINGS = {
    "byte count": ("expect announces exactly what the copies of this phase bring", 50, 3),
    "missing fence": ("fence_async_shared stands between ordinary stores and the arrival that announces them", 50, 3),
    "missing wait": ("the sums are in the accumulator once warpgroup_mma_wait has returned", 50, 4),
    "early read": ("wait for the barrier that this copy completes before you read", 50, 2),
    "wrong phase": ("another round than the one that is meant lets this wait pass: the parity turns once a round", 50, 2),
    "early overwrite": ("a buffer is free when its last reader is done and has said so on a barrier", 51, 2),
    "race": ("one arrives after its access, the other waits before its own", 51, 2),
    "order of sums": ("let each addition wait for the one before it: sums of floats depend on their order", 51, 2),
    "uninitialized": ("wait for the barrier of what fills this memory before you read", 50, 2),
    "barrier": ("init asks for as many arrivals as come in a phase, no more and no fewer", 50, 2),
    "out of bounds": ("mask what lies past the end", 50, 4),
    "unfinished": ("nobody waits for it: see whether both sides count the same steps", 50, 2),
    "deadlock": ("nobody does what this wait asks for: see who should signal it, and which phase is meant", 51, 1),
}  # fmt: skip
#: What the model says of a barrier whose two sides have lost each other, mostly because of another finding.
CONSEQUENCES = ("nothing keeps the barrier from", "without knowing that phase", "more often than it was initialized")
GIVEN = ("ask", "store_tile")  # functions that the exercise gives
TALLIED = ("wait", "expect", "issue", "arrive")
ACTIONS = {"wait", "expect", "issue", "arrive", "read", "write"}  # what a partition of a pipeline does in its log


class Launch(NamedTuple):
    """One launch on the model: its arguments, the tensor that it fills, what must be in it, and its sizes as text."""

    grid: int
    args: tuple
    out: torch.Tensor
    expected: torch.Tensor
    sizes: str


class Compiled(NamedTuple):
    """A launch as Hopper wants it, and instructions that must stand in its code, with how often at least."""

    args: Callable[[], tuple]
    instructions: dict[str, int]
    lesson: str
    points: int = 2


class Tallied(NamedTuple):
    """What a launch may cost: waits, arrivals, copies and products, all together, for each step of the lesson's kernel.

    ``tiers`` are (points, multiple of ``each``), the best one first.
    """

    launch: Callable[[Draw], Launch]
    steps: int
    each: int
    lesson: str
    tiers: tuple[tuple[int, float], ...] = ((3, 1.1), (1, 2.0))

    @property
    def points(self) -> int:
        """The most that can be earned."""
        return self.tiers[0][0]


@dataclass(frozen=True)
class Pipeline(Exercise):
    """A kernel of the clinic, and what must hold for it: the cases of its properties are launches.

    It may be in another process: then what is checked has a ``model``, which runs it there, and a ``prepare``, which is
    ``compile_report.prepare`` there.
    """

    def report(self, *how) -> Report:
        """One run of its check."""
        return OnModel(self, *how)

    def not_here(self) -> str:
        """Why this machine has no model of Gluon, if it has none."""
        try:
            from kernels import gluon_model  # noqa: F401
        except ImportError as error:
            return str(error)
        return ""

    def terms(self) -> str:
        """The row of this kernel in the exercise's table of points."""
        cheap = "; ".join(f"{points}: up to {times:g} × the operations" for points, times in self.cheap.tiers)
        return f"| `{self.name}` | {self.worth['right']} | {self.compiles.points} | {cheap} |"


class _Wrong(NamedTuple):
    where: str
    amount: str
    cause: str
    lesson: str
    story: str = ""  # the model's whole finding


class OnModel(Report):
    """One run of a pipeline's check."""

    def __init__(self, exercise: Pipeline, submission, *how):
        from kernels import gluon_model

        super().__init__(exercise, submission, *how)
        self.kernel = submission.fn or submission
        self.model = getattr(self.kernel, "model", gluon_model)

    def launches(self, item: Property) -> Iterable[Launch]:
        """The cases of a property."""
        return item.cases(Draw(f"{self.seed}, {self.exercise.name}, {item.name}", self.grading))

    def right(self) -> None:
        """Every property's line."""
        self.earned["right"], seen, properties = 0, {}, self.exercise.properties
        if self.is_idle(next(iter(self.launches(properties[0])))):
            self.say(f"missing: {self.exercise.missing}")
            self.over = self.missing = True
            return
        for item in properties:
            self.progress.at(item.name)
            wrong = next(filter(None, (self.judge(item.lesson, launch) for launch in self.launches(item))), None)
            if wrong is None:
                self.earned["right"] += item.points
                self.passed(item.name, item.points)
            elif wrong.where in seen:
                self.say(f'FAILED  {item.name}: {wrong.where}, as in "{seen[wrong.where]}".')
            else:
                self.say(f"FAILED  {item.name}: {wrong.where}, {wrong.amount}: {wrong.cause}. {wrong.lesson}.")
                say(textwrap.indent(wrong.story, " " * 8), 4)
                seen[wrong.where] = item.name

    def compiles(self) -> None:
        """The line of the verdict "compiles"."""
        self.earned["compiles"], spec = 0, self.exercise.compiles
        if self.earned.get("right") == 0:
            return
        if finding := self.refused(spec):
            self.fail("compiles", finding, spec.lesson)
            return
        self.earned["compiles"] = spec.points
        self.passed("compiles", spec.points)

    def cheap(self) -> None:
        """The line of the verdict "cheap"."""
        self.earned["cheap"], spec = 0, self.exercise.cheap
        if self.earned.get("right") == 0:
            return
        launch = spec.launch(Draw(f"{self.seed}, {self.exercise.name}, cheap", self.grading))
        if wrong := self.judge(spec.lesson, launch):
            self.say(f"FAILED  cheap: {wrong.where}: only a right kernel is cheap or dear. {spec.lesson}.")
            return
        (machine, *_) = self.model.run(self.kernel, launch.grid, *launch.args).machines
        if wrong := _idle_parts(machine):
            self.say(f"FAILED  cheap: {wrong} (with {launch.sizes}). {spec.lesson}.")
            return
        counted = Counter((event.who, event.kind) for event in machine.events if event.kind in TALLIED)
        times = counted.total() / (spec.each * spec.steps)
        points = self.earned["cheap"] = next((points for points, most in spec.tiers if times <= most), 0)
        if points == spec.points:
            self.passed("cheap", points)
            return
        (who, kind), count = counted.most_common(1)[0]
        said = f"{points} of {spec.points} points: " if points else ""
        said += f"{times:.3g} times the waits, arrivals, copies and products that the steps need"
        said += f", and {spec.tiers[0][1]} times may be"
        most = f"most by {who} ({count} × {kind}) with {launch.sizes}"
        cause = "each step waits once for what it takes, and signals once what it leaves"
        self.fail("cheap", Finding(said, most, cause), spec.lesson)

    def refused(self, spec: Compiled) -> Finding | None:
        """What is wrong with the compiled kernel."""
        try:
            elsewhere = getattr(self.kernel, "prepare", None)
            prepared = elsewhere() if elsewhere else prepare(self.kernel, *spec.args())
        except Exception as raised:
            return Finding("the launch cannot be compiled", *explained(raised))
        made = compiled(prepared, (90,))
        if isinstance(made, str):
            return refusal(prepared.kernel, made, "for sm_90")
        try:
            lacking = [name for name, most in spec.instructions.items() if made[90].count(name) < most]
        except CompileError as error:  # the disassembler had too much to read
            return refusal(prepared.kernel, str(error), "for sm_90")
        if made[90].spill_bytes:
            where = f"{prepared.kernel} spills {made[90].spill_bytes} bytes a thread on sm_90"
            return Finding(where, "with 3 buffers", "a partition has fewer registers than its blocks need")
        if not lacking:
            return None
        return Finding(f"too few {lacking[0]} stand in the code", "for sm_90", "a copy or a product is not made there")

    def is_idle(self, launch: Launch) -> bool:
        """Whether some partition of the kernel does nothing at all, as the gaps of the unsolved exercise do."""
        try:
            (machine,) = self.model.run(self.kernel, launch.grid, *launch.args).machines
        except Exception:  # an error in the learner's lines, which the properties will meet again and explain
            return False
        busy = {event.who for event in machine.events if event.kind in ACTIONS}
        return any(partition.name not in busy for partition in machine.everybody[1:])

    def judge(self, lesson: str, launch: Launch) -> _Wrong | None:
        """Run one launch under every schedule; ``lesson``: what to read where only the numbers are wrong."""
        amount = f"with {launch.sizes}"
        try:
            sweep = self.model.check_all_schedules(self.kernel, launch.grid, *launch.args, most_steps=100_000)
        except Exception as raised:
            said, means = explained(raised)
            return _Wrong("an error", f"{amount}: {said}", means, lesson)
        if sweep.findings:
            first = min(sweep.findings, key=_rank)
            cause, number, step = MEANINGS[first.kind]
            at = f" at {first.barrier}" if first.barrier else ""
            where = f"{first.kind}{at} in line {first.place.line} of {first.partition}, `{first.place.text}`"
            return _Wrong(where, amount, cause, f"Lesson {number}, step {step}", first.message)
        wrong = ~torch.isclose(launch.out.double(), launch.expected, rtol=1e-3, atol=1e-3)
        if not wrong.any():
            return None
        at = wrong.nonzero()[0].tolist()
        got, answer = launch.out[tuple(at)].item(), launch.expected[tuple(at)].item()
        amount = f"the first at {at}: {got:.4g} for {answer:.4g}, {amount}"
        cause = "every wait is in order, so look at which tile goes where, and at the sums"
        return _Wrong(f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong", amount, cause, lesson)


def _idle_parts(machine) -> str:
    """What of a pipeline of two buffers does no work in a run of several rounds: a buffer, or one of two like partitions."""
    waited = {event.what for event in machine.events if event.kind == "wait"}
    for one in sorted(waited):
        if one.endswith("[0]") and one.replace("[0]", "[1]") not in waited:
            return f"of the barriers {one[:-3]} one is waited for, {one}: all steps share a buffer, and nobody runs ahead"
    products = Counter(event.who for event in machine.events if event.what == "matrix product")
    for who in (partition.name for partition in machine.everybody):
        twin = who.removesuffix(" 2")
        if twin != who and products[who] != products[twin]:
            return f"{twin} multiplies {products[twin]} times, and {who} {products[who]} times: each has a half of its own"
    return ""


def explained(raised: Exception) -> tuple[str, str]:
    """What an exception says, and what it means, as the process says where it was raised."""
    return getattr(raised, "explained", None) or explain(raised, GIVEN)


def _rank(finding) -> tuple:
    """Causes first, and of those the one that showed first: the model's findings come in that order."""
    last = finding.kind in ("unfinished", "deadlock")
    return last, any(text in finding.message for text in CONSEQUENCES)
