"""The verdict "cheap": what a kernel asks memory for, and how many loads and stores it executes, held beside a floor.

The floor in bytes is each element of the inputs read once and each element of the outputs written once. A scheme reads a
multiple of it, for good reasons or for bad ones: a tier says which multiple its scheme needs, and what that is worth. Steps
are loads and stores as executed, by all programs of the grid together; their floor is the count of the lesson's scheme.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kernels.check.cases import Case, Failed
from kernels.check.experiments import Finding, amount_wrong, where_wrong
from kernels.check.submission import Submission
from kernels.check.tensors import Draw
from kernels.lab.accesses import SECTOR_BYTES, Launch

_SLACK = 1.02  # for a byte more or less, a count that is rounded


class Tier(NamedTuple):
    """A scheme's limits, as multiples: bytes read over the inputs', written over the outputs', steps over the lesson's."""

    points: int
    read: float
    written: float = 1.0
    steps: float = 1.0


@dataclass(frozen=True)
class Cheap:
    """What a function's kernels may cost.

    ``calls(draw)`` gives the calls that are traced, ``steps(case)`` how many loads and stores the lesson's scheme executes,
    ``tiers`` the schemes, the best one first. ``sectors`` is the largest ratio of bytes in whole 32-byte sectors to bytes
    asked for; ``advice`` says what the lesson's scheme does, ``lesson`` where.
    """

    calls: Callable[[Draw], Iterable[Case]]
    steps: Callable[[Case], int]
    tiers: tuple[Tier, ...]
    advice: str
    lesson: str
    sectors: float = 1.5

    @property
    def points(self) -> int:
        """The most that can be earned."""
        return self.tiers[0].points


class Cost(NamedTuple):
    """What one call costs, as multiples of its floors."""

    read: float
    written: float
    steps: float
    sectors: float


def cost(spec: Cheap, case: Case, launches: list[Launch]) -> Cost:
    """What the launches of one call cost."""
    read, written, sectors = traffic([access for launch in launches for access in launch.accesses])
    return Cost(
        read / sum(tensor.nbytes for tensor in case.inputs),
        written / sum(out.tensor.nbytes for out in case.outs),
        sum(launch.executed.total() for launch in launches) / spec.steps(case),
        sectors / max(read + written, 1),
    )


def traffic(accesses) -> tuple[int, int, int]:
    """Bytes that accesses read, write, and touch in whole sectors; an atomic update does both."""
    read = sum(access.nbytes for access in accesses if access.kind != "store")
    written = sum(access.nbytes for access in accesses if access.kind != "load")
    return read, written, SECTOR_BYTES * sum(access.sectors for access in accesses)


def judge_cost(spec: Cheap, submission: Submission, case: Case) -> tuple[int, Finding | None]:
    """Trace one call: the points it earns, and what is dear where they are not all."""
    amount = f"with {case.sizes}"
    try:
        seen = case.traced(submission)
    except Failed as failed:
        return 0, Finding("its cost is not known", *failed.args)
    for out in case.outs:
        bad = out.wrong(seen.run.seen[out.name].got)
        if bad.any():
            words = amount_wrong(case, out, seen.run.seen[out.name], bad)
            return 0, Finding(where_wrong(out, bad), words, "only a right answer is cheap or dear: mend it first")
    if astray := _astray(seen):
        return 0, Finding(astray, amount, "what reaches there is left out here, and nobody knows its cost: mend it first")
    costs = cost(spec, case, seen.launches)
    points = next((tier.points for tier in spec.tiers if _within(costs, tier, spec.sectors)), 0)
    if points == spec.points:
        return points, None
    return points, _dear(spec, costs, seen.launches, amount)


def _astray(seen) -> str:
    """What a call does that its right values do not show: accesses that the trace fenced off, inputs that are written to."""
    if seen.out_of_bounds:
        beyond = seen.out_of_bounds[0]
        return f"a {beyond.kind} reaches outside {beyond.tensor}, `{beyond.source}`"
    return f"{' and '.join(seen.run.changed)} changed" if seen.run.changed else ""


def _within(costs: Cost, tier: Tier, sectors: float) -> bool:
    limits = Cost(tier.read, tier.written, tier.steps, sectors)
    return all(value <= limit * _SLACK for value, limit in zip(costs, limits, strict=True))


def _dear(spec: Cheap, costs: Cost, launches: list[Launch], amount: str) -> Finding:
    """What is furthest beyond the best tier, and the line that does most of it."""
    best = spec.tiers[0]
    limits = Cost(best.read, best.written, best.steps, spec.sectors)
    accesses = [access for launch in launches for access in launch.accesses]
    said = {
        "read": "loads ask for {} times the inputs' bytes, and {} times do",
        "written": "stores write {} times the outputs' bytes, and {} times do",
        "steps": "{} times the loads and stores are executed that the lesson's scheme needs, and {} times may be",
        "sectors": "whole 32-byte sectors come to {} times the bytes asked for, and {} times may be",
    }
    worst = max(Cost._fields, key=lambda name: getattr(costs, name) / getattr(limits, name))
    where = said[worst].format(*(f"{getattr(which, worst):.3g}" for which in (costs, limits)))
    lines = Counter()
    for access in accesses:
        counted = worst != "read" or access.kind != "store"
        counted = counted and (worst != "written" or access.kind != "load")
        lines[access.source] += counted * (access.nbytes or access.sectors)
    if worst == "steps":
        lines = sum((launch.executed for launch in launches), Counter())
    (line, _), *_ = lines.most_common(1)
    return Finding(where, f"most by `{line}` ({amount})", spec.advice)
