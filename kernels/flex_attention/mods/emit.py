"""Graph to text: each node of a recorded mod becomes a line of Triton.

A generated function is called on one tile. Each of its arguments has the shape that it needs and no more: ``b`` and ``h`` are
single numbers, ``q_idx`` is a column, ``kv_idx`` a row (or the other way round), ``score`` the whole tile. So what depends on
the query alone is computed, and loaded, once a query. Where the result must fill the tile it is broadcast at the end.
"""

import keyword
import math
import re
import textwrap

import torch

from kernels.flex_attention.mods import device as mod_ops
from kernels.flex_attention.mods.trace import ARGUMENTS, ModError, source_line

aten, prims = torch.ops.aten, torch.ops.prims
FLOAT, INT, LONG, BOOL = "float", "int", "long", "bool"
_TRITON_TYPE = {FLOAT: "tl.float32", INT: "tl.int32", LONG: "tl.int64", BOOL: "tl.int1"}

# Sizes and strides of tables from here on are arguments, because those that grow with the sequence would otherwise make new
# code for every length. Smaller ones (of heads, of buckets) are numbers in the text.
LARGE = 64


def kind_of(dtype):
    """How a dtype is computed in a kernel: floats as float32, small integers as int32."""
    if dtype == torch.bool:
        return BOOL
    if dtype.is_floating_point:
        return FLOAT
    return LONG if dtype == torch.int64 else INT


def emit_value(trace):
    """Triton text of the mod itself: ``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, ...)``."""
    return _Function(trace).value()


def emit_gradient(trace):
    """Triton text of ``score_gradient(score, b, h, q_idx, kv_idx, grad, tables)``: grad times the mod's derivative."""
    return _Function(trace).gradient()


def emit_sinks(trace):
    """Triton text of ``sink_gradients(score, ..., grad, live, tables, sinks, PASS)``: adds to every sink of the trace."""
    return _Function(trace).sinks()


class _Function:
    """Writes one function's body: lines of assignments, with the user's line above the first that comes from it."""

    def __init__(self, trace):
        self.trace = trace
        self.lines = []
        self.written = {}  # node -> text that stands for it: a name, or an expression used once
        self.shown = None  # the user's line whose comment was written last
        self.last_line = None
        self.names = (
            set(ARGUMENTS[trace.kind]) | {"grad", "live", "tables", "sinks", "tl", "triton"} | set(vars(mod_ops))
        )

    # The three functions.

    def value(self):
        t = self.trace
        arguments = ARGUMENTS[t.kind]
        if isinstance(t.value, torch.fx.Node):
            self.count([t.value])
            text = self.cast(t.value, FLOAT if t.kind == "score_mod" else BOOL)
        else:
            text = _literal(t.value, FLOAT if t.kind == "score_mod" else BOOL)
        if t.kind == "score_mod":
            text = self.fill(text, t.value, "score")
        elif self.is_constant(t.value):
            text = f"{arguments[2]} * 0 == {0 if self.constant(t.value) else 1}"
        return self.function(t.kind, f"{', '.join(arguments)}, tables", [*self.lines, f"return {_bare(text)}"])

    def gradient(self):
        t = self.trace
        if t.score_gradient is None:
            text = "tl.zeros(score.shape, tl.float32)"
        else:
            self.count([t.score_gradient])
            text = self.fill(self.cast(t.score_gradient, FLOAT), t.score_gradient, "score")
        arguments = f"{', '.join(ARGUMENTS[t.kind])}, grad, tables"
        return self.function("score_gradient", arguments, [*self.lines, f"return {_bare(text)}"])

    def sinks(self):
        t = self.trace
        indexed = [node for node in t.sinks if t.where[node] == "sink"]
        needed = [i for node in indexed for i in (*filter(None, node.args[1]), node.args[2])]
        self.count([*needed, *(node for node in t.sinks if node not in indexed)])
        for i, node in enumerate(t.sinks):
            if node in indexed:
                _, indices, value, *_ = node.args
                shape = node.meta["val"].shape
                offset = self.offset(f"sink_{i}", indices, _contiguous(shape), shape)
                depends = frozenset().union(*(t.depends[i] for i in indices))
            else:
                value, offset, depends = node, "0", frozenset()
            value = self.fill(self.cast(value, FLOAT), value, "score")
            self.lines.append(
                f"add_to_sink(sinks[{i}], {_bare(offset)}, {_bare(value)}, live, "
                f"{'q_idx' not in depends}, {'kv_idx' not in depends}, PASS)"
            )
        arguments = f"{', '.join(ARGUMENTS[t.kind])}, grad, live, tables, sinks, PASS: tl.constexpr"
        return self.function("sink_gradients", arguments, self.lines or ["pass"])

    def function(self, name, arguments, lines):
        unpack = []
        text = "\n".join(lines)
        needed = set(re.findall(r"\w+", text))
        for i, node in enumerate(self.trace.tables):
            if self.table_name(i) in needed:
                val = node.meta["val"]
                if node in self.trace.numbers:
                    unpack.append(f"{self.table_name(i)} = tl.cast(tables[{i}], {_TRITON_TYPE[kind_of(val.dtype)]})")
                    continue
                # Not the sizes of what may grow with the sequence: text that differs with a length is compiled for each.
                small = val.ndim > 1 and max(val.shape) < LARGE
                sizes = ", ".join(str(size) if small else "." for size in val.shape)
                kind = f"{str(val.dtype).removeprefix('torch.')} [{sizes}]"
                unpack.append(f"{self.table_name(i)} = tables[{i}]  # {kind}")
        for i, size in enumerate(self.trace.sizes, len(self.trace.tables)):
            if size in needed:
                unpack.append(f"{size} = tables[{i}]")
        body = textwrap.indent("\n".join([*unpack, *lines]), "    ")
        return f"@triton.jit\ndef {name}({arguments}):\n{body}\n"

    def table_name(self, i):
        return f"table_{i}"

    def fill(self, text, node, like):
        """``text`` made to fill the tile, if ``node`` does not depend on all of it."""
        depends = self.trace.depends.get(node, frozenset()) if isinstance(node, torch.fx.Node) else frozenset()
        if depends & {"score", "grad"}:
            return text
        if self.is_constant(node):
            return f"tl.full({like}.shape, {text}, tl.float32)"
        return f"tl.broadcast_to({_bare(text)}, {like}.shape)"

    # Nodes.

    def count(self, roots):
        """Count how often each node is used by those that ``roots`` need: what is used once is written in place."""
        self.uses, self.roots, todo, seen = {}, roots, list(roots), set()
        for root in roots:
            self.uses[root] = self.uses.get(root, 0) + 1
        while todo:
            node = todo.pop()
            if node in seen or self.trace.where[node] != "position" or not isinstance(node, torch.fx.Node):
                continue
            seen.add(node)
            if node.op == "placeholder" or self.is_constant(node):
                continue
            inputs = []
            torch.fx.map_arg((node.args, node.kwargs), inputs.append)  # one entry a use: x * x uses x twice
            for i in inputs:
                self.uses[i] = self.uses.get(i, 0) + 1
                todo.append(i)
        for node in self.trace.graph.nodes:  # in the order of the recording, so that lines stand as the user wrote them
            if node in seen:
                self.write(node)

    def is_constant(self, x):
        """Whether a value is a number known now."""
        if not isinstance(x, torch.fx.Node):
            return True
        if x.op == "placeholder" or self.trace.where[x] != "position" or self.trace.depends[x]:
            return False
        return all(self.is_constant(i) for i in x.all_input_nodes)

    def constant(self, x):
        """The number itself."""
        if not isinstance(x, torch.fx.Node):
            return x
        evaluate = lambda node: torch.tensor(self.constant(node), dtype=node.meta["val"].dtype)  # noqa: E731
        args, kwargs = torch.fx.map_arg((x.args, dict(x.kwargs)), evaluate)
        kwargs = dict(kwargs) | ({"device": "cpu"} if "device" in kwargs else {})
        return x.target(*args, **kwargs).item()

    def kind(self, x):
        return kind_of(x.meta["val"].dtype) if isinstance(x, torch.fx.Node) else _kind_of_number(x)

    def cast(self, x, kind):
        """The text of a node or number, as ``kind``."""
        if self.is_constant(x):
            return _literal(self.constant(x), kind)
        text, mine = self.text(x), self.kind(x)
        if mine == kind or (mine, kind) == (INT, LONG):  # an int32 grows by itself where it meets an int64
            return text
        if kind == BOOL:
            return f"({text} != 0)"
        # Differences of positions: converted one by one they stay a row and a column, and the tile needs no conversion.
        if kind == FLOAT and x.target is aten.sub.Tensor and self.uses.get(x, 0) == 1 and self.are_positions(x.args):
            return "({} - {})".format(*(self.cast(i, FLOAT) for i in x.args))
        return f"{_operand(text)}.to({_TRITON_TYPE[kind]})"

    def text(self, x):
        """What stands for a node: a captured single number is loaded where it is first needed."""
        if x not in self.written:
            assert self.trace.where[x] == "before", x
            if x in self.trace.numbers:
                return self.table(x)
            self.written[x] = self.fresh(x.name)
            self.lines.append(f"{self.written[x]} = {self.load(x, [None] * x.meta['val'].ndim)}")
        return self.written[x]

    def are_positions(self, args):
        """Whether both are positions of tokens (float32 holds them and their differences exactly, up to 2^24)."""
        return len(args) == 2 and all(
            isinstance(i, torch.fx.Node) and i.op == "placeholder" and i.name in ("q_idx", "kv_idx") for i in args
        )

    def write(self, node):
        """Give ``node`` a text; an assignment of its own if it is used more than once or gets long."""
        if self.is_constant(node):
            return
        if node.op == "placeholder":
            self.written[node] = node.name
            return
        line = self.trace.lines.get(node)
        text = self.expression(node, line)
        alone = self.uses.get(node, 0) == 1 and len(text) < (108 if node in self.roots else 88)
        same_line = all(self.trace.lines.get(user) == line for user in node.users if user in self.uses)
        if line and line != self.shown and (not alone or not same_line or line != self.last_line):
            comment = source_line(line)
            if comment:
                self.lines.append(f"# {comment}")
            self.shown = line
        self.last_line = line
        if alone and (same_line or self.is_short(text)):
            self.written[node] = text
            return
        name = self.fresh(self.users_name(node, line) or node.name)
        self.lines.append(f"{name} = {_bare(text)}")
        self.written[node] = name

    def users_name(self, node, line):
        """The name on the left of the user's line, if this node is what the line computes."""
        mine = line and self.trace.last.get(line) is node
        match = re.match(r"([A-Za-z_]\w*)\s*=(?!=)", source_line(line)) if mine else None
        return match and not keyword.iskeyword(match[1]) and match[1]

    def is_short(self, text):
        return len(text) < 24

    def fresh(self, name):
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def expression(self, node, line):
        target = node.target
        if getattr(target, "namespace", None) == "approx":  # attention-gym's cheaper spellings of aten's functions
            target = getattr(aten, target._opname).default
        rule = RULES.get(target)
        if rule is None:
            where = f"\n    {source_line(line)}\n    ({line[0]}, line {line[1]})\n" if line else " "
            raise ModError(f"a mod uses {node.target}, which has no Triton equivalent here:{where}")
        return rule(self, node)

    # Captured tensors.

    def table(self, node):
        return self.table_name(self.trace.tables.index(node))

    def load(self, table, indices):
        """``tl.load`` of one element of a table a position."""
        val = table.meta["val"]
        offset = self.offset(self.table(table), indices, val.stride(), val.shape)
        text = f"tl.load({self.table(table)} + {_bare(offset) if _is_call(_bare(offset)) else offset})"
        return f"{text}.to(tl.float32)" if val.dtype.is_floating_point and val.dtype != torch.float32 else text

    def size(self, name, value):
        """The text of a size or stride of a table."""
        if value < LARGE:
            return str(value)
        self.trace.sizes[name] = value
        return name

    def offset(self, name, indices, strides, shape):
        """Text of the place of an element, in elements; 64-bit where the table is that large."""
        wide = sum((size - 1) * stride for size, stride in zip(shape, strides)) >= 2**31
        terms = []
        for d, (index, stride, size) in enumerate(zip(indices, strides, shape, strict=True)):
            if index is None:  # a dimension of size one
                continue
            text = _bare(self.cast(index, LONG if self.kind(index) == LONG else INT))
            if not self.never_negative(index):
                text = f"wrap({text}, {self.size(f'{name}_size_{d}', size)})"
            if wide and self.kind(index) != LONG:
                text = f"{_operand(text)}.to(tl.int64)"
            if stride:
                step = self.size(f"{name}_stride_{d}", stride)
                terms.append(_operand(text) if stride == 1 else f"{_operand(text)} * {step}")
        return f"({' + '.join(terms)})" if terms else "0"

    def never_negative(self, x):
        """Whether an integer can be seen to be at least zero."""
        if self.is_constant(x):
            return self.constant(x) >= 0
        if x.op == "placeholder":
            return x.name in ("b", "h", "q_idx", "kv_idx")
        if x.target in (aten.add.Tensor, aten.mul.Tensor, aten.minimum.default):
            return all(self.never_negative(i) for i in x.args[:2])
        if x.target is aten.maximum.default:
            return any(self.never_negative(i) for i in x.args[:2])
        if x.target is aten.floor_divide.default or (x.target is aten.div.Tensor_mode):
            return all(self.never_negative(i) for i in x.args[:2])
        if x.target in (aten.remainder.Tensor, aten.remainder.Scalar):
            return self.is_constant(x.args[1]) and self.constant(x.args[1]) > 0
        if x.target is aten.clamp.default:
            return len(x.args) > 1 and x.args[1] is not None and x.args[1] >= 0
        if x.target in (aten.abs.default, aten._to_copy.default):
            return x.target is aten.abs.default or self.never_negative(x.args[0])
        return False


# How each operation is written. A rule gets the writer and the node, and returns text.


def _unary(pattern, kind=None):
    def rule(f, node):
        want = kind or f.kind(node)
        text = f.cast(node.args[0], want)
        return pattern.format(_bare(text) if "({})" in pattern else _operand(text))

    return rule


def _absolute(f, node):
    text = _bare(f.cast(node.args[0], f.kind(node)))
    return f"tl.abs({text})" if f.kind(node) == FLOAT else f"whole_abs({text})"


def _binary(symbol, *, reverse=False):
    def rule(f, node):
        kind = f.kind(node)
        a, b = node.args[:2][:: -1 if reverse else 1]
        if symbol == "*" and f.is_constant(b) and f.constant(b) == 1:
            return f.cast(a, kind)
        alpha = node.kwargs.get("alpha", 1)
        a, b = _operand(f.cast(a, kind)), _operand(f.cast(b, kind))
        return f"({a} {symbol} {b if alpha == 1 else f'{b} * {_literal(alpha, kind)}'})"

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
        kind = _common(f, *node.args[:2])
        return f"({_operand(f.cast(node.args[0], kind))} {symbol} {_operand(f.cast(node.args[1], kind))})"

    return rule


def _call(function, kind=None):
    def rule(f, node):
        want = kind or f.kind(node)
        arguments = (_bare(f.cast(a, want)) for a in node.args[:2])
        return f"{function}({', '.join(arguments)})"

    return rule


def _extreme(function):
    def rule(f, node):
        kind = f.kind(node)
        return _pick(function, f.cast(node.args[0], kind), f.cast(node.args[1], kind), kind)

    return rule


def _pick(function, a, b, kind):
    nan = ", propagate_nan=tl.PropagateNan.ALL" if kind == FLOAT else ""
    return f"tl.{function}({_bare(a)}, {_bare(b)}{nan})"


def _clamp(f, node):
    kind = f.kind(node)
    bounds = [*node.args[1:], None, None][:2]
    low, high = (bounds[i] if bounds[i] is not None else node.kwargs.get(name) for i, name in enumerate(("min", "max")))
    text = f.cast(node.args[0], kind)
    text = text if low is None else _pick("maximum", text, f.cast(low, kind), kind)
    return text if high is None else _pick("minimum", text, f.cast(high, kind), kind)


def _relu(f, node):
    return _pick("maximum", f.cast(node.args[0], f.kind(node)), _literal(0, f.kind(node)), f.kind(node))


def _shrink_backward(f, node):
    """The gradient where |x| is larger than the bound, 0 elsewhere."""
    grad, x, bound = node.args
    inside = f"tl.abs({_bare(f.cast(x, FLOAT))}) <= {_literal(bound, FLOAT)}"
    return f"tl.where({inside}, 0.0, {_bare(f.cast(grad, FLOAT))})"


def _where(f, node):
    condition, a, b = node.args
    kind = f.kind(node)
    return f"tl.where({_bare(f.cast(condition, BOOL))}, {_bare(f.cast(a, kind))}, {_bare(f.cast(b, kind))})"


def _masked_fill(f, node):
    a, condition, value = node.args
    kind = f.kind(node)
    return f"tl.where({_bare(f.cast(condition, BOOL))}, {_bare(f.cast(value, kind))}, {_bare(f.cast(a, kind))})"


def _divide(f, node):
    mode = node.kwargs.get("rounding_mode")
    a, b = node.args[:2]
    kind = f.kind(node)
    if mode is None:
        # A product is one instruction, a quotient eight. Exact for powers of two; of a score the last bit does not matter, of
        # an index it does, because it may be rounded to a whole number next.
        divisor = f.constant(b) if f.is_constant(b) else 0
        if divisor and (math.frexp(divisor)[0] in (0.5, -0.5) or f.trace.depends.get(a, set()) & {"score", "grad"}):
            return f"({_operand(f.cast(a, FLOAT))} * {_literal(1 / divisor, FLOAT)})"
        if b in f.trace.numbers and f.trace.depends.get(a, set()) & {"score", "grad"}:  # one quotient a program
            return f"({_operand(f.cast(a, FLOAT))} * (1.0 / {_operand(f.cast(b, FLOAT))}))"
        return f"({_operand(f.cast(a, FLOAT))} / {_operand(f.cast(b, FLOAT))})"
    if kind == FLOAT:
        quotient = f"{_operand(f.cast(a, FLOAT))} / {_operand(f.cast(b, FLOAT))}"
        return f"tl.floor({quotient})" if mode == "floor" else f"truncate({quotient})"
    if mode == "trunc":
        return f"({_operand(f.cast(a, kind))} // {_operand(f.cast(b, kind))})"
    return _floor_divide(f, node)


def _floor_divide(f, node):
    a, b = node.args[:2]
    kind = f.kind(node)
    if kind == FLOAT:
        return f"tl.floor({_operand(f.cast(a, FLOAT))} / {_operand(f.cast(b, FLOAT))})"
    if f.never_negative(a) and f.never_negative(b):
        return f"({_operand(f.cast(a, kind))} // {_operand(f.cast(b, kind))})"
    return f"floor_divide({_bare(f.cast(a, kind))}, {_bare(f.cast(b, kind))})"


def _remainder(f, node):
    a, b = node.args[:2]
    kind = f.kind(node)
    if kind == FLOAT:
        return f"float_remainder({_bare(f.cast(a, FLOAT))}, {_bare(f.cast(b, FLOAT))})"
    if f.never_negative(a) and f.never_negative(b):
        return f"({_operand(f.cast(a, kind))} % {_operand(f.cast(b, kind))})"
    return f"remainder({_bare(f.cast(a, kind))}, {_bare(f.cast(b, kind))})"


def _fmod(f, node):
    a, b = (_operand(f.cast(x, f.kind(node))) for x in node.args[:2])
    return f"({a} - truncate({a} / {b}) * {b})" if f.kind(node) == FLOAT else f"({a} % {b})"


def _power(f, node):
    a, b = node.args[:2]
    kind = f.kind(node)
    exponent = f.constant(b) if f.is_constant(b) else None
    base = _operand(f.cast(a, kind))
    if exponent == 1:
        return base
    if exponent == 2 and base.isidentifier():
        return f"({base} * {base})"
    if exponent == 3 and base.isidentifier():
        return f"({base} * {base} * {base})"
    if kind == FLOAT and exponent == 0.5:
        return f"tl.sqrt({_bare(base)})"
    if kind == FLOAT and exponent == -0.5:
        return f"tl.rsqrt({_bare(base)})"
    if kind == FLOAT and exponent == -1:
        return f"(1.0 / {base})"
    if kind == FLOAT and f.is_constant(a) and f.constant(a) > 0:
        return f"tl.exp2({_operand(f.cast(b, FLOAT))} * {_literal(math.log2(f.constant(a)), FLOAT)})"
    if kind == FLOAT:
        base = f"tl.full([1, 1], {base}, tl.float32)" if f.is_constant(a) else base
        exponent = f"tl.full([1, 1], {f.cast(b, FLOAT)}, tl.float32)" if f.is_constant(b) else f.cast(b, FLOAT)
        return f"power({_bare(base)}, {_bare(exponent)})"
    return f"whole_power({_bare(base)}, {_bare(f.cast(b, kind))})"


def _invert(f, node):
    text = _operand(f.cast(node.args[0], f.kind(node)))
    return f"({text} == 0)" if f.kind(node) == BOOL else f"(~{text})"


def _logical(symbol):
    def rule(f, node):
        return f"({_operand(f.cast(node.args[0], BOOL))} {symbol} {_operand(f.cast(node.args[1], BOOL))})"

    return rule


def _copy(f, node):
    return f.cast(node.args[0], f.kind(node))


def _index(f, node):
    table, indices = node.args
    return f.load(table, indices)


def _select(f, node):
    raise ModError(
        "a mod takes a part of something that depends on the query or the key: index every dimension at once"
    )


def _common(f, a, b):
    """The kind in which two values are compared: torch's promotion."""
    example = [
        torch.zeros(x.meta["val"].shape, dtype=x.meta["val"].dtype) if isinstance(x, torch.fx.Node) else x
        for x in (a, b)
    ]
    return kind_of(torch.result_type(*example))


RULES = {
    aten.add: _add,
    aten.sub: _binary("-"),
    aten.rsub: _binary("-", reverse=True),
    aten.mul: _multiply,
    aten.div: _divide,
    aten.floor_divide: _floor_divide,
    aten.remainder: _remainder,
    aten.fmod: _fmod,
    aten.pow: _power,
    aten.neg: _unary("(-{})"),
    aten.abs: _absolute,
    aten.sign: _unary("sign({})"),
    aten.sgn: _unary("sign({})"),
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
    aten.floor: _unary("tl.floor({})"),
    aten.ceil: _unary("tl.ceil({})"),
    aten.trunc: _unary("truncate({})"),
    aten.round: _unary("round_half_even({})"),
    aten.relu: _relu,
    aten.isnan: lambda f, node: "({0} != {0})".format(_operand(f.cast(node.args[0], FLOAT))),
    aten.isneginf: lambda f, node: f'({_operand(f.cast(node.args[0], FLOAT))} == float("-inf"))',
    aten.isposinf: lambda f, node: f'({_operand(f.cast(node.args[0], FLOAT))} == float("inf"))',
    prims.abs: _absolute,
    prims.neg: _unary("(-{})"),
    prims.where: _where,
    prims.fmax: _call("float_max", FLOAT),
    prims.fmin: _call("float_min", FLOAT),
    prims.signbit: _unary("sign_bit({})", FLOAT),
    aten.isinf: lambda f, node: f'(tl.abs({_bare(f.cast(node.args[0], FLOAT))}) == float("inf"))',
    aten.eq: _compare("=="),
    aten.ne: _compare("!="),
    aten.lt: _compare("<"),
    aten.le: _compare("<="),
    aten.gt: _compare(">"),
    aten.ge: _compare(">="),
    aten.logical_and: _bits("&"),
    aten.logical_or: _bits("|"),
    aten.logical_xor: _logical("!="),
    aten.logical_not: lambda f, node: f"({_operand(f.cast(node.args[0], BOOL))} == 0)",
    aten.bitwise_not: _invert,
    aten.bitwise_and: _bits("&"),
    aten.bitwise_or: _bits("|"),
    aten.bitwise_xor: _bits("^"),
    aten.bitwise_left_shift: _binary("<<"),
    aten.bitwise_right_shift: _binary(">>"),
    aten.__lshift__: _binary("<<"),
    aten.__rshift__: _binary(">>"),
    aten.where: _where,
    aten.masked_fill: _masked_fill,
    aten.clamp: _clamp,
    aten.clamp_min: lambda f, node: _pick("maximum", *(f.cast(a, f.kind(node)) for a in node.args), f.kind(node)),
    aten.clamp_max: lambda f, node: _pick("minimum", *(f.cast(a, f.kind(node)) for a in node.args), f.kind(node)),
    aten.maximum: _extreme("maximum"),
    aten.minimum: _extreme("minimum"),
    aten._to_copy: _copy,
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


# Text.


def _kind_of_number(x):
    return BOOL if isinstance(x, bool) else INT if isinstance(x, int) else FLOAT


def _literal(x, kind):
    if kind == BOOL:
        return str(bool(x))
    if kind in (INT, LONG):
        return str(int(x))
    x = float(x)
    if math.isinf(x) or math.isnan(x):
        return f'float("{x}")'
    return repr(x)


def _bare(text):
    """``text`` without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def _is_call(text):
    """Whether ``text`` is a name or one call."""
    match = re.match(r"[\w.]+", text)
    rest = text[match.end() :] if match else text
    return bool(match) and (not rest or (rest[0] == "(" and _bare(rest) != rest))


def _operand(text):
    """``text`` that can stand beside an operator: binary expressions bring their own parentheses."""
    return f"({text})" if text.startswith("-") else text


def _contiguous(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]
