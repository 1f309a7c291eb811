"""The command line of a benchmark that measures cases in child processes, after compiling them all ahead."""

import argparse
import re

import torch

from benchmarks import ahead, harness


def main(bench, name, example):
    """Measure, print and record what is asked for.

    Args:
        bench: the benchmark's module: ``cases()``, ``describe(case)``, ``compile_jobs(cases)``, ``line(row)``, and what
            ``harness.measure_all`` and ``ahead.compile_ahead`` call, ``measure`` and ``launches``.
        name: of the module in this folder and of the record.
        example: of a regular expression for ``--only``.
    """
    parser = argparse.ArgumentParser(description=bench.__doc__)
    parser.add_argument("--out", default=harness.RESULTS, help=f"folder for {name}.json")
    parser.add_argument(
        "--only", default="", help=f"only the cases this regular expression is found in, as {example!r}"
    )
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    given = parser.parse_args()
    harness.require_gpu()
    selected = [case for case in bench.cases() if re.search(given.only, bench.describe(case))]
    ahead.compile_ahead(f"benchmarks.{name}", bench.compile_jobs(selected))
    machine = harness.machine()
    torch.cuda.empty_cache()
    record = {"machine": machine, "rows": [], "failed": []}
    results = harness.measure_all(f"benchmarks.{name}", selected, machine, 1 if given.quick else 3)
    for case, rows, error in harness.progress(results, total=len(selected), desc=name):
        record["rows"] += rows
        if error:
            record["failed"].append({"case": bench.describe(case), "error": error})
        path = harness.write(name, record, given.out)
    print(*map(bench.line, record["rows"]), sep="\n")
    for failure in record["failed"]:
        print(f"FAILED {failure['case']}: {failure['error']}")
    print(machine, path)
    if record["failed"]:
        raise SystemExit(1)
