"""Every stored notebook keeps to the rules, the README's table names every lesson, and every link leads somewhere."""

import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.course import notebook_rules as rules
from tools.kernel_environment import ROOT
from tools.refresh import lessons_and_solutions

NOTEBOOKS = lessons_and_solutions()
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", flags=re.DOTALL)  # in which `kernel[grid](...)` is no link


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_stored_notebook_keeps_to_the_rule(path, rule):
    assert list(rule(nbformat.read(path, as_version=4))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_smaller_than_a_megabyte(path):
    assert path.stat().st_size < 1e6


@pytest.mark.share(9)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_figures_have_their_texts_on_the_page_that_nbconvert_makes(path):
    page, _ = HTMLExporter().from_filename(str(path))
    images = re.findall("<img [^>]*>", page)
    assert [image for image in images if not re.search('alt="[^"]{40}', image)] == []
    assert len(images) >= path.read_text().count('"image/png": "')


def lessons_in(readme: str) -> list[str]:
    """The notebooks that the rows of the README's table link to, in its order."""
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    return re.findall(r"\(notebooks/(\d\d_\w+\.ipynb)\)", "\n".join(rows))


def test_the_readmes_table_names_every_lesson_and_no_other():
    assert lessons_in((ROOT / "README.md").read_text()) == sorted(p.name for p in ROOT.glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_the_readmes_table_states_a_lessons_minutes(path):
    lesson = nbformat.read(path, as_version=4)
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if f"(notebooks/{path.name})" in line)
    stated = re.search(r"^\*\*(\d+) minutes", lesson.cells[0].source, flags=re.MULTILINE)
    assert row.rstrip(" |").split("|")[-1].strip() == stated[1]


@pytest.mark.parametrize("modules", [[], ["__init__"], ["__init__", "check"]], ids=["none", "another", "with check"])
def test_the_readme_knows_what_a_first_cell_says_in_another_environment(tmp_path, modules):
    for name in modules:  # an unrelated package; Hugging Face's had a module `check` in some versions
        (tmp_path / "kernels").mkdir(exist_ok=True)
        (tmp_path / "kernels" / f"{name}.py").write_text("")
    cells = [
        next(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        for path in [*NOTEBOOKS, *sorted(ROOT.glob("exercises/*/*.ipynb"))]
    ]
    code = """
import sys
sys.path.insert(0, sys.argv[1])
for cell in eval(sys.stdin.read()):
    for name in [name for name in sys.modules if name.startswith("kernels")]:
        del sys.modules[name]
    try:
        exec(cell, {})
    except Exception as error:
        print(str(error).split(" (")[0])
"""
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path)]  # of what is installed it sees nothing
    done = subprocess.run(command, input=repr(cells), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = [re.sub(r"(?<=name )'\w+'|(?<=kernels\.)\w+", "…", line) for line in done.stdout.splitlines()]
    assert len(said) == len(cells) and all(f"`{words}`" in (ROOT / "README.md").read_text() for words in said), set(said)


def test_the_readmes_pull_brings_what_is_new_and_keeps_a_learners_lines(tmp_path):
    """Both have changed what stands between the same lines."""
    command = re.search(r"`git (pull .*?)`", (ROOT / "README.md").read_text())[1].split()
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_MERGE_AUTOEDIT": "no"}
    nobody |= {f"GIT_{role}_{what}": "x@x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(folder, *arguments):
        subprocess.run(["git", "-C", folder, *arguments], env=os.environ | nobody, check=True, capture_output=True)

    def write(folder, turn, title):
        (folder / "lesson.ipynb").write_text(f'{{"turn": [\n"{turn}"],\n"text":\n"the same",\n"title":\n"{title}"}}\n')
        git(folder, "add", "lesson.ipynb")
        git(folder, "commit", "-m", "changed")

    git(tmp_path, "init", "-b", "main", theirs)
    write(theirs, "...", "old")
    git(tmp_path, "clone", theirs, mine)
    git(mine, "switch", "-c", "mine")
    write(mine, "tl.load", "old")
    write(theirs, "... # a hint", "new")
    git(mine, *command)
    assert json.loads((mine / "lesson.ipynb").read_text()) == {"turn": ["tl.load"], "text": "the same", "title": "new"}


def documents():
    yield from ((path, path.read_text()) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
    for path in [*NOTEBOOKS, *sorted(ROOT.glob("exercises/*/*.ipynb"))]:
        cells = nbformat.read(path, as_version=4).cells
        yield path, "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize(("path", "text"), list(documents()), ids=lambda value: getattr(value, "name", ""))
def test_every_link_inside_the_repository_leads_somewhere(path, text):
    targets = [target.split("#")[0] for target in LINK.findall(CODE.sub("", text))]
    local = [target for target in targets if target and not re.match(r"\w+:", target)]
    assert [target for target in local if not (path.parent / target).exists()] == []


def test_a_document_reads_well_without_the_site():
    """What only Sphinx understands is docs/site's."""
    assert [path.name for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if "```{" in path.read_text()] == []


def code(source="1", *outputs, id="cell", count=1, tags=()):
    return new_code_cell(source, id=id, execution_count=count, outputs=list(outputs), metadata={"tags": list(tags)})


def prose(source, id="words"):
    return new_markdown_cell(source, id=id)


def text(value):
    return new_output("stream", name="stdout", text=value)


def folded(shown, **of):
    cell = code("f()", text(shown), **of)
    cell.metadata["jupyter"] = {"outputs_hidden": True}
    return cell


ALT = "Two rows of sixteen boxes; program 0 and program 1 are written in eight of them each."


def drawn(**metadata):
    shown = f'<img src="data:image/png;base64,/9ns=2" alt="{metadata.get("alt", "")}">'
    data = {"image/png": "", "text/html": shown}
    return new_output("display_data", data=data, metadata={"image/png": metadata} if metadata else {})


def without_html(figure):
    del figure.data["text/html"]
    return figure


def predicted(**changed):
    """A prediction's cells; ``changed`` holds others in their places, or None for none."""
    cells = {
        "question": prose("### Before you run this\n\n*How many?*", id="sum-predict"),
        "heading": prose("#### What it prints", id="sum-shown"),
        "answer": folded("what came out\n7", id="sum-answer", count=5),
        "caption": prose("*Figure: seven boxes.*", id="sum-figure"),
        "words": prose("<details><summary>Answer</summary>\n\nSeven.\n\n</details>", id="sum-explained"),
        "next": prose("## Step 2", id="step-2"),
        "later": prose("<details><summary>Answer</summary>\n\nEight.\n\n</details>", id="more-explained"),
    }
    return [cell for cell in (cells | changed).values() if cell]


FIGURE, BLIND, MUTE = drawn(alt=ALT), drawn(), drawn(alt="A plot.")
BROKEN = [
    ("ids_are_unique_and_meaningful", [code(id="4f2a99c1")]),
    ("ids_are_unique_and_meaningful", [code(id="b1f7a9de-0c1f-4d0a-9d3a-1f2e3d4c5b6a")]),
    ("ids_are_unique_and_meaningful", [code(id="same"), prose("x", id="same")]),
    ("executed_from_top_to_bottom", [code(count=None)]),
    ("executed_from_top_to_bottom", [code(id="one", count=2), code(id="two", count=1)]),
    ("no_errors_but_those_announced", [code("1/0", new_output("error", ename="E", evalue="", traceback=[]))]),
    ("images_have_alternative_text", [prose("![](picture.png)")]),
    ("images_have_alternative_text", [prose('<img src="picture.png">')]),
    ("images_have_alternative_text", [code("plot()", BLIND)]),
    ("images_have_alternative_text", [code("plot()", MUTE)]),
    ("images_have_alternative_text", [code("plot()", without_html(drawn(alt=ALT)))]),
    ("nothing_of_the_authors_machine", [code("open('/home/ada/data.json')")]),
    ("nothing_of_the_authors_machine", [code("print(path)", text("in /Users/ada/course"))]),
    ("a_folded_output_keeps_its_answer", [folded("not zero: 15")]),
    ("a_folded_output_keeps_its_answer", [folded("all right: False")]),
    ("a_prediction_is_not_answered_unasked", predicted(heading=None)),
    ("a_prediction_is_not_answered_unasked", predicted(heading=prose("### What it prints", id="sum-shown"))),
    ("a_prediction_is_not_answered_unasked", predicted(heading=prose("What it prints:", id="sum-shown"))),
    ("a_prediction_is_not_answered_unasked", predicted(answer=code("f()", text("7"), id="sum-answer"))),
    ("a_prediction_is_not_answered_unasked", predicted(words=prose("Seven.", id="sum-explained"))),
    ("a_prediction_is_not_answered_unasked", predicted(words=None)),
    ("no_level_of_headings_is_left_out", [prose("# A lesson"), prose("## A step"), prose("#### What it prints")]),
    ("timings_are_not_compared", [code("bench()", text("0.123 ms"))]),
    ("timings_are_not_compared", [code("bench()", text("4.1 TB/s"))]),
    ("output_lines_fit", [code("print(x)", text("fits\n" + "x" * 81))]),
    ("output_lines_fit", [code("x", new_output("execute_result", data={"text/plain": "x" * 81}))]),
]
RAISED = new_output("error", ename="E", evalue="", traceback=["x" * 81])
SOUND = [
    prose("# A lesson\n\n## A step\n\n```\n#### no heading\n```", id="title"),
    code("plot()", FIGURE, id="plot", count=1),
    code("bench()", text("0.123 ms"), id="time", count=2, tags=["nbval-ignore-output"]),
    code("1/0", RAISED, id="bad", count=3, tags=["raises-exception"]),
    code("x.shape", text("(2, 37, 20), 3 masks, https://example.org/home/x, ../kernels/lab"), id="shape", count=4),
    *predicted(),
    code("print(x)", text("x" * 80), id="wide", count=6),
    prose("![A row of eight boxes, the first four shaded](boxes.png)", id="boxes"),
]


def notebook(cells):
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nb = new_notebook(metadata={"kernelspec": spec, "language_info": {"name": "python"}})
    nb.cells = cells  # past nbformat's validation, which would mend what a rule shall find
    return nb


@pytest.mark.parametrize(("name", "cells"), BROKEN)
def test_a_rule_sees_what_it_is_for(name, cells):
    complaints = {rule.__name__: list(rule(notebook(cells))) for rule in rules.RULES}
    assert complaints[name] != []


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_lets_a_sound_notebook_pass(rule):
    assert list(rule(notebook(SOUND))) == []


def test_a_record_that_was_made_again_is_seen():
    nb = nbformat.read(ROOT / "notebooks" / "31_score_mods.ipynb", as_version=4)
    nb.cells += nbformat.read(ROOT / "notebooks" / "41_conv_wgrad.ipynb", as_version=4).cells
    cells = [cell for cell in nb.cells if cell.id in ("speed-bars", "speed-odd")]
    assert len(cells) == 2
    for cell in cells:
        said = cell.outputs[0]
        said.text = re.sub(r"\d{4}-\d\d-\d\d$", "2025-12-31", said.text, count=1, flags=re.MULTILINE)
    assert len(list(rules.records_are_the_ones_that_are_there(nb))) == 2


def test_metadata_that_says_who_and_when_is_seen():
    nb = notebook([code()])
    nb.metadata["language_info"]["version"] = "3.11.7"
    nb.metadata["kernelspec"]["name"] = "my-env"
    nb.cells[0].metadata["execution"] = {"iopub.execute_input": "2026-01-01"}
    assert len(list(rules.nothing_of_the_authors_machine(nb))) == 3
