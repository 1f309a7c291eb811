"""What a released notebook gives to an answer: names of kernels, functions, constants, imports; read, never executed."""

import ast
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from tools.grading import reading
from tools.grading.vocabulary import DTYPES, ITERTOOLS, MATH, TYPING


@dataclass
class Given:
    """What the released notebook's code cells give to an answer, by name."""

    kernels: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)  # functions, classes, tables
    constants: set[str] = field(default_factory=set)
    imports: dict[str, str] = field(default_factory=dict)  # name -> the import as text
    fields: set[str] = field(default_factory=set)  # of named tuples
    functions: dict[str, str] = field(default_factory=dict)  # name -> the function's syntax tree as text

    @property
    def names(self) -> set[str]:
        """All of them."""
        return self.kernels | self.hosts | self.constants | set(self.imports)

    def with_answers(self, answers: "Given") -> "Given":
        """These, and what answers define."""
        return Given(
            self.kernels | answers.kernels, self.hosts | answers.hosts, self.constants | answers.constants,
            self.imports, self.fields, self.functions,
        )  # fmt: skip

    def add(self, source: str) -> set[str]:
        """Learn what a released cell binds; returns those names."""
        before = self.names
        bound = set()
        for statement in ast.parse(source).body:
            bound |= self.learn(statement)
        return bound | (self.names - before)

    def learn(self, statement) -> set[str]:
        """Learn what one statement binds; returns those names."""
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            found = imports_of(statement)
            self.imports |= found
            return set(found)
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            (self.kernels if is_kernel(statement) else self.hosts).add(statement.name)
            if isinstance(statement, ast.FunctionDef):
                self.functions[statement.name] = ast.dump(statement)
            return {statement.name}
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            constant = statement.value is not None and is_constant(statement.value, self.constants)
            (self.constants if constant and not isinstance(statement, ast.AugAssign) else self.hosts).update(names)
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and reading.text_of(call.func).endswith("namedtuple"):
                    texts = [
                        node.value for arg in call.args[1:] for node in ast.walk(arg) if isinstance(node, ast.Constant)
                    ]
                    self.fields.update(word for text in texts for word in str(text).replace(",", " ").split())
            return names
        return set()


def imports_of(statement) -> dict[str, str]:
    """The names that an import binds, each with that import as text."""
    found = {}
    for alias in statement.names:
        one = ast.Import([alias]) if isinstance(statement, ast.Import) else ast.ImportFrom(statement.module, [alias], 0)
        if isinstance(statement, ast.ImportFrom) and statement.level:
            one.level = statement.level
        found[alias.asname or alias.name.split(".")[0]] = reading.text_of(one)
    return found


def is_pure(name: str, text: str) -> bool:
    """Whether an import, as text, binds ``name`` to what only reckons, ``math`` or a function of it, or to a type's name."""
    plain = (("math", MATH), ("typing", TYPING), ("itertools", ITERTOOLS))
    return (name, text) == ("math", "import math") or any(
        name in words and text == f"from {module} import {name}" for module, words in plain
    )


def is_kernel(statement) -> bool:
    """Whether a function is decorated with exactly ``@triton.jit`` or ``@gluon.jit``."""
    return isinstance(statement, ast.FunctionDef) and [reading.text_of(each) for each in statement.decorator_list] in (
        ["triton.jit"],
        ["gluon.jit"],
    )


def names_of(target) -> list[ast.Name] | None:
    """The names of an assignment's target: one, or a tuple of them; None where it is something else."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return parts if all(isinstance(part, ast.Name) for part in parts) else None


def _at_most(node, most: int) -> bool:
    """A power or shift of small numbers, which is a number: a large one would take all memory."""
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and abs(node.value) <= most


def is_constant(node, known: Collection[str] = ()) -> bool:
    """A number, text, a dtype, or what arithmetic and ``math`` make of them; ``known``: names of constants before it."""
    every = partial(is_constant, known=known)
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.Attribute):
        words = {"math": MATH, "torch": DTYPES, "tl": DTYPES}
        return node.attr in words.get(reading.text_of(node.value), ())
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, bytes)
    if isinstance(node, ast.UnaryOp):
        return every(node.operand)
    if isinstance(node, ast.BinOp):
        small = (
            not isinstance(node.op, (ast.Pow, ast.LShift)) or _at_most(node.right, 64) and _at_most(node.left, 1 << 20)
        )
        return small and every(node.left) and every(node.right)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(every, node.elts))
    if isinstance(node, ast.Call) and not node.keywords:
        made = reading.text_of(node.func)
        one = made in ("tl.constexpr", "gl.constexpr", "float") and len(node.args) == 1 and not holds_list(node)
        several = made in _OF_CONSTANTS or made.startswith("math.") and every(node.func)
        return (one or several) and all(map(every, node.args))
    return False


def holds_list(node) -> bool:
    """Whether a value has a list in it, which one call could fill for the next."""
    return any(isinstance(each, ast.List) for each in ast.walk(node))


_OF_CONSTANTS = ("int", "min", "max", "abs", "triton.cdiv", "triton.next_power_of_2")


def constants_of(tree: ast.Module, known: Collection[str] = ()) -> dict[ast.stmt, set[str]]:
    """A cell's assignments of constants, which may use those before them and ``known``, and the names that each binds."""
    found, names = {}, set(known)
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value and is_constant(statement.value, names):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            stored = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            found[statement] = {node.id for node in stored if isinstance(node.ctx, ast.Store)}
            names |= found[statement]
    return found
