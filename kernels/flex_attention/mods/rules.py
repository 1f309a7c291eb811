"""How each operation of torch is written in Triton. A rule gets the writer of a function and the node, and returns text."""

import math

import torch

from kernels.flex_attention.mods import rounding
from kernels.flex_attention.mods.errors import ModError
from kernels.flex_attention.mods.text import BOOL, FLOAT, bare, filled, kind_of, literal, operand

aten, prims = torch.ops.aten, torch.ops.prims


def _unary(pattern, kind=None):
    def rule(f, node):
        want = kind or f.kind(node)
        text = f.cast(node.args[0], want)
        return pattern.format(bare(text) if "({})" in pattern else operand(text))

    return rule


def _absolute(f, node):
    text = bare(f.cast(node.args[0], f.kind(node)))
    return f"tl.abs({text})" if f.kind(node) == FLOAT else f"whole_abs({text})"


def _binary(symbol, *, reverse=False):
    def rule(f, node):
        kind, dtype = f.kind(node), node.meta["val"].dtype
        a, b, *alpha = node.args
        a, b = (b, a) if reverse else (a, b)
        if symbol == "*" and f.is_constant(b) and f.constant(b) == 1:
            return f.cast(a, kind)
        alpha = node.kwargs.get("alpha", alpha[0] if alpha else 1)
        a, b = operand(f.cast(a, kind, dtype)), operand(f.cast(b, kind, dtype))
        return f"({a} {symbol} {b if alpha == 1 else f'{b} * {literal(alpha, kind)}'})"

    return rule


def _add(f, node):
    """a + b; of two conditions "or", as torch adds them: Triton would add single bits and lose the carry."""
    return _logical("|")(f, node) if f.kind(node) == BOOL else _binary("+")(f, node)


def _multiply(f, node):
    """a * b; of two conditions "and"."""
    return _logical("&")(f, node) if f.kind(node) == BOOL else _binary("*")(f, node)


def _bits(symbol):
    """& | ^; of a condition with a constant, the condition or the constant itself."""

    def rule(f, node):
        a, b = node.args[:2]
        if f.kind(node) == BOOL and symbol in "&|" and (f.is_constant(a) or f.is_constant(b)):
            constant, other = (a, b) if f.is_constant(a) else (b, a)
            if bool(f.constant(constant)) == (symbol == "&"):
                return f.cast(other, BOOL)
        return _binary(symbol)(f, node)

    return rule


def _compare(symbol):
    def rule(f, node):
        dtype = _common(*node.args[:2])
        a, b = (operand(f.cast(x, kind_of(dtype), dtype)) for x in node.args[:2])
        return f"({a} {symbol} {b})"

    return rule


def _call(function, kind=None):
    def rule(f, node):
        want = kind or f.kind(node)
        arguments = (bare(f.cast(a, want)) for a in node.args[:2])
        return f"{function}({', '.join(arguments)})"

    return rule


def _extreme(function):
    def rule(f, node):
        kind, dtype = f.kind(node), node.meta["val"].dtype
        return _pick(function, f.cast(node.args[0], kind, dtype), f.cast(node.args[1], kind, dtype), kind)

    return rule


def _pick(function, a, b, kind):
    nan = ", propagate_nan=tl.PropagateNan.ALL" if kind == FLOAT else ""
    return f"tl.{function}({bare(a)}, {bare(b)}{nan})"


def _clamp(f, node):
    kind = f.kind(node)
    bounds = [*node.args[1:], None, None][:2]
    low, high = (bounds[i] if bounds[i] is not None else node.kwargs.get(name) for i, name in enumerate(("min", "max")))
    text = f.cast(node.args[0], kind)
    text = text if low is None else _pick("maximum", text, f.cast(low, kind), kind)
    return text if high is None else _pick("minimum", text, f.cast(high, kind), kind)


def _relu(f, node):
    return _pick("maximum", f.cast(node.args[0], f.kind(node)), literal(0, f.kind(node)), f.kind(node))


def _shrink_backward(f, node):
    """The gradient where |x| is larger than the bound, 0 elsewhere."""
    grad, x, bound = node.args
    inside = f"tl.abs({bare(f.cast(x, FLOAT))}) <= {literal(bound, FLOAT)}"
    return f"tl.where({inside}, 0.0, {bare(f.cast(grad, FLOAT))})"


def _where(f, node):
    condition, a, b = node.args
    kind, dtype = f.kind(node), node.meta["val"].dtype
    return f"tl.where({bare(f.cast(condition, BOOL))}, {bare(f.cast(a, kind, dtype))}, {bare(f.cast(b, kind, dtype))})"


def _masked_fill(f, node):
    a, condition, value = node.args
    kind = f.kind(node)
    return f"tl.where({bare(f.cast(condition, BOOL))}, {bare(f.cast(value, kind))}, {bare(f.cast(a, kind))})"


def _power(f, node):
    a, b = node.args[:2]
    kind = f.kind(node)
    exponent = f.constant(b) if f.is_constant(b) else None
    base = operand(f.cast(a, kind))
    if exponent == 1:
        return base
    if exponent == 2 and base.isidentifier():
        return f"({base} * {base})"
    if exponent == 3 and base.isidentifier():
        return f"({base} * {base} * {base})"
    if kind == FLOAT and exponent == 0.5:
        return f"tl.sqrt({bare(base)})"
    if kind == FLOAT and exponent == -0.5:
        return f"tl.rsqrt({bare(base)})"
    if kind == FLOAT and exponent == -1:
        return f"(1.0 / {base})"
    if kind == FLOAT and f.is_constant(a) and f.constant(a) > 0:
        return f"tl.exp2({operand(f.cast(b, FLOAT))} * {literal(math.log2(f.constant(a)), FLOAT)})"
    if kind == FLOAT:
        first, second = bare(base), bare(f.cast(b, FLOAT))
        if f.is_constant(a) and not f.is_constant(b):
            first = filled(first, f.cast(b, FLOAT))
        if f.is_constant(b) and not f.is_constant(a):
            second = filled(second, base)
        return f"power({first}, {second})"
    return f"whole_power({bare(base)}, {bare(f.cast(b, kind))})"


def _invert(f, node):
    text = operand(f.cast(node.args[0], f.kind(node)))
    return f"({text} == 0)" if f.kind(node) == BOOL else f"(~{text})"


def _logical(symbol):
    def rule(f, node):
        return f"({operand(f.cast(node.args[0], BOOL))} {symbol} {operand(f.cast(node.args[1], BOOL))})"

    return rule


def _copy(f, node):
    return f.cast(node.args[0], f.kind(node))


def _sign(f, node):
    kind = f.kind(node)
    text = f"sign({bare(f.cast(node.args[0], kind))})"
    return f"{text}.to(tl.float32)" if kind == FLOAT else text


def _sign_bit(f, node):
    a = node.args[0]
    return f"sign_bit({bare(f.cast(a, FLOAT))})" if f.kind(a) == FLOAT else f"({operand(f.cast(a, f.kind(a)))} < 0)"


def _index(f, node):
    table, indices = node.args
    return f.load(table, indices)


def _select(f, node):
    raise ModError(
        "a mod takes a part of something that depends on the query or the key: index every dimension at once"
    )


def _common(a, b):
    """The dtype in which two values are compared: torch's promotion."""
    example = [
        torch.zeros(x.meta["val"].shape, dtype=x.meta["val"].dtype) if isinstance(x, torch.fx.Node) else x
        for x in (a, b)
    ]
    return torch.result_type(*example)


RULES = {
    aten.add: _add,
    aten.sub: _binary("-"),
    aten.rsub: _binary("-", reverse=True),
    aten.mul: _multiply,
    aten.div: rounding.divide,
    aten.floor_divide: rounding.floor_divide,
    aten.remainder: rounding.remainder,
    aten.fmod: rounding.fmod,
    aten.gcd: rounding.gcd,
    aten.pow: _power,
    aten.neg: _unary("(-{})"),
    aten.abs: _absolute,
    aten.sign: _sign,
    aten.sgn: _sign,
    aten.reciprocal: _unary("(1.0 / {})", FLOAT),
    aten.exp: _unary("tl.exp({})", FLOAT),
    aten.exp2: _unary("tl.exp2({})", FLOAT),
    aten.expm1: _unary("expm1({})", FLOAT),
    aten.log: _unary("tl.log({})", FLOAT),
    aten.log2: _unary("tl.log2({})", FLOAT),
    aten.log10: _unary("(tl.log2({}) * 0.30102999566398120)", FLOAT),
    aten.log1p: _unary("log1p({})", FLOAT),
    aten.sqrt: _unary("tl.sqrt({})", FLOAT),
    aten.rsqrt: _unary("tl.rsqrt({})", FLOAT),
    aten.sin: _unary("tl.sin({})", FLOAT),
    aten.cos: _unary("tl.cos({})", FLOAT),
    aten.tanh: _unary("tanh({})", FLOAT),
    aten.sigmoid: _unary("tl.sigmoid({})", FLOAT),
    aten.erf: _unary("tl.erf({})", FLOAT),
    aten.erfc: _unary("erfc({})", FLOAT),
    aten.tan: _unary("tan({})", FLOAT),
    aten.asin: _unary("asin({})", FLOAT),
    aten.acos: _unary("acos({})", FLOAT),
    aten.atan: _unary("atan({})", FLOAT),
    aten.atan2: _call("atan2", FLOAT),
    aten.sinh: _unary("sinh({})", FLOAT),
    aten.cosh: _unary("cosh({})", FLOAT),
    aten.asinh: _unary("asinh({})", FLOAT),
    aten.acosh: _unary("acosh({})", FLOAT),
    aten.atanh: _unary("atanh({})", FLOAT),
    aten.hypot: _call("hypot", FLOAT),
    aten.hardshrink_backward: _shrink_backward,
    aten.softshrink_backward: _shrink_backward,
    aten.floor: rounding.rounded("tl.floor({})"),
    aten.ceil: rounding.rounded("tl.ceil({})"),
    aten.trunc: rounding.rounded("truncate({})"),
    aten.round: rounding.rounded("round_half_even({})"),
    aten.signbit: _sign_bit,
    aten.relu: _relu,
    aten.isnan: lambda f, node: "({0} != {0})".format(operand(f.cast(node.args[0], FLOAT))),
    aten.isneginf: lambda f, node: f'({operand(f.cast(node.args[0], FLOAT))} == float("-inf"))',
    aten.isposinf: lambda f, node: f'({operand(f.cast(node.args[0], FLOAT))} == float("inf"))',
    prims.abs: _absolute,
    prims.neg: _unary("(-{})"),
    prims.div: rounding.divide_as_typed,
    prims.convert_element_type: rounding.convert,
    prims.where: _where,
    prims.fmax: _call("float_max", FLOAT),
    prims.fmin: _call("float_min", FLOAT),
    prims.signbit: _sign_bit,
    aten.isinf: lambda f, node: f'(tl.abs({bare(f.cast(node.args[0], FLOAT))}) == float("inf"))',
    aten.eq: _compare("=="),
    aten.ne: _compare("!="),
    aten.lt: _compare("<"),
    aten.le: _compare("<="),
    aten.gt: _compare(">"),
    aten.ge: _compare(">="),
    aten.logical_and: _bits("&"),
    aten.logical_or: _bits("|"),
    aten.logical_xor: _logical("!="),
    aten.logical_not: lambda f, node: f"({operand(f.cast(node.args[0], BOOL))} == 0)",
    aten.bitwise_not: _invert,
    aten.bitwise_and: _bits("&"),
    aten.bitwise_or: _bits("|"),
    aten.bitwise_xor: _bits("^"),
    aten.bitwise_left_shift: _binary("<<"),
    aten.bitwise_right_shift: _binary(">>"),
    aten.__and__: _bits("&"),
    aten.__or__: _bits("|"),
    aten.__xor__: _bits("^"),
    aten.__lshift__: _binary("<<"),
    aten.__rshift__: _binary(">>"),
    aten.where: _where,
    aten.masked_fill: _masked_fill,
    aten.clamp: _clamp,
    aten.clamp_min: lambda f, node: _pick("maximum", *(f.cast(a, f.kind(node)) for a in node.args), f.kind(node)),
    aten.clamp_max: lambda f, node: _pick("minimum", *(f.cast(a, f.kind(node)) for a in node.args), f.kind(node)),
    aten.maximum: _extreme("maximum"),
    aten.minimum: _extreme("minimum"),
    aten._to_copy: rounding.convert,
    aten.view: _copy,
    aten._unsafe_view: _copy,
    aten.reshape: _copy,
    aten.expand: _copy,
    aten.squeeze: _copy,
    aten.unsqueeze: _copy,
    aten.permute: _copy,
    aten.index: _index,
    aten.select: _select,
}

RULES = {
    getattr(packet, overload): rule for packet, rule in RULES.items() for overload in packet.overloads()
}  # a rule serves all spellings of its operation: with a tensor, with a number
RULES[aten.view.dtype] = rounding.bits_of
