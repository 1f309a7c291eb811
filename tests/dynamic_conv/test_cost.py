"""The model of cost that chooses the backward loop's tile and run: its equation, its choice, its fit to the record."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import dynamic_conv_cost as fit
from kernels import runtime
from kernels.common import configs
from kernels.dynamic_conv import cost, dynamic_conv
from kernels.dynamic_conv.plain import AllStrides, Cuts, Gradients, Strides, Tile
from kernels.dynamic_conv.words import words_backward_kernel
from kernels.lab import compile_report

TABLE = configs._table("dynamic_conv")["NVIDIA H200"]["backward"]
PROCESSORS = 132


def in_plain_python(tile, run, programs, columns, words, W, processors):
    rate = lambda n: tile["RATE"] * (1 - math.exp(-n / tile["FILL"]))
    warps, t = programs * tile["num_warps"] / processors, 0.0
    while warps > 1e-9:
        wave = min(warps, tile["RESIDENT"])
        t += wave / rate(wave)
        warps -= wave
    return (run + tile.get("START", cost.STEPS_PAST * (W - 1))) * words / (columns * tile["BLOCK"]) * t


TILE = st.fixed_dictionaries(
    {"BLOCK": st.sampled_from([32, 64, 128]), "num_warps": st.sampled_from([1, 2, 4]),
     "RESIDENT": st.sampled_from([8, 12, 32]), "RATE": st.floats(0.8, 1.1), "FILL": st.floats(2, 8)},
    optional={"START": st.integers(0, 48), "ROWS": st.sampled_from([1, 4]), "AHEAD": st.sampled_from([1, 4, 8])},
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tile=TILE, run=st.integers(1, 2000), programs=st.integers(0, 20_000), words=st.integers(1, 700), W=st.integers(1, 8))
def test_the_time_is_wave_after_wave(tile, run, programs, words, W):
    columns = -(-words // tile["BLOCK"])
    arguments = tile, run, programs, columns, words, W, PROCESSORS
    assert float(cost.time_of(*arguments)) == pytest.approx(in_plain_python(*arguments), rel=1e-6, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    candidates=st.lists(TILE, min_size=1, max_size=3), T=st.integers(0, 4000), rows=st.integers(0, 64),
    packed=st.integers(0, 300), words=st.integers(0, 700), W=st.integers(1, 9),
)  # fmt: skip
def test_the_choice_is_that_of_a_search_in_plain_python(candidates, T, rows, packed, words, W):
    tile, run, times = cost.fastest(candidates, T, rows, packed, words, W, PROCESSORS)
    ahead = lambda tile: tile.get("AHEAD", 1)
    assert tile in candidates and 1 <= run < max(1, T) + ahead(tile) and run % ahead(tile) == 0 and times

    def t(tile, run):
        columns = max(1, -(-words // tile["BLOCK"]))
        programs = cost.SLACK * -(-(rows * -(-T // run) + packed) // tile.get("ROWS", 1)) * columns
        return in_plain_python(tile, run, programs, columns, max(1, words), W, PROCESSORS)

    cut = {max(1, -(-T // pieces)) for pieces in range(1, max(1, min(T // cost.SHORTEST, 4096)) + 1)}
    searched = {(w, -(-r // ahead(candidates[w])) * ahead(candidates[w])) for w in range(len(candidates)) for r in cut}
    assert t(tile, run) <= (1 + 1e-6) * min(t(candidates[w], r) for w, r in searched) + 1e-9


def test_the_fit_finds_the_tile_that_made_the_times():
    """Of a machine that is exactly as the model says."""
    machine, tile = {"multiprocessors": PROCESSORS, "copy_tb_per_s": 4.0}, {"BLOCK": 32, "num_warps": 1}
    truth = tile | {"RESIDENT": 16, "RATE": 0.96, "FILL": 4.5}
    shapes = [(*shape, 4, run) for shape in fit.SHAPES[:3] for run in (16, 32, 64, 128, 512)]
    ms = fit.predicted(shapes, truth, PROCESSORS, machine["copy_tb_per_s"], 11)
    found, error = fit.fitted([(*shape, float(t)) for shape, t in zip(shapes, ms, strict=True)], tile, machine, 11)
    assert tile | found == truth and error < 1e-6


def test_explain_prints_each_candidates_time(monkeypatch):
    monkeypatch.setattr(configs, "_says", lambda package, kernel, key, device: dict(
        TABLE["W4 16-bit"] if kernel == "backward" else configs.table_says(package, kernel, key, device)
    ))  # fmt: skip
    x, weight = (torch.zeros(*shape, dtype=torch.float16, device=runtime.device) for shape in ((2, 64, 512), (2, 64, 512, 4)))
    text = dynamic_conv.explain(x, weight)
    assert "1 warps, runs of" in text and "4 warps, runs of" in text and ": 1.00" in text
    assert "backward: " in dynamic_conv.explain(x[:, :0], weight[:, :0])


def most_resident(registers, num_warps):
    """Warps of programs this large that a Hopper's multiprocessor holds: a quarter of its registers for each scheduler, in
    pieces of 8 a thread, and 32 programs."""
    each = 2**16 // 4 // (-(-registers // 8) * 8 * 32)
    return min(32 * num_warps, 4 * each // num_warps * num_warps)


def of_h200(kernel):
    """``[(taps, tile)]`` of the H200's lines that choose among tiles, of unpacked 16-bit tensors."""
    lines = configs._table("dynamic_conv")["NVIDIA H200"][kernel]
    return [(W, tile) for W in fit.WIDTHS for tile in lines.get(f"W{W} 16-bit", {}).get("TILES", ())]


def test_bounded_tiles_fit_whatever_else_is_compiled_in():
    bounded = [tile for kernel in ("backward", "static backward") for _, tile in of_h200(kernel) if "maxnreg" in tile]
    assert bounded and all(tile["RESIDENT"] <= most_resident(tile["maxnreg"], tile["num_warps"]) for tile in bounded)


def check_that_they_fit(W, tile):
    """As many warps as the model counts on have space beside each other, and no register is spilled."""
    options = {name: value for name, value in tile.items() if name not in cost.MODEL}
    x, D, T = torch.zeros(16, dtype=torch.bfloat16), 512, 8192
    of_x, of_k = Strides(T * D, D, 1), Strides(T * D * W, D * W, W, 1)
    sizes = {"T": "i32", "D": D, "runs": "i32", "RUN": "i32", "tiles_d": "i32", "strides": AllStrides(of_x, of_k, dy=of_x)}
    compiled = Tile(W, ACT=None, BLOCK=options.pop("BLOCK"), G=4)
    inputs = x, x, x, None, None, Cuts(None, None), Gradients(x, x, None)
    report = compile_report(words_backward_kernel, *inputs, **sizes, TILE=compiled, **options)
    assert tile["RESIDENT"] <= most_resident(report.registers, tile["num_warps"]) and report.spill_bytes == 0, report


@pytest.mark.skipif(not runtime.interpreted, reason="compiled without a GPU")
def test_the_first_tile_of_three_taps_fits():
    check_that_they_fit(*next((W, tile) for W, tile in of_h200("backward") if W == 3))


@pytest.mark.thorough
@pytest.mark.skipif(not runtime.interpreted, reason="compiled without a GPU")
@pytest.mark.parametrize("W, tile", of_h200("backward"))
def test_every_tile_fits(W, tile):
    check_that_they_fit(W, tile)
