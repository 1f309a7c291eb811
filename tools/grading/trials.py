"""Lines of an answer cell that try the function out: honest, and not run when it is graded."""

import ast
import builtins

from tools.grading.gathered import needed
from tools.grading.given import imports_of, is_constant
from tools.grading.vocabulary import FOR_TRIALS, IN_LAUNCHERS_BUILTINS

_STATEMENTS = (
    ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Assert, ast.For, ast.While, ast.If, ast.With, ast.Try,
    ast.FunctionDef,
)  # fmt: skip
_NODES = (
    *_STATEMENTS, ast.withitem, ast.ExceptHandler, ast.Pass, ast.Break, ast.Continue, ast.Return, ast.Raise,
    ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.keyword, ast.Starred,
    ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.NamedExpr, ast.JoinedStr,
    ast.FormattedValue, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Lambda,
    ast.arguments, ast.arg, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def is_trial(statement, taken: set[str]) -> bool:
    """Whether a statement only tries out what the notebook has.

    It is not run, so it need not be harmless; what calls Python's own machinery is refused all the same, and named.
    taken: names that no trial binds: those that the exercise gives, that the answer is to define, or that it needs.
    """
    value = getattr(statement, "value", None)
    if not isinstance(statement, _STATEMENTS) or isinstance(statement, ast.Expr) and isinstance(value, ast.Constant):
        return False
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and (value is None or is_constant(value)):
        return False
    if getattr(statement, "decorator_list", ()):
        return False
    names = _bound(statement)
    if names & taken or any(map(_is_builtin, names)):
        return False
    return all(isinstance(node, _NODES) and _is_ordinary(node) for node in ast.walk(statement))


def is_unneeded(statement, taken: set[str]) -> bool:
    """Whether an import of a module that notebooks experiment with binds only names that nothing needs."""
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        return False
    texts = imports_of(statement)
    modules = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else [statement.module or "."]
    known = all(module.split(".")[0] in FOR_TRIALS for module in modules)
    return known and not any(name in taken or name == "*" or _is_builtin(name) for name in texts)


def _bound(statement) -> set[str]:
    """Names that a statement binds in the notebook."""
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def wanted(tree: ast.Module, own: set[str]) -> set[str]:
    """Names that an answer's own functions need: its kernels, those that it is to define, and what they call."""
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    kept = [one for one in functions if one.decorator_list or one.name in own]
    while True:
        names = needed(ast.Module(kept, []))
        more = [one for one in functions if one.name in names and one not in kept]
        if not more:
            return names
        kept += more


def _is_builtin(name: str) -> bool:
    return hasattr(builtins, name) or name.startswith("__")


def _is_ordinary(node) -> bool:
    if isinstance(node, ast.Name):
        name, known = node.id, (*IN_LAUNCHERS_BUILTINS, "__name__")
        return name in known or not _is_builtin(name) and name != "get_ipython"
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        return False
    return not isinstance(node, ast.Attribute) or not node.attr.startswith("_") and isinstance(node.ctx, ast.Load)


def blanked(source: str, statements: list) -> str | None:
    """``source`` with these statements' lines empty, and every other line at its number; None where a line is shared."""
    lines = source.split("\n")
    tree = ast.parse(source)
    gone = {(one.lineno, one.col_offset) for one in statements}
    for one in tree.body:
        if (one.lineno, one.col_offset) in gone:
            first = min([one.lineno, *(each.lineno for each in getattr(one, "decorator_list", ()))])
            lines[first - 1 : one.end_lineno] = [""] * (one.end_lineno - first + 1)
    without = "\n".join(lines)
    kept = [ast.dump(one) for one in tree.body if (one.lineno, one.col_offset) not in gone]
    try:
        same = [ast.dump(one) for one in ast.parse(without).body] == kept
    except SyntaxError:
        return None
    return without if same else None
