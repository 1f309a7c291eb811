"""How much of an exercise's solution is a lesson's code with other names: ``python -m tests.course.similarity``.

Each statement is cut into tokens, its names are numbered in the order in which they come (what belongs to ``tl``, ``torch``
and ``triton`` keeps its name), and three neighbouring tokens make a trigram. What counts is the share of the trigrams of a
learner's lines that the most similar cell of all lessons has, too. Kernels share idioms: a short exercise has most of its
trigrams in common with any of them. So beside it stands the most similar cell of lessons that the exercise has nothing to do
with, those of other parts.
"""

import io
import keyword
import re
import tokenize
from collections import Counter
from functools import cache

import nbformat

from tests.course.mutants import ROOT

LIMIT = 0.5
APIS = ("tl", "triton", "torch", "gl", "mbarrier", "tma")
REGION = re.compile(r"### BEGIN SOLUTION\n(.*?)^ *### END SOLUTION", flags=re.MULTILINE | re.DOTALL)
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING)


def statements(source: str):
    """The tokens of each logical line, names renamed."""
    line, names, before = [], {}, ["", ""]
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NEWLINE:
                yield line
                line, names, before = [], {}, ["", ""]
            elif token.type not in SKIPPED:
                text = token.string
                if token.type == tokenize.NAME and not keyword.iskeyword(text) and text not in APIS:
                    if not (before[1] == "." and before[0] in APIS):
                        text = names.setdefault(text, f"v{len(names)}")
                line.append(text)
                before = [before[1], token.string]
    except (tokenize.TokenError, IndentationError):
        return


def trigrams(source: str) -> Counter:
    """The trigrams of all statements, with how often each occurs."""
    found = Counter()
    for line in statements(source):
        found.update(zip(line, line[1:], line[2:], strict=False))
    return found


@cache
def lessons() -> dict[str, Counter]:
    """The trigrams of each code cell of each lesson."""
    cells = {}
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and "jit" in cell.source:
                cells[f"{path.stem[:2]}: {cell.id}"] = trigrams(cell.source)
    return cells


def written(assignment: str) -> str:
    """The lines that the learner of an exercise writes, as the solution has them."""
    notebook = nbformat.read(ROOT / "solutions" / assignment / f"{assignment}.ipynb", as_version=4)
    parts = [part for cell in notebook.cells if cell.cell_type == "code" for part in REGION.findall(cell.source)]
    return "\n".join(map(_dedented, parts))


def _dedented(part: str) -> str:
    lines = [line for line in part.splitlines() if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return "\n".join(line[margin:] for line in lines)


def similarity(assignment: str) -> tuple[tuple[float, str], tuple[float, str]]:
    """The share of the solution's trigrams in the most similar cell, and which that is; the same among other parts."""
    own = trigrams(written(assignment))
    notebook = nbformat.read(ROOT / "solutions" / assignment / f"{assignment}.ipynb", as_version=4)
    after = re.findall(r"notebooks/(\d)\d_", notebook.cells[0].source)
    shares = {cell: (own & theirs).total() / own.total() for cell, theirs in lessons().items()}
    others = {cell: share for cell, share in shares.items() if cell[0] not in after}
    return tuple((found[cell], cell) for found in (shares, others) for cell in [max(found, key=found.get)])


def exercises() -> list[str]:
    """Every exercise in which kernels are written; in a clinic none is."""
    return sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir() and path.name[0].isdigit())


def table() -> list[str]:
    """Lines of the kill table."""
    lines = ["| exercise | trigrams | most similar cell | of another part |", "|---|---|---|---|"]
    for name in exercises():
        shares = " | ".join(f"{share:.0%}, lesson {cell}" for share, cell in similarity(name))
        lines.append(f"| {name} | {trigrams(written(name)).total()} | {shares} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
