"""A cell that could not be read leaves the functions of the run before it: a check must not grade those."""

import ast
import re
import sys
import types

from kernels.check.explanations import is_theirs
from kernels.lab import _triton_private


def broken_since(fn) -> str:
    """What is wrong with the last cell that was to define ``fn`` or a kernel of it; empty where that cell was read."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return ""
    cells = [(cell, shell.transform_cell(cell)) for cell in shell.history_manager.input_hist_raw]
    for name in _names(fn):
        for raw, cell in reversed(cells):
            if not re.search(rf"^\s*def {name}\(", cell, re.MULTILINE):
                continue
            try:
                ast.parse(cell)
            except SyntaxError as error:
                line = (error.text or raw.splitlines()[error.lineno - 1]).strip()
                where = f"{error.msg} in its line {error.lineno}, `{line}`"
                graded = "What would be graded is the function that stood there before."
                return f"not checked, the cell that defines {name} was not read, {where}. {graded}"
            break
    return ""


def _names(fn, known: set | None = None) -> list[str]:
    """The functions of the learner's that ``fn`` is made of, by name."""
    known = set() if known is None else known
    function = _triton_private.python_function(fn)
    if not isinstance(function, types.FunctionType) or function in known:
        return []
    if not is_theirs(function.__code__.co_filename):
        return []
    known.add(function)
    names = [function.__name__]
    for used in function.__code__.co_names:
        names += _names(function.__globals__.get(used), known)
    return names
