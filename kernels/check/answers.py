"""What a lesson's reader hands over: whether it is written yet, what it is, and where two answers differ."""

import ast
import inspect
import textwrap
from fractions import Fraction

import torch

from kernels.lab import _triton_private

#: The kinds of numbers, each of which may stand for those behind it, and what to do where one mustn't.
KINDS = ("truth values", "whole numbers", "numbers")
OTHERWISE = ("compare something", "divide with //")


def unwritten(answers) -> str:
    """Where an answer still has the stub's ``...``, in words; empty if nowhere."""
    seen: set = set()
    return next(filter(None, (_unwritten(answer, seen) for answer in answers)), "")


def _unwritten(answer, seen: set) -> str:
    if answer is ...:
        return "the value is still `...`"
    function = _triton_private.python_function(answer)
    if function is None or function in seen:
        return ""
    seen.add(function)
    if (line := _line_with_dots(function)) is not None:
        return f"line {line} of the cell still has `...`" if line else "it still has `...`"
    # A launcher is written where its kernel is: look at the functions of the same cell that it names, too.
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    same = (other for other in named if _cell(other) == function.__code__.co_filename)
    return next(filter(None, (_unwritten(other, seen) for other in same)), "")


def _cell(value) -> str:
    function = _triton_private.python_function(value)
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


def described(value) -> str:
    """What a thing is, in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{value!r}"
    if callable(value):
        function = _triton_private.python_function(value)
        return f"the function {function.__name__}" if function else f"{value!r}"
    return f"a {type(value).__name__}"


def difference(name: str, got, expected, *, tolerance: float = 1e-5) -> str:
    """What is wrong with ``got``, in a sentence that names the first wrong element; empty if nothing is.

    got, expected: tensors, lists or numbers. An element is wrong where it is further from ``expected`` than ``tolerance``
    times its size and the root mean square of all. NaN is wrong, except where it is expected. Where whole numbers are
    expected, numbers with a point are wrong, and where truth values are, all others.
    """
    if got is None:
        return f"{name} is None: the function returns nothing."
    try:
        got = torch.as_tensor(float(got) if isinstance(got, Fraction) else got).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return f"{name} is {described(got)}, and numbers are asked for."
    expected = torch.as_tensor(expected).detach().cpu()
    if got.shape != expected.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}."
    kinds = _kind(got), _kind(expected)
    got, expected = got.double(), expected.double()
    finite = expected[expected.isfinite()]
    scale = finite.square().mean().sqrt() if finite.numel() else 0.0
    near = (got - expected).abs() <= tolerance * (expected.abs() + scale)
    near = (near & expected.isfinite()) | (got == expected)
    wrong = ~(near | (got.isnan() & expected.isnan()))
    if not wrong.any():
        if kinds[0] <= kinds[1] or not got.numel():
            return ""
        asked, given = KINDS[kinds[1]], KINDS[kinds[0]]
        return f"{name} must hold {asked}, and holds {given}: {OTHERWISE[kinds[1]]}."
    place = tuple(wrong.nonzero()[0].tolist())
    element = f"{name}[{', '.join(map(str, place))}]" if place else name
    ours, theirs = _number(got[place], expected[place])
    said = f"{element} is {ours}, expected {theirs}"
    if int(wrong.sum()) == 1 or not place:
        return f"{said}."
    return f"{said} ({int(wrong.sum())} of {wrong.numel()} elements are wrong, this one first)."


def _kind(x: torch.Tensor) -> int:
    """Of which of ``KINDS`` the numbers of a tensor are."""
    return 0 if x.dtype == torch.bool else 2 if x.dtype.is_floating_point else 1


def _number(*numbers) -> list[str]:
    """Numbers in few digits, in more where few would make two of them the same; integers in all of theirs."""
    if all(float(number).is_integer() for number in numbers):
        return [f"{number.item():.0f}" for number in numbers]
    for digits in (3, 6, 9, 17):
        texts = [f"{number.item():.{digits}g}" for number in numbers]
        if len(set(texts)) == len(texts):
            break
    return texts
