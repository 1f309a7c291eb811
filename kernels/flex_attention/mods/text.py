"""Pieces of Triton text: kinds of numbers, literals, parentheses."""

import math
import re

import torch

FLOAT, INT, LONG, BOOL = "float", "int", "long", "bool"

TRITON_TYPE = {FLOAT: "tl.float32", INT: "tl.int32", LONG: "tl.int64", BOOL: "tl.int1"}

#: Integers that go round sooner than an int32.
NARROW = {torch.int8: "tl.int8", torch.uint8: "tl.uint8", torch.int16: "tl.int16", torch.uint16: "tl.uint16"}


def kind_of(dtype):
    """How a dtype is computed in a kernel: floats as float32, small integers as int32."""
    if dtype == torch.bool:
        return BOOL
    if dtype.is_floating_point:
        return FLOAT
    return LONG if dtype == torch.int64 else INT


def kind_of_number(x):
    """How a number of Python is computed."""
    return BOOL if isinstance(x, bool) else INT if isinstance(x, int) else FLOAT


def literal(x, kind, dtype=None):
    """A number's text, as ``kind``; an integer goes round as in ``dtype``, if there is one."""
    if kind == BOOL:
        return str(bool(x))
    if kind in (INT, LONG):
        ends = torch.iinfo(dtype or (torch.int32 if kind == INT else torch.int64))
        return str((int(x) - ends.min) % (ends.max - ends.min + 1) + ends.min)
    x = float(x)
    float32 = torch.tensor(x, dtype=torch.float64).to(torch.float32).item()
    if math.isinf(float32) or math.isnan(float32):
        return f'float("{float32}")'
    # Triton computes in float64 what meets a number outside the normal range of float32.
    return f"tl.full((), {x!r}, tl.float32)" if 0 < abs(x) < torch.finfo(torch.float32).tiny else repr(x)


def bare(text):
    """``text`` without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def is_call(text):
    """Whether ``text`` is a name or one call."""
    match = re.match(r"[\w.]+", text)
    rest = text[match.end() :] if match else text
    return bool(match) and (not rest or (rest[0] == "(" and bare(rest) != rest))


def filled(text, like):
    """A number in every element of a float32 tile as large as ``like``: Gluon's ``full`` would ask for a layout."""
    return f"tl.where({like} == {like}, {text}, {text}).to(tl.float32)"


def operand(text):
    """``text`` that can stand beside an operator: binary expressions bring their own parentheses."""
    return f"({text})" if text.startswith("-") else text


def contiguous(shape):
    """Strides of a tensor without gaps."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]
