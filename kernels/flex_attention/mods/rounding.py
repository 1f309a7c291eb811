"""Rules for what rounds or converts: quotients, remainders, whole numbers, dtypes."""

import math

import torch

from kernels.flex_attention.mods.errors import ModError
from kernels.flex_attention.mods.text import FLOAT, INT, LONG, NARROW, TRITON_TYPE, bare, literal, operand

aten = torch.ops.aten


def _rounded_quotient(symbol, of_fractions, down=None):
    """The rule of a quotient's whole number or of what that leaves.

    Triton's ``symbol`` rounds towards zero, the same where neither integer is negative; ``down``: the function that rounds as
    Python does, where that is asked for.
    """

    def rule(f, node):
        a, b = node.args[:2]
        if f.kind(node) == FLOAT:
            return of_fractions(*(operand(f.cast(x, FLOAT)) for x in (a, b)))
        x, y = _whole(f, node, a), _whole(f, node, b)
        if down and not (f.never_negative(a) and f.never_negative(b)):
            return f"{down}({bare(x)}, {bare(y)})"
        return f"({operand(x)} {symbol} {operand(y)})"

    return rule


floor_divide = _rounded_quotient("//", lambda a, b: f"tl.floor({a} / {b})", down="floor_divide")
remainder = _rounded_quotient("%", lambda a, b: f"float_remainder({bare(a)}, {bare(b)})", down="remainder")
truncated = _rounded_quotient("//", lambda a, b: f"truncate({a} / {b})")
fmod = _rounded_quotient("%", lambda a, b: f"({a} - truncate({a} / {b}) * {b})")
_ROUNDED = {"floor": floor_divide, "trunc": truncated}


def divide(f, node):
    """a / b, rounded as the node says."""
    if mode := node.kwargs.get("rounding_mode"):
        return _ROUNDED[mode](f, node)
    # A product is one instruction, a quotient eight. Exact for powers of two; of a score the last bit does not matter, of
    # an index it does, because it may be rounded to a whole number next.
    a, b = node.args[:2]
    of_score = f.trace.depends.get(a, set()) & {"score", "grad"}
    divisor = f.constant(b) if f.is_constant(b) else 0
    x, y = operand(f.cast(a, FLOAT)), operand(f.cast(b, FLOAT))
    if divisor and (math.frexp(divisor)[0] in (0.5, -0.5) or of_score):
        return f"({x} * {literal(1 / divisor, FLOAT)})"
    if b in f.trace.numbers and of_score:  # one quotient a program
        return f"({x} * (1.0 / {y}))"
    return f"({x} / {y})"


def divide_as_typed(f, node):
    """a / b of one type: of integers an integer, rounded towards zero."""
    return (divide if f.kind(node) == FLOAT else truncated)(f, node)


def gcd(f, node):
    """The greatest common divisor, by as many steps as Euclid's algorithm may need for the type, or for a known number."""
    kind, dtype = f.kind(node), node.meta["val"].dtype
    texts, smaller = [], -torch.iinfo(dtype).min or torch.iinfo(dtype).max
    for x in node.args[:2]:
        if f.is_constant(x):
            texts.append(literal(f.constant(x), kind))
            smaller = min(smaller, abs(f.constant(x)))
        else:
            texts.append(f"{operand(f.cast(x, kind))}.to({TRITON_TYPE[kind]})")
    text = f"gcd({', '.join(texts)}, {_steps(smaller)})"
    return f"{text}.to({NARROW[dtype]})" if dtype in NARROW else text


def _steps(smaller):
    """Divisions that Euclid's algorithm needs at most: two Fibonacci numbers take most (Lamé), and one where the first
    number is the smaller."""
    steps, number, following = 1, 1, 2
    while number <= smaller:
        steps, number, following = steps + 1, following, number + following
    return steps


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
