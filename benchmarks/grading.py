"""What grading costs on this machine: seconds of its cores and of the clock, a submission of each exercise.

Some students hand in the solution of an exercise, each with kernels of its own to compile, and one judge grades them one
after the other; besides, ``tools.grade`` grades a class of one from its start, for the exercises of ``FIRST``. Seconds of the
cores are those of every process that takes part. Run it where nothing else runs: ``python -m benchmarks.grading`` writes the
record, and the table in docs/instructor_guide.md.
"""

import argparse
import ast
import contextlib
import ctypes
import datetime
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import torch
import triton

from benchmarks import harness
from kernels import runtime
from tools.grading import leave

ROOT = Path(__file__).resolve().parent.parent
FIRST = ("01_row_softmax", "03_dynamic_conv")
COPIES = 2  # submissions that count, besides a first one
TIMES = 2  # a class of one is graded so often: the fastest counts, for its files are in memory by then
GUIDE = ROOT / "docs" / "instructor_guide.md"
BEGIN, END = "<!-- written by benchmarks.grading -->\n", "<!-- end -->\n"


def assignments() -> list[str]:
    """Every assignment that has a solution."""
    return sorted(path.parent.name for path in (ROOT / "solutions").glob("*/*.ipynb"))


def marked(source: str, number: int) -> str:
    """A cell whose kernels are no other student's: each says, in a comment, whose it is."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic: no answer
        return source
    lines = source.split("\n")
    for one in sorted((s for s in tree.body if isinstance(s, ast.FunctionDef)), key=lambda s: -s.lineno):
        first = one.body[0]
        if first.lineno > one.lineno:
            lines.insert(first.lineno - 1, " " * first.col_offset + f"# by student {number}")
    return "\n".join(lines)


def hand_in(course: Path, name: str, number: int) -> Path:
    """The solution as a student's submission; returns its folder."""
    folder = course / "submitted" / f"student-{number}" / name
    folder.mkdir(parents=True)
    notebook = nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = marked(cell.source, number)
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder


def new_course(folder: Path) -> Path:
    """A course in which nobody has handed in anything."""
    shutil.copytree(ROOT / "exercises", folder / "exercises")
    return folder


def of_one(name: str, cores: set[int]) -> tuple[float, float]:
    """A class of one on some of the cores, from the command to its last line: seconds of the cores and of the clock."""
    with tempfile.TemporaryDirectory() as folder:
        hand_in(new_course(Path(folder)), name, 0)
        command = [sys.executable, "-m", "tools.grade", "--course", folder]
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_CACHE_DIR"}
        begun, before = time.monotonic(), spent()
        usual = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # what is started inherits it
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        finally:
            os.sched_setaffinity(0, usual)
        clock = time.monotonic() - begun
        if done.returncode:
            raise RuntimeError(f"{name} is not graded: {done.stdout}{done.stderr}")
        return ended() - before, clock


def alone(name: str) -> dict:
    """The row of a class of one: all cores, and the first of them by itself."""
    every = os.sched_getaffinity(0)
    spread = [of_one(name, every) for _ in range(TIMES)]
    narrow = [of_one(name, {min(every)}) for _ in range(TIMES)]
    cores, clock = (round(min(column), 2) for column in zip(*spread))
    return {"assignment": name, "cores_s": cores, "clock_s": clock, "one_core_s": round(min(c for _, c in narrow), 2)}


def spent() -> float:
    """Seconds of the cores that children took which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ended() -> float:
    """The same, once all that descend from this process have ended: what was orphaned is ours, see ``adopt``."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return spent()


def adopt() -> None:
    """Become the parent of orphans: what a killed sandbox took is counted with the rest."""
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        raise OSError(ctypes.get_errno(), "this system counts no orphans")


def of_tree() -> float:
    """Seconds of the cores that this process and all that descend from it have taken, those that have ended, too."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has ended meanwhile
            _, parent, *fields = path.read_text().rpartition(")")[2].split()
            stats[int(path.parent.name)] = int(parent), sum(map(int, fields[9:13]))
    mine, added = {os.getpid()}, True
    while added:
        added = {process for process, (parent, _) in stats.items() if parent in mine} - mine
        mine |= added
    return sum(stats[process][1] for process in mine) / os.sysconf("SC_CLK_TCK")


def in_turn(names: list[str], copies: int) -> list[dict]:
    """Each exercise's submissions, graded one after the other by one judge that has begun."""
    from tools.grading import judges

    with tempfile.TemporaryDirectory() as folder:
        course = new_course(Path(folder))
        os.environ.pop("TRITON_CACHE_DIR", None)
        judges.begin(False, 30.0, 600.0)
        rows = []
        for name in names:
            release = course / "exercises" / name / f"{name}.ipynb"
            tasks = [
                judges.Task(f"student-{number}", name, hand_in(course, name, number), release)
                for number in range(copies + 1)
            ]
            results = [judges.judged(tasks[0])]  # the first imports what the others find
            begun, before = time.monotonic(), of_tree()
            results += [judges.judged(task) for task in harness.progress(tasks[1:], desc=name)]
            clock, cores = time.monotonic() - begun, of_tree() - before
            for result in results:
                if result.status != "graded" or result.points != sum(one.most for one in result.checks):
                    raise RuntimeError(f"{name}: {result.status}, {result.points} points; {result.reason}")
            rows.append({"assignment": name, "cores_s": round(cores / copies, 2), "clock_s": round(clock / copies, 2)})
        judges._judge.close()
        return rows


def machine() -> dict:
    """Where and with what the numbers were taken; ``load``: how many processes of others wanted a core before."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": harness.commit(),
        "date": datetime.date.today().isoformat(),
    }


def table(record: dict) -> str:
    """The guide's paragraph and table."""
    where = f"{record['machine']['cores']} cores ({record['machine']['cpu']})"
    first = [
        f"one of {row['assignment'][:2]} {row['clock_s']:.1f} seconds ({row['one_core_s']:.1f} on one core)"
        for row in record["first"]
    ]
    lines = [
        f"From the command to its last line, a class of one takes, on {where}: {'; '.join(first)}.",
        "Each further submission takes what stands here, most of it the compiler's and the interpreter's.",
        "",
        "| exercise | seconds of a core | 100 submissions on two cores | 5000 on 16 |",
        "|---|---|---|---|",
    ]
    for row in record["rows"]:
        cores = row["cores_s"]
        two, sixteen = (number * cores / count / 60 for number, count in ((100, 2), (5000, 16)))
        lines.append(f"| {row['assignment']} | {cores:.1f} | {two:.1f} minutes | {sixteen:.0f} minutes |")
    return "\n".join(lines) + "\n"


def write_guide(record: dict) -> None:
    """Put the table where the guide has it."""
    before, _, rest = GUIDE.read_text().partition(BEGIN)
    GUIDE.write_text(f"{before}{BEGIN}{table(record)}{END}{rest.partition(END)[2]}")


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="folder for grading.json")
    given = parser.parse_args()
    if not runtime.interpreted:
        raise SystemExit("Grading never uses the GPU: TRITON_INTERPRET=1 python -m benchmarks.grading")
    adopt()
    record = {"machine": machine(), "first": [], "rows": []}
    for name in harness.progress(FIRST, desc="a class of one"):
        record["first"].append(alone(name))
    record["rows"] = in_turn(assignments(), COPIES)
    path = harness.write("grading", record, given.out)
    if given.out == harness.RESULTS:
        write_guide(record)
    print(json.dumps(record["machine"]), table(record), path, sep="\n")


if __name__ == "__main__":
    main()
    leave()
