"""Make the reading site in build/book, and hold it to what check_book.mjs looks for: `make book`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.browser import Missing, chromium, packages
from tools.kernel_environment import ROOT

SITE = ROOT / "build" / "book"
# What the accessibility checker looks at, in light and dark, wide and narrow: a page of each kind.
EXAMINED = [
    "docs/index.html",
    "notebooks/20_recurrent_attention_forward.html",
    "exercises/01_row_softmax/01_row_softmax.html",
    "docs/glossary.html",
    "docs/instructor_guide.html",
    "search.html",
]


def build() -> int:
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-j", "auto", "-q", "-W", "--keep-going", "-E"]
    command += ["-c", ROOT / "docs" / "site", "-d", ROOT / "build" / "book-doctrees", ROOT, SITE]
    return subprocess.run(command, cwd=ROOT).returncode


def check(site: Path, examined: list[str]) -> int:
    """Print what is wrong with the pages of a folder; 1 if anything is."""
    job = {"site": str(site.resolve()), "examined": examined, "executablePath": chromium()}
    command = ["node", Path(__file__).with_name("check_book.mjs"), json.dumps(job)]
    return subprocess.run(command, env={**os.environ, "NODE_FOLDER": str(packages())}).returncode


def main() -> int:
    try:
        chromium(), packages()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    failed = build() or check(SITE, EXAMINED)
    print(f"The reading site: {SITE.relative_to(ROOT)}/index.html" if not failed else "The reading site has faults.")
    return failed


if __name__ == "__main__":
    sys.exit(main())
