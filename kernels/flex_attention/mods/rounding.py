"""Rules for what rounds or converts: quotients, remainders, whole numbers, dtypes."""

import math

import torch

from kernels.flex_attention.mods.errors import ModError
from kernels.flex_attention.mods.text import FLOAT, INT, LONG, NARROW, TRITON_TYPE, bare, literal, operand

aten = torch.ops.aten


def divide(f, node):
    """a / b, rounded as the node says."""
    mode = node.kwargs.get("rounding_mode")
    a, b = node.args[:2]
    kind = f.kind(node)
    if mode is None:
        # A product is one instruction, a quotient eight. Exact for powers of two; of a score the last bit does not matter, of
        # an index it does, because it may be rounded to a whole number next.
        divisor = f.constant(b) if f.is_constant(b) else 0
        if divisor and (math.frexp(divisor)[0] in (0.5, -0.5) or f.trace.depends.get(a, set()) & {"score", "grad"}):
            return f"({operand(f.cast(a, FLOAT))} * {literal(1 / divisor, FLOAT)})"
        if b in f.trace.numbers and f.trace.depends.get(a, set()) & {"score", "grad"}:  # one quotient a program
            return f"({operand(f.cast(a, FLOAT))} * (1.0 / {operand(f.cast(b, FLOAT))}))"
        return f"({operand(f.cast(a, FLOAT))} / {operand(f.cast(b, FLOAT))})"
    if mode == "floor":
        return floor_divide(f, node)
    if kind == FLOAT:
        return f"truncate({operand(f.cast(a, FLOAT))} / {operand(f.cast(b, FLOAT))})"
    return f"({operand(_whole(f, node, a))} // {operand(_whole(f, node, b))})"


def _rounded_down(name, symbol, of_fractions):
    """The rule of ``a // b`` or ``a % b`` as Python means them: Triton rounds towards zero, the same where neither is
    negative."""

    def rule(f, node):
        a, b = node.args[:2]
        if f.kind(node) == FLOAT:
            return of_fractions(f.cast(a, FLOAT), f.cast(b, FLOAT))
        x, y = _whole(f, node, a), _whole(f, node, b)
        if f.never_negative(a) and f.never_negative(b):
            return f"({operand(x)} {symbol} {operand(y)})"
        return f"{name}({bare(x)}, {bare(y)})"

    return rule


floor_divide = _rounded_down("floor_divide", "//", lambda a, b: f"tl.floor({operand(a)} / {operand(b)})")
remainder = _rounded_down("remainder", "%", lambda a, b: f"float_remainder({bare(a)}, {bare(b)})")


def fmod(f, node):
    """What a quotient rounded towards zero leaves."""
    if f.kind(node) != FLOAT:
        return f"({' % '.join(operand(_whole(f, node, x)) for x in node.args[:2])})"
    a, b = (operand(f.cast(x, FLOAT)) for x in node.args[:2])
    return f"({a} - truncate({a} / {b}) * {b})"


def _whole(f, node, x):
    """An operand of a quotient of integers, whose signs Triton wants alike: bytes beside others are of the result's type."""
    kind, dtype = f.kind(node), node.meta["val"].dtype
    text = f.cast(x, kind, dtype)
    if f.is_constant(x) or x.meta["val"].dtype != torch.uint8 or dtype == torch.uint8:
        return text
    return f"{operand(text)}.to({TRITON_TYPE[kind]})"


def rounded(pattern):
    """To whole numbers, which integers are."""

    def rule(f, node):
        text = f.cast(node.args[0], f.kind(node))
        decimals = node.kwargs.get("decimals", 0)
        if f.kind(node) != FLOAT:
            if decimals < 0:
                raise ModError("a mod rounds an integer to tens or more, which has no Triton equivalent here")
            return text
        if not decimals:
            return pattern.format(bare(text))
        by = literal(10.0 ** abs(decimals), FLOAT)
        there, back = "*/" if decimals > 0 else "/*"
        return f"({pattern.format(f'{operand(text)} {there} {by}')} {back} {by})"

    return rule


def convert(f, node):
    """Also between integers, of which numbers beside them do not make others."""
    a, dtype = node.args[0], node.meta["val"].dtype
    if f.kind(node) in (INT, LONG) and f.kind(a) == INT and not f.is_constant(a) and a.meta["val"].dtype != dtype:
        return f"{operand(f.cast(a, INT))}.to({NARROW.get(dtype, TRITON_TYPE[f.kind(node)])})"
    return f.cast(a, f.kind(node), dtype)


def bits_of(f, node):
    """The same 32 bits as another type."""
    a, dtype = node.args[0], node.meta["val"].dtype
    if {dtype, a.meta["val"].dtype} - {torch.float32, torch.int32}:
        raise ModError(f"a mod views {a.meta['val'].dtype} as {dtype}, can do so between float32 and int32")
    return f"{operand(f.cast(a, f.kind(a)))}.to({TRITON_TYPE[f.kind(node)]}, bitcast=True)"
