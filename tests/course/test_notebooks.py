"""Every stored notebook keeps to the rules, the README's table names every lesson, and every link leads somewhere."""

import base64
import io
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from tests.course import notebook_measures as measures
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
    if path.name[:2] not in rules.NOT_YET_REWRITTEN:
        assert row.rstrip(" |").split("|")[-1].strip() == str(measures.stated_minutes(lesson))


def test_the_lessons_that_are_not_yet_rewritten_are_lessons():
    assert rules.NOT_YET_REWRITTEN <= {path.name[:2] for path in ROOT.glob("notebooks/*.ipynb")}


def test_the_tables_rows_are_read():
    table = "| [Start](notebooks/00_start_here.ipynb) | … |\n| later | `05_x` |\nnot a row: (notebooks/09_no.ipynb)"
    assert lessons_in(table) == ["00_start_here.ipynb"]


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


def code(source="1", *outputs, id="cell", count=1, tags=()):
    return new_code_cell(source, id=id, execution_count=count, outputs=list(outputs), metadata={"tags": list(tags)})


def prose(source, id="words"):
    return new_markdown_cell(source, id=id)


def text(value):
    return new_output("stream", name="stdout", text=value)


def folded(shown):
    cell = code("f()", text(shown))
    cell.metadata["jupyter"] = {"outputs_hidden": True}
    return cell


ALT = "Two rows of sixteen boxes; program 0 and program 1 are written in eight of them each."


def drawn(image, **metadata):
    buffer = io.BytesIO()
    image.save(buffer, "png")
    data = {"image/png": base64.b64encode(buffer.getvalue()).decode()}
    return new_output("display_data", data=data, metadata={"image/png": metadata} if metadata else {})


FIGURE = drawn(Image.new("P", (1, 1)), alt=ALT)
BLIND = drawn(Image.new("P", (1, 1)))
MUTE = drawn(Image.new("P", (1, 1)), alt="A plot.")
CAPTION = "*Figure: two programs, each reading eight neighbouring elements.*"
BROKEN = [
    ("ids_are_unique_and_meaningful", [code(id="4f2a99c1")]),
    ("ids_are_unique_and_meaningful", [code(id="b1f7a9de-0c1f-4d0a-9d3a-1f2e3d4c5b6a")]),
    ("ids_are_unique_and_meaningful", [code(id="same"), prose("x", id="same")]),
    ("executed_from_top_to_bottom", [code(count=None)]),
    ("executed_from_top_to_bottom", [code(id="one", count=2), code(id="two", count=1)]),
    ("no_errors_but_those_announced", [code("1/0", new_output("error", ename="E", evalue="", traceback=[]))]),
    ("figures_have_captions", [code("plot()", FIGURE)]),
    ("figures_have_captions", [code("plot()", FIGURE), prose("Some other words that are long enough.")]),
    ("figures_have_captions", [code("plot()", FIGURE), prose("*Figure: x*")]),
    ("images_have_alternative_text", [prose("![](picture.png)")]),
    ("images_have_alternative_text", [prose('<img src="picture.png">')]),
    ("images_have_alternative_text", [code("plot()", BLIND), prose(CAPTION)]),
    ("images_have_alternative_text", [code("plot()", MUTE), prose(CAPTION)]),
    ("cells_are_short", [prose("A line.\n" * 11)]),
    ("cells_are_short", [prose("word " * 300)]),
    ("cells_are_short", [prose("* item\n" * 11)]),
    ("cells_are_short", [code("x = 1\n" * 41)]),
    ("nothing_of_the_authors_machine", [code("open('/home/ada/data.json')")]),
    ("nothing_of_the_authors_machine", [code("print(path)", text("in /Users/ada/course"))]),
    ("a_folded_output_keeps_its_answer", [folded("not zero: 15")]),
    ("a_folded_output_keeps_its_answer", [folded("all right: False")]),
    ("timings_are_not_compared", [code("bench()", text("0.123 ms"))]),
    ("timings_are_not_compared", [code("bench()", text("4.1 TB/s"))]),
]
SOUND = [
    prose(
        "# A lesson\n\n"
        + "| a | b |\n" * 20
        + "$$\ny = x\n$$\n"
        + "```python\n"
        + "x\n" * 20
        + "```\n"
        + "* An item\n  of two lines\n" * 7,
        id="title",
    ),
    code("plot()", FIGURE, id="plot", count=1),
    prose(CAPTION, id="plot-caption"),
    code("bench()", text("0.123 ms"), id="time", count=2, tags=["nbval-ignore-output"]),
    code("1/0", new_output("error", ename="E", evalue="", traceback=[]), id="bad", count=3, tags=["raises-exception"]),
    code("x.shape", text("(2, 37, 20), 3 masks, https://example.org/home/x, ../kernels/lab"), id="shape", count=4),
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


# A lesson of the new pattern in miniature: what differs from it in one cell breaks the rule named.
TITLE = """# 09 · A lesson

A promise.

**{} minutes · after lesson [00](00_start_here.ipynb)**

Afterwards you can

* fill three cells;
* predict twice."""
HIDDEN = {"jupyter": {"outputs_hidden": True}, "tags": ["hide-output"]}
TURN = "def f(x):\n    return ...  # twice x\n\ncheck.step('09-{}', f)"
ANSWER = "<details><summary>Answer</summary>\n\n```python\ndef f(x):\n    return 2 * x\n```\n\nTwice.\n</details>"


def turn(topic):
    return [
        prose("### Your turn\n\nDouble it.", id=f"{topic}-turn-text"),
        code(TURN.format(topic), id=f"{topic}-turn"),
        prose(ANSWER, id=f"{topic}-turn-solution"),
    ]


def prediction(topic):
    answer = code("f(3)", text(f"six, by the way of {topic}"), id=f"{topic}-answer")
    answer.metadata.update(HIDDEN)
    return [
        prose("### Before you run this\n\nHow many?", id=f"{topic}-predict"),
        answer,
        prose("Most people expect five.", id=f"{topic}-explained"),
    ]


def lesson(minutes=35, **changed):
    """The lesson in miniature with cells replaced by id, `_` for `-`; None leaves one out."""
    cells = [
        prose(TITLE.format(minutes), id="title"),
        prose("Why is the second sum twice the first?", id="question"),
        code("import kernels", id="setup"),
        prose("## Step 1: one\n\n$$\\boxed{y = 2x}$$", id="step-1"),
        *turn("one"), *turn("two"), *turn("three"), *prediction("first"), *prediction("second"),
        prose("## Step 2: two", id="step-2"),
        code("drawings.machine()", FIGURE, id="plot"),
        prose(CAPTION, id="plot-caption"),
        prose("You can now\n\n* double;\n* halve.", id="end"),
        prose("| symbol | meaning |\n|---|---|\n| x | a number |", id="symbols"),
    ]  # fmt: skip
    changed = {id.replace("_", "-"): cell for id, cell in changed.items()}
    assert set(changed) <= {cell.id for cell in cells}
    cells = [changed.get(cell.id, cell) for cell in cells]
    return notebook([cell for cell in cells if cell is not None])


def hidden(source, id):
    cell = code(source, id=id)
    cell.metadata["jupyter"] = {"source_hidden": True}
    return cell


BROKEN_LESSONS = [
    ("minutes_are_those_of_the_formula", lesson(minutes=20)),
    ("minutes_are_those_of_the_formula", lesson(title=prose(TITLE.replace("**{} minutes · ", "**"), id="title"))),
    ("minutes_are_those_of_the_formula", lesson(minutes=65, question=prose("Why? " * 7300, id="question"))),
    ("a_lesson_is_short", lesson(question=prose("Why? " * 2301, id="question"))),
    ("a_lesson_is_short", lesson(setup=code("x = 1\n" * 240, id="setup"))),
    ("a_lesson_has_few_cells", notebook([*lesson().cells, *(prose("So.", id=f"so-{i}") for i in range(50))])),
    ("opens_with_a_question", lesson(question=None)),
    ("opens_with_a_question", lesson(question=prose("$$y = x$$ Why?", id="question"))),
    ("opens_with_a_question", lesson(title=prose("# 09 · A lesson", id="title"))),
    ("steps_are_counted", lesson(step_2=prose("## Step 3: two", id="step-2"))),
    ("ends_with_its_symbols", lesson(symbols=None)),
    ("ends_with_its_symbols", lesson(question=prose("Why?\n\n| Symbol | what |\n|---|---|", id="question"))),
    ("ends_with_its_symbols", lesson(end=prose("The end.", id="end"))),
    ("learners_fill_at_least_three_cells", lesson(two_turn=None)),
    ("learners_fill_at_least_three_cells", lesson(two_turn_text=None)),
    ("learners_fill_at_least_three_cells", lesson(two_turn_text=prose("Your turn", id="two-turn-text"))),
    ("learners_fill_at_least_three_cells", lesson(two_turn_solution=prose("Twice.", id="two-turn-solution"))),
    ("learners_fill_at_least_three_cells", lesson(two_turn=code("f = 3\ncheck.step('09-two', f)", id="two-turn"))),
    ("learners_predict_at_least_twice", lesson(first_predict=None)),
    ("learners_predict_at_least_twice", lesson(first_predict=prose("Guess?", id="first-predict"))),
    ("learners_predict_at_least_twice", lesson(first_answer=None)),
    ("learners_predict_at_least_twice", lesson(first_answer=code("f(3)", id="first-answer"))),
    ("learners_predict_at_least_twice", lesson(first_explained=None)),
    ("learners_predict_at_least_twice", lesson(question=prose("Why six, by the way of first?", id="question"))),
    ("captions_are_one_sentence", lesson(plot_caption=prose(CAPTION[:-1] + " Colour is a program.*", id="plot-caption"))),
    ("plotting_code_is_not_shown", lesson(plot=code("figure, axes = style.picture(3, 2)", FIGURE, id="plot"))),
    ("plotting_code_is_not_shown", lesson(plot=code("x.plot(y)", FIGURE, id="plot"))),
    ("plotting_code_is_not_shown", lesson(plot=code("axes[0, 0].bar(y)", FIGURE, id="plot"))),
]
SOUND_LESSONS = [
    lesson(),
    lesson(setup=hidden("import matplotlib\n" * 300, id="setup")),
    lesson(setup=code("t.picture('x_ptr')\nmax(t.axes)", id="setup")),
]
LESSON_RULES = sorted({name for name, _ in BROKEN_LESSONS})


@pytest.mark.parametrize(("name", "broken"), BROKEN_LESSONS)
def test_a_rule_for_lessons_sees_what_it_is_for(name, broken):
    complaints = {rule.__name__: list(rule(broken)) for rule in rules.RULES}
    assert complaints[name] != []


@pytest.mark.parametrize("sound", SOUND_LESSONS)
@pytest.mark.parametrize("rule", LESSON_RULES)
def test_a_rule_for_lessons_lets_a_sound_one_pass(rule, sound):
    (rule,) = (one for one in rules.RULES if one.__name__ == rule)
    assert list(rule(sound)) == []


def test_the_rules_of_the_new_pattern_hold_for_its_parts_alone(monkeypatch):
    def complaints(number):
        broken = lesson(symbols=None, title=prose(TITLE.format(20).replace("# 09", f"# {number}"), id="title"))
        return {rule.__name__ for rule in rules.RULES if list(rule(broken))} & set(LESSON_RULES)

    assert complaints("09") == {"minutes_are_those_of_the_formula", "ends_with_its_symbols"}
    assert complaints("99") == {"minutes_are_those_of_the_formula"}
    monkeypatch.setattr(rules, "NOT_YET_REWRITTEN", {"09"})
    assert complaints("09") == set()


@pytest.mark.parametrize(
    ("broken", "name", "elsewhere"),
    [
        ({"two_turn": None}, "learners_fill_at_least_three_cells", 1),
        ({"question": prose("Why? " * 2301, id="question")}, "a_lesson_is_short", 0),
        ({"question": prose("Why? " * 7300, id="question")}, "minutes_are_those_of_the_formula", 0),
    ],
)
def test_what_holds_for_lessons_of_other_parts(broken, name, elsewhere):
    def complaints(number):
        title = prose(TITLE.format(85).replace("# 09", f"# {number}"), id="title")
        these = (rule for rule in rules.RULES if rule.__name__ == name)
        return [c for rule in these for c in rule(lesson(title=title, **broken)) if "its title states" not in c]

    assert len(complaints("99")) == elsewhere
    assert [len(complaints(f"{part}9")) for part in rules.NEW_PATTERN] == [1] * len(rules.NEW_PATTERN)


def test_minutes_are_counted_from_what_is_read():
    text = "word " * 120 + "```python\nread\n```\n$$ not = read $$ <details>" + "half " * 240 + "</details>"
    nb = notebook([prose(text + "\n\n| a | table |", id="title"), code("a = 1\n\nb = 2\n" * 8), hidden("c\n" * 99, "h")])
    assert measures.prose_words(nb) == 120 and measures.code_lines(nb) == 17
    assert measures.minutes(nb) == 5  # 1 + 1 + 2.1 for the code, and a little for the table
    nb.cells += [prose("$$\\boxed{x}$$ \\boxed", id="box"), prose("**Before you run this.** How many?", id="guess")]
    assert measures.minutes(nb) == 10  # 4.5 more
    nb.cells.append(code("...", id="one-turn"))
    assert measures.minutes(nb) == 20  # 8 more
    nb.cells.append(prose("```python\na\n\nb\n```\n<details>\n```python\nc\n```\n</details>", id="excerpt"))
    assert measures.code_lines(nb) == 20  # the turn's line, and two of the excerpt that is no answer


def test_minutes_leave_out_what_is_off_the_main_path():
    aside = "<details><summary>Going further: more</summary>\n\n" + "word " * 1200 + "\n</details>"
    lists = "## Further reading\n\n" + "word " * 600 + "\n\n## Symbols\n\n" + "| a | b |\n" * 300
    nb = notebook([prose("word " * 240, id="title"), prose(aside, id="aside"), prose(lists, id="symbols")])
    assert measures.minutes(nb) == 5
    nb.cells.append(prose("## The end\n\n" + "word " * 600, id="end"))
    assert measures.minutes(nb) == 10


def test_a_record_that_was_made_again_is_seen():
    nb = nbformat.read(ROOT / "notebooks" / "25_chunked_gates_and_training.ipynb", as_version=4)
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
