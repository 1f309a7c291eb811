"""Lesson 00 in JupyterLab, as a learner meets it: opened in headless Chromium, Run All Cells, no error.

The picture to look at: build/lesson_00.png. `python -m tests.course.browser` takes pictures of any lesson's whole length.
"""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.course.browser import lab as browser
from tools.kernel_environment import ROOT

pytestmark = pytest.mark.browser

LESSON = "notebooks/00_start_here.ipynb"


@pytest.fixture
def lab(tmp_path):
    with browser.lab(tmp_path) as address:
        yield address


def store(path, *cells):
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=list(cells), metadata={"kernelspec": spec}), path)


def test_lesson_00_runs_to_its_end_without_an_error(lab):
    screenshot = ROOT / "build" / "lesson_00.png"
    cells = browser.run_all(lab, LESSON, screenshot=screenshot)
    stored = [c for c in json.loads((ROOT / LESSON).read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["id"] for cell in cells] == [cell["id"] for cell in stored if "".join(cell["source"]).strip()]
    assert browser.errors(cells) == {}
    assert screenshot.stat().st_size > 20_000
    print(f"\nlook at {screenshot}")


def test_an_error_is_seen(lab, tmp_path):
    cells = [
        new_code_cell("print('before')", id="before"),
        new_code_cell("1 / 0", id="bad"),
        new_code_cell("2", id="after"),
    ]
    store(tmp_path / "course" / "broken.ipynb", *cells)
    assert browser.errors(browser.run_all(lab, "broken.ipynb")) == {"bad": "ZeroDivisionError"}


def test_the_whole_length_is_photographed_in_both_themes(tmp_path):
    from PIL import Image

    with browser.lab(tmp_path, whole=True) as address:
        store(tmp_path / "course" / "long.ipynb", *(new_markdown_cell("# A\n\nb\n\n" * 9, id=f"c{i}") for i in range(9)))
        pages = {theme: tmp_path / theme for theme in browser.THEMES}
        browser.run_all(address, "long.ipynb", run=False, pages=pages)
    light, dark = (sorted(tmp_path.glob(f"{theme}_*.png")) for theme in browser.THEMES)
    assert len(light) == len(dark) > 1
    corners = [Image.open(shots[0]).convert("L").resize((1, 1)).getpixel((0, 0)) for shots in (light, dark)]
    assert corners[0] > 200 and corners[1] < 80
