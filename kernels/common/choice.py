"""Which backend takes a problem: decided once, and said in words by ``explain``.

A backend has two functions of a problem (everything that the choice depends on, hashable):

    reason_not(problem)   why it cannot take the problem, or is known not to be worth it, as text, or None
    cost(problem)         the predicted time, in a unit that the backends of an operator share, and why it is more
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """A predicted time, and what makes it that long, as text."""

    time: float
    because: str = ""


class Choice(NamedTuple):
    """The name of the backend that was chosen, and of the others why not."""

    name: str
    passed_over: dict[str, str]

    def __str__(self):
        return "\n".join(f"not {name}: {reason}" for name, reason in self.passed_over.items())


def choose(backends, problem):
    """The ``Choice`` among ``{name: backend}``: the cheapest that can take the problem, the first of equal ones.

    Raises:
        ValueError: none can take it.
    """
    passed_over, costs = {}, {}
    for name, backend in backends.items():
        if reason := backend.reason_not(problem):
            passed_over[name] = reason
        else:
            costs[name] = backend.cost(problem)
    if not costs:
        raise ValueError("; ".join(f"{name}: {reason}" for name, reason in passed_over.items()))
    best = next(iter(costs))
    for name in costs:  # compared one by one: dynamo traces no ``min`` with a key
        best = name if costs[name].time < costs[best].time else best
    slower = {name: cost.because for name, cost in costs.items() if name != best and cost.because}
    return Choice(best, {name: reason for name in backends if (reason := passed_over.get(name) or slower.get(name))})
