"""The ladders run the lessons' own tagged cells, and what was recorded of them is complete."""

import itertools
import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import harness
from benchmarks import ladder as bench
from kernels import runtime
from kernels.lab import ladder, sweep
from kernels.lab.law import Prediction
from tools.kernel_environment import ROOT, too_old_for

LESSONS = sorted(path.stem.removeprefix("lesson_") for path in ROOT.glob("benchmarks/ladders/lesson_*.py"))


DECLARED = {lesson: bench.find(lesson) for lesson in LESSONS}
IN_THE_INTERPRETER = [lesson for lesson, declared in DECLARED.items() if declared.tiny]


class Anything:
    """What a notebook may define: it can be called, and launched on a grid."""

    def __call__(self, *args, **options):
        return self

    __getitem__ = __call__


class Asked(dict):
    """A namespace that has every name, and remembers which were asked for."""

    def __missing__(self, name):
        self[name] = Anything()
        return self[name]


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson not in IN_THE_INTERPRETER])
def test_every_rung_finds_its_function_in_the_tagged_cells(lesson):
    """The rungs are called with tensors that have shapes alone, and functions that do nothing but have a name."""
    declared, asked = DECLARED[lesson], Asked()
    tensors = declared.tensors(torch.device("meta"))
    for rung in declared.rungs:
        if not rung.finished:
            rung.run(asked, tensors)
    for turned in declared.sweeps:
        for value in turned.values:
            turned.run(asked, tensors, value)
    names = namespace_of(declared)
    assert [name for name in asked if not callable(names.get(name))] == []
    assert asked, "no rung asks for a function of the lesson"


def namespace_of(declared):
    numbers = declared.notebooks or (declared.lesson,)
    for number in numbers:
        (path,) = ROOT.glob(f"notebooks/{number}_*.ipynb")
        if why := too_old_for(path):
            pytest.skip(why)
    return bench.namespace(numbers)


@pytest.mark.parametrize("lesson", IN_THE_INTERPRETER)
def test_every_rung_is_right_where_it_is_small(lesson):
    """The same code that a GPU measures, with its launches, in the interpreter; peers are torch's own."""
    declared = DECLARED[lesson].tiny()
    names, tensors = namespace_of(declared), declared.tensors(runtime.device)
    answers, wrong = declared.reference(tensors), {}
    for key, (step, call) in bench.calls_of(declared, names, tensors).items():
        if key[0] != "peer":
            errors = bench.errors_of(replace(step, tolerance=math.inf), call, tensors, answers, declared.scratch)
            if not max(errors.values()) < 1e-5:  # float32
                wrong[key] = errors
    assert wrong == {}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_ladder_is_declared_under_its_number(lesson):
    assert DECLARED[lesson].lesson == lesson


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_record_has_every_rung_and_no_failure(lesson):
    declared, record = bench.find(lesson), harness.read(f"ladder_{lesson}")
    assert record["failed"] == []
    assert (record["shape"], record["flops"], record["bytes"]) == (declared.shape, declared.flops, declared.bytes)
    rungs = {(row["kind"], row["rung"]) for row in record["rungs"]}
    own = {("finished" if rung.finished else "lesson", rung.label) for rung in declared.rungs}
    assert rungs == own | {("peer", peer.label) for peer in declared.peers}
    swept = {turned["name"]: [row["value"] for row in turned["rows"]] for turned in record["sweeps"]}
    assert swept == {turned.name: list(turned.values) for turned in declared.sweeps}
    ideas = {row["rung"]: row["idea"] for row in record["rungs"] if row["kind"] != "peer"}
    ideas |= {row["name"]: row["idea"] for row in record["sweeps"]}
    assert ideas == bench.ideas_of(declared), f"python -m benchmarks.ladder --reword {lesson}"
    for row in record["rungs"]:
        share = record["limit_ms"] / row["ms"]
        assert row["fraction_of_limit"] == pytest.approx(share, rel=5e-3, abs=1e-4)
    machine = {"gpu", "driver", "torch", "triton", "commit", "date", "copy_tb_per_s", "matmul_tflop_per_s"}
    assert machine <= record["machine"].keys()


def test_a_rung_that_hangs_is_left_out_and_the_others_are_measured(monkeypatch, tmp_path, capsys):
    """The child says what it is running; when its alarm has ended it, its lesson is measured without that rung."""
    asked = []

    def measure_all(benchmark, cases, machine, rounds):
        for case in cases:
            asked.append(case)
            if case == "50":
                bench._running("lesson: two workers", 0)
                yield case, [], "the process ended with code -14"
            else:
                row = {"kind": "lesson", "rung": "one buffer", "ms": 1.0, "fraction_of_limit": 1.0, "errors": {}}
                lost = [{"rung": rung, "error": "hung"} for rung in case.split("|")[1:]]
                yield case, [{"rungs": [row], "sweeps": [], "failed": lost}], None

    monkeypatch.setattr(harness, "require_gpu", lambda: None)
    monkeypatch.setattr(harness, "machine", dict)
    monkeypatch.setattr(harness, "measure_all", measure_all)
    monkeypatch.setenv(bench.RUNNING, "")
    monkeypatch.setattr(sys, "argv", ["ladder", "50", "53", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        bench.main()
    assert asked == ["50", "53", "50|lesson: two workers"] and left.value.code is True
    assert "50 FAILED lesson: two workers: hung" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ladder_50.json", "ladder_53.json"]


def test_a_record_takes_new_words_and_keeps_what_was_measured(monkeypatch, tmp_path):
    lesson = "06"
    measured = harness.read(f"ladder_{lesson}")
    worn = json.loads(json.dumps(measured))
    worn["rungs"][0]["idea"] = worn["sweeps"][0]["idea"] = "worn"
    harness.write(f"ladder_{lesson}", worn, tmp_path)
    monkeypatch.setattr(sys, "argv", ["ladder", lesson, "--reword", "--out", str(tmp_path)])
    bench.main()
    assert harness.read(f"ladder_{lesson}", tmp_path) == measured


@pytest.fixture
def record(tmp_path, monkeypatch):
    rung = lambda name, kind, ms, idea="": {"rung": name, "kind": kind, "ms": ms, "idea": idea, "fraction_of_limit": 1 / ms}  # noqa: E731
    rungs = [rung("naive", "lesson", 50.0, "one output"), rung("torch", "peer", 1.5), rung("tiles", "lesson", 5.0, "tiles")]
    machine = {"gpu": "NVIDIA X", "torch": "2", "triton": "3", "date": "2026-01-01"}
    turned = [{"name": "TILE", "idea": "", "rows": [{"value": 16, "ms": 8.0}, {"value": 32, "ms": 5.0}]}]
    content = {"machine": machine, "kernel": "k", "shape": {"N": 8}, "dtype": "float32", "limit": "copy", "limit_ms": 1.0}
    content = {**content, "rungs": rungs, "sweeps": turned, "failed": []}
    write = lambda: (tmp_path / "ladder_99.json").write_text(json.dumps(content))  # noqa: E731
    write()
    monkeypatch.setattr(sys.modules["kernels.lab.roofline"], "RESULTS", tmp_path)  # the name is the function
    return content, write


def test_the_picture_and_its_lines(record, capsys):
    figure = ladder("99")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "        ms  speed  share",
        "naive   50   1.0×   0.02",
        "tiles    5    10×   0.20",
        "torch  1.5    33×   0.67",
    ]
    assert "tiles 0.2 of the speed" not in figure.alt and "naive 0.02, tiles 0.2, torch 0.67" in figure.alt
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["naive", "tiles", "torch", "the limit"]
    assert len(ladder("99", upto="naive").axes[0].get_yticklabels()) == 2


def test_nothing_is_written_over_the_bars_or_the_limit(record):
    """Times and ideas are columns to the right of the axes."""
    figure = ladder("99")
    figure.canvas.draw()
    ax = figure.axes[0]
    written = [text.get_window_extent() for text in ax.texts if text.get_text()]
    assert len(written) == 3 + 3 + 2 + 2  # the peer and the limit have no idea
    assert min(box.x0 for box in written) > ax.get_window_extent().x1
    assert max(box.x1 for box in written) <= figure.bbox.x1


def test_the_limit_has_a_row_unless_a_rung_reaches_it(record):
    content, write = record
    content["limit_ms"] = 1.5
    for row in content["rungs"]:
        row["fraction_of_limit"] = 1.5 / row["ms"]
    write()
    assert [text.get_text() for text in ladder("99").axes[0].get_yticklabels()] == ["naive", "tiles", "torch"]


def test_where_all_are_far_from_the_limit_the_axis_ends_at_the_best(record):
    """A recurrence that waits for its own steps: beside a copy's speed its bars could not be told apart."""
    content, write = record
    for row in content["rungs"]:
        row["fraction_of_limit"] /= 10
    write()
    figure = ladder("99")
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["naive", "tiles", "torch"]
    assert ax.get_xlim()[1] < 0.07 and "lies 15 times as far" in ax.get_xlabel() and "beyond the axis" in figure.alt


PREDICTED = {  # ms 45, 3.7 and 1.2 beside the recorded 50, 5 and 1.5: within a third, and just outside and inside of it
    "naive": Prediction({"banks": 0.045, "chain": 0.02}),
    "tiles": Prediction({"products": 0.0037}),
    "torch": Prediction({"products": 0.0012}),
}


def test_predictions_stand_beside_what_was_recorded_and_misses_are_marked(record, capsys):
    figure = ladder("99", predicted=PREDICTED)
    ax = figure.axes[0]
    marks = [line for line in ax.lines if line.get_linestyle() == "-"]
    assert [mark.get_xdata()[0] for mark in marks] == pytest.approx([1 / 45, 1 / 3.7, 1 / 1.2])
    assert [mark.get_color() == "black" for mark in marks] == [True, False, True]
    assert [sum(mark.get_ydata()) / 2 for mark in marks] == [0, 1, 2]
    said = ["predicted 45 ms", "predicted 3.7 ms, off 1.4×", "predicted 1.2 ms"]
    assert [text.get_text() for text in ax.texts if "predicted" in text.get_text()] == said
    assert figure.alt.endswith("naive predicted 45 ms; tiles predicted 3.7 ms, off 1.4×; torch predicted 1.2 ms.")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "        ms  speed  share  predicted   off  by",
        "naive   50   1.0×   0.02         45        banks",
        "tiles    5    10×   0.20        3.7  1.4×  products",
        "torch  1.5    33×   0.67        1.2        products",
    ]


def test_a_prediction_that_is_too_long_is_a_miss_too_and_one_beyond_the_limit_is_on_the_axis(record):
    made = {"naive": Prediction({"chain": 0.068}), "torch": Prediction({"chain": 0.0005})}  # 68 / 50 is more than 4/3
    ax = ladder("99", predicted=made).axes[0]
    texts = [text.get_text() for text in ax.texts if "predicted" in text.get_text()]
    assert texts == ["predicted 68 ms, off 1.4×", "predicted 0.5 ms, off 3.0×"]
    assert ax.get_xlim()[1] > 2


def test_predictions_leave_room_for_the_columns(record):
    figure = ladder("99", predicted=PREDICTED)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert len(boxes) == 3 + 3 + 2 + 2 + 3
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    label = figure.axes[0].xaxis.label.get_window_extent()
    assert figure.bbox.x0 <= label.x0 and label.x1 <= figure.bbox.x1


def test_only_rungs_are_predicted(record):
    with pytest.raises(ValueError, match="predicted names 'fast': the rungs are naive, torch, tiles"):
        ladder("99", predicted={"fast": Prediction({"products": 1})})
    first = ladder("99", upto="naive", predicted=PREDICTED)
    assert "tiles" not in first.alt and "naive predicted" in first.alt


def test_a_sweep_is_drawn_over_its_prediction(record):
    figure = sweep("99", "TILE", predicted=lambda size: 1 / size)
    measured, predicted = figure.axes[0].get_lines()
    assert list(measured.get_ydata()) == [8.0, 5.0]
    assert list(predicted.get_ydata()) == [10.0, 5.0]  # scaled to meet the fastest point
    assert "16: 8 ms, 32: 5 ms" in figure.alt
    assert figure.axes[0].get_yscale() == "linear"
    figure = sweep("99", "TILE", predicted=lambda size: 1 / size, what="the schedule", scaled_to="first")
    assert list(figure.axes[0].get_lines()[1].get_ydata()) == [8.0, 4.0]
    assert "the schedule predicts, scaled to meet the first point" in figure.alt


def test_the_names_of_a_sweeps_lines_are_whole_and_apart(record):
    """Also where both lines end at the same point; where times span much, the axis is logarithmic."""
    content, write = record
    content["sweeps"][0]["rows"][0]["ms"] = 40.0
    write()
    figure = sweep("99", "TILE", predicted=lambda size: 1 / size)
    figure.canvas.draw()
    ax = figure.axes[0]
    assert ax.get_yscale() == "log" and "logarithmic" in figure.alt
    first, second = (text.get_window_extent() for text in ax.texts)
    assert [text.get_text().split()[0] for text in ax.texts] == ["measured", "the"] and not first.overlaps(second)
    assert min(first.x0, second.x0) >= ax.get_window_extent().x1 and max(first.x1, second.x1) <= figure.bbox.x1


def test_what_was_not_recorded_is_named(record):
    with pytest.raises(ValueError, match="upto is 'fast': the lesson's rungs are naive, tiles"):
        ladder("99", upto="fast")
    with pytest.raises(ValueError, match="recorded for lesson 99 are the sweeps TILE"):
        sweep("99", "BLOCK")
    with pytest.raises(FileNotFoundError, match="ladder_98"):
        ladder("98")
