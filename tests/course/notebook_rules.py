"""What every stored notebook keeps to: each rule is a generator of complaints about one notebook."""

import re

RULES = []
GENERATED_ID = re.compile(r"[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MACHINE_PATH = re.compile(r"(?<![\w./:~-])/(?:home|root|tmp|work|Users|opt|mnt|usr|workspaces?)/[\w.-]")
TIMING = re.compile(r"\d\s?(?:ns|µs|us|ms|seconds?|[GTM]i?B/s|[GT]FLOPs?(?:/s)?|it/s)(?![\w/])")
UNCOMPARED = {"nbval-ignore-output", "recorded-results"}  # the second: numbers read from benchmarks/results/


def rule(function):
    RULES.append(function)
    return function


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def prose_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "markdown"]


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def texts(cell):
    """Every text that the cell's outputs show."""
    for output in cell.outputs:
        yield output.get("text", "")
        yield "\n".join(output.get("traceback", []))
        yield from (value for kind, value in output.get("data", {}).items() if kind in ("text/plain", "text/html"))


def shows_a_figure(cell) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def prose_lines(source: str) -> int:
    """Lines to read, wrapped at 120; a list item is one, and tables, equations, code, hints and headings none."""
    for aside in (r"<details>.*?</details>", r"\$\$.*?\$\$", r"```.*?```", r"\\begin\{.*?\\end\{.*?\}"):
        source = re.sub(aside, "", source, flags=re.DOTALL)
    source = re.sub(r"^([*-] |\d+\. ).*(\n {2,}\S.*)*", "-", source, flags=re.MULTILINE)
    lines = [line for line in source.splitlines() if line.strip() and not re.match(r"\s*(\||#|---)", line)]
    return sum(-(-len(line) // 120) for line in lines)


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
def figures_have_alternative_text(notebook):
    """After a figure drawn by code comes a Markdown cell that begins ``*Figure: `` and says what it shows."""
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None]):
        if cell.cell_type == "code" and shows_a_figure(cell):
            if after is None or after.cell_type != "markdown" or not re.match(r"\*Figure: .{20,}", after.source):
                yield f"{cell.id}: its figure is not followed by a Markdown cell that begins with '*Figure: '"
    for cell in prose_cells(notebook):
        if re.search(r"!\[\s*\]\(", cell.source) or re.search(r"<img (?![^>]*\balt=[\"'][^\"']{10,})", cell.source):
            yield f"{cell.id}: an image without alternative text"


@rule
def cells_are_short(notebook):
    for cell in prose_cells(notebook):
        if prose_lines(cell.source) > 10:
            yield f"{cell.id}: {prose_lines(cell.source)} lines of prose, more than 10"
    for cell in code_cells(notebook):
        if len(cell.source.splitlines()) > 40:
            yield f"{cell.id}: {len(cell.source.splitlines())} lines of code, more than 40"


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
