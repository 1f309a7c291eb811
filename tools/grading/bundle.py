"""What students get in one file: the course without its solutions, planted bugs and tests of either."""

import subprocess
import zipfile
from pathlib import Path

from tools.grading import files

LEFT_OUT = (
    "solutions/", "tests/", "tools/grading/", "tools/variants/", "tools/grade.py", "tools/desk.py", "docs/kill_table.md",
    "docs/instructor_guide.md", "docs/jupyterhub.md", "nbgrader_config.py", ".github/", ".ci/",
)  # fmt: skip
NAME = "kernels-from-math"


def tracked(root: Path) -> list[str]:
    """The files of the course, as git knows them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def write(root: Path, target: Path, release: Path | None = None) -> int:
    """Write the bundle, the same bytes for the same course; returns how many files it holds.

    release: another folder of exercises than the course's own: that of a variation.
    """
    names = [name for name in sorted(tracked(root)) if not name.startswith(LEFT_OUT)]
    part = target.with_name(f".part-{target.name}")
    part.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in names:
            path = root / name
            if release is not None and name.startswith("exercises/"):
                path = release / name.removeprefix("exercises/")
            if path.is_symlink() or not path.is_file():
                continue
            entry = zipfile.ZipInfo(f"{NAME}/{name}", (2026, 1, 1, 0, 0, 0))
            entry.external_attr = (path.stat().st_mode & 0o777) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(entry, path.read_bytes())
    files.replace(part, target)
    return len(names)
