"""The "Your turn" cells of a lesson: found in its notebook, their answers in the block below, and how both are run.

Nothing of a lesson is executed but what an answer needs: the `setup` cell, and of the cells between it and the turn
imports, definitions, and assignments that call nothing (``tl.constexpr`` excepted). A cell tagged ``needed-by-turns`` is
executed whole.
"""

import ast
import linecache
import os
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import nbformat
import torch

from kernels.lab.source import readable
from tools.cells import execute
from tools.kernel_environment import ROOT
from tools.lesson_kernels import ANSWER, replaced

import triton  # isort: skip
import triton.language as tl  # isort: skip

WHOLE = "needed-by-turns"


@dataclass(frozen=True)
class Turn:
    """One cell that the learner fills: its place in the notebook, its source, and the answer that stands below it."""

    path: Path
    index: int
    id: str
    source: str
    solution: str  # the Markdown cell after it

    @property
    def step(self) -> str:
        """The name of its check: ``01-guard`` for the cell ``guard-turn`` of lesson 01."""
        return f"{self.path.name[:2]}-{self.id.removesuffix('-turn')}"

    @property
    def answer(self) -> str:
        """The Python in its collapsed block; empty if there is none."""
        found = ANSWER.search(self.solution)
        return found[1] if found else ""

    @property
    def checked(self) -> list[str]:
        """The names that its `check.step` calls give."""
        calls = [node for node in ast.walk(ast.parse(self.source)) if isinstance(node, ast.Call)]
        return [c.args[0].value for c in calls if ast.unparse(c.func) == "check.step" and c.args]


def turns_of(path: Path) -> list[Turn]:
    """The turns of the notebook at ``path``, in order."""
    cells = nbformat.read(path, as_version=4).cells
    after = [cell.source if cell.cell_type == "markdown" else "" for cell in cells[1:]] + [""]
    return [
        Turn(path, i, cell.id, cell.source, after[i])
        for i, cell in enumerate(cells)
        if cell.cell_type == "code" and cell.id.endswith("-turn")
    ]


def lessons(root: Path = ROOT) -> list[Path]:
    return sorted(root.glob("notebooks/*.ipynb"))


def namespace_of(path: Path, place: int) -> dict:
    """What is defined where a notebook's cell begins, with the lesson's own kernels."""
    namespace = {"__name__": "__main__"}
    folder = os.getcwd()
    os.chdir(path.parent)
    try:
        for cell in nbformat.read(path, as_version=4).cells[:place]:
            if cell.cell_type == "code" and not cell.id.endswith("-turn"):
                whole = cell.id == "setup" or WHOLE in cell.metadata.get("tags", []) or "check.kernel(" in cell.source
                execute(cell.source, namespace, whole=whole)
    finally:
        os.chdir(folder)
    return namespace


def said(turn: Turn, answer: str | None = None) -> str:
    """What the turn's cell prints: as it stands, or with ``answer`` in place of the stub."""
    try:
        return execute(turn.source if answer is None else replaced(turn.source, answer), namespace_of(turn.path, turn.index))
    finally:
        torch.set_default_device(None)  # lesson 31 sets one


@triton.jit
def _mask_kernel(mask_ptr, N, keep: tl.constexpr):
    tl.store(mask_ptr + tl.arange(0, 8), keep(tl.arange(0, 8), N))


def masked(keep, N):
    """The ``run`` of a turn about a mask: which of eight lanes ``keep`` keeps of N."""
    mask = torch.empty(8, dtype=torch.bool)
    _mask_kernel[(1,)](mask, N, keep)
    return mask


def made_up(monkeypatch, wanted: dict, own: str) -> None:
    """Meanwhile there is a lesson 77 whose turns are ``wanted``, and whose own functions the text ``own`` defines."""
    data, module = (types.ModuleType(f"kernels.{part}.lesson_77") for part in ("check.lessons", "lessons"))
    data.TURNS = wanted
    text = f"import torch\nimport triton\nimport triton.language as tl\n\n\n{own}"
    exec(readable(text, f"/lesson/{len(linecache.cache)}.py"), vars(module))
    for one in (data, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
