"""What a hostile submission is made of: an attack, and the ways to plant it into exercise 01."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[3]
NAME = "01_row_softmax"
FULL = sum(
    cell.metadata.nbgrader.points
    for cell in nbformat.read(ROOT / "exercises" / NAME / f"{NAME}.ipynb", as_version=4).cells
    if cell.metadata.get("nbgrader", {}).get("grade")
)


@dataclass(frozen=True)
class Attack:
    """``plant(folder)`` writes the submission; then its status, its points, and a part of what is said of it."""

    name: str
    plant: Callable[[Path], None]
    status: str
    points: float | None
    says: str


def notebook(solved: bool, name: str = NAME) -> nbformat.NotebookNode:
    """The exercise as it was released, with or without its solution in the answer cells."""
    released = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4)
    if solved:
        answers = {cell.id: cell.source for cell in nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", 4).cells}
        for cell in released.cells:
            if cell.metadata.get("nbgrader", {}).get("solution"):
                lines = answers[cell.id].splitlines()
                cell.source = "\n".join(line for line in lines if "### " not in line)
    return released


def write(folder: Path, made: nbformat.NotebookNode, name: str = NAME) -> None:
    """Hand a notebook in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.ipynb").write_text(json.dumps(made))


def cell(made: nbformat.NotebookNode, name: str):
    """The cell with this id."""
    return next(one for one in made.cells if one.id == name)


def answer(source: str):
    """The answer cell holds nothing but this."""
    return edited(lambda made: cell(made, "kernel").update(source=source), solved=False)


def beside(source: str):
    """These lines stand before a right answer, in its cell."""
    return edited(
        lambda made: cell(made, "kernel").update(source=source + "\n" + cell(made, "kernel").source), solved=True
    )


def inside(line: str):
    """This line stands in a kernel of a right answer."""

    def edit(made):
        kernel = cell(made, "kernel")
        kernel.source = kernel.source.replace("    lanes = ", f"    {line}\n    lanes = ")

    return edited(edit, solved=True)


def added(source: str, solved: bool = False):
    """A cell before all others."""
    return edited(lambda made: made.cells.insert(0, nbformat.v4.new_code_cell(source)), solved)


def edited(edit, solved: bool):
    """A notebook after an edit."""

    def plant(folder: Path):
        made = notebook(solved)
        edit(made)
        write(folder, made)

    return plant


def raw(data: bytes | Callable[[Path], None]):
    """A file that is no notebook, or what a function puts in its place."""

    def plant(folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        if callable(data):
            data(folder)
        else:
            (folder / f"{NAME}.ipynb").write_bytes(data)

    return plant


def refused(name, plant, says):
    """A submission that cannot be graded: no mark, but a reason."""
    return Attack(name, plant, "refused", None, says)


def harmless(name, plant, says):
    """An attack outside the answer, which is unsolved: it does not count, is noted, and the answer earns nothing."""
    return Attack(name, plant, "graded", 0.0, says)
