"""Which answers are alike: pairs of students, and students beside the published solution.

Names, numbers of spaces, comments and the released lines do not count: an answer is the set of its windows, each of some
sixteen words and signs, with every name it made up replaced by one. What many write says little, so a window weighs the
less the more of the class have it; a copy is one all the same, and shares all of its weight, in a class of two and where
ten copied. The report says where to look; it decides nothing.
"""

import collections
import html
import io
import itertools
import keyword
import math
import tokenize
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np

from tools.grading import pages
from tools.grading.assignment import Assignment
from tools.grading.results import Result

WINDOW = 16
BATCH = 4096  # windows that are looked at in one go
FEW = 8  # an answer with fewer windows of its own is too short to tell anything
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Pair:
    """Two answers, the part of the lighter one that they share, by weight, and how many windows that is."""

    one: str
    other: str
    shared: float
    windows: int


def windows(source: str, known: set[str]) -> set[int]:
    """The windows of a source, as far as it can be read. ``known``: names that are given, and keep their own."""
    words, kept = [], known | set(keyword.kwlist)
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            named = token.type == tokenize.NAME and token.string not in kept and words[-1:] != ["."]
            if token.type not in _SILENT:
                words.append("name" if named else "text" if token.type == tokenize.STRING else token.string)
    except (SyntaxError, tokenize.TokenError):
        pass  # what stands behind is no Python
    return set(map(hash, zip(*(words[start:] for start in range(WINDOW)))))


def pairs(
    answers: dict[str, str], released: str, known: set[str], beside: dict[str, str], above: float = 0.0
) -> list[Pair]:
    """All pairs that share more than ``above``, the most alike first.

    answers: source by student. released: what everybody was given. beside: published sources by name, compared with each
    student and not with each other.
    """
    given = windows(released, known)
    own = {name: windows(source, known) - given for name, source in (answers | beside).items()}
    own = {name: own[name] for name in [*sorted(answers), *beside] if len(own[name]) >= FEW}
    counts = collections.Counter(itertools.chain.from_iterable(own.values()))
    weight = {window: math.log(1 + len(own) / count) for window, count in counts.items()}
    heavy = np.array([sum(map(weight.get, each)) for each in own.values()])
    alike, common = np.zeros((len(own), len(own))), [window for window in counts if counts[window] > 1]
    for start in range(0, len(common), BATCH):
        some = common[start : start + BATCH]
        has = np.array([[window in each for window in some] for each in own.values()], np.float64)
        alike += has * [weight[window] for window in some] @ has.T
    alike /= np.minimum.outer(heavy, heavy)
    names, found = [*own], []
    for i, j in np.argwhere(np.triu(alike, 1) > above):
        one, other = names[i], names[j]
        if one not in beside:
            found.append(Pair(one, other, float(alike[i, j]), len(own[one] & own[other])))
    return sorted(found, key=lambda pair: (-pair.shared, -pair.windows, pair.one, pair.other))


def page_of(results: list[Result], assignments: dict[str, Assignment], solutions: Path, above: float = 0.5) -> str:
    """The report."""
    parts = ["<h1>Answers that are alike</h1>", f"<p>{html.escape(__doc__.partition(chr(10) * 2)[2])}</p>"]
    for name in sorted({result.assignment for result in results} & assignments.keys()):
        assignment = assignments[name]
        answers = {r.student: "\n".join(r.answers.values()) for r in results if r.assignment == name}
        published = solutions / name / f"{name}.ipynb"
        cells = nbformat.read(published, as_version=4).cells if published.exists() else []
        solution = "\n".join(cell.source for cell in cells if cell.get("id") in assignment.answers)
        released = "\n".join(source for _, source in assignment.released)
        known, beside = assignment.names | {"tl", "triton", "gl"}, {"the published solution": solution}
        rows = [
            f"<tr><td>{html.escape(pair.one)}</td><td>{html.escape(pair.other)}</td>"
            f'<td class="points">{pair.shared:.0%}</td><td class="points">{pair.windows}</td></tr>'
            for pair in pairs(answers, released, known, beside, above)
        ]
        parts.append(f"<h2>{html.escape(name)}</h2>")
        head = "<tr><th>student</th><th>and</th><th>shared</th><th>windows</th></tr>"
        parts.append(f"<table>{head}{''.join(rows)}</table>" if rows else "<p>No pair above the limit.</p>")
    return pages.page("Answers that are alike", "\n".join(parts))
