"""The model of cost of the Hopper backward: its fit finds what made the times, and its program measures what it says."""

import pytest

from kernels import runtime
from kernels.common import gluon as common_gluon

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from benchmarks.populations import fit_flex_attention as fit
from benchmarks.populations import tune_flex_attention as tune
from kernels import gluon_model
from kernels.flex_attention.hopper import cost

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the program itself runs")

LAYERS = [  # few key heads, and cuts: pairs, heads, columns, slices, parts
    ((1, 8, 1, 4096), [("stored", 1, 8, 4096, 1, 1), ("stored", 1, 8, 4096, 8, 1), ("stored", 1, 8, 4096, 2, 1)]),
    ((1, 2, 1, 2048), [("stored", 1, 2, 2048, 1, 1), ("stored", 1, 1, 2048, 1, 2), ("counters", 1, 2, 2048, 2, 1)]),
    ((2, 4, 2, 8192), [("counters", 4, 2, 8192, 1, 1), ("stored", 1, 2, 4096, 1, 2), ("stored", 4, 2, 8192, 2, 1)]),
]


def layer_of(B, H, Hkv, M):
    return {"variant": "causal", "B": B, "H": H, "Hkv": Hkv, "M": M, "N": M, "D": 128}


def test_the_fit_finds_the_rates_that_made_the_times():
    made = {**fit.GUESS, "multiprocessors": 132, "memory": 3e9}
    made["rates"] = made["rates"] | {"128": {"dkdv": 700, "dq_from_ds": 500, "counters": 430, "dq": 300}}
    measured = []
    with fit.on("NVIDIA H200"):
        for sizes, cuts in LAYERS:
            layer = layer_of(*sizes)
            p = fit.problem_of(layer)
            row = {"shape": layer, "cuts": []}
            for sizes_of_cut in cuts:
                cut = cost.Cut(*sizes_of_cut, 0.0)
                rest, product = cost.terms(p, cut, made)
                said = {name: value for name, value in cut._asdict().items() if name != "time"}
                said |= {"ms": rest + product, "same_bits": True, "error": 0.002, "off": 0.0}
                row["cuts"].append(said | ({"dkdv_ms": rest} if cut.way == "stored" else {}))
            measured.append(row)
        points = fit.points_of(measured)
        guess = {**fit.GUESS, "multiprocessors": 132}
        found = fit.fit(points, guess)
        farthest = lambda known: max(abs(fit.time_of(known, point) / point.ms - 1) for point in points)  # noqa: E731
        assert farthest(found) < 0.05 < 0.1 < farthest(guess)
        assert found["rates"]["64"] == fit.GUESS["rates"]["64"]  # no time depends on them
        assert min(ratio for ratio, _ in fit.quality(found, points).values()) > 1 / cost.GAIN


def test_layers_are_named_once_and_the_held_out_half_stays_so():
    cases = tune.cases("both")
    assert len({str(layer) for layer, *_ in cases}) == len(cases)
    assert {half for _, half, models in cases if models == ["no model"]} == {"tuning"}
    assert {half for _, half, _ in tune.cases("held_out")} == {"held_out"}


@pytest.mark.thorough
def test_a_row_has_every_cut_with_its_errors(hopper_table, monkeypatch):
    monkeypatch.setattr(cost, "GAIN", 0.01)
    with gluon_model.executing() as results:
        (row,) = tune.measure((layer_of(1, 2, 1, 256), "tuning", ["a model"]), None, 1)
    assert all(result.ok for result in results)
    assert {cut["way"] for cut in row["cuts"]} == {"stored", "counters"}
    assert all(cut["same_bits"] and cut["error"] < 5e-3 and cut["off"] < 1e-4 for cut in row["cuts"])
    assert tune.line(row).count("\n") == len(row["cuts"])
