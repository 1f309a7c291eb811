"""Carry a kernel into another Python process: one that compiles although this one interprets, or the other way round.

Triton fixes the mode of a process when it is imported, so the instruments that need the other mode start a child. A
kernel that lives in an importable module is imported there. One that was defined in a notebook cell, in a script or
inside a function, or that a check brings along, is written into a module of its own, with every helper, constant and
module that it uses.
"""

import ast
import base64
import builtins
import collections
import contextlib
import dataclasses
import dis
import functools
import importlib.machinery
import inspect
import json
import os
import pickle
import sys
import textwrap
import types

import torch
import triton.language as tl

from kernels.lab import _fork_server, _triton_private


def run(job: str, interpreted: bool, kernel, values: dict, **details) -> dict:
    """Do ``job`` ("compile" or "trace", see _child_main.py) on ``kernel`` in a child process and return its answer.

    values: what travels as source (constants, types, functions); details: what travels pickled.
    The answer's "error" is the child's complaint, or its last words where it died. ``ValueError`` if something that
    the kernel uses cannot be carried over.
    """
    source, lines = export(kernel, values)
    return run_text(job, interpreted, source, lines=lines, **details)


def run_text(job: str, interpreted: bool, source: str, **details) -> dict:
    """The same for a kernel that was exported before."""
    answer = _fork_server.ForkServer.run(interpreted, job, source, details)
    if answer is None:
        return {"error": f"no answer within {_fork_server.TIMEOUT_SECONDS} s"}
    if not answer.content:
        return {"error": f"the process ended with status {answer.status}:\n{answer.words}"}
    if job == "trace":
        return pickle.loads(answer.content)
    return json.loads(answer.content, object_hook=_decoded)


def _decoded(item: dict):
    return base64.b64decode(item["base64"]) if item.keys() == {"base64"} else item


def plain(value):
    """``value`` with each named tuple in it as a ``dict`` under the key ``"named tuple"``, for ``_child_main.named``."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named tuple": type(value).__name__, "fields": {k: plain(v) for k, v in value._asdict().items()}}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return tuple(map(plain, value)) if type(value) is tuple else value


def export(kernel, values: dict) -> tuple[str, list[tuple[int, int]]]:
    """The text of a module that defines ``KERNEL`` and ``VALUES``, and where its functions' lines come from.

    The second part is a list of (line in this text, line in the original file or cell), one a function, rising.
    """
    try:
        return _exported(_Writer(WRITTEN_OUT), kernel, values)
    except ValueError:  # such as two functions of one name: as modules they don't meet
        return _exported(_Writer(), kernel, values)


def _exported(writer: "_Writer", kernel, values: dict) -> tuple[str, list[tuple[int, int]]]:
    writer.add(f"KERNEL = {writer.expression(kernel)}")
    writer.add(f"VALUES = {writer.expression(values)}")
    return "\n".join(writer.lines) + "\n", writer.origins


#: What this package defines is written out like a cell's: to import it, and torch with it, takes longer than to compile.
WRITTEN_OUT = "kernels.check."


class _Writer:
    """Writes values as Python source, after everything that they need; functions of packages ``written_out``, too."""

    def __init__(self, *written_out: str):
        self.written_out = written_out
        self.lines: list[str] = []
        self.origins: list[tuple[int, int]] = []
        self.bound: dict[str, object] = {}  # names of the module and what they stand for
        self.user = self.place = ""  # the function whose names are being written, and the line of one, for messages
        self.add("import triton as _triton, triton.language as _tl")
        self.add("from triton.experimental import gluon as _gluon")

    def add(self, text: str) -> None:
        self.lines += text.splitlines()

    def bind(self, name: str, value) -> None:
        """Make ``name`` stand for ``value`` in the module."""
        if name in self.bound:
            known = self.bound[name]
            if known is not value and not (type(known) is type(value) and _plain(value) and known == value):
                raise ValueError(f"kernel uses two things called {name!r}, in different functions: rename one of them")
            return
        self.bound[name], place = value, self.place
        if isinstance(value, types.ModuleType):
            self.add(f"import {value.__name__} as {name}")
            return
        try:
            expression = self.expression(value)
        except ValueError as error:
            said = str(error) if " in line " in str(error) else f"{error}{place}"
            raise ValueError(f"kernel uses {name!r}{self.user}: {said}") from None
        if expression != name:
            self.add(f"{name} = {expression}")

    def expression(self, value) -> str:
        """Source text that evaluates to ``value``."""
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return _literal(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            self.bind("collections", collections)
            made = f"collections.namedtuple({type(value).__name__!r}, {list(value._fields)!r})"
            return f"{made}({', '.join(map(self.expression, value))})"
        if isinstance(value, (tuple, list, set, frozenset)) and type(value).__module__ == "builtins":
            return f"{type(value).__name__}([{', '.join(map(self.expression, value))}])"
        if type(value) is dict:
            return "{" + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items()) + "}"
        if isinstance(value, torch.dtype):
            self.bind("torch", torch)
            return str(value)
        if isinstance(value, tl.constexpr):
            return f"_tl.constexpr({self.expression(value.value)})"
        if type(value) is tl.dtype:
            return f"_tl.dtype({value.name!r})"
        function = _triton_private.python_function(value)
        module, path = _home(function if function is not None else value)
        if module is not None and not (function is not None and module.startswith(self.written_out)):
            self.add(f"import {module}")
            return f"{module}.{path}"
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self.bind("collections", collections)
            return f"collections.namedtuple({value.__name__!r}, {list(value._fields)!r})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):  # Gluon's layouts are such values
            fields = [
                f"{f.name}={self.expression(getattr(value, f.name))}" for f in dataclasses.fields(value) if f.init
            ]
            return f"{self.expression(type(value))}({', '.join(fields)})"
        if function is not None:
            return self.function(value, function)
        raise ValueError(f"a {type(value).__name__} cannot be carried into another process; make it a tl.constexpr")

    def function(self, value, function) -> str:
        """Write a function's source after everything that it names; returns its name."""
        name = function.__name__
        if self.bound.get(f"def {name}") is value:
            return name
        if f"def {name}" in self.bound:
            raise ValueError(f"there are two functions called {name!r}: rename one of them")
        self.bound[f"def {name}"] = value
        text, line, names = _read(function, function.__code__)
        outer, self.user = self.user, f" in {name!r}"
        for used, place in names.items():
            found, what = _look_up(function, used)
            if found:
                self.place = place
                self.bind(used, what)
        self.user = outer
        self.bind(name, value)
        self.add("")
        self.add(_triton_private.decorator(value))
        self.origins.append((len(self.lines) + 1, line))
        self.add(text)
        self.add("")
        return name


def _plain(value) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, tl.dtype))


def _literal(value) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) else repr(value)


@functools.lru_cache
def _read(function, code) -> tuple[str, int, dict[str, str]]:
    """A function's text as it is carried, without its decorators, the line at which it begins, and the names that it takes
    from outside, each with the words for where it stands.

    code: the function's own, which a notebook's autoreload exchanges.
    """
    try:
        lines, start = inspect.getsourcelines(function)
        text = textwrap.dedent("".join(lines))
        definition = ast.parse(text).body[0]
    except (OSError, SyntaxError) as error:
        raise ValueError(f"the source of {function.__name__!r} cannot be read ({error})") from None
    if not isinstance(definition, ast.FunctionDef):
        raise ValueError(f"{function.__name__!r} is not defined by `def`")
    edits = {node: repr(ast.unparse(node)) for node in _unread(function, definition)}
    unread = {id(each) for node in edits for each in ast.walk(node)}
    edits |= {node: _literal(value) for node, value in _numbers(function, definition, text) if id(node) not in unread}
    left_out, rows = {id(each) for node in edits for each in ast.walk(node)}, text.split("\n")
    names = {
        used: f", in line {start + row - 1}, `{rows[row - 1].strip()}`"
        for used, row in _names(function, definition, left_out).items()
    }
    return "\n".join(edited(text, edits)[definition.lineno - 1 :]), start + definition.lineno - 1, names


def _numbers(function, definition: ast.FunctionDef, text: str) -> list[tuple[ast.Attribute, float]]:
    """Where a function takes a number from a module, such as ``np.inf``: it is written out, for the module may be large."""
    found = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            module = None if name in function.__code__.co_varnames else _look_up(function, name)[1]
            value = getattr(module, node.attr, None) if isinstance(module, types.ModuleType) else None
            if type(value) in (int, float) and ast.get_source_segment(text, node) == f"{name}.{node.attr}":
                found.append((node, value))
    return found


def _unread(function, definition: ast.FunctionDef) -> list[ast.expr]:
    """The annotations of a header that name what is neither Python's own nor Triton's, which reads none of these."""
    kinds = definition.args
    each = [*kinds.posonlyargs, *kinds.args, kinds.vararg, *kinds.kwonlyargs, kinds.kwarg]
    found = list(filter(None, [*(one.annotation for one in each if one), definition.returns]))
    names = [{name.id for name in ast.walk(node) if isinstance(name, ast.Name)} for node in found]
    return [node for node, used in zip(found, names) if not all(_is_tritons(function, name) for name in used)]


def _is_tritons(function, name: str) -> bool:
    found, what = _look_up(function, name)
    home = what.__name__ if isinstance(what, types.ModuleType) else getattr(what, "__module__", type(what).__module__)
    return str(home).startswith("triton") if found else hasattr(builtins, name)


def edited(text: str, edits: dict[ast.expr, str]) -> list[str]:
    """The lines of a text with other words in the places of some nodes; what follows keeps its line."""
    rows = [row.encode() for row in text.split("\n")]
    for node, words in sorted(edits.items(), key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        rows[first : last + 1] = [
            rows[first][: node.col_offset] + words.encode() + rows[last][node.end_col_offset :], *[b""] * (last - first),
        ]  # fmt: skip
    return [row.decode() for row in rows]


def _names(function, definition: ast.FunctionDef, left_out: set[int]) -> dict[str, int]:
    """The names that a function takes from outside, in its body, its annotations and its defaults, and a line of each.

    left_out: nodes that are written otherwise.
    """
    found = {}
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        found |= dict.fromkeys(i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    found |= dict.fromkeys(function.__code__.co_freevars)
    header = [definition.args, *filter(None, [definition.returns])]
    found |= dict.fromkeys(n.id for part in header for n in ast.walk(part) if isinstance(n, ast.Name))
    names = [node for node in ast.walk(definition) if isinstance(node, ast.Name)]
    rows = {node.id: node.lineno for node in reversed(names) if id(node) not in left_out}
    written = {node.id for node in names}
    return {name: rows.get(name, definition.lineno) for name in found if name in rows or name not in written}


def _look_up(function, name: str):
    """(whether the function sees the name as anything but a builtin, what it is)."""
    if name in function.__code__.co_freevars:
        cell = function.__closure__[function.__code__.co_freevars.index(name)]
        with contextlib.suppress(ValueError):  # a cell that is still empty: the compiler will complain, with the line
            return True, cell.cell_contents
    return name in function.__globals__, function.__globals__.get(name)


def _home(value) -> tuple[str | None, str]:
    """The module from which a fresh process can import a function or class, and its path in there; or (None, "")."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not path or "<" in path or module == "__main__" or module not in sys.modules:
        return None, ""
    found = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not value and _triton_private.python_function(found) is not value:
        return None, ""  # defined there once, but something else goes by that name now
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return (module, path) if module in sys.builtin_module_names else (None, "")
    for entry in sys.path:
        base = os.path.join(os.path.abspath(entry), *module.split("."))
        for candidate in (base, os.path.join(base, "__init__")):
            if any(candidate + suffix == os.path.abspath(file) for suffix in importlib.machinery.all_suffixes()):
                return module, path
    return None, ""
