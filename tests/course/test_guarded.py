"""No launch of an exercise ends the notebook's process: a wild address is a sentence wherever the learner's kernel runs."""

import ast
import json
import os
import subprocess
import sys

import nbformat
import pytest

from kernels import runtime
from tests.course.mutants import ROOT, targets
from tools.kernel_environment import kernel_environment, too_old_for

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="a GPU survives no wild address")
FUNCTIONS = {target.function: target.assignment for target in targets()}
# The others launch nothing of their own.
ASSIGNMENTS = sorted({name for name in FUNCTIONS.values() if name[:2] in ("01", "02", "05", "06", "08")})
WILD = "(1 << 45) + "  # elements: no memory is there

# The cells run in one process, as in a notebook; what each prints is told apart.
RUN = """
import contextlib, io, json, linecache, sys
namespace, printed = {}, {}
for name, source in json.loads(sys.stdin.read()):
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, file, "exec"), namespace)
    printed[name] = out.getvalue()
print(json.dumps(printed))
"""


def code_cells(name):
    notebook = nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def launches(cell) -> bool:
    """Whether a cell calls one of the exercise's functions itself."""
    called = {ast.unparse(node.func) for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)}
    defined = {node.name for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.FunctionDef)}
    return bool(called & FUNCTIONS.keys() - defined)


def trials(name):
    return [cell.id for cell in code_cells(name) if not cell.metadata.get("nbgrader", {}).get("grade") and launches(cell)]


@pytest.mark.share(5)
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_wild_address_is_a_sentence(name):
    """In every load and every store of the solution; each trial cell runs twice, as when one goes back to it."""
    if why := too_old_for(ROOT / "solutions" / name / f"{name}.ipynb"):
        pytest.skip(why)
    sources = []
    for cell in code_cells(name):
        fields = cell.metadata.get("nbgrader", {})
        if not fields.get("grade"):
            source = cell.source
            for access in ("tl.load(", "tl.store(") if fields.get("solution") else ():
                source = source.replace(access, access + WILD)
            sources.append((cell.id, source))
    tried = trials(name)
    again = [(f"{cell} again", source) for cell, source in sources if cell in tried]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([*sources, *again]),
        env=kernel_environment({**os.environ, "TRITON_INTERPRET": "1"}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = json.loads(done.stdout)
    for cell in tried:
        for run in (printed[cell], printed[f"{cell} again"]):
            assert "tl.store(" in run and (" outside " in run or "no tensor leads to" in run), run


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS.values())))
def test_every_launch_of_an_exercise_is_guarded(name):
    for cell in code_cells(name):
        if cell.id not in trials(name) or cell.id.startswith("show"):
            continue
        guarded = [
            ast.unparse(inner.func)
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, ast.With) and "check.guarded" in ast.unparse(node.items[0])
            for inner in ast.walk(node)
            if isinstance(inner, ast.Call)
        ]
        called = [ast.unparse(node.func) for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        for function in FUNCTIONS:
            assert guarded.count(function) == called.count(function), f"{cell.id}: {function}"
