"""The gradebook: marks and comments through nbgrader's own interface, by the one process that writes.

An answer that could not be graded has no automatic mark and waits for a person; a mark that a person gave stays.
"""

import contextlib
import datetime
import json
import logging
import os
import sys
import time
import warnings

from nbgrader.api import Comment, Grade, Gradebook, InvalidEntry, MissingEntry, app_log
from sqlalchemy.exc import DBAPIError, SAWarning
from sqlalchemy.orm.exc import StaleDataError

from tools.grading.assignment import Assignment, is_answer, of
from tools.grading.course import GradebookBusy
from tools.grading.results import Result

COURSE = "kernels-from-math"


class Book:
    """An open gradebook: SQLite or PostgreSQL, by URL."""

    def __init__(self, url: str):
        self.url = url
        warnings.filterwarnings("ignore", "Object of type <Submitted", SAWarning)  # nbgrader's own way of adding one
        app_log.setLevel(logging.CRITICAL)  # it prints a traceback where another grader was first, and we try again
        os.environ["PATH"] += f"{os.pathsep}{sys.prefix}/bin"  # nbgrader starts `alembic` by its name
        self._book = _patiently(lambda: Gradebook(url, COURSE))

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._book.close()

    def declare(self, assignment: Assignment, due: datetime.datetime | None = None) -> None:
        """Make an assignment known: its cells, their points, what was released in them, when it is due."""
        book, name = self._book, assignment.name
        more = {"duedate": due.astimezone(datetime.UTC).replace(tzinfo=None)} if due else {}
        self._patiently(lambda: book.update_or_create_assignment(name, course_id=COURSE, **more))
        kernel = json.dumps(assignment.notebook.metadata.get("kernelspec", {}))
        self._patiently(lambda: book.update_or_create_notebook(name, name, kernelspec=kernel))
        for grade_id, cell in assignment.cells.items():
            fields, kind = of(cell), cell.cell_type
            source = {"source": cell.source, "cell_type": kind, "locked": bool(fields.get("locked"))}
            make = [(book.update_or_create_source_cell, source)]
            if fields["grade"]:
                make.append(
                    (book.update_or_create_grade_cell, {"max_score": float(fields["points"]), "cell_type": kind})
                )
            if is_answer(cell):
                make.append((book.update_or_create_solution_cell, {}))
            for function, values in make:
                self._patiently(
                    lambda function=function, values=values, id=grade_id: function(id, name, name, **values)
                )

    def _patiently(self, action):
        return _patiently(action, self._book.db.rollback)

    def student(self, student: str, **about: str) -> None:
        """Make a student known, with what is known of them."""
        known = {key: value for key, value in about.items() if value}
        self._patiently(lambda: self._book.update_or_create_student(student, **known))

    def students(self) -> dict[str, dict]:
        """Every student: last name, first name and address by name."""
        return {
            one.id: {"last_name": one.last_name or "", "first_name": one.first_name or "", "email": one.email or ""}
            for one in self._book.students
        }

    def write(self, result: Result, penalty: float = 0.0) -> None:
        """Enter what one submission came to. Entering it twice changes nothing."""
        self._patiently(lambda: self._write(result, penalty))

    def _write(self, result, penalty):
        name, student, book = result.assignment, result.student, self._book
        with contextlib.suppress(InvalidEntry):
            if student not in {one.id for one in book.students}:
                book.add_student(student)
        when = {"timestamp": datetime.datetime.fromisoformat(result.submitted)} if result.submitted else {}
        submission = book.update_or_create_submission(name, student, **when)
        (notebook,) = submission.notebooks
        self._complete(notebook)
        notebook.late_submission_penalty = penalty or None
        earned = {one.cell: one for one in result.checks}
        for grade in notebook.grades:
            outcome = earned.get(grade.cell.name) if result.points is not None else None
            grade.auto_score = outcome.points if outcome else None
            grade.needs_manual_grade = grade.manual_score is not None or outcome is None
        said = result.reason and f"{result.status}: {result.reason}"
        for comment in notebook.comments:
            comment.auto_comment = said or None
        book.db.commit()

    def _complete(self, notebook) -> None:
        """A grade and a comment for every cell, also for one that came into the assignment later."""
        graded = {grade.cell_id for grade in notebook.grades}
        said = {comment.cell_id for comment in notebook.comments}
        for cell in notebook.notebook.grade_cells:
            if cell.id not in graded:
                notebook.grades.append(Grade(cell_id=cell.id))
        for cell in notebook.notebook.solution_cells:
            if cell.id not in said:
                notebook.comments.append(Comment(cell_id=cell.id))
        self._book.db.commit()

    def mark(self, assignment: str, student: str) -> dict | None:
        """A submission's marks as they stand, with what people have changed; None without a submission."""
        try:
            submission = self._book.find_submission(assignment, student)
        except MissingEntry:
            return None
        grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
        return {
            "raw_score": submission.score,
            "late_submission_penalty": submission.late_submission_penalty or 0.0,
            "by_hand": bool(grades) and all(grade.manual_score is not None for grade in grades),
            "comments": {
                c.name: c.manual_comment for nb in submission.notebooks for c in nb.comments if c.manual_comment
            },
        }

    def due(self, assignment: str):
        """When an assignment is due, in UTC; None if at no time."""
        with contextlib.suppress(MissingEntry):
            due = self._book.find_assignment(assignment).duedate
            return due.replace(tzinfo=datetime.UTC) if due else None
        return None


def _patiently(action, undo=lambda: None, tries: int = 8):
    """Another grader may write the same row, or hold the file, at the same time: once more, a little later."""
    for attempt in range(tries):
        try:
            return action()
        except (InvalidEntry, DBAPIError, StaleDataError) as error:
            undo()
            if attempt == tries - 1:
                if isinstance(error, DBAPIError):
                    why = f"the gradebook cannot be used, {error.orig}: does another program hold it, or is it damaged?"
                    raise GradebookBusy(f"{why} What is judged is kept: run this again") from None
                raise
            time.sleep(0.05 * 2**attempt)
