"""The course folder: where things lie, who takes part, when what is due, and what a late hand-in costs.

``course.toml``, beside the notebooks, is optional::

    url = "https://example.org/course/"   # where students read the lessons: feedback links there

    [deadlines]
    01_row_softmax = 2026-11-02T18:00:00+01:00

    [late]
    grace_minutes = 15    # nothing is lost within them
    per_day = 0.1         # of the points earned, for each day begun
    at_most = 0.5         # of the points earned

``roster.csv`` has the columns student_id, last_name, first_name, email; only the first is needed. Canvas may be told more:
canvas_id, sis_user_id, section.
"""

import csv
import datetime
import math
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tools.grading.assignment import Assignment, NotAnAssignment, read_all

ABOUT = ("last_name", "first_name", "email")
ALSO = ("canvas_id", "sis_user_id", "section")


class NotACourse(ValueError):
    """What is wrong with the course's own files."""


class GradebookBusy(NotACourse):
    """The gradebook cannot be reached, or somebody else holds it."""


@dataclass(frozen=True)
class Late:
    """What a late hand-in costs."""

    grace_minutes: float = 0.0
    per_day: float = 0.0
    at_most: float = 1.0

    def penalty(self, points: float, late: datetime.timedelta) -> float:
        """Points lost of ``points`` by one that came ``late``."""
        if late <= datetime.timedelta(minutes=self.grace_minutes):
            return 0.0
        days = math.ceil(late / datetime.timedelta(days=1))
        return round(points * min(self.at_most, self.per_day * days), 3)


@dataclass
class Course:
    """A course folder."""

    root: Path
    deadlines: dict[str, datetime.datetime] = field(default_factory=dict)
    late: Late = Late()
    url: str = ""
    roster: dict[str, dict] = field(default_factory=dict)

    @classmethod
    def at(cls, root: Path) -> "Course":
        """The course in a folder. Raises ``NotACourse``."""
        course = cls(root.resolve())
        settings = root / "course.toml"
        if settings.exists():
            course._read(settings)
        roster = root / "roster.csv"
        if roster.exists():
            course.roster = read_roster(roster)
        return course

    def _read(self, path: Path) -> None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise NotACourse(f"{path.name}: {error}") from None
        if unknown := set(table) - {"deadlines", "late", "url"}:
            raise NotACourse(f"{path.name}: {', '.join(sorted(unknown))} is none of deadlines, late, url")
        self.url = table.get("url", "")
        if not isinstance(self.url, str) or self.url and not self.url.startswith(("https://", "http://")):
            raise NotACourse(f"{path.name}: url is {self.url!r}: it needs an address, https://...")
        deadlines, late = table.get("deadlines", {}), table.get("late", {})
        for name, value in (("deadlines", deadlines), ("late", late)):
            if not isinstance(value, dict):
                raise NotACourse(f"{path.name}: {name} is no table: it begins with a line [{name}]")
        for name, when in deadlines.items():
            if not isinstance(when, datetime.datetime) or when.tzinfo is None:
                raise NotACourse(
                    f"{path.name}: the deadline of {name} needs a date, a time and a zone: 2026-11-02T18:00:00+01:00"
                )
            self.deadlines[name] = when
        most = {"grace_minutes": 365 * 24 * 60, "per_day": 1, "at_most": 1}
        for key, value in late.items():
            if key not in most:
                raise NotACourse(f"{path.name}: late.{key} is none of {', '.join(most)}")
            if not isinstance(value, (int, float)) or not 0 <= value <= most[key]:
                raise NotACourse(f"{path.name}: late.{key} is {value!r}: it needs a number from 0 to {most[key]}")
        self.late = Late(**late)

    @property
    def release(self) -> Path:
        """What students receive."""
        return self.root / "exercises"

    @property
    def submitted(self) -> Path:
        """What they hand in."""
        return self.root / "submitted"

    @property
    def build(self) -> Path:
        """Marks, results, pages: whatever can be made again."""
        return self.root / "build"

    @property
    def results(self) -> Path:
        """What each submission came to, a file each."""
        return self.build / "grading"

    @property
    def gradebook(self) -> str:
        """The gradebook's address."""
        return os.environ.get("NBGRADER_DATABASE_URL") or f"sqlite:///{self.root / 'gradebook.db'}"

    def assignments(self) -> dict[str, Assignment]:
        """What was released. Raises ``NotACourse``."""
        try:
            return read_all(self.release)
        except NotAnAssignment as error:
            raise NotACourse(str(error)) from None


def read_roster(path: Path) -> dict[str, dict]:
    """Students by name. Raises ``NotACourse``: without a column student_id, or with a name that no folder can have."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if "student_id" not in (rows.fieldnames or ()):
            raise NotACourse(
                f"{path.name}: the first line names no column student_id, but {', '.join(rows.fieldnames or ['nothing'])}"
            )
        roster = {}
        for row in rows:
            student = (row["student_id"] or "").strip()
            if not student or "/" in student or "+" in student or student.startswith("."):
                raise NotACourse(f"{path.name}, line {rows.line_num}: {student!r} cannot be a folder's name")
            if student in roster:
                raise NotACourse(f"{path.name}, line {rows.line_num}: {student} is there twice")
            roster[student] = {name: (row.get(name) or "").strip() for name in (*ABOUT, *ALSO)}
    return roster
