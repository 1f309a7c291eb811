"""Which way a call goes, and what that way launches: decided once for all calls that are alike, and remembered.

A way is three functions of a problem (everything that the choice depends on, hashable):

    reason_not(problem)   why it cannot take the problem, as text, or None
    cost(problem)         the predicted time, in a unit that the ways of a room share, and why it is more than another's
    plan(problem)         what it launches: a Plan, which runs and prints itself

The forward pass, the backward pass and ``explain`` read the same Plan, so they cannot disagree.
"""

import functools
from typing import Any, NamedTuple, Protocol

import torch

MOST = 1024  # plans of one kind that are remembered; the least recently used is forgotten first
_remembering = []


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


def remembered(function):
    """``function`` of hashable arguments, its latest ``MOST`` answers remembered until ``forget``; safe among threads."""
    cached = functools.lru_cache(MOST)(function)
    _remembering.append(cached)
    return cached


class Bounded(dict):
    """What is remembered where a function's answers do not tell it."""

    def keep(self, key, value):
        """``value``, kept; one more than ``MOST``, and all others are forgotten."""
        if len(self) >= MOST:
            self.clear()
        self[key] = value
        return value


planned = remembered  # an operator's plans, by the layouts of its tensors


class Remembered(Bounded):
    """The same until ``forget``."""

    def __init__(self):
        _remembering.append(self)

    cache_clear = dict.clear


def forget():
    """Forget every plan: what they were made from has changed (a test's or the tuner's table of configurations)."""
    for cached in _remembering:
        cached.cache_clear()


class Layout(NamedTuple):
    """What a plan may depend on of a tensor; ``address`` is modulo 16 bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    address: int

    def meta(self):
        """A tensor that lies so, of no memory."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


def strided(tensor):
    """The ``Layout`` of a tensor whose address doesn't matter, ``None`` of ``None``."""
    return None if tensor is None else Layout(tensor.shape, tensor.stride(), tensor.dtype, 0)


def layout(tensor):
    """The ``Layout`` of a tensor, ``None`` of ``None``."""
    return None if tensor is None else Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() & 15)


def strides(layout, ndim):
    """The strides of a ``Layout``, zeros for ``None``."""
    return (0,) * ndim if layout is None else layout.strides


class Launch(NamedTuple):
    """A grid, the integers behind the tensors, and the options."""

    grid: tuple[int]
    numbers: tuple[int, ...]
    meta: dict
