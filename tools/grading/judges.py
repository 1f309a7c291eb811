"""Judges side by side on this machine, each a process with a sandbox of its own; one that is lost is replaced."""

import atexit
import gc
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import queue
import resource
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from tools.grading import foreign, leave, submission
from tools.grading.assignment import parse
from tools.grading.results import Result
from tools.grading.timer import TooLong, within

TRIES = 2  # how often a submission is tried whose judge came to its end
MEMORY = 4 << 30  # bytes of a judge in a process of its own, of which an honest submission needs a tenth
READ_SECONDS = 60  # for a notebook, which takes a hundredth of one


@dataclass(frozen=True)
class Task:
    """A submission to be judged: what a judge in another process needs."""

    student: str
    assignment: str
    folder: Path
    release: Path
    key: str = ""  # of its content when it was found
    submitted: str = ""
    versions: str = ""  # of the assignment and the checks


class Judges:
    """``jobs`` judges, which start at once."""

    def __init__(self, jobs: int, *how):
        self._how, self._idle = how, queue.SimpleQueue()
        for _ in range(jobs):
            self._idle.put(self._started())
        self._threads = ThreadPoolExecutor(jobs)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().shutdown()

    def _started(self) -> ProcessPoolExecutor:
        judge = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, self._how)
        judge.submit(int)  # the first call starts the process
        return judge

    def results(self, tasks: list[Task], begun: Callable[[Task], None]) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, as they arrive; ``begun(task)`` is called when one is handed to a judge."""
        running = {self._threads.submit(self._result, task, begun): task for task in tasks}
        return ((running[done], done.result()) for done in as_completed(running))

    def _result(self, task: Task, begun) -> Result:
        judge = self._idle.get()
        begun(task)
        try:
            for _ in range(TRIES):
                try:
                    return judge.submit(judged, task).result()
                except BrokenProcessPool:
                    judge = self._started()
            return crashed(task, "the judge's process came to its end twice")
        except Exception as error:  # the judge's own mistake, named with the submission that shows it
            return crashed(task, f"the judge failed: {type(error).__name__}: {error}")
        finally:
            self._idle.put(judge)


def crashed(task: Task, why: str) -> Result:
    """The result of a submission that no judge came to the end of."""
    return Result(task.student, task.assignment, "crashed", foreign.plain(why), failed=True)


_judge = None  # this process's


def _begin(*how) -> None:
    atexit.register(leave)  # before anything else is registered: so it comes last
    threading.Thread(target=_follow, daemon=True).start()
    begin(*how)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, most))


def _follow() -> None:
    """End with the process that started this one, however it ended: nobody else would end a judge."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def begin(unsafe: bool, seconds: float, total: float) -> None:
    """Start the sandbox first, then import what judging needs: they take as long as each other. The compiler comes last."""
    global _judge
    from tools.grading.sandbox import Template

    template = Template(unsafe)
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("ignore", SyntaxWarning)  # of a submission's text: one can have thousands, each parse anew
    from tools.grading.judge import Judge

    gc.freeze()  # nobody looks for garbage in what was imported
    _judge = Judge(unsafe=unsafe, seconds=seconds, total=total)
    _judge._template = template
    atexit.register(_judge.close)
    _judge.make_ready()


def key(task: Task, data: bytes, notes: list[str], unusable: submission.Unusable | None) -> str:
    """What a result stands under: what was judged, by which checks."""
    said = f"{unusable.status}: {unusable.reason}" if unusable else submission.digest(data) + "".join(notes)
    return hashlib.sha256(f"{said}\n{task.versions}".encode()).hexdigest()


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
    result = _judge_it(task, released, data, notes, unusable)
    result.key = "" if result.failed else key(task, data, notes, unusable)
    return result


def _judge_it(task, released, data, notes, unusable) -> Result:
    assignment = parse(task.assignment, released)
    try:
        if unusable is not None:
            raise unusable
        with within(lambda: READ_SECONDS):
            handed_in = submission.read(data, assignment)
    except TooLong:
        unusable = submission.Unusable("refused", f"reading the notebook takes longer than {READ_SECONDS} s")
    except submission.Unusable as found:
        unusable = found
    if unusable is not None:
        return Result(task.student, task.assignment, unusable.status, unusable.reason, most=assignment.points)
    handed_in.notes[:0] = notes
    return _judge.judge(task.student, assignment, handed_in)
