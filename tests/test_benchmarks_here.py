"""``benchmarks.here``: its calls are what they say, a slower machine is told from a slower kernel, records are by GPU."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import harness, here, tables
from kernels import runtime

SMALL = [  # of the calls, in their order
    (1, 20, 24, 4, "plain"),
    (2, 20, 24, 4, "static"),
    (1, 20, 23, 4, "plain"),
    ("chunk", "g", 1, 40, 2, 16, 16),
    ("chunk", "gk", 1, 40, 2, 16, 16),
    ("step", "gk", 3, 1, 2, 16, 16),
    here.heads("causal", 1, 2, 2, 64, 64, 16),
    here.heads("documents", 1, 4, 2, 64, 64, 16, softcap=30.0),
    here.heads("decoding", 1, 4, 2, 1, 64, 16),
    (2, 8, 16, 5, 3, 1),
    (2, 16, 8, 5, 1, 1),
    (2, 16, 16, 5, 3, 16),
]
PASSES = {"dynamic_conv": 2, "recurrent_attention": 2, "flex_attention": 2, "conv_wgrad": 1}
H200 = {"gpu": "NVIDIA H200", "architecture": "sm_90", "torch": "2", "triton": "3"}
H200 |= {"copy_tb_per_s": 4.0, "matmul_tflop_per_s": 700.0}
A100 = H200 | {"gpu": "NVIDIA A100-SXM4-80GB", "architecture": "sm_80"}


def row(ms, gpu="NVIDIA H200", bound="product", call="causal 4k, d 128"):
    return {"gpu": gpu, "operator": "flex_attention", "call": call, "pass": "forward", "bound": bound, "ms": ms, "share": 0.5}


def test_there_are_twelve_calls_three_an_operator_with_names_of_their_own():
    assert len(here.CALLS) == len(SMALL) == len({(call.operator, call.what) for call in here.CALLS}) == 12
    assert all([call.operator for call in here.CALLS].count(operator) == 3 for operator in tables.OPERATORS)
    assert {call.bound for call in here.CALLS} <= here.RATES.keys()


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
@pytest.mark.parametrize("case", range(12))
def test_each_call_is_timed_in_every_pass_that_it_has(case, monkeypatch):
    call, ran = here.CALLS[case]._replace(sizes=SMALL[case]), {}

    def timed(passes, rounds):
        ran.update({name: one() for name, one in passes.items()})
        return dict.fromkeys(passes, 1.5e-9), "graph"

    monkeypatch.setattr(here, "CALLS", [*here.CALLS[:case], call])
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(harness, "timed", timed)
    rows = here.measure(case, H200, 1)
    assert [one["pass"] for one in rows] == list(ran) and json.dumps(rows)
    assert len(rows) == 1 if "decoding" in call.what or "behind" in call.what else len(rows) == PASSES[call.operator]
    assert all(one["gpu"] == "NVIDIA H200" and one["bound"] == call.bound for one in rows)
    _, work = call.made(*call.sizes)
    for one in rows:  # in 1.5e-12 s this machine copies 6 bytes, or does 1050 operations
        moved, flops = work[one["pass"]]
        wanted = moved / 6 if call.bound == "copy" else flops / 1050
        assert one["share"] == pytest.approx(wanted, rel=1e-3) and wanted > 0
    for out in ran.values():
        for tensor in out if isinstance(out, tuple) else [out]:
            assert tensor.isfinite().all() and tensor.abs().max() > 0
    here.launches(case)


@pytest.mark.parametrize(
    ("ms", "copy", "product", "bound", "words"),
    [
        (1.0, 4.0, 700.0, "product", "as fast as recorded"),
        (1.05, 4.0, 700.0, "product", "as fast as recorded"),
        (0.5, 4.0, 700.0, "product", "as fast as recorded"),
        (1.25, 4.0, 560.0, "product", "as fast as the machine: its product reaches 0.80 of the recorded one's"),
        (1.25, 4.0, 560.0, "copy", "SLOWER than recorded; a copy reaches 1.00 of the recorded one's"),
        (1.25, 3.2, 700.0, "copy", "as fast as the machine: its copy reaches 0.80 of the recorded one's"),
        (1.25, 4.0, 700.0, "product", "SLOWER than recorded; a product reaches 1.00 of the recorded one's"),
        (2.0, 4.0, 560.0, "product", "SLOWER than recorded; a product reaches 0.80 of the recorded one's"),
        (1.25, 4.0, 800.0, "product", "SLOWER than recorded; a product reaches 1.14 of the recorded one's"),
    ],
)
def test_a_slower_machine_is_told_from_a_slower_kernel(ms, copy, product, bound, words):
    machine = H200 | {"copy_tb_per_s": copy, "matmul_tflop_per_s": product}
    assert here.verdict(row(ms, bound=bound), machine, H200, 1.0) == (1.0 / ms, words)


def test_the_bytes_of_attention_are_those_of_its_tensors():
    (layer,) = SMALL[6]
    passes, work = here.attend(layer)
    q, k, v = here.attention.tensors_of(layer)
    moved = sum(x.nbytes for x in (q, k, v, passes["forward"]()))
    assert work["forward"][0] == moved and work["backward"][0] == 2 * moved  # the same once more, as gradients
    pairs = 64 * 64 // 2
    assert work["forward"][1] == 4 * 2 * 16 * pairs and work["backward"][1] == 10 * 2 * 16 * pairs


def test_a_record_keeps_other_gpus_and_replaces_its_own(tmp_path):
    record = here.extended(None, H200, [row(1.0), row(2.0, call="gone")])
    record = here.extended(record, A100, [row(3.0, A100["gpu"])])
    record = here.extended(record, H200 | {"date": "later"}, [row(1.5)])
    harness.write("here", record, tmp_path)
    record = harness.read("here", tmp_path)
    assert here.recorded(record, "NVIDIA H200") == (H200 | {"date": "later"}, {here.which(row(0)): row(1.5)})
    assert here.recorded(record, A100["gpu"]) == (A100, {here.which(row(0)): row(3.0, A100["gpu"])})
    assert here.recorded(record, "NVIDIA B200") == here.recorded(None, "NVIDIA H200") == (None, {})


def test_the_report_stands_beside_the_record_of_the_same_gpu():
    record = here.extended(None, H200 | {"torch": "1"}, [row(1.0), row(1.0, call="other")])
    text = here.report(H200, [row(1.0), row(2.0, call="other"), row(1.0, call="new")], record)
    assert text[0] == "NVIDIA H200 (sm_90), torch 2, Triton 3; recorded with torch 1, Triton 3"
    assert "copy         4.00 TB/s, recorded 4.00" in text[1] and "product    700.00 TFLOP/s" in text[2]
    assert all(line.endswith("tiles of NVIDIA H200: by its name") for line in text[3:7])
    assert text[7] == "Of each pass its time, its share of a copy's or a product's rate, and the recorded time over it:"
    assert text[8].endswith("1.0000 ms   50% of a product  1.00  as fast as recorded")
    assert "2.0000 ms   50% of a product  0.50  SLOWER" in text[9] and text[10].endswith("1.0000 ms   50% of a product")
    assert text[11] == "1 of 2 passes are as fast as recorded, or as fast as the machine allows."


def test_a_gpu_that_nobody_has_measured_is_told_so_and_which_table_it_takes():
    record = here.extended(None, H200, [row(1.0)])
    text = "\n".join(here.report(A100, [row(1.0, A100["gpu"]) | {"share": 0.25}], record))
    assert "and the recorded shares:" in text and "1.0000 ms   25% of a product, H200 50%" in text
    assert "No NVIDIA A100-SXM4-80GB has been measured, so its times stand beside none. Recorded: NVIDIA H200." in text
    assert text.count("tiles of any GPU: there is none for this GPU, nor for sm_80") == len(tables.OPERATORS)
    assert "as fast" not in text and "recorded 4" not in text
    h100 = "\n".join(here.about_tables(H200 | {"gpu": "NVIDIA H100 80GB HBM3"}))
    assert h100.count("tiles of NVIDIA H200: by its architecture, sm_90") == len(tables.OPERATORS)
    assert "Nothing is recorded yet" in "\n".join(here.report(A100, [row(1.0)], None))


def test_without_a_gpu_it_says_one_sentence_and_exits_with_1():
    if not runtime.interpreted:
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "benchmarks.here"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=harness.RESULTS.parent.parent)
    assert ran.returncode == 1 and ran.stdout == "" and ran.stderr.count("\n") == 1 and "need a CUDA GPU" in ran.stderr


def test_what_is_committed_is_of_calls_that_there_are():
    record = harness.read(here.NAME) or {"machines": [], "rows": []}
    calls = {(call.operator, call.what) for call in here.CALLS}
    assert {here.which(one)[:2] for one in record["rows"]} <= calls
    assert {one["gpu"] for one in record["rows"]} == {machine["gpu"] for machine in record["machines"]}


@pytest.fixture
def program(tmp_path, monkeypatch, capsys):
    """``run(ms, *arguments, error=None)``: what the program prints where each pass takes ``ms``, of four small calls."""
    calls = [call._replace(sizes=sizes) for call, sizes in zip(here.CALLS, SMALL, strict=True)]
    monkeypatch.setattr(here, "CALLS", [calls[i] for i in (0, 5, 8, 9)])
    monkeypatch.setattr(here, "gpu_here", lambda: H200)
    monkeypatch.setattr(here.ahead, "compile_ahead", lambda module, jobs: [here.launches(*job) for job, *_ in jobs])
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(harness, "require_gpu", lambda: None)
    monkeypatch.setattr(harness, "about", lambda: {"gpu": "NVIDIA H200", "commit": "c", "date": "1"})

    def run(ms, *arguments, error=None):
        def measure_all(benchmark, cases, machine, rounds):
            assert benchmark == "benchmarks.here"
            for case in cases:
                yield case, here.measure(case, machine, rounds), error if case == 1 else None

        monkeypatch.setattr(harness, "measure_all", measure_all)
        monkeypatch.setattr(harness, "timed", lambda passes, rounds: (dict.fromkeys(passes, ms), "graph"))
        monkeypatch.setattr(sys, "argv", ["here", *arguments, "--out", str(tmp_path)])
        here.main()
        return capsys.readouterr().out

    return run


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
def test_the_program_records_and_then_stands_beside_what_it_recorded(program, tmp_path):
    assert "Nothing is recorded yet" in program(1.0, "--record")
    (machine,) = harness.read("here", tmp_path)["machines"]
    assert machine == H200 | {"commit": "c", "date": "1"}
    said = program(1.25)
    assert said.count("SLOWER") == 5 and "0 of 5 passes" in said and said.count(" 0.80  ") == 5


@pytest.mark.skipif(not runtime.interpreted, reason="sizes for the interpreter")
def test_a_call_that_fails_is_said_and_nothing_is_recorded(program, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        program(1.0, "--record", error="OutOfMemoryError: no more")
    assert "FAILED recurrent_attention, a step of decoding: OutOfMemoryError: no more" in capsys.readouterr().out
    assert harness.read("here", tmp_path) is None
