"""The benchmarks compare equal things, count the right bytes, and what they recorded is complete."""

import json

import pytest
import torch

from benchmarks import dynamic_conv as bench
from benchmarks import harness
from benchmarks.populations import population
from benchmarks.published_dynamic_conv import PublishedDynamicConv
from kernels import runtime
from kernels.common import configs
from kernels.dynamic_conv import dynamic_conv, dynamic_conv_step, operator
from tests.tensors import relative_error

RECORD = harness.read("dynamic_conv")


def test_peers_compute_the_same_function_and_gradients():
    torch.manual_seed(0)
    x, weight = (torch.randn(s, device=runtime.device, requires_grad=True) for s in ((2, 9, 20), (2, 9, 20, 4)))
    dy = torch.randn(2, 9, 20, device=runtime.device)
    ours = dynamic_conv(x, weight)
    for peer in (bench.equation, PublishedDynamicConv.apply):
        y = peer(x, weight)
        assert relative_error(y, ours) < 1e-6
        wanted = torch.autograd.grad(ours, (x, weight), dy, retain_graph=True)
        for a, b in zip(torch.autograd.grad(y, (x, weight), dy), wanted, strict=True):
            assert relative_error(a, b) < 1e-6


def test_bytes_are_counted_from_the_tensors():
    B, T, D, W = 2, 5, 8, 4
    x, weight, _ = bench.arguments(B, T, D, W, "plain")
    y = dynamic_conv(x, weight)
    dx, dk = torch.autograd.grad(y, (x, weight), y.detach())
    assert bench.least_bytes(B, T, D, W, "plain") == {
        "forward": x.nbytes + weight.nbytes + y.nbytes,
        "backward": y.nbytes + x.nbytes + weight.nbytes + dx.nbytes + dk.nbytes,
    }


@pytest.mark.parametrize("variant", ["plain", *bench.VARIANTS])
def test_every_variant_runs_and_its_errors_are_small(variant):
    torch.manual_seed(0)
    x, weight, options = bench.arguments(2, 6, 8, 4, variant)
    leaves = [x, weight] + [options[name] for name in ("initial_state",) if name in options]
    out = dynamic_conv(x, weight, **options)
    out = out if isinstance(out, tuple) else (out,)
    gradients = [torch.randn_like(o) for o in out]
    grads = torch.autograd.grad(out, leaves, gradients)
    forward, backward = bench.first_sequence_errors(x, weight, options, 6, out, grads, gradients)
    assert 0 < forward < 6e-3 and 0 < backward < 6e-3


@pytest.mark.parametrize(("kernel", "key"), [(kernel, key) for kernel, keys in bench.CLASSES.items() for key in keys])
def test_the_tuner_times_the_class_it_names_with_the_options_it_gives(monkeypatch, kernel, key):
    """What the launcher asks the table for is the name that the tuner writes; what it then launches are the options."""
    asked, seen, launch = [], [], operator.launch
    options = {"BLOCK": 32, "num_warps": 1} | {
        "forward": {"G": 2, "ROWS": 1, "RUN": 4}, "step": {},
    }[kernel]  # fmt: skip

    def says(operator, asking, name, device):
        if asking != kernel:
            return configs.table_says(operator, asking, name, device)
        asked.append((kernel, name))
        return dict(options)

    def record(kernel, grid, *args, **meta):
        seen.append((kernel.__name__, args, meta))
        launch(kernel, grid, *args, **meta)

    monkeypatch.setattr(operator, "launch", record)
    monkeypatch.setattr(configs, "_says", says)
    W, bits, *variant = key
    x, weight, more = bench.arguments(2, 32, 64, W, " ".join(variant) or "plain")
    if bits == 32:
        x, weight = (t.detach().float().requires_grad_() for t in (x, weight))
    if kernel == "step":
        state = torch.zeros(2, 64, W - 1, dtype=x.dtype, device=x.device)
        dynamic_conv_step(x.detach()[:, 0], weight.detach()[:, 0], state)
    else:
        y = dynamic_conv(x, weight, **more)
    if kernel == "backward":
        y.sum().backward()
    seen.clear()

    name, call = bench.tuned_call(kernel, (2, 32, 64), *key)
    assert asked == [(kernel, name)]
    call(options)
    *before, (launched, args, meta) = seen
    assert [name for name, *_ in before] == ["_sequence_of_run_kernel"] * ("packed" in variant)
    assert launched == f"{'conv' if kernel == 'step' else 'words'}_{kernel}_kernel"
    tile = meta["TILE"]
    assert tile.BLOCK == 32 and meta["num_warps"] == 1 and (kernel == "step" or tile.G == 2)
    assert kernel == "step" or (args[5].cu is not None) == ("packed" in variant)


def test_the_record_is_complete():
    machine = {"gpu", "driver", "torch", "triton", "commit", "date", "copy_tb_per_s", "matmul_tflop_per_s"}
    assert machine <= RECORD["machine"].keys()
    wanted = {(name, tuple(shape), variant) for name in ("forward", "backward") for shape, variant in bench.cases()}
    kind = lambda row: row["dtype"] if row["dtype"] != "bfloat16" else row["variant"]  # noqa: E731
    assert {(row["pass"], tuple(row["shape"].values()), kind(row)) for row in RECORD["rows"]} == wanted
    for row in RECORD["rows"]:
        sizes = tuple(row["shape"].values())
        assert row["bytes"] == bench.least_bytes(*sizes, kind(row))[row["pass"]]
        rate = row["bytes"] / row["ours_ms"] / 1e9 / RECORD["machine"]["copy_tb_per_s"]
        assert row["fraction_of_copy"] == pytest.approx(rate, rel=2e-3)
        assert row["variant"] != "plain" or row["dtype"] != "bfloat16" or row["peers"]


@pytest.mark.skipif(not runtime.interpreted, reason="there is a GPU to measure")
def test_a_machine_without_a_gpu_is_told_that_nothing_is_measured():
    with pytest.raises(SystemExit, match="need a CUDA GPU"):
        harness.require_gpu()


def test_a_record_is_plain_json_a_row_a_line(tmp_path):
    record = {"machine": {"gpu": "X"}, "rows": [{"ms": 1.5}, {"ms": 2.5}], "failed": []}
    path = harness.write("timed", record, tmp_path)
    assert json.loads(path.read_text()) == record == harness.read("timed", tmp_path)
    assert [line for line in path.read_text().splitlines() if "ms" in line] == ['  {"ms":1.5},', '  {"ms":2.5}']
    assert harness.read("no such", tmp_path) is None
    for committed in [*harness.RESULTS.iterdir(), *population.DATA.rglob("*.json")]:
        assert committed.read_text() == harness.text_of(json.loads(committed.read_text())), committed.name
