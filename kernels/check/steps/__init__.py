"""The lessons' own small checks: one a "Your turn" cell, each with one property and a diagnosis.

>>> check.step("01-guard", my_guard)
Your turn 01-guard: not written yet (line 3 of the cell still has `...`).

A step is a function of the learner's answer that returns what is wrong, or an empty string. It lives in the module of its
lesson, ``lesson_NN.py`` beside this file, and is registered there:

    @step("01-guard", "which lanes exist")
    def guard(answer):
        got = answer(torch.arange(8), 5)
        return "" if ... else "lane 5 of 5 elements counts as inside: the last index is N - 1"

What it is given is whatever the cell hands over: a Triton kernel or helper, a Python function, a tensor, a number.
"""

import ast
import functools
import importlib
import inspect
import textwrap
import warnings
from collections.abc import Callable
from typing import NamedTuple

from kernels.check.framework import explain


class Step(NamedTuple):
    """One check of a lesson: what it is about, and the function that finds what is wrong with an answer."""

    name: str
    about: str
    wrong: Callable[..., str]


_STEPS: dict[str, Step] = {}


def step(name: str, about: str):
    """Register the decorated function as the check of the "Your turn" cell ``name``, ``NN-topic``.

    about: what the learner writes, as a noun phrase that completes "… is right".
    """

    def register(wrong: Callable[..., str]) -> Callable[..., str]:
        if name in _STEPS:
            raise ValueError(f"name is {name!r}: a step of this name is registered already")
        _STEPS[name] = Step(name, about, wrong)
        return wrong

    return register


def find(name: str) -> Step:
    """The step of this name. ``ValueError`` with the names that there are, if there is none."""
    lesson = name.split("-")[0]
    try:
        importlib.import_module(f"kernels.check.steps.lesson_{lesson}")
    except ModuleNotFoundError as missing:
        if not missing.name.endswith(f"lesson_{lesson}"):
            raise
    if name not in _STEPS:
        known = ", ".join(sorted(known for known in _STEPS if known.startswith(f"{lesson}-"))) or "none"
        raise ValueError(f"name is {name!r}: the steps of lesson {lesson} are {known}")
    return _STEPS[name]


def verdict(name: str, *answer) -> str:
    """One line on a learner's answer: not written yet, what is wrong with it, or that it is right."""
    wanted = find(name)
    if place := unwritten(answer):
        return f"Your turn {name}: not written yet ({place})."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN that a check plants makes numpy warn
        try:
            wrong = wanted.wrong(*answer)
        except Exception as raised:  # a learner's error is explained, never raised
            said, means = explain(raised)
            wrong = f"{said}: {means}"
    return f"Your turn {name}: not yet. {wrong}" if wrong else f"Your turn {name}: right, {wanted.about}."


def unwritten(answers) -> str:
    """Where an answer still has the stub's ``...``, in words; empty if nowhere."""
    for answer in answers:
        if answer is ...:
            return "the value is still `...`"
        function = getattr(answer, "fn", answer)  # a Triton kernel keeps its Python function
        if inspect.isfunction(inspect.unwrap(function)) and (line := _line_with_dots(function)):
            return f"line {line} of the cell's function still has `...`"
    return ""


def _line_with_dots(function) -> int:
    """The line of ``function`` (its decorator or ``def`` is line 1) with an ``...`` that is no index; 0 if none."""
    if isinstance(function, functools.partial):
        function = function.func
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # no source to look at, so nothing that is known to be unwritten
        return 0
    indices = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    dots = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value is ... and id(n) not in indices]
    return min(dots, default=0)
