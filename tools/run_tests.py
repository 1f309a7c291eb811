"""Run the course's suites one after the other, and end with what ran: `make test`."""

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

from tools.kernel_environment import ROOT

BUILD = ROOT / "build"
MUTANTS = "test_mutants"  # the file under tests/course whose every test is one planted bug
# Tests that see nothing of Triton: with any version they prove the same. All of them in tests/course.
WITHOUT_TRITON = (
    "architecture",
    "bootstrap",
    "environment",
    "nbval",
    "notebooks",
    "progress",
    "refresh",
    "run_tests",
)
QUICK = "not slow and not browser and not classroom"
# What the whole check of each planted bug proves, too.
IN_THE_WHOLE = "tests/course/test_mutants.py::test_its_property_catches_it"
CORES = ["-p", "tools.progress", "-n", os.environ.get("TEST_CORES", "2")]
# A core that has nothing left takes over half of what another has.
# Other people's programs are a suite of their own.
UNIT = [*CORES, "--dist=worksteal", "-p", "no:nbval", "--ignore=tests/programs", "tests"]
# The operators, and the words that find their tests: by folder, by case, by the function that a bug is planted in.
OPERATORS = {
    "conv_wgrad": "wgrad or conv2d or im2col",
    "dynamic_conv": "dynamic_conv",
    "flex_attention": "flex_attention or flash or block_lists or emit",
    "recurrent_attention": "recurrent or chunk",
}
NOTEBOOKS = [
    *(*CORES, "--dist=loadscope", "--no-loadscope-reorder"),
    *("--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", "--nbval-sanitize-with=tools/nbval_sanitize.cfg"),
]
PYTEST = {
    "unit": UNIT,
    "operator": [*UNIT[:-1], "--every=8"],
    "rest": [*UNIT, "-m", f"thorough and {QUICK}"],
    "full": [*UNIT, "-m", "not browser"],
    "triton": [
        *(*UNIT, "-m", QUICK, f"--deselect={IN_THE_WHOLE}"),
        *(f"--ignore=tests/course/test_{name}.py" for name in WITHOUT_TRITON),
    ],
    "programs": [*CORES, "--dist=worksteal", "-p", "no:nbval", "tests/programs"],
    "browser": ["-m", "browser", "-s", "tests/course/browser"],
    "notebooks": ["-ptools.forked_kernels", *NOTEBOOKS],
    "portable": NOTEBOOKS,
}
ENVIRONMENT = {
    # Another CPU's arithmetic: torch's kernels without this CPU's vector instructions.
    "portable": {"ATEN_CPU_CAPABILITY": "default"},
    # A program that isn't installed is an error there, and a skipped test elsewhere.
    "programs": {"PROGRAMS_REQUIRED": "1"},
}
NAMES = {
    "unit": "unit tests",
    "operator": "tests of the operator",
    "rest": "thorough unit tests",
    "triton": "unit tests of what uses Triton",
    "notebooks": "notebook cells",
    "portable": "notebook cells with another CPU's arithmetic",
    "programs": "tests inside other people's programs",
}


def count(junit: Path) -> dict[str, dict[str, int]]:
    """Passed, failed and skipped tests of a junit file, mutants apart from the others."""
    counts = {}
    for case in xml.parse(junit).iter("testcase"):
        kind = "mutants" if MUTANTS in case.get("classname", "") else "others"
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        counts.setdefault(kind, {"passed": 0, "failed": 0, "skipped": 0})[outcome] += 1
    return counts


def run_pytest(suite: str, rest: list[str]) -> tuple[int, dict[str, dict[str, int]]]:
    junit = BUILD / f"{suite}.xml"
    junit.unlink(missing_ok=True)
    where = rest or (["notebooks", "solutions"] if suite in ("notebooks", "portable") else [])
    if suite == "operator":
        where = [f"tests/{rest[0]}", "tests/common", "tests/course/test_mutants.py", "-k", OPERATORS[rest[0]]]
    command = [sys.executable, "-m", "pytest", "-q", *PYTEST[suite], f"--junitxml={junit}", *where]
    # Compile reports are kept by their content.
    environment = {"TRITON_CACHE_DIR": str(BUILD / "triton"), **os.environ, **ENVIRONMENT.get(suite, {})}
    code = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode
    return code, count(junit) if junit.exists() else {}


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", choices=["lint", *PYTEST])
    arguments = sys.argv[1:] if arguments is None else arguments
    split = arguments.index("--") if "--" in arguments else len(arguments)
    suites, rest = parser.parse_args(arguments[:split]).suites, arguments[split + 1 :]
    if "operator" in suites and (len(rest) != 1 or rest[0] not in OPERATORS):
        print(f"NAME is {' '.join(rest)!r}, needs one of {', '.join(OPERATORS)}", file=sys.stderr)
        return 1
    if not (ROOT / "tests").is_dir():
        print("This is a student's copy: lessons, exercises and their checks, without the course's tests.", file=sys.stderr)
        return 1
    if shutil.which("git") is None:
        print("The tests need git, to tell the repository's own files from others: install it.", file=sys.stderr)
        return 1

    BUILD.mkdir(exist_ok=True)
    lines, passed, failed = [], 0, 0
    for suite in suites:
        print(f"== {suite}", flush=True)
        start = time.monotonic()
        if suite == "lint":
            code = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT).returncode
            counts = {"others": {"passed": int(code == 0), "failed": int(code != 0), "skipped": 0}}
        else:
            code, counts = run_pytest(suite, rest)
        if code and not any(outcome["failed"] for outcome in counts.values()):  # a crash, or nothing that could be run
            counts.setdefault("others", {"passed": 0, "failed": 0, "skipped": 0})["failed"] += 1
        seconds = time.monotonic() - start
        for kind, outcome in counts.items():
            name = NAMES.get(suite, suite) if kind == "others" else kind
            skipped = f", {outcome['skipped']} skipped" if outcome["skipped"] else ""
            lines.append(f"{name}: {outcome['passed']} passed, {outcome['failed']} failed{skipped}")
            passed, failed = passed + outcome["passed"], failed + outcome["failed"]
        lines[-1] += f" ({seconds:.0f} s)"
    print("==", *lines, f"{passed} passed, {failed} failed", sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
