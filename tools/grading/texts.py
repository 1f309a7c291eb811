"""Kernels as text, which the compiler and the interpreter execute: every line must be Triton or Gluon, and nothing else.

A sandboxed process writes these texts, so they are read with distrust: imports of Triton alone, constants, named tuples, and
functions of Triton's words. What a kernel may ask of Triton and of a tile is what Triton itself makes public.
"""

import ast
import builtins
import dataclasses
import functools
import importlib
import math
import re
from types import ModuleType

import torch
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.runtime import interpreter

from kernels.lab._triton_private import python_function
from kernels.lab.compile_report import OPTIONS, Prepared
from tools.grading.sandboxed.recordings import MEMBER

MOST_CHARACTERS = 500_000
#: The first line of every text: behind it no comment can say in which encoding Python is to read the file.
_FIRST = "import triton as _triton, triton.language as _tl\n"
#: What str.splitlines takes for the end of a line and Python does not: behind one, a comment could hide a line of code.
_LINE_ENDS = frozenset("\r\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
_GLUON = "triton.experimental.gluon.language"
#: Modules whose functions and classes a text may name.
_HOMES = ("triton.language", _GLUON, "kernels.check.emitted", "kernels.check.flash_mods")
_MAKERS = {"float", "tuple", "list", "set", "frozenset", "_tl.constexpr", "_tl.dtype", "collections.namedtuple"}
_KEYWORD = r"(debug|noinline)=\w+|do_not_specialize\w*=[\[(][\w', ]*[\])]"
_JIT = re.compile(rf"(_triton|_gluon)\.jit\(({_KEYWORD}|, )*\)|_triton\.constexpr_function")

#: Python's own functions that a kernel may call. No compiler takes the last four: its verdict says so.
_CALLED = frozenset("range min max abs int float bool len print enumerate zip reversed sum".split())
_CALLED |= {name for name in dir(builtins) if name.endswith("Error") or name == "Exception"}
#: Names of Python's own that a kernel may give to its values, because they do no harm where they mean Python's.
_HARMLESS = frozenset("id input filter hash slice map next all any pow round divmod bin hex oct format chr ord".split())
_HARMLESS |= {"iter", "dir", "type", "object"}
_PYTHONS = frozenset(dir(builtins)) - _CALLED - _HARMLESS
#: Names of modules of the text itself; and what Triton's interpreter puts beside a kernel's own names.
_TAKEN = {"_triton", "_tl", "_gluon", "collections", "math", "torch", "triton", "kernels"}
_LEAKED = frozenset(vars(interpreter)) - {"tl"}

_NODES = (
    ast.FunctionDef, ast.arguments, ast.arg, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.Subscript, ast.Slice, ast.Call, ast.Attribute, ast.keyword, ast.Starred, ast.Load, ast.Store,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.If,
    ast.For, ast.While, ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.ListComp, ast.GeneratorExp, ast.comprehension,
    ast.Lambda, ast.NamedExpr, ast.JoinedStr, ast.FormattedValue, ast.Raise,
)  # fmt: skip
_TYPES = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Tuple, ast.Load)  # what an annotation is made of


class NotKernels(ValueError):
    """A text that holds something else."""


class Unfinished(NotKernels):
    """A text that uses ``name``, which it does not define: a mistake, and no offence."""

    def __init__(self, said: str, name: str = ""):
        super().__init__(said)
        self.name = name


def prepared(given: object, fields: set[str] = frozenset()) -> Prepared:
    """One launch for the compiler, as the sandbox gave it; ``fields``: members of named tuples. Raises ``NotKernels``."""
    if not isinstance(given, list) or len(given) != 6 or not all(isinstance(part, str) for part in given):
        raise NotKernels("a launch is six texts")
    kernel, text, *literals = given
    if sum(map(len, given)) > MOST_CHARACTERS:
        raise NotKernels("the text is too long")
    hold(text, fields)
    try:
        lines, signature, attributes, options = map(ast.literal_eval, literals)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise NotKernels(str(error)) from None
    whole = isinstance(lines, list) and all(isinstance(part, dict) for part in (signature, attributes, options))
    if not whole or options.keys() != set(OPTIONS):
        raise NotKernels("a launch's signature, attributes and options are tables")
    return Prepared(kernel, text, lines, signature, attributes, options)


@functools.lru_cache(1000)
def hold(text: str, fields: frozenset[str] = frozenset()) -> None:
    """Raise ``NotKernels`` unless a module's text defines kernels and constants, and does nothing else."""
    if not text.startswith(_FIRST) or _LINE_ENDS & set(text):
        raise NotKernels("it begins in another way, or holds characters that end a line for some readers")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotKernels(str(error)) from None
    module = _Module(text.split("\n"), fields)
    for statement in tree.body:
        module.statement(statement)


class _Module:
    """What a text has defined so far."""

    def __init__(self, lines: list[str], fields: frozenset[str]):
        self.lines, self.fields = lines, fields
        self.known: set[str] = set()  # kernels and constants
        self.modules = {"triton": "triton", "math": "math"}

    def statement(self, statement) -> None:
        """Hold one statement to what a text may say, and learn what it defines."""
        if isinstance(statement, ast.FunctionDef):
            self.define(statement.name)
            self.kernel(statement)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                self.imported(alias.name, alias.asname or alias.name, statement.lineno == 1)
        elif isinstance(statement, ast.ImportFrom):
            if ast.unparse(statement) != "from triton.experimental import gluon as _gluon":
                raise NotKernels(f"`{ast.unparse(statement)[:60]}` is no import of kernels")
        elif isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
            self.value(statement.value)
            for target in statement.targets:
                self.define(target.id)
        else:
            raise NotKernels(f"`{ast.unparse(statement)[:60]}` defines no kernel")

    def define(self, name: str) -> None:
        """Learn a name that the text binds."""
        if name in _TAKEN or name in _PYTHONS | _CALLED or _is_pythons_own(name):
            raise NotKernels(f"{name} may not be defined anew")
        self.known.add(name)

    def imported(self, module: str, name: str, first: bool) -> None:
        """Learn an import."""
        if module not in (*_TAKEN, *_HOMES) and not module.startswith(tuple(f"{home}." for home in _HOMES[:2])):
            named = re.compile(rf"(?<![\w.]){re.escape(name)}\.")
            uses = next(filter(named.search, self.lines), f"import {module}")
            raise NotKernels(f"{module} is no module of kernels, in your line `{uses.strip()[:200]}`")
        if name != module and not (first and name in ("_triton", "_tl")):
            self.define(name)
            self.known.discard(name)
            if module.startswith(_HOMES):
                self.modules[name] = module

    def value(self, node) -> None:
        """A constant, a name, what a module of kernels defines, or one of the makers with such values."""
        parts = []
        if isinstance(node, ast.Name):
            if node.id not in self.known:
                raise NotKernels(f"{node.id} is nothing that the text defines")
        elif isinstance(node, ast.Attribute):
            _defined(node)
        elif isinstance(node, ast.List | ast.Tuple):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = [*filter(None, node.keys), *node.values]
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            made = ast.unparse(node.func.func if isinstance(node.func, ast.Call) else node.func)
            if isinstance(node.func, ast.Call) and made == "collections.namedtuple":  # its type is made on the spot
                parts.append(node.func)
            elif made not in _MAKERS:
                layout = _defined(node.func)
                if not (isinstance(layout, type) and dataclasses.is_dataclass(layout) and made.startswith(_GLUON)):
                    raise NotKernels(f"{made[:60]} is not called where kernels are defined")
        elif not isinstance(node, ast.Constant):
            raise NotKernels(f"`{ast.unparse(node)[:60]}` is no constant")
        for part in parts:
            self.value(part)

    def kernel(self, function: ast.FunctionDef) -> None:
        """Hold a kernel to Triton's words."""
        first = min(one.lineno for one in [function, *function.decorator_list])
        begin = [line for line in self.lines[first - 1 : function.end_lineno] if re.match(r"\s*def\b", line)]
        if len(begin) != 1 or not re.match(rf"def {function.name}\s*\(", begin[0]):  # Triton reads from such a line on
            raise NotKernels(f"one line of {function.name} begins with `def`, and that is `def {function.name}(`")
        decorators = [ast.unparse(each) for each in function.decorator_list]
        if len(decorators) != 1 or not _JIT.fullmatch(decorators[0]):
            raise NotKernels(f"{function.name} is no kernel")
        annotations = [getattr(node, "annotation", None) for node in ast.walk(function)] + [function.returns]
        named = [list(ast.walk(one)) for one in annotations if one]
        types = {id(node) for one in named if all(isinstance(node, _TYPES) for node in one) for node in one}
        parts = filter(None, [function.args, function.returns, *function.body])
        nodes = [node for part in parts for node in ast.walk(part) if id(node) not in types]
        stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
        within = {id(name) for node in nodes if isinstance(node, ast.comprehension) for name in ast.walk(node.target)}
        within |= {id(one) for node in nodes if isinstance(node, ast.Lambda) for one in ast.walk(node.args)}
        own = {node.arg for node in nodes if isinstance(node, ast.arg) and id(node) not in within}
        own |= {node.id for node in stored if isinstance(node, ast.Name) and id(node) not in within}
        inner = {getattr(node, "id", getattr(node, "arg", "")) for node in nodes if id(node) in within}
        for node in nodes:
            if why := self.wrong(node, own, inner):
                raise NotKernels(f"{function.name}: `{ast.unparse(node)[:60]}` {why}, in {self.line(node)}")

    def wrong(self, node, own: set[str], inner: set[str]) -> str:
        """Why a node is no part of a kernel; ``own``: names that it binds, ``inner``: that its comprehensions do."""
        if isinstance(node, ast.Import | ast.alias) and ast.unparse(node).removeprefix("import ") == "math":
            return ""
        if not isinstance(node, _NODES):
            return "is not part of what a kernel may say"
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            return "is assigned: elements are stored with tl.store"
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
            return "calls what has no name"
        if isinstance(node, ast.Attribute):
            return self.attribute(node, own | inner)
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        if _is_pythons_own(name) or name in _PYTHONS or name in _TAKEN - self.modules.keys() or name in inner & _LEAKED:
            return "is none of Triton's"
        if name in self.modules and name in own | inner:
            return "may not be replaced"
        if name and name not in own | inner | self.known | self.modules.keys() | _CALLED:
            raise Unfinished(f"NameError: name '{name}' is not defined in {self.line(node)}", name)
        return ""

    def line(self, node) -> str:
        """A node's line, as the learner wrote it."""
        return f"your line `{self.lines[node.lineno - 1].strip()[:200]}`"

    def attribute(self, node, local: set[str]) -> str:
        """Why an attribute is not to be asked for: of a module, or of a value."""
        root, _, rest = ast.unparse(node.value).partition(".")
        if root in self.modules and root not in local:
            module = importlib.import_module(self.modules[root])
            for part in filter(None, rest.split(".")):
                module = getattr(module, part, None)
            if isinstance(module, ModuleType):
                if not hasattr(module, node.attr):
                    what = f"AttributeError: module '{module.__name__}' has no attribute '{node.attr}'"
                    raise Unfinished(f"{what}, in {self.line(node)}")
                return "" if _public(module, node.attr) else "is on no list of what a kernel may use"
        mine = node.attr in of_values() | self.fields or node.attr.startswith(MEMBER)
        return "" if mine else "is nothing that a kernel may look at"


def _is_pythons_own(name: str) -> bool:
    """Whether a name is one of those that Python itself gives a meaning."""
    return name.startswith("__") and name.endswith("__")


def _public(module: ModuleType, name: str) -> bool:
    """Whether a module gives a name to kernels."""
    if module.__name__ == "triton":
        return name in ("cdiv", "next_power_of_2", "language")
    if module is tl:
        return name in tl.__all__ and name not in ("tensor", "inline_asm_elementwise")
    if module is math:
        return name[0] != "_"
    found = getattr(module, name)
    home = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", "triton.language")
    return module.__name__.startswith(_HOMES[:2]) and name[0] != "_" and home.startswith(_HOMES[:2])


@functools.cache
def of_values() -> set[str]:
    """What a tile, a pointer, a scalar, a type, a descriptor, a buffer, a tuple or a list offers inside a kernel."""
    kinds = [tl.tensor, tl.dtype, tl.block_type, tl.pointer_type, tl.constexpr, tl.tensor_descriptor]
    kinds += [gl.shared_memory_descriptor]
    found = {name for kind in kinds for name in dir(kind) if name[0] != "_"} - {"to_ir", "handle"}
    return found | set("shape type dtype element_ty numel value layout primitive_bitwidth append ALL NONE".split())


def _defined(node: ast.expr) -> object:
    """What a module of kernels itself defines, or a dtype; what it merely imported is somebody else's."""
    module, _, name = ast.unparse(node).rpartition(".")
    if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
        return getattr(torch, name)
    if not f"{module}.".startswith(tuple(f"{home}." for home in _HOMES)):
        raise NotKernels(f"{module}.{name} is nothing of a kernel")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise NotKernels(str(error)) from None
    if getattr(python_function(found) or found, "__module__", None) != module:
        raise NotKernels(f"{module}.{name} is nothing that {module} defines")
    return found
