"""A judge's own process: the sandbox, one judge, a submission at a time. It writes nothing."""

import atexit
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from tools.grading import submission
from tools.grading.assignment import parse
from tools.grading.results import Result
from tools.grading.sandboxed.importing import importing
from tools.grading.timer import TooLong, within


@dataclass(frozen=True)
class Task:
    """A submission to be judged: what a judge in another process needs."""

    student: str
    assignment: str
    folder: Path
    release: Path
    key: str = ""
    submitted: str = ""


READ_SECONDS = 60  # for a notebook, which takes a hundredth of one

_judge = None


def begin(unsafe: bool, seconds: float, total: float) -> None:
    """Start the sandbox first, then import what judging needs: they take as long as each other. The compiler comes last."""
    global _judge
    from tools.grading.sandbox import Template

    template = Template(unsafe)
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("ignore", SyntaxWarning)  # of a submission's text: one can have thousands, each parse anew
    with importing():
        from tools.grading.judge import Judge

    _judge = Judge(unsafe=unsafe, seconds=seconds, total=total)
    _judge._template = template
    atexit.register(_judge.close)
    _judge.make_ready()


def judged(task: Task) -> Result:
    """One submission's result, from its folder to its points."""
    return judge(task, *content(task))


def content(task: Task) -> tuple[bytes, bytes, list[str], submission.Unusable | None]:
    """The released notebook, the submitted one, notes, and why it cannot be graded."""
    released = task.release.read_bytes()
    try:
        path, notes = submission.find(task.folder, task.assignment)
        return released, submission.load(path), notes, None
    except submission.Unusable as unusable:
        return released, b"", [], unusable


def judge(task: Task, released: bytes, data: bytes, notes: list[str], unusable: submission.Unusable | None) -> Result:
    """The result of a submission's content, by this process's judge."""
    assignment = parse(task.assignment, released)
    try:
        if unusable is not None:
            raise unusable
        with within(READ_SECONDS):
            handed_in = submission.read(data, assignment)
        handed_in.notes[:0] = notes
    except TooLong:
        why = f"reading the notebook takes longer than {READ_SECONDS} s"
        return Result(task.student, task.assignment, "refused", why, most=assignment.points)
    except submission.Unusable as unusable:
        return Result(task.student, task.assignment, unusable.status, unusable.reason, most=assignment.points)
    return _judge.judge(task.student, assignment, handed_in)
