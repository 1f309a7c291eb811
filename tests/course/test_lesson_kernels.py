"""Each lesson's own kernels: they pass their checks in their notebooks, each slip turns its check red, by its cause, and a
lesson whose reader has written everything runs to its end with that."""

import ast
import inspect
import itertools
import os
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from kernels import check
from kernels.check import lessons
from tests.course.turns import lessons as notebooks
from tests.course.turns import namespace_of
from tools import lesson_kernels
from tools.cells import without_magics
from tools.kernel_environment import kernel_environment, too_old_for


def calls_of(path: Path, function: str) -> dict[str, tuple[int, list[str]]]:
    """Name -> the place of the cell that calls a check for it, and what the call hands over."""
    found = {}
    for place, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "code" and f"{function}(" in cell.source:
            for node in ast.walk(ast.parse(without_magics(cell.source))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
                    found[node.args[0].value] = place, [ast.unparse(one) for one in node.args[1:]]
    return found


KERNELS = [(path, name) for path in notebooks() for name in calls_of(path, "check.kernel")]
SLIPS = [(path, name, slip) for path, name in KERNELS for slip in lessons.data_of(name, "KERNELS").slips]
TURNS = [(path, name) for path in notebooks() for name in lesson_kernels.turns(path.name[:2])]
FILLED = sorted({path for path, _ in KERNELS + TURNS})
IEEE = ', input_precision="ieee"'
_NAMESPACES: dict = {}
_GIVEN: dict = {}  # what a kernel's slips give, once for all of them


def own_and_launcher(path, name):
    """A lesson's own kernel, and the launcher in its notebook, which finds that."""
    place, (kernel, launcher) = calls_of(path, "check.kernel")[name]
    own = lessons.own_of(name, kernel)
    if (path, place) not in _NAMESPACES:  # once for all slips of a kernel
        _NAMESPACES[path, place] = namespace_of(path, place) | {kernel: own}
        torch.set_default_device(None)
    return own, _NAMESPACES[path, place][launcher]


@pytest.mark.share(3)  # of all, a lesson with its answers in place says it
@pytest.mark.parametrize(("path", "name"), KERNELS, ids=[name for _, name in KERNELS])
def test_the_lessons_own_passes(path, name, capsys):
    check.kernel(name, *own_and_launcher(path, name))
    said = capsys.readouterr().out
    assert "FAILED" not in said and "passed  right" in said and "passed  compiles" in said


@pytest.mark.parametrize(("path", "name", "slip"), SLIPS, ids=[f"{name}: {slip[1][:40]}" for _, name, slip in SLIPS])
def test_a_slip_is_found_by_its_cause(path, name, slip):
    """By the first of the check's verdicts that names it: what is printed then, tests/check/test_lesson_kernels.py holds."""
    (own, launcher), wanted = own_and_launcher(path, name), lessons.data_of(name, "KERNELS")
    with lessons.held_kernel(name, wanted, own, lessons.slipped(own, slip), launcher) as held:
        held.given = _GIVEN.setdefault(name, {})
        cases = (found.said for case in wanted.cases if (found := held.finding(case)))
        verdicts = itertools.chain(cases, (held.refused() for _ in [0]))
        assert any(said and slip[2] in said for said in verdicts)


@pytest.mark.share(3)
@pytest.mark.parametrize(("path", "name"), KERNELS, ids=[name for _, name in KERNELS])
def test_a_product_that_a_gpu_would_round_to_tf32_turns_it_red(path, name, capsys):
    own, launcher = own_and_launcher(path, name)
    exact = [line for line in inspect.getsource(own.fn).splitlines() if IEEE in line]
    if not exact:
        pytest.skip("no product of float32")
    rounded = lessons.slipped(own, (exact[-1], exact[-1].replace(IEEE, ""), ""))
    assert check.kernel(name, rounded, launcher) is own
    assert lessons.ROUNDS in capsys.readouterr().out


@pytest.mark.parametrize(("path", "name"), TURNS, ids=[name for _, name in TURNS])
def test_a_turns_slips_are_named(path, name, capsys):
    own = tuple(lessons.own_of(name, function) for function in calls_of(path, "check.step")[name][1])
    for slip in lessons.data_of(name, "TURNS").slips:
        check.step(name, *lessons.slipped(own, slip))
        said = capsys.readouterr().out
        assert "not yet" in said and slip[2] in said and "NameError" not in said


def printed(cell) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def complaints(cell) -> set[str]:
    """What a cell has printed of an answer that is missing or wrong."""
    return {phrase for phrase in ("FAILED", "not yet", "not written yet") if phrase in printed(cell)}


@pytest.mark.thorough
@pytest.mark.parametrize("path", FILLED, ids=lambda path: path.stem)
def test_a_lesson_runs_with_all_answers_in_place(path):
    if why := too_old_for(path):
        pytest.skip(why)
    stored, notebook = nbformat.read(path, as_version=4), lesson_kernels.with_answers(path)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where, coalesce_streams=True)
    client.execute(env=kernel_environment({"TRITON_INTERPRET": "1", **os.environ}))  # raises where a cell does
    for before, cell in zip(stored.cells, notebook.cells, strict=True):
        if cell.cell_type == "code":
            # A cell that the reader leaves alone may show what a wrong kernel is told: lesson 00 has one.
            meant = complaints(before) if cell.source == before.source else set()
            assert complaints(cell) <= meant, cell.id
            if "check.kernel(" in cell.source:
                assert "passed  right" in printed(cell) and "The lesson goes on with yours." in printed(cell)
