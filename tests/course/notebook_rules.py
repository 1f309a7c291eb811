"""What every stored notebook keeps to: each rule is a generator of complaints about one notebook."""

import html
import re

from kernels.common.lines import WIDTH
from kernels.lab import recorded

RULES = []
GENERATED_ID = re.compile(r"[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MACHINE_PATH = re.compile(r"(?<![\w./:~-])/(?:home|root|tmp|work|Users|opt|mnt|usr|workspaces?)/[\w.-]")
TIMING = re.compile(r"\d\s?(?:ns|µs|us|ms|seconds?|[GTM]i?B/s|[GT]FLOPs?(?:/s)?|it/s)(?![\w/])")
RECORDED = re.compile(r"^(\w+) on .+, torch .+, triton .+, (\d{4}-\d\d-\d\d)$", flags=re.MULTILINE)  # ``bars``' first line
NO_ALT = re.compile(r"!\[\s*\]\(|<img (?![^>]*\balt=[\"'][^\"']{10,})")
UNCOMPARED = {"nbval-ignore-output", "recorded-results"}  # the second: numbers read from benchmarks/results/


def rule(function):
    RULES.append(function)
    return function


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def texts(cell):
    """Every text that the cell's outputs show; a figure's HTML holds its bytes, which may read like a time or an answer."""
    for output in cell.outputs:
        yield output.get("text", "")
        yield "\n".join(output.get("traceback", []))
        data = output.get("data", {})
        kinds = {"text/plain"} if "image/png" in data else {"text/plain", "text/html"}
        yield from (value for kind, value in data.items() if kind in kinds)


@rule
def ids_are_unique_and_meaningful(notebook):
    ids = [cell.id for cell in notebook.cells]
    for id in ids:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{2,63}", id) or GENERATED_ID.fullmatch(id):
            yield f"{id!r} does not say what its cell is for"
        if ids.count(id) > 1:
            yield f"{id!r} names two cells"


@rule
def executed_from_top_to_bottom(notebook):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"not executed once, from top to bottom, by a fresh kernel: {counts}"


@rule
def no_errors_but_those_announced(notebook):
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags(cell):
                yield f"{cell.id}: stores a {output.ename}"


@rule
def images_have_alternative_text(notebook):
    """What an image looks like is stored with it, for whoever cannot see it, in HTML, which readers show in its place."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                alt = output.metadata.get("image/png", {}).get("alt", "")
                if len(alt) < 40 or not output.data.get("text/html", "").endswith(f'alt="{html.escape(alt)}">'):
                    yield f"{cell.id}: its figure's alternative text is {alt!r}; needed are 40 characters, in its HTML, too"
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and NO_ALT.search(cell.source):
            yield f"{cell.id}: an image without alternative text"


@rule
def nothing_of_the_authors_machine(notebook):
    for cell in notebook.cells:
        shown = [cell.source, *(texts(cell) if cell.cell_type == "code" else [])]
        for found in filter(None, map(MACHINE_PATH.search, shown)):
            yield f"{cell.id}: a path of one machine, {found[0]!r}"
        if "execution" in cell.metadata:
            yield f"{cell.id}: says when it was executed; `make refresh` leaves that out"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernel is not python3"
    if set(notebook.metadata.get("language_info", {})) & {"version"} or "widgets" in notebook.metadata:
        yield "stores a Python version or widgets; `make refresh` leaves them out"


@rule
def timings_are_not_compared(notebook):
    for cell in code_cells(notebook):
        found = TIMING.search("\n".join(texts(cell)))
        if found and not tags(cell) & UNCOMPARED:
            yield f"{cell.id}: prints {found[0]!r}, which no other machine will, without the tag nbval-ignore-output"


@rule
def records_are_the_ones_that_are_there(notebook):
    for cell in code_cells(notebook):
        if "recorded-results" in tags(cell):
            whole = "\n".join(texts(cell)).replace("\n    ", " ")  # the first line may go on
            for name, shown in RECORDED.findall(whole):
                there = recorded(name)["machine"]
                if shown != there["date"]:
                    yield f"{cell.id}: shows {name} of {shown}, recorded again on {there['date']}: make refresh, and read it"


ANSWERS = re.compile(r"\b(?:True|False|nan|NaN)\b|[:=] *[\[(]?-?\d")


@rule
def a_folded_output_keeps_its_answer(notebook):
    """JupyterLab shows the first line of a folded output."""
    for cell in code_cells(notebook):
        if cell.metadata.get("jupyter", {}).get("outputs_hidden"):
            first = "".join(texts(cell)).partition("\n")[0]
            if ANSWERS.search(first):
                yield f"{cell.id}: its first line, which JupyterLab shows though it is folded, answers: {first!r}"


def level(cell) -> int:
    """Of the heading that a cell begins with; 0 where it begins with none."""
    heading = re.match(r"(#+) ", cell.source)
    return len(heading[1]) if heading and cell.cell_type == "markdown" else 0


@rule
def no_level_of_headings_is_left_out(notebook):
    """A screen reader's list of headings has no gaps, and the reading site is made."""
    above = 0
    for cell in notebook.cells:
        prose = re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL) if cell.cell_type == "markdown" else ""
        for here in map(len, re.findall(r"^(#+) ", prose, flags=re.MULTILINE)):
            if here > above + 1:
                yield f"{cell.id}: a heading of level {here} follows one of level {above}"
            above = here


@rule
def a_prediction_is_not_answered_unasked(notebook):
    """A repository's page folds ``<details>`` alone: an answer has a heading of its own, and its words are folded."""
    cells = notebook.cells
    for asked, cell in enumerate(cells):
        if cell.cell_type != "markdown" or not cell.id.endswith("-predict"):
            continue
        end = next((i for i in range(asked + 1, len(cells)) if level(cells[i]) in (1, 2, 3)), len(cells))
        folded = [i for i in range(asked, end) if cells[i].metadata.get("jupyter", {}).get("outputs_hidden")]
        if not folded:
            yield f"{cell.id}: no cell with a folded output answers it before the next heading"
        for i in folded:
            if i - 1 not in folded and level(cells[i - 1]) != 4:
                yield f"{cells[i].id}: it answers {cell.id}, and no heading `#### ` stands right above it"
            if not any("<details>" in words.source for words in cells[i:end] if words.cell_type == "markdown"):
                yield f"{cells[i].id}: it answers {cell.id}, and no words in `<details>` follow it before the next heading"


@rule
def output_lines_fit(notebook):
    """Longer lines are broken anywhere, or have to be scrolled. A traceback's are Python's own."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            data = output.get("data", {})
            shown = output.get("text", "") + ("" if "image/png" in data else data.get("text/plain", ""))
            for line in shown.splitlines():
                if len(line) > WIDTH:
                    yield f"{cell.id}: a line of {len(line)} characters, {line[:40]!r}"
