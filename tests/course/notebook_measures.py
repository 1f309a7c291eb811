"""What stands in a notebook, and how long it is: words that are read, lines of code that are shown, minutes."""

import math
import re


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


def lesson_of(notebook) -> str:
    """The lesson's number, ``"03"``, from its title; empty for anything else."""
    found = re.match(r"# (\d\d) · ", notebook.cells[0].source)
    return found[1] if found else ""


def without(source: str, *asides: str) -> str:
    """Markdown without the parts that match any of the patterns."""
    for aside in asides:
        source = re.sub(aside, " ", source, flags=re.DOTALL | re.MULTILINE)
    return source


DETAILS, TABLE = r"<details>.*?</details>", r"^[ ]*\|.*?$"
ASIDE = (  # off the main path: what a reader may leave out, and what is for looking up
    r"<details><summary>Going further: .*?</details>",
    r"^## (?:Further reading|Symbols|If something goes wrong)$.*?(?=^## |\Z)",
)
UNREAD = (r"```.*?```", r"\$\$.*?\$\$", r"\\begin\{.*?\\end\{.*?\}", r"</?\w+[^>]*>")


def words(source: str) -> int:
    """Words of Markdown without its code blocks, displayed equations and tags; a formula or a link's text is read as is."""
    source = re.sub(r"\]\([^)]*\)", "]", without(source, *UNREAD))
    source = re.sub(r"\$[^$\n]+\$|`[^`\n]+`", "formula", source)
    return len(re.findall(r"\S*\w\S*", source))


def prose_words(notebook) -> int:
    """Words that are read in a row: all but those of tables and of collapsed blocks."""
    return sum(words(without(cell.source, DETAILS, TABLE)) for cell in prose_cells(notebook))


def code_lines(notebook) -> int:
    """Lines of code that are meant to be read: not blank, in no cell stored collapsed and in no collapsed block."""
    shown = [c.source for c in code_cells(notebook) if not c.metadata.get("jupyter", {}).get("source_hidden")]
    for cell in prose_cells(notebook):
        shown += re.findall(r"```python\n(.*?)```", without(cell.source, DETAILS), flags=re.DOTALL)
    return sum(bool(line.strip()) for source in shown for line in source.splitlines())


def minutes(notebook) -> int:
    """How long a lesson takes, from what stands in it, rounded up to five minutes.

    words / 120; + lines of code shown / 8; + 1.5 a boxed result, 1.5 a prediction ("Before you run this"), 8 a cell to
    fill ("Your turn"). These rates are those of readers who solved every turn. Words in collapsed answers count half;
    code blocks and displayed equations, blocks "Going further: …" and what is for looking up (``ASIDE``) not at all.
    """
    text = without("\n\n".join(cell.source for cell in prose_cells(notebook)), *ASIDE)
    read = words(without(text, DETAILS)) + words(" ".join(re.findall(DETAILS, text, flags=re.DOTALL))) / 2
    boxes = text.count(r"\boxed")
    predictions = len(re.findall(r"^[#*\s]*Before you run this", text, flags=re.MULTILINE))
    exact = read / 120 + code_lines(notebook) / 8 + 1.5 * (boxes + predictions) + 8 * len(turns(notebook))
    return 5 * math.ceil(exact / 5)


def stated_minutes(notebook) -> int | None:
    found = re.search(r"^\*\*(\d+) minutes", notebook.cells[0].source, flags=re.MULTILINE)
    return int(found[1]) if found else None


def named(notebook, ending: str):
    """(the cells before, the cell, the cells after) for each cell whose id ends so."""
    for i, cell in enumerate(notebook.cells):
        if cell.id.endswith(ending):
            yield notebook.cells[:i], cell, notebook.cells[i + 1 :]


def turns(notebook):
    return [cell for cell in code_cells(notebook) if cell.id.endswith("-turn")]
