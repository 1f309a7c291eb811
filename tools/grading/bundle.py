"""What students get in one file: the course without its solutions, planted bugs and tests of either."""

import posixpath
import re
import subprocess
import zipfile
from pathlib import Path

LEFT_OUT = (
    "solutions/", "tests/", "tools/grading/", "tools/grade.py", "tools/desk.py", "docs/kill_table.md",
    "docs/instructor_guide.md", "docs/jupyterhub.md", "nbgrader_config.py", ".github/", ".ci/", "benchmarks/grading.py",
)  # fmt: skip
NAME = "kernels-from-math"


def tracked(root: Path) -> list[str]:
    """The files of the course, as git knows them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def _unlinked(name: str, data: bytes, every: set[str]) -> bytes:
    """A text without its links to files of the course that students do not get: their words stay."""

    def link(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        return match[1] if target in every and target.startswith(LEFT_OUT) else match[0]

    return re.sub(r"\[([^\]\[]*)\]\(([^)#\s]+)[^)\s]*\)", link, data.decode()).encode()


def write(root: Path, target: Path) -> int:
    """Write the bundle, the same bytes for the same course; returns how many files it holds."""
    every = set(tracked(root))
    names = [name for name in sorted(every) if not name.startswith(LEFT_OUT)]
    part = target.with_name(f".part-{target.name}")
    part.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in names:
            path = root / name
            if path.is_symlink() or not path.is_file():
                continue
            entry = zipfile.ZipInfo(f"{NAME}/{name}", (2026, 1, 1, 0, 0, 0))
            entry.external_attr = (path.stat().st_mode & 0o777) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            data = path.read_bytes()
            bundle.writestr(entry, _unlinked(name, data, every) if name.endswith((".md", ".ipynb")) else data)
    part.replace(target)
    return len(names)
