"""Populations: how models are dealt, what is measured of a layer, and that the page says what the records say."""

import importlib
import json
import sys
import types

import pytest
import torch

from benchmarks import tables
from benchmarks.populations import candidates, conv_wgrad, halves, measure, population, report, tune_conv_wgrad
from kernels import runtime
from kernels.common import configs
from kernels.flex_attention import flex_attention
from kernels.flex_attention.reference import allowed
from tests.tensors import relative_error

OPERATORS = ("conv_wgrad", "flex_attention", "dynamic_conv", "recurrent_attention")
TINY = {
    "3x3": {"Ci": 16, "Co": 8, "H": 5, "W": 6, "R": 3, "S": 3, "groups": 1},
    "grouped": {"Ci": 12, "Co": 24, "H": 5, "W": 5, "R": 3, "S": 3, "groups": 6},
    "depthwise": {"Ci": 24, "Co": 24, "H": 6, "W": 5, "R": 3, "S": 3, "groups": 24},
}
MACHINE = {"gpu": "NVIDIA H200", "copy_tb_per_s": 4.0, "matmul_tflop_per_s": 500.0}


def tiny(name):
    return TINY[name] | {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}


def test_models_are_dealt_in_turn_by_hash_and_a_shared_layer_is_for_tuning():
    names = [f"model {i}" for i in range(11)]
    dealt = halves.halves(names)
    assert dealt == halves.halves(reversed(names)) and list(dealt.values()).count("tuning") == 6
    shared, own = {"Ci": 1}, [{"Ci": 10 + i} for i in range(11)]
    rows = halves.deal([{"name": name, "layers": [shared, own[i]]} for i, name in enumerate(names)])
    found = {row["layer"]["Ci"]: row for row in rows}
    assert len(rows) == 12 and found[1]["half"] == "tuning" and sorted(found[1]["models"]) == sorted(names)
    assert all(found[10 + i]["half"] == dealt[name] for i, name in enumerate(names))


def test_every_prefix_is_a_sample_of_all_models():
    models = [{"name": name, "layers": [{"of": name, "i": i} for i in range(many)]} for name, many in (("a", 9), ("b", 2))]
    assert {row["models"][0] for row in halves.deal(models)[:2]} == {"a", "b"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_committed_layers_lie_in_the_half_that_their_models_are_in(operator):
    record = population.record(operator)
    half = {model["name"]: model["half"] for model in record["models"]}
    assert half == halves.halves(half) and record["rule"] == halves.RULE
    for row in record["layers"]:
        assert row["half"] == ("tuning" if "tuning" in {half[name] for name in row["models"]} else "held_out")
    texts = [json.dumps(row["layer"], sort_keys=True) for row in record["layers"]]
    assert len(set(texts)) == len(texts)
    bench = importlib.import_module(f"benchmarks.populations.{operator}")
    assert not set(map(bench.describe, bench.cases("held_out"))) & set(map(bench.describe, bench.cases("tuning")))


def test_batches_keep_a_guess_of_the_time_between_its_limits():
    for layer, N, *_ in conv_wgrad.cases("both"):
        guess = conv_wgrad.guess(conv_wgrad.geometry_of(layer, N))
        assert N == conv_wgrad.BATCHES[0] or guess <= conv_wgrad.MOST_S
        assert N >= 128 and (N == conv_wgrad.BATCHES[1] or guess >= conv_wgrad.LEAST_S) or guess > conv_wgrad.MOST_S / 2


def test_tuning_looks_at_no_held_out_layer():
    named = {conv_wgrad.describe(case) for case in tune_conv_wgrad.named()}
    tuned = {conv_wgrad.describe(case) for case in tune_conv_wgrad.cases("tuning")}
    assert tuned - named == set(map(conv_wgrad.describe, conv_wgrad.cases("tuning")))


@pytest.mark.parametrize("name", TINY)
def test_a_row_holds_times_and_errors_of_ours_and_of_the_peers(name):
    if not runtime.interpreted:
        pytest.skip("sizes for the interpreter")
    (row,) = conv_wgrad.measure((tiny(name), 2, "held_out", ["a model"]), MACHINE, 1)
    assert row["relative_error"] < 5e-3 and row["shape"]["N"] == 2 and row["explained"].startswith("triton: ")
    pixels, shape = 2 * row["shape"]["H"] * row["shape"]["W"], row["shape"]
    assert row["flops"] == 2 * pixels * shape["Co"] * 9 * shape["Ci"] // shape["groups"]
    json.dumps(row)


@pytest.mark.parametrize("name", ["3x3", "depthwise"])
def test_every_candidate_that_is_timed_is_checked_against_the_operator(name):
    if not runtime.interpreted:
        pytest.skip("sizes for the interpreter")
    (row,) = tune_conv_wgrad.measure((tiny(name), 2, "tuning", ["a model"]), MACHINE, 1)
    ran = [candidate for candidate in row["candidates"] if "ms" in candidate]
    assert len(ran) >= 4 and all(candidate["off"] < 1e-2 for candidate in ran)
    assert all("reason" in candidate for candidate in row["candidates"] if candidate["backend"] == "hopper")
    assert len(candidates.points_of([row])) == len(ran)


def test_only_rows_that_are_asked_for_are_selected():
    bench, selected = measure.select("conv_wgrad", "held_out", "depthwise", 3)
    assert bench is conv_wgrad and len(selected) == 3 and all(case[0]["groups"] == case[0]["Ci"] for case in selected)


def row_of(ours, *peers, **more):
    said = [{"ms": ms, "relative_error": 1e-3} if ms else {"reason": "no"} for ms in peers]
    rows = [{"name": f"peer {i}"} | of for i, of in enumerate(said)]
    shape = tiny("3x3") | {"N": 2}
    return {"ours_ms": ours, "peers": rows, "shape": shape, "models": ["m", "n"], "bytes": 4e8, "flops": 1e11} | more


def test_a_peer_that_does_not_work_here_is_asked_twice_and_one_that_has_run_every_time():
    failures = importlib.import_module("benchmarks.populations.flex_attention").Failures()
    failures.ran.add("sometimes")
    for _ in range(3):
        assert failures.reason_not("sometimes") is None
        assert failures.failed("sometimes", ValueError("no such size\nmore")) == "ValueError: no such size"
    failures.failed("different", ValueError("one"))
    failures.failed("different", ValueError("two"))
    assert failures.reason_not("different") is None
    failures.failed("never", RuntimeError("no device"))
    assert failures.reason_not("never") is None
    failures.failed("never", RuntimeError("no device"))
    assert failures.reason_not("never") == "not asked again after it failed 2 times: RuntimeError: no device"


def test_the_peer_compiles_for_layers_alike_once_and_ours_for_each(monkeypatch):
    bench = importlib.import_module("benchmarks.populations.recurrent_attention")
    monkeypatch.setattr(bench.fla, "available", lambda: True)
    cases = bench.cases("both")
    jobs = bench.compile_jobs(cases)
    layers = [layer for (layer, peer), *_ in jobs if peer]
    kinds = {(layer["gate"], layer["H"], layer["K"], layer["V"]) for layer, *_ in cases}
    assert len(layers) == bench.SHARES * len(kinds) < bench.SHARES * len(cases)
    assert {(layer["gate"], layer["H"], layer["K"], layer["V"]) for layer in layers} == kinds
    assert [layer for (layer, peer), *_ in jobs if not peer] == [layer for layer, *_ in cases]
    assert {(share, shares) for (_, peer), share, shares in jobs if peer} == {(i, bench.SHARES) for i in range(bench.SHARES)}


def test_a_ratio_is_to_the_best_peer_that_ran():
    assert report.ratio(row_of(2.0, 4.0, 3.0, None)) == 1.5 and report.ratio(row_of(2.0, None)) is None
    wrong = row_of(2.0, 4.0, 3.0)
    wrong["peers"][1]["relative_error"] = 1.3
    assert report.ratio(wrong) == 2.0 and report.wrong_peers([wrong])[0].startswith("peer 1 was wrong, and does not count")
    layers, mean, worst, ahead = report.summary([row_of(1.0, 2.0), row_of(1.0, 0.5), row_of(1.0, None), row_of(1.0, 1.0)])
    assert (layers, worst, ahead) == (3, 0.5, 1 / 3) and mean == pytest.approx(1.0)


def test_rows_that_are_behind_are_named_with_what_was_measured():
    explained = "triton: product; 4 tiles, split-K 3; tile waste 1.60"
    rows = [row_of(1.0, 2.0), row_of(1.0, 0.8), row_of(1.0, 0.5, explained=explained), row_of(1.0, 0.97), row_of(1.0, None)]
    _, _, _, _, worst, next_worst, _, slight = report.behind({"machine": MACHINE, "rows": rows})
    assert "3×3 16→8 @5, N 2 | m and 1 more | 0.50 | 1.0000 | peer 0, 0.5000 | 10% | 20% |" in worst
    assert "12 programs for 132 multiprocessors; its tiles hold 1.60 times the product" in worst
    assert "| 0.80 |" in next_worst and "programs" not in next_worst
    assert slight == "Held-out layers that are behind on the H200 by less than 10%: 3×3 16→8 @5, N 2 (0.97)."
    assert report.behind({"machine": MACHINE, "rows": rows[:1]}) == []


@pytest.mark.parametrize(("tiles", "said"), [(48, "48 pairs for 132 multiprocessors"), (64, "")])
def test_a_pair_of_multiprocessors_is_two_of_them(tiles, said):
    row = row_of(1.0, 0.5, explained=f"hopper: GROUPS 3, STAGES 5, num_ctas 2; {tiles} tiles, split-K 1; tile waste 1.00")
    assert report.reason(row, MACHINE) == said


def test_partial_sums_of_a_fix_up_are_those_of_the_tiles_that_are_cut():
    shape = row_of(1.0, 2.0)["shape"]
    tile = "hopper: BLOCK_M 128, BLOCK_N 64, BLOCK_K 64, GROUPS 3, STAGES 5; "
    whole = shape["Co"] * shape["R"] * shape["S"] * shape["Ci"]
    sums = lambda text: report.partial_sums(shape, tile + text + "; tile waste 1.00") / (128 * 64 * 3)  # noqa: E731
    assert sums("132 tiles whole, 60 tiles, split-K 2, stream-K fix-up") == 60
    assert sums("72 tiles, split-K 1, the rests end to end, stream-K fix-up") == 72
    assert sums("60 tiles, split-K 3, the rests end to end, partial sums joined") == 180  # as older records say it
    assert sums("60 tiles, split-K 1") == 0 == report.partial_sums(shape, "triton: torch.mm")
    assert report.partial_sums(shape, "triton: product; 4 tiles, split-K 3; tile waste 1.60") == 3 * whole


def test_the_page_is_what_the_records_say_and_every_plot_is_there():
    assert report.PAGE.read_text() == report.page()
    for operator in report.OPERATORS:
        assert (report.DOCS / "images" / f"speed_{operator}.png").exists() == bool(report.records(operator))


@pytest.mark.parametrize("files", [population.HALVES, ("both",)])
def test_the_plot_tells_the_halves_apart_and_says_what_it_looks_like(tmp_path, files):
    rows = [row_of(*ms, half=half) for half in population.HALVES for ms in ((1.0, 2.0), (0.5, 0.4))]
    for name in files:
        record = {"machine": MACHINE, "rows": [row for row in rows if name in ("both", row["half"])], "failed": []}
        (tmp_path / f"population_conv_wgrad_{name}.json").write_text(json.dumps(record))
    figure = report.plot("conv_wgrad", report.records("conv_wgrad", tmp_path))
    tuning, held_out = figure.axes[0].collections
    assert tuning.get_facecolor().tolist() != held_out.get_facecolor().tolist() and tuning.get_paths() != held_out.get_paths()
    assert "2 hollow dots of the tuning half" in figure.alt and "2 filled dots of the held-out half" in figure.alt


def test_two_cards_stand_side_by_side_and_what_did_not_run_is_said(tmp_path):
    shape = {"variant": "full", "B": 1, "H": 2, "Hkv": 2, "M": 64, "N": 64, "D": 16}
    fa4 = {"name": "FlashAttention-4", "ms": 3.0, "relative_error": 1e-3}
    cudnn = {"name": "cuDNN SDPA", "ms": 0.5, "relative_error": 1e-3}
    for gpu, word, peer in ((h100 := "NVIDIA H100 80GB HBM3", "h100", fa4), ("NVIDIA H200", "h200", cudnn)):
        machine = MACHINE | {"gpu": gpu, "multiprocessors": 132, "torch": "2", "triton": "3", "commit": "c", "date": "1"}
        rows = [row_of(1.0, half="drawn", shape=shape) | {"pass": "forward", "peers": [peer], "kernel": "flex_attention",
                "explained": "forward: tiles of 128 x 64, because of this"}]  # fmt: skip
        record = {"machine": machine, "rows": rows, "failed": []}
        (tmp_path / f"population_flex_attention_drawn_{word}.json").write_text(json.dumps(record))
    found = report.records("flex_attention", tmp_path)
    assert {gpu: list(halves) for gpu, halves in found.items()} == {h100: ["drawn"], "NVIDIA H200": ["drawn"]}
    header, _, line = report.comparison(found)
    assert "H100: rows | geometric mean | worst | ahead | H200: rows" in header
    assert line == "| drawn | the best peer of each row | 1 | 3.00 | 3.00 | 100% | 1 | 0.50 | 0.50 | 0% |"
    text = "\n".join(report.section("flex_attention", found))
    assert text.count("FlashAttention-4 did not run there.") == 1
    assert "Drawn layers that are behind on the H200" in text and "| tiles of 128 x 64 |" in text
    assert "that were drawn later" not in text
    assert len(report.plot("flex_attention", found).axes[0].collections) == 2


def test_records_of_other_days_each_say_what_they_were_measured_on():
    machine = MACHINE | {"torch": "2", "triton": "3", "commit": "old", "date": "1"}
    record = {"machine": machine, "rows": [row_of(1.0, 2.0)], "failed": [], "of": "held_out"}
    drawn = record | {"machine": machine | {"commit": "new", "copy_tb_per_s": 4.5}, "of": "drawn", "left_out": 3}
    first, copy, _, second, other, left_out, _ = report.measured_on("conv_wgrad", {"held_out": record, "drawn": drawn})
    assert first.startswith("Held-out half: one NVIDIA H200, ") and "commit old" in first and "4.0 TB/s" in copy
    assert second.startswith("Drawn set: one NVIDIA H200, ") and "commit new" in second and "4.5 TB/s" in other
    assert left_out == "Layers not measured: 3 of the drawn set."
    (alone, *_) = report.measured_on("conv_wgrad", {"held_out": record})
    assert alone.startswith("One NVIDIA H200, ")


def test_the_page_says_which_table_a_gpu_takes_that_nobody_has_measured():
    text = "\n".join(report.elsewhere(["NVIDIA H200"]))
    said = ("sm_80", "never", "any GPU's"), ("sm_90", "H200", "the H200's"), ("sm_100", "never", "any GPU's")
    for architecture, own, taken in said:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {architecture}, ")]
        assert line.count(taken) == len(tables.OPERATORS) and f"| {own} |" in line
    assert "of the H200; how fast Ada, Ampere, Blackwell is, nobody knows." in text
    assert text in report.page()


@pytest.mark.parametrize("operator", tables.OPERATORS)
def test_a_gpu_takes_the_table_that_the_kernels_take(operator):
    """``configuration`` finds the same options by these names as in the table alone that ``table_of`` names."""
    committed = json.loads((tables.KERNELS / operator / "configs.json").read_text())
    for names in (("NVIDIA H200", "sm_90"), ("NVIDIA H100 80GB HBM3", "sm_90"), ("NVIDIA A100-SXM4-80GB", "sm_80")):
        by, whose = tables.table_of(operator, *names)
        assert (by in names) == (whose == "NVIDIA H200") and (whose == tables.ANY) == (by == tables.ANY)
        for kernel, lines in committed[whose].items():
            for key, options in lines.items():
                assert configs.of_gpu(names, operator, kernel, key) == options


def timed_row(length, ms, which="forward", models=("m",)):
    return {"pass": which, "shape": {"T": length}, "models": list(models), "ours_ms": ms}


def test_rows_measured_later_take_the_place_of_their_own_and_say_so():
    machine = {"gpu": "G", "torch": "2", "triton": "3", "commit": "old", "date": "1"}
    record = {"machine": machine, "rows": [timed_row(8, 1.0), timed_row(8, 2.0, "backward"), timed_row(9, 3.0)], "failed": []}
    newer = {"machine": machine | {"commit": "new", "date": "2"}, "rows": [timed_row(8, 0.5)], "failed": []}
    found = population.renewed(record, newer)
    assert [row["ours_ms"] for row in found["rows"]] == [0.5, 2.0, 3.0] and found["machine"] == machine
    assert [row.get("renewed") for row in found["rows"]] == [{"commit": "new", "date": "2"}, None, None]
    assert report.later({"held_out": found}) == " 1 row measured again: commit new, 2."
    assert report.later({"held_out": record}) == ""


def test_a_renewed_rows_fraction_is_of_what_the_record_says_the_machine_gave():
    machine = {"gpu": "G", "torch": "2", "triton": "3", "commit": "c", "date": "1", "copy_tb_per_s": 4.0}
    row = timed_row(8, 1.0) | {"bytes": 1e9, "fraction_of_copy": 0.25}
    newer = {"machine": machine | {"copy_tb_per_s": 5.0}, "rows": [row | {"ours_ms": 0.5, "fraction_of_copy": 0.4}]}
    (found,) = population.renewed({"machine": machine, "rows": [row]}, newer)["rows"]
    assert found["fraction_of_copy"] == 0.5


def test_a_row_of_other_models_of_the_same_sizes_stays():
    machine = {"gpu": "G", "torch": "2", "triton": "3", "commit": "c", "date": "1"}
    record = {"machine": machine, "rows": [timed_row(8, 1.0), timed_row(8, 2.0, models=("n",))], "failed": []}
    found = population.renewed(record, record | {"rows": [timed_row(8, 0.5)]})
    assert [(row["ours_ms"], "renewed" in row) for row in found["rows"]] == [(0.5, True), (2.0, False)]


@pytest.mark.parametrize("operator", report.OPERATORS)
def test_rows_of_the_committed_records_are_told_apart(operator):
    for _, _, record in report.each(report.records(operator)):
        assert len({population._which(row) for row in record["rows"]}) == len(record["rows"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"machine": {"gpu": "H", "torch": "2", "triton": "3"}}, "needs the record's"),
        ({"rows": [timed_row(10, 1.0)]}, "that the record has not"),
        ({"failed": [{"case": "a"}]}, "failed cases, needs none"),
    ],
)
def test_rows_of_elsewhere_do_not(wrong, message):
    machine = {"gpu": "G", "torch": "2", "triton": "3", "commit": "c", "date": "1"}
    record = {"machine": machine, "rows": [timed_row(8, 1.0)], "failed": []}
    with pytest.raises(ValueError, match=message):
        population.renewed(record, record | wrong)


# The layers that were drawn when all choices had been made.

LEAST = {"flex_attention": 40, "conv_wgrad": 24, "recurrent_attention": 10, "dynamic_conv": 10}
FLEX = importlib.import_module("benchmarks.populations.flex_attention")
DRAWN = population.layers("flex_attention", "drawn")
VARIANTS = {  # the first drawn layer of each variant, and of what else a layer can say
    **{row["layer"]["variant"]: row["layer"] for row in reversed(DRAWN)},
    "other values' heads": next(row["layer"] for row in DRAWN if "Dv" in row["layer"]),
    "softcap": next(row["layer"] for row in DRAWN if "softcap" in row["layer"]),
    "more keys than queries": next(row["layer"] for row in DRAWN if 1 < row["layer"]["M"] < row["layer"]["N"]),
    "fewer keys than queries": next(row["layer"] for row in DRAWN if row["layer"]["M"] > row["layer"]["N"]),
    "one query": next(row["layer"] for row in DRAWN if row["layer"]["M"] == 1),
}
VARIANTS |= {name: {"variant": name, "B": 1, "H": 2, "Hkv": 2, "M": 64, "N": 64, "D": 16} | more for name, more in {
    "prefix": {"prefix": 20}, "natten": {"kernel": 3, "width": 8},
}.items()}  # fmt: skip


def reduced(layer):
    """The same with a few tokens of a few heads."""
    keys = 100 if layer["M"] < layer["N"] else 40 if layer["M"] > layer["N"] else 72
    most = {"B": 2, "M": 72, "N": keys, "D": 32, "Dv": 16, "window": 20, "chunk": 32, "span": 16, "tokens": 5}
    few = layer | {name: min(layer[name], size) for name, size in most.items() if name in layer}
    if "lengths" in layer:
        few["lengths"] = [40, 1, 31]
    return few | {"H": 4 if layer["H"] > layer["Hkv"] else 2, "Hkv": 2}


@pytest.mark.parametrize("operator", OPERATORS)
def test_drawn_layers_are_in_neither_half_and_say_where_they_come_from(operator):
    bench = importlib.import_module(f"benchmarks.populations.{operator}")
    drawn, known = population.layers(operator, "drawn"), {model["name"] for model in population.record(operator)["models"]}
    assert len(drawn) >= LEAST[operator] and all(row["source"] and row["half"] == "drawn" for row in drawn)
    assert not known & {name for row in drawn for name in row["models"]}
    which = lambda half: {json.dumps(case[:-2], sort_keys=True) for case in bench.cases(half)}  # noqa: E731
    assert len(which("drawn")) == len(drawn) and not which("drawn") & which("both")
    assert measure.select(operator, "drawn", "", 3)[1] == bench.cases("drawn")[:3]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_pairs_counted_are_those_that_the_mask_allows(name):
    """Half a square for a causal one, as is customary: the diagonal's other half is not counted."""
    layer = reduced(VARIANTS[name])
    M, N = layer["M"], layer["N"]
    mask = FLEX.mods_of(layer)[1]
    exact = M * N if mask is None else int(allowed(mask, 1, 1, M, N).sum())
    counted = FLEX.pairs(layer)
    few = {"natten": 0, "local": 21 * 20, "global": 21 * 20 + 25, "decoding": M * M // 2, "documents": M, "spans": 20}
    assert 0 <= abs(exact - counted) <= few.get(layer["variant"], 0 if mask is None else M)
    assert FLEX.flops(layer) == 2 * layer["B"] * layer["H"] * (layer["D"] + layer.get("Dv", layer["D"])) * counted


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_attention_is_measured_and_equals_the_reference(name):
    layer = reduced(VARIANTS[name])
    rows = FLEX.measure((layer, "drawn", ["a model"]), MACHINE, 1)
    assert [row["pass"] for row in rows] == ["forward"] + ["backward"] * (layer["variant"] != "decoding")
    for row in rows:
        assert row["errors"].keys() == ({"o"} if row["pass"] == "forward" else {"q", "k", "v"})
        assert 0 < row["relative_error"] < 8e-3 and row["peers"] == []
        assert FLEX.line(row).startswith("drawn") and report.layer_of(row)
        json.dumps(row)


def flash_attn_func(q, k, v, causal, window_size, softcap):
    """FlashAttention's arguments as it documents them: [B, S, H, D], masks aligned at the last query and key."""
    q, k, v = (t.transpose(1, 2).double() for t in (q, k, v))
    M, N = q.shape[2], k.shape[2]
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = torch.arange(N) - (torch.arange(M) + N - M)[:, None]  # how far behind a query its key stands
    before, after = (M + N if side is None else side for side in window_size)
    hidden = (ahead > (0 if causal else after)) | (ahead < -before)
    o = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return o.transpose(1, 2), None


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
@pytest.mark.parametrize("name", ["causal", "full", "window", "local", "decoding", "softcap", "other values' heads"])
def test_flash_attention_4_is_asked_for_the_same_attention(name, monkeypatch):
    cute = types.ModuleType("flash_attn.cute")
    cute.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    layer = reduced(VARIANTS[name])
    assert layer["variant"] in FLEX.IN_FLASH_ATTENTION
    q, k, v = FLEX.tensors_of(layer)
    ours = FLEX.ours(layer, q, k, v)()
    assert relative_error(FLEX.flash_attention_4(layer, q, k, v)(), ours) < 5e-3


def test_a_wrong_mask_shows_in_the_error_of_a_row(monkeypatch):
    if not runtime.interpreted:
        pytest.skip("sizes for the interpreter")
    layer = reduced(VARIANTS["spans"])
    causal = FLEX.mods_of(layer | {"variant": "causal"})
    ours = lambda layer, q, k, v: lambda: flex_attention(q, k, v, *causal)  # noqa: E731
    monkeypatch.setattr(FLEX, "ours", ours)
    assert min(row["relative_error"] for row in FLEX.measure((layer, "drawn", ["a model"]), MACHINE, 1)) > 0.1


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
@pytest.mark.parametrize("case", conv_wgrad.cases("drawn"), ids=conv_wgrad.describe)
def test_every_drawn_convolution_is_measured_and_equals_the_reference(case):
    layer, _, half, models = case
    smaller = lambda name, most: min(layer[name], most)  # noqa: E731
    few = layer | {"Ci": smaller("Ci", 12), "Co": smaller("Co", 12), "H": smaller("H", 19), "W": smaller("W", 19)}
    few |= {"groups": few["Ci"] if layer["groups"] == layer["Ci"] > 1 else layer["groups"]}
    few |= {"dilation": [min(d, 2) for d in layer["dilation"]]}
    (row,) = conv_wgrad.measure((few, 2, half, models), MACHINE, 1)
    assert row["relative_error"] < 5e-3 and conv_wgrad.line(row).startswith("drawn") and report.layer_of(row)


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
@pytest.mark.parametrize("operator", ["recurrent_attention", "dynamic_conv"])
def test_drawn_layers_of_the_others_are_measured_and_equal_the_reference(operator):
    bench = importlib.import_module(f"benchmarks.populations.{operator}")
    kinds = {layer.get("gate", layer.get("taps")): (layer, half, models) for layer, half, models in bench.cases("drawn")}
    most = {"B": 1, "T": 40, "H": 2, "K": 16, "V": 16, "D": 23}
    for layer, half, models in kinds.values():
        few = layer | {name: min(layer[name], size) for name, size in most.items() if name in layer}
        for row in bench.measure((few, half, models), MACHINE, 1):
            assert row["relative_error"] is None or row["relative_error"] < 8e-3
            assert bench.line(row).startswith("drawn") and report.layer_of(row)


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
def test_drawn_layers_go_through_the_measuring_program_to_the_page(tmp_path, monkeypatch):
    machine = MACHINE | {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2", "triton": "3", "commit": "c", "date": "1"}
    cases = [(reduced(VARIANTS[name]), "drawn", [name]) for name in ("spans", "one query")]

    def measure_all(benchmark, selected, machine, rounds):
        for case in selected:
            yield case, importlib.import_module(benchmark).measure(case, machine, rounds), None

    monkeypatch.setattr(FLEX, "cases", lambda half: cases)
    monkeypatch.setattr(measure.harness, "machine", lambda: machine)
    monkeypatch.setattr(measure.harness, "measure_all", measure_all)
    monkeypatch.setattr(measure.ahead, "compile_ahead", lambda module, jobs: None)
    measure.run("flex_attention", "drawn", tmp_path, 60)
    record = json.loads((tmp_path / "population_flex_attention_drawn_h100.json").read_text())
    assert [row["pass"] for row in record["rows"]] == ["forward", "backward", "forward"] and record["left_out"] == 0
    assert record["operator"] == "flex_attention" and record["population"]["made_by"].startswith("by hand")
    assert report.records("flex_attention", tmp_path)[machine["gpu"]].keys() == {"drawn"}

    newer = machine | {"commit": "new"}
    measure.harness.write("later", record | {"machine": newer, "rows": record["rows"][:1]}, tmp_path)
    measure.renew("flex_attention", "drawn", "later", tmp_path, folder=tmp_path)
    record = json.loads((tmp_path / "population_flex_attention_drawn_h100.json").read_text())
    assert [row.get("renewed", {}).get("commit") for row in record["rows"]] == ["new", None, None]
