"""An assignment as it was released: its cells, which of them are answers, and which check holds which function to what."""

import ast
import functools
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools.grading.answers import bound

#: Functions that write Triton as text: their cells are programs.
EMITTERS = {"emit_value": "value", "emit_gradient": "gradient"}
#: Kernels that run on the model of Gluon.
PIPELINES = ("mended_relay", "mended_tiles", "mended_halves")
#: How the checks of a clinic begin: of what a learner says, and of a test that they write.
CLINICS = ("diagnosis_", "finds_")
MOST_CALL = 2000  # characters of a check cell: what is longer is no call, and a parser would take all memory for it


class NotAnAssignment(ValueError):
    """A notebook that the judge cannot grade, and why."""


@dataclass(frozen=True)
class Check:
    """One check cell: ``check.name(function)``, worth ``points``."""

    cell: str
    name: str
    function: str
    points: float


@dataclass(frozen=True)
class Assignment:
    """A released notebook."""

    name: str
    notebook: nbformat.NotebookNode
    digest: str

    @functools.cached_property
    def cells(self) -> dict[str, nbformat.NotebookNode]:
        """Every cell that nbgrader knows, by grade_id."""
        return {grade_id(cell): cell for cell in self.notebook.cells if grade_id(cell)}

    @functools.cached_property
    def answers(self) -> dict[str, nbformat.NotebookNode]:
        """The code cells that a student writes."""
        return {name: cell for name, cell in self.cells.items() if is_answer(cell) and cell.cell_type == "code"}

    @functools.cached_property
    def derivations(self) -> set[str]:
        """The functions that ``check.derivation`` is given: nobody is marked on them, so their cells may be missing."""
        calls = re.findall(r"check\.derivation\([^,]+, (\w+)", "\n".join(cell.source for cell in self.cells.values()))
        return {name for name in self.answers if self.defines.get(name, set()) & set(calls)}

    @functools.cached_property
    def texts(self) -> dict[str, nbformat.NotebookNode]:
        """The cells that a person reads and marks: answers in words, and code that has points but no check."""
        return {name: cell for name, cell in self.cells.items() if is_answer(cell) and of(cell)["grade"]}

    @functools.cached_property
    def released(self) -> list[tuple[str, str]]:
        """Code cells that are executed before a check, in order: locked ones and answers, no check and no experiment."""
        kept = (cell for cell in self.notebook.cells if cell.cell_type == "code" and grade_id(cell))
        shown = ((grade_id(cell), cell.source) for cell in kept if not of(cell)["grade"])
        return [(name, source) for name, source in shown if "check.derivation(" not in source]

    @functools.cached_property
    def defines(self) -> dict[str, set[str]]:
        """What each of those cells binds."""
        return {name: bound(source) for name, source in self.released}

    @functools.cached_property
    def names(self) -> set[str]:
        """What all of them bind."""
        return set().union(*self.defines.values())

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        """The members of the named tuples that are released."""
        sources = "\n".join(source for _, source in self.released)
        made = re.findall(r"namedtuple\(\s*['\"]\w+['\"],(.*?)\)", sources, re.DOTALL)
        return frozenset(word for text in made for word in re.findall(r"\w+", text))

    @functools.cached_property
    def checks(self) -> list[Check]:
        """The check cells, in order."""
        found = []
        for name, cell in self.cells.items():
            if of(cell)["grade"] and not is_answer(cell):
                called = check_call(cell.source)
                if called is None:
                    raise NotAnAssignment(f"{self.name}: the check cell {name} is not `check.NAME(FUNCTION)`")
                found.append(Check(name, *called, float(of(cell)["points"])))
        return found

    @property
    def points(self) -> float:
        """The most that can be earned."""
        return sum(float(of(cell)["points"]) for cell in self.cells.values() if of(cell)["grade"])

    @property
    def program(self) -> bool:
        """Whether the answers write Triton as text."""
        return any(check.name in EMITTERS for check in self.checks)

    @property
    def pipelines(self) -> bool:
        """Whether the answers run on the model of Gluon."""
        return any(check.name in PIPELINES for check in self.checks)


def of(cell) -> dict:
    """A cell's nbgrader fields, or what stands for none."""
    fields = cell.metadata.get("nbgrader")
    fields = fields if isinstance(fields, dict) else {}
    return {"grade": False, "solution": False, "points": 0, "grade_id": ""} | fields


def grade_id(cell) -> str:
    """A cell's name among those that nbgrader knows."""
    name = of(cell)["grade_id"]
    return name if isinstance(name, str) else ""


def is_answer(cell) -> bool:
    """Whether a student writes the cell."""
    return of(cell)["solution"] is True


def check_call(source: str) -> tuple[str, str] | None:
    """The check's name and the function's of a cell that is ``check.name(function)``."""
    if len(source) > MOST_CALL:
        return None
    try:
        (statement,) = ast.parse(source).body
        call = statement.value
        module, name = call.func.value.id, call.func.attr
        (function,) = call.args
        return (name, function.id) if module == "check" and not call.keywords else None
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):
        return None


def read(path: Path) -> Assignment:
    """The assignment that a released notebook is."""
    return parse(path.stem, path.read_bytes())


def parse(name: str, data: bytes) -> Assignment:
    """The same, from the notebook's bytes."""
    notebook = nbformat.reads(data.decode(), as_version=4)
    return Assignment(name, notebook, hashlib.sha256(data).hexdigest())


def read_all(folder: Path) -> dict[str, Assignment]:
    """Every assignment of a release folder, by name."""
    found = {}
    for path in sorted(folder.glob("*/*.ipynb")):
        if path.parent.name == path.stem:
            try:
                found[path.stem] = read(path)
            except (ValueError, json.JSONDecodeError) as error:
                raise NotAnAssignment(f"{path}: {error}") from None
    return found
