"""What a pipeline of exercise 09 is held to: its runs on the model of Gluon under every schedule, its code, its operations.

A kernel must come to its end with the right numbers, and nothing may be found in it, whatever the order of events. What
is wrong is the model's own finding: which partition, which line, which barrier; and the step of the lesson that explains it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.check.compiling import compiled, refusal
from kernels.check.experiments import Finding
from kernels.check.explanations import explain
from kernels.check.framework import VERDICTS, Draw, asked, seeded
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


@dataclass(frozen=True)
class Property:
    """Launches that must be right under every schedule; ``lesson``: what to read where only the numbers are wrong."""

    name: str
    points: int
    lesson: str
    launches: Callable[[Draw], Iterable[Launch]]


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


@dataclass(frozen=True)
class Pipeline:
    """A kernel of the clinic, and what must hold for it."""

    name: str
    missing: str
    properties: tuple[Property, ...]
    compiles: Compiled
    cheap: Tallied

    @property
    def worth(self) -> dict[str, int]:
        """The most that each verdict can earn."""
        right = sum(item.points for item in self.properties)
        return {"right": right, "compiles": self.compiles.points, "cheap": self.cheap.tiers[0][0]}

    @property
    def points(self) -> int:
        """The most that can be earned."""
        return sum(self.worth.values())

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


def check(pipeline: Pipeline, kernel, *, seed=0, grading: bool | None = None, verdicts=VERDICTS) -> int:
    """Hold ``kernel`` to every property of ``pipeline``, print one line a property, return the points earned.

    ``seed``, ``grading`` and ``verdicts`` as for the other checks. A learner's error is explained, never raised.
    ``kernel`` may stand for one in another process: then it has a ``model``, which runs it there, and a ``prepare``, which is
    ``compile_report.prepare`` there.
    """
    verdicts, (seed, grading) = asked(verdicts), seeded(seed, grading)
    worth = {name: points for name, points in pipeline.worth.items() if name in verdicts}
    try:
        from kernels import gluon_model
    except ImportError as error:
        print(f"not verified on this machine: {error}")
        return 0
    gluon_model = getattr(kernel, "model", gluon_model)
    draw = Draw(f"{seed}, {pipeline.name}", grading)
    if _is_idle(gluon_model, kernel, next(iter(pipeline.properties[0].launches(draw)))):
        print(f"missing: {pipeline.missing}")
        print(f"{pipeline.name}: 0 of {sum(worth.values())} points")
        return 0
    earned = dict.fromkeys(worth, 0)
    if "right" in worth:
        earned["right"] = _right(gluon_model, pipeline, kernel, seed, grading)
    if "compiles" in worth and earned.get("right") != 0:
        earned["compiles"] = _compiles(pipeline.compiles, kernel)
    if "cheap" in worth and earned.get("right") != 0:
        earned["cheap"] = _cheap(gluon_model, pipeline, kernel, Draw(f"{seed}, {pipeline.name}, cheap", grading))
    drawn = f" (graded with seed {seed})" if grading else ""
    parts = ", ".join(f"{name} {points} of {worth[name]}" for name, points in earned.items())
    several = f" ({parts})" if len(worth) > 1 else ""
    print(f"{pipeline.name}: {sum(earned.values())} of {sum(worth.values())} points{several}{drawn}")
    return sum(earned.values())


def _compiles(spec: Compiled, kernel) -> int:
    """The line of the verdict "compiles", and its points."""
    try:
        elsewhere = getattr(kernel, "prepare", None)
        prepared = elsewhere() if elsewhere else prepare(kernel, *spec.args())
    except Exception as raised:
        said, means = getattr(raised, "explained", None) or explain(raised, GIVEN)
        print(f"FAILED  compiles: the launch cannot be compiled, {said}: {means}. {spec.lesson}.")
        return 0
    made, lacking = compiled(prepared, (90,)), []
    try:
        if not isinstance(made, str):
            lacking = [name for name, most in spec.instructions.items() if made[90].count(name) < most]
    except CompileError as error:  # the disassembler had too much to read
        made = str(error)
    if isinstance(made, str):
        finding = refusal(prepared.kernel, made, "for sm_90")
    elif made[90].spill_bytes:
        where = f"{prepared.kernel} spills {made[90].spill_bytes} bytes a thread on sm_90"
        finding = Finding(where, "with 3 buffers", "a partition has fewer registers than its blocks need")
    elif not lacking:
        print(f"passed  compiles ({spec.points} points)")
        return spec.points
    else:
        finding = Finding(
            f"too few {lacking[0]} stand in the code", "for sm_90", "a copy or a product is not made there"
        )
    print(f"FAILED  compiles: {finding.where}, {finding.amount}: {finding.cause}. {spec.lesson}.")
    return 0


def _cheap(gluon_model, pipeline: Pipeline, kernel, draw: Draw) -> int:
    """The line of the verdict "cheap", and its points."""
    spec = pipeline.cheap
    launch = spec.launch(draw)
    if wrong := _judge(gluon_model, Property("cheap", 0, spec.lesson, lambda draw: ()), kernel, launch):
        print(f"FAILED  cheap: {wrong.where}: only a right kernel is cheap or dear. {spec.lesson}.")
        return 0
    (machine, *_) = gluon_model.run(kernel, launch.grid, *launch.args).machines
    counted = Counter((event.who, event.kind) for event in machine.events if event.kind in TALLIED)
    times = counted.total() / (spec.each * spec.steps)
    points = next((points for points, most in spec.tiers if times <= most), 0)
    if points == spec.tiers[0][0]:
        print(f"passed  cheap ({points} points)")
        return points
    (who, kind), count = counted.most_common(1)[0]
    some = f"{points} of {spec.tiers[0][0]} points: " if points else ""
    said = f"{times:.3g} times the waits, arrivals, copies and products that the steps need"
    said += f", and {spec.tiers[0][1]} times may be"
    most = f"most by {who} ({count} × {kind}) with {launch.sizes}"
    cause = "each step waits once for what it takes, and signals once what it leaves"
    print(f"FAILED  cheap: {some}{said}, {most}: {cause}. {spec.lesson}.")
    return points


def _right(gluon_model, pipeline: Pipeline, kernel, seed, grading) -> int:
    """Every property's line, and the points of all."""
    earned, seen = 0, {}
    for item in pipeline.properties:
        draw = Draw(f"{seed}, {pipeline.name}, {item.name}", grading)
        wrong = next(filter(None, (_judge(gluon_model, item, kernel, launch) for launch in item.launches(draw))), None)
        if wrong is None:
            earned += item.points
            print(f"passed  {item.name} ({item.points} point{'s' * (item.points != 1)})")
        elif wrong.where in seen:
            print(f'FAILED  {item.name}: {wrong.where}, as in "{seen[wrong.where]}".')
        else:
            print(f"FAILED  {item.name}: {wrong.where}, {wrong.amount}: {wrong.cause}. {wrong.lesson}.")
            print("".join(f"        {line}\n" for line in wrong.story.splitlines()), end="")
            seen[wrong.where] = item.name
    return earned


def _is_idle(gluon_model, kernel, launch: Launch) -> bool:
    """Whether some partition of the kernel does nothing at all, as the gaps of the unsolved exercise do."""
    try:
        (machine,) = gluon_model.run(kernel, launch.grid, *launch.args).machines
    except Exception:  # an error in the learner's lines, which the properties will meet again and explain
        return False
    busy = {event.who for event in machine.events if event.kind in ACTIONS}
    return any(partition.name not in busy for partition in machine.everybody[1:])


def _judge(gluon_model, item: Property, kernel, launch: Launch) -> _Wrong | None:
    """Run one launch under every schedule."""
    amount = f"with {launch.sizes}"
    try:
        sweep = gluon_model.check_all_schedules(kernel, launch.grid, *launch.args, most_steps=100_000)
    except Exception as raised:
        said, means = getattr(raised, "explained", None) or explain(raised, GIVEN)
        return _Wrong("an error", f"{amount}: {said}", means, item.lesson)
    if sweep.findings:
        first = min(sweep.findings, key=_rank)
        cause, lesson, step = MEANINGS[first.kind]
        at = f" at {first.barrier}" if first.barrier else ""
        where = f"{first.kind}{at} in line {first.place.line} of {first.partition}, `{first.place.text}`"
        return _Wrong(where, amount, cause, f"Lesson {lesson}, step {step}", first.message)
    wrong = ~torch.isclose(launch.out.double(), launch.expected, rtol=1e-3, atol=1e-3)
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        got, answer = launch.out[tuple(at)].item(), launch.expected[tuple(at)].item()
        where = f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong"
        amount = f"the first at {at}: {got:.4g} for {answer:.4g}, {amount}"
        return _Wrong(
            where, amount, "every wait is in order, so look at which tile goes where, and at the sums", item.lesson
        )
    return None


def _rank(finding) -> tuple:
    """Causes first, and of those the one that showed first: the model's findings come in that order."""
    last = finding.kind in ("unfinished", "deadlock")
    return last, any(text in finding.message for text in CONSEQUENCES)
