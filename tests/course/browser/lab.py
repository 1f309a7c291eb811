"""JupyterLab in headless Chromium: a server over a copy of the lessons, and a script that opens, runs and photographs them.

Needs Chromium (or Chrome; `CHROMIUM` names another) and node with npm.
"""

import contextlib
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

from tools import bootstrap
from tools.browser import chromium, packages
from tools.kernel_environment import ROOT, kernel_environment

TOKEN = "course"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@contextlib.contextmanager
def lab(folder: Path, *, whole: bool = False):
    """JupyterLab over a copy of the notebooks in ``folder/course``, so that running them changes nothing; yields its address.

    It is configured as `make lab` has it.

    whole: keep every cell in the page, not only those near the viewport, so that the page can be measured.
    """
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, folder / "course" / name)
    bootstrap.configure_lab(folder)
    if whole:
        file = folder / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"windowingMode": "none"}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--ServerApp.root_dir={folder / 'course'}", f"--IdentityProvider.token={TOKEN}"]
    command += ["--LabApp.expose_app_in_browser=True", f"--LabApp.user_settings_dir={folder / 'settings'}"]
    places = {"JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_CONFIG_PATH": str(folder / "etc" / "jupyter")}
    environment = kernel_environment({**os.environ, **places})
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None and time.monotonic() < end, (folder / "lab.log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=20)


def run_all(
    address: str,
    notebook: str,
    *,
    run: bool = True,
    width: int = 1060,
    screenshot: Path | None = None,
    pages: dict[str, Path] | None = None,
) -> tuple[list[dict], list[dict]]:
    """Open a notebook of a lab and run all its cells; returns its code cells as JupyterLab then holds them, and the faults.

    Those are, for each cell that is in the page, ``mute``, its figures without a text, and ``excess``, the pixels that lie
    beyond its right edge.

    run: False leaves the stored outputs. width: of the window, in pixels. screenshot: where the first page goes.
    pages: theme -> the beginning of the paths at which pictures of the whole length go, one a page.
    """
    job = {"url": f"{address}/lab/tree/{notebook}?token={TOKEN}&reset", "run": run, "executablePath": chromium()}
    job |= {"width": width, "screenshot": str(screenshot) if screenshot else None}
    job["pages"] = {THEMES[theme]: str(prefix) for theme, prefix in (pages or {}).items()}
    command = ["node", Path(__file__).with_name("run_all.mjs"), json.dumps(job)]
    environment = {**os.environ, "PLAYWRIGHT_FROM": str(packages())}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    return found["cells"], found["faults"]


def errors(cells: list[dict]) -> dict[str, str]:
    """Cell id -> the exception that it shows."""
    return {c["id"]: o["ename"] for c in cells for o in c["outputs"] if o["output_type"] == "error"}
