"""Ours beside the peers on layers of real models: ``python -m benchmarks.populations.measure conv_wgrad --half held_out``.

Rows come in an order in which every prefix is a sample of all models; what the time does not suffice for is left out, and the
record says how many rows that were.
"""

import argparse
import importlib
import re
import time

import torch

from benchmarks import ahead, harness, tables
from benchmarks.populations import population

ABOUT = ("made_by", "date", "versions", "rule")
OPERATORS = ("conv_wgrad", "flex_attention", "dynamic_conv", "recurrent_attention", "tune_conv_wgrad")


def select(operator, half, only, rows):
    """The first ``rows`` of a half's cases that the regular expression is found in."""
    bench = importlib.import_module(f"benchmarks.populations.{operator}")
    found = [case for case in bench.cases(half) if re.search(only, bench.describe(case))]
    return bench, found[:rows]


def name_of(operator, half, machine):
    """Of a record: each GPU has its own."""
    return f"population_{operator}_{half}_{tables.short(machine['gpu']).replace(' ', '_').lower()}"


def run(operator, half, out, limit_s, only="", rows=None, times=3, name=None):
    """Measure an operator and write ``<out>/<name>.json``; returns the record."""
    began = time.monotonic()
    bench, selected = select(operator, half, only, rows)
    ahead.compile_ahead(bench.__name__, bench.compile_jobs(selected))
    compiled = time.monotonic()
    machine = harness.machine()
    torch.cuda.empty_cache()
    record = {
        "machine": machine,
        "operator": operator,
        "population": {key: value for key, value in population.record(bench.OPERATOR, half).items() if key in ABOUT},
        **({"peers_tuned": bench.PEERS_TUNED} if hasattr(bench, "PEERS_TUNED") else {}),
        "rows": [],
        "failed": [],
    }
    name = name or name_of(operator, half, machine)
    results = harness.measure_all(bench.__name__, selected, machine, times)
    for case, rows_of_case, error in harness.progress(results, total=len(selected), desc=operator):
        record["rows"] += rows_of_case
        print(*map(bench.line, rows_of_case), sep="\n", flush=True)
        if error:
            record["failed"].append({"case": bench.describe(case), "error": error})
            print(f"FAILED {bench.describe(case)}: {error}", flush=True)
        record["left_out"] = len(selected) - len(record["failed"]) - len({str(row["shape"]) for row in record["rows"]})
        harness.write(name, record, out)
        if time.monotonic() - began > limit_s:
            results.close()
            break
    took = f"compiled in {compiled - began:.0f} s, all in {time.monotonic() - began:.0f} s"
    print(f"{operator}: {took}, {record['left_out']} rows left out")
    return record


def renew(operator, half, newer, out, name=None, folder=harness.RESULTS):
    """Put the rows of the record ``newer`` in ``out`` in place of those of its GPU's record in ``folder``."""
    newer = harness.read(newer, out)
    name = name or name_of(operator, half, newer["machine"])
    harness.write(name, population.renewed(harness.read(name, folder), newer), folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operator", choices=OPERATORS)
    parser.add_argument("--half", choices=(*population.HALVES, population.DRAWN, "both"), default="both")
    parser.add_argument("--out", default=harness.RESULTS, help="folder for the record")
    parser.add_argument("--limit-seconds", type=float, default=600, help="no row is begun after so many seconds")
    parser.add_argument("--rows", type=int, help="how many rows at most")
    parser.add_argument("--only", default="", help="only rows this regular expression is found in")
    parser.add_argument("--times", type=int, default=3, help="calls of each function, in tens")
    parser.add_argument("--name", help="of the record")
    parser.add_argument("--renew", help="measure nothing: rows of this record in --out take the place of the committed ones")
    given = parser.parse_args()
    if given.renew:
        return renew(given.operator, given.half, given.renew, given.out, given.name)
    harness.require_gpu()
    run(given.operator, given.half, given.out, given.limit_seconds, given.only, given.rows, given.times, given.name)


if __name__ == "__main__":
    main()
