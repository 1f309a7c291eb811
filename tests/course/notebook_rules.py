"""What every stored notebook keeps to: each rule is a generator of complaints about one notebook.

`python -m tests.course.notebook_rules NOTEBOOK ...` prints a lesson's measures and the complaints about it, as they will
be once it is rewritten; `--state` writes the minutes of the formula into its title and the README's table first.
"""

import argparse
import ast
import re
from pathlib import Path

from kernels.lab import recorded
from tests.course.notebook_measures import (
    code_cells,
    code_lines,
    lesson_of,
    minutes,
    named,
    prose_cells,
    prose_lines,
    prose_words,
    shows_a_figure,
    stated_minutes,
    tags,
    texts,
    turns,
    without,
)

#: The parts whose lessons are made as docs/writing_a_lesson.md says; the rules marked with it hold for these alone.
NEW_PATTERN = ("0", "1", "2", "3", "4", "5")
#: Lessons of these parts that are not yet rewritten: exempt from those rules, and from what they say of all lessons.
NOT_YET_REWRITTEN: set[str] = set()

RULES = []
GENERATED_ID = re.compile(r"[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MACHINE_PATH = re.compile(r"(?<![\w./:~-])/(?:home|root|tmp|work|Users|opt|mnt|usr|workspaces?)/[\w.-]")
TIMING = re.compile(r"\d\s?(?:ns|µs|us|ms|seconds?|[GTM]i?B/s|[GT]FLOPs?(?:/s)?|it/s)(?![\w/])")
RECORDED = re.compile(r"^(\w+) on .+, torch .+, triton .+, (\d{4}-\d\d-\d\d)$", flags=re.MULTILINE)  # ``bars``' first line
UNCOMPARED = {"nbval-ignore-output", "recorded-results"}  # the second: numbers read from benchmarks/results/


def rule(function):
    RULES.append(function)
    return function


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
def figures_have_captions(notebook):
    """After a figure drawn by code comes a Markdown cell that begins ``*Figure: `` and says what to notice in it."""
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None]):
        if cell.cell_type == "code" and shows_a_figure(cell):
            if after is None or after.cell_type != "markdown" or not re.match(r"\*Figure: .{20,}", after.source):
                yield f"{cell.id}: its figure is not followed by a Markdown cell that begins with '*Figure: '"


@rule
def images_have_alternative_text(notebook):
    """What an image looks like is stored with it, for whoever cannot see it."""
    if lesson_of(notebook) in NOT_YET_REWRITTEN:
        return
    for cell in code_cells(notebook):
        for output in cell.outputs:
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if "image/png" in output.get("data", {}) and len(alt) < 40:
                yield f"{cell.id}: the alternative text of its figure is {alt!r}, shorter than 40 characters"
    for cell in prose_cells(notebook):
        if re.search(r"!\[\s*\]\(", cell.source) or re.search(r"<img (?![^>]*\balt=[\"'][^\"']{10,})", cell.source):
            yield f"{cell.id}: an image without alternative text"


@rule
def cells_are_short(notebook):
    for cell in prose_cells(notebook):
        if prose_lines(cell.source) > 10:
            yield f"{cell.id}: {prose_lines(cell.source)} lines of prose, more than 10"
    for cell in code_cells(notebook):
        # An answer that is a whole program, a backward pass at the most: the release shows three lines of it.
        most = 110 if "### BEGIN SOLUTION" in cell.source else 40
        if len(cell.source.splitlines()) > most:
            yield f"{cell.id}: {len(cell.source.splitlines())} lines of code, more than {most}"


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
            for name, shown in RECORDED.findall("\n".join(texts(cell))):
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


def of_the_new_pattern(function):
    """A rule for the lessons of ``NEW_PATTERN`` that are rewritten."""

    def of_these(notebook):
        lesson = lesson_of(notebook)
        if lesson.startswith(NEW_PATTERN) and lesson not in NOT_YET_REWRITTEN:
            yield from function(notebook)

    of_these.__name__ = function.__name__
    return rule(of_these)


@rule
def minutes_are_those_of_the_formula(notebook):
    lesson = lesson_of(notebook)
    if not lesson or lesson in NOT_YET_REWRITTEN:
        return
    if stated_minutes(notebook) != minutes(notebook):
        yield f"its title states {stated_minutes(notebook)} minutes, the formula gives {minutes(notebook)}"
    if lesson.startswith(NEW_PATTERN) and minutes(notebook) > 60:
        yield f"it takes {minutes(notebook)} minutes, more than 60"


@of_the_new_pattern
def a_lesson_is_short(notebook):
    for what, count, most in (
        ("words of prose", prose_words(notebook), 2300),
        ("lines of code shown", code_lines(notebook), 250),
    ):
        if count > most:
            yield f"{count} {what}, more than {most}"


@of_the_new_pattern
def a_lesson_has_few_cells(notebook):
    if len(notebook.cells) > 50:
        yield f"{len(notebook.cells)} cells, more than 50"


@of_the_new_pattern
def opens_with_a_question(notebook):
    title, prose = notebook.cells[0], prose_cells(notebook)
    if title.id != "title" or "Afterwards you can" not in title.source:
        yield "its first cell is not `title`, with what you can do afterwards"
    equation = next(
        (i for i, c in enumerate(prose) if re.search(r"\$\$|\\begin\{", without(c.source, "```.*?```"))), 99
    )
    asked = next((i for i, c in enumerate(prose) if i and "?" in without(c.source, r"\]\([^)]*\)")), 99)
    if asked == 99 or equation <= asked:
        yield "no question stands before the first equation"


@of_the_new_pattern
def steps_are_counted(notebook):
    steps = [int(n) for c in prose_cells(notebook) for n in re.findall(r"^## Step (\d+): ", c.source, re.MULTILINE)]
    if not steps or steps != list(range(1, len(steps) + 1)):
        yield f"its steps, `## Step N: …`, are numbered {steps}"


@of_the_new_pattern
def ends_with_its_symbols(notebook):
    """The table of symbols, where there are any, is the last cell and the only one; before it stands what you can do now."""

    def lists_symbols(cell):
        return re.search(r"^ *\|[^|]*symbol", cell.source, flags=re.MULTILINE | re.IGNORECASE)

    *before, last = prose_cells(notebook)
    if any("$" in cell.source for cell in before) and (notebook.cells[-1] is not last or not lists_symbols(last)):
        yield f"{notebook.cells[-1].id}: the last cell is not the table of symbols, whose header names the symbol"
    yield from (f"{cell.id}: a table of symbols before the last cell" for cell in before if lists_symbols(cell))
    if not any(re.search(r"You can now", cell.source) for cell in prose_cells(notebook)):
        yield 'nothing says what "You can now" do'


@rule
def learners_fill_at_least_three_cells(notebook):
    if not lesson_of(notebook) or lesson_of(notebook) in NOT_YET_REWRITTEN:
        return
    if len(turns(notebook)) < 3:
        yield f'{len(turns(notebook))} cells "Your turn", fewer than three'
    for before, cell, after in named(notebook, "-turn"):
        text, solution = before[-1], (after or [before[-1]])[0]
        if text.id != f"{cell.id}-text" or not text.source.startswith("### Your turn"):
            yield f"{cell.id}: the cell before it is not {cell.id}-text that begins with '### Your turn'"
        if solution.id != f"{cell.id}-solution" or not solution.source.startswith(
            "<details><summary>Answer</summary>\n\n"
        ):
            yield f"{cell.id}: the cell after it is not {cell.id}-solution, a block <details><summary>Answer</summary>"
        stubs = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Constant) and n.value is ...]
        if not 1 <= len(stubs) <= 6:
            yield f"{cell.id}: {len(stubs)} places to fill, `...`, not 1 to 6"


@of_the_new_pattern
def learners_predict_at_least_twice(notebook):
    predictions = list(named(notebook, "-predict"))
    if len(predictions) < 2:
        yield f"{len(predictions)} predictions, fewer than two"
    for before, cell, after in predictions:
        topic = cell.id.removesuffix("-predict")
        if not cell.source.startswith("### Before you run this") or "?" not in cell.source:
            yield f"{cell.id}: does not begin with '### Before you run this', or asks nothing"
        if not after or after[0].id != f"{topic}-answer" or after[0].cell_type != "code":
            yield f"{cell.id}: the next cell is not {topic}-answer, which answers it"
            continue
        answer, rest = after[0], [c for c in after[1:3] if not c.source.startswith("*Figure: ")]
        if not answer.metadata.get("jupyter", {}).get("outputs_hidden") or "hide-output" not in tags(answer):
            yield f"{answer.id}: its output is not stored collapsed (jupyter.outputs_hidden, and the tag hide-output)"
        if not rest or rest[0].id != f"{topic}-explained" or rest[0].cell_type != "markdown":
            yield f"{answer.id}: no {topic}-explained follows, which begins with what most people expect"
        lines = {line.strip() for text in texts(answer) for line in text.splitlines() if len(line.strip()) >= 12}
        above = "\n".join(c.source for c in [*before, cell] if c.cell_type == "markdown")
        yield from (f"{cell.id}: its answer, {line!r}, stands above it" for line in sorted(lines) if line in above)
        if "<details" in cell.source:
            yield f"{cell.id}: holds its answer; that comes after the cell that shows it"


@of_the_new_pattern
def captions_are_one_sentence(notebook):
    for cell in prose_cells(notebook):
        if cell.source.startswith("*Figure: "):
            caption = re.sub(r"\b(e\.g|i\.e|vs|cf)\.", "", cell.source.strip().removesuffix("*"))
            if re.search(r"[.!?][*_`)\"”]*\s+\S", caption):
                yield f"{cell.id}: a caption of more than one sentence; what the figure looks like belongs into its alt text"


PLOTTING = re.compile(
    r"\bstyle\.|\bplt\.|\bax(?:es)?(?:\.|\[)|\bmatplotlib\b|\.(?:plot|barh?|scatter|imshow|subplots|annotate)\("
)


@of_the_new_pattern
def plotting_code_is_not_shown(notebook):
    for cell in code_cells(notebook):
        found = PLOTTING.search(cell.source)
        if found and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            yield f"{cell.id}: shows plotting code, {found[0]!r}; it belongs into kernels.lab.drawings"


def state(path: Path, notebook, count: int) -> None:
    """Write the minutes into the title of the lesson at ``path`` and into its row of the README; no other byte changes."""
    stated = stated_minutes(notebook)
    path.write_text(path.read_text().replace(f"**{stated} minutes", f"**{count} minutes", 1))
    readme = path.parent.parent / "README.md"
    row = rf"(^\|.*\(notebooks/{re.escape(path.name)}\).*\| )\d+ \|$"
    readme.write_text(re.sub(row, rf"\g<1>{count} |", readme.read_text(), flags=re.MULTILINE))


def main() -> int:
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--state", action="store_true", help="write the minutes into the title and the README")
    options = parser.parse_args()
    NOT_YET_REWRITTEN.clear()
    failed = False
    for path in map(Path.resolve, options.notebooks):
        notebook = nbformat.read(path, as_version=4)
        if options.state and minutes(notebook) != stated_minutes(notebook):
            state(path, notebook, minutes(notebook))
            notebook = nbformat.read(path, as_version=4)
        sizes = f"{prose_words(notebook)} words, {code_lines(notebook)} lines of code, {len(notebook.cells)} cells"
        print(f"{path.name}: {minutes(notebook)} minutes ({sizes})")
        for one in RULES:
            for complaint in one(notebook):
                failed = True
                print(f"  {one.__name__}: {complaint}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
