"""Kernels as text, which the compiler reads in a process of ours: every statement of them must be one that could only be so.

A sandboxed process writes these texts, so they are read with the same distrust as an answer: imports of Triton alone,
constants, named tuples, and functions that pass the list of kernels.
"""

import ast
import dataclasses
import importlib
import re

from kernels.lab._triton_private import python_function
from kernels.lab.compile_report import OPTIONS, Prepared
from tools.grading import reading
from tools.grading.given import Given, is_constant
from tools.grading.kernel_lines import Kernel
from tools.grading.lines import Refusal, Refused, Undefined
from tools.grading.vocabulary import TORCH

MOST_CHARACTERS = 500_000
#: The first line of every text: behind it no comment can say in which encoding Python is to read the file.
_FIRST = "import triton as _triton, triton.language as _tl\n"
_GLUON = "triton.experimental.gluon.language"
#: Modules whose functions and classes a text may name.
_HOMES = ("triton.language", _GLUON, "kernels.check.emitted", "kernels.check.flash_mods")
_MODULES = ("collections", "math", "torch", "triton", *_HOMES)
_MAKERS = {"float", "tuple", "list", "set", "frozenset", "_tl.constexpr", "_tl.dtype", "collections.namedtuple"}
_TAKEN = {"_gluon", "math", "torch", "triton", "kernels", *(maker.split(".")[0] for maker in (*_MAKERS, "_triton"))}
_KEYWORD = r"(debug|noinline)=\w+|do_not_specialize\w*=[\[(][\w', ]*[\])]"
_JIT = re.compile(rf"(_triton|_gluon)\.jit\(({_KEYWORD}|, )*\)|_triton\.constexpr_function")


class NotKernels(ValueError):
    """A text that holds something else."""


class Unfinished(NotKernels):
    """A text that uses a name which it does not define, as one does whose kernel leaves before that line."""


def prepared(given: object, fields: set[str] = frozenset()) -> Prepared:
    """One launch for the compiler, as the sandbox gave it; ``fields``: members of named tuples. Raises ``NotKernels``."""
    if not isinstance(given, list) or len(given) != 6 or not all(isinstance(part, str) for part in given):
        raise NotKernels("a launch is six texts")
    kernel, text, *literals = given
    if len(text) > MOST_CHARACTERS or sum(map(len, literals)) > MOST_CHARACTERS:
        raise NotKernels("the text is too long")
    try:
        lines, signature, attributes, options = map(ast.literal_eval, literals)
        hold(text, fields)
    except NotKernels:
        raise
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise NotKernels(str(error)) from None
    whole = isinstance(lines, list) and all(isinstance(part, dict) for part in (signature, attributes, options))
    if not whole or options.keys() != set(OPTIONS):
        raise NotKernels("a launch's signature, attributes and options are tables")
    return Prepared(kernel, text, lines, signature, attributes, options, foreign=True)


def hold(text: str, fields: set[str] = frozenset()) -> None:
    """Raise ``NotKernels`` unless a module's text defines kernels and constants, and does nothing else."""
    if not text.startswith(_FIRST) or reading.LINE_ENDS & set(text):
        raise NotKernels("it begins in another way, or holds characters that end a line for some readers")
    tree, lines = ast.parse(text), text.split("\n")
    given = Given(fields=set(fields))
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            _free(statement.name)
            _function(statement, given, lines)
            given.kernels.add(statement.name)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                _module(alias.name)
                if alias.asname and (statement.lineno, alias.asname) not in ((1, "_triton"), (1, "_tl")):
                    if alias.asname != alias.name:
                        _free(alias.asname)
                    given.imports[alias.asname] = _as_released(alias)
        elif isinstance(statement, ast.ImportFrom):
            if ast.unparse(statement) != "from triton.experimental import gluon as _gluon":
                raise NotKernels(f"`{ast.unparse(statement)}` is no import of kernels")
        elif isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
            _value(statement.value)
            names = {target.id for target in statement.targets}
            for name in names:
                _free(name)
            (given.constants if is_constant(statement.value) else given.kernels).update(names - {"KERNEL", "VALUES"})
        else:
            raise NotKernels(f"`{ast.unparse(statement)[:60]}` defines no kernel")


def _free(name: str) -> None:
    if name in _TAKEN or name.startswith("__"):
        raise NotKernels(f"{name} may not be defined anew")


def _as_released(alias) -> str:
    """The import in the form in which notebooks have it, by which the list of kernels knows a module."""
    home, _, last = alias.name.rpartition(".")
    if alias.name == "triton.experimental.gluon.language":
        return f"from triton.experimental.gluon import language as {alias.asname}"
    if home.startswith("triton.experimental.gluon.language.nvidia.") and last == alias.asname:
        return f"from triton.experimental.gluon.language.nvidia.hopper import {last}"
    return f"import {alias.name}" + f" as {alias.asname}" * (alias.asname != alias.name)


def _module(name: str) -> None:
    if name not in _MODULES and not name.startswith(tuple(f"{home}." for home in _HOMES[:2])):
        raise NotKernels(f"{name} is no module of kernels")


def _function(statement, given, lines) -> None:
    decorators = [ast.unparse(each) for each in statement.decorator_list]
    if len(decorators) != 1 or not _JIT.fullmatch(decorators[0]):
        raise NotKernels(f"{statement.name} is no kernel")
    if why := reading.why_not(statement, lines):
        raise NotKernels(why)
    kernel = Kernel("text", given, given.kernels | {statement.name}, given.constants)
    try:
        kernel.function(statement)
    except Refused as refused:
        refusal: Refusal = refused.args[0]
        raise NotKernels(f"{statement.name}: {refusal.why}") from None
    except Undefined as undefined:
        raise Unfinished(str(undefined)) from None


def _value(node) -> None:
    """A constant, a name, what a module of kernels defines, or one of the makers with such values."""
    if isinstance(node, (ast.Constant, ast.Name)):
        return
    if isinstance(node, ast.Attribute):
        module, _, name = ast.unparse(node).rpartition(".")
        if module != "torch" or name not in TORCH:
            _defined(module, name)
        return
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = [*filter(None, node.keys), *node.values]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.Call):
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Call):  # the members of a named tuple, whose type is made on the spot
            if ast.unparse(node.func.func) != "collections.namedtuple":
                raise NotKernels(f"{ast.unparse(node.func)[:60]} is not called where kernels are defined")
            parts.append(node.func)
        elif (path := ast.unparse(node.func)) not in _MAKERS:
            module, _, name = path.rpartition(".")
            layout = _defined(module, name)
            if not (isinstance(layout, type) and dataclasses.is_dataclass(layout) and module.startswith(_GLUON)):
                raise NotKernels(f"{path[:60]} is not called where kernels are defined")
    else:
        raise NotKernels(f"`{ast.unparse(node)[:60]}` is no constant")
    for part in parts:
        _value(part)


def _defined(module: str, name: str) -> object:
    """The function or class that a module of kernels itself defines; one that it merely imported is somebody else's."""
    if module in ("collections", "math", "torch", "triton"):
        raise NotKernels(f"{module}.{name} is nothing of a kernel")
    _module(module)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise NotKernels(str(error)) from None
    if getattr(python_function(found) or found, "__module__", None) != module:
        raise NotKernels(f"{module}.{name} is nothing that {module} defines")
    return found
