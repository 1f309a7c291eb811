"""The lessons' own small checks: one a "Your turn" cell, each with one property and a diagnosis.

>>> check.step("01-guard", my_guard)
Your turn 01-guard: not written yet (line 3 of the cell still has `...`).

A step is a function of the learner's answer that returns what is wrong, or an empty string. It lives in the module of its
lesson, ``lesson_NN.py`` beside this file, and is registered there:

    @step("01-guard", "which lanes exist")
    def guard(answer):
        got = block(answer, torch.arange(8), 5)
        return difference("mask", got, [1, 1, 1, 1, 1, 0, 0, 0])

What it is given is whatever the cell hands over: a Triton kernel or helper, a Python function, a tensor, a number.
``block``, ``launch``, ``call`` and ``difference`` in ``helpers.py`` run an answer so that no address can end the process,
and say in a sentence what came out wrong.
"""

import ast
import functools
import importlib
import inspect
import textwrap
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

from kernels import runtime
from kernels.check import lessons
from kernels.check.compiling import compiled, refusal
from kernels.check.experiments import without_other
from kernels.check.explanations import explain
from kernels.lab.compile_report import Prepared, prepare
from kernels.lab.trace import Undefined


class Step(NamedTuple):
    """One check of a lesson: what it is about, and the function that finds what is wrong with an answer."""

    name: str
    about: str
    wrong: Callable[..., str]


class Diagnosis(Exception):
    """What is wrong with an answer, as a finished sentence, from wherever in a check it was found."""


_STEPS: dict[str, Step] = {}
_LAUNCHED: dict[object, Prepared | ValueError] = {}  # by the step under way: each kernel's first launch


def step(name: str, about: str):
    """Register the decorated function as the check of the "Your turn" cell ``name``, ``NN-topic``.

    about: what the learner writes, as a noun phrase that completes "right, …".
    """

    def register(wrong: Callable[..., str]) -> Callable[..., str]:
        if name in _STEPS:
            raise ValueError(f"name is {name!r}: a step of this name is registered already")
        _STEPS[name] = Step(name, about, wrong)
        return wrong

    return register


def find(name: str) -> Step:
    """The step of this name. ``ValueError`` with the names that there are, if there is none."""
    known = of_lesson(name.split("-")[0])
    if data := lessons.data_of(name, "TURNS"):
        return Step(name, data.about, functools.partial(lessons.check_turn, name, data))
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ValueError(f"name is {name!r}: the steps of lesson {name.split('-')[0]} are {there}")
    return known[name]


def of_lesson(lesson: str) -> dict[str, Step]:
    """The steps of a lesson, ``"01"``, by name; empty where it has none."""
    module = f"kernels.check.steps.lesson_{lesson}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module:
            raise
    return {name: step for name, step in _STEPS.items() if name.startswith(f"{lesson}-")}


def verdict(name: str, *answer) -> str:
    """One line on a learner's answer: not written yet, what is wrong with it, or that it is right."""
    wanted = find(name)
    takes = list(inspect.signature(wanted.wrong).parameters.values())
    if not any(one.kind is one.VAR_POSITIONAL for one in takes):
        least = sum(one.default is one.empty for one in takes)
        if not least <= len(answer) <= len(takes):
            names = ", ".join(one.name for one in takes)
            things = "one thing" if len(takes) == 1 else f"{len(takes)} things"
            return f"Your turn {name}: not checked. The check takes {things} ({names}), and was given {len(answer)}."
    if place := unwritten(answer):
        return f"Your turn {name}: not written yet ({place})."
    _LAUNCHED.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN that a check plants makes numpy warn
        for poison in Undefined.POISONS:
            with Undefined(poison) as undefined:
                wrong = _wrong(wanted, answer)
            if wrong or not undefined.lines:
                break
        if wrong and undefined.lines:  # is it for what masked lanes hold? With 0 in them, is it right?
            with Undefined(0.0):
                wrong = _wrong(wanted, answer) or without_other(undefined.lines)
        if wrong:
            wrong = next(filter(None, map(_misjoined, answer)), wrong)
    wrong = wrong or _refused()
    if not wrong:
        return f"Your turn {name}: right, {wanted.about}."
    return f"Your turn {name}: not yet. {wrong}" + "." * (not wrong.rstrip().endswith((".", "?", "!")))


def note_launch(kernel, *arguments, **constants) -> None:
    """Remember what a step has launched: what the interpreter takes is shown to a GPU's compiler, too."""
    if runtime.interpreted and kernel not in _LAUNCHED:
        try:
            _LAUNCHED[kernel] = prepare(kernel, *arguments, **constants)
        except ValueError as error:
            _LAUNCHED[kernel] = error


def _refused() -> str:
    """What a GPU's compiler says to the kernels that a step has launched, in a sentence; empty where it takes them."""
    for prepared in _LAUNCHED.values():
        if isinstance(prepared, ValueError):
            return f"The numbers are right, but no GPU's compiler can be shown this: {prepared}"
        if isinstance(made := compiled(prepared, (90,)), str):
            found = refusal("it", made, "")
            return f"The numbers are right, but {found.where}. {found.cause[0].upper()}{found.cause[1:]}"
    return ""


def _wrong(wanted: Step, answer) -> str:
    try:
        return wanted.wrong(*answer)
    except Diagnosis as found:
        return str(found)
    except Exception as raised:  # a learner's error is explained, never raised
        return _explained(raised, answer)


def _misjoined(answer) -> str:
    """Whether a kernel joins conditions on blocks in a way that Python reads otherwise, in a sentence; else empty.

    Python asks `a and b` for one truth. A block has many, and what remains of the two is the second.
    """
    for function in _functions(answer):
        tree = _tree(function)
        inside = [n for n in ast.walk(tree) if isinstance(n, ast.Call) or isinstance(n, ast.Assign)] if tree else []
        for node in (part for one in inside for part in ast.walk(one)):
            if isinstance(node, ast.BoolOp):
                word = "and" if isinstance(node.op, ast.And) else "or"
                sign = "&" if word == "and" else "|"
                return (
                    f"`{ast.unparse(node)}`: use `{sign}`, with each comparison in parentheses. `{word}` asks for one truth, "
                    "and of two blocks it keeps only one."
                )
            if isinstance(node, ast.Compare) and any(map(_is_join, [node.left, *node.comparators])):
                said = ast.unparse(node).replace("(", "").replace(")", "")
                return f"`{said}`: `&` and `|` bind more tightly than a comparison. Put each comparison in parentheses."
    return ""


def _is_join(node) -> bool:
    """Whether a block is joined to the wrong thing: `inside & offs <= N` without parentheses."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))


def _functions(answer) -> list:
    """The kernels and Triton functions behind an answer: itself, or those of its cell that it names."""
    function = _python_function(answer)
    if function is None:
        return []
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    found = [answer, *(other for other in named if _cell(other) == function.__code__.co_filename)]
    return [_python_function(one) for one in found if hasattr(one, "fn")]


def _tree(function):
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def _explained(raised: Exception, answer) -> str:
    said, means = explain(raised)
    if " of your " in said:
        return f"{said}: {means}"
    if "addresses of shape" in said:  # in the check's own tl.store of what a helper returns
        shape, wanted = (said.split(word)[1].split("]")[0] for word in ("make them [", "of shape ["))
        return (
            f"The block that it returns has the shape [{shape}], and the tile that it was given [{wanted}]: a column and a "
            "row have both axes already, so look at each [:, None] and [None, :]"
        )
    # No line of the learner's is to blame: what they handed over is of another kind than the check expects.
    return f"The check cannot use what it was given ({', '.join(map(described, answer))}): {said}"


def described(value) -> str:
    """What a thing is, in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{value!r}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {_python_function(value).__name__}" if _python_function(value) else f"{value!r}"
    return f"a {type(value).__name__}"


def unwritten(answers) -> str:
    """Where an answer still has the stub's ``...``, in words; empty if nowhere."""
    return next(filter(None, (_unwritten(answer, set()) for answer in answers)), "")


def _unwritten(answer, seen: set[int]) -> str:
    if answer is ... or (isinstance(answer, str) and answer.strip() == "..."):
        return "the value is still `...`"
    if isinstance(answer, (tuple, list, dict)):
        parts = answer.values() if isinstance(answer, dict) else answer
        return "a value is still `...`" if any(_unwritten(part, seen) for part in parts) else ""
    if isinstance(answer, functools.partial):
        return _unwritten(answer.func, seen) or _unwritten(list(answer.args), seen)
    if id(answer) in seen:
        return ""
    seen.add(id(answer))
    if not isinstance(answer, type) and type(answer).__module__ == "__main__":
        answer = type(answer)  # an object of a class that the cell defines
    if isinstance(answer, type):
        parts = [getattr(part, "__func__", part) for part in vars(answer).values()]
        return next(filter(None, (_unwritten(part, seen) for part in parts if _python_function(part))), "")
    function = _python_function(answer)
    if function is None:
        return ""
    if (line := _line_with_dots(function)) is not None:
        return f"line {line} of the cell still has `...`" if line else "it still has `...`"
    # A launcher is written where its kernel is: look at the functions of the same cell that it names, too.
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    same = (other for other in named if _cell(other) == function.__code__.co_filename)
    return next(filter(None, (_unwritten(other, seen) for other in same)), "")


def _python_function(value):
    """The Python function behind a function, a method or a Triton kernel; None for anything else."""
    value = getattr(value, "fn", value) if not isinstance(value, type) else value  # a Triton kernel keeps its own
    value = getattr(value, "__func__", value)
    value = inspect.unwrap(value) if callable(value) else value
    return value if inspect.isfunction(value) else None


def _cell(value) -> str:
    function = _python_function(value)
    return function.__code__.co_filename if function else ""


def _line_with_dots(function) -> int | None:
    """The cell's line that has an ``...`` which is no index; 0 if there is one, nobody knows where; None if none."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # no source, or a lambda amid an expression: its constants tell
        return 0 if ... in function.__code__.co_consts else None
    indices = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    dots = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value is ... and id(n) not in indices]
    return first + min(dots) - 1 if dots else None
