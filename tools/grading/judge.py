"""Judge one submission: its launches are recorded and replayed in the sandbox, the checks run here.

This process never imports a line of a submission. Cases, expected values, seeds, comparison and points exist here alone.
"""

import contextlib
import io
import os
import re
import secrets
import time
from dataclasses import asdict

import torch

from kernels import check as checks
from kernels.check import clinics
from kernels.check.framework import check as hold
from kernels.common.lines import unbroken
from kernels.lab import _fork_server
from tools.grading import foreign
from tools.grading.answers import MOST_CHARACTERS, python
from tools.grading.assignment import CLINICS, EMITTERS, PIPELINES, Assignment, Check
from tools.grading.bench import Bench
from tools.grading.remote import Remote, RemotePipeline, RemoteTester, diagnosis
from tools.grading.results import REPORTED, Line, Outcome, Result
from tools.grading.sandbox import Limits, NoSandbox, Template, compiler
from tools.grading.submission import FUTURE, Submission, Unusable
from tools.grading.timer import TooLong, patience, within

COMPILER_SECONDS = 30  # for one kernel, of which honest ones take a tenth: what takes longer is an unrolled loop
THREADS = 48  # the model of Gluon runs partitions as threads


class Judge:
    """Judges submissions one after the other, with a warm template of sandboxed processes."""

    def __init__(
        self, *, unsafe: bool = False, seconds: float = 30.0, total: float = 180.0, limits: Limits | None = None
    ):
        torch.set_num_threads(1)
        os.environ["KERNELS_PROGRESS"] = "0"  # what a check prints is kept
        self.unsafe, self.seconds, self.total, self.limits = unsafe, seconds, total, limits or Limits()
        self._template: Template | None = None
        self._compiler = None if unsafe else _fork_server.Place(*compiler())

    def make_ready(self) -> None:
        """Start the process that compiles, without waiting: it imports Triton meanwhile."""
        with _fork_server.confined(self._compiler):
            _fork_server.make_ready()

    def template(self) -> Template:
        """A template that may start one more sandboxed process."""
        if self._template is not None and not self._template.alive:
            self.close()
        if self._template is None:
            self._template = Template(self.unsafe)
        return self._template

    def close(self) -> None:
        """End the sandbox."""
        if self._template is not None:
            self._template.close()
            self._template = None

    def judge(self, student: str, assignment: Assignment, submission: Submission) -> Result:
        """Grade one submission. Whatever it does, a result comes back."""
        try:
            return self._judge(student, assignment, submission)
        except NoSandbox:  # the template is gone, for lack of memory perhaps: once more, with a new one
            self.close()
            return self._judge(student, assignment, submission)

    def _judge(self, student, assignment, submission) -> Result:
        start = time.monotonic()
        result = Result(student, assignment.name, "graded", most=assignment.points, notes=list(submission.notes))
        result.answers = {name: source[:MOST_CHARACTERS] for name, source in submission.answers.items()}
        result.texts = dict(submission.texts)
        _fork_server.TIMEOUT_SECONDS = round(COMPILER_SECONDS * patience())
        try:
            with _fork_server.confined(self._compiler):
                self._hold(assignment, submission, result)
        except Unusable as unusable:
            result.status, result.reason, result.points, result.checks = unusable.status, unusable.reason, None, []
        except (TooLong, MemoryError) as end:
            much = ("out of time", "long") if isinstance(end, TooLong) else ("crashed", "much memory")
            result.status, result.reason = much[0], f"looking at what it did took too {much[1]}"
            result.points = sum(one.points for one in result.checks)
        result.seconds = round(time.monotonic() - start, 3)
        return result

    def _hold(self, assignment, submission, result) -> None:
        """Every check of a submission, into its result."""
        limits = self.limits
        if assignment.pipelines:
            limits = Limits(**{**asdict(limits), "processes": limits.processes + THREADS})
        needs = [name for name in ("program", "pipelines") if getattr(assignment, name)]
        bench = Bench(self.template, limits, self.seconds, self.total, needs)
        try:
            with within(lambda: 2 * bench.total):  # what is done here, the compiler's work too, counts as well
                cells = cells_of(assignment, submission)
                for one in assignment.checks:
                    try:
                        result.checks.append(self._check(one, assignment, cells, bench))
                    except (Unusable, NoSandbox, MemoryError):
                        raise
                    except Exception as error:  # the judge's own mistake: the other checks know nothing of it
                        said = f"the judge failed in {one.function}: {type(error).__name__}: {error}"
                        result.status, result.reason, result.failed = "crashed", foreign.plain(said), True
        finally:
            bench.close()
        if result.checks or not result.failed:
            result.points = sum(one.points for one in result.checks)
        if bench.incidents and not result.failed:
            result.status = "crashed" if "crashed" in bench.incidents else "out of time"
            result.reason = bench.details[bench.incidents.index(result.status)]

    def _check(self, one: Check, assignment: Assignment, cells: list, bench: Bench) -> Outcome:
        seed, printed = secrets.randbits(32), io.StringIO()
        with contextlib.redirect_stdout(printed), unbroken():
            exercise, points = _run(one, assignment, cells, bench, seed)
        text = printed.getvalue()
        scale = one.points / exercise.points if exercise.points else 0.0
        lines = _lines(exercise, text, scale)
        return Outcome(one.cell, one.function, points * scale, one.points, seed, lines, text)


def cells_of(assignment: Assignment, submission: Submission) -> list:
    """What a sandboxed process loads: released cells, and the answers in their places. Raises ``Unusable``."""
    if submission.missing:
        raise Unusable("refused", "; ".join(submission.missing))
    cells = [["annotations", FUTURE, [], ""]] if submission.unread else []
    for name, source in assignment.released:
        source, error = python(submission.answers[name]) if name in submission.answers else (source, "")
        cells.append([name, source, sorted(assignment.defines[name]), error])
    return cells


def _run(one: Check, assignment: Assignment, cells, bench, seed):
    """The exercise that a check cell names, and the points that it gives."""
    exercise, how = exercise_of(one.name), {"seed": seed, "grading": True}
    if one.name.startswith(CLINICS[0]):
        return exercise, clinics.check_diagnosis(exercise, diagnosis(one.function, bench, cells))
    if one.name.startswith(CLINICS[1]):
        return exercise, clinics.check_finds(exercise, RemoteTester(one.function, bench, cells), **how)
    if why := exercise.not_here():
        raise Unusable("refused", f"this machine cannot check it: {why}")
    if one.name in PIPELINES:
        remote = RemotePipeline(one.function, one.name.removeprefix("mended_").upper(), bench, cells)
    else:
        remote = Remote(one.function, bench, cells, exercise.given, assignment.fields, EMITTERS.get(one.name, ""))
    return exercise, hold(exercise, remote, **how)


def exercise_of(name: str):
    """The exercise behind ``check.name``."""
    try:
        return clinics.WORKSHEETS[name] if name in clinics.CHECKS else checks.exercise_of(name)
    except ValueError:
        raise Unusable("refused", f"the assignment names check.{name}, which the course does not have") from None


def _lines(exercise, text: str, scale: float) -> list[Line]:
    """What was printed, by property and by verdict; what was never reached has failed."""
    worth = {item.name: item.points for item in exercise.properties}
    worth |= {name: points for name, points in exercise.worth.items() if name != "right"}
    found = {}
    starts = {"passed": "passed  ", "failed": "FAILED  ", "not verified": "not verified on this machine: "}
    for line in REPORTED.split(text):
        for outcome, start in starts.items():
            rest = line.removeprefix(start)
            for name in worth if line.startswith(start) else ():
                if rest.startswith((f"{name}:", f"{name} (")) or rest == name:
                    found[name] = outcome, line.rstrip()
        if line.startswith("not judged: "):
            name = line.removeprefix("not judged: ").partition(" ")[0]
            found[name] = "failed", line.rstrip()
    excuses = ("missing: ", "not verified on this machine: ", "not run: ")
    missing = next((line for line in text.splitlines() if line.startswith(excuses)), "")
    lines = []
    for name, most in worth.items():
        outcome, said = found.get(name, ("failed", missing))
        some = re.match(rf"FAILED  {re.escape(name)}: (\d+) of \d+ points: ", said)
        earned = most if outcome == "passed" else int(some[1]) if some else 0
        lines.append(Line(name, outcome, earned * scale, most * scale, said))
    return lines
