"""`make refresh` stores what a cell prints, and leaves no diff where nothing changed."""

import base64
import io

import nbformat
import pytest
from jupyter_client.provisioning import local_provisioner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import forked_kernels, refresh

FROM_NOTHING = local_provisioner.launch_kernel
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([0, {y}])\nplt.show()"


def cell(id, source, *tags, **rest):
    return new_code_cell(source, id=id, metadata={"tags": list(tags)} if tags else {}, **rest)


@pytest.fixture(scope="module")
def parent():
    yield
    forked_kernels.end()


@pytest.fixture(autouse=True)
def kernels_start_at_once(parent, monkeypatch):
    """Forked, as in `make test`; one test takes this back, and starts its own as `make refresh` does."""
    monkeypatch.setattr(local_provisioner, "launch_kernel", forked_kernels.launch_kernel)


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "07_test.ipynb"

    def write(*cells, **metadata):
        nbformat.write(new_notebook(cells=list(cells), metadata=metadata), path)
        return path

    return write


def run(path, *arguments):
    code = refresh.main([str(path), *arguments])
    return code, {c.id: c for c in nbformat.read(path, as_version=4).cells}


def edit(path, id, source):
    nb = nbformat.read(path, as_version=4)
    next(c for c in nb.cells if c.id == id).source = source
    nbformat.write(nb, path)


def png(draw) -> bytes:
    from PIL import Image

    image = Image.new("RGB", (200, 100), "white")
    draw(image)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_a_second_refresh_changes_no_byte(notebook, capfd):
    path = notebook(
        new_markdown_cell("Words.", id="words"),
        cell("sum", "import random\nprint('two lines')\nprint('of text')\n1 + 1"),
        cell("figure", FIGURE.format(y=1)),
        cell("noise", "print(random.random())", refresh.IGNORED),
        cell("warn", "import warnings\nwarnings.warn('careful')"),
        cell("address", "object()"),
    )
    code, cells = run(path)
    assert code == 0 and "stored" in capfd.readouterr().out
    first = path.read_bytes()
    assert [o.output_type for o in cells["sum"].outputs] == ["stream", "execute_result"]
    assert cells["sum"].execution_count == 1 and cells["sum"].outputs[0].text == "two lines\nof text\n"
    assert "image/png" in cells["figure"].outputs[0].data
    assert run(path)[0] == 0 and "unchanged" in capfd.readouterr().out
    assert path.read_bytes() == first


def test_who_and_when_are_not_stored(notebook):
    path = notebook(
        cell("plot", FIGURE.format(y=1)), kernelspec={"name": "mine", "display_name": "Mine", "language": "python"}
    )
    _, cells = run(path)
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3" and "version" not in nb.metadata.language_info
    assert "execution" not in cells["plot"].metadata
    assert b"Software" not in base64.b64decode(cells["plot"].outputs[0].data["image/png"])


def test_the_kernel_works_in_the_notebooks_folder_with_this_checkout(notebook, monkeypatch):
    monkeypatch.setattr(local_provisioner, "launch_kernel", FROM_NOTHING)
    path = notebook(
        cell("folder", "import os\nprint(os.path.basename(os.getcwd()))"),
        cell(
            "ours",
            "import pathlib\nimport kernels\nprint(pathlib.Path(kernels.__file__).parent.parent / 'pyproject.toml')",
        ),
    )
    _, cells = run(path)
    assert cells["folder"].outputs[0].text == path.parent.name + "\n"
    assert cells["ours"].outputs[0].text == f"{refresh.ROOT}/pyproject.toml\n"


def test_an_ignored_output_is_kept_until_its_source_changes(notebook):
    path = notebook(cell("noise", "import random\nprint(random.random())", refresh.IGNORED))
    kept = run(path)[1]["noise"].outputs
    assert run(path)[1]["noise"].outputs == kept
    retaken = run(path, "--retake")[1]["noise"].outputs
    assert retaken != kept
    edit(path, "noise", "import random\nprint('now', random.random())")
    assert run(path)[1]["noise"].outputs[0].text.startswith("now")


def test_an_output_not_ignored_is_always_taken(notebook):
    path = notebook(cell("noise", "import random\nprint(random.random())"))
    assert run(path)[1]["noise"].outputs != run(path)[1]["noise"].outputs


@pytest.mark.thorough
def test_a_figure_that_looks_the_same_keeps_its_bytes_and_one_that_does_not_is_stored(notebook):
    path = notebook(cell("plot", FIGURE.format(y=1)))
    run(path)
    from PIL import Image

    nb = nbformat.read(path, as_version=4)
    data = nb.cells[0].outputs[0].data
    buffer = io.BytesIO()  # the same pixels, other bytes
    Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).save(buffer, "PNG", compress_level=1)
    same_pixels = base64.b64encode(buffer.getvalue()).decode()
    assert same_pixels != data["image/png"]
    data["image/png"] = same_pixels
    nbformat.write(nb, path)
    assert run(path)[1]["plot"].outputs[0].data["image/png"].strip() == same_pixels
    edit(path, "plot", FIGURE.format(y=-1))
    assert run(path)[1]["plot"].outputs[0].data["image/png"].strip() != same_pixels


OURS = """from kernels.lab import style
figure, axes = style.picture(2, 1)
axes[0, 0].plot([0, 1])
figure.alt = {alt!r}
figure"""


@pytest.mark.thorough
def test_what_a_figure_looks_like_is_stored_with_it_even_where_pyplot_draws_figures(notebook):
    before = "import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.show()"
    path = notebook(cell("pyplot", before), cell("ours", OURS.format(alt="A line from 0 to 1.")))
    (output,) = run(path)[1]["ours"].outputs
    assert output.metadata["image/png"]["alt"] == "A line from 0 to 1."
    png = output.data["image/png"]
    assert output.data["text/html"] == f'<img src="data:image/png;base64,{png}" alt="A line from 0 to 1.">'
    first = path.read_bytes()
    run(path)
    assert path.read_bytes() == first
    edit(path, "ours", OURS.format(alt="A line that rises from 0 to 1."))
    (output,) = run(path)[1]["ours"].outputs
    assert output.metadata["image/png"]["alt"] == "A line that rises from 0 to 1." in output.data["text/html"]
    assert output.data["image/png"] == png


def test_a_figure_that_was_stored_in_few_colours_is_the_same_figure_drawn_in_all():
    from PIL import Image

    from kernels.lab import style

    figure, axes = style.picture(3, 2)
    for series in range(len(style.INKS)):
        style.points(axes[0, 0], [series], [series], series, str(series), solid=False)
    drawn, few = Image.open(io.BytesIO(figure.png())).convert("RGB"), io.BytesIO()
    assert len(drawn.getcolors(1 << 16)) > 64
    drawn.quantize(64, dither=Image.Dither.NONE).save(few, "PNG")
    assert refresh.look_alike(few.getvalue(), figure.png())


def test_look_alike_sees_a_moved_marker_and_not_a_shade():
    blank = png(lambda im: None)
    assert refresh.look_alike(blank, png(lambda im: im.paste((250, 250, 250), (0, 0, 200, 100))))
    for ink in ("black", "#FFAABB"):  # the palest fill of kernels.lab.style but grey
        assert not refresh.look_alike(blank, png(lambda im, ink=ink: im.paste(ink, (50, 50, 53, 53))))


def test_a_widget_is_not_stored(notebook):
    path = notebook(
        cell("slide", "import ipywidgets\nprint('static')\ndisplay(ipywidgets.IntSlider(3))", refresh.IGNORED)
    )
    _, cells = run(path)
    assert [o.output_type for o in cells["slide"].outputs] == ["stream"]
    assert "widgets" not in nbformat.read(path, as_version=4).metadata


@pytest.mark.parametrize(
    "text",
    [
        "/home/me/course/kernels/lab/trace.py:3",
        "/home/me/my course/kernels/lab/trace.py:3",
        "/tmp/x/ipykernel_12/34.py:1",
        "/tmp/a b/ipykernel_12/34.py:1",
        "<A at 0x7f12ab>",
    ],
)
def test_what_differs_between_machines_is_sanitized(text):
    cleaned = refresh.sanitized(text, refresh.sanitize_patterns())
    assert cleaned in {"kernels/lab/trace.py:3", "<cell>:1", "<A at 0x>"}


def test_a_web_address_is_left_alone():
    text = "see https://example.org/kernels/dynamic_conv/forward.py and ../kernels/lab/, a / b, and /or and solutions/"
    assert refresh.sanitized(text, refresh.sanitize_patterns()) == text


@pytest.mark.parametrize("source", ["1 / 0", "import os\nos._exit(3)"])
def test_a_notebook_that_fails_is_reported_and_left_as_it_was(notebook, capfd, source):
    path = notebook(cell("bad", source, outputs=[new_output("stream", text="old")], execution_count=1))
    before = path.read_bytes()
    assert run(path)[0] == 1
    assert path.read_bytes() == before
    out, err = capfd.readouterr()
    assert path.name in out and "FAILED" in err


def test_a_cell_that_shall_raise_may(notebook):
    path = notebook(cell("bad", "1 / 0", "raises-exception"), cell("after", "print('still here')"))
    code, cells = run(path)
    assert code == 0 and cells["bad"].outputs[0].ename == "ZeroDivisionError"
    assert cells["after"].outputs[0].text == "still here\n"
    first = path.read_bytes()
    run(path)
    assert path.read_bytes() == first
