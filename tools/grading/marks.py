"""What is handed on: the table of marks, and the graded copy of a notebook."""

import csv
import html
import io
import json

import nbformat

from tools.grading import foreign
from tools.grading.assignment import Assignment, grade_id, is_answer
from tools.grading.results import Result

COLUMNS = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "status", "raw_score",
    "late_submission_penalty", "score", "max_score", "reason", "notes",
)  # fmt: skip

MOST_SET = 8000  # characters of a text whose mathematics is set


def graded_copy(assignment: Assignment, result: Result) -> nbformat.NotebookNode:
    """The released notebook with the student's answers, and what the checks said under them. No output of a submission."""
    copy = nbformat.from_dict(json.loads(nbformat.writes(assignment.notebook)))
    earned = {one.cell: one for one in result.checks}
    for cell in copy.cells:
        name = grade_id(cell)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if is_answer(cell):
            given = {**result.answers, **result.texts}.get(name, cell.source)
            cell.source = given if cell.cell_type == "code" else shown(given)
        elif name in earned:
            said = nbformat.v4.new_output("stream", name="stdout", text=earned[name].printed)
            points = nbformat.v4.new_output(
                "execute_result", {"text/plain": f"{earned[name].points:g}"}, execution_count=1
            )
            cell.outputs, cell.execution_count = [said, points], 1
        elif name and result.reason and assignment.cells[name].metadata.nbgrader.get("grade"):
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{result.status}: {result.reason}\n")]
    return copy


def shown(text: str) -> str:
    """An answer in words as HTML of one line, which whoever renders a notebook hands on as it is.

    nbconvert, and so formgrader, makes a link of ``[x](javascript:...)``, runs diagrams, and lets MathJax obey ``\\href``.
    """
    from tools.grading import pages  # here: no exercise of the course asks for words, and it takes its time

    made = pages.markdown(text, trusted=False) if len(text) <= MOST_SET else f"<pre>{html.escape(text)}</pre>"
    line = made.strip().replace("$", "&#36;").replace("\n", "&#10;")
    return f'<div class="tex2jax_ignore mathjax_ignore">{line}</div>'


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


def table(rows: list[dict]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: foreign.cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()
