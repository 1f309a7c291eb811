"""Ours beside the peers on layers of real models: ``python -m benchmarks.populations.measure conv_wgrad --half held_out``.

Rows come in an order in which every prefix is a sample of all models; what the time does not suffice for is left out, and the
record says how many rows that were.
"""

import argparse
import importlib
import re
import time

import torch

from benchmarks import ahead, harness
from benchmarks.populations import population

ROOMS = ("conv_wgrad", "flex_attention", "dynamic_conv", "recurrent_attention", "tune_conv_wgrad")


def select(room, half, only, rows):
    """The first ``rows`` of a half's cases that the regular expression is found in."""
    bench = importlib.import_module(f"benchmarks.populations.{room}")
    found = [case for case in bench.cases(half) if re.search(only, bench.describe(case))]
    return bench, found[:rows]


def run(room, half, out, limit_s, only="", rows=None, times=3, name=None):
    """Measure one room and write ``<out>/<name>.json``; returns the record."""
    began = time.monotonic()
    bench, selected = select(room, half, only, rows)
    ahead.compile_ahead(bench.__name__, bench.compile_jobs(selected))
    compiled = time.monotonic()
    machine = harness.machine()
    torch.cuda.empty_cache()
    record = {
        "machine": machine,
        "room": room,
        "population": {key: population.record(bench.ROOM)[key] for key in ("made_by", "date", "versions", "rule")},
        **({"peers_tuned": bench.PEERS_TUNED} if hasattr(bench, "PEERS_TUNED") else {}),
        "rows": [],
        "failed": [],
    }
    name = name or f"population_{room}_{half}"
    results = harness.measure_all(bench.__name__, selected, machine, times)
    for case, rows_of_case, error in harness.progress(results, total=len(selected), desc=room):
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
    print(f"{room}: {took}, {record['left_out']} rows left out")
    return record


def renew(name, newer, out):
    """Put the rows of the record ``newer`` in ``out`` in place of those of the committed record ``name``."""
    harness.write(name, population.renewed(harness.read(name), harness.read(newer, out)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--half", choices=(*population.HALVES, "both"), default="both")
    parser.add_argument("--out", default=harness.RESULTS, help="folder for the record")
    parser.add_argument("--limit-seconds", type=float, default=600, help="no row is begun after so many seconds")
    parser.add_argument("--rows", type=int, help="how many rows at most")
    parser.add_argument("--only", default="", help="only rows this regular expression is found in")
    parser.add_argument("--times", type=int, default=3, help="calls of each function, in tens")
    parser.add_argument("--name", help="of the record")
    parser.add_argument("--renew", help="measure nothing: rows of this record in --out take the place of the committed ones")
    given = parser.parse_args()
    if given.renew:
        return renew(given.name or f"population_{given.room}_{given.half}", given.renew, given.out)
    harness.require_gpu()
    run(given.room, given.half, given.out, given.limit_seconds, given.only, given.rows, given.times, given.name)


if __name__ == "__main__":
    main()
