"""Grade every submission in submitted/STUDENT/ASSIGNMENT/ with nbgrader and export the marks: `make grade`.

Checks draw fresh numbers and other shapes (KERNELS_GRADING=1), and kernels run in Triton's interpreter, GPU or not:
marks do not depend on the machine, and every property that carries points is verified. TRITON_INTERPRET=0 asks for the
GPU.

A submission that cannot be run (it ends its own process, say) stays ungraded, its assignment is named, the others are
graded and exported.
"""

import os
import subprocess
import sys
from pathlib import Path

from tools.kernel_environment import ROOT, kernel_environment

MARKS = Path("build/marks.csv")


def nbgrader(*arguments: str) -> int:
    # nbgrader calls `alembic` by name, which lies beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = kernel_environment({"TRITON_INTERPRET": "1", **os.environ, "KERNELS_GRADING": "1", "PATH": path})
    command = [sys.executable, "-m", "nbgrader", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode


def main() -> int:
    names = sorted({path.name for path in ROOT.glob("submitted/*/*") if path.is_dir()})
    if not names:
        print("Nothing to grade: put submissions into submitted/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb.", file=sys.stderr)
        return 1
    # The gradebook must know each assignment's cells and points before it can grade one.
    not_graded = [name for name in names if nbgrader("generate_assignment", name, "--create", "--force") != 0]
    not_graded += [name for name in names if name not in not_graded and nbgrader("autograde", name) != 0]
    (ROOT / MARKS.parent).mkdir(exist_ok=True)
    exported = nbgrader("export", "--to", str(MARKS))
    print(f"{len(names) - len(not_graded)} assignments graded without trouble, marks in {MARKS}")
    for name in not_graded:
        print(f"{name}: at least one submission was not graded, see above", file=sys.stderr)
    return 1 if not_graded or exported else 0


if __name__ == "__main__":
    sys.exit(main())
