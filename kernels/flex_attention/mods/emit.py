"""Graph to text: each node of a recorded mod becomes a line of Triton.

A generated function is called on one tile. Each of its arguments has the shape that it needs and no more: ``b`` and ``h`` are
single numbers, ``q_idx`` is a column, ``kv_idx`` a row (or the other way round), ``score`` the whole tile. So what depends on
the query alone is computed, and loaded, once a query. Where the result must fill the tile it is broadcast at the end.
"""

import keyword
import re
import textwrap

import torch

from kernels.flex_attention.mods import device
from kernels.flex_attention.mods.errors import ARGUMENTS, ModError, source_line
from kernels.flex_attention.mods.integers import bounds
from kernels.flex_attention.mods.rules import RULES
from kernels.flex_attention.mods.text import (
    BOOL,
    FLOAT,
    INT,
    LONG,
    NARROW,
    TRITON_TYPE,
    bare,
    contiguous,
    filled,
    is_call,
    kind_of,
    kind_of_number,
    literal,
    operand,
)

aten = torch.ops.aten

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
        self.bounds = {}  # integer node -> its least and largest value
        self.names = (
            set(ARGUMENTS[trace.kind]) | {"grad", "live", "tables", "sinks", "tl", "triton"} | set(vars(device))
        )

    # The three functions.

    def value(self):
        t = self.trace
        arguments = ARGUMENTS[t.kind]
        if isinstance(t.value, torch.fx.Node):
            self.count([t.value])
            text = self.cast(t.value, FLOAT if t.kind == "score_mod" else BOOL)
        else:
            text = literal(t.value, FLOAT if t.kind == "score_mod" else BOOL)
        if t.kind == "score_mod":
            text = self.fill(text, t.value, "score")
        elif self.is_constant(t.value):
            text = f"{arguments[2]} * 0 == {0 if self.constant(t.value) else 1}"
        return self.function(t.kind, f"{', '.join(arguments)}, tables", [*self.lines, f"return {bare(text)}"])

    def gradient(self):
        t = self.trace
        if t.score_gradient is None:
            text = "tl.zeros(score.shape, tl.float32)"
        else:
            self.count([t.score_gradient])
            text = self.fill(self.cast(t.score_gradient, FLOAT), t.score_gradient, "score")
        arguments = f"{', '.join(ARGUMENTS[t.kind])}, grad, tables"
        return self.function("score_gradient", arguments, [*self.lines, f"return {bare(text)}"])

    def sinks(self):
        t = self.trace
        indexed = [node for node in t.sinks if t.where[node] == "sink"]
        needed = [i for node in indexed for i in (*filter(None, node.args[1]), node.args[2])]
        self.count([*needed, *(node for node in t.sinks if node not in indexed)])
        for i, node in enumerate(t.sinks):
            if node in indexed:
                _, indices, value, *_ = node.args
                shape = node.meta["val"].shape
                offset = self.offset(f"sink_{i}", indices, contiguous(shape), shape)
                depends = frozenset().union(*(t.depends[i] for i in indices))
            else:
                value, offset, depends = node, "0", frozenset()
            value = self.fill(self.cast(value, FLOAT), value, "score")
            self.lines.append(
                f"add_to_sink(sinks[{i}], {bare(offset)}, {bare(value)}, live, "
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
                    unpack.append(f"{self.table_name(i)} = tl.cast(tables[{i}], {TRITON_TYPE[kind_of(val.dtype)]})")
                    continue
                # Not its sizes: text that differs with a length is compiled for each.
                kind = f"{str(val.dtype).removeprefix('torch.')} [{', '.join('.' * val.ndim)}]"
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
            return filled(text, like)
        return f"tl.broadcast_to({bare(text)}, {like}.shape)"

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
        return kind_of(x.meta["val"].dtype) if isinstance(x, torch.fx.Node) else kind_of_number(x)

    def cast(self, x, kind, dtype=None):
        """The text of a node or number, as ``kind``; an integer as torch computes it in ``dtype``, where that is narrow."""
        if self.is_constant(x):
            return literal(self.constant(x), kind, dtype if kind == INT else None)
        text, mine = self.text(x), self.kind(x)
        if dtype in NARROW and x.meta["val"].dtype != dtype:
            return f"{operand(text)}.to({NARROW[dtype]})"
        if mine == kind or (mine, kind) == (INT, LONG):  # an int32 grows by itself where it meets an int64
            return text
        if kind == BOOL:
            return f"({text} != 0)"
        # Differences of positions: converted one by one they stay a row and a column, and the tile needs no conversion.
        if kind == FLOAT and x.target is aten.sub.Tensor and self.uses.get(x, 0) == 1 and self.are_positions(x.args):
            return "({} - {})".format(*(self.cast(i, FLOAT) for i in x.args))
        return f"{operand(text)}.to({TRITON_TYPE[kind]})"

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
        self.lines.append(f"{name} = {bare(text)}")
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
        text = f"tl.load({self.table(table)} + {bare(offset) if is_call(bare(offset)) else offset})"
        return f"{text}.to(tl.float32)" if val.dtype.is_floating_point and val.dtype != torch.float32 else text

    def size(self, name, value):
        """The text of a size or stride of a table: an argument, because with the number there would be new code for each."""
        if value in (0, 1):
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
            text = self.cast(index, LONG if self.kind(index) == LONG else INT)
            if not self.never_negative(index):
                text = f"wrap({bare(text)}, {self.size(f'{name}_size_{d}', size)})"
            if wide and self.kind(index) != LONG:
                text = f"{operand(text)}.to(tl.int64)"
            if stride:
                step = self.size(f"{name}_stride_{d}", stride)
                terms.append(operand(text) if stride == 1 else f"{operand(text)} * {step}")
        return f"({' + '.join(terms)})" if terms else "0"

    def never_negative(self, x):
        """Whether an integer can be seen to be at least zero."""
        return bounds(self, x)[0] >= 0
