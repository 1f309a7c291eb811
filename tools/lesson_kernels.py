"""Write ``kernels/lessons/lesson_NN.py`` from the notebooks: what a lesson goes on with where its reader has written nothing.

Of each cell that calls ``check.kernel`` it takes the kernel, with the answer below the cell in place of the kernel's ``...``;
of a turn whose check is data (``kernels/check/lessons``) the answer as it stands; and whatever of the notebook these use.
``make refresh`` calls it.
"""

import ast
import importlib
import re
import sys
import textwrap
from pathlib import Path

import nbformat

from tools.cells import without_magics
from tools.kernel_environment import ROOT

FOLDER = Path("kernels/lessons")
CHECK = re.compile(r"^(?:\w+ = )?check\.(kernel|step)\(\"(\d\d-[\w-]+)\"", re.MULTILINE)
DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
ANSWER = re.compile(r"<details>.*?```python\n(.*?)```.*?</details>", re.DOTALL)


def filled(source: str, answer: str) -> str:
    """A cell's text with ``answer`` in place of its line with ``...``, indented as that line is."""
    lines = source.splitlines()
    dots = [
        node.lineno - 1
        for node in ast.walk(ast.parse(without_magics(source)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...
    ]
    if len(dots) != 1:
        raise ValueError(f"the cell has {len(dots)} lines with `...` alone, needs one")
    place = dots[0]
    indent = " " * (len(lines[place]) - len(lines[place].lstrip()))
    lines[place : place + 1] = textwrap.indent(textwrap.dedent(answer), indent).rstrip().splitlines()
    return "\n".join(lines)


def with_answers(path: Path):
    """The notebook as its reader leaves it: each kernel's and each turn's answer in its place."""
    notebook = nbformat.read(path, as_version=4)
    for cell, below in zip(notebook.cells, notebook.cells[1:]):
        if cell.cell_type == "code" and (found := CHECK.search(cell.source)):
            answer = ANSWER.search(below.source if below.cell_type == "markdown" else "")
            if answer is None:
                raise ValueError(f"{path.name}: no answer stands below the cell {cell.id}, which checks {found[2]}")
            cell.source = (filled if found[1] == "kernel" else replaced)(cell.source, answer[1])
    return notebook


def replaced(source: str, answer: str) -> str:
    """A cell's text with ``answer`` in place of what it defines. ``ValueError`` if the cell defines none of it."""
    defined = {name for statement in ast.parse(answer).body for name in bound(statement)}
    lines = source.splitlines()
    stubs = [s for s in ast.parse(source).body if isinstance(s, DEFINITIONS) and defined.intersection(bound(s))]
    if not stubs:
        raise ValueError(f"the answer defines {sorted(defined)}, and its cell none of them")
    for stub in reversed(stubs):
        first = min([stub.lineno, *(d.lineno for d in getattr(stub, "decorator_list", []))])
        lines[first - 1 : stub.end_lineno] = answer.splitlines() if stub is stubs[0] else []
    return "\n".join(lines)


def checked(source: str) -> str:
    """The name of the kernel, or of the turn that is data, that a cell checks; empty if none."""
    found = CHECK.search(source)
    return found[2] if found and (found[1] == "kernel" or found[2] in turns(found[2][:2])) else ""


def turns(lesson: str) -> dict:
    """The turns of a lesson that are data."""
    try:
        return getattr(importlib.import_module(f"kernels.check.lessons.lesson_{lesson}"), "TURNS", {})
    except ModuleNotFoundError:
        return {}


def module(path: Path) -> str:
    """The text of a lesson's module; empty where the notebook checks nothing that it would hold."""
    known: dict[str, str] = {}  # name -> the statement that binds it where the notebook has come so far
    wanted: dict[str, str] = {}
    for cell in with_answers(path).cells:
        if cell.cell_type != "code":
            continue
        source = without_magics(cell.source)
        defined = {}
        for statement in ast.parse(source).body:
            if "check.kernel(" not in (text := _text(source, statement)):
                defined |= dict.fromkeys(bound(statement), text)
        if checked(cell.source):
            for name, text in defined.items():
                if text.lstrip().startswith(("@triton.jit", "def ")):
                    _need(name, text, known | defined, wanted)
                if text.lstrip().startswith("@triton.jit"):  # Triton's interpreter asks for it in a kernel's module
                    _need("tl", known["tl"], known, wanted)
        known |= defined
    if not wanted:
        return ""
    imports = sorted({text for text in wanted.values() if text.startswith(("import ", "from "))}, key=_order)
    others = list(dict.fromkeys(text for text in wanted.values() if text not in imports))
    doc = f'"""What lesson {path.name[:2]} goes on with, made from notebooks/{path.name}: see this package."""'
    blocks = ["\n".join(text for text in imports if _order(text)[0] == section) for section in range(3)]
    parts = ["\n\n".join(filter(None, blocks))] * bool(imports) + others
    texts = [doc, "", parts[0]]
    for before, text in zip(parts, parts[1:]):
        texts += ["\n" if "def " in text or "def " in before or before is parts[0] and "def " in text else "", text]
    return "\n".join(texts) + "\n"


def _need(name: str, text: str, known: dict[str, str], wanted: dict[str, str]) -> None:
    """Add a definition to what is wanted, after all that it uses."""
    if name in wanted:
        return
    if text.startswith(("import ", "from ")):
        wanted[name] = _import_of(name, text)
        return
    nodes = list(ast.walk(ast.parse(text)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    used = {node.id for node in names} - bound
    for other in sorted(used - {name}):
        if other in known and known[other] != text:
            _need(other, known[other], known, wanted)
    wanted[name] = text


def _import_of(name: str, text: str) -> str:
    """The part of an import that binds ``name``."""
    (statement,) = ast.parse(text).body
    statement.names = [alias for alias in statement.names if (alias.asname or alias.name.split(".")[0]) == name]
    return ast.unparse(statement)


def bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]


def _text(source: str, statement: ast.stmt) -> str:
    first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
    return "\n".join(source.splitlines()[first - 1 : statement.end_lineno])


def _order(text: str):
    """As the linter has imports: Python's own, others', ours; of each, whole modules first."""
    package = text.split()[1].partition(".")[0]
    return 0 if package in sys.stdlib_module_names else 2 if package == "kernels" else 1, text.startswith("from"), text


def write(root: Path = ROOT) -> list[Path]:
    """Write the modules of all lessons; returns those that changed."""
    changed = []
    for path in sorted(root.glob("notebooks/*.ipynb")):
        target, text = root / FOLDER / f"lesson_{path.name[:2]}.py", module(path)
        before = target.read_text() if target.exists() else ""
        if text != before:
            target.write_text(text) if text else target.unlink()
            changed.append(target)
    return changed


if __name__ == "__main__":
    sys.stdout.write("".join(f"{path.relative_to(ROOT)}\n" for path in write()))
