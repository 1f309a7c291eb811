"""What one submission came to, as data: whoever writes, prints or draws it needs neither torch nor a notebook."""

import re
from dataclasses import asdict, dataclass, field

#: What becomes of a submission; only "graded" and "late" need nobody's attention.
STATUSES = ("graded", "late", "missing", "refused", "crashed", "out of time")

#: Where a line of a check's report ends and the next begins; what a submission says never looks so, see ``remote``.
REPORTED = re.compile(r"\n(?=passed  |FAILED  |not verified|not judged|missing: |\w+: \d)")


@dataclass
class Line:
    """What a check said of one property."""

    name: str
    outcome: str  # passed, failed, or not verified
    points: float
    most: float
    text: str


@dataclass
class Outcome:
    """What one check came to."""

    cell: str
    function: str
    points: float
    most: float
    seed: int
    lines: list[Line] = field(default_factory=list)
    printed: str = ""


@dataclass
class Result:
    """What one submission came to. ``points`` is None where there is no mark: missing and refused are not 0."""

    student: str
    assignment: str
    status: str
    reason: str = ""
    points: float | None = None
    most: float = 0.0
    notes: list[str] = field(default_factory=list)
    checks: list[Outcome] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    key: str = ""
    submitted: str = ""  # ISO 8601, where it is known
    failed: bool = False  # the judge, and not the submission: it has no key, and the next run tries it again

    def to_json(self) -> dict:
        """As a table that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: dict) -> "Result":
        """The result that ``to_json`` wrote."""
        outcomes = [Outcome(**{**one, "lines": [Line(**line) for line in one["lines"]]}) for one in table["checks"]]
        return cls(**{**table, "checks": outcomes})
