"""What others wrote is shown as text; honest forms of an answer pass; nothing of one job is taken for the next one's."""

import csv
import io
import json
import os
import re
import shutil

import nbformat
import pytest
from nbconvert.filters.markdown_mistune import markdown2html_mistune

from kernels.lab import _fork_server, trace
from tests.course.hostile import NAME, cell, notebook
from tests.course.mutants import ROOT
from tests.lab.test_races import RACING, N, arguments
from tools.grading import foreign, submission
from tools.grading.assignment import check_call, read_all
from tools.grading.batch import Batch, How
from tools.grading.course import Course, NotACourse
from tools.grading.gradebook import Book
from tools.grading.judge import cells_of
from tools.grading.marks import table
from tools.grading.results import Result
from tools.grading.sandboxed import traces
from tools.grading.sandboxed.room import Room

ASSIGNMENTS = read_all(ROOT / "exercises")


@pytest.mark.parametrize(
    "text",
    (
        "[x](javascript:alert(1))",
        "[x](&#106;avascript:alert(1))",
        "[a][b]\n\n[b]: data:text/html,1",
        "![x](https://example.org/pixel)",
        r"\\(\href{javascript:alert(1)}{x}\\) and $\href{javascript:alert(1)}{x}$ and $$\style{x}{y}$$",
        "```mermaid\ngraph TD; A-->B\n\nclick A\n```",
        "</div>\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1))",
        "</pre>\n\n<b>x</b>",
    ),
)
def test_an_answer_in_words_is_shown_and_not_obeyed(text):
    made = markdown2html_mistune(foreign.shown(text))
    assert made.strip() == foreign.shown(text) and made.count("</pre>") == 1
    assert not re.search(r"<script|<img|jp-Mermaid|href=", made)


def test_a_table_holds_no_formula_of_a_spreadsheet():
    rows = [[text, -1.5] for text in ("=1+1", "@x", "-x", "+x", "ada", "\uff1d1")]
    read = list(csv.DictReader(io.StringIO(table(["student_id", "score"], rows))))
    cut = {"a;=1": "a;'=1", "\t@x": "'\t'@x", 'a;" =1': "a;\" '=1", "a\n-1": "a\n'-1", "a-b; c": "a-b; c"}
    assert {text: foreign.cell(text) for text in cut} == cut  # whoever cuts at semicolons finds no formula either
    assert [row["student_id"] for row in read] == ["'=1+1", "'@x", "'-x", "'+x", "ada", "'\uff1d1"]
    assert {row["score"] for row in read} == {"-1.5"}


def test_a_folder_that_is_no_name_is_named_and_left_out(tmp_path):
    shutil.copytree(ROOT / "exercises" / NAME, tmp_path / "exercises" / NAME)
    for student in (b"m\xfcller", b"x" * 253, b"a\nb", "müller".encode()):
        os.makedirs(os.path.join(os.fsencode(tmp_path), b"submitted", student, NAME.encode()))
    batch = Batch(Course.at(tmp_path), How())
    assert [task.student for task in batch._tasks()] == ["müller"]
    assert [line.partition(":")[0][:8] for line in batch.strangers] == ["a?b", "m?ller", "x" * 8]


def test_a_submission_that_is_left_out_is_no_success(tmp_path, capsys):
    """Named, counted, and the exit status says it, also where nothing else was handed in; a folder of tools is not."""
    shutil.copytree(ROOT / "exercises" / NAME, tmp_path / "exercises" / NAME)
    for student in ("bob\u200b", ".eve", ".git"):
        (tmp_path / "submitted" / student / ("HEAD" if student == ".git" else NAME)).mkdir(parents=True)
    assert Batch(Course.at(tmp_path), How(quiet=True)).run() == 1
    said = [".eve: no student's folder", "bob?: no student's folder: its name is 'bob\\u200b'"]
    assert capsys.readouterr().err.splitlines()[:2] == said
    (tmp_path / "submitted" / "ada" / NAME).mkdir(parents=True)
    batch = Batch(Course.at(tmp_path), How(quiet=True))
    (task,) = batch._tasks()
    batch._place("ada", NAME).parent.mkdir(parents=True)
    batch._place("ada", NAME).write_text(json.dumps(Result("ada", NAME, "graded", points=7.0, key=task.key).to_json()))
    assert Batch(Course.at(tmp_path), How(quiet=True)).run() == 1
    out, error = capsys.readouterr()
    assert error.splitlines() == said and out.startswith("1 submissions: 1 graded; 2 left out, see above. Marks in")


def answers(edit, name=NAME):
    """What is taken of a solved notebook after an edit, and the errors of its cells, which run as the sandbox runs them."""
    made = notebook(True, name)
    edit(made)
    read = submission.read(json.dumps(made).encode(), ASSIGNMENTS[name])
    return read, list(Room().load(cells_of(ASSIGNMENTS[name], read))["broken"].values())


@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("@triton", "BLOCK_A, BLOCK_B = 2 ** 6, 1 << 5\n@triton"),
        ("N, stride_xm", "N: int, stride_xm"),
        ("tl.constexpr\n):", "tl.constexpr\n) -> None:"),
        ("    lanes =", '    """größe, строки, 行"""\n    a, b = row, N\n    lanes ='),
        ("@triton", "import torch\nimport triton.language as tl\n@triton"),
        ("N, stride_xm", "N: torch.Tensor, stride_xm"),
        ('-float("inf")', "-math.inf"),
        ("@triton", "%%time\n!nvidia-smi\nimport numpy as np\nfrom typing import Optional\n\n%matplotlib inline\n@triton"),
        ("@triton", "1 / 0\nspeed = %timeit -o row_softmax(x, x)\nassert speed.best < 1\n%timeit 1\n@triton"),
        ("@triton", "raise SystemExit('the rest is my playground')\n@triton"),
        ("@triton.jit\ndef load_block(x_row", "from __future__ import annotations\n@triton.jit\ndef load_block(x_row: Row"),
        ("@triton", "x = torch.randn(3, 5)\nprint(row_softmax(x, x))\ncheck.row_softmax(row_softmax)\n@triton"),
    ),
)
def test_an_honest_form_passes(old, new):
    kernel = cell(notebook(True), "kernel").source
    source = kernel.replace(old, new, 1)
    assert source != kernel
    assert answers(lambda made: cell(made, "kernel").update(source=source))[1] == []


@pytest.mark.parametrize(
    "grid",
    (
        "grid = lambda meta: (1, triton.cdiv(dy.shape[1], meta['BLOCK_T']))",
        "def grid(meta) -> tuple:\n        return (1,)",
        "if (n := dy.shape[0]) < 0:\n        raise ValueError(f'dy is {dy.shape}')",
        "B, T, D = map(int, dy.contiguous().transpose(1, 2).mT.shape)\n    print(dy, dy.device.type)",
        "blocks = ceil_div(T, BLOCK_2X)",
        "for kernel, n in ((dweight_kernel, 0),):\n        kernel[(1,)](n) if n else None",
    ),
)
def test_an_honest_launcher_passes(grid):
    def edit(made):
        one = cell(made, "dweight-kernel")
        one.source = one.source.replace("dweight, dilation=1", "dweight, dilation: Optional[int] = 1").replace(
            "\n    grid = ", f"\n    {grid}\n    grid = "
        )
        one.source = one.source.replace("def dynamic_conv_dweight", "def my_dweight") + (
            "\nfrom typing import Optional\nBLOCK: int = 16\nBLOCK_2X = max(BLOCK * 2, 16)\nACC = tl.float32\n"
            "def ceil_div(n, block):\n    return (n + block - 1) // block\n\ndynamic_conv_dweight = my_dweight"
        )
        assert grid in one.source and "[int]" in one.source

    assert answers(edit, "03_dynamic_conv")[1] == []


@pytest.mark.parametrize("kept", (True, False))
def test_a_cell_that_was_split_is_joined(kept):
    def edit(made):
        at = next(i for i, one in enumerate(made.cells) if one.id == "kernel")
        first, second = made.cells[at].source.rsplit("@triton.jit", 1)
        rest = json.loads(json.dumps(made.cells[at])) | {"id": "rest", "source": "@triton.jit" + second}
        made.cells[at].source = first
        made.cells.insert(at + 1, rest if kept else rest | {"metadata": {}})

    read, said = answers(edit)
    assert said == [] and "def row_softmax_kernel" in read.answers["kernel"], read.notes


@pytest.mark.parametrize("command", ("", "%%time\n", "import numpy as np\n%matplotlib inline\n"))
def test_an_answer_that_was_written_into_a_cell_of_ones_own_counts(command):
    def edit(made):
        mine = json.loads(json.dumps(cell(made, "kernel"))) | {"id": "mine", "metadata": {}}
        mine["source"] = command + mine["source"]
        cell(made, "kernel").source = cell(notebook(False), "kernel").source
        made.cells += [mine, mine | {"id": "copy", "source": cell(made, "kernel").source}]

    read, said = answers(edit)
    assert said == [] and "tl.store(out_row" in read.answers["kernel"] and "as released" in read.notes[0]


@pytest.mark.parametrize(
    "line",
    (
        "x = f\"{'\u00a0'.join(map(str, table))}\".strip()",  # a space that doesn't break, as a Mac's keyboard has it
        f"x = {hex(10**5000)}.bit_length()",
    ),
)
def test_what_python_cannot_write_again_is_read(line):
    def edit(made):
        cell(made, "kernel").source += f"\n{line}\n"

    read, said = answers(edit)
    assert line in read.answers["kernel"] and said == []  # it is tried, and not run


def test_annotations_that_a_cell_leaves_unread_are_unread_in_those_behind_it():
    def edit(made):
        one = cell(made, "kernel")
        one.source = one.source.replace("def load_block(x_row,", "def load_block(x_row: Row,")
        made.cells.insert(1, nbformat.v4.new_code_cell("from __future__ import annotations\nimport typing"))

    assert answers(edit)[1] == []


def test_a_helper_is_taken_from_an_added_cell_and_nothing_else():
    def edit(made):
        one = cell(made, "kernel")
        one.source = one.source.replace("tl.exp(", "my_exp(", 1)
        added = (
            "import os\nBASE: tl.constexpr = 1.5\n@triton.jit\ndef my_exp(x):\n    return tl.exp(x) * BASE\nos._exit(0)"
        )
        made.cells.insert(0, json.loads(json.dumps(one)) | {"id": "mine", "metadata": {}, "source": added})

    read, said = answers(edit)
    assert said == [] and "my_exp" in read.notes[0] and "os" not in read.answers["kernel"].split("my_exp(x)")[1][:60]
    assert "_exit" not in read.answers["kernel"]


@pytest.mark.parametrize("place", ("setup", "launcher", "by-hand", "own"))
@pytest.mark.parametrize(
    "written",
    (
        "NEG = tl.constexpr(-float('inf'))",
        "import math\nNEG = tl.constexpr(-math.inf)",
        "A, NEG = 1, tl.constexpr(-float('inf'))",
        "if True:\n    NEG = tl.constexpr(-float('inf'))",
        "try:\n    from nowhere import NEG\nexcept ImportError:\n    NEG = tl.constexpr(-float('inf'))",
        "a = -1.0\na *= 2\nb = a\nc = b * float('inf')\n%timeit c\nNEG = tl.constexpr(c)",
    ),
)
def test_a_constant_counts_in_whichever_cell_it_stands(written, place):
    def edit(made):
        one = cell(made, "kernel")
        one.source = one.source.replace('-float("inf")', "NEG") + "\nassert NEG.value == -float('inf')"
        if place == "own":
            made.cells.insert(2, nbformat.v4.new_code_cell(written))
        else:
            cell(made, place).source += f"\n{written}"

    read, said = answers(edit)
    assert said == [] and "NEG" in read.notes[0], read.notes


def test_what_is_no_call_of_a_check_is_not_parsed():
    assert check_call("check.a(b)") == ("a", "b")
    for source in (f"check.a(b){' ' * 5000}", "check.a(b, seed=3)", "check.a(b, **{})", "lab.a(b)", "check.a()"):
        assert check_call(source) is None, source


def test_text_for_a_terminal():
    assert foreign.plain("a\x1b]0;b\udcfc\n") == "a?]0;b??" and foreign.plain("é\n", lines=True) == "é\n"
    assert foreign.plain("x" * 10, 4) == "xxxx…" and foreign.storable("a\ud800") == "a?"


def test_a_job_that_a_timer_breaks_off_ends_its_process(monkeypatch):
    class Timer(BaseException):
        pass

    def select(*_):
        raise Timer

    server = _fork_server.ForkServer.__new__(_fork_server.ForkServer)
    ended = []
    server.place, server.process = _fork_server.Place([], {}, "/tmp"), type("Process", (), {"stdin": None, "stdout": None})
    monkeypatch.setattr(server, "end", lambda: ended.append(True), raising=False)
    monkeypatch.setattr(_fork_server.select, "select", select)
    with pytest.raises(Timer):
        server.send("compile", "", {})
    assert ended == [True]


def test_a_launcher_of_ones_own_counts_where_the_given_one_stood():
    """It was 0 of 15 in class, and 15 at home: a kernel whose arguments come in another order, and their launcher."""

    def edit(made):
        for name in ("kernel", "launcher"):
            one = cell(made, name)
            one.source = one.source.replace("x_ptr, out_ptr, entropy_ptr, N", "N, x_ptr, out_ptr, entropy_ptr")
            one.source = one.source.replace("(x, out, entropy, N, *x", "(N, x, out, entropy, *x")

    read, said = answers(edit)
    assert said == [] and "(N, x, out, entropy" in read.answers["launcher"]
    assert read.notes == ["cell launcher was changed: its functions count as they are there"]
    read, said = answers(lambda made: cell(made, "launcher").update(source="row_softmax("))
    assert said == [] and read.notes == ["cell launcher was changed: the released one counts"]


def test_cells_whose_ids_an_older_program_dropped_are_no_helpers():
    """The release's own example is no added cell; with a line more it is one, and counts as such."""
    made, released = notebook(False), ASSIGNMENTS[NAME]
    for one in made.cells:
        del one["id"]
    read = submission.read(json.dumps(made).encode(), released)
    assert read.notes == [] and read.answers["kernel"] == released.answers["kernel"].source
    example = next(one for one in made.cells if one.cell_type == "code" and not one.metadata.get("nbgrader"))
    example.source += "\nx = x + 1"
    read = submission.read(json.dumps(made).encode(), released)
    assert read.notes[-1] == "1 code cells were added: left out"


def test_a_gradebook_that_somebody_holds_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "gradebook.db").mkdir()
    (tmp_path / "damaged.db").write_bytes(b"SQLite format 3\0" + b"x" * 4000)
    for name in ("gradebook.db", "damaged.db"):
        with pytest.raises(NotACourse, match="What is judged is kept"):
            Book(f"sqlite:///{tmp_path / name}")


@pytest.mark.parametrize("kernel", RACING, ids=lambda kernel: kernel.fn.__name__)
def test_races_inside_a_program_come_out_of_the_sandbox(kernel):
    launches = trace(kernel, (1,), *arguments(kernel), BARRIER=False, N=N).launches
    described, arrays = traces.pack(launches)
    (again,) = traces.unpack(json.loads(json.dumps(described)), arrays)
    assert again.races_inside == launches[0].races_inside and len(again.races_inside) == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "x"), (1, "nobody"), (2, -1), (2, N * N), (3, [0]), (3, [0, 3]), (4, ["x", 1]), (5, [1, 2]), (slice(1), [])],
)
def test_a_forged_race_is_no_trace(place, value):
    kernel = next(iter(RACING))
    described, arrays = traces.pack(trace(kernel, (1,), *arguments(kernel), BARRIER=False, N=N).launches)
    described[0]["races_inside"][0][place] = value
    with pytest.raises(ValueError):
        traces.unpack(described, arrays)
