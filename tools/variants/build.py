"""A course folder of its own, whose exercises ask something else than the published ones: drawn from a seed.

Each varied exercise has one choice (``kernels.check.variations``). Text and solution are the published ones with the pieces
replaced that depend on it; the check is told it in its cell, and its answers, diagnoses and points follow. Exercises that
can be asked in one way only stand there as they are published.
"""

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

from kernels.check.chunked_attention import OUTPUTS, STATES
from kernels.check.conv_problem import Filter
from kernels.check.conv_wgrad import IM2COL, SPLIT, WGRAD
from kernels.check.dynamic_conv import DWEIGHT, DX, FORWARD
from kernels.check.dynamic_conv_mistakes import Window
from kernels.check.flash_attention import BACKWARD as FLASH_BACKWARD
from kernels.check.flash_attention import FORWARD as FLASH_FORWARD
from kernels.check.flash_lists import LISTS
from kernels.check.flash_variations import Scored
from kernels.check.framework import Exercise
from kernels.check.recurrence import Chunked, Gated
from kernels.check.recurrent_attention import BACKWARD as RECURRENT_BACKWARD
from kernels.check.recurrent_attention import FORWARD as RECURRENT_FORWARD
from kernels.check.recurrent_attention import GATE
from kernels.check.row_softmax import EXERCISE as ROW_SOFTMAX
from kernels.check.row_softmax import Softmax
from kernels.check.score_mod_compiler import GRADIENT, VALUE
from kernels.check.score_mod_mistakes import Unit
from kernels.check.tiled_matmul import EXERCISE as TILED_MATMUL
from kernels.check.tiled_matmul import Packing
from kernels.check.variations import Variation
from tools.variants import (
    chunked_attention,
    conv_wgrad,
    dynamic_conv,
    flash_attention,
    recurrent_attention,
    row_softmax,
    score_mod_compiler,
    tiled_matmul,
)
from tools.variants import edits as pieces

COPIED = ("nbgrader_config.py", "roster.csv", "course.toml")


@dataclass(frozen=True)
class Varied:
    """An exercise that can be asked in several ways: its choices, its functions as checked, its changes of text."""

    variation: type[Variation]
    exercises: tuple[Exercise, ...]
    edits: Callable[..., pieces.Edits]


TABLE = {
    "01_row_softmax": Varied(Softmax, (ROW_SOFTMAX,), row_softmax.edits),
    "02_tiled_matmul": Varied(Packing, (TILED_MATMUL,), tiled_matmul.edits),
    "03_dynamic_conv": Varied(Window, (FORWARD, DX, DWEIGHT), dynamic_conv.edits),
    "04_recurrent_attention": Varied(Gated, (RECURRENT_FORWARD, RECURRENT_BACKWARD, GATE), recurrent_attention.edits),
    "05_chunked_attention": Varied(Chunked, (STATES, OUTPUTS), chunked_attention.edits),
    "06_flash_attention": Varied(Scored, (FLASH_FORWARD, LISTS, FLASH_BACKWARD), flash_attention.edits),
    "07_score_mod_compiler": Varied(Unit, (VALUE, GRADIENT), score_mod_compiler.edits),
    "08_conv_wgrad": Varied(Filter, (IM2COL, WGRAD, SPLIT), conv_wgrad.edits),
}


def draw(name: str, seed: str) -> Variation:
    """The variation of an exercise that this seed gives: never the published one."""
    others = TABLE[name].variation.others()
    return others[int.from_bytes(hashlib.sha256(f"{seed}, {name}".encode()).digest()) % len(others)]


def notebook(published: nbformat.NotebookNode, name: str, task: Variation) -> nbformat.NotebookNode:
    """The solution of this variation, without outputs. Raises ``OutOfDate`` where the published text has changed."""
    made, varied = nbformat.from_dict(published), TABLE[name]
    pieces.apply(made, varied.edits(task))
    pieces.say_what_is_asked(made, task.varied)
    points = next(cell for cell in made.cells if cell.id == "points")
    for exercise in varied.exercises:
        if exercise.terms() not in points.source:
            raise pieces.OutOfDate(f"the table of points of {name} lacks {exercise.terms()}")
        points.source = points.source.replace(exercise.terms(), exercise.varied(task.varied).terms())
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return made


def write(root: Path, target: Path, seed: str) -> dict[str, Variation | None]:
    """Write the sources of a varied course into ``target``; what each exercise asks, None where it is as published."""
    drawn = {}
    for source in sorted((root / "solutions").glob("*/*.ipynb")):
        name = source.stem
        if source.parent.name != name:
            continue
        place = target / "solutions" / name / source.name
        place.parent.mkdir(parents=True, exist_ok=True)
        drawn[name] = draw(name, seed) if name in TABLE else None
        if drawn[name] is None:
            shutil.copyfile(source, place)
        else:
            try:
                nbformat.write(notebook(nbformat.read(source, as_version=4), name, drawn[name]), place)
            except pieces.OutOfDate as error:
                raise pieces.OutOfDate(f"{name}, {error}") from None
    for name in COPIED:
        if (root / name).exists():
            shutil.copyfile(root / name, target / name)
    return drawn


def folder_of(root: Path, seed: str) -> Path:
    """Where the course of a seed lies. ``ValueError`` for a seed that is no folder's name."""
    if not re.fullmatch(r"\w[\w-]{0,63}", seed):
        raise ValueError(f"the seed is {seed!r}: it needs letters, digits, - and _ alone, and 64 of them at most")
    return root / "build" / "variants" / seed
