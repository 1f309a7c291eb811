"""Lines of an answer cell that try the function out: honest, and not run when it is graded."""

import ast
import builtins

from tools.grading.gathered import needed
from tools.grading.given import is_constant, names_of
from tools.grading.vocabulary import IN_LAUNCHERS_BUILTINS

_NODES = (
    ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.Starred,
    ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.FormattedValue, ast.operator,
    ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def is_trial(statement, tree: ast.Module, taken: set[str]) -> bool:
    """Whether a statement only calls what the notebook has, and no function of the cell needs what it makes.

    It is not run, so it need not be harmless; what calls Python's own machinery is refused all the same, and named.
    taken: names that the exercise gives, which no trial binds.
    """
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Assign):
        bound = [name for target in statement.targets for name in names_of(target) or [None]]
        if None in bound or is_constant(value):
            return False
        names = {name.id for name in bound}
        if names & (taken | needed(tree)) or any(hasattr(builtins, name) or name.startswith("__") for name in names):
            return False
    elif not isinstance(statement, ast.Expr):
        return False
    if isinstance(value, ast.Constant):
        return False
    return all(isinstance(node, _NODES) and _is_ordinary(node) for node in ast.walk(value))


def _is_ordinary(node) -> bool:
    if isinstance(node, ast.Name):
        name, own = node.id, node.id in IN_LAUNCHERS_BUILTINS
        return own or not hasattr(builtins, name) and not name.startswith("__") and name != "get_ipython"
    return not isinstance(node, ast.Attribute) or not node.attr.startswith("_")


def blanked(source: str, statements: list) -> str | None:
    """``source`` with these statements' lines empty, and every other line at its number; None where a line is shared."""
    lines = source.split("\n")
    tree = ast.parse(source)
    gone = {(one.lineno, one.col_offset) for one in statements}
    for one in tree.body:
        if (one.lineno, one.col_offset) in gone:
            lines[one.lineno - 1 : one.end_lineno] = [""] * (one.end_lineno - one.lineno + 1)
    without = "\n".join(lines)
    kept = [ast.dump(one) for one in tree.body if (one.lineno, one.col_offset) not in gone]
    try:
        same = [ast.dump(one) for one in ast.parse(without).body] == kept
    except SyntaxError:
        return None
    return without if same else None
