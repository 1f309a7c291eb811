"""``roofline`` and ``bars`` draw what was recorded, say where it was recorded, and type no number of their own."""

import json

import pytest
from matplotlib.figure import Figure

from kernels import runtime
from kernels.common import lines
from kernels.lab import bars, measure, recorded, roofline
from kernels.lab import roofline as roofline_function

MACHINE = {
    "gpu": "NVIDIA Made-Up",
    "driver": "1.2",
    "torch": "2.99.0",
    "triton": "3.99.0",
    "commit": "abc",
    "date": "2026-01-02",
    "copy_tb_per_s": 4.0,
    "matmul_tflop_per_s": 800.0,
}


def row(pass_: str, W: int, ms: float, peers: dict[str, float]) -> dict:
    nbytes, flops = 4_000_000_000, 8_000_000_000
    return {
        "kernel": "some_conv",
        "pass": pass_,
        "shape": {"B": 8, "T": 4096, "D": 2048, "W": W},
        "dtype": "bfloat16",
        "variant": "plain",
        "ours_ms": ms,
        "bytes": nbytes,
        "flops": flops,
        "fraction_of_copy": nbytes / (ms * 1e-3) / 4e12,
        "relative_error": 1e-3,
        "peers": [{"name": name, "version": "1", "ms": value, "relative_error": 1e-3} for name, value in peers.items()],
    }


@pytest.fixture
def results(tmp_path):
    rows = [
        row("forward", 4, 1.25, {"torch.compile": 2.5, "published": 5.0}),
        row("forward", 2, 1.0, {"torch.compile": 2.0}),
        row("backward", 4, 2.0, {"torch.compile": 4.0}),
    ]
    path = tmp_path / "some_conv.json"
    path.write_text(json.dumps({"machine": MACHINE, "rows": rows}))
    return path


def series(ax) -> dict[str, list[list[float]]]:
    return {c.get_label(): c.get_offsets().tolist() for c in ax.collections}


def test_points_and_roof(results, capsys):
    figure = roofline(results)
    (ax,) = figure.axes
    assert series(ax) == {
        "ours": [[2, 6.4], [2, 8], [2, 4]],
        "torch.compile": [[2, 3.2], [2, 4], [2, 2]],
        "published": [[2, pytest.approx(1.6)]],
    }
    (roof,) = ax.lines
    for x, y in zip(*roof.get_data(), strict=True):
        assert y == pytest.approx(min(4 * x, 800))
    assert roof.get_xdata().max() > 200 and roof.get_xdata().min() < 2  # the ridge and the points are on it
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel(), ax.get_ylabel()) == (
        "log",
        "log",
        "FLOP/byte",
        "TFLOP/s",
    )
    assert ax.get_title() == "some_conv on NVIDIA Made-Up\ntorch 2.99.0, triton 3.99.0, 2026-01-02"
    assert capsys.readouterr().out.splitlines() == [
        "some_conv on NVIDIA Made-Up, torch 2.99.0, triton 3.99.0, 2026-01-02",
        "forward   B8 T4096 D2048 W4  bfloat16  plain  0.80 of the copy rate, 2.00× torch.compile, 4.00× published",
        "forward   B8 T4096 D2048 W2  bfloat16  plain  1.00 of the copy rate, 2.00× torch.compile",
        "backward  B8 T4096 D2048 W4  bfloat16  plain  0.50 of the copy rate, 2.00× torch.compile",
    ]


def test_rows_that_do_not_all_fit_have_their_speeds_below_them(results, capsys, monkeypatch):
    monkeypatch.setattr(lines, "WIDTH", 80)
    roofline(results, select={"W": 4})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "forward   B8 T4096 D2048 W4  bfloat16  plain",
        "    0.80 of the copy rate, 2.00× torch.compile, 4.00× published",
        "backward  B8 T4096 D2048 W4  bfloat16  plain",
        "    0.50 of the copy rate, 2.00× torch.compile",
    ]
    alone = results.with_name("alone.json")
    alone.write_text(json.dumps({"machine": MACHINE, "rows": [row("forward", 4, 2.0, {})]}))
    roofline(alone)
    assert capsys.readouterr().out.endswith("\nforward   B8 T4096 D2048 W4  bfloat16  plain  0.50 of the copy rate\n")


def test_select(results):
    assert series(roofline(results, select={"pass": "forward"}).axes[0])["ours"] == [[2, 6.4], [2, 8]]
    assert series(roofline(results, select={"pass": "forward", "W": 2}).axes[0]) == {
        "ours": [[2, 8]],
        "torch.compile": [[2, 4]],
    }
    assert len(series(roofline(results, select={"W": [2, 4]}).axes[0])["ours"]) == 3
    with pytest.raises(ValueError, match="select asks for pass 'sideways': the rows have 'forward', 'backward'"):
        roofline(results, select={"pass": "sideways"})
    with pytest.raises(ValueError, match="select names 'X': the rows have the fields .*dtype.*W"):
        bars(results, select={"X": 1})


def test_the_learners_point(results, capsys):
    figure = roofline(results, learner=("mine", 2e-3, 4e9, 1e9))
    label = next(name for name in series(figure.axes[0]) if name.startswith("mine"))
    assert series(figure.axes[0])[label] == [[4, 2]]
    with_point = capsys.readouterr().out
    assert set(series(roofline(results, learner=("mine", None, 4e9, 1e9)).axes[0])) == {
        "ours",
        "torch.compile",
        "published",
    }
    assert capsys.readouterr().out == with_point  # the text never depends on the machine
    with pytest.raises(ValueError, match=r"learner is \('mine', 1.0\): it must be \(label, seconds, flops, bytes\)"):
        roofline(results, learner=("mine", 1.0))
    with pytest.raises(ValueError, match="must be positive"):
        bars(results, learner=("mine", 0.0, 1, 1))


def test_bars(results, capsys):
    figure = bars(results, select={"W": 4}, learner=("mine", 1e-3, 1, 2e9))
    (ax,) = figure.axes
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx([0.8, 0.4, 0.2, 0.5, 0.25, 0.5])
    assert [bar.get_hatch() for bar in ax.patches][:3] == [None, "////", "...."]
    labels = [t.get_text() for t in ax.get_yticklabels()]
    assert labels[:2] == [
        "forward   B8 T4096 D2048 W4  bfloat16  plain",
        "backward  B8 T4096 D2048 W4  bfloat16  plain",
    ]
    assert labels[2].startswith("mine") and "copy rate" in ax.get_xlabel()
    assert [t.get_text() for t in figure.legends[0].get_texts()][:3] == ["ours", "torch.compile", "published"]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_bars_far_from_the_copy_rate_have_an_axis_of_their_own(results, capsys):
    slow = results.with_name("slow.json")
    slow.write_text(json.dumps({"machine": MACHINE, "rows": [row("forward", 4, 250.0, {"published": 1000.0})]}))
    (ax,) = bars(slow).axes
    assert ax.get_xlim() == pytest.approx((0, 0.0046)) and not ax.lines and "dashed" not in ax.get_xlabel()
    assert [text.get_text() for text in ax.texts] == ["0.0040", "0.0010"]
    assert "0.0040 of the copy rate, 4.00× published" in capsys.readouterr().out
    (ax,) = bars(results).axes
    assert ax.get_xlim() == pytest.approx((0, 1.15)) and len(ax.lines) == 1 and "dashed" in ax.get_xlabel()


@pytest.fixture
def arithmetic(tmp_path):
    """Two rows recorded beside a matrix product, and one beside a copy."""
    rows = [row("forward", 4, 1.25, {"peer": 2.5}), row("backward", 4, 2.0, {}), row("forward", 2, 1.0, {})]
    for each in rows[:2]:
        del each["fraction_of_copy"]
        each["fraction_of_matmul"] = each["flops"] / (each["ours_ms"] * 1e-3) / 800e12
    path = tmp_path / "arithmetic.json"
    path.write_text(json.dumps({"machine": MACHINE, "rows": rows}))
    return path


def test_bars_beside_a_matrix_product(arithmetic, capsys):
    (ax,) = bars(arithmetic, select={"W": 4}, learner=("mine", 1e-4, 4e10, 1e6)).axes
    assert ax.get_xlabel().startswith("fraction of a matrix product's rate")
    assert [patch.get_width() for patch in ax.patches] == pytest.approx([0.008, 0.004, 0.005, 0.5])
    assert "0.0080 of a matrix product's rate, 2.00× peer" in capsys.readouterr().out


def test_bars_of_two_kinds_are_refused(arithmetic):
    with pytest.raises(ValueError, match="fraction_of_matmul and rows with fraction_of_copy"):
        bars(arithmetic)


def test_of_two_ceilings_the_nearer_one_is_drawn_for_all_rows(tmp_path, capsys):
    rows = [row("forward", 4, 1.25, {"peer": 2.5}), row("backward", 4, 2.0, {})]
    for each, copy, matmul in zip(
        rows, (0.1, 0.4), (0.8, 0.3), strict=True
    ):  # the second row is nearer to the copy rate
        each |= {"fraction_of_copy": copy, "fraction_of_matmul": matmul}
    path = tmp_path / "both.json"
    path.write_text(json.dumps({"machine": MACHINE, "rows": rows}))
    (ax,) = bars(path).axes
    assert [patch.get_width() for patch in ax.patches] == pytest.approx([0.8, 0.4, 0.3])
    assert capsys.readouterr().out.count("of a matrix product's rate") == 2
    roofline(path)  # draws both ceilings: each row is told its own
    assert "0.40 of the copy rate" in capsys.readouterr().out
    (ax,) = bars(path, select={"pass": "backward"}).axes
    assert [patch.get_width() for patch in ax.patches] == pytest.approx([0.4])


def test_given_axes_are_used(results):
    ax = Figure().subplots()
    assert roofline(results, ax=ax) is ax.figure and ax.get_xlabel() == "FLOP/byte"


def test_results_that_are_not_there(results):
    with pytest.raises(FileNotFoundError, match="no other.json in .*: recorded are some_conv"):
        roofline(results.with_name("other.json"))
    with pytest.raises(
        FileNotFoundError, match="results is 'no_such_kernel', but there is no no_such_kernel.json in results/"
    ):
        roofline("no_such_kernel")


def test_figures_are_the_same_bytes_each_time(results):
    first, second = (bars(results).png() for _ in range(2))
    assert first == second and len(first) < 60_000


def test_the_name_is_the_function():
    import kernels.lab.roofline  # noqa: F401

    assert callable(roofline_function)


@pytest.mark.skipif(not runtime.interpreted, reason="kernels are compiled here")
def test_the_interpreter_is_not_timed(capsys):
    assert measure(lambda: 1 / 0) is None
    assert (
        capsys.readouterr().out
        == "Not timed: kernels run in the interpreter here, whose speed says nothing about a GPU.\n"
    )


@pytest.mark.gpu
def test_measure_is_seconds():
    import torch

    x = torch.zeros(2**28, device="cuda")
    assert 1e-5 < measure(lambda: x.add_(1)) < 1


def test_records_are_found_from_any_folder(tmp_path, monkeypatch):
    """A lesson opened elsewhere, as in Colab, has no ../benchmarks."""
    monkeypatch.chdir(tmp_path)
    record = recorded("dynamic_conv")
    assert record["rows"] and record["machine"]["gpu"] == "NVIDIA H200"
    with pytest.raises(FileNotFoundError, match="no_such.json in results/: recorded are .*dynamic_conv"):
        recorded("no_such")


def test_a_figure_says_in_words_what_it_draws(capsys):
    figure = roofline("dynamic_conv", select={"pass": "forward", "W": 4})
    assert figure.alt.startswith("A roofline, both axes logarithmic") and " ours, " in figure.alt
    figure = bars("dynamic_conv", select={"pass": "forward", "W": 4}, alt="Mine.")
    assert figure.alt == "Mine."
    alt = bars("dynamic_conv", select={"pass": "forward", "W": 4}).alt
    assert alt.startswith("Horizontal bars, each a fraction of the copy rate, in ") and "ours 0." in alt


def test_an_operator_of_ones_own_needs_no_record(capsys):
    figure = roofline(None, point=("rms_norm", None, 4e6, 4e6))
    printed = capsys.readouterr().out
    assert "rms_norm, at best: 1 FLOP/byte, " in printed and " µs at the copy rate of " in printed
    assert "dynamic_conv" not in printed and "rms_norm, at best" in figure.alt
    roofline(None, point=("rms_norm", 1e-5, 4e6, 4e6))
    figure = bars(None, learner=("rms_norm", 1e-5, 4e6, 4e6))
    assert "rms_norm" in figure.alt and "the copy rate" in figure.alt
    assert "a matrix product" in bars(None, learner=("product", 1e-5, 4e12, 4e6)).alt
    for point in ("rms_norm", 3, ("rms_norm", 1e-5, 4e6), ("rms_norm", "1e-5", 4e6, 4e6), ("copy", 1e-5, 0, 4e6)):
        with pytest.raises(ValueError, match="point is "):
            roofline(None, point=point)
        with pytest.raises(ValueError, match="learner is "):
            bars(None, learner=point)
    with pytest.raises(ValueError, match="fn is 3: measure needs a function"):
        measure(3)
    for draw, how in ((roofline, {}), (bars, {"learner": ("rms_norm", None, 4e6, 4e6)})):
        with pytest.raises(ValueError, match="results is None: then"):
            draw(None, **how)
    with pytest.raises(ValueError, match="flops and bytes positive"):
        roofline(None, point=("rms_norm", None, 0, 4e6))
