"""Photograph lessons as JupyterLab shows them: `python -m tests.course.browser notebooks/00*.ipynb`.

Each is opened in headless Chromium, all its cells are run, and its whole length is photographed, page by page, in light and
dark: build/browser/00_start_here/light_01.png and so on. Figures without a text and cells that are too wide are listed.
Exits with 1 if a cell raised that was not meant to.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat

from tests.course.browser import lab
from tools.browser import NODE_FOLDER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path, help="lessons or exercises of this checkout")
    parser.add_argument("--width", type=int, default=1060, help="of the window, in pixels (1060)")
    parser.add_argument("--stored", action="store_true", help="run nothing: show what is stored")
    parser.add_argument("--theme", choices=lab.THEMES, action="append", help="one theme only; both unless told")
    parser.add_argument("--out", type=Path, default=NODE_FOLDER, help="where the pictures go (build/browser)")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="course_lab_") as folder, lab.lab(Path(folder), whole=True) as address:
        for path in options.notebooks:
            pictures = (options.out / path.stem).resolve()
            shutil.rmtree(pictures, ignore_errors=True)
            pictures.mkdir(parents=True)
            pages = {theme: pictures / theme for theme in options.theme or lab.THEMES}
            place = path.resolve().relative_to(lab.ROOT)
            cells, faults = lab.run_all(address, str(place), run=not options.stored, width=options.width, pages=pages)
            stored = {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}
            raised = {id: name for id, name in lab.errors(cells).items()
                      if "raises-exception" not in stored[id].metadata.get("tags", [])}  # fmt: skip
            failed |= bool(raised)
            print(f"{path.name}: {len(list(pictures.iterdir()))} pictures in {pictures}", *raised.items(), flush=True)
            print(*(fault for fault in faults if fault["mute"] or fault["excess"]), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
