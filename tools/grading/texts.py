"""Kernels as text, which the compiler reads in a process of ours: every statement of them must be one that could only be so.

A contestant writes these texts, so they are read with the same distrust as an answer: imports of Triton alone, constants,
named tuples, and functions that pass the list of kernels.
"""

import ast

from kernels.lab.compile_report import Prepared
from tools.grading.given import Given, is_constant
from tools.grading.lines import Kernel, Refusal, Refused, Undefined
from tools.grading.vocabulary import TORCH

MOST_CHARACTERS = 500_000
_MODULES = ("triton", "kernels.check.flash_mods", "kernels.check.score_mod_compiler")
_MAKERS = {"float", "tuple", "list", "set", "frozenset", "_tl.constexpr", "_tl.dtype", "collections.namedtuple"}
_DECORATORS = {"_triton.jit()", "_gluon.jit()"}


class NotKernels(ValueError):
    """A text that holds something else."""


def prepared(given: object, fields: set[str] = frozenset()) -> Prepared:
    """One launch for the compiler, as a contestant wrote it; ``fields``: members of named tuples. Raises ``NotKernels``."""
    if not isinstance(given, list) or len(given) != 6 or not all(isinstance(part, str) for part in given):
        raise NotKernels("a launch is six texts")
    kernel, text, *literals = given
    if len(text) > MOST_CHARACTERS or sum(map(len, literals)) > MOST_CHARACTERS:
        raise NotKernels("the text is too long")
    try:
        lines, signature, attributes, options = map(ast.literal_eval, literals)
        hold(text, fields)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise NotKernels(str(error)) from None
    whole = isinstance(lines, list) and all(isinstance(part, dict) for part in (signature, attributes, options))
    if not whole or set(options) != {"num_warps", "num_stages", "maxnreg"}:
        raise NotKernels("a launch's signature, attributes and options are tables")
    return Prepared(kernel, text, lines, signature, attributes, options)


def hold(text: str, fields: set[str] = frozenset()) -> None:
    """Raise ``NotKernels`` unless a module's text defines kernels and constants, and does nothing else."""
    tree = ast.parse(text)
    given, fields = Given(), set(fields)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "collections.namedtuple":
            fields.update(
                str(each.value) for part in node.args[1:] for each in ast.walk(part) if isinstance(each, ast.Constant)
            )
    given.fields = fields
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            _function(statement, given)
            given.kernels.add(statement.name)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                _module(alias.name)
                if alias.asname:
                    given.imports[alias.asname] = _as_released(alias)
        elif isinstance(statement, ast.ImportFrom):
            if ast.unparse(statement) != "from triton.experimental import gluon as _gluon":
                raise NotKernels(f"`{ast.unparse(statement)}` is no import of kernels")
        elif isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
            _value(statement.value)
            names = {target.id for target in statement.targets}
            (given.constants if is_constant(statement.value) else given.kernels).update(names - {"KERNEL", "VALUES"})
        else:
            raise NotKernels(f"`{ast.unparse(statement)[:60]}` defines no kernel")


def _as_released(alias) -> str:
    """The import in the form in which notebooks have it, by which the list of kernels knows a module."""
    home, _, last = alias.name.rpartition(".")
    if alias.name == "triton.experimental.gluon.language":
        return f"from triton.experimental.gluon import language as {alias.asname}"
    if home.startswith("triton.experimental.gluon.language.nvidia.") and last == alias.asname:
        return f"from triton.experimental.gluon.language.nvidia.hopper import {last}"
    return f"import {alias.name}" + f" as {alias.asname}" * (alias.asname != alias.name)


def _module(name: str) -> None:
    if name not in ("collections", "torch") and not any(name == one or name.startswith(f"{one}.") for one in _MODULES):
        raise NotKernels(f"{name} is no module of kernels")


def _function(statement, given) -> None:
    decorators = [ast.unparse(each) for each in statement.decorator_list]
    if len(decorators) != 1 or decorators[0] not in _DECORATORS:
        raise NotKernels(f"{statement.name} is no kernel")
    try:
        Kernel("text", given, given.kernels | {statement.name}, given.constants).function(statement)
    except Refused as refused:
        refusal: Refusal = refused.args[0]
        raise NotKernels(f"{statement.name}: {refusal.why}") from None
    except Undefined as undefined:
        raise NotKernels(str(undefined)) from None


def _value(node) -> None:
    """A constant, a name, what a module of kernels holds, or one of the makers with such values."""
    if isinstance(node, (ast.Constant, ast.Name)):
        return
    if isinstance(node, ast.Attribute):
        path = ast.unparse(node)
        if any(part.startswith("_") and part not in ("_tl", "_triton", "_gluon") for part in path.split(".")):
            raise NotKernels(f"{path} belongs to Python's machinery")
        if path.split(".")[0] == "torch":
            if path.removeprefix("torch.") not in TORCH:
                raise NotKernels(f"{path} is no dtype")
        elif path.split(".")[0] not in ("_tl", "_triton", "_gluon"):
            _module(path)
        return
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = [*filter(None, node.keys), *node.values]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.Call):
        made = node.func.func if isinstance(node.func, ast.Call) else node.func
        path = ast.unparse(made)
        if path not in _MAKERS and not path.startswith("triton.experimental.gluon.language."):
            raise NotKernels(f"{path[:60]} is not called where kernels are defined")
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        parts += node.func.args if isinstance(node.func, ast.Call) else []
    else:
        raise NotKernels(f"`{ast.unparse(node)[:60]}` is no constant")
    for part in parts:
        _value(part)
