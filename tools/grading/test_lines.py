"""What a clinic's test may say: Python that makes tensors, calls a launcher that it is given, and compares."""

import ast

from tools.grading import reading
from tools.grading import vocabulary as words
from tools.grading.lines import SHARED, Lines

MODULES = ("torch.nn", "torch.nn.functional", "torch.testing", "torch.Tensor", "np.random", "numpy.random")
DEEPER = ("torch.nn.functional.", "torch.testing.assert_", "torch.Tensor.", "np.testing.assert_", "numpy.testing.assert_")
DEEPER += ("np.random.", "numpy.random.")


class Test(Lines):
    """A clinic's test, or its diagnosis."""

    nodes = (
        *SHARED, ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Dict, ast.FunctionDef, ast.Lambda, ast.JoinedStr,
        ast.FormattedValue, ast.NamedExpr, ast.Raise, ast.DictComp, ast.SetComp, ast.Set, ast.Try, ast.ExceptHandler,
        ast.Match, ast.match_case, ast.pattern, ast.With, ast.withitem, ast.ClassDef,
    )  # fmt: skip
    place = "a test"
    builtins = words.IN_PROGRAMS_BUILTINS
    roots = {"torch": words.TORCH | words.TORCH_IN_TESTS, "np": words.NUMPY, "numpy": words.NUMPY}
    given_too = frozenset({"trace", "compare"})  # of the course's, where the notebook imports them

    def name(self, node):
        if node.id in self.roots and node.id not in self.given.names | self.own:
            self.refuse(node, self.foreign(node.id))
        super().name(node)

    def extra(self, node):
        return node.id in self.given.hosts or node.id in self.given_too and node.id in self.given.imports

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
        if isinstance(root, ast.Name) and root.id in self.roots and root.id not in local:
            path = reading.text_of(node)
            first = isinstance(node.value, ast.Name) and node.attr in self.roots[root.id]
            if not first and not path.startswith(DEEPER) and path not in MODULES:
                self.refuse(node, f"{path} is not on the list of what {self.place} may use")

    def member(self, node, name: str):
        """A member's name, in an attribute or in a pattern. A text that is filled in by ``format`` asks for attributes."""
        if name.startswith("_") or name.startswith(words.MACHINERY) or name in ("mro", "format", "format_map"):
            self.refuse(node, f".{name} belongs to Python's machinery: a test writes f-strings")

    def hold(self, statement, local):
        """As above; a pattern asks for attributes, too; and a module is asked for something, not kept."""
        for node in ast.walk(statement):
            for name in node.kwd_attrs if isinstance(node, ast.MatchClass) else ():
                self.member(node, name)
        super().hold(statement, local)
        asked = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in self.roots and node.id not in local and id(node) not in asked:
                self.refuse(node, f"{node.id} is asked for what it has, not kept")

    def call(self, node, local):
        """Any call."""
