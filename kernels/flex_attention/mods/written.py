"""Graphs as text, and text as functions: what an exported or a compiled program holds of a mod, for any process to run.

The text is a module of Python with one function, ``mod``, an operation a line, behind it the user's line that asked for it.
"""

import functools
import itertools
import math
import re
import sys

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from kernels.flex_attention.mods.errors import WRITTEN, ModError, line_of_stack

# Where operations are found that do not say it themselves.
_HOMES = (
    "torch", "torch.nn.functional", "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "_operator",
    "math", "builtins",
)  # fmt: skip
_PLAIN = (bool, int, str, complex, type(None), type(...), torch.dtype, torch.layout, torch.memory_format)


def written(graph, root=None):
    """The text of an fx graph; root: the module that holds its constants.

    Raises:
        ModError: it holds what no other process could find, such as a function inside a function.
    """
    return _Writer().module(graph, root)


@functools.lru_cache(4096)
def function_of(text):
    """The function that a text is."""
    names = {"lines": {i: (m[1], int(m[2])) for i, line in enumerate(text.split("\n"), 1) if (m := _LINE.search(line))}}
    with _disable_current_modes(), torch.inference_mode(False):  # its constants are for all later calls
        exec(compile(text, WRITTEN, "exec"), names)
    return names["mod"]


_LINE = re.compile(r"  # (.+), line (\d+)$")


class _Writer:
    """Writes one module."""

    def __init__(self):
        self.imported, self.constants, self.functions, self.count = {"torch"}, [], [], itertools.count()

    def module(self, graph, root):
        self.function("mod", graph, root)
        imports = [f"import {name}" for name in sorted(self.imported)]
        return "\n".join([*imports, *self.constants, *self.functions]) + "\n"

    def function(self, name, graph, root):
        """Write a graph as a function of this name."""
        names, arguments, body = {}, [], []
        for node in graph.nodes:
            here = names[node] = f"{node.name}_" if node.name in self.imported else node.name
            args = lambda node, some: ", ".join(  # noqa: E731
                [self.literal(x, names) for x in some]
                + [f"{k}={self.literal(x, names)}" for k, x in node.kwargs.items()]
            )
            if node.op == "placeholder":
                arguments.append(here)
                continue
            if node.op == "output":
                body.append(f"    return {self.literal(node.args[0], names)}")
                continue
            if node.op == "get_attr":
                value = self.constant(functools.reduce(getattr, node.target.split("."), root))
            elif node.op == "call_method":
                value = f"{self.literal(node.args[0], names)}.{node.target}({args(node, node.args[1:])})"
            elif node.op == "call_function":
                value = f"{self.reference(node.target)}({args(node, node.args)})"
            else:
                value = f"{self.constant(root.get_submodule(node.target))}({args(node, node.args)})"
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
            return self.literal(value, {})
        numbers = self.literal(value.tolist(), {})
        made = f"torch.tensor({numbers}, dtype={value.dtype}, device={str(value.device)!r})"
        self.constants.append(f"{name} = {made}.reshape({list(value.shape)})")
        return name

    def literal(self, x, names):
        """An argument's text."""
        if isinstance(x, torch.fx.Node):
            return names[x]
        if isinstance(x, np.generic):
            self.imported.add("numpy")
            return f"numpy.{type(x).__name__}({self.literal(x.item(), names)})"
        if isinstance(x, float):
            return float.__repr__(x) if math.isfinite(x) else f"float('{x}')"
        if type(x) in _PLAIN:
            return repr(x)
        if isinstance(x, torch.device):
            return f"torch.device({str(x)!r})"
        if isinstance(x, slice):
            return f"slice({', '.join(self.literal(part, names) for part in (x.start, x.stop, x.step))})"
        if isinstance(x, tuple | list):
            items = "".join(f"{self.literal(one, names)}, " for one in x)
            return f"({items})" if isinstance(x, tuple) else f"[{items[:-2]}]"
        if isinstance(x, dict):
            return f"{{{', '.join(f'{self.literal(k, names)}: {self.literal(v, names)}' for k, v in x.items())}}}"
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
                    if name and home in sys.modules and _found(sys.modules[home], path) is x:
                        self.imported.add(home)
                        return f"{home}.{path}"
        parts = [part for name, part in getattr(x, "__dict__", {}).items() if name[:2] != "__"]
        if type(x).__module__.startswith("torch.") and len(parts) == 1:  # dynamo's wrappers of numpy's operations
            return f"{self.reference(type(x))}({self.literal(parts[0], {})})"
        name = f"{getattr(x, '__module__', None)}.{getattr(x, '__qualname__', type(x))}"
        raise ModError(f"a mod uses {name}, needs what another process can import by its name")


def _found(x, path):
    for name in path.split("."):
        x = getattr(x, name, None)
    return x
