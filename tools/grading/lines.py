"""How lines are held to a list, node by node, and what a refusal says; the lists are ``kernel_lines`` and ``host_lines``."""

import ast
import builtins
import symtable
from dataclasses import dataclass

from tools.grading import reading
from tools.grading import vocabulary as words
from tools.grading.given import Given


@dataclass(frozen=True)
class Refusal:
    """A line that may not run: its cell, its number there, and why."""

    cell: str
    line: int
    why: str

    def __str__(self):
        return f"cell {self.cell}, line {self.line}: {self.why}"


class Refused(Exception):
    """Raised with a ``Refusal``."""


class Undefined(Exception):
    """Raised with the sentence on a name that nothing defines: a mistake, which earns its diagnosis, and no offence."""


SHARED = (
    ast.Name, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript,
    ast.Slice, ast.Call, ast.Attribute, ast.keyword, ast.Starred, ast.Load, ast.Store, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.If, ast.For, ast.While,
    ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.arguments, ast.arg,
)  # fmt: skip


class Lines:
    """One function, or one statement, held to one list."""

    nodes = SHARED
    place = "a kernel"

    def __init__(self, cell: str, given: Given, kernels: set[str], own: set[str]):
        self.cell, self.given, self.kernels, self.own = cell, given, kernels, own

    def refuse(self, node, why: str):
        """Raise the refusal of a node."""
        raise Refused(Refusal(self.cell, getattr(node, "lineno", 1), why))

    def hold(self, statement, local: set[str]) -> None:
        """Hold every node below ``statement`` to the list."""
        for node in ast.walk(statement):
            if not isinstance(node, self.nodes):
                self.refuse(node, f"{_called(node)} is not part of what {self.place} may say")
            if isinstance(node, ast.Name):
                if node.id.startswith("__"):
                    self.refuse(node, f"{node.id} belongs to Python's machinery")
                if isinstance(node.ctx, ast.Load) and node.id not in local:
                    self.name(node)
                elif isinstance(node.ctx, ast.Store):
                    self.bound(node)
            elif isinstance(node, ast.Attribute):
                self.attribute(node, local)
            elif isinstance(node, ast.Call):
                self.call(node, local)
            elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                self.refuse(node, "bytes are nothing that an answer needs")
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                self.stored(node)

    def name(self, node):
        """A name that the function itself does not bind."""
        if node.id in self.kernels or node.id in self.own or node.id in self.given.constants:
            return
        if node.id in self.builtins or node.id in self.roots:
            return
        if not self.extra(node):
            if node.id not in self.given.names and not hasattr(builtins, node.id) and node.id not in words.LEAKED:
                raise Undefined(f"NameError: name '{node.id}' is not defined, in line {node.lineno} of your cell")
            self.refuse(node, self.foreign(node.id))

    builtins: frozenset = frozenset()
    roots: dict = {}

    def extra(self, node) -> bool:
        """Names beyond kernels and constants."""
        return False

    def foreign(self, name: str) -> str:
        """Why a name is refused."""
        if name in self.given.imports:
            return f"{self.place} may not use {name}: it is imported for other cells"
        if name in self.given.names:
            return f"{self.place} may not use {name}"
        if hasattr(builtins, name):
            return f"{self.place} may not use {name}, a function of Python's own"
        return f"{self.place} may not use {name}, which no line of the exercise gives"

    def bound(self, node):
        """A name that is stored to."""
        if node.id in self.roots:
            self.refuse(node, f"{node.id} is given, and may not be replaced")

    def stored(self, node):
        """An assignment to an element."""
        self.refuse(node, f"{self.place} assigns to names; elements are stored with tl.store")

    def attribute(self, node, local):
        """An attribute: of a module that is given, or one that values have."""
        if not isinstance(node.ctx, ast.Load):
            self.refuse(node, f"{reading.text_of(node)} may not be assigned")
        base = reading.text_of(node.value)
        if base in self.roots and base.split(".")[0] not in local:
            if node.attr not in self.roots[base] and f"{base}.{node.attr}" not in self.roots:
                self.refuse(node, f"{base}.{node.attr} is not on the list of what {self.place} may use")
        elif node.attr not in self.attributes() or node.attr.startswith("_"):
            self.refuse(node, f"{self.place} may not look at .{node.attr}")

    def attributes(self) -> frozenset:
        """Attributes that values have."""
        return words.IN_KERNELS | self.given.fields

    def call(self, node, local):
        """A call: of a name or of an attribute."""
        if not isinstance(node.func, (ast.Name, ast.Attribute)):
            self.refuse(node, f"{self.place} calls functions by their names")


def _called(node) -> str:
    """A node in words."""
    known = {
        "Import": "an import", "ImportFrom": "an import", "Lambda": "a lambda", "JoinedStr": "a formatted text",
        "ClassDef": "a class", "Try": "try", "With": "with", "Global": "global", "Nonlocal": "nonlocal", "Delete": "del",
        "ListComp": "a comprehension", "GeneratorExp": "a generator", "FunctionDef": "a function inside a function",
        "NamedExpr": ":=", "Await": "await", "Yield": "yield", "Dict": "a dict", "Raise": "raise",
    }  # fmt: skip
    return known.get(type(node).__name__, type(node).__name__)


def is_pythons(name: str) -> bool:
    """Whether a name means something of Python's own that an answer must not stand in for."""
    return hasattr(builtins, name) and name not in words.OWN_IN_KERNELS


def bound_in(function) -> set[str]:
    """Every name that a function binds, and that is nowhere in it what stands outside: ``[0 for x in y]`` binds no ``x``."""
    try:
        inside = symtable.symtable(reading.text_of(ast.Module([function], [])), "cell", "exec").get_children()
    except SyntaxError as error:  # which the parser leaves to what comes after it: an argument twice
        raise Undefined(f"SyntaxError: {error.msg} in {function.name}, line {function.lineno} of your cell") from None
    (table,) = (each for each in inside if (each.get_type(), each.get_name()) == ("function", function.name))
    return _stored_in(function) - _of_outside(table)


def _of_outside(table) -> set[str]:
    """Names that a scope, or one in it, reads from outside of all."""
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return found.union(*map(_of_outside, table.get_children()))


def bound_at_top(statement, given: Given) -> set[str]:
    """Names that a statement of the cell itself binds, which before it are what they were."""
    names = _stored_in(statement)
    return {name for name in names if not hasattr(builtins, name)} - given.names - words.LEAKED


def _stored_in(function) -> set[str]:
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.MatchAs, ast.MatchStar)) and node is not function and node.name:
            found.add(node.name)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found
