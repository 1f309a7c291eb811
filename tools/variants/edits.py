"""How a variation changes a solution's notebook: pieces of text, each of which must be there, exactly once."""

import re

import nbformat


class OutOfDate(ValueError):
    """A solution's text is no longer what a variation replaces."""


#: For a cell's id, old and new text in turn. ("", new) stands for the whole cell, and a pattern for each place that it fits.
Edits = dict[str, tuple[str | re.Pattern, ...]]


def apply(notebook: nbformat.NotebookNode, edits: Edits) -> None:
    """Make the changes in place. Raises ``OutOfDate``."""
    cells = {cell.id: cell for cell in notebook.cells}
    for name, pairs in edits.items():
        if name not in cells:
            raise OutOfDate(f"there is no cell {name}")
        for old, new in zip(pairs[::2], pairs[1::2], strict=True):
            cells[name].source = _replaced(name, cells[name].source, old, new)


def _replaced(name: str, source: str, old: str | re.Pattern, new: str) -> str:
    if isinstance(old, re.Pattern):
        made, places = old.subn(new, source)
        if not places:
            raise OutOfDate(f"cell {name}: {old.pattern!r} fits nothing")
        return made
    if not old:
        return new
    if source.count(old) != 1:
        raise OutOfDate(f"cell {name}: {old!r} occurs {source.count(old)} times, it must occur once")
    return source.replace(old, new)


def say_what_is_asked(notebook: nbformat.NotebookNode, varied: dict) -> None:
    """Hand ``varied`` to each check of the notebook."""
    said = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            call = re.compile(r"^((?:\w+ = )?check\.(?!guarded|case)\w+\(.+)\)$", re.MULTILINE)
            cell.source, found = call.subn(rf"\1, varied={varied!r})", cell.source)
            said += found
    if not said:
        raise OutOfDate("no cell calls a check")


def number(n: float) -> str:
    """A signed offset in a formula: `` + 2``, `` - 1``, nothing for 0."""
    return f" {'-' if n < 0 else '+'} {abs(n):g}" if n else ""
