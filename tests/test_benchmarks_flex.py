"""Flex attention's benchmark counts the pairs that its masks allow, compares equal things, and tunes what it says."""

import json

import pytest
import torch

from benchmarks import flex_attention as bench
from benchmarks import harness
from kernels import runtime
from kernels.flex_attention import flex_attention, problem
from kernels.flex_attention.reference import allowed

SMALL = (1, 2, 1, 64, 64, 16)
MACHINE = {"copy_tb_per_s": 4.0, "matmul_tflop_per_s": 700.0}


@pytest.fixture
def fake_timer(monkeypatch):
    """No streams, no graphs: the n-th function is called once and takes n ms."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(harness, "timed", lambda calls, rounds: ({n: 1.0 + i for i, n in enumerate(calls)}, "graph"))


@pytest.mark.parametrize("variant", bench.VARIANTS)
def test_the_pairs_counted_are_those_the_mask_allows(variant):
    """A causal mask counts as half a square, as is customary: half a diagonal less for every document."""
    S = 64
    _, mask = bench.mods_of(variant, 2, S)
    exact = S * S if mask is None else int(allowed(mask, 1, 1, S, S).sum())
    diagonals = {"full": 0, "window 1024": 0}.get(variant, S)
    assert bench.pairs(variant, S, S) == exact - diagonals // 2


@pytest.mark.parametrize("variant", bench.VARIANTS)
def test_bytes_and_products_are_counted_from_the_tensors(variant):
    q, k, v = bench.tensors(*SMALL)
    o = bench.calls_of(variant, q, k, v, peers=False)["ours"]()
    moved = sum(x.nbytes for x in (q, k, v, o))
    costs = bench.cost(variant, *SMALL)
    assert costs["forward"][0] == moved and costs["backward"][0] == 2 * moved
    product = 2 * 2 * 16 * bench.pairs(variant, 64, 64)  # two heads of 16
    assert (costs["forward"][1], costs["backward"][1]) == (2 * product, 5 * product)


@pytest.mark.skipif(not runtime.interpreted, reason="peers are left out where nothing is compiled")
@pytest.mark.parametrize("variant", [*bench.VARIANTS, "decoding"])
def test_every_variant_is_measured_and_its_errors_are_small(variant, fake_timer):
    shape = (2, 4, 1, 1, 64, 16) if variant == "decoding" else SMALL
    rows = bench.measure((variant, shape), MACHINE, rounds=1)
    assert [row["pass"] for row in rows] == ["forward"] + ["backward"] * (variant != "decoding")
    for row in rows:
        assert row["errors"].keys() == ({"o"} if row["pass"] == "forward" else {"q", "k", "v"})
        assert 0 < row["relative_error"] < 2e-2 and row["ours_ms"] == 1.0 and row["peers"] == []
        assert row["tflop_per_s"] == pytest.approx(row["flops"] / 1e9, abs=0.05)
        assert bench.line(row).startswith(row["pass"])


def test_a_wrong_kernel_shows_in_the_error(fake_timer, monkeypatch):
    monkeypatch.setattr(bench, "flex_attention", lambda q, *rest, **more: flex_attention(1.5 * q, *rest, **more))
    assert all(row["relative_error"] > 5e-2 for row in bench.measure(("causal", SMALL), MACHINE, rounds=1))


def test_cases_have_distinct_names():
    names = [bench.describe(case) for case in bench.cases()]
    assert len(set(names)) == len(names) == 20 and names[0] == "full B4 H16 Hkv16 M4096 N4096 D128"
    assert bench.compile_jobs(list(bench.cases()))[0] == (("full", (4, 16, 16, 4096, 4096, 128)), 0, 1)


@pytest.mark.parametrize("kernel", ["forward", "backward_dq", "backward_dkdv"])
@pytest.mark.parametrize("kind", ["plain", "mod"])
def test_the_tuner_times_the_class_it_names_with_the_options_it_gives(kernel, kind, monkeypatch):
    table_says, asked = problem.table_options, []

    def table(name, key, device):
        asked.append((name, key))
        return table_says(name, key, device)

    monkeypatch.setattr(problem, "table_options", table)
    name, call = bench.tuned_call(kernel, (1, 2, 2, 64, 64, True), 64, kind)
    options = table_says(kernel, name, runtime.device) | {"BLOCK_M": 32, "BLOCK_N": 32}
    call(options)
    assert name == f"d64 16-bit {kind}" and all(key == name for _, key in asked)
    assert kernel not in {kernel for kernel, _ in asked}, "the table was asked for what the tuner sets"
    assert problem.table_options is table


def test_candidates_are_choices_of_the_tables_options():
    for kernel, classes in bench.TABLE.items():
        names = next(iter(classes.values())).keys()
        found = bench.candidates(kernel)
        assert len(found) > 1 and all(options.keys() == names for options in found)
        assert len({json.dumps(options) for options in found}) == len(found)


def test_the_record_is_complete():
    record = harness.read("flex_attention")
    assert not record["failed"] and record["machine"]["gpu"] == "NVIDIA H200"
    wanted = {
        (variant, shape, name)
        for variant, shape in bench.cases()
        for name in (("forward",) if variant == "decoding" else ("forward", "backward"))
    }
    assert {(row["variant"], tuple(row["shape"].values()), row["pass"]) for row in record["rows"]} == wanted
    for row in record["rows"]:
        assert row.get("renewed", record["machine"])["commit"] and row["peers"] and row["timed"] == "graph"
        fractions = {name: row[name] for name in harness.CEILINGS}
        assert harness.fractions(row, record["machine"]) == pytest.approx(fractions, rel=2e-3)
        assert row["relative_error"] < 1.1 * max(peer["relative_error"] for peer in row["peers"])
        assert (row["bytes"], row["flops"]) == bench.cost(row["variant"], *row["shape"].values())[row["pass"]]
