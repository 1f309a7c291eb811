"""Marks for a learning platform: files that the importers of Moodle and Canvas take. Who has no mark gets no 0.

Moodle (Grades, Import, CSV file): a file an assignment, a row for each student with a mark; map Email address or ID number,
and the last column to the grade item. Canvas (Gradebook, Import): one file, in its own export's columns, with the row of
points possible; Canvas makes assignments that it does not know.
"""

import csv
import io
from pathlib import Path

from tools.grading import files, foreign
from tools.grading.course import Course

MOODLE = ("First name", "Last name", "ID number", "Email address")
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def read_marks(course: Course) -> list[dict]:
    """The rows of build/marks.csv."""
    with open(course.build / "marks.csv", newline="") as file:
        return list(csv.DictReader(file))


def moodle(rows: list[dict]) -> dict[str, str]:
    """A table for each assignment, by its name."""
    found = {}
    for name in sorted({row["assignment"] for row in rows}):
        mine = [row for row in rows if row["assignment"] == name and row["score"]]
        lines = [[row["first_name"], row["last_name"], row["student_id"], row["email"], row["score"]] for row in mine]
        found[name] = _table([*MOODLE, name], lines)
    return found


def canvas(rows: list[dict], roster: dict[str, dict]) -> str:
    """One table of all assignments."""
    names = sorted({row["assignment"] for row in rows})
    most = {row["assignment"]: row["max_score"] for row in rows}
    scores = {(row["student_id"], row["assignment"]): row["score"] for row in rows}
    about = {row["student_id"]: row for row in rows}
    lines = [["    Points Possible", "", "", "", "", *(most[name] for name in names)]]
    for student in sorted(about):
        known = roster.get(student, {})
        full = ", ".join(filter(None, (about[student]["last_name"], about[student]["first_name"]))) or student
        ids = [known.get("canvas_id", ""), known.get("sis_user_id", ""), student, known.get("section", "")]
        lines.append([full, *ids, *(scores.get((student, name), "") for name in names)])
    return _table([*CANVAS, *names], lines)


def _table(header, lines) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header, *(map(foreign.cell, line) for line in lines)])
    return text.getvalue()


def write_all(course: Course) -> list[Path]:
    """Write both kinds below build/export; returns the files."""
    rows, folder = read_marks(course), course.build / "export"
    written = {folder / "moodle" / f"{name}.csv": text for name, text in moodle(rows).items()}
    written[folder / "canvas.csv"] = canvas(rows, course.roster)
    for path, text in written.items():
        files.write(path, text)
    return list(written)
