"""Recurrent attention's benchmark and accuracy table compare equal things, survive a failing case, and compile ahead."""

import functools
import json
import queue
import sys
import types

import pytest
import torch

from benchmarks import ahead, gate_gradients, harness
from benchmarks import flash_linear_attention as fla
from benchmarks import recurrent_attention as bench
from kernels import runtime
from kernels.common import configs
from kernels.recurrent_attention import operator, recurrent_attention
from kernels.recurrent_attention.chunk import launches
from kernels.recurrent_attention.reference import recurrent_attention_reference
from tests.fake_fla import pretend

MACHINE = {"copy_tb_per_s": 4.0}
SMALL = (1, 20, 2, 16, 16)
KINDS = [(mode, gate) for mode, gate in bench.PEERS if mode != "step"]
RECORD = harness.read("recurrent_attention")


@pytest.fixture
def fake_timer(monkeypatch):
    """No streams, no graphs: the n-th function is called once and takes n ms."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(harness, "captured", lambda function: function)

    def alternately(functions, rounds):
        for function in functions.values():
            function()
        return {name: 1.0 + n for n, name in enumerate(functions)}

    monkeypatch.setattr(harness, "alternately", alternately)


@pytest.fixture
def fake_peer(monkeypatch):
    """flash-linear-attention's functions, a little wrong."""
    pretend(monkeypatch)


@pytest.mark.parametrize("gate", ["none", "g", "g_gamma", "gk"])
def test_the_chunked_reference_is_the_recurrence(gate):
    torch.manual_seed(0)
    B, T, H, K, V = 2, 39, 2, 3, 5
    make = lambda *size: torch.randn(size, dtype=torch.float64)  # noqa: E731
    given = {"q": make(B, T, H, K), "k": make(B, T, H, K), "v": make(B, T, H, V)}
    sizes = {"g": (B, T, H), "g_gamma": (H,), "gk": (B, T, H, K)}
    if gate != "none":  # from none at all to e^-30 a token
        given[gate] = -30 * torch.rand(sizes[gate], dtype=torch.float64) ** 6
    leaves = [x.requires_grad_() for x in given.values()]
    do = make(B, T, H, V)
    wanted, _ = recurrent_attention_reference(**given)
    for C in (1, 8, 32, 64):
        o = bench.chunked_reference(**given, C=C)
        torch.testing.assert_close(o, wanted, rtol=1e-12, atol=1e-12)
        grads = torch.autograd.grad(o, leaves, do)
        for grad, exact in zip(grads, torch.autograd.grad(wanted, leaves, do, retain_graph=True), strict=True):
            torch.testing.assert_close(grad, exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("mode", "gate"), bench.PEERS)
def test_every_kind_is_measured_beside_its_peer(mode, gate, fake_timer, fake_peer):
    shape = (6, 1, 2, 16, 16) if mode == "step" else SMALL
    rows = bench.measure((mode, gate, shape), MACHINE, rounds=1)
    assert [row["pass"] for row in rows] == (["forward"] if mode == "step" else ["forward", "backward"])
    for row in rows:
        (peer,) = row["peers"]
        assert (row["variant"], row["shape"]) == (f"{mode} {gate}", dict(zip("BTHKV", shape, strict=True)))
        assert (row["ours_ms"], peer["ms"], peer["name"]) == (1.0, 2.0, bench.PEERS[mode, gate][0])
        assert row["timed"] == "graph"
        assert 0 < row["relative_error"] < 9e-3
        assert 0.8e-2 < max(peer["errors"].values()) == peer["relative_error"] < 2e-2
        leaves = {"q", "k", "v"} | ({gate} if gate in ("g", "gk") else set())
        assert row["errors"].keys() == (
            {"o", "state"} if mode == "step" else {"o"} if row["pass"] == "forward" else leaves
        )
        assert bench.line(row).startswith(row["pass"])


def test_without_the_peer_ours_is_measured_alone(fake_timer):
    assert fla.available() is False or not runtime.interpreted
    assert [row["peers"] for row in bench.measure(("chunk", "g", SMALL), MACHINE, rounds=1)] == [[], []]


def test_a_wrong_kernel_shows_in_the_error(fake_timer, monkeypatch):
    wrong = lambda q, k, v, mode, g: recurrent_attention(q, k, v, g=1.5 * g, mode=mode)  # noqa: E731
    monkeypatch.setattr(bench, "recurrent_attention", wrong)
    assert all(row["relative_error"] > 1e-2 for row in bench.measure(("chunk", "g", SMALL), MACHINE, rounds=1))


def test_what_cannot_be_captured_is_launched_ours_and_the_peer(monkeypatch, capsys):
    def captured(function):
        if function is calls["peer"]:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return "graph"

    calls = {"ours": object(), "peer": object()}
    monkeypatch.setattr(harness, "captured", captured)
    monkeypatch.setattr(harness, "alternately", lambda functions, rounds: functions)
    assert harness.timed(calls, 3) == (calls, "launched")
    assert "not captured" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "gate"), KINDS)
def test_bytes_are_counted_from_the_tensors(mode, gate):
    B, T, H, K, V = shape = 2, 5, 1, 16, 32
    given = bench.arguments(gate, *shape)
    o, _ = recurrent_attention(**given, mode=mode)
    leaves = tuple(bench.leaves_of(given).values())
    grads = torch.autograd.grad(o, leaves, o.detach())
    read = sum(x.nbytes for x in given.values()) + o.nbytes
    costs = bench.cost(mode, gate, *shape)
    assert (costs["forward"][0], costs["backward"][0]) == (read, read + sum(grad.nbytes for grad in grads))
    per_token = {
        "recurrent": (5 * K * V, 12 * K * V),
        "chunk": (4 * K * V + 128 * (K + V), 10 * K * V + 128 * (3 * K + 2 * V)),
    }
    assert tuple(flops // (B * T * H) for _, flops in costs.values()) == per_token[mode]


def test_a_step_reads_and_writes_its_state_once():
    B, _, H, K, V = shape = 3, 1, 2, 16, 32
    given, calls = bench.problem("step", "gk", shape)
    o = calls["ours"]()
    moved = sum(x.nbytes for x in given.values()) + given["state"].nbytes + o.nbytes
    assert bench.cost("step", "gk", *shape)["forward"][0] == moved


def test_cases_have_distinct_names_and_first_come_the_sizes_that_matter_most():
    names = [bench.describe(case) for case in bench.cases()]
    assert len(set(names)) == len(names) == 38
    assert names[0] == "recurrent g B8 T2048 H16 K128 V128"
    assert {(mode, gate) for mode, gate, _ in bench.cases()} == set(bench.PEERS)
    assert len({shape for *_, shape in bench.cases()}) == 7


def test_every_case_is_compiled_ahead():
    cases = list(bench.cases())
    jobs = bench.compile_jobs(cases)
    for share in range(4):
        found = [
            (m, g, shape) for (m, g, shapes), s, shares in jobs for shape in shapes if s == share and share < shares
        ]
        assert sorted(found) == sorted(c for c in cases if share == 0 or c[0] == "chunk")


def test_one_failing_case_costs_itself_alone(monkeypatch):
    def measure(case, machine, rounds):
        if case == "bad":
            raise ValueError("no such thing")
        return [case]

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(harness.multiprocessing, "get_context", lambda method: in_this_process)
    results = list(harness.measure_all("benchmarks.recurrent_attention", ["a", "bad", "b"], MACHINE, 1))
    assert results == [("a", ["a"], None), ("bad", [], "ValueError: no such thing"), ("b", ["b"], None)]


def test_a_process_that_dies_costs_the_case_it_was_at():
    dead = types.SimpleNamespace(is_alive=lambda: False, exitcode=-11)
    assert harness._answer(dead, queue.Queue()) == ([], "the process ended with code -11")


class in_this_process:
    """multiprocessing's context, without processes."""

    Queue = queue.Queue

    class Process:
        """Runs its target when started."""

        exitcode = 0

        def __init__(self, target, args):
            self.start = functools.partial(target, *args)

        def is_alive(self):
            return False

        def kill(self):
            pass

        join = kill


def test_the_record_is_written_after_every_case_and_failures_are_told(monkeypatch, tmp_path, fake_timer, capsys):
    path = tmp_path / "recurrent_attention.json"

    def measure_all(benchmark, selected, machine, rounds):
        assert [bench.describe(case)[:22] for case in selected] == ["step g B1024 T1 H16 K1", "step gk B1024 T1 H16 K"]
        yield selected[0], bench.measure(("step", "g", (6, 1, 2, 16, 16)), machine, rounds), None
        assert len(json.loads(path.read_text())["rows"]) == 1
        yield selected[1], [], "RuntimeError: lost"

    monkeypatch.setattr(sys, "argv", ["bench", "--out", str(tmp_path), "--only", "^step", "--quick"])
    monkeypatch.setattr(harness, "require_gpu", lambda: None)
    monkeypatch.setattr(harness, "machine", lambda: MACHINE)
    monkeypatch.setattr(ahead, "compile_ahead", lambda module, jobs: None)
    monkeypatch.setattr(harness, "measure_all", measure_all)
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 1
    record = json.loads(path.read_text())
    assert record["failed"] == [{"case": "step gk B1024 T1 H16 K128 V128", "error": "RuntimeError: lost"}]
    assert "FAILED step gk" in capsys.readouterr().out


@pytest.mark.skipif(not runtime.interpreted, reason="there is a GPU to measure")
@pytest.mark.parametrize(("script", "argv"), [(bench, []), (gate_gradients, ["--out"])])
def test_only_a_gpu_records(script, argv, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script", *argv])
    with pytest.raises(SystemExit, match="need a CUDA GPU"):
        script.main()


# What was recorded.


def test_the_record_is_complete():
    machine = {"gpu", "driver", "torch", "triton", "commit", "date", "copy_tb_per_s", "matmul_tflop_per_s"}
    assert machine <= RECORD["machine"].keys() and RECORD["failed"] == []
    wanted = {
        (name, f"{mode} {gate}", shape)
        for mode, gate, shape in bench.cases()
        for name in bench.cost(mode, gate, *shape)
    }
    assert {(row["pass"], row["variant"], tuple(row["shape"].values())) for row in RECORD["rows"]} == wanted
    for row in RECORD["rows"]:
        mode, gate = row["variant"].split()
        assert (row["bytes"], row["flops"]) == bench.cost(mode, gate, *row["shape"].values())[row["pass"]]
        rate = row["bytes"] / row["ours_ms"] / 1e9 / RECORD["machine"]["copy_tb_per_s"]
        assert row["fraction_of_copy"] == pytest.approx(rate, rel=2e-3)
        assert [peer["name"] for peer in row["peers"]] == [bench.PEERS[mode, gate][0]]


# The tuner.


@pytest.mark.parametrize("kernel", bench.CLASSES)
def test_the_tuner_times_the_class_it_names_with_the_options_it_gives(kernel, monkeypatch):
    """What the launcher asks the table for is the name that the tuner writes; what it then launches are the options."""
    asked, launched = [], []

    def table_says(operator, name, key, device):
        asked.append((name, key))
        return committed(operator, name, key, device)

    committed = configs.table_says

    def launch(*args, **meta):
        launched.append(meta)
        before(*args, **meta)

    before = operator.launch
    for module in (operator, launches):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(configs, "table_says", table_says)
    gate = bench.tuning_shapes(kernel)[-1][-1]
    shape = (3, 1, 1, gate) if kernel == "step" else (1, 40, 1, gate)
    name, call = bench.tuned_call(kernel, shape, 32)
    assert name == (
        "K64 32-bit" if kernel.startswith("chunk") else "K32 16-bit"
    )  # bfloat16 is float32 when interpreted
    options = table_says("recurrent_attention", kernel, name, runtime.device)
    asked.clear()
    call(options | {"num_warps": 16} if kernel != "chunk" else {"C": 16, "runs": 1})
    assert {key for _, key in asked} <= {name} and kernel not in {kernel for kernel, _ in asked}
    if kernel == "chunk":
        assert {meta["TILE"].C for meta in launched} == {16}
    else:
        assert 16 in [meta.get("num_warps") for meta in launched]


@pytest.mark.parametrize("kernel", bench.TABLE)
def test_candidates_are_the_table_s_own_options_and_a_choice(kernel):
    default, candidates = bench.TABLE[kernel]["default"], bench.candidates(kernel)
    assert {tuple(candidate) for candidate in candidates} == {tuple(default)}
    assert default in candidates and 1 < len(candidates) <= 72
