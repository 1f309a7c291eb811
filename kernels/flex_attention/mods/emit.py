"""Graph to text: Triton for the kernel, an operation of the recorded mod a line, and Python for what torch computes.

A function of Triton's is called on one tile. Each of its arguments has the shape that it needs and no more: ``b`` and ``h``
are single numbers, ``q_idx`` is a column, ``kv_idx`` a row (or the other way round), ``score`` the whole tile. So what
depends on the query alone is computed, and loaded, once a query. Where the result must fill the tile it is broadcast at the
end.

The text of Python is a module with one function, ``mod``, behind each operation the user's line that asked for it. It is
what an exported or a compiled program holds of a mod, for any process to run.
"""

import functools
import itertools
import keyword
import math
import re
import sys
import textwrap
from collections import Counter

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.flex_attention.mods import device
from kernels.flex_attention.mods.errors import ARGUMENTS, WRITTEN, ModError, at_line, line_of_stack, source_line
from kernels.flex_attention.mods.extent import least
from kernels.flex_attention.mods.rules import (
    BOOL,
    FLOAT,
    INT,
    LONG,
    NARROW,
    RULES,
    TRITON_TYPE,
    bare,
    filled,
    is_call,
    kind_of,
    literal,
    operand,
)

aten = torch.ops.aten


class Function:
    """Writes one function's body: lines of assignments, with the user's line above the first that comes from it."""

    def __init__(self, trace):
        self.trace = trace
        self.lines = []
        self.written = {}  # node -> its text: a name, or an expression used once
        self.shown = None  # the user's line whose comment was written last
        self.last_line = None
        self.names = {*ARGUMENTS[trace.kind], "grad", "live", "tables", "sinks", "tl", "triton", *vars(device)}

    # The three functions.

    def value(self):
        """``score_mod(score, b, h, q_idx, kv_idx, tables)`` or ``mask_mod(b, h, q_idx, kv_idx, tables)``."""
        t, kind = self.trace, FLOAT if self.trace.kind == "score_mod" else BOOL
        if isinstance(t.value, torch.fx.Node):
            self.count([t.value])
        text = self.cast(t.value, kind)
        if kind == FLOAT:
            text = self.fill(text, t.value, "score")
        elif self.is_constant(t.value):
            text = f"q_idx * 0 == {0 if self.constant(t.value) else 1}"
        return self.function(t.kind, "tables", f"return {bare(text)}")

    def gradient(self):
        """``score_gradient(score, b, h, q_idx, kv_idx, grad, tables)``: grad times the mod's derivative."""
        node, text = self.trace.score_gradient, "tl.zeros(score.shape, tl.float32)"
        if node is not None:
            self.count([node])
            text = self.fill(self.cast(node, FLOAT), node, "score")
        return self.function("score_gradient", "grad, tables", f"return {bare(text)}")

    def scatter(self):
        """``sink_gradients(score, ..., grad, live, tables, sinks, PASS)``: adds to every scatter target of the trace."""
        t = self.trace
        indexed = [node for node in t.targets if t.where[node] == "target"]
        needed = [i for node in indexed for i in (*filter(None, node.args[1]), node.args[2])]
        self.count([*needed, *(node for node in t.targets if node not in indexed)])
        for i, node in enumerate(t.targets):
            value, offset, depends = node, "0", frozenset()
            if node in indexed:
                _, indices, value, *_ = node.args
                shape = node.meta["val"].shape
                offset = self.offset(f"sink_{i}", indices, torch.empty(shape, device="meta").stride(), shape)
                depends = frozenset().union(*(t.depends[i] for i in indices))
            value = self.fill(self.cast(value, FLOAT), value, "score")
            summed = f"{'q_idx' not in depends}, {'kv_idx' not in depends}"
            self.lines.append(f"add_to_sink(sinks[{i}], {bare(offset)}, {bare(value)}, live, {summed}, PASS)")
        return self.function("sink_gradients", "grad, live, tables, sinks, PASS: tl.constexpr")

    def function(self, name, more, *last):
        """All of its text, with ``more`` arguments and a ``last`` line."""
        lines, unpack = [*self.lines, *last], []
        needed = set(re.findall(r"\w+", "\n".join(lines)))
        for i, node in enumerate(self.trace.tables):
            if f"table_{i}" in needed:
                val = node.meta["val"]
                if node in self.trace.numbers:
                    unpack.append(f"table_{i} = tl.cast(tables[{i}], {TRITON_TYPE[kind_of(val.dtype)]})")
                else:  # not its sizes: text that differs with a length is compiled for each
                    kind = f"{str(val.dtype).removeprefix('torch.')} [{', '.join('.' * val.ndim)}]"
                    unpack.append(f"table_{i} = tables[{i}]  # {kind}")
        sizes = enumerate(self.trace.sizes, len(self.trace.tables))
        unpack += [f"{size} = tables[{i}]" for i, size in sizes if size in needed]
        body = textwrap.indent("\n".join([*unpack, *lines] or ["pass"]), "    ")
        return f"@triton.jit\ndef {name}({', '.join(ARGUMENTS[self.trace.kind])}, {more}):\n{body}\n"

    def fill(self, text, node, like):
        """``text`` made to fill the tile, if ``node`` does not depend on all of it."""
        if isinstance(node, torch.fx.Node) and self.trace.depends[node] & {"score", "grad"}:
            return text
        return filled(text, like) if self.is_constant(node) else f"tl.broadcast_to({bare(text)}, {like}.shape)"

    # Nodes.

    def count(self, roots):
        """Count how often each node is used by those that ``roots`` need: what is used once is written in place."""
        self.uses, self.roots, todo, seen = Counter(roots), roots, list(roots), set()
        while todo:
            node = todo.pop()
            if node in seen or self.trace.where[node] != "position":
                continue
            seen.add(node)
            if node.op == "placeholder" or self.is_constant(node):
                continue
            inputs = []
            torch.fx.map_arg((node.args, node.kwargs), inputs.append)  # one entry a use: x * x uses x twice
            self.uses.update(inputs)
            todo += inputs
        for node in self.trace.graph.nodes:  # in the order of the recording, which is the user's
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
        """How a node is computed."""
        return kind_of(x.meta["val"].dtype)

    def cast(self, x, kind, dtype=None):
        """The text of a node or number, as ``kind``; an integer as torch computes it in ``dtype``, where that is narrow."""
        if self.is_constant(x):
            return literal(self.constant(x), kind, dtype if kind == INT else None)
        text, own = self.text(x), self.kind(x)
        if dtype in NARROW and x.meta["val"].dtype != dtype:
            return f"{operand(text)}.to({NARROW[dtype]})"
        if own == kind or (own, kind) == (INT, LONG):  # an int32 beside an int64 grows by itself
            return text
        if kind == BOOL:
            return f"({text} != 0)"
        # Differences of positions: converted one by one they stay a row and a column, and the tile needs no conversion.
        # float32 holds positions and their differences exactly, up to 2^24.
        if kind == FLOAT and x.target is aten.sub.Tensor and self.uses[x] == 1:
            if len(x.args) == 2 and all(getattr(i, "name", None) in ("q_idx", "kv_idx") for i in x.args):
                return "({} - {})".format(*(self.cast(i, FLOAT) for i in x.args))
        return f"{operand(text)}.to({TRITON_TYPE[kind]})"

    def text(self, x):
        """A node's text: a captured single number is loaded where it is first needed."""
        if x not in self.written:
            assert self.trace.where[x] == "before", x
            if x in self.trace.numbers:
                return self.table(x)
            self.written[x] = self.fresh(x.name)
            self.lines.append(f"{self.written[x]} = {self.load(x, [None] * x.meta['val'].ndim)}")
        return self.written[x]

    def write(self, node):
        """Give ``node`` a text; an assignment of its own if it is used more than once or gets long."""
        if self.is_constant(node):
            return
        if node.op == "placeholder":
            self.written[node] = node.name
            return
        line = self.trace.lines.get(node)
        text = self.expression(node, line)
        alone = self.uses[node] == 1 and len(text) < (108 if node in self.roots else 88)
        same_line = all(self.trace.lines.get(user) == line for user in node.users if user in self.uses)
        if line and line != self.shown and (not alone or not same_line or line != self.last_line):
            if comment := source_line(line):
                self.lines.append(f"# {comment}")
            self.shown = line
        self.last_line = line
        if alone and (same_line or len(text) < 24):
            self.written[node] = text
            return
        self.written[node] = self.fresh(self.users_name(node, line) or node.name)
        self.lines.append(f"{self.written[node]} = {bare(text)}")

    def users_name(self, node, line):
        """The name on the left of the user's line, if this node is what the line computes."""
        last = line and self.trace.last.get(line) is node
        match = re.match(r"([A-Za-z_]\w*)\s*=(?!=)", source_line(line)) if last else None
        return match and not keyword.iskeyword(match[1]) and match[1]

    def fresh(self, name):
        """A name that is not in use."""
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def expression(self, node, line):
        """By the node's rule."""
        target = node.target
        if getattr(target, "namespace", None) == "approx":  # attention-gym's cheaper spellings of aten's functions
            target = getattr(aten, target._opname).default
        if target not in RULES:
            raise ModError(f"a mod uses {node.target}, which has no Triton equivalent here:{at_line(line)}")
        return RULES[target](self, node)

    # Captured tensors.

    def table(self, node):
        """The name of a table."""
        return f"table_{self.trace.tables.index(node)}"

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
        """Text of the offset of an element, in elements; 64-bit where the table is that large."""
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

    @functools.cached_property
    def least(self):
        """Of each integer the least that it may be."""
        return least(self.trace)

    def never_negative(self, x):
        """Whether an integer can be seen to be at least zero."""
        return (self.constant(x) if self.is_constant(x) else self.least.get(x, -1)) >= 0


# Python: graphs as text, and text as functions.

# Where operations are found that do not say it themselves.
_OF_TORCH = (f"torch.{name}" for name in "nn.functional _C._nn _C._special _C._linalg _C._fft".split())
_HOMES = "torch", *_OF_TORCH, "_operator", "math", "builtins"
_PLAIN = (bool, int, str, complex, type(None), type(...), torch.dtype, torch.layout, torch.memory_format)


@functools.lru_cache(4096)
def function_of(text):
    """The function that a text of ``part_of`` is."""
    line = re.compile(r"  # (.+), line (\d+)$")
    names = {"lines": {i: (m[1], int(m[2])) for i, each in enumerate(text.split("\n"), 1) if (m := line.search(each))}}
    with _disable_current_modes(), torch.inference_mode(False):  # its constants are for all later calls
        exec(compile(text, WRITTEN, "exec"), names)
    return names["mod"]


def part_of(root, wanted, inputs):
    """The text of a part of an fx graph as a module of Python with a function ``mod``.

    Args:
        root: the module that holds the graph's constants.
        wanted: the function's value, a node or a list of nodes.
        inputs: of each of its arguments the name, and the nodes for which it stands.

    Raises:
        ModError: the part holds what no other process could find, such as a function inside a function.
    """
    part, copied = torch.fx.Graph(), {}
    for name, nodes in inputs:
        copied |= dict.fromkeys(nodes, part.placeholder(name))

    def copy(node):
        if node not in copied:
            for one in node.all_input_nodes:
                copy(one)
            copied[node] = part.node_copy(node, copied.__getitem__)
        return copied[node]

    part.output(torch.fx.map_arg(wanted, copy))
    writer = _Module()
    writer.function("mod", part, root)
    imports = [f"import {name}" for name in sorted(writer.imported)]
    return "\n".join([*imports, *writer.constants, *writer.functions]) + "\n"


class _Module:
    """Writes one module."""

    def __init__(self):
        self.imported, self.constants, self.functions, self.count = {"torch"}, [], [], itertools.count()

    def function(self, name, graph, root):
        """Write a graph as a function of this name."""
        names, arguments, body = {}, [], []
        for node in graph.nodes:
            here = names[node] = f"{node.name}_" if node.name in self.imported else node.name
            literal = functools.partial(self.literal, names=names)
            method = node.op == "call_method"
            named = (f"{k}={literal(x)}" for k, x in node.kwargs.items())
            args = ", ".join([*map(literal, node.args[method:]), *named])
            if node.op == "placeholder":
                arguments.append(here)
                continue
            if node.op == "output":
                body.append(f"    return {literal(node.args[0])}")
                continue
            if node.op == "get_attr":
                value = self.constant(functools.reduce(getattr, node.target.split("."), root))
            elif method:
                value = f"{literal(node.args[0])}.{node.target}({args})"
            elif node.op == "call_function":
                value = f"{self.reference(node.target)}({args})"
            else:
                value = f"{self.constant(root.get_submodule(node.target))}({args})"
            line = line_of_stack(node.stack_trace)
            body.append(f"    {here} = {value}" + (f"  # {line[0]}, line {line[1]}" if line else ""))
        self.functions.append("\n".join([f"\ndef {name}({', '.join(arguments)}):", *body]))

    def constant(self, value):
        """The name of what a graph holds itself: a tensor, or another graph."""
        name = f"constant_{next(self.count)}"
        if isinstance(value, torch.fx.GraphModule):
            self.function(name, value.graph, value)
            return name
        if not isinstance(value, torch.Tensor):
            return self.literal(value)
        numbers = self.literal(value.tolist())
        made = f"torch.tensor({numbers}, dtype={value.dtype}, device={str(value.device)!r})"
        self.constants.append(f"{name} = {made}.reshape({list(value.shape)})")
        return name

    def literal(self, x, names=None):
        """An argument's text."""
        literal = functools.partial(self.literal, names=names)
        if isinstance(x, torch.fx.Node):
            return names[x]
        if isinstance(x, np.generic):
            self.imported.add("numpy")
            return f"numpy.{type(x).__name__}({literal(x.item())})"
        if isinstance(x, float):
            return float.__repr__(x) if math.isfinite(x) else f"float('{x}')"
        if type(x) in _PLAIN:
            return repr(x)
        if isinstance(x, torch.device):
            return f"torch.device({str(x)!r})"
        if isinstance(x, slice):
            return f"slice({', '.join(map(literal, (x.start, x.stop, x.step)))})"
        if isinstance(x, tuple | list):
            items = "".join(f"{literal(one)}, " for one in x)
            return f"({items})" if isinstance(x, tuple) else f"[{items[:-2]}]"
        if isinstance(x, dict):
            return f"{{{', '.join(f'{literal(k)}: {literal(v)}' for k, v in x.items())}}}"
        return self.reference(x)

    def reference(self, x):
        """The text by which a function or a type is found in any process."""
        if isinstance(x, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return f"torch.ops.{x}"
        if isinstance(x, torch._ops.HigherOrderOperator) and getattr(torch.ops.higher_order, x.name(), None) is x:
            return f"torch.ops.higher_order.{x.name()}"
        for name in dict.fromkeys((getattr(x, "__qualname__", None), getattr(x, "__name__", None))):
            for home in dict.fromkeys((getattr(x, "__module__", None), *_HOMES)):
                for path in (name, f"Tensor.{name}"):
                    if name and home in sys.modules:
                        found = functools.reduce(lambda x, n: getattr(x, n, None), path.split("."), sys.modules[home])
                        if found is x:
                            self.imported.add(home)
                            return f"{home}.{path}"
        parts = [part for name, part in getattr(x, "__dict__", {}).items() if name[:2] != "__"]
        if type(x).__module__.startswith("torch.") and len(parts) == 1:  # dynamo's wrappers of numpy's operations
            return f"{self.reference(type(x))}({self.literal(parts[0])})"
        name = f"{getattr(x, '__module__', None)}.{getattr(x, '__qualname__', type(x))}"
        raise ModError(f"a mod uses {name}, needs what another process can import by its name")
