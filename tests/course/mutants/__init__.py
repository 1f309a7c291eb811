"""Planted bugs: the solutions with one mistake each, and how the checks must catch them.

A mutant is a patch of a solution's source, taken out of its notebook, so that it never drifts from it. Each runs to its
end, passes a naive test (one aligned call, zeros around everything), and fails the property named for it.
``python -m tests.course.mutants`` writes docs/kill_table.md.
"""

import contextlib
import importlib
import io
import itertools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import nbformat
import torch

from kernels import check
from kernels.check import framework
from kernels.check.clinics.faulty_kernel import patched
from kernels.common.lines import unbroken
from kernels.lab.source import readable

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "docs" / "kill_table.md"

torch.set_num_threads(1)  # small tensors, and one pytest worker a core


@dataclass(frozen=True)
class Mutant:
    """``bug`` in words, the patch (old text, new text, ...), the property that must fail and a part of what it says.

    ``cell`` is the cell that is patched, the target's first unless named. ``fails`` is the property, or the verdict
    "compiles" or "cheap" itself.
    """

    name: str
    bug: str
    patch: tuple[str, ...]
    fails: str
    says: str
    cell: str = ""

    @property
    def verdict(self) -> str:
        """The verdict that must catch it."""
        return self.fails if self.fails in check.VERDICTS else "right"


def planted(*texts: str) -> tuple[Mutant, ...]:
    """Mutants as texts, an empty line between two of them.

    The first line is ``name: bug``, the last one ``property: what it says``. Between them stands the patch, as a diff shows
    it: what the ``-`` lines hold goes, and what the ``+`` lines hold comes in its place; without these, whole lines go. ``@``
    names the cell, ``…`` keeps two replacements apart.
    """
    made = []
    for text in "\n\n".join(part.strip("\n") for part in texts).split("\n\n"):
        first, *lines, last = text.split("\n")
        patch, cell = [], ""
        for sign, group in itertools.groupby(lines, key=lambda line: line[0]):
            part = "\n".join(line[2:] for line in group)
            if sign == "-":
                patch += [part + "\n", ""]
            elif sign == "+":
                patch[-2:] = [patch[-2].removesuffix("\n"), part]
            elif sign == "@":
                cell = part
        (name, bug), (fails, says) = (line.split(": ", 1) for line in (first, last))
        made.append(Mutant(name, bug, tuple(patch), fails, says, cell))
    return tuple(made)


class _Enough(BaseException):
    """What was to be seen is printed."""


class _Printed(io.StringIO):
    """What a check prints, a line a property."""

    def __init__(self, until: Callable[[str], bool] | None):
        super().__init__()
        self.until = until

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.endswith("\n") and self.until is not None and self.until(self.getvalue()):
            raise _Enough
        return written


@dataclass(frozen=True)
class Target:
    """A checked function: where its source is, the cells that hold its kernels, a naive test of it, its mutants."""

    assignment: str
    function: str
    cells: tuple[str, ...]
    naive: Callable
    mutants: tuple[Mutant, ...]

    def check(self, fn, until: Callable[[str], bool] | None = None, **how) -> tuple[int | None, str]:
        """Points and printed lines of this function's check; it is left, without points, where ``until(printed)`` holds."""
        printed, points = _Printed(until), None
        with contextlib.redirect_stdout(printed), contextlib.suppress(_Enough), unbroken():
            points = getattr(check, self.function)(fn, **how)
        return points, printed.getvalue()

    def check_properties(self, fn, wanted: Callable, until: Callable[[str], bool] | None = None) -> str:
        """What the check prints of the properties that ``wanted`` takes from all: each draws its own numbers, and is judged
        as in the whole check."""

        def of_these(exercise, *args, **how):
            return framework.check(replace(exercise, properties=tuple(wanted(exercise.properties))), *args, **how)

        with mock.patch.object(check, "_check", of_these):
            return self.check(fn, until, verdicts="right")[1]


_SERIAL = itertools.count()


def cells(assignment: str, folder: str = "solutions") -> dict[str, str]:
    """The source of each code cell, by id."""
    notebook = nbformat.read(ROOT / folder / assignment / f"{assignment}.ipynb", as_version=4)
    return {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "code"}


def submission(target: Target, patch: tuple[str, ...] = (), cell: str = "", folder: str = "solutions") -> Callable:
    """The function as a notebook defines it, with one of the target's cells patched."""
    sources, cell = cells(target.assignment, folder), cell or target.cells[0]
    sources[cell] = patched(sources[cell], patch)
    namespace = {}
    for name, source in sources.items():
        if name in ("setup", "launcher") or name.endswith("kernel"):
            filename = f"<{name} {next(_SERIAL)}>"  # Triton reads a kernel's source back by this name
            exec(readable(source, filename), namespace)
    return namespace[target.function]


def passes_naively(target: Target, fn) -> bool:
    """Whether ``fn`` runs to its end and gives the right answer in the target's naive test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return target.naive(fn)


def failures(printed: str) -> dict[str, str]:
    """What a check printed: failed property -> its line."""
    return dict(re.findall(r"(?:^|\r)FAILED  (.+?): (.*)$", printed, flags=re.MULTILINE))


def row(mutant: Mutant) -> str:
    """The mutant's line of the kill table: where a check catches it and how it says so."""
    return f"| {mutant.name} | {mutant.bug} | {mutant.fails} | {mutant.says} |"


def targets() -> tuple[Target, ...]:
    """Every checked function."""
    from tests.course.mutants import (
        chunked_attention,
        conv_wgrad,
        dynamic_conv,
        flash_attention,
        pipeline_clinic,
        recurrent_attention,
        row_softmax,
        score_mod_compiler,
        tiled_matmul,
    )

    several = (
        dynamic_conv,
        recurrent_attention,
        chunked_attention,
        flash_attention,
        score_mod_compiler,
        conv_wgrad,
        pipeline_clinic,
    )
    return (row_softmax.TARGET, tiled_matmul.TARGET, *(target for module in several for target in module.TARGETS))


def section(target: Target) -> str:
    """A target's part of the kill table."""
    header = ["| mutant | bug | caught at | with the diagnosis |", "|---|---|---|---|"]
    return "\n".join([f"## {target.assignment}: `{target.function}`", "", *header, *map(row, target.mutants)])


def slips() -> str:
    """What a lesson's own kernels and functions are with one slip in them, and the cause that the check tells."""
    parts = []
    for path in sorted((ROOT / "kernels" / "check" / "lessons").glob("lesson_*.py")):
        module = importlib.import_module(f"kernels.check.lessons.{path.stem}")
        for name, kernel in {**getattr(module, "KERNELS", {}), **getattr(module, "TURNS", {})}.items():
            parts += [f"### {name}", "", "| the lesson's own line | with the slip | what the check says |", "|---|---|---|"]
            parts += [f"| {_code(old)} | {_code(new)} | {said or _SEEN} |" for old, new, said in kernel.slips] + [""]
    return "\n".join(parts).rstrip()


_SEEN = "the access itself: outside its tensor, undefined where it is masked, or never stored"


def _code(text: str) -> str:
    lines = " ⏎ ".join(line.strip() for line in text.strip().splitlines()).replace("|", "\\|")
    return f"`{lines}`" if lines else "(left out)"


def table() -> str:
    """The kill table: what is declared here, and tests/course/test_mutants.py proves by running every mutant."""
    from tests.course import similarity

    parts = [
        "# Which check catches which bug\n\n"
        "Made by `python -m tests.course.mutants`, proved line by line by `tests/course/test_mutants.py`. Each bug is\n"
        "a patch of the solution that runs to its end and passes a naive test: one call whose sizes fill every block.\n"
        "It is caught by one verdict alone: *right*, at the property that is named, *compiles* or *cheap*.",
        *map(section, targets()),
        "## The lessons\n\n"
        "Each slip is planted into what a lesson's reader writes, by `tests/course/test_lesson_kernels.py`.\n\n"
        + slips(),
        "## How much of a solution is a lesson's code with other names\n\n"
        "By `python -m tests.course.similarity`: which share of the learner's token trigrams one cell has, too.\n\n"
        + "\n".join(similarity.table()),
    ]
    return "\n\n".join(parts) + "\n"
