"""How each operation of torch is written in Triton: one table, ``RULES``, operation to rule.

A rule is called with the writer of a function (``emit.Function``) and a node, and returns text. First come the pieces of
text, then the rules of what rounds or converts, then the others; the table is the end.
"""

import math
import re

import torch

from kernels.flex_attention.mods.errors import ModError

aten, prims = torch.ops.aten, torch.ops.prims

FLOAT, INT, LONG, BOOL = "float", "int", "long", "bool"

TRITON_TYPE = {FLOAT: "tl.float32", INT: "tl.int32", LONG: "tl.int64", BOOL: "tl.int1"}

#: Integers that overflow sooner than an int32.
NARROW = {torch.int8: "tl.int8", torch.uint8: "tl.uint8", torch.int16: "tl.int16", torch.uint16: "tl.uint16"}


def kind_of(dtype):
    """How a dtype is computed in a kernel: floats as float32, small integers as int32."""
    if dtype == torch.bool:
        return BOOL
    if dtype.is_floating_point:
        return FLOAT
    return LONG if dtype == torch.int64 else INT


def literal(x, kind, dtype=None):
    """A number's text, as ``kind``; an integer wraps around as in ``dtype``, if there is one."""
    if kind == BOOL:
        return str(bool(x))
    if kind in (INT, LONG):
        ends = torch.iinfo(dtype or (torch.int32 if kind == INT else torch.int64))
        return str((int(x) - ends.min) % (ends.max - ends.min + 1) + ends.min)
    x = float(x)
    float32 = torch.tensor(x, dtype=torch.float64).to(torch.float32).item()
    if math.isinf(float32) or math.isnan(float32):
        return f'float("{float32}")'
    # Triton computes in float64 with a number outside the normal range of float32.
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
    """A number in every element of a float32 tile as large as ``like``: Gluon's ``full`` would need a layout."""
    return f"tl.where({like} == {like}, {text}, {text}).to(tl.float32)"


def operand(text):
    """``text`` that can stand beside an operator: binary expressions bring their own parentheses."""
    return f"({text})" if text.startswith("-") else text


# Quotients, remainders, whole numbers, dtypes.


def _rounded_quotient(symbol, of_fractions, down=None):
    """The rule of a quotient's whole number or of its remainder.

    Triton's ``symbol`` rounds towards zero, the same where neither integer is negative; ``down``: the function that rounds as
    Python does, if that is what torch does.
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


def _whole(f, node, x):
    """An operand of a quotient of integers, whose signs Triton wants alike: bytes beside others are of the result's type."""
    kind, dtype = f.kind(node), node.meta["val"].dtype
    text = f.cast(x, kind, dtype)
    if f.is_constant(x) or x.meta["val"].dtype != torch.uint8 or dtype == torch.uint8:
        return text
    return f"{operand(text)}.to({TRITON_TYPE[kind]})"


_floor_divide = _rounded_quotient("//", lambda a, b: f"tl.floor({a} / {b})", down="floor_divide")
_truncated = _rounded_quotient("//", lambda a, b: f"truncate({a} / {b})")


def _divide(f, node):
    """a / b, rounded as the node says."""
    if mode := node.kwargs.get("rounding_mode"):
        return {"floor": _floor_divide, "trunc": _truncated}[mode](f, node)
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


def _gcd(f, node):
    """The greatest common divisor, by as many steps as Euclid's algorithm may need for the type, or for a known number."""
    kind, dtype = f.kind(node), node.meta["val"].dtype
    texts, smaller = [], -torch.iinfo(dtype).min or torch.iinfo(dtype).max
    for x in node.args[:2]:
        if f.is_constant(x):
            texts.append(literal(f.constant(x), kind))
            smaller = min(smaller, abs(f.constant(x)))
        else:
            texts.append(f"{operand(f.cast(x, kind))}.to({TRITON_TYPE[kind]})")
    # Two Fibonacci numbers take most divisions (Lamé), and one more where the first number is the smaller.
    steps, number, following = 1, 1, 2
    while number <= smaller:
        steps, number, following = steps + 1, following, number + following
    text = f"gcd({', '.join(texts)}, {steps})"
    return f"{text}.to({NARROW[dtype]})" if dtype in NARROW else text


def _rounded(function):
    """To whole numbers, which integers are."""

    def rule(f, node):
        text, decimals = f.cast(node.args[0], f.kind(node)), node.kwargs.get("decimals", 0)
        if f.kind(node) != FLOAT:
            if decimals < 0:
                raise ModError("a mod rounds an integer to tens or more, which has no Triton equivalent here")
            return text
        if not decimals:
            return f"{function}({bare(text)})"
        by, (there, back) = literal(10.0 ** abs(decimals), FLOAT), "*/" if decimals > 0 else "/*"
        return f"({function}({operand(text)} {there} {by}) {back} {by})"

    return rule


def _convert(f, node):
    """Also between integers, of which numbers beside them do not make others."""
    a, dtype = node.args[0], node.meta["val"].dtype
    if f.kind(node) in (INT, LONG) and f.kind(a) == INT and not f.is_constant(a) and a.meta["val"].dtype != dtype:
        return f"{operand(f.cast(a, INT))}.to({NARROW.get(dtype, TRITON_TYPE[f.kind(node)])})"
    return f.cast(a, f.kind(node), dtype)


def _bits_of(f, node):
    """The same 32 bits as another type."""
    a, dtype = node.args[0], node.meta["val"].dtype
    if {dtype, a.meta["val"].dtype} - {torch.float32, torch.int32}:
        raise ModError(f"a mod views {a.meta['val'].dtype} as {dtype}, can do so between float32 and int32")
    return f"{operand(f.cast(a, f.kind(a)))}.to({TRITON_TYPE[f.kind(node)]}, bitcast=True)"


# Arithmetic, comparisons, choices.


def _unary(pattern, kind=None):
    def rule(f, node):
        text = f.cast(node.args[0], kind or f.kind(node))
        return pattern.format(bare(text) if "({})" in pattern else operand(text))

    return rule


def _of_float(function):
    """``function(a)`` or ``function(a, b)`` in float32."""
    return lambda f, node: f"{function}({', '.join(bare(f.cast(a, FLOAT)) for a in node.args[:2])})"


def _by_kind(of_float, of_others, kind=FLOAT):
    """One rule where the result is of ``kind``, another where it is not."""
    return lambda f, node: (of_float if f.kind(node) == kind else of_others)(f, node)


def _binary(symbol):
    def rule(f, node):
        kind, dtype = f.kind(node), node.meta["val"].dtype
        a, b, *alpha = node.args
        if symbol == "*" and f.is_constant(b) and f.constant(b) == 1:
            return f.cast(a, kind)
        alpha = node.kwargs.get("alpha", alpha[0] if alpha else 1)
        a, b = operand(f.cast(a, kind, dtype)), operand(f.cast(b, kind, dtype))
        return f"({a} {symbol} {b if alpha == 1 else f'{b} * {literal(alpha, kind)}'})"

    return rule


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


def _logical(symbol):
    return lambda f, node: f" {symbol} ".join(operand(f.cast(x, BOOL)) for x in node.args[:2]).join("()")


def _compare(symbol):
    """In the dtype to which torch promotes both."""

    def rule(f, node):
        pair = node.args[:2]
        values = (x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in pair)
        dtype = torch.result_type(
            *(torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x for x in values)
        )
        a, b = (operand(f.cast(x, kind_of(dtype), dtype)) for x in pair)
        return f"({a} {symbol} {b})"

    return rule


def _pick(function, a, b, kind):
    nan = ", propagate_nan=tl.PropagateNan.ALL" if kind == FLOAT else ""
    return f"tl.{function}({bare(a)}, {bare(b)}{nan})"


def _extreme(function, *more):
    def rule(f, node):
        kind, dtype = f.kind(node), node.meta["val"].dtype
        return _pick(function, *(f.cast(x, kind, dtype) for x in (*node.args, *more)), kind)

    return rule


def _clamp(f, node):
    kind = f.kind(node)
    x, *bounds = [*node.args, None, None][:3]
    text = f.cast(x, kind)
    for function, name, bound in zip(("maximum", "minimum"), ("min", "max"), bounds, strict=True):
        bound = node.kwargs.get(name) if bound is None else bound
        text = text if bound is None else _pick(function, text, f.cast(bound, kind), kind)
    return text


def _where(f, node, condition, a, b):
    kind, dtype = f.kind(node), node.meta["val"].dtype
    return f"tl.where({bare(f.cast(condition, BOOL))}, {bare(f.cast(a, kind, dtype))}, {bare(f.cast(b, kind, dtype))})"


def _power(f, node):
    a, b = node.args[:2]
    kind = f.kind(node)
    exponent = f.constant(b) if f.is_constant(b) else None
    base = operand(f.cast(a, kind))
    if exponent == 1:
        return base
    if exponent in (2, 3) and base.isidentifier():
        return f"({' * '.join([base] * int(exponent))})"
    if kind != FLOAT:
        return f"whole_power({bare(base)}, {bare(f.cast(b, kind))})"
    if exponent == 0.5:
        return f"tl.sqrt({bare(base)})"
    if exponent == -0.5:
        return f"tl.rsqrt({bare(base)})"
    if exponent == -1:
        return f"(1.0 / {base})"
    if f.is_constant(a) and f.constant(a) > 0:
        return f"tl.exp2({operand(f.cast(b, FLOAT))} * {literal(math.log2(f.constant(a)), FLOAT)})"
    first, second = bare(base), bare(f.cast(b, FLOAT))
    if f.is_constant(a) and not f.is_constant(b):
        first = filled(first, f.cast(b, FLOAT))
    if f.is_constant(b) and not f.is_constant(a):
        second = filled(second, base)
    return f"power({first}, {second})"


def _sign_bit(f, node):
    a = node.args[0]
    return f"sign_bit({bare(f.cast(a, FLOAT))})" if f.kind(a) == FLOAT else f"({operand(f.cast(a, f.kind(a)))} < 0)"


def _same(f, node):
    return f.cast(node.args[0], f.kind(node))


def _select(f, node):
    raise ModError(
        "a mod takes a part of something that depends on the query or the key: index every dimension at once"
    )


def _all(names, rule):
    """``{operation: rule(what stands behind its colon)}``."""
    return {getattr(aten, name): rule(*text) for name, *text in (part.split(":") for part in names.split())}


_opposite = _unary("({} == 0)", BOOL)
_absolute = _by_kind(_unary("tl.abs({})"), _unary("whole_abs({})"))
_sign = _by_kind(_unary("sign({}).to(tl.float32)"), _unary("sign({})"))

RULES = {
    # of two conditions a sum is "or", as in torch: Triton would add single bits and lose the carry
    aten.add: _by_kind(_logical("|"), _binary("+"), BOOL),
    aten.sub: _binary("-"),
    aten.mul: _by_kind(_logical("&"), _binary("*"), BOOL),
    aten.div: _divide,
    prims.div: _by_kind(_divide, _truncated),  # of integers an integer
    aten.floor_divide: _floor_divide,
    aten.remainder: _rounded_quotient("%", lambda a, b: f"float_remainder({bare(a)}, {bare(b)})", down="remainder"),
    aten.fmod: _rounded_quotient("%", lambda a, b: f"({a} - truncate({a} / {b}) * {b})"),
    aten.gcd: _gcd,
    aten.pow: _power,
    aten.neg: _unary("(-{})"),
    prims.neg: _unary("(-{})"),
    aten.abs: _absolute,
    prims.abs: _absolute,
    aten.sign: _sign,
    aten.signbit: _sign_bit,
    prims.signbit: _sign_bit,
    aten.reciprocal: _unary("(1.0 / {})", FLOAT),
    aten.log10: _unary("(tl.log2({}) * 0.30102999566398120)", FLOAT),
    aten.relu: _extreme("maximum", 0),
    aten.clamp: _clamp,
    aten.isnan: _unary("({0} != {0})", FLOAT),
    aten.isinf: _unary('(tl.abs({}) == float("inf"))', FLOAT),
    aten.logical_xor: _logical("!="),
    aten.logical_not: _opposite,
    aten.bitwise_not: _by_kind(_opposite, _unary("(~{})"), BOOL),
    aten.where: lambda f, node: _where(f, node, *node.args),
    prims.where: lambda f, node: _where(f, node, *node.args),
    aten._to_copy: _convert,
    prims.convert_element_type: _convert,
    aten.index: lambda f, node: f.load(*node.args),
    aten.select: _select,
}
RULES |= _all(
    "exp:tl.exp exp2:tl.exp2 log:tl.log log2:tl.log2 sqrt:tl.sqrt rsqrt:tl.rsqrt sin:tl.sin cos:tl.cos", _of_float
)
RULES |= _all("sigmoid:tl.sigmoid erf:tl.erf expm1:expm1 log1p:log1p atan:atan atan2:atan2 tanh:tanh", _of_float)
RULES |= _all("floor:tl.floor ceil:tl.ceil trunc:truncate round:round_half_even", _rounded)
RULES |= _all("eq:== ne:!= lt:< le:<= gt:> ge:>=", _compare)
RULES |= _all("bitwise_left_shift:<< bitwise_right_shift:>> __lshift__:<< __rshift__:>>", _binary)
RULES |= _all("logical_and:& bitwise_and:& __and__:& logical_or:| bitwise_or:| __or__:| bitwise_xor:^ __xor__:^", _bits)
RULES |= _all("maximum:maximum minimum:minimum", _extreme)
RULES |= _all("view reshape expand squeeze unsqueeze permute", lambda: _same)

RULES = {
    getattr(packet, overload): rule for packet, rule in RULES.items() for overload in packet.overloads()
}  # a rule serves all spellings of its operation: with a tensor, with a number
RULES[aten.view.dtype] = _bits_of
