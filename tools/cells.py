"""Cells of notebooks, executed outside of them: whole, or what they define and nothing of what they compute."""

import ast
import contextlib
import io
import linecache


def without_magics(source: str) -> str:
    """The same lines, those that only IPython understands left empty."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


def calls_nothing(value: ast.expr | None) -> bool:
    calls = [node for node in ast.walk(value) if isinstance(node, (ast.Call, ast.Await))] if value else []
    return all(isinstance(call, ast.Call) and ast.unparse(call.func).endswith("constexpr") for call in calls)


def needed(statement: ast.stmt) -> bool:
    """Whether a statement defines something and computes nothing: imports, functions, classes, and assignments that
    call nothing (``constexpr`` excepted)."""
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
        return True
    return isinstance(statement, (ast.Assign, ast.AnnAssign)) and calls_nothing(statement.value)


def execute(source: str, namespace: dict, *, whole: bool = True, name: str | None = None) -> str:
    """Execute a cell as IPython does, known to linecache under ``name``, where Triton reads it; returns what it prints.

    Not ``whole``: only what is ``needed``, a statement at a time; one that names what was left out is left out too.
    """
    filename = name or f"/turns/{len(linecache.cache)}.py"
    source = without_magics(source)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    body = ast.parse(source, filename).body
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for statement in body if whole else filter(needed, body):
            with contextlib.suppress(*([] if whole else [NameError])):
                exec(compile(ast.Module([statement], []), filename, "exec"), namespace)
    return printed.getvalue()
