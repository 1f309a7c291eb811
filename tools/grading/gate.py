"""Which submitted lines may run at all: an allow-list over the syntax tree of the answer cells.

Only answer cells come from a student; all others are the released ones. In an answer cell

* a ``@triton.jit`` or ``@gluon.jit`` function speaks Triton's language and nothing else, so that what it stores can only
  come from what it loads, and a trace of it is true;
* a launcher looks at shapes and strides, and launches kernels;
* a program, the compiler of exercise 07, is Python without imports and without Python's own machinery. What it emits is
  text, which passes the first list before it runs.

What is on no list is refused, with its line and the reason. Nothing is executed here.
"""

import ast
import builtins
from dataclasses import dataclass, field

from tools.grading import vocabulary as words

MOST_CHARACTERS = 60_000
#: What str.splitlines takes for the end of a line and Python does not: behind one, a comment could hide a line of code.
_LINE_ENDS = frozenset("\r\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")


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


@dataclass
class Given:
    """What the released notebook's code cells give to an answer, by name."""

    kernels: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)  # functions, classes, tables
    constants: set[str] = field(default_factory=set)
    imports: dict[str, str] = field(default_factory=dict)  # name -> the import as text
    fields: set[str] = field(default_factory=set)  # of named tuples

    @property
    def names(self) -> set[str]:
        """All of them."""
        return self.kernels | self.hosts | self.constants | set(self.imports)

    def add(self, source: str) -> set[str]:
        """Learn what a released cell binds; returns those names."""
        before = self.names
        bound = set()
        for statement in ast.parse(source).body:
            bound |= self._learn(statement)
        return bound | (self.names - before)

    def _learn(self, statement) -> set[str]:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            found = _imports(statement)
            self.imports |= found
            return set(found)
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            (self.kernels if is_kernel(statement) else self.hosts).add(statement.name)
            return {statement.name}
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
            constant = statement.value is not None and is_constant(statement.value)
            (self.constants if constant and not isinstance(statement, ast.AugAssign) else self.hosts).update(names)
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("namedtuple"):
                    texts = [
                        node.value for arg in call.args[1:] for node in ast.walk(arg) if isinstance(node, ast.Constant)
                    ]
                    self.fields.update(word for text in texts for word in str(text).replace(",", " ").split())
            return names
        return set()


def _imports(statement) -> dict[str, str]:
    found = {}
    for alias in statement.names:
        one = ast.Import([alias]) if isinstance(statement, ast.Import) else ast.ImportFrom(statement.module, [alias], 0)
        if isinstance(statement, ast.ImportFrom) and statement.level:
            one.level = statement.level
        found[alias.asname or alias.name.split(".")[0]] = ast.unparse(one)
    return found


def is_kernel(statement) -> bool:
    """Whether a function is decorated with exactly ``@triton.jit`` or ``@gluon.jit``."""
    return isinstance(statement, ast.FunctionDef) and [ast.unparse(each) for each in statement.decorator_list] in (
        ["triton.jit"],
        ["gluon.jit"],
    )


def is_constant(node) -> bool:
    """A number, text, or what arithmetic makes of them."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, bytes)
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.Pow) and is_constant(node.left) and is_constant(node.right)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(is_constant, node.elts))
    if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
        return ast.unparse(node.func) in ("tl.constexpr", "gl.constexpr", "float") and is_constant(node.args[0])
    return False


_SHARED = (
    ast.Name, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript,
    ast.Slice, ast.Call, ast.Attribute, ast.keyword, ast.Starred, ast.Load, ast.Store, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.If, ast.For, ast.While,
    ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.arguments, ast.arg,
)  # fmt: skip
_IN_LAUNCHERS = (*_SHARED, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Dict)
_IN_PROGRAMS = (
    *_IN_LAUNCHERS, ast.FunctionDef, ast.Lambda, ast.JoinedStr, ast.FormattedValue, ast.NamedExpr, ast.DictComp, ast.SetComp,
    ast.Set, ast.Raise, ast.Try, ast.ExceptHandler, ast.Match, ast.match_case, ast.pattern,
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


class _Kernel(_Lines):
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
        if function.returns is not None:
            self.refuse(function, "a kernel's result has no annotation")
        local = {argument.arg for argument in every} | _stored(function)
        self.parameters = {argument.arg for argument in every}
        for statement in function.body:
            self.hold(statement, local)

    def _annotation(self, node):
        text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
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


class _Launcher(_Lines):
    """A function that launches kernels."""

    nodes = _IN_LAUNCHERS
    place = "a launcher"
    builtins = words.IN_LAUNCHERS_BUILTINS
    roots = {"triton": words.TRITON}

    def extra(self, node):
        return node.id in self.given.hosts

    def attributes(self):
        return words.IN_LAUNCHERS | self.given.fields

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
        super().hold(statement, local)


class _Program(_Lines):
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
        if node.attr.startswith("_") or node.attr.startswith(words.MACHINERY) or node.attr == "mro":
            self.refuse(node, f".{node.attr} belongs to Python's machinery")
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id == "torch" and root.id not in local:
            if not isinstance(node.value, ast.Name) or node.attr not in words.TORCH:
                self.refuse(node, f"{ast.unparse(node)} is not on the list of what {self.place} may use")

    def call(self, node, local):
        """Any call."""


def _stored(function) -> set[str]:
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


@dataclass(frozen=True)
class Answer:
    """What the gate says of one answer cell: why it may not run, or why Python cannot read it, or nothing."""

    refusals: tuple[Refusal, ...] = ()
    unreadable: str = ""


def check(cell: str, source: str, released: str, given: Given, program: bool = False) -> Answer:
    """Hold an answer cell to its list.

    cell: its name. source: what was submitted. released: the cell as it was released, which says what it defines and
    whether it holds functions besides kernels. given: what all released cells give. program: it is part of a compiler.
    """
    if source == released:
        return Answer()
    if len(source) > MOST_CHARACTERS:
        return Answer((Refusal(cell, 1, f"the cell has {len(source)} characters, {MOST_CHARACTERS} are the most"),))
    if strange := next((letter for letter in source if letter in _LINE_ENDS), None):
        why = f"the character {strange!r} ends a line for some readers of Python and not for others"
        return Answer((Refusal(cell, source[: source.index(strange)].count("\n") + 1, why),))
    try:
        tree, model = ast.parse(source), ast.parse(released)
    except SyntaxError as error:
        line = (error.text or "").strip()
        if line.startswith(("%", "!", "?")):
            return Answer((Refusal(cell, error.lineno or 1, f"`{line[:60]}` is a command of IPython, not Python"),))
        return Answer(unreadable=f"SyntaxError: {error.msg} in line {error.lineno} of your cell, `{line[:80]}`")
    except (ValueError, RecursionError, MemoryError) as error:
        return Answer((Refusal(cell, 1, f"Python cannot parse the cell: {type(error).__name__}"),))
    own = Given()
    for statement in model.body:
        own._learn(statement)
    mine = {statement.name for statement in tree.body if is_kernel(statement)}
    hosts = {s.name for s in tree.body if isinstance(s, ast.FunctionDef) and not is_kernel(s)}
    assigned = {
        node.id for s in tree.body if isinstance(s, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        for node in ast.walk(s) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }  # fmt: skip
    constants = {
        node.id for s in tree.body if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value and is_constant(s.value)
        for node in ast.walk(s) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }  # fmt: skip
    kernels, names = given.kernels | mine, hosts | assigned
    found, unreadable = [], ""
    for statement in tree.body:
        try:
            _statement(statement, cell, own, given, kernels, names, constants, program)
        except Refused as refused:
            found.append(refused.args[0])
        except Undefined as undefined:
            unreadable = unreadable or str(undefined)
        except RecursionError:
            found.append(Refusal(cell, statement.lineno, "this statement is nested too deeply"))
    return Answer(tuple(found), "" if found else unreadable)


def _statement(statement, cell, own, given, kernels, names, constants, program):
    """One statement of an answer cell at its top level."""
    lines = _Program(cell, given, kernels, names) if program else _Launcher(cell, given, kernels, names)
    allowed = own.names | {name for name in names | kernels if name not in given.names}

    def may_bind(name):
        if name not in allowed or name.startswith("__"):
            lines.refuse(statement, f"{name} is given by the exercise, and may not be defined anew")
        if name in words.IN_PROGRAMS_BUILTINS or name in ("torch", "tl", "triton", "check", "kernels"):
            lines.refuse(statement, f"{name} may not be defined anew")

    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        for name, text in _imports(statement).items():
            if given.imports.get(name) != text:
                lines.refuse(statement, f"`{text}`: an answer imports nothing")
    elif is_kernel(statement):
        may_bind(statement.name)
        _Kernel(cell, given, kernels, constants).function(statement)
    elif isinstance(statement, ast.FunctionDef):
        if statement.decorator_list:
            lines.refuse(statement, f"@{ast.unparse(statement.decorator_list[0])}: a kernel bears @triton.jit alone")
        if not program and not own.hosts & {n for n in own.hosts if n not in own.constants}:
            lines.refuse(statement, f"{statement.name} bears no @triton.jit: this cell takes kernels")
        may_bind(statement.name)
        for default in [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]:
            lines.hold(default, set())
        if not program and (
            statement.returns or any(arg.annotation for arg in ast.walk(statement.args) if isinstance(arg, ast.arg))
        ):
            lines.refuse(statement, "a launcher's arguments bear no annotations")
        local = _stored(statement)
        for inner in statement.body:
            lines.hold(inner, local)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                may_bind(target.id)
            elif not program:
                lines.refuse(statement, "an answer cell assigns to names")
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.annotation) not in (
            "tl.constexpr",
            "gl.constexpr",
        ):
            lines.refuse(statement, "a constant of kernels is a tl.constexpr")
        if statement.value is None or is_constant(statement.value):
            return
        if program:
            lines.hold(statement, set())
        elif not _joins(statement, own, given, kernels):
            lines.refuse(statement, "outside of functions, an answer cell assigns constants alone")
    elif (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) or isinstance(statement, ast.Pass)
    ):
        return
    elif program and isinstance(statement, (ast.For, ast.If, ast.Expr)):
        lines.hold(statement, _stored(statement))
    else:
        what = ast.unparse(statement).splitlines()[0][:60]
        lines.refuse(statement, f"`{what}`: an answer cell defines functions, and runs nothing itself")


def _joins(statement, own, given, kernels) -> bool:
    """``name = given_function(kernels)``, as the released cell has it."""
    call, target = statement.value, getattr(statement, "targets", [None])[0]
    named = isinstance(target, ast.Name) and target.id in own.names
    plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords
    return (
        named
        and plain
        and call.func.id in given.hosts
        and all(isinstance(a, ast.Name) and a.id in kernels for a in call.args)
    )


def emitted(text: str, given: Given, known: set[str]) -> Answer:
    """Hold emitted text to the list of kernels. known: kernels that it may call."""
    answer = check("emitted text", text, "", Given(known, set(), set(), given.imports, given.fields))
    if answer.refusals or answer.unreadable:
        return answer
    body = ast.parse(text).body
    functions = [statement for statement in body if is_kernel(statement)]
    if len(functions) != len(body):
        return Answer((Refusal("emitted text", 1, "the text holds one @triton.jit function and nothing else"),))
    return answer


def jit_functions_alone(source: str) -> str:
    """``source`` with every line blank that belongs to no function with a decorator."""
    lines, kept = source.splitlines(), set()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
            kept.update(range(statement.decorator_list[0].lineno, statement.end_lineno + 1))
    return "\n".join(line if number in kept else "" for number, line in enumerate(lines, 1))
