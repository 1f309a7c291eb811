"""Grade a class: every submission comes to a status, whatever others do, and an interrupted run goes on where it was.

Several judges work side by side, each with a sandbox of its own. This process alone writes: a file a result, beside and
renamed, then the gradebook, then the graded copy. A result stands as long as the submission, the assignment and the checks
are what they were.
"""

import collections
import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import sys
import unicodedata
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import nbformat
from tqdm import tqdm

from tools.grading import files, foreign, judges, submission
from tools.grading.course import ABOUT, Course
from tools.grading.judges import Judges, Task
from tools.grading.marks import COLUMNS, graded_copy, marks, table
from tools.grading.results import STATUSES, Result
from tools.grading.sandbox import ROOT


@dataclass(frozen=True)
class How:
    """How a class is graded."""

    jobs: int = 2
    seconds: float = 30.0  # a call
    total: float = 180.0  # a submission
    unsafe: bool = False
    again: bool = False
    quiet: bool = False
    scheduler: str = ""  # of Dask: judges on other machines


def code_digest() -> str:
    """What tells two versions of the judge and its checks apart."""
    folders = *(ROOT / "kernels" / name for name in ("check", "lab", "gluon_model")), Path(__file__).parent
    total = hashlib.sha256(f"torch {version('torch')}, triton {version('triton')}".encode())
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def stored(path: Path) -> Result | None:
    """What an earlier run wrote, if it is whole."""
    try:
        return Result.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _spelt(name: str) -> str:
    """A name as those would read it who do not look at case, spaces and how accents are encoded."""
    return "".join(unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()).split())


class Batch:
    """One run over a course."""

    def __init__(self, course: Course, how: How):
        self.course, self.how = course, how
        self.assignments = course.assignments()
        self.code = code_digest()
        self.strangers: list[str] = []
        self.left_out = 0  # how many of them may hold a submission
        self.results: dict[tuple[str, str], Result] = {}

    def run(self) -> int:
        """Grade what has no result yet, write marks, say what came of it; returns the exit status."""
        tasks = self._tasks()
        if not tasks:
            where = "submitted/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb"
            self._name_strangers()
            print(f"Nothing to grade: put submissions into {where}.", file=sys.stderr)
            return 1
        open_tasks = [task for task in tasks if not self._known(task)]
        interrupted = False
        with contextlib.ExitStack() as stack:
            results = stack.enter_context(self._judges(open_tasks))
            bar = stack.enter_context(self._bar(len(open_tasks)))
            # The judges begin, and the gradebook is opened, which takes as long as a submission, while they are at work.
            arriving = results(open_tasks, lambda task: bar.set_postfix_str(f"{task.student}, {task.assignment}"))
            book = stack.enter_context(self._book())
            for name in sorted({task.assignment for task in tasks}):
                book.declare(self.assignments[name], self.course.deadlines.get(name))
            for student, about in self.course.roster.items():
                book.student(student, **{name: about[name] for name in ABOUT})
            for result in list(self.results.values()):
                self._enter(book, result)
            try:
                for task, result in arriving:
                    self._keep(task, result, book)
                    bar.update()
            except KeyboardInterrupt:
                interrupted = True
            self._marks(book, tasks)
        return self._say(tasks, interrupted)

    def _book(self):
        from tools.grading.gradebook import Book  # nbgrader takes its time: judges are at work meanwhile

        return Book(self.course.gradebook)

    def _tasks(self) -> list[Task]:
        tasks, twins = [], {}
        for one in self.course.roster:
            twins.setdefault(_spelt(one), []).append(one)
        folder = self.course.submitted
        for student in sorted(os.scandir(folder), key=lambda one: one.name) if folder.is_dir() else ():
            name = foreign.plain(student.name, 200)
            hidden = student.name.startswith(".")
            if hidden and not any(os.path.lexists(Path(student, place)) for place in self.assignments):
                continue
            if hidden or not os.path.isdir(student.path) or name != student.name or len(name.encode()) > 200:
                is_called = f": its name is {ascii(student.name)}" if name != student.name else ""
                self.strangers.append(f"{name}: no student's folder{is_called}")
                continue
            try:
                places = sorted(os.listdir(student.path))
            except OSError as error:
                self.strangers.append(f"{name}: cannot be read: {os.strerror(error.errno)}")
                continue
            if student.is_symlink():  # what it holds of a student's is refused, by name; the rest is of some other place
                places = [place for place in places if place in self.assignments]
                self.strangers += [f"{name}: a symbolic link, no student's folder"] * (not places)
            tasks += [self._task(name, place) for place in places if place in self.assignments]
            twins.setdefault(_spelt(student.name), []).append(name)
            others = (place for place in places if place not in self.assignments and not place.startswith("."))
            said = "no assignment of this name was released"
            self.strangers += [f"{name}/{foreign.plain(place, 200)}: {said}" for place in others]
        self.left_out = len(self.strangers)
        for name in sorted(self.course.deadlines.keys() - self.assignments.keys()):
            self.strangers.append(f"course.toml: the deadline of {name}: no assignment of this name was released")
        for names in map(sorted, map(set, twins.values())):
            if len(names) > 1:
                said = "differ in case, spaces or encoding alone: one student or several?"
                self.strangers.append(f"{', '.join(map(ascii, names))}: {said}")
        return tasks

    def _task(self, student: str, name: str) -> Task:
        folder = self.course.submitted / student / name
        assignment = self.assignments[name]
        release = self.course.release / name / f"{name}.ipynb"
        when = submission.handed_in(folder)
        versions = f"{assignment.digest}\n{self.code}"
        task = Task(student, name, folder, release, "", when.isoformat() if when else "", versions)
        try:
            _, *content = judges.content(task)
        except OSError:  # what it is, the judge says
            return task
        return dataclasses.replace(task, key=judges.key(task, *content))

    def _place(self, student: str, name: str) -> Path:
        return self.course.results / name / f"{student}.json"

    def _known(self, task: Task) -> bool:
        """Whether this very submission has a result already."""
        result = stored(self._place(task.student, task.assignment))
        if self.how.again or result is None or not task.key or result.key != task.key:
            return False
        result.submitted = task.submitted
        self.results[task.student, task.assignment] = self._dated(result)
        return True

    def _dated(self, result: Result) -> Result:
        """Say whether it came late."""
        if result.status in ("graded", "late"):
            result.status = "late" if self._lateness(result) > datetime.timedelta(0) else "graded"
            note = "nobody noted when it was handed in, at least not so that it can be read: was it late?"
            if result.assignment in self.course.deadlines and not result.submitted and note not in result.notes:
                result.notes.append(note)
        return result

    def _lateness(self, result: Result) -> datetime.timedelta:
        due = self.course.deadlines.get(result.assignment)
        if due is None or not result.submitted:
            return datetime.timedelta(0)
        late = datetime.datetime.fromisoformat(result.submitted) - due
        grace = datetime.timedelta(minutes=self.course.late.grace_minutes)
        return late if late > grace else datetime.timedelta(0)

    @contextlib.contextmanager
    def _judges(self, tasks: list[Task]):
        """What judges the tasks: a function of the tasks, and of what is called as each is begun."""
        if not tasks:
            yield lambda tasks, begun: ()
        elif self.how.scheduler:
            from tools.grading import cluster

            yield lambda tasks, begun: cluster.results(tasks, self.how, begun)
        else:
            jobs = max(1, min(self.how.jobs, len(tasks)))
            with Judges(jobs, self.how.unsafe, self.how.seconds, self.how.total) as judges:
                yield judges.results

    def _bar(self, total: int) -> tqdm:
        return tqdm(total=total, unit="submission", disable=self.how.quiet or not total, dynamic_ncols=True)

    def _keep(self, task: Task, result: Result, book) -> None:
        result.submitted = task.submitted
        before = stored(self._place(task.student, task.assignment)) if result.failed else None
        if before is not None and before.points is not None and before.points > (result.points or -1.0):
            result.points, result.most, result.checks = before.points, before.most, before.checks
            result.answers, result.texts = before.answers, before.texts
            result.notes.append("the mark is an earlier mark; the next run tries it again")
        result.most = result.most or self.assignments[task.assignment].points
        if result.status == "graded" and not result.points:
            said = (line.text for check in result.checks for line in check.lines if line.outcome != "passed")
            first = next((text.splitlines()[0] for text in said if text), "no check said why")
            if (note := f"no points: {foreign.plain(first, submission.MOST_NOTE)}") not in result.notes:
                result.notes.append(note)
        self.results[task.student, task.assignment] = self._dated(result)
        files.write(self._place(task.student, task.assignment), json.dumps(result.to_json(), indent=1))
        self._enter(book, result)

    def _enter(self, book, result: Result) -> None:
        """Write one result into the gradebook, and the graded copy for formgrader and nbgrader's own feedback."""
        late = self._lateness(result)
        book.write(result, self.course.late.penalty(result.points or 0.0, late))
        folder = self.course.root / "autograded" / result.student / result.assignment
        copy = graded_copy(self.assignments[result.assignment], result)
        target, text = folder / f"{result.assignment}.ipynb", nbformat.writes(copy)
        if not target.is_file() or target.read_text() != text:
            if folder.is_symlink():
                folder.unlink()
            files.write(target, text)
            if result.submitted:
                files.write(folder / "timestamp.txt", result.submitted)

    def _marks(self, book, tasks: list[Task]) -> None:
        rows = marks(book, self._gone(tasks) | self.results, self.assignments)
        files.write(self.course.build / "marks.csv", table(COLUMNS, (map(row.get, COLUMNS) for row in rows)))

    def _gone(self, tasks: list[Task]) -> dict[tuple[str, str], Result]:
        """Results whose submissions are no longer there: the gradebook has them, so the table does, and says it."""
        found, there = {}, {(task.student, task.assignment) for task in tasks}
        for path in sorted(self.course.results.glob("*/*.json")):
            key = path.stem, path.parent.name
            if key not in there and key[1] in self.assignments and (result := stored(path)):
                result.notes.append("the folder of this submission is gone: the mark is the one it had")
                found[key] = result
        return found

    def _say(self, tasks, interrupted) -> int:
        results = [self.results[key] for key in sorted(self.results)]
        for result in results:
            if result.status not in ("graded", "late") or result.notes:
                said = [f"{result.status}: {result.reason}"] if result.status not in ("graded", "late") else []
                print(f"{result.student}, {result.assignment}: {'; '.join([*said, *result.notes])}", file=sys.stderr)
        self._name_strangers()
        counts = collections.Counter(result.status for result in results)
        said = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        if interrupted or len(results) < len(tasks):
            done = f"{len(results)} of {len(tasks)} submissions have a result ({said or 'none'})"
            print(f"interrupted: {done}; `make grade` goes on")
            return 130
        said += f"; {self.left_out} left out, see above" if self.left_out else ""
        print(f"{len(results)} submissions: {said}. Marks in {self.course.build.name}/marks.csv")
        return 0 if set(counts) <= {"graded", "late"} and not self.left_out else 1

    def _name_strangers(self) -> None:
        for line in self.strangers:
            print(line, file=sys.stderr)
