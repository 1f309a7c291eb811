"""Lesson 00 in JupyterLab, as a learner meets it: opened in headless Chromium, Run All Cells, no error.

Needs Chromium (or Chrome; `CHROMIUM` names another) and node with npm. The picture to look at: build/lesson_00.png.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools.kernel_environment import ROOT, kernel_environment

pytestmark = pytest.mark.browser

PLAYWRIGHT = "playwright-core@1.65.1"
NODE_FOLDER = ROOT / "build" / "browser"
LESSON = "notebooks/00_start_here.ipynb"
TOKEN = "course"


@pytest.fixture(scope="module")
def chromium():
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    found = next(filter(None, map(shutil.which, filter(None, names))), None)
    if found is None:
        pytest.fail("no Chromium: install the package `chromium`, or name one in CHROMIUM", pytrace=False)
    return found


@pytest.fixture(scope="module")
def playwright():
    if shutil.which("npm") is None:
        pytest.fail("no npm: install the package `npm`", pytrace=False)
    if not (NODE_FOLDER / "node_modules" / "playwright-core").exists():
        NODE_FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--prefix", NODE_FOLDER, PLAYWRIGHT], check=True)
    return NODE_FOLDER


@pytest.fixture
def lab(tmp_path):
    """JupyterLab over a copy of the lessons, so that running them changes nothing; yields its address."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "course" / "notebooks")
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--ServerApp.root_dir={tmp_path / 'course'}", f"--IdentityProvider.token={TOKEN}"]
    command += ["--LabApp.expose_app_in_browser=True", f"--LabApp.user_settings_dir={tmp_path / 'settings'}"]
    environment = kernel_environment({**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path / "config")})
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None and time.monotonic() < end, (tmp_path / "lab.log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture
def run_all(lab, chromium, playwright):
    """Runs all cells of a notebook under lab's folder; returns its code cells as JupyterLab then holds them."""

    def run(notebook: str, screenshot: Path) -> list[dict]:
        command = ["node", Path(__file__).with_name("run_all.mjs"), chromium]
        command += [f"{lab}/lab/tree/{notebook}?token={TOKEN}", screenshot]
        environment = {**os.environ, "PLAYWRIGHT_FROM": str(playwright)}
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert child.returncode == 0, child.stderr
        return json.loads(child.stdout)

    return run


def errors(cells: list[dict]) -> dict[str, str]:
    return {c["id"]: o["ename"] for c in cells for o in c["outputs"] if o["output_type"] == "error"}


def test_lesson_00_runs_to_its_end_without_an_error(run_all):
    screenshot = ROOT / "build" / "lesson_00.png"
    cells = run_all(LESSON, screenshot)
    stored = [c for c in json.loads((ROOT / LESSON).read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["id"] for cell in cells] == [cell["id"] for cell in stored if "".join(cell["source"]).strip()]
    assert errors(cells) == {}
    assert screenshot.stat().st_size > 20_000
    print(f"\nlook at {screenshot}")


def test_an_error_is_seen(run_all, tmp_path):
    cells = [
        new_code_cell("print('before')", id="before"),
        new_code_cell("1 / 0", id="bad"),
        new_code_cell("2", id="after"),
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": spec}), tmp_path / "course" / "broken.ipynb")
    assert errors(run_all("broken.ipynb", tmp_path / "broken.png")) == {"bad": "ZeroDivisionError"}
