"""What a kernel may say: Triton's language, or Gluon's, and nothing else."""

import ast

from tools.grading import reading
from tools.grading import vocabulary as words
from tools.grading.given import holds_list, is_constant
from tools.grading.lines import SHARED, Lines, Undefined, bound_in, is_pythons


class Kernel(Lines):
    """A ``@triton.jit`` or ``@gluon.jit`` function.

    A comprehension, a lambda, ``raise`` and Python's loops over two lists may be said: no compiler takes them, and the
    check's verdict says so, which is more than a refusal would.
    """

    nodes = (
        *SHARED, ast.ListComp, ast.GeneratorExp, ast.comprehension, ast.Lambda, ast.NamedExpr, ast.JoinedStr,
        ast.FormattedValue, ast.Raise,
    )  # fmt: skip
    builtins = words.IN_KERNELS_BUILTINS | words.EXCEPTIONS

    def __init__(self, *args):
        super().__init__(*args)
        known = {
            "import triton.language as tl": {"tl": words.TL, "tl.math": words.TL_MATH},
            "import triton": {"triton": words.TRITON, "triton.language": words.TL},
            "from triton.experimental.gluon import language as gl": {"gl": words.GL},
        }
        hopper = "from triton.experimental.gluon.language.nvidia.hopper import "
        self.roots, self.functions, self.types = {"math": words.NUMBERS}, set(), set()
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
            if holds_list(default) or not is_constant(default):
                self.refuse(default, "a kernel's default is a number")
        for argument in every:
            if argument.annotation is not None:
                self._annotation(argument.annotation)
            if argument.arg in self.roots or argument.arg.startswith("__"):
                self.refuse(argument, f"{argument.arg} is given, and no name for an argument")
        if function.returns is not None and _written(function.returns) not in ("None", *_TYPES):
            self.refuse(function, "a kernel's result is annotated with tl.tensor, or not at all")
        local = bound_in(function)
        self.functions_of_its_own = {argument.arg for argument in every} | _lambdas(function)
        for statement in function.body:
            self.hold(statement, local)

    def _annotation(self, node):
        text = _written(node)
        if text in _TYPES:
            return
        root, _, name = str(text).partition(".")
        if name not in self.roots.get(root, ()):
            self.refuse(node, "an argument of a kernel is a tl.constexpr or bears no annotation")

    def bound(self, node):
        """A name that is stored to: Triton's compiler takes it for what stands outside, wherever it reads it first."""
        super().bound(node)
        python = is_pythons(node.id) and node.id not in self.builtins
        if python or node.id in words.MODULES or node.id in self.given.imports:
            self.refuse(node, f"{node.id} means something already, and may not be replaced")

    def attribute(self, node, local):
        """As above; a type, which `_annotation` has seen, is no value; what Triton does not have is a mistake."""
        if id(node) in self.types:
            return
        if isinstance(node.value, ast.Name) and node.value.id == "tl" in self.roots and "tl" not in local:
            import triton.language as tl

            if isinstance(node.ctx, ast.Load) and not hasattr(tl, node.attr):
                what = f"AttributeError: module 'triton.language' has no attribute {node.attr!r}"
                raise Undefined(f"{what}, in line {node.lineno} of your cell")
        super().attribute(node, local)

    def _same_everywhere(self, statement):
        """Refuse to compare what is another object, or another text, where kernels are compiled."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Compare):
                asked = any(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops)
                none = all(isinstance(one, ast.Constant) and one.value is None for one in node.comparators)
                if asked and not none or any(isinstance(one, ast.JoinedStr) for one in ast.walk(node)):
                    why = "comes out otherwise when it is compiled: == compares numbers"
                    self.refuse(node, f"`{reading.text_of(node)[:60]}` {why}")

    def call(self, node, local):
        """A call of what Triton gives, of a kernel, of an argument or a lambda, or of a tile's method."""
        super().call(node, local)
        if isinstance(node.func, ast.Name) and node.func.id in local - self.functions_of_its_own:
            self.refuse(node, f"{node.func.id} is a value here, not a function")

    def hold(self, statement, local):
        """As above; and functions of Triton are called, not kept."""
        if "gl" in self.roots:  # a model runs it, which does not say what it ran, see sandboxed/arms.py
            self._same_everywhere(statement)
        called = {id(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)}
        for node in ast.walk(statement):
            if isinstance(node, ast.AnnAssign):
                self._annotation(node.annotation)
                self.types.add(id(node.annotation))
                called.add(id(node.annotation))  # `int` is named here, and not kept
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
                outside = node.id in words.IN_KERNELS_BUILTINS or node.id in self.functions
                if outside and id(node) not in called:
                    self.refuse(node, f"{node.id} is called, not kept")
        super().hold(statement, local)


_TYPES = ("int", "float", "bool", "tl.tensor", "torch.Tensor")


def _written(annotation) -> str:
    return str(annotation.value) if isinstance(annotation, ast.Constant) else reading.text_of(annotation)


def _lambdas(function) -> set[str]:
    """Names that a function binds to a lambda and to nothing else."""
    bound = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)]
    names = [target.id for node in bound for target in node.targets if isinstance(target, ast.Name)]
    stored = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {name for name in names if names.count(name) == stored.count(name)}
