"""What lines around kernels may say: a launcher, a program that writes Triton, a clinic's test."""

import ast

from tools.grading import reading
from tools.grading import vocabulary as words
from tools.grading.lines import SHARED, Lines

_IN_LAUNCHERS = (
    *SHARED, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Dict, ast.FunctionDef, ast.Lambda, ast.JoinedStr,
    ast.FormattedValue, ast.NamedExpr, ast.Raise,
)  # fmt: skip
_IN_PROGRAMS = (
    *_IN_LAUNCHERS, ast.DictComp, ast.SetComp, ast.Set, ast.Try, ast.ExceptHandler, ast.Match, ast.match_case, ast.pattern,
)  # fmt: skip


def kept(statement, modules, local: set[str]) -> list[ast.Name]:
    """Where modules are values themselves, and nothing is asked of them: under another name no list would hold for them."""
    asked = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id in modules)
    return [node for node in names if node.id not in local and id(node) not in asked]


class Launcher(Lines):
    """A function that launches kernels."""

    nodes = _IN_LAUNCHERS
    place = "a launcher"
    builtins = words.IN_LAUNCHERS_BUILTINS
    roots = {"triton": words.TRITON, "math": words.MATH, "torch": words.DTYPES, "tl": words.DTYPES}

    def extra(self, node):
        return node.id in self.given.hosts

    def attributes(self):
        return words.IN_LAUNCHERS | self.given.fields

    def attribute(self, node, local):
        """As above; what is imported for other cells is named before what is asked of it."""
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id not in local:
            self.name(root)
            if root.id in self.roots and not isinstance(node.value, ast.Name):
                self.refuse(node, f"{reading.text_of(node)} is not on the list of what {self.place} may use")
        super().attribute(node, local)

    def call(self, node, local):
        """A launch, or a call of a name or a method."""
        if isinstance(node.func, ast.Subscript) and isinstance(node.func.value, ast.Name):
            if node.func.value.id not in self.kernels | local:
                self.name(node.func.value)  # a misspelt one is a mistake
                self.refuse(node, f"{node.func.value.id} is no kernel of this notebook")
            return
        super().call(node, local)

    def hold(self, statement, local):
        """As above; and torch's operators are a kernel's work."""
        for node in ast.walk(statement):
            if isinstance(node, ast.MatMult):
                self.refuse(statement, "a launcher multiplies no matrices")
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                self.refuse(node, "a function inside a launcher bears no decorator")
        for node in kept(statement, ("torch", "tl"), local):
            self.refuse(node, f"a launcher may not use {node.id}, but for its dtypes")
        super().hold(statement, local)


class Program(Lines):
    """Python that writes Triton: functions, tables, text."""

    nodes = _IN_PROGRAMS
    place = "this cell"
    builtins = words.IN_PROGRAMS_BUILTINS
    roots = {"torch": words.TORCH, "aten": frozenset()}

    def name(self, node):
        if node.id in self.roots and node.id not in self.given.names:
            self.refuse(node, self.foreign(node.id))
        super().name(node)

    def extra(self, node):
        return node.id in self.given.hosts

    def stored(self, node):
        """Elements of tables are stored to."""

    def attribute(self, node, local):
        """Any attribute but those of Python's machinery."""
        if not isinstance(node.ctx, ast.Load):
            self.refuse(node, f"{reading.text_of(node)} may not be assigned")
        self.member(node, node.attr)
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id == "torch" and root.id not in local:
            if not isinstance(node.value, ast.Name) or node.attr not in self.roots["torch"]:
                self.refuse(node, f"{reading.text_of(node)} is not on the list of what {self.place} may use")

    def member(self, node, name: str):
        """A member's name, in an attribute or in a pattern."""
        if name.startswith("_") or name.startswith(words.MACHINERY) or name == "mro":
            self.refuse(node, f".{name} belongs to Python's machinery")

    def hold(self, statement, local):
        """As above; a pattern asks for attributes, too; and a module is asked for something, not kept."""
        for node in ast.walk(statement):
            for name in node.kwd_attrs if isinstance(node, ast.MatchClass) else ():
                self.member(node, name)
        super().hold(statement, local)
        for node in kept(statement, self.roots, local):
            self.refuse(node, f"{node.id} is asked for what it has, not kept")

    def call(self, node, local):
        """Any call."""


class Test(Program):
    """A clinic's test, or its diagnosis: Python that makes tensors, calls a launcher that it is given, and compares."""

    nodes = (*_IN_PROGRAMS, ast.With, ast.withitem)
    roots = {"torch": words.TORCH | words.TORCH_IN_TESTS}

    def extra(self, node):
        return super().extra(node) or node.id == "trace" and node.id in self.given.imports

    def member(self, node, name):
        """As above; a text that is filled in asks a kernel for its lines, and says which it is without calling it."""
        super().member(node, name)
        if name in ("format", "format_map"):
            self.refuse(node, f".{name} asks values for what they are made of: a test writes f-strings")
