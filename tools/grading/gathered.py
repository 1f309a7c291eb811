"""Answers that lie in more than one cell: one that was split, and helpers that were written beside it.

What is taken along are definitions, which are read here and never run.
"""

import ast
import builtins

from tools.grading import reading
from tools.grading.given import Given, imports_of, names_of
from tools.grading.vocabulary import MOST_CHARACTERS

MOST_PARTS, MOST_JOINED = 50, 10
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parsed(source: str) -> ast.Module | None:
    """A cell's syntax tree; None where Python cannot read it, or it is longer than any answer."""
    try:
        return ast.parse(reading.python(source)[0]) if len(source) <= MOST_CHARACTERS else None
    except _UNREADABLE:
        return None


def joined(parts: list[str], wanted: set[str]) -> str | None:
    """The parts of one answer as one text, where they define all of it together and none does alone; else None."""
    trees = [parsed(part) for part in parts[:MOST_JOINED]]
    if len(parts) > MOST_JOINED or None in trees:
        return None
    bound = [_bound(tree) for tree in trees]
    apart = sum(len(one & wanted) for one in bound) == len(wanted & set().union(*bound))
    whole = wanted <= set().union(*bound)
    return "\n\n".join(parts) if whole and apart and not any(wanted <= one for one in bound) else None


def _bound(tree: ast.Module) -> set[str]:
    given = Given()
    try:
        return {name for statement in tree.body for name in given.learn(statement)}
    except _UNREADABLE:  # a sum of thousands, a number of thousands of digits: the gate names them
        return set()


def names(source: str) -> set[str]:
    """What a cell binds; nothing where Python cannot read it."""
    tree = parsed(source)
    return _bound(tree) if tree else set()


def helpers(source: str, others: list[str], known: set[str], lacking: set[str]) -> tuple[str, list[str]]:
    """``source`` with what it needs of other cells, and the names of that.

    others: sources of the added cells, in order. known: names that the release or another answer gives. lacking: names
    that the answer itself should define.
    """
    offered = {}
    for other in others:
        for statement in getattr(parsed(other), "body", ()):
            for name in _defined(statement):
                offered[name] = other, statement
    taken: list[str] = []
    texts, seen = [source], set()
    while offered and len(taken) < MOST_PARTS:
        tree = parsed("\n".join(texts))
        wanted = (needed(tree) | lacking) - _bound(tree) - known if tree else set()
        name = next((name for name in sorted(wanted) if name in offered), None)
        if name is None:
            break
        other, statement = offered.pop(name)
        taken.append(name)
        if id(statement) not in seen:
            seen.add(id(statement))
            first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
            texts.append("\n" + "\n".join(other.split("\n")[first - 1 : statement.end_lineno]))
    return "\n".join(texts), taken


def _defined(statement) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return list(imports_of(statement))
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [name.id for target in targets for name in names_of(target) or ()]
    return []


def needed(tree: ast.Module) -> set[str]:
    """Names that the functions, classes and assignments of a cell read, and do not bind themselves."""
    found = set()
    for statement in tree.body:
        read, bound = set(), set()
        for node in ast.walk(statement) if _defined(statement) else ():
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.FunctionDef) and node is not statement:
                bound.add(node.name)
        found |= read - bound
    return {name for name in found if not hasattr(builtins, name)}
