"""Exercise 09 beyond its mutants: the kernels as found are sick, the mended ones compile, and errors are explained."""

import contextlib
import io
import linecache
import sys

import nbformat
import pytest
import torch
import triton

import kernels
from kernels import check
from kernels.check import pipelines
from kernels.lab import compile_report
from tests.course.mutants import ROOT, cells

NAME = "09_pipeline_clinic"
needs_the_model = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8), reason="the model of Gluon needs Triton 3.8"
)


@pytest.fixture(scope="module")
def notebook():
    """The names that the solution's cells define, those of the kernels as found among them."""
    names = {}
    for cell, source in cells(NAME).items():
        if cell in ("setup", "launcher") or cell.endswith(("kernel", "found")):
            file = f"<clinic {cell}>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, file, "exec"), names)
    return names


def printed(function, *arguments, **how) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        points = function(*arguments, **how)
    return points, out.getvalue()


@needs_the_model
def test_every_kind_of_finding_has_a_meaning_and_a_step():
    from kernels import gluon_model

    assert pipelines.MEANINGS.keys() == gluon_model.KINDS.keys()
    for _, lesson, step in pipelines.MEANINGS.values():
        (path,) = ROOT.glob(f"notebooks/{lesson}_*.ipynb")
        prose = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        assert f"## Step {step}: " in prose, (lesson, step)


@needs_the_model
def test_the_kernels_as_found_earn_what_they_did_right(notebook):
    relay = notebook["relay_of"](notebook["worker_found"])
    points, text = printed(check.mended_relay, relay, verdicts="right")
    assert points == 0 and "FAILED  first round: deadlock" in text
    tiles = notebook["tiles_of"](notebook["loader_found"], notebook["multiplier_found"])
    points, text = printed(check.mended_tiles, tiles, verdicts="right")
    assert points == 4 and "passed  more steps than buffers" in text and "FAILED  several tiles" in text
    halves = notebook["halves_of"](notebook["make_barriers_found"], notebook["half_found"])
    points, text = printed(check.mended_halves, halves, verdicts="right")
    assert points == 3 and "FAILED  three rounds: early overwrite" in text and "half_found 2" in text


@needs_the_model
@pytest.mark.parametrize("name", ["mended_relay", "mended_tiles", "mended_halves"])
def test_the_mended_kernels_compile_for_hopper(notebook, name):
    described = notebook["described"]
    if name == "mended_relay":
        x = torch.zeros(64, 256)
        arguments = described(x, 16, 64), described(x, 16, 64), 256, notebook["ROWS"], 3
    else:
        rows = 128 if name == "mended_halves" else 64
        a, b, c = torch.zeros(256, 256).half(), torch.zeros(256, 256).half(), torch.zeros(256, 256)
        arguments = described(a, rows, 64), described(b, 64, 32), c, 256, 256, 256, notebook["SUMS"], 3
    report = compile_report(notebook[name], *arguments)
    assert report.spill_bytes == 0 and report.count("UTMALDG") == 2
    assert report.count("HGMMA") == {"mended_relay": 0, "mended_tiles": 4, "mended_halves": 8}[name]


@needs_the_model
def test_an_error_in_the_learners_lines_is_explained(notebook):
    names = dict(notebook)
    source = cells(NAME)["worker-kernel"].replace("x_tiles.index(s)", "x_tile.index(s)")
    linecache.cache["<typo>"] = (len(source), None, source.splitlines(keepends=True), "<typo>")
    exec(compile(source, "<typo>", "exec"), names)
    points, text = printed(check.mended_relay, names["mended_relay"])
    assert points == 0 and "NameError" in text and "x_tile.index(s).load(layout)" in text
    assert "a name is used that no line above defines" in text


@needs_the_model
def test_an_error_in_a_given_function_is_its_callers_doing(notebook):
    names = dict(notebook)
    call = "ask(a_desc, b_desc, step * a.shape[2], row, column, ready.index(s), a.index(s), b.index(s))"
    source = cells(NAME)["tile-loader-kernel"].replace(call, call.replace("ready.index(s)", "ready"))
    source += "\nmended_tiles = tiles_of(tile_loader, tile_multiplier)"
    linecache.cache["<asked>"] = (len(source), None, source.splitlines(keepends=True), "<asked>")
    exec(compile(source, "<asked>", "exec"), names)
    _, text = printed(check.mended_tiles, names["mended_tiles"], verdicts="right")
    assert "ask(a_desc, b_desc, step * a.shape[2], row, column, ready, a.index(s), b.index(s))`" in text, text


@needs_the_model
def test_store_wait_is_not_missed_where_it_stands(notebook):
    """The worker fills y without asking: the storer's store_wait and arrival are in order, nobody waits for them."""
    names = dict(notebook)
    source = cells(NAME)["worker-kernel"].replace("        mbarrier.wait(y_empty.index(s), parity ^ 1)\n", "")
    linecache.cache["<unasked>"] = (len(source), None, source.splitlines(keepends=True), "<unasked>")
    exec(compile(source, "<unasked>", "exec"), names)
    _, text = printed(check.mended_relay, names["mended_relay"], verdicts="right")
    assert "store_wait is missing" not in text and "waits for no barrier that relay_storer signals" in text


@needs_the_model
def test_a_ring_of_which_one_buffer_is_used_is_not_cheap(notebook):
    names = dict(notebook)
    for cell in ("tile-loader-kernel", "tile-multiplier-kernel"):
        source = cells(NAME)[cell].replace("s = i % STAGES", "s = 0").replace("i // STAGES & 1", "i & 1")
        linecache.cache[f"<{cell}>"] = (len(source), None, source.splitlines(keepends=True), f"<{cell}>")
        exec(compile(source, f"<{cell}>", "exec"), names)
    points, text = printed(check.mended_tiles, names["mended_tiles"], verdicts=("right", "cheap"))
    assert points == 10 and "of the barriers empty one is waited for, empty[0]: all steps share a buffer" in text


@needs_the_model
def test_what_is_no_kernel_is_explained():
    points, text = printed(check.mended_relay, lambda: None)
    assert points == 0 and "the model runs @gluon.jit functions" in text


@needs_the_model
def test_a_grade_prints_its_seed(notebook):
    points, text = printed(check.mended_halves, notebook["mended_halves"], seed=5, grading=True)
    assert points == 15 and text.endswith("cheap 3/3) (graded with seed 5)\n")


def test_without_the_model_nothing_is_verified(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels.gluon_model", None)
    monkeypatch.delattr(kernels, "gluon_model", raising=False)
    points, text = printed(check.mended_relay, None)
    assert points == 0 and text.startswith("not verified on this machine: ")
