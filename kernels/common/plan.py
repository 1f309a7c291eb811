"""Which way a call goes, and what that way launches: decided once for all calls that are alike, and remembered.

A way is three functions of a problem (everything that the choice depends on, hashable):

    reason_not(problem)   why it cannot take the problem, as text, or None
    cost(problem)         the predicted time, in a unit that the ways of a room share, and why it is more than another's
    plan(problem)         what it launches: a Plan, which runs and prints itself

The forward pass, the backward pass and ``explain`` read the same Plan, so they cannot disagree.
"""

from typing import Any, NamedTuple, Protocol

from kernels.common.launch import Launch, Layout, layout, planned, planners, strided, strides  # noqa: F401 (asked for here)

MOST = 1024  # plans of one kind that are remembered; the least recently used is forgotten first
_remembering = planners


class Plan(Protocol):
    """What a way launches for a problem: sizes, grids and options, no tensors."""

    def run(self, *tensors: Any) -> Any:
        """Launch it on tensors that are alike those it was made for; ``forward`` and ``backward`` where one is for both."""

    def __str__(self) -> str:
        """What ``run`` launches, in words."""


class Way(Protocol):
    """One of the ways that a room can go, such as a module."""

    def reason_not(self, problem: Any) -> str | None:
        """Why it cannot take the problem, or ``None``."""

    def cost(self, problem: Any) -> "Cost":
        """The predicted time; asked only where there is no reason not to."""

    def plan(self, problem: Any) -> Plan:
        """What it would launch."""


class Cost(NamedTuple):
    """A predicted time, and what makes it that long, as text."""

    time: float
    because: str = ""


class Choice(NamedTuple):
    """The name of the way that was chosen, and of the others why not."""

    name: str
    passed_over: dict[str, str]

    def __str__(self):
        return "\n".join(f"not {name}: {reason}" for name, reason in self.passed_over.items())


def choose(ways, problem, asked="auto"):
    """The ``Choice`` among ``ways``, ``{name: way}``: the cheapest that can take the problem, the first of equal ones.

    Raises:
        ValueError: ``asked`` names a way that cannot take it, or none can.
    """
    if asked != "auto":
        if reason := ways[asked].reason_not(problem):
            raise ValueError(reason)
        return Choice(asked, {})
    passed_over, costs = {}, {}
    for name, way in ways.items():
        if reason := way.reason_not(problem):
            passed_over[name] = reason
        else:
            costs[name] = way.cost(problem)
    if not costs:
        raise ValueError("; ".join(f"{name}: {reason}" for name, reason in passed_over.items()))
    best = next(iter(costs))
    for name in costs:  # compared one by one: dynamo traces no ``min`` with a key
        best = name if costs[name].time < costs[best].time else best
    slower = {name: cost.because for name, cost in costs.items() if name != best and cost.because}
    return Choice(best, {name: reason for name in ways if (reason := passed_over.get(name) or slower.get(name))})


remembered = planned


class Bounded(dict):
    """What is remembered where a function's answers do not tell it."""

    def keep(self, key, value):
        """``value``, kept; one more than ``MOST``, and all others are forgotten."""
        if len(self) >= MOST:
            self.clear()
        self[key] = value
        return value


class Remembered(Bounded):
    """The same until ``forget``."""

    def __init__(self):
        _remembering.append(self)

    cache_clear = dict.clear


def forget():
    """Forget every plan: what they were made from has changed (a test's or the tuner's table of configurations)."""
    for cached in _remembering:
        cached.cache_clear()
