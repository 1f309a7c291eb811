"""What an answer's cell binds and needs: one that was split is joined, and helpers that were written beside it are found.

What is taken along are definitions, which are read here and never run.
"""

import ast
import builtins
import itertools
import re
import symtable

from IPython.core.inputtransformer2 import TransformerManager

MOST_CHARACTERS = 60_000  # of one answer cell; Python's parser is asked to read nothing longer
MOST_PARTS, MOST_JOINED = 50, 10
#: A magic around Python.
AROUND = re.compile(r"\A([^\S\n]*\n)*%%(capture|time|timeit|prun)\b.*")
UNREADABLE = (SyntaxError, ValueError, RuntimeError, MemoryError)  # also a RecursionError, and IPython that gives up


def python(source: str) -> tuple[str, str]:
    """A cell as IPython hands it to Python, where its commands are calls; and why Python cannot read it, or nothing.

    What a magic measures or captures is the rest of its cell.
    """
    if len(source) > MOST_CHARACTERS:
        return "", f"the cell has {len(source)} characters, {MOST_CHARACTERS} are the most"
    try:
        source = TransformerManager().transform_cell(AROUND.sub("", source))
        ast.parse(source)
        return source, ""
    except SyntaxError as error:
        line = (error.text or "").strip()[:80]
        return source, f"SyntaxError: {error.msg} in line {error.lineno} of your cell, `{line}`"
    except UNREADABLE as error:
        return source, f"{type(error).__name__}: Python cannot look through the cell"


def bound(source: str) -> set[str]:
    """The names that a cell binds; none where Python cannot read it."""
    return _names(source)[0]


def _names(source: str) -> tuple[set[str], set[str]]:
    """What a cell binds, and what it, or a function in it, reads and does not bind."""
    source, error = python(source)
    try:
        table = symtable.symtable("" if error else source, "cell", "exec")
    except UNREADABLE:
        return set(), set()
    own = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported() or one.is_namespace()}
    return own, _read(table) - own - set(dir(builtins))


def _read(table) -> set[str]:
    found = {one.get_name() for one in table.get_symbols() if one.is_global() or table.get_type() == "module"}
    return found.union(*map(_read, table.get_children()))


def joined(parts: list[str], wanted: set[str]) -> str | None:
    """The parts of one answer as one text, where they define all of it together and none does alone; else None."""
    each = [bound(part) & wanted for part in parts[:MOST_JOINED]]
    whole = len(parts) <= MOST_JOINED and set().union(*each) == wanted and sum(map(len, each)) == len(wanted)
    return "\n\n".join(parts) if whole and wanted not in each else None


def helpers(source: str, others: list[str], known: set[str], lacking: set[str]) -> tuple[str, list[str]]:
    """``source`` with what it needs of other cells, and the names of that.

    others: sources of the other cells, in order. known: names that the release or another answer gives. lacking: names
    that the answer itself should define.
    """
    own, read = _names(source)
    if not (read | lacking) - own - known:  # nearly always, and to read every cell takes longer
        return source, []
    offered: dict[str, str] = {}
    for text, anew in itertools.chain.from_iterable(map(_definitions, others)):
        offered |= {name: text if anew else f"{offered.get(name, '')}\n{text}" for name in bound(text)}
    taken: dict[str, str] = {}
    while len(taken) < MOST_PARTS:
        own, read = _names("\n\n".join([source, *taken.values()]))
        wanted = (read | lacking) - own - known
        name = next((name for name in sorted(wanted) if name in offered), None)
        if name is None:
            break
        taken[name] = offered.pop(name)
    return "\n\n".join([source, *reversed(taken.values())]), [*taken]  # what another one needs comes before it


def _definitions(source: str) -> list[tuple[str, bool]]:
    """The texts of a cell's functions, classes, imports, assignments and conditions, and whether what they bind is new."""
    source, error = python(source)
    anew = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    kinds = (*anew, ast.AugAssign, ast.If, ast.Try)
    found = [one for one in ast.parse("" if error else source).body if isinstance(one, kinds)]
    begins = [min(each.lineno for each in [one, *getattr(one, "decorator_list", [])]) for one in found]
    lines = source.split("\n")
    texts = ["\n".join(lines[begin - 1 : one.end_lineno]) for begin, one in zip(begins, found)]
    return [(text, isinstance(one, anew)) for text, one in zip(texts, found)]
