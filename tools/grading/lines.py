"""The lists themselves: what a kernel, a launcher and a program may say, node by node."""

import ast
import builtins
from dataclasses import dataclass

from tools.grading import vocabulary as words
from tools.grading.given import Given, is_constant


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


_SHARED = (
    ast.Name, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript,
    ast.Slice, ast.Call, ast.Attribute, ast.keyword, ast.Starred, ast.Load, ast.Store, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.If, ast.For, ast.While,
    ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.arguments, ast.arg,
)  # fmt: skip
_IN_LAUNCHERS = (
    *_SHARED, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Dict, ast.FunctionDef, ast.Lambda, ast.JoinedStr,
    ast.FormattedValue, ast.NamedExpr, ast.Raise,
)  # fmt: skip
_IN_PROGRAMS = (
    *_IN_LAUNCHERS, ast.DictComp, ast.SetComp, ast.Set, ast.Try, ast.ExceptHandler, ast.Match, ast.match_case, ast.pattern,
)  # fmt: skip


class _Lines:
    """One function, or one statement, held to one list."""

    nodes = _SHARED
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
            self.refuse(node, f"{ast.unparse(node)} may not be assigned")
        base = ast.unparse(node.value)
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


class Kernel(_Lines):
    """A ``@triton.jit`` or ``@gluon.jit`` function."""

    builtins = words.IN_KERNELS_BUILTINS

    def __init__(self, *args):
        super().__init__(*args)
        known = {
            "import triton.language as tl": {"tl": words.TL, "tl.math": words.TL_MATH},
            "import triton": {"triton": words.TRITON, "triton.language": words.TL},
            "from triton.experimental.gluon import language as gl": {"gl": words.GL},
        }
        hopper = "from triton.experimental.gluon.language.nvidia.hopper import "
        self.roots, self.functions = {}, set()
        for name, text in self.given.imports.items():
            self.roots |= known.get(text, {})
            if text.startswith(hopper):
                module = {"mbarrier": words.MBARRIER, "tma": words.TMA}.get(name)
                self.roots |= {name: module} if module else {}
                self.functions |= set() if module else {name}

    def extra(self, node):
        return node.id in self.functions

    def function(self, function: ast.FunctionDef):
        """Hold a whole function to the list: its arguments, defaults and annotations, and its lines."""
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        if arguments.vararg or arguments.kwarg:
            self.refuse(function, "a kernel's arguments have names")
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            if not is_constant(default):
                self.refuse(default, "a kernel's default is a number")
        for argument in every:
            if argument.annotation is not None:
                self._annotation(argument.annotation)
            if argument.arg in self.roots or argument.arg.startswith("__"):
                self.refuse(argument, f"{argument.arg} is given, and no name for an argument")
        if function.returns is not None and ast.unparse(function.returns) != "None":
            self.refuse(function, "a kernel's result has no annotation")
        local = {argument.arg for argument in every} | stored_in(function)
        self.parameters = {argument.arg for argument in every}
        for statement in function.body:
            self.hold(statement, local)

    def _annotation(self, node):
        text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
        if text in ("int", "float", "bool"):
            return
        root, _, name = str(text).partition(".")
        if name not in self.roots.get(root, ()):
            self.refuse(node, "an argument of a kernel is a tl.constexpr or bears no annotation")

    def call(self, node, local):
        """A call of what Triton gives, of a kernel, of an argument that is a function, or of a tile's method."""
        super().call(node, local)
        if isinstance(node.func, ast.Name) and node.func.id in local - self.parameters:
            self.refuse(node, f"{node.func.id} is a value here, not a function")

    def hold(self, statement, local):
        """As above; and functions of Triton are called, not kept."""
        called = {id(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
        for node in ast.walk(statement):
            if isinstance(node, ast.AnnAssign):
                self._annotation(node.annotation)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
                outside = node.id in self.builtins or node.id in self.functions
                if outside and id(node) not in called:
                    self.refuse(node, f"{node.id} is called, not kept")
        super().hold(statement, local)


class Launcher(_Lines):
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
                self.refuse(node, f"{ast.unparse(node)} is not on the list of what {self.place} may use")
        super().attribute(node, local)

    def call(self, node, local):
        """A launch, or a call of a name or a method."""
        if isinstance(node.func, ast.Subscript) and isinstance(node.func.value, ast.Name):
            if node.func.value.id not in self.kernels:
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
        asked = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in ("torch", "tl") and node.id not in local and id(node) not in asked:
                self.refuse(node, f"a launcher may not use {node.id}, but for its dtypes")
        super().hold(statement, local)


class Program(_Lines):
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
            self.refuse(node, f"{ast.unparse(node)} may not be assigned")
        self.member(node, node.attr)
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id == "torch" and root.id not in local:
            if not isinstance(node.value, ast.Name) or node.attr not in self.roots["torch"]:
                self.refuse(node, f"{ast.unparse(node)} is not on the list of what {self.place} may use")

    def member(self, node, name: str):
        """A member's name, in an attribute or in a pattern."""
        if name.startswith("_") or name.startswith(words.MACHINERY) or name == "mro":
            self.refuse(node, f".{name} belongs to Python's machinery")

    def hold(self, statement, local):
        """As above; a pattern asks for attributes, too."""
        for node in ast.walk(statement):
            for name in node.kwd_attrs if isinstance(node, ast.MatchClass) else ():
                self.member(node, name)
        super().hold(statement, local)

    def call(self, node, local):
        """Any call."""


class Test(Program):
    """A clinic's test, or its diagnosis: Python that makes tensors, calls a launcher that it is given, and compares."""

    nodes = (*_IN_PROGRAMS, ast.With, ast.withitem)
    roots = {"torch": words.TORCH | words.TORCH_IN_TESTS}

    def extra(self, node):
        return super().extra(node) or node.id == "trace" and node.id in self.given.imports


def stored_in(function) -> set[str]:
    """Every name that a function binds: arguments of inner ones, too."""
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
