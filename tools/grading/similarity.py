"""Which answers are alike: pairs of students, and students beside the published solution.

Names, numbers of spaces, comments and the released lines do not count: an answer is the set of windows of its syntax, each
of some twelve nodes, with every name it made up replaced by its kind. Two answers of few lines are alike by nature, so a
pair is only as suspicious as the windows that it shares with few others. The report says where to look; it decides nothing.
"""

import ast
import collections
import hashlib
import html
import itertools
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools.grading import pages
from tools.grading.answers import python
from tools.grading.assignment import Assignment
from tools.grading.results import Result

WINDOW = 12
RARE = 0.2  # a window that more than this part of the class has is common knowledge
FEW = 8  # an answer with fewer rare windows is too short to tell anything


@dataclass(frozen=True)
class Pair:
    """Two answers and the part of the smaller one's rare windows that they share."""

    one: str
    other: str
    shared: float
    windows: int


def windows(source: str, known: set[str] = frozenset()) -> set[str]:
    """The windows of a source's syntax. ``known``: names that are given, and keep their own."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    words, ahead = [], [tree]
    while ahead:  # each function from its first line to its last, whatever stands before and behind it
        node = ahead.pop()
        ahead += reversed(list(ast.iter_child_nodes(node)))
        word = type(node).__name__
        if isinstance(node, (ast.Load, ast.Store, ast.Module)):
            continue
        if isinstance(node, ast.Name):
            word = node.id if node.id in known else "name"
        elif isinstance(node, ast.Attribute):
            word = f".{node.attr}"
        elif isinstance(node, ast.Constant):
            word = repr(node.value) if isinstance(node.value, (int, float)) else "text"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        words.append(word)
    spans = (" ".join(words[i : i + WINDOW]) for i in range(max(0, len(words) - WINDOW + 1)))
    return {hashlib.blake2b(span.encode(), digest_size=8).hexdigest() for span in spans}


def pairs(answers: dict[str, str], released: str, known: set[str], beside: dict[str, str]) -> list[Pair]:
    """All pairs that share rare windows, the most alike first.

    answers: source by student. released: what everybody was given. beside: published sources by name, compared with each
    student and not with each other.
    """
    given = windows(released, known)
    own = {name: windows(source, known) - given for name, source in answers.items()}
    counts = collections.Counter(window for each in own.values() for window in each)
    limit = max(2, RARE * len(own))
    rare = {name: {window for window in each if counts[window] <= limit} for name, each in own.items()}
    found = []
    for one, other in itertools.combinations(sorted(own), 2):
        found.append(_pair(one, other, rare[one], rare[other]))
    for name, source in beside.items():
        published = windows(source, known) - given
        for student in own:
            found.append(_pair(student, name, own[student], published))
    return sorted(filter(None, found), key=lambda pair: (-pair.shared, -pair.windows, pair.one, pair.other))


def _pair(one, other, first, second) -> Pair | None:
    least = min(len(first), len(second))
    common = len(first & second)
    return Pair(one, other, common / least, common) if least >= FEW and common else None


def page_of(results: list[Result], assignments: dict[str, Assignment], solutions: Path, above: float = 0.5) -> str:
    """The report."""
    parts = ["<h1>Answers that are alike</h1>", f"<p>{html.escape(__doc__.partition(chr(10) * 2)[2])}</p>"]
    for name in sorted({result.assignment for result in results}):
        assignment = assignments[name]
        known = assignment.names | {"tl", "triton", "gl"}
        answers = {r.student: _readable(r.answers.values()) for r in results if r.assignment == name and r.answers}
        published = solutions / name / f"{name}.ipynb"
        cells = nbformat.read(published, as_version=4).cells if published.exists() else []
        solution = _readable(cell.source for cell in cells if cell.get("id") in assignment.answers)
        beside = {"the published solution": solution} if solution else {}
        released = "\n\n".join(cell.source for cell in assignment.answers.values())
        rows = [
            f"<tr><td>{html.escape(pair.one)}</td><td>{html.escape(pair.other)}</td>"
            f'<td class="points">{pair.shared:.0%}</td><td class="points">{pair.windows}</td></tr>'
            for pair in pairs(answers, released, known, beside)
            if pair.shared >= above
        ]
        parts.append(f"<h2>{html.escape(name)}</h2>")
        head = "<tr><th>student</th><th>and</th><th>shared</th><th>windows</th></tr>"
        parts.append(f"<table>{head}{''.join(rows)}</table>" if rows else "<p>No pair above the limit.</p>")
    return pages.page("Answers that are alike", "\n".join(parts))


def _readable(cells) -> str:
    """Of these cells those that Python can read, as one text."""
    return "\n\n".join(text for text, error in map(python, cells) if not error)
