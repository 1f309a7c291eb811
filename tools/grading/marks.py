"""What is handed on: the table of marks, the graded copy of a notebook, and files for learning platforms.

Moodle (Grades, Import, CSV file): a file an assignment, a row for each student with a mark; map Email address or ID number,
and the last column to the grade item. Canvas (Gradebook, Import): one file, in its own export's columns, with the row of
points possible; Canvas makes assignments that it does not know. Who has no mark gets no 0.
"""

import csv
import io
import json
from pathlib import Path

import nbformat

from tools.grading import files, foreign
from tools.grading.assignment import Assignment, grade_id, is_answer
from tools.grading.course import Course
from tools.grading.results import Result

COLUMNS = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "status", "raw_score",
    "late_submission_penalty", "score", "max_score", "reason", "notes",
)  # fmt: skip
MOODLE = ("First name", "Last name", "ID number", "Email address")
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def graded_copy(assignment: Assignment, result: Result) -> nbformat.NotebookNode:
    """The released notebook with the student's answers, and what the checks said under them. No output of a submission."""
    copy = nbformat.from_dict(json.loads(nbformat.writes(assignment.notebook)))
    earned = {one.cell: one for one in result.checks}
    for cell in copy.cells:
        name = grade_id(cell)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if is_answer(cell) or name in result.answers:
            given = {**result.answers, **result.texts}.get(name, cell.source)
            cell.source = given if cell.cell_type == "code" else foreign.shown(given)
        elif name in earned:
            said = nbformat.v4.new_output("stream", name="stdout", text=earned[name].printed)
            points = nbformat.v4.new_output(
                "execute_result", {"text/plain": f"{earned[name].points:g}"}, execution_count=1
            )
            cell.outputs, cell.execution_count = [said, points], 1
        elif name and result.reason and assignment.cells[name].metadata.nbgrader.get("grade"):
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{result.status}: {result.reason}\n")]
    return copy


def marks(book, results: dict, assignments: dict[str, Assignment]) -> list[dict]:
    """A row for every student and every assignment that anybody handed in; a mark is empty where there is none."""
    names = sorted({name for _, name in results})
    students = book.students()
    rows = []
    for name in names:
        due = book.due(name)
        for student in sorted(students):
            result, mark = results.get((student, name)), book.mark(name, student)
            row = dict.fromkeys(COLUMNS, "") | students[student]
            row |= {
                "assignment": name,
                "student_id": student,
                "max_score": assignments[name].points,
                "status": "missing",
                "reason": "nothing was handed in",
            }
            row["duedate"] = due.isoformat() if due else ""
            if result is not None:
                row |= {"status": result.status, "reason": result.reason, "notes": "; ".join(result.notes)}
                row["timestamp"] = result.submitted
                marked = result.points is not None or (mark and mark["by_hand"])
                if marked and mark:
                    penalty = mark["late_submission_penalty"]
                    row |= {"raw_score": mark["raw_score"], "late_submission_penalty": penalty}
                    row["score"] = max(0.0, mark["raw_score"] - penalty)
            rows.append(row)
    return rows


def table(header, lines) -> str:
    """A table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *(map(foreign.cell, line) for line in lines)])
    return text.getvalue()


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
        found[name] = table([*MOODLE, name], lines)
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
    return table([*CANVAS, *names], lines)


def write_all(course: Course) -> list[Path]:
    """Write both kinds below build/export; returns the files."""
    rows, folder = read_marks(course), course.build / "export"
    written = {folder / "moodle" / f"{name}.csv": text for name, text in moodle(rows).items()}
    written[folder / "canvas.csv"] = canvas(rows, course.roster)
    for path, text in written.items():
        files.write(path, text)
    return list(written)
