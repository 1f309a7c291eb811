"""The law of time: each resource's time by its own rate, the largest is the prediction, and no figure is typed in twice."""

import json

import pytest

from kernels.lab import measured, predict, recorded, roofline
from kernels.lab.law import law, rates

KNOWN = measured.numbers()


def test_each_amount_takes_what_its_rate_says_and_the_longest_is_the_prediction(capsys):
    found = predict(bytes=4_280_000_000, sectors=7_800_000_000 // 32, products=1_800_000_000_000, chain=(1000, 336))
    assert found.times == pytest.approx(
        {"distinct bytes": 1e-3, "requested sectors": 1e-3, "products": 2e-3, "chain": 3.36e-4}
    )
    assert (found.seconds, found.by) == (pytest.approx(2e-3), "products")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NVIDIA H200, 132 multiprocessors at 1.98 GHz, 2026-11-22"
    assert [line.split("  ")[0] for line in lines[1:]] == [*found.times, "predicted"]
    assert lines[1].split() == "distinct bytes 1 ms 4,280,000,000 at 4.28 TB/s, a large copy".split()
    assert lines[4].split() == "chain 0.336 ms 1,000 steps of 336 ns".split()
    assert lines[5].split() == "predicted 2 ms products".split()


def test_a_multiprocessors_own_units_work_at_its_clock():
    second = KNOWN["multiprocessors"] * KNOWN["ghz"] * 1e9
    times = predict(turns=second, special_functions=16 * second).times
    assert times == pytest.approx({"banks": 1, "special functions": 1})
    multiply_adds = KNOWN["ordinary_tflop_per_s"] * 1e12 / 64
    assert predict(instructions=multiply_adds).seconds == pytest.approx(1)
    assert 0.9 < multiply_adds / (4 * second) < 1  # four schedulers, an instruction each a clock


def test_a_program_and_a_launch_cost_what_empty_ones_did():
    empty = {row["what"]: row["graph_us"] for row in measured.rows("launches")}
    both = predict(programs=100_000).seconds + predict(launches=1).seconds
    assert both * 1e6 == pytest.approx(empty["empty kernel, 100000 programs"], rel=0.01)


def test_a_chain_may_have_steps_of_several_kinds(capsys):
    assert predict(chain=[(64, 336), (64, 141)]).times == pytest.approx({"chain": 64 * 477e-9})
    assert "64 steps of 336 ns + 64 steps of 141 ns" in capsys.readouterr().out


def test_a_figure_that_was_not_measured_says_so(capsys):
    predict(turns=1, special_functions=1, instructions=1, products=1, sectors=1)
    lines = capsys.readouterr().out.splitlines()
    assert ["vendor" in line for line in lines[1:-1]] == [
        line.startswith(("banks", "special functions")) for line in lines[1:-1]
    ]


def test_a_machine_has_one_peak_whichever_benchmark_is_read(capsys):
    peaks = {rates(recorded(name))["products"] for name in ("machine", "dynamic_conv", "ladder_05", "ladder_40")}
    (peak,) = peaks
    assert peak.per_second == 900e12 and "3,444 a clock each" in peak.figure
    predict("ladder_20", products=1)
    assert capsys.readouterr().out.partition("\n")[0].endswith("GHz, 2026-11-22")  # the date of the rates
    assert "tensor_tflop_per_s" in KNOWN and "matmul_tflop_per_s" not in KNOWN


def test_a_roofline_is_the_law_of_two_resources(capsys):
    for nbytes, flops in ((4e9, 1e9), (1e6, 1e12)):
        figure = roofline(None, point=("mine", None, flops, nbytes))
        (roof,) = figure.axes[0].lines
        x, y = (values[-1] for values in roof.get_data())
        both = law(rates(recorded("machine")), bytes=1e12, products=x * 1e12)
        assert y == pytest.approx(x / both.seconds)
    assert "at the products' peak of NVIDIA H200" in capsys.readouterr().out


def test_another_machine_has_the_rates_of_its_own_run(tmp_path):
    path = tmp_path / "mine.json"
    machine = {"gpu": "NVIDIA Made-Up", "date": "2026-01-02", "copy_tb_per_s": 2.0, "matmul_tflop_per_s": 100.0}
    path.write_text(json.dumps({"machine": machine, "rows": []}))
    assert predict(path, bytes=2e12, products=1e14).times == pytest.approx({"distinct bytes": 1, "products": 1})
    with pytest.raises(ValueError, match="turns is 7, but this record has rates of bytes, products alone"):
        predict(path, turns=7)


def test_what_is_no_amount_is_refused():
    with pytest.raises(ValueError, match="nothing is given that a kernel could wait for"):
        predict()
    for wrong in (-1, "many"):
        with pytest.raises(ValueError, match=f"bytes is {wrong!r}: it must be a number, not negative"):
            predict(bytes=wrong)
    for wrong in (7, (7,), [(1, 2, 3)], (8, "ns")):
        with pytest.raises(ValueError, match="chain is .*: it must be"):
            predict(chain=wrong)
