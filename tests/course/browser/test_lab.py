"""The notebooks in JupyterLab, as a learner meets them: lesson 00 runs, figures have texts, nothing is wider than its cell.

The picture to look at: build/lesson_00.png. `python -m tests.course.browser` takes pictures of any lesson's whole length.
"""

import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.course.browser import lab as browser
from tools.kernel_environment import ROOT

pytestmark = pytest.mark.browser

LESSON = "notebooks/00_start_here.ipynb"
NOTEBOOKS = [str(path.relative_to(ROOT)) for path in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*/*.ipynb")]]
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


@pytest.fixture
def lab(tmp_path):
    with browser.lab(tmp_path) as address:
        yield address


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with browser.lab(folder, whole=True) as address:
        yield address, folder / "course"


def store(path, *cells):
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=list(cells), metadata={"kernelspec": spec}), path)


def test_lesson_00_runs_to_its_end_without_an_error(lab, tmp_path):
    screenshot = ROOT / "build" / "lesson_00.png"
    cells, _ = browser.run_all(lab, LESSON, width=1400, screenshot=screenshot)
    stored = [c for c in json.loads((ROOT / LESSON).read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["id"] for cell in cells] == [cell["id"] for cell in stored if "".join(cell["source"]).strip()]
    assert browser.errors(cells) == {}
    assert screenshot.stat().st_size > 20_000
    said = (tmp_path / "lab.log").read_text()  # in the terminal
    assert not re.search(r"^\[[IW] |WARNING", said, re.MULTILINE), said
    print(f"\nlook at {screenshot}")


def test_an_error_is_seen(lab, tmp_path):
    cells = [
        new_code_cell("print('before')", id="before"),
        new_code_cell("1 / 0", id="bad"),
        new_code_cell("2", id="after"),
    ]
    store(tmp_path / "course" / "broken.ipynb", *cells)
    assert browser.errors(browser.run_all(lab, "broken.ipynb")[0]) == {"bad": "ZeroDivisionError"}


def faults(address, notebook):
    _, found = browser.run_all(address, notebook, run=False, width=900)
    return {cell["id"]: (cell["mute"], cell["excess"]) for cell in found if cell["mute"] or cell["excess"]}


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS))
def test_figures_have_texts_and_all_fits_into_900_pixels(whole, notebook):
    assert faults(whole[0], notebook) == {}


def test_a_mute_figure_and_a_wide_formula_are_seen(whole):
    address, folder = whole
    text, long = "A dot that nobody would see without a text that says so.", "x + " * 60
    image = new_output("display_data", data={"text/html": f'<img src="{PIXEL}" alt="A dot.">'})
    described = new_output("display_data", data={"text/html": f'<img src="{PIXEL}" alt="{text}">'})
    cells = [new_code_cell("1", id="mute", outputs=[image]), new_code_cell("1", id="good", outputs=[described])]
    cells += [new_markdown_cell(f"$${long}x$$", id="wide"), new_markdown_cell("$$x + x$$", id="narrow")]
    store(folder / "faulty.ipynb", *cells)
    found = faults(address, "faulty.ipynb")
    assert list(found) == ["mute", "wide"] and found["mute"] == (1, 0) and found["wide"][1] > 100


def test_the_whole_length_is_photographed_in_both_themes(whole, tmp_path):
    from PIL import Image

    address, folder = whole
    store(folder / "long.ipynb", *(new_markdown_cell("# A\n\nb\n\n" * 9, id=f"c{i}") for i in range(9)))
    pages = {theme: tmp_path / theme for theme in browser.THEMES}
    browser.run_all(address, "long.ipynb", run=False, pages=pages)
    light, dark = (sorted(tmp_path.glob(f"{theme}_*.png")) for theme in browser.THEMES)
    assert len(light) == len(dark) > 1
    corners = [Image.open(shots[0]).convert("L").resize((1, 1)).getpixel((0, 0)) for shots in (light, dark)]
    assert corners[0] > 200 and corners[1] < 80
