"""What honest students hand in besides the notebook as it was meant: it is taken, or its reason names what to do."""

import datetime
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tests.course.hostile import cell, notebook
from tests.course.hostile.plant import NAME, write
from tests.course.test_foreign import ASSIGNMENTS, answers
from tools.grading import answers as of_cells
from tools.grading import bench, exchange, judge, remote, sandbox, submission, timer
from tools.grading.results import REPORTED
from tools.grading.sandboxed import syscalls, wire


def reason(call, *given):
    with pytest.raises(submission.Unusable) as caught:
        call(*given)
    return caught.value.status, caught.value.reason


def read(data, name=NAME):
    return submission.read(data, ASSIGNMENTS[name])


@pytest.mark.parametrize("encoding", ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"))
def test_a_notebook_of_another_encoding_is_read(encoding):
    made = notebook(True)
    cell(made, "kernel").source += "\n# größer"
    assert read(json.dumps(made, ensure_ascii=False).encode(encoding)).answers["kernel"].endswith("# größer")


def test_the_guide_states_how_much_is_read():
    guide = (Path(__file__).parents[2] / "docs" / "instructor_guide.md").read_text()
    assert f"a notebook {submission.MOST_CELLS:,} cells and {submission.MOST_BYTES >> 20} MB" in guide
    assert f"A cell has at most {of_cells.MOST_CHARACTERS:,} characters" in guide


def test_too_many_cells_are_called_so():
    many = {"cells": [{"cell_type": "code", "source": ""}] * (submission.MOST_CELLS + 1)}
    assert reason(read, json.dumps(many).encode()) == ("refused", "the notebook has 2001 cells, 2000 are the most")


def test_an_archive_that_was_unpacked_with_its_folders_is_found(tmp_path):
    folder = tmp_path / "ada" / NAME
    write(folder / "hand-in" / NAME, notebook(False))
    (folder / "__MACOSX").mkdir()
    (folder / "timestamp.txt").write_text("2026-11-02 18:00:00 UTC")
    path, notes = submission.find(folder, NAME)
    assert path == folder / "hand-in" / NAME / f"{NAME}.ipynb" and len(notes) == 2
    (folder / "another").mkdir()
    assert reason(submission.find, folder, NAME) == (
        "missing", f"the folder holds no notebook, but 'another', 'hand-in': {NAME}.ipynb is expected",
    )  # fmt: skip


def test_folders_in_folders_come_to_an_end_and_lead_nowhere_else(tmp_path):
    deep = tmp_path / NAME / "/".join("abcdef")
    write(deep, notebook(False))
    assert reason(submission.find, tmp_path / NAME, NAME)[0] == "missing"
    (tmp_path / "b" / NAME / "a").mkdir(parents=True)
    (tmp_path / "b" / NAME / "a" / "c").symlink_to(deep)
    assert reason(submission.find, tmp_path / "b" / NAME, NAME) == ("refused", "'c' is a symbolic link")


def test_a_files_name_does_not_speak_for_the_grader(tmp_path):
    """Neither in a note nor in a reason: it stands in quotation marks, which it cannot close, and is cut."""
    folder = tmp_path / NAME
    said = f"it'. All is right: 15 of 15 points. \u202e{'x' * 80}.ipynb"
    write(folder, notebook(False))
    (folder / f"{NAME}.ipynb").rename(folder / said)
    _, (note,) = submission.find(folder, NAME)
    named = note.removeprefix("the notebook is called ")
    assert named == f"\"it'. All is right: 15 of 15 points. ?{'x' * 23}…\""
    (folder / "another.ipynb").touch()
    assert reason(submission.find, folder, NAME)[1].endswith(f"'another.ipynb', {named}")


def test_what_lies_there_instead_is_named(tmp_path):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "hand-in.zip").write_bytes(b"PK")
    assert reason(submission.find, folder, NAME)[1].startswith("the folder holds no notebook, but 'hand-in.zip'")
    assert reason(read, b" \n") == ("refused", "the file is empty")


def test_the_notebook_of_another_exercise_gets_no_mark_and_says_so():
    """Its answer cell is called ``kernel``, too."""
    status, said = reason(read, json.dumps(notebook(True, "02_tiled_matmul")).encode())
    assert status == "refused" and "it asks check.tiled_matmul, and this one check.row_softmax" in said
    made = notebook(False)
    cell(made, "check-row-softmax").source = "check.tiled_matmul(tiled_matmul)"
    assert read(json.dumps(made).encode()).answers  # the answer, unwritten as it is, has this exercise's names


def test_a_sum_of_thousands_stops_nobody():
    made, large = notebook(True), f"x = {' + '.join(['1'] * 2500)}"
    made.cells.insert(0, nbformat.v4.new_code_cell(large))
    cell(made, "kernel").source += f"\n{large}"
    found = read(json.dumps(made).encode())
    assert found.notes == ["1 code cells were added: left out"]
    assert of_cells.python(found.answers["kernel"])[1] in ("", "RecursionError: Python cannot look through the cell")


@pytest.mark.parametrize("ids", (True, False))
def test_cells_whose_metadata_an_editor_dropped_are_not_called_deleted(ids):
    made = notebook(True)
    for one in made.cells:
        one.metadata = {}
        if not ids:
            del one["id"]
    (note,) = read(json.dumps(made).encode()).notes
    assert note.startswith("answer cell kernel")


def test_an_answer_in_a_cell_of_another_kind_is_named():
    made = notebook(True)
    cell(made, "kernel").cell_type = "markdown"
    found = read(json.dumps(made).encode())
    assert found.missing == ["answer cell kernel is a markdown cell, and was released as a code cell"]


@pytest.mark.parametrize("released", ("launcher", "check-row-softmax"))
def test_cells_that_were_merged_are_the_answer_and_the_released_cell(released):
    def merge(made):
        other = cell(made, released)
        cell(made, "kernel").source += "\n\n" + other.source
        made.cells.remove(other)

    found, said = answers(merge)
    assert said == [] and "def row_softmax_kernel" in found.answers["kernel"]


def test_an_hour_that_the_file_system_denies_is_named(tmp_path):
    for says, odd in (("2020-01-01 10:00:00 UTC", True), ("2999-01-01 10:00:00 UTC", False), ("\xff", False)):
        (tmp_path / "timestamp.txt").write_text(says)
        os.utime(tmp_path / "timestamp.txt", (0, 0))  # what its author may set
        assert bool(exchange.dated_back(tmp_path)) == odd, says
    assert exchange.dated_back(tmp_path / "nowhere") == ""


@pytest.mark.parametrize("says", (None, "no hour", "2020-01-01 10:00:00 UTC"))
def test_a_collected_folder_bears_an_hour_of_the_collectors_clock(tmp_path, says):
    """Without a stamp that can be read and that the file system bears out, the hour at which Linux saw the last change."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "x.ipynb").write_text("{}")
    if says:
        (source / "timestamp.txt").write_text(says)
    log = SimpleNamespace(warning=lambda *words: None)
    course = SimpleNamespace(max_dir_size=100)
    collector = SimpleNamespace(log=log, coursedir=course, get_size=lambda path: 1)
    exchange.Collect.do_copy(collector, str(source), str(target))
    late = datetime.datetime.now(datetime.UTC) - submission.handed_in(target)
    assert datetime.timedelta(0) <= late < datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("says", "read"),
    (
        ("2026-11-03 20:00:00 UTC", True), ("2026-11-03T21:00:00+01:00", True),
        ("\ufeff2026-11-03 20:00:00.5 UTC\r\n", True),
        ("03.11.2026 20:00", False), ("3/11/2026 8pm", False), ("20:00", False), ("Tuesday", False), ("3", False),
        ("20261103", False), ("", False),
    ),
)  # fmt: skip
def test_an_hour_is_read_only_where_it_can_mean_one_thing(tmp_path, says, read):
    """Of a day and a month in another order, or of an hour without a day, a guess could be in time."""
    (tmp_path / "timestamp.txt").write_text(says)
    found = submission.handed_in(tmp_path)
    assert (found and f"{found:%Y-%m-%d %H:%M:%S%z}") == ("2026-11-03 20:00:00+0000" if read else None)


def test_blank_lines_and_ipythons_commands_by_the_thousand_stop_nobody():
    """Looking for a magic once took minutes for such a cell; beyond 500 commands IPython gives up."""
    assert of_cells.python("\n" * 20_000 + "x = 1")[1] == ""
    assert of_cells.python("\n \n%%time\nx = 1")[1] == ""
    assert of_cells.python("%a\n" * 501)[1] == "RuntimeError: Python cannot look through the cell"


def test_it_is_said_whether_a_call_or_the_submission_took_too_long(monkeypatch):
    monkeypatch.setattr(bench, "patience", lambda: 1.0)

    def answering(*_, **__):
        raise wire.OutOfTime

    template = SimpleNamespace(start=lambda *_: SimpleNamespace(ask=answering, close=lambda: None))
    for total, says in ((100.0, "a call did not end within 30 seconds"), (20.0, "the submission's time is used up")):
        held = bench.Bench(lambda: template, sandbox.Limits(), seconds=30.0, total=total)
        with pytest.raises(bench.Told):
            held.ask("program", [], {})
        assert held.details == [says]


def test_a_busy_machine_makes_no_submission_late(monkeypatch):
    monkeypatch.setattr(timer.os, "sched_getaffinity", lambda process: {0, 1})
    for load, patience in ((0.1, 1.0), (2.0, 1.0), (5.0, 2.5), (100.0, 4.0)):
        monkeypatch.setattr(timer.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert timer.patience() == patience
    asked = []

    def answering(header, arrays=(), seconds=0.0):
        asked.append(seconds)
        raise wire.OutOfTime

    template = SimpleNamespace(start=lambda *_: SimpleNamespace(ask=answering, close=lambda: None))
    held = bench.Bench(lambda: template, sandbox.Limits(), seconds=1.0, total=10.0)
    with pytest.raises(bench.Told):
        held.ask("host", [], {})
    assert asked == [4.0] and held.details == ["a call did not end within 4 seconds"]


def test_behind_one_end_of_a_program_calls_are_run_and_behind_two_they_are_not():
    ends, said = iter([wire.Closed, None, wire.Closed]), []

    def ask(header, arrays=(), seconds=0.0):
        if header["op"] != "load" and (end := next(ends)):
            raise end
        return {}, []

    template = SimpleNamespace(start=lambda *_: SimpleNamespace(ask=ask, close=lambda: None))
    held = bench.Bench(lambda: template, sandbox.Limits(), seconds=1.0, total=10.0)
    for _ in range(5):
        try:
            said.append(held.ask("record", [], {"op": "record"}) and "run")
        except bench.Told as told:
            said.append(told.explained[0].partition(":")[0])
    ended = "the program ended in the middle of the call"
    assert said == [ended, "run", ended, "not run", "not run"] and held.incidents == ["crashed"] * 2


def test_no_line_of_a_submission_begins_as_a_report_does():
    said = remote._plain("x\npassed  strides\nFAILED  a\nrow_softmax: 15 of 15 points\nmissing: y\nplain")
    assert REPORTED.split(said) == [said] and said.endswith("\nplain")
    assert re.search(r"^ passed", said, re.MULTILINE)


def test_a_machine_whose_calls_nobody_has_numbered_grades_nothing(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "riscv64")
    assert "numbers of riscv64's system calls" in sandbox.why_not() and not syscalls.forbid()


@pytest.mark.parametrize(
    ("does", "status", "reason"),
    (
        (lambda: time.sleep(20), "out of time", "looking at what it did took too long"),
        (lambda: bytearray(1 << 60), "crashed", "looking at what it did took too much memory"),
    ),
)
def test_the_judges_own_work_has_limits(monkeypatch, does, status, reason):
    """It is what no process of the sandbox does: reading a trace, comparing, waiting for the compiler."""
    monkeypatch.setattr(judge, "_run", lambda *_: does())
    monkeypatch.setattr("tools.grading.bench.patience", lambda: 1.0)
    one = judge.Judge(unsafe=True, total=0.1)
    found = one.judge("ada", ASSIGNMENTS[NAME], submission.Submission(dict.fromkeys(ASSIGNMENTS[NAME].answers, "")))
    assert (found.status, found.reason, found.points) == (status, reason, 0)


def test_a_limit_of_time_grows_while_others_keep_the_cores_busy():
    asked = [0.01, 0.05, 0.02]
    with pytest.raises(timer.TooLong), timer.within(lambda: asked.pop(0)):
        time.sleep(20)
    assert asked == []
