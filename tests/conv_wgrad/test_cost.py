"""The model of cost: what it predicts behaves as a GPU does, and its choices are functions of shape, dtype and GPU alone."""

import json
import math
from unittest import mock

import pytest
import torch

from benchmarks import conv_wgrad as benchmark
from benchmarks.populations import candidates, fit
from kernels import runtime
from kernels.common import configs
from kernels.conv_wgrad import conv2d_wgrad, cost, hopper, operator, portable
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.problem import equivalents
from kernels.conv_wgrad.reference import conv2d_wgrad_reference
from tests.conv_wgrad import cases
from tests.tensors import relative_error

GPU = "NVIDIA H200"
COSTS = cost.costs_of({"COSTS": GPU})
TILE = {"busy": 0.5, "alone": 0.5}
NARROW = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUPS", "STAGES"), (128, 64, 64, 3, 5), strict=True))
LOAD = cost.Load(items=132, per=100, held=1, slots=1, numel=10_000, bytes=1_000_000)
GEOMETRIES = {  # N, Ci, Co, H = W, R = S, stride, padding, groups
    "3x3": (64, 256, 256, 14, 3, 1, 1, 1), "1x1": (64, 512, 2048, 7, 1, 1, 0, 1), "stride": (64, 96, 80, 28, 3, 2, 1, 1),
    "few channels": (8, 3, 64, 56, 7, 2, 3, 1), "odd channels": (8, 37, 53, 14, 1, 1, 0, 1),
    "pairs of channels": (8, 42, 54, 14, 1, 1, 0, 1), "fours of channels": (8, 12, 20, 14, 3, 1, 1, 1),
    "thin": (8, 128, 3, 14, 3, 1, 1, 1), "patches": (4, 3, 96, 56, 14, 14, 0, 1),
    "groups": (16, 128, 128, 28, 3, 1, 1, 32), "depthwise": (8, 96, 96, 28, 7, 1, 3, 96),
    "one pixel": (1, 8, 8, 1, 1, 1, 0, 1),
}  # fmt: skip


@pytest.fixture
def on_an_h200(monkeypatch):
    """Ways plan by the H200's table."""
    if not runtime.interpreted:
        pytest.skip("a GPU goes by its own table")
    cases.planned_for(monkeypatch, cases.table_of(GPU))
    monkeypatch.setattr(hopper, "is_cuda_architecture", lambda *given: True)


def problem_of(case, split_k=None):
    g = benchmark.geometry_of(case)
    x, dy = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (g.input_shape, g.output_shape))
    return operator.problem_of(x, dy, g, split_k)._replace(device=torch.device("cpu"))


def planned(problem, asked="auto"):
    choice = operator.choose(problem, asked)
    return choice, operator.BACKENDS[choice.backend].plan(choice.equivalent.problem)


def test_a_wave_costs_as_much_as_a_full_one_and_one_program_more_another():
    time = lambda items: cost.predicted(COSTS, "product", TILE, LOAD._replace(items=items))  # noqa: E731
    assert time(1) == time(132) < time(133) == time(264)


def test_programs_share_a_multiprocessor_until_it_is_busy():
    waits = {"busy": 0.1, "alone": 1.0}
    time = lambda items: cost.predicted(COSTS, "product", waits, LOAD._replace(items=items, held=4))  # noqa: E731
    assert time(2 * 132) == pytest.approx(time(132), rel=0.01)
    assert time(8 * 132) == pytest.approx(2 * time(4 * 132) - COSTS["launch"], rel=0.2)


@pytest.mark.parametrize("more", [{"per": 200}, {"slots": 2}, {"bytes": 10**9}, {"volume": 2.0}])
def test_more_of_anything_takes_longer(more):
    longer = LOAD._replace(**more)
    assert cost.predicted(COSTS, "hopper", TILE, longer) > cost.predicted(COSTS, "hopper", TILE, LOAD)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_plan_is_the_candidate_that_is_predicted_to_be_the_fastest(on_an_h200, name):
    problem = problem_of(GEOMETRIES[name])
    chosen, plan = planned(problem)
    lines = operator.predicted(problem)
    times = [float(line.split(": ")[1].removesuffix(" us")) for line in lines[1:]]
    assert lines[0] == "predicted:" and times == sorted(times) and lines[1].startswith(f"  {chosen.backend} ")
    best = cost.cheapest({"hopper": hopper, "triton": portable}[chosen.backend].candidates(chosen.equivalent.problem))
    assert f"{best.time:.1f}" == f"{times[0]:.1f}"
    assert all(f"{key} {value}" in plan.text for key, value in best.cut.options.items())


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_split_that_is_asked_for_is_kept(on_an_h200, name):
    problem = problem_of(GEOMETRIES[name], split_k=3)
    for candidate in portable.candidates(problem):
        blocks = candidate.cut.blocks
        assert candidate.cut.splits == -(-blocks // -(-blocks // min(3, blocks)))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_hopper_has_a_tile_for_everything_that_tma_can_bring(on_an_h200, name):
    problem = problem_of(GEOMETRIES[name])
    if hopper.unfit(problem.g, problem.dtype) is None:
        options = hopper.cut_of("hopper", problem).options
        assert options["GROUPS"] == 2 or problem.g.Ci % 2 == 0


def test_results_are_right_whatever_is_chosen(on_an_h200):
    """One geometry of each kind, on the H200's choices."""
    cases.check((2, 9, 9, 40), 24, 3, 3, padding=1)
    cases.check((2, 9, 9, 24), 24, 5, 5, padding=2, groups=24)
    cases.check((1, 7, 7, 3), 5, 1, 1)


def test_nothing_to_sum_is_no_candidate(on_an_h200):
    x, dy = torch.zeros(0, 5, 5, 8), torch.zeros(0, 5, 5, 16)
    assert torch.equal(conv2d_wgrad(x.bfloat16(), dy.bfloat16(), 1, 1), torch.zeros(16, 1, 1, 8).bfloat16())


@pytest.mark.skipif(hopper.gluon is None, reason="Gluon came with Triton 3.8")
@pytest.mark.parametrize("geometry", [(128, 512, 1024, 14, 3, 2, 1, 1), (32, 384, 512, 28, 2, 2, 0, 1)], ids=str)
def test_explain_says_what_runs_whatever_the_sum_goes_to(on_an_h200, monkeypatch, geometry):
    """Of a sum to add to, or of one that does not lie side by side."""
    monkeypatch.setattr(hopper, "multiprocessors", lambda device: 132)
    g = benchmark.geometry_of(geometry)
    x, dy, dense = (
        torch.empty(shape, dtype=torch.bfloat16) for shape in (g.input_shape, g.output_shape, g.weight_shape)
    )
    apart = torch.empty(g.Co, g.R, g.S, g.Ci + 8, dtype=torch.bfloat16)[..., : g.Ci]
    monkeypatch.setattr(operator, "sum_splits", lambda *given: None)
    for out, accumulate in [(None, False), (dense, False), (dense, True), (apart, False), (apart, True)]:
        more = {"stride": g.stride, "padding": g.padding, "out": out, "accumulate": accumulate, "backend": "hopper"}
        said = conv2d_wgrad.explain(x, dy, g.R, g.S, **more)
        with mock.patch.object(operator, "launch") as launched:
            conv2d_wgrad(x, dy, g.R, g.S, **more)
        _, _, _, _, target, schedule, *_ = launched.call_args.args
        splits = schedule.items // schedule.tiles
        assert splits > 1 and f"; {schedule.tiles} tiles, split-K {splits}; " in said
        assert target.shape == (splits, *g.weight_shape)


SPARE = {  # more channels a tile than twice the product's: N, Ci, Co, H = W, R = S, stride, padding, groups
    "rows over two vectors": (2, 512, 248, 6, 1, 1, 0, 8), "few rows": (4, 96, 15, 6, 1, 1, 0, 3),
    "pixels as groups": (2, 64, 31, 4, 1, 1, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SPARE)
def test_whatever_the_channels_a_tile_is_found(name, on_an_h200):
    for equivalent in equivalents(problem_of(SPARE[name])):
        assert portable.candidates(equivalent.problem) != []
    N, Ci, Co, H, R, stride, padding, groups = SPARE[name]
    x, dy = cases.randn(N, H, H, Ci, dtype=torch.bfloat16), cases.randn(N, H, H, Co, dtype=torch.bfloat16)
    want = conv2d_wgrad_reference(x.double(), dy.double(), 1, 1, 1, 0, 1, groups)
    assert relative_error(conv2d_wgrad(x, dy, 1, 1, groups=groups, out_dtype=torch.float32), want) < 2e-6


def test_a_gpu_without_costs_goes_by_the_table():
    problem = problem_of(GEOMETRIES["3x3"])
    with configs.instead(cases.table_of("any GPU")):
        assert portable.candidates(problem) == [] == operator.predicted(problem)
        assert "BLOCK_M 128" in planned(problem, "triton")[1].text


def test_every_gpu_that_the_table_names_has_costs_and_the_file_is_as_the_fit_writes_it():
    table = json.loads((cost.Path(cost.__file__).parent / "configs.json").read_text())
    named = {
        line["COSTS"]
        for own in table.values() if isinstance(own, dict)  # a name stands for another GPU's table
        for kernel in own.values() for line in kernel.values() if "COSTS" in line
    }  # fmt: skip
    text = fit.PATH.read_text()
    assert named == json.loads(text).keys() and fit.dump(json.loads(text)) == text


def test_the_fit_finds_the_costs_that_times_were_made_from():
    """Times of a machine that is exactly as the model says."""
    truth = {
        "launch": 4.0, "bandwidth": 4e6, "copies": 4e5, "astray": 0.2,
        "sum": 2.0, "turn": 0.5, "partials": 5e6, "multiprocessors": 132,
        "start": {"product": 1.5, "hopper": 3.0, "depthwise": 2.0},
        "tiles": {
            ("product rows", json.dumps({"BLOCK_M": m, "BLOCK_N": 64, "BLOCK_K": 64})): {"busy": m / 400, "alone": m / 300}
            for m in (64, 128)
        },
    }  # fmt: skip
    points, launched = [], [(132, 50, 1), (200, 90, 2), (400, 20, 4), (64, 300, 40), (1000, 10, 1), (264, 99, 8)]
    for row, (items, per, slots) in enumerate(launched):
        for kind, tile in truth["tiles"]:
            load = cost.Load(items, per, 2, slots, 40_000 * (row + 1), 10**7 * (row + 1))
            time = cost.predicted(truth, "product", truth["tiles"][kind, tile], load)
            points.append(candidates.Point(row, kind, tile, load, time))
    found = fit.fit(points, 132)
    assert max(abs(math.log(fit.time_of(found, p) / p.us)) for p in points) < 0.05
    assert fit.geometric_mean([ratio for _, ratio in fit.quality(found, points)]) > 0.99


def test_a_geometric_mean_is_of_positive_numbers():
    with pytest.raises(ValueError, match=r"values are \[\], needs positive numbers"):
        fit.geometric_mean([])


def test_what_no_kernel_does_any_more_is_no_point_of_the_fit():
    """Older records have candidates whose launch added its partial sums itself, or put them in another order, and whose
    programs began within a tile, or were pairs of multiprocessors."""
    layer = {"Ci": 64, "Co": 64, "H": 14, "W": 14, "R": 1, "S": 1, "groups": 1}
    shape = {"N": 8} | layer | {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    timed = {"backend": "hopper", "turned": False, "options": NARROW, "plan": [1, 25, 5, 5], "off": 0.0, "ms": 0.01}
    others = {"joined": [132, 0]}, {"turned": True}, {"plan": [1, 25, 4, 6]}, {"options": NARROW | {"num_ctas": 2}}
    row = {"shape": shape, "models": ["named"], "candidates": [timed, *(timed | {"ms": 0.005} | one for one in others)]}
    assert [(p.us, p.load.slots) for p in candidates.points_of([row])] == [(10.0, 5)]


def test_the_fit_sees_the_tuning_half_alone_and_knows_its_gpus(monkeypatch, tmp_path, capsys):
    path, seen = tmp_path / "times.json", []
    rows = [{"half": half} for half in ("tuning", "held_out", "tuning")]
    monkeypatch.setattr(fit, "points_of", lambda rows: seen.extend(rows) or [])
    monkeypatch.setattr(fit, "fit", mock.Mock(side_effect=InterruptedError))
    monkeypatch.setattr("sys.argv", ["fit", str(path)])
    for gpu, raised in ((GPU, InterruptedError), ("a GPU", SystemExit)):
        path.write_text(json.dumps({"machine": {"gpu": gpu}, "rows": rows}))
        with pytest.raises(raised):
            fit.main()
    assert seen == [{"half": "tuning"}] * 2 and "records are of a GPU, needs one of" in capsys.readouterr().err


def test_the_choice_takes_no_longer_than_a_few_launches(on_an_h200):
    """By the number of predictions, since tests don't time: at most 16 cuts a tile, in either role."""
    with mock.patch.object(cost, "predicted", side_effect=cost.predicted) as predicted:
        planned(problem_of((96, 256, 512, 14, 3, 1, 1, 1)))
    tiles = sum(len(tiles) for kind, tiles in COSTS["tiles"].items() if "im2col" in kind)
    assert 0 < predicted.call_count <= 2 * 16 * tiles


def test_geometries_of_the_test_are_of_every_kind():
    kinds = {portable.tiles_for(benchmark.geometry_of(case)) for case in GEOMETRIES.values()}
    products = {f"product {read}{how}" for read in ("", "unaligned ", "scalar ") for how in ("rows", "im2col")}
    assert kinds >= {"depthwise", *products}
    assert geometry((1, 1, 1, 8), 8, 1, 1).pointwise
