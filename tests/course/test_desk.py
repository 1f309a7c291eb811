"""What an instructor hands on: pages that run nothing, tables that importers take, reports, a bundle without solutions."""

import csv
import datetime
import html
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from html.parser import HTMLParser
from types import SimpleNamespace

import nbformat
import pytest
from pygments.lexers import PythonLexer

from kernels import check
from tests.course.hostile import NAME
from tests.course.mutants import ROOT, cells
from tools.desk import main
from tools.grading import bundle, collect, feedback, foreign, judge, judges, marks, pages, plots, similarity
from tools.grading.assignment import read
from tools.grading.batch import Batch, How
from tools.grading.course import Course, Late, NotACourse, read_roster
from tools.grading.gradebook import Book
from tools.grading.marks import COLUMNS
from tools.grading.results import Line, Outcome, Result
from tools.grading.submission import handed_in

ASSIGNMENT = read(ROOT / "exercises" / NAME / f"{NAME}.ipynb")
LONG = "FAILED  strides: out[0] is wrong, got <b>1</b>, expected 2 (with M = 3): each address … Lesson 01, step 4."
SCRIPT = "<script>document.title='x'</script>"


def result(student="ada", status="graded", points=7.0, **more):
    lines = [
        Line("one block wide", "passed", 7.0, 7.0, "passed  one block wide (7 points)"),
        Line("strides", "failed", 0.0, 3.0, LONG),
    ]
    printed = f"passed  one block wide\n{LONG}\nrow_softmax: 7 of 10 points (graded with seed 5)\n"
    outcome = Outcome("check-row-softmax", "row_softmax", 7.0, 10.0, 5, lines, printed)
    answers = {"kernel": f"# {SCRIPT}\nx = '</pre>{SCRIPT}'"}
    checks = [outcome] if points is not None else []
    return Result(student, NAME, status, more.pop("reason", ""), points, 10.0, checks=checks, answers=answers, **more)


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def hold_nothing_runs(text):
    found = Tags(text).found
    assert not [tag for tag, _ in found if tag in ("script", "iframe", "object", "embed", "link", "form", "base")]
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on")], tag
        address = attributes.get("href") or attributes.get("src") or ""
        assert address.startswith(("https://", "data:image/png;base64,")) or not address, (tag, address)
    assert "default-src 'none'" in text


def test_a_page_says_what_was_found_and_runs_nothing():
    mark = {"raw_score": 7.0, "late_submission_penalty": 1.0, "by_hand": False, "comments": {"kernel": SCRIPT}}
    about = {"first_name": "Ada", "last_name": "<i>Lovelace</i>"}
    text = feedback.page_of(ASSIGNMENT, result(submitted="2026-11-02T17:00:00+00:00"), about, mark, "https://x.org/")
    hold_nothing_runs(text)
    assert "6 of 10 points" in text and "1 lost because it came late" in text and "02 November 2026" in text
    assert "✗ failed" in text and "got &lt;b&gt;1&lt;/b&gt;, expected 2" in text and "0 of 3" in text
    assert 'href="https://x.org/notebooks/01_programs_and_blocks.ipynb">Lesson 01, step 4' in text
    assert "check.row_softmax(row_softmax, seed=5, grading=True)" in text
    assert text.count("<math") > 5 and "$$" not in text and "\\frac" not in text
    assert "BEGIN SOLUTION" not in text


@pytest.mark.parametrize(("name", "drawn"), (("finds_0a", " (graded with seed 5)"), ("diagnosis_0a", "")))
def test_the_line_that_repeats_a_check_is_one_that_it_takes(name, drawn, capsys):
    one, function = result(), name.replace("0", "")
    one.checks = [Outcome(name, function, 0.0, 4.0, 5, [], f"{name}: 0 of 4 points{drawn}\n")]
    (line,) = re.findall(r"check\.\w+\(.*?\)", html.unescape(feedback.page_of(ASSIGNMENT, one, {}, None).split("<h2>The")[0]))
    assert eval(line, {"check": check, function: None}) == 0


def test_a_page_shows_what_would_turn_its_text_around():
    said = "if level != 'none\u202e \u2066# nobody\u2069 \u2066':"
    for shown in (pages.code(said), foreign.shown(said), feedback.page_of(ASSIGNMENT, result(reason=said), {}, None)):
        assert not set(shown) & set("\u202e\u2066\u2069") and "\\u202e" in shown


def test_colours_take_no_square_of_a_texts_length(monkeypatch):
    """At each line the lexer's first pattern takes all blank lines that follow; and a long text has no colours."""
    looked = []
    monkeypatch.setattr(PythonLexer, "get_tokens_unprocessed", lambda self, text, *_: looked.append(text) or ())
    pages.code("x = 1\n" + " \n\t\n\x0c\n\u2028\n" * 1000 + "y = 2")
    pages.code("a = 1\n" * 29_000)
    assert looked == ["x = 1\n" + "\n" * 4000 + "y = 2\n"]
    monkeypatch.undo()
    assert pages.code("a = 1\n" * 29_000).count("linenos") == 29_000


@pytest.mark.parametrize("status", ("missing", "refused"))
def test_a_page_for_who_has_no_mark(status):
    text = feedback.page_of(ASSIGNMENT, result(status=status, points=None, reason="cell kernel, line 1: why"), {}, None)
    assert f"no mark: {status}" in text and "cell kernel, line 1: why" in text
    hold_nothing_runs(text)


def test_all_mathematics_of_the_exercises_is_set():
    for path in (ROOT / "exercises").glob("*/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                text = pages.markdown(cell.source)
                told = re.sub(r"<code>.*?</code>|<pre>.*?</pre>", "", text, flags=re.S)
                assert "\\" not in re.sub("<[^>]*>", "", told), (path.stem, cell.id)


# Marks for platforms.


def rows():
    shared = {"assignment": NAME, "max_score": "10.0"}
    names = ("student_id", "first_name", "last_name", "email", "score", "status")
    for values in (
        ("ada", "Ada", "Lovelace", "ada@x.org", "7.5", "graded"),
        ("bob", "Bob", 'O"Hara, Jr', "b@x.org", "", "refused"),
        ("zoé", "Zoé", "Łuk", "", "0.0", "graded"),
    ):
        yield dict.fromkeys(COLUMNS, "") | shared | dict(zip(names, values))


def test_moodle_gets_a_row_for_each_mark_and_none_for_the_others():
    found = list(csv.DictReader(io.StringIO(marks.moodle(list(rows()))[NAME], newline="")))
    assert list(found[0]) == ["First name", "Last name", "ID number", "Email address", NAME]
    assert [(row["ID number"], row[NAME]) for row in found] == [("ada", "7.5"), ("zoé", "0.0")]


def test_canvas_gets_its_own_columns_and_the_points_possible():
    text = marks.canvas(list(rows()), {"ada": {"canvas_id": "17", "section": "A"}})
    header, points, *found = csv.reader(io.StringIO(text, newline=""))
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", NAME]
    assert points[0].strip() == "Points Possible" and points[5] == "10.0"
    assert found[0] == ["Lovelace, Ada", "17", "", "ada", "A", "7.5"]
    assert found[1] == ['O"Hara, Jr, Bob', "", "", "bob", "", ""]


@pytest.mark.parametrize(
    ("path", "found"),
    (
        ("Ada Lovelace_1234_assignsubmission_file_01_row_softmax.ipynb", ("ada", NAME)),
        ("Ada Lovelace_1234_assignsubmission_file/01_row_softmax.ipynb", ("ada", NAME)),
        ("Ada Lovelace_1234_assignsubmission_file_/01_row_softmax.ipynb", ("ada", NAME)),
        ("lovelaceada_9876_1234_01_row_softmax.ipynb", ("ada", NAME)),
        ("lovelaceada_LATE_9876_1234_01_row_softmax-2.ipynb", ("ada", NAME)),
        ("changedname_42_1234_01_row_softmax.ipynb", ("zoé", NAME)),
        ("Al Gore_2_1234_assignsubmission_file_/01_row_softmax.ipynb", ("al", NAME)),
        ("lukzoe_1_1234_01_row_softmax.ipynb", None),
        ("smithjo_1_1234_01_row_softmax.ipynb", None),
        ("notes.txt", None),
        ("Jo Smith_1_assignsubmission_file_/own/Ada Lovelace_1234_assignsubmission_file_/01_row_softmax.ipynb", None),
        ("Ada Lovelace_1_assignsubmission_file_/own/lukzoe_42_1234_mine.ipynb", ("ada", "lukzoe_42_1234_mine")),
        ("lovelaceada_1_1234_own/Zoé Łuk_1_assignsubmission_file_/01_row_softmax.ipynb", ("ada", NAME)),
        ("Ada Lovelace_1_assignsubmission_file_/own/__MACOSX/._01_row_softmax.ipynb", None),
        ("/gpu_2026_10_a/downloaded/x/extracted/Ada Lovelace_1_assignsubmission_file_01_row_softmax.ipynb", ("ada", NAME)),
    ),
)
def test_downloads_find_their_students(path, found):
    roster = {
        "ada": {"first_name": "Ada", "last_name": "Lovelace"},
        "zoé": {"first_name": "Zoé", "last_name": "Łuk", "canvas_id": "42"},
        "al": {"first_name": "Al", "last_name": "Gore_2"},
        "jo1": {"first_name": "Jo", "last_name": "Smith"},
        "jo2": {"first_name": "Jo", "last_name": "Smith"},
    }
    assert collect.student_of(path, roster) == found


def test_one_damaged_file_of_a_download_keeps_nobody_elses_back(tmp_path):
    data, (given, out) = io.BytesIO(), (tmp_path / "given", tmp_path / "out")
    given.mkdir()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("01.ipynb", "{}" * 500)
    inner = bytearray(data.getvalue())
    inner[38] ^= 0xFF  # the first byte that was deflated
    with zipfile.ZipFile(given / "class.zip", "w") as archive:
        archive.writestr("a/own.zip", bytes(inner))
        archive.writestr("b/01.ipynb", "{}")
    (given / "broken.zip").write_bytes(bytes(inner))
    for name in ("Ada B. Lovelace.ipynb", "Ada B. Other.ipynb"):  # a dot that begins no suffix
        (given / name).write_text("{}")
    collect.Notebooks().extract(str(given), str(out))
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*.ipynb") if path.read_text() == "{}")
    assert found == ["Ada B. Lovelace.ipynb", "Ada B. Other.ipynb", "class/b/01.ipynb"]


def test_no_student_of_a_download_stops_the_others(tmp_path, monkeypatch):
    """Two notebooks of one name count once, the outermost; a broken archive and hidden folders are left out."""
    place = tmp_path / "downloaded" / NAME
    (place / "archive" / "folder.zip").mkdir(parents=True)
    (place / "archive" / "Ada Lovelace_3_assignsubmission_file_own.zip").write_bytes(b"PK")
    with zipfile.ZipFile(place / "archive" / "class.zip", "w") as archive:
        for name in [f"Eve Evil_2_assignsubmission_file_/{inner}{NAME}.ipynb" for inner in ("!old/", "", "old/", ".x/")]:
            archive.writestr(name, name)
        archive.writestr(f"{NAME}.ipynb", "of nobody")
        archive.writestr(f"Ada Lovelace_1_assignsubmission_file_/{NAME}.ipynb", "{}")
    (tmp_path / "roster.csv").write_text("student_id,last_name,first_name\nada,Lovelace,Ada\neve,Evil,Eve\n")
    monkeypatch.chdir(tmp_path)
    collect.Notebooks().extract(str(place / "archive"), str(place / "extracted"))
    collector, found = collect.Platforms(), {}
    for path in sorted((place / "extracted").rglob("*.ipynb")):
        if about := collector.collect(str(path)):
            assert about["student_id"] not in found
            found[about["student_id"]] = path.relative_to(place / "extracted" / "class").parts[1:]
    assert found == {"ada": (f"{NAME}.ipynb",), "eve": (f"{NAME}.ipynb",)}


def test_a_download_is_collected_again_without_loss(tmp_path):
    """The second run of `nbgrader zip_collect` stops and says so; with --force it collects what came meanwhile. An hour that
    somebody noted stays beside what it was noted of."""
    archive = tmp_path / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    (tmp_path / "roster.csv").write_text("student_id,last_name,first_name\nada,Lovelace,Ada\nbob,Ross,Bob\neve,Evil,Eve\n")
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)

    def collected(*more, **notebooks):
        with zipfile.ZipFile(archive / "class.zip", "w") as file:
            for name, text in notebooks.items():
                file.writestr(f"{name.replace('_', ' ')}_1_assignsubmission_file_/{NAME}.ipynb", text)
        command = [sys.executable, "-m", "nbgrader", "zip_collect", NAME, *more]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        found = {}
        for path in sorted((tmp_path / "submitted").rglob("*.*")):
            found.setdefault(path.relative_to(tmp_path / "submitted").parts[0], []).append(path.read_text())
        return done, found

    first = {"Ada_Lovelace": "1", "Bob_Ross": "1"}
    assert collected(**first)[1] == {"ada": ["1"], "bob": ["1"]}
    hour = "2026-11-03 20:00:00 UTC"
    for student in ("ada", "bob"):
        (tmp_path / "submitted" / student / NAME / "timestamp.txt").write_text(hour)
    done, found = collected(**first)
    assert done.returncode and "--force" in done.stderr and found == {"ada": ["1", hour], "bob": ["1", hour]}
    done, found = collected("--force", Ada_Lovelace="1", Bob_Ross="2", Eve_Evil="1")
    assert done.returncode == 0 and list(found) == ["ada", "bob", "eve"]
    assert (found["ada"][0], found["bob"], found["eve"]) == ("1", ["2"], ["1"])
    assert found["ada"][1:] and handed_in(tmp_path / "submitted" / "ada" / NAME) == datetime.datetime.fromisoformat(
        hour.replace(" UTC", "+00:00")
    )
    assert "handed in another notebook" in done.stderr and hour[:16] in done.stderr


def packed(members):
    """A zip archive of these names and contents."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def test_a_download_is_unpacked_to_its_notebooks_and_no_deeper(tmp_path):
    one, deep = {f"{NAME}.ipynb": "{}", "x.py": ""}, {"../../up.ipynb": "{}"}
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "all.zip").write_bytes(
        packed(
            one | {"ada/own.zip": packed(one | deep | {"in.zip": packed(one)}), "bob/broken.zip": b"PK"}
            | {"../up.zip": packed(one)}
        )
    )
    collect.Notebooks().extract(str(tmp_path / "archive"), str(tmp_path / "extracted"))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "archive/all.zip", f"extracted/all/{NAME}.ipynb", f"extracted/all/ada/own/{NAME}.ipynb",
        "extracted/all/ada/own/up.ipynb", f"extracted/all/up/{NAME}.ipynb",
    }  # fmt: skip


def test_of_two_files_of_one_path_the_last_counts_and_it_is_said(tmp_path):
    """As an archive has it to which a newer one was added; also where two names of one place come to the same."""
    place, said = tmp_path / "archive" / "all.zip", []
    place.parent.mkdir()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(place, "w") as archive:
        for name, text in (("a/01.ipynb", "1"), ("a/01.ipynb", "2"), ("b.ipynb", "1"), ("../b.ipynb", "2"), ("c.ipynb", "1")):
            archive.writestr(name, text)
    unpack = collect.Notebooks()
    unpack.log = SimpleNamespace(warning=lambda text, *words: said.append(text % words))
    unpack.extract(str(place.parent), str(tmp_path / "out"))
    out = tmp_path / "out" / "all"
    assert [(out / name).read_text() for name in ("a/01.ipynb", "b.ipynb", "c.ipynb")] == ["2", "2", "1"]
    assert said == [f"Twice in the download, the last one counts: {out / name}" for name in ("a/01.ipynb", "b.ipynb")]


def test_who_gives_no_notebook_in_a_download_is_named(tmp_path):
    """Another kind of archive, one in an archive, an empty or a damaged one: else nobody would hear of it."""
    damaged = packed({f"{NAME}.ipynb": "{}" * 500}).replace(b"{}{", b"{x{", 1)
    given = {
        "A Tar_1_assignsubmission_file/own.tar.gz": "x",
        "A Deep_2_assignsubmission_file_own.zip": packed({"in.zip": packed({f"{NAME}.ipynb": "{}"})}),
        "A None_3_assignsubmission_file/own.zip": packed({}),
        "A Damaged_4_assignsubmission_file/own.zip": damaged,
        "A Both_5_assignsubmission_file/onlinetext.html": "x",
        f"A Both_5_assignsubmission_file/{NAME}.ipynb": "{}",
        "A Both_6_assignsubmission_file/onlinetext.html": "x",
        "canvasone_LATE_7_70_own.rar": "x",
        f"canvastwo_8_80_{NAME}.ipynb": "{}",
        "canvastwo_8_81_notes.txt": "x",
        "stray.txt": "x",
    }
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "all.zip").write_bytes(packed(given))
    (tmp_path / "archive" / "loose_LATE_9_90_own.7z").write_text("x")
    said, unpack = [], collect.Notebooks()
    unpack.log = SimpleNamespace(warning=lambda text, *words: said.append(text % words))
    unpack.extract(str(tmp_path / "archive"), str(tmp_path / "extracted"))
    named = sorted(line.partition(": ")[2] for line in said if line.startswith("No notebook"))
    assert named == [
        "A Both_6_assignsubmission_file/onlinetext.html", "A Damaged_4_assignsubmission_file/own.zip",
        "A Deep_2_assignsubmission_file_own.zip", "A None_3_assignsubmission_file/own.zip",
        "A Tar_1_assignsubmission_file/own.tar.gz", "canvasone_LATE_7_70_own.rar", "loose_LATE_9_90_own.7z",
    ]  # fmt: skip
    found = sorted(path.parent.name for path in (tmp_path / "extracted").rglob("*.ipynb"))
    assert found == ["A Both_5_assignsubmission_file", "all"]


def test_of_a_students_archive_the_outermost_notebooks_are_taken(tmp_path, monkeypatch):
    """Whoever packs the whole course hands in its lessons, too."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for n in range(40):
            archive.writestr(f"course/lessons/more/{n:02}.ipynb", "{}" * 100)
        archive.writestr(f"course/{NAME}.ipynb", "{}")
    (tmp_path / "archive").mkdir()
    with zipfile.ZipFile(tmp_path / "archive" / "all.zip", "w") as archive:
        archive.writestr("A B_1_assignsubmission_file/own.zip", data.getvalue())
    for most, size, count in ((100, 1 << 20, 41), (5, 1 << 20, 5), (100, 1000, 5)):
        monkeypatch.setattr(collect, "MOST_NOTEBOOKS", most)
        monkeypatch.setattr(collect, "MOST_UNPACKED", size)
        place = tmp_path / f"{most} {size}"
        collect.Notebooks().extract(str(tmp_path / "archive"), str(place))
        found = list(place.rglob("*.ipynb"))
        assert len(found) == count and NAME in {path.stem for path in found}


# The course's own files.


def test_late_is_what_the_course_says():
    late = Late(grace_minutes=10, per_day=0.1, at_most=0.25)
    hour = datetime.timedelta(hours=1)
    assert [late.penalty(8.0, n * hour) for n in (0, 0.1, 1, 25, 1000)] == [0.0, 0.0, 0.8, 1.6, 2.0]


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ("[deadlines]\na = 2026-01-01", "needs a date, a time and a zone"),
        ("[deadlines]\na = 2026-01-01T10:00:00", "needs a date, a time and a zone"),
        ("[late]\nper_week = 1", "per_week"),
        ("[late]\nper_day = -1", "per_day"),
        ("[late]\nper_day = 10", "per_day is 10: it needs a number from 0 to 1"),
        ("[late]\nat_most = nan", "at_most"),
        ("[late]\ngrace_minutes = inf", "grace_minutes"),
        ("[late]\nper_day = '10%'", "per_day"),
        ("late = 3", "late is no table"),
        ("deadlines = 3", "deadlines is no table"),
        ("x = 1", "none of"),
        ("url = 'ftp://x'", "https://"),
        ("[", "course.toml"),
    ),
)
def test_a_wrong_setting_is_named(tmp_path, text, says):
    (tmp_path / "course.toml").write_text(text)
    with pytest.raises(NotACourse, match=says):
        Course.at(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ("name\nada", "student_id"), ("student_id\na/b", "folder"), ("student_id\na\na", "twice"),
        ('last_name,student_id\n"a\n\nb",a\nb,c/d', "line 5"),
    ),  # fmt: skip
)
def test_a_wrong_roster_is_named(tmp_path, text, says):
    (tmp_path / "roster.csv").write_text(text)
    with pytest.raises(NotACourse, match=says):
        read_roster(tmp_path / "roster.csv")


def test_settings_written_on_windows_are_read(tmp_path):
    (tmp_path / "course.toml").write_text(f"\ufeff[deadlines]\r\n{NAME} = 2026-11-01T17:00:00+00:00\r\n")
    assert set(Course.at(tmp_path).deadlines) == {NAME}


# The gradebook.


def test_marks_by_hand_stay_and_a_refusal_waits_for_a_person(tmp_path):
    with Book(f"sqlite:///{tmp_path}/g.db") as book:
        book.declare(ASSIGNMENT)
        book.write(result("ada", submitted="2026-11-02T17:00:00+00:00"), penalty=0.7)
        book.write(result("eve", "refused", None, reason="why"))
        assert book.mark(NAME, "ada")["raw_score"] == 7.0 and book.mark(NAME, "ada")["late_submission_penalty"] == 0.7
        eve = book._book.find_grade("check-row-softmax", NAME, NAME, "eve")
        assert eve.needs_manual_grade and eve.auto_score is None
        assert book._book.find_comment("kernel", NAME, NAME, "eve").auto_comment == "refused: why"
        eve.manual_score = 4.0
        book._book.db.commit()
        book.write(result("eve", "refused", None, reason="why"))
        assert book.mark(NAME, "eve") | {"raw_score": 4.0, "by_hand": True} == book.mark(NAME, "eve")
        book.declare(ASSIGNMENT)
        assert book.mark(NAME, "ada")["raw_score"] == 7.0
        assert book.mark(NAME, "zoe") is None


def test_who_came_late_and_who_is_missing(tmp_path):
    """With results of an earlier run, nothing is judged again: the table says who was late, and lists the whole roster."""
    for name in ("exercises", "submitted"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "exercises" / NAME
    folder.mkdir()
    (folder / f"{NAME}.ipynb").write_bytes((ROOT / "exercises" / NAME / f"{NAME}.ipynb").read_bytes())
    (tmp_path / "roster.csv").write_text("student_id,first_name,last_name\nada,Ada,Lovelace\nzoe,Zoe,Zed\n")
    (tmp_path / "course.toml").write_text(f"[deadlines]\n{NAME} = 2026-11-01T17:00:00+00:00\n[late]\nper_day = 0.1\n")
    place = tmp_path / "submitted" / "ada" / NAME
    place.mkdir(parents=True)
    (place / f"{NAME}.ipynb").write_text("{}")
    (place / "timestamp.txt").write_text("2026-11-02 18:00:00 UTC")
    shutil.copytree(place, tmp_path / "submitted" / "bob" / NAME, ignore=shutil.ignore_patterns("*.txt"))
    batch = Batch(Course.at(tmp_path), How(quiet=True))
    for task in batch._tasks():
        kept = batch._place(task.student, NAME)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(result(task.student, key=task.key).to_json()))
    assert batch.run() == 0
    with open(tmp_path / "build" / "marks.csv", newline="") as file:
        ada, bob, zoe = csv.DictReader(file)
    assert (bob["status"], "nobody noted when" in bob["notes"], "nobody" in ada["notes"]) == ("graded", True, False)
    assert "in time" not in bob["notes"]
    assert (ada["status"], ada["raw_score"], ada["late_submission_penalty"], ada["score"]) == (
        "late",
        "7.0",
        "1.4",
        "5.6",
    )
    assert (zoe["status"], zoe["score"], zoe["last_name"]) == ("missing", "", "Zed")
    assert zoe["reason"] == "nothing was handed in"
    copy = nbformat.read(tmp_path / "autograded" / "ada" / NAME / f"{NAME}.ipynb", 4)
    assert [SCRIPT in cell.source for cell in copy.cells if cell.id == "kernel"] == [True]  # code is shown as text


def one_submission(root, *students, name=NAME, text="{}"):
    """A course of one assignment, and a submission of each student that no judge need read."""
    for student in students:
        place = root / "submitted" / student / name
        place.mkdir(parents=True)
        (place / f"{name}.ipynb").write_text(text)
    shutil.copytree(ROOT / "exercises" / name, root / "exercises" / name)
    return Batch(Course.at(root), How(quiet=True))


def test_a_file_that_changes_meanwhile_is_kept_under_what_was_judged(tmp_path):
    batch = one_submission(tmp_path, "ada")
    (task,) = batch._tasks()
    place = task.folder / f"{NAME}.ipynb"
    place.write_text("[]")
    kept = judges.judged(task)
    assert kept.key not in ("", task.key) and [kept.key] == [new.key for new in batch._tasks()]


def test_a_failed_judge_costs_no_mark_and_is_tried_again(tmp_path):
    batch = one_submission(tmp_path, "ada")
    (task,) = batch._tasks()
    with Book(batch.course.gradebook) as book:
        book.declare(batch.assignments[NAME])
        batch._keep(task, result("ada", key="of another version"), book)
        batch._keep(task, judges.crashed(task, "the judge failed: ValueError"), book)
        assert book.mark(NAME, "ada")["raw_score"] == 7.0
    kept = batch.results["ada", NAME]
    assert (kept.status, kept.points, "earlier mark" in kept.notes[-1]) == ("crashed", 7.0, True)
    assert not batch._known(task)


def test_a_judge_that_fails_in_one_check_earns_the_others(tmp_path, monkeypatch):
    """Its own mistake costs one check, which is named, until the next run; a mark that was more stays."""

    def run(one, *_):
        if one.function == "finds_a":
            raise ZeroDivisionError("in the judge")
        return SimpleNamespace(points=one.points, properties=[], worth={}), one.points

    monkeypatch.setattr(judge, "_run", run)
    monkeypatch.setattr(judges, "_judge", judge.Judge(unsafe=True))
    name = "clinic_0_foundations"
    released = (ROOT / "exercises" / name / f"{name}.ipynb").read_text()
    batch = one_submission(tmp_path, "ada", name=name, text=released)
    (task,) = batch._tasks()
    with Book(batch.course.gradebook) as book:
        book.declare(batch.assignments[name])
        for before, points in ((None, 24), (20.0, 24), (26.0, 26)):
            if before:
                earlier = Result("ada", name, "graded", points=before, key="of another version")
                batch._keep(task, earlier, book)
            found = judges.judged(task)
            assert (found.status, found.points, found.key) == ("crashed", 24, "")
            assert found.reason == "the judge failed in finds_a: ZeroDivisionError: in the judge"
            assert "program ended" not in feedback.page_of(batch.assignments[name], found, {}, None)
            batch._keep(task, found, book)
            assert batch.results["ada", name].points == points
    assert not batch._known(task)
    monkeypatch.setattr(judge, "_run", lambda *_: 1 / 0)
    assert (judges.judged(task).status, judges.judged(task).points) == ("crashed", None)  # no 0 that nobody earned


def test_no_points_are_no_silence(tmp_path):
    batch = one_submission(tmp_path, "ada")
    (task,) = batch._tasks()
    none = result(points=0.0, key=task.key)
    none.checks[0].lines = [Line("strides", "failed", 0.0, 3.0, LONG)]
    with Book(batch.course.gradebook) as book:
        book.declare(batch.assignments[NAME])
        batch._keep(task, none, book)
        batch._keep(task, none, book)
    assert [note for note in none.notes if "no points" in note] == [f"no points: {LONG.splitlines()[0][:300]}"]


def test_names_that_differ_in_spelling_alone_are_warned_about(tmp_path):
    batch = one_submission(tmp_path, "zo\u00e9", "zoe\u0301", "ada b", "Ada  B", "bob")
    batch._tasks()
    said = [line for line in batch.strangers if "one student or" in line]
    assert len(said) == 2 and all("bob" not in line for line in said)


def test_a_deadline_of_no_assignment_is_named(tmp_path):
    batch = one_submission(tmp_path, "ada")
    batch.course.deadlines["01_row_softmx"] = batch.course.deadlines[NAME] = datetime.datetime.now(datetime.UTC)
    batch._tasks()
    assert batch.strangers == ["course.toml: the deadline of 01_row_softmx: no assignment of this name was released"]


# Reports.


def test_the_plots_say_where_the_class_is_stuck():
    results = [result(f"s{i}") for i in range(3)] + [result("eve", "refused", None)]
    assert plots.stuck(results) == [
        ("row_softmax", "one block wide", 3, 3, "", 0),
        ("row_softmax", "strides", 0, 3, "each address …", 3),
    ]
    text = plots.page_of(results)
    hold_nothing_runs(text)
    assert "4 submissions: 3 graded, 1 refused" in text and "0 of 3" in text


def test_a_cause_is_the_error_itself_and_not_that_it_came_again():
    error = "FAILED  a: an error with M = 5, TypeError: x in line 3 of your cell, `y: z`: it is no block. Lesson 01, step 4."
    lines = [Line("a", "failed", 0.0, 1.0, error), Line("b", "failed", 0.0, 1.0, 'FAILED  b: the error of "a" again.')]
    check = Outcome("check", "row_softmax", 0.0, 2.0, 7, lines, "")
    one = Result("ada", NAME, "graded", checks=[check])
    assert [(*rest,) for _, _, _, _, *rest in plots.stuck([one])] == [("it is no block", 1)] * 2


def test_parts_of_a_solution_are_found_in_another_order_beside_an_answer_of_ones_own():
    written = "\n\n".join(cells("03_dynamic_conv")[f"{name}-kernel"] for name in ("forward", "dx", "dweight"))
    parts = re.split(r"(?=@triton\.jit)", written)
    first, second, third = (part for part in parts if part.startswith("@"))
    own = "@triton.jit\ndef mine(x_ptr):\n    y = tl.load(x_ptr)\n    tl.store(x_ptr, tl.exp(y) * 3 + tl.log(y))\n"
    (pair,) = similarity.pairs({"ada": f"{second}\n{own}\n{first}"}, "", {"tl"}, {"published": first + second + third})
    assert pair.shared > 0.8


WALK = "    for i in range(0, N, BLOCK_N):\n        v = load_block(x_row, lanes + i, N, stride_xn)\n"
HONEST = {
    "cyd": f"    m = -1e30\n{WALK}        m = max(m, tl.max(v, 0))\n    m = tl.where(m > -1e29, m, 0.0)\n    s = 0.0\n"
    f"{WALK}        s = s + tl.sum(tl.exp2((v - m) * 1.44), 0)\n",
    "dan": f"    high, total, t = float('-inf'), 0.0, 0.0\n{WALK}        new = tl.maximum(high, tl.max(v))\n"
    "        safe = tl.where(new == float('-inf'), 0.0, new)\n"
    "        total = total * tl.exp(high - safe) + tl.sum(tl.exp(v - safe))\n        high = new\n"
    f"{WALK}        p = tl.exp(v - high) / total\n        t -= tl.sum(tl.where(p > 0, p * tl.log(p), 0.0))\n"
    "        tl.store(out_row + (lanes + i) * stride_on, p, mask=lanes + i < N)\n    tl.store(entropy_ptr + row, t)\n",
}


@pytest.mark.parametrize("copies", (1, 2, 3, 7, 30))
def test_copies_are_found_under_other_names_however_many_and_honest_answers_are_not(copies):
    solution, released = cells(NAME)["kernel"], ASSIGNMENT.answers["kernel"].source
    answers = {name: released.replace("    # Second walk", f"{own}    # Second walk") for name, own in HONEST.items()}
    for number in range(copies):
        renamed = re.sub(r"\b(high|total|row_max|row_sum|lanes)\b", lambda found, n=number: f"{found[0]}_{n}", solution)
        answers[f"copy {number}"] = renamed.replace("    # ", f"    #  {number} ")
    alike = similarity.pairs(answers, released, ASSIGNMENT.names | {"tl"}, {"published": solution})
    found = {(pair.one, pair.other): pair.shared for pair in alike}
    ring = {*itertools.combinations([*sorted(answers.keys() - HONEST), "published"], 2)}
    assert min(found[pair] for pair in ring) > 0.95
    assert max(shared for pair, shared in found.items() if pair not in ring) < 0.3


@pytest.mark.parametrize(
    "answer",
    (
        "", "\0", "x = 0x" + "f" * 5000, "9" * 5000, "(" * 20000, "-" * 50000 + "1", "x = 'open", "\n" * 29000, "%%time\n!ls",
        "  x\n y",
    ),
    ids=lambda answer: answer[:8],
)  # fmt: skip
def test_no_answer_keeps_the_report_from_being_written(answer):
    copies = [result(name) for name in ("ada", "bob")]
    for one in copies:
        one.answers = {"kernel": f"{cells(NAME)['kernel']}\n{answer}"}
    odd, gone = result("eve"), result("fay")
    odd.answers, gone.assignment = {"kernel": answer}, "an exercise of last year"
    text = similarity.page_of([*copies, odd, gone], {NAME: ASSIGNMENT}, ROOT / "nowhere")
    assert re.findall(r"<td>(\w+)</td><td>(.*?)</td>.*?(\d+)%", text) == [("ada", "bob", "100")]


def test_the_rubric_names_every_exercise(capsys):
    assert main(["rubric"]) == 0
    printed = capsys.readouterr().out
    assert all(f"`{one}`" in printed for one in ("row_softmax", "wgrad_split", "emit_value", "mended_relay"))


def test_the_bundle_holds_no_solution(tmp_path):
    count = bundle.write(ROOT, tmp_path / "b.zip")
    regions = set()
    for path in (ROOT / "solutions").glob("*/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            regions.update(re.findall(r"### BEGIN SOLUTION\n(.*?)\s*### END SOLUTION", cell.source, re.S))
    regions = [json.dumps(region)[1:-1] for region in regions if region.count("\n") >= 2]
    assert len(regions) > 20
    with zipfile.ZipFile(tmp_path / "b.zip") as zipped:
        names = zipped.namelist()
        assert len(names) == count and f"kernels-from-math/exercises/{NAME}/{NAME}.ipynb" in names
        assert {"kernels-from-math/Makefile", "kernels-from-math/tools/bootstrap.py"} <= set(names)
        for name in names:
            text = zipped.read(name).decode(errors="replace")
            assert "BEGIN SOLUTION" not in text or name.endswith((".md", ".py")), name
            assert not [region for region in regions if region in text], name
        links = re.findall(r"\]\((docs/[^)#]+)", zipped.read("kernels-from-math/README.md").decode())
        assert links and {f"kernels-from-math/{link}" for link in links} <= set(names)
    first = (tmp_path / "b.zip").read_bytes()
    bundle.write(ROOT, tmp_path / "b.zip")
    assert first == (tmp_path / "b.zip").read_bytes()
