"""The convolution's benchmark compares equal things, and its tuner times the class it names with the options it gives."""


import pytest
import torch

from benchmarks import conv_wgrad as bench
from benchmarks import harness, planted_faults
from kernels.common import configs
from kernels.conv_wgrad import hopper, operator
from tests.conv_wgrad import cases

MACHINE = {"matmul_tflop_per_s": 700.0}
SMALL = (2, 8, 16, 9, 3, 2, 1, 1)


def test_every_way_gives_the_same_gradient():
    x, dy, g = bench.problem(SMALL, torch.float32)
    ours, *others = (call() for call in bench.calls_of(x, dy, g).values())
    for other in others:
        torch.testing.assert_close(other, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [SMALL, (2, 8, 8, 9, 3, 1, 1, 8)])
def test_errors_are_those_of_the_whole_sum(case, monkeypatch):
    x, dy, g = bench.problem(case, torch.float32)
    dw = bench.ours(x, dy, g)
    assert bench.errors_of(x, dy, g, {"right": dw, "wrong": 2 * dw}) == pytest.approx(
        {"right": 0, "wrong": 1}, abs=1e-5
    )


def test_a_row_is_complete(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: __import__("contextlib").nullcontext())
    monkeypatch.setattr(
        harness, "timed", lambda calls, rounds: (dict(zip(calls, (2.0, 1.0, 4.0), strict=True)), "graph")
    )
    row = bench.measure(SMALL, MACHINE, rounds=1)
    moved, flops = bench.cost(SMALL)
    assert flops == 2 * 2 * 5 * 5 * 16 * 8 * 9 and moved == 2 * (2 * 81 * 8 + 2 * 25 * 16 + 16 * 72)
    assert row["bytes"] == moved and row["flops"] == flops and row["ours_ms"] == 2.0
    assert row["fraction_of_matmul"] == pytest.approx(flops / 2e-3 / 700e12, rel=1e-3)
    assert [peer["name"] for peer in row["peers"]] == ["cuDNN nhwc", "cuDNN nchw"] and row["peers"][0]["ms"] == 1.0
    assert row["relative_error"] < 5e-3 and row["explained"].startswith("triton: product")
    assert "0.50x cuDNN nhwc" in bench.line(row)


@pytest.mark.parametrize(("kernel", "key"), [(kernel, key) for kernel, keys in bench.CLASSES.items() for key in keys])
def test_the_tuner_times_the_class_it_names_with_the_options_it_gives(monkeypatch, kernel, key):
    """What the launcher asks the table for is the name that the tuner writes; what it then launches are the options."""
    if "hopper" in kernel and hopper.gluon is None:
        pytest.skip("Gluon's im2col copies need Triton 3.8")
    asked = []

    def record(operator, name, key, device):
        asked.append((name, key))
        return configs.table_says(operator, name, key, device)

    cases.planned_for(monkeypatch, record)
    shape, options = (1, 32) if kernel == "hopper" else (2, 4), options_of(kernel)
    name, call = bench.tuned_call(kernel, shape, *key)
    if "hopper" in kernel:
        return check_hopper(monkeypatch, kernel, key, shape, name, call, options, asked)
    with cases.launches() as seen:
        call(options)
    assert kernel not in {asked_for for asked_for, _ in asked}
    meta = {launched.__name__: meta for launched, _, _, meta in seen}[NAMES[kernel]]
    whole = ("BLOCK", "BLOCK_K", "num_warps")  # what no size of the problem makes smaller
    assert {name: launched_with(meta).get(name) for name in whole} == {name: options.get(name) for name in whole}

    dtype, Ci, Co, groups, R = key
    x, dy, g = bench.problem((2, Ci, Co, 4, R, 1, R // 2, groups), getattr(torch, dtype))
    bench.ours(x, dy, g)
    bench.conv2d_wgrad(x, dy, R, R, 1, R // 2, 1, groups, split_k=4, out=torch.zeros(g.weight_shape), accumulate=True)
    bench.conv2d_bias_grad(dy)
    assert (kernel, name) in asked


def check_hopper(monkeypatch, kernel, key, shape, name, call, options, asked):
    """The same, with its launch recorded only: what it computes is tested on the model."""
    launched = []
    monkeypatch.setattr(hopper, "reason_not", lambda *_: None)
    monkeypatch.setattr(operator, "launch", lambda kernel, grid, *args, **meta: launched.append(meta))
    call(options)
    assert kernel not in {asked_for for asked_for, _ in asked} and options.items() <= launched_with(launched[0]).items()
    dtype, Ci, Co, groups, R = key
    bench.ours(*bench.problem((*shape[:1], Ci, Co, shape[1], R, 1, R // 2, groups), getattr(torch, dtype)), "hopper")
    assert (kernel, name) in asked and launched[1]["T"].GROUPS == options["GROUPS"] == 3


def launched_with(meta):
    """A launch's options, those of its tile's tuple among them."""
    return meta | (meta["T"]._asdict() if "T" in meta else {})


NAMES = {kernel: f"{kernel}_kernel" for kernel in bench.CLASSES} | {"product": "wgrad_kernel"}


def options_of(kernel):
    """Other options than the table's, as large: the interpreter's time goes by programs."""
    if "hopper" in kernel:
        return {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 16, "GROUPS": 3, "STAGES": 7}
    options = {"BLOCK": 1 << 16} if kernel == "sum" else {"BLOCK_M": 512, "BLOCK_K": 32, "STAGES": 1, "HELD": 4}
    more = {"product": {"BLOCK_N": 1024, "TMA": False}, "depthwise": {"BLOCK_K": 16, "RUN": 4, "SUMS": 49}}.get(kernel, {})
    options = {name: value for name, value in options.items() if kernel != "depthwise" or name != "STAGES"}
    return options | more | {"num_warps": 2}


def test_candidates_fit_on_a_multiprocessor(monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"multi_processor_count": 132})
    )
    for kernel in bench.CLASSES:
        found = bench.candidates(kernel)
        assert 4 < len(found) <= 64 and len({tuple(options.items()) for options in found}) == len(found)
    for options in bench.candidates("product"):
        m, n, k = (options[f"BLOCK_{axis}"] for axis in "MNK")
        programs = options["HELD"] // 132
        assert programs * options["STAGES"] * 2 * k * (m + n) <= bench.SHARED_BYTES


def test_functions_take_turns_call_by_call(monkeypatch):
    """With a clock that only the functions advance: 3 ms a call of one, 1 ms of the other."""
    clock, order = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, other):
            return other.at - self.at

    def function(name, ms):
        def call():
            order.append(name)
            clock[0] += ms

        return call

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(harness, "milliseconds", lambda fn, warmup, rep: 40.0)
    assert harness.alternately({"slow": function("slow", 3.0), "fast": function("fast", 1.0)}, rounds=3) == {
        "slow": 3.0,
        "fast": 1.0,
    }
    assert order == ["slow", "fast"] * 15  # 600 ms of each


PLAIN = "noise\nerrors: [0.001, 0.2, 0.001]\nmore noise"


def test_a_planted_fault_is_recorded_as_it_ended():
    found = "file:1: kernel: block: [0,0,0] Assertion `Buffer being accessed has outstanding writes` failed."
    name = "two buffers are swapped"
    assert planted_faults.row(name, (0, PLAIN), (-6, found)) == {
        "fault": name, "model": "early read", "sanitizer": "Buffer being accessed has outstanding writes",
        "gpu": "wrong", "runs": 3, "wrong_runs": 1, "largest_error": 0.2,
    }  # fmt: skip
    assert planted_faults.row("none", (-14, ""), (0, "errors: [0.001]"))["gpu"] == "hangs"
    assert planted_faults.row("none", (0, "errors: [NaN]"), (0, "errors: [0.001]"))["wrong_runs"] == 1
    assert planted_faults.row("none", (1, "no such"), (0, "errors: [0.001]")) == {
        "fault": "none", "model": None, "sanitizer": "right", "gpu": "ends with code 1"
    }  # fmt: skip


def test_the_records_are_complete():
    record = harness.read("conv_wgrad")
    assert record["machine"]["gpu"] == "NVIDIA H200" and record["machine"]["commit"]
    assert [tuple(row["shape"].values()) for row in record["rows"]] == bench.CASES
    for row in record["rows"]:
        assert row["timed"] == "graph" and {"cuDNN nhwc", "cuDNN nchw"} <= {peer["name"] for peer in row["peers"]}
        assert (row["bytes"], row["flops"]) == bench.cost(tuple(row["shape"].values()))
        assert row["relative_error"] < 1.1 * max(peer["relative_error"] for peer in row["peers"])


def test_the_faults_that_were_run_on_a_gpu_are_those_that_the_model_is_tested_with():
    record = harness.read("planted_faults")
    assert [(row["fault"], row["model"]) for row in record["rows"]] == [
        (planted_faults.NONE, None), *((name, finding[0]) for name, (_, finding) in planted_faults.FAULTS.items())
    ]  # fmt: skip
