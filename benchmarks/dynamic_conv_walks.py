"""Times of dynamic convolution's backward walk over shapes, and the model of cost that is fitted to them.

    python -m benchmarks.dynamic_conv_walks measure      on a GPU: every tile and run, on shapes of the tuning half
    python -m benchmarks.dynamic_conv_walks fit          anywhere: from the record to the table of the GPU that made it

``kernels/dynamic_conv/cost.py`` says what is fitted. A walk's three numbers are those with the least squared error of the
predicted times' logarithms, over the launches that take at most SLOWEST times the shape's fastest.
"""

import argparse
import functools
import json
import math
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import dynamic_conv as bench
from benchmarks import harness
from kernels import runtime
from kernels.common import configs
from kernels.dynamic_conv import cost

RECORD = "tune_dynamic_conv"
SHAPES = [
    (8, 2048, 2048), (8, 4096, 2048), (4, 8192, 1536), (64, 512, 768), (32, 1000, 1000), (1, 65536, 1024), (2, 2048, 4096),
]  # fmt: skip
WIDTHS = range(2, 9)
G = 4
WARPS = (1, 2, 4)
PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
SLOWEST = 2.5
LAUNCH = 0.0025  # ms that a replayed graph takes of itself
COLUMNS = ("B", "T", "D", "W", "num_warps", "RUN", "ms")


def runs(T):
    """Tokens in a run, of the pieces that leave 16 to 1024."""
    return sorted({-(-T // pieces) for pieces in PIECES if 16 <= T // pieces <= 1024} or {T})


def options(warps, run):
    """One word a thread."""
    return {"G": G, "ROWS": 1, "RUN": run, "BLOCK": 32 * warps, "num_warps": warps}


def _compile(job):
    W, warps = job
    for _, T, D in SHAPES:
        for run in runs(T):
            bench.tuned_call("backward", (1, T, D), W, 16)[1](options(warps, run))
    torch.cuda.synchronize()


def measure(seconds):
    """Rows of ``COLUMNS``, shapes in turn, until the time is over."""
    begin = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(min(14, multiprocessing.cpu_count())) as pool:
        jobs = [(W, warps) for W in reversed(WIDTHS) for warps in WARPS]
        list(harness.progress(pool.imap_unordered(_compile, jobs), total=len(jobs), desc="compile"))
    rows = []
    for shape in harness.progress(SHAPES, desc="time"):
        for W in WIDTHS:
            if time.monotonic() - begin > seconds:
                return rows
            _, call = bench.tuned_call("backward", shape, W, 16)
            for warps in WARPS:
                for run in runs(shape[1]):
                    with torch.cuda.stream(torch.cuda.Stream()):
                        replay = harness.captured(functools.partial(call, options(warps, run)))
                    ms = harness.milliseconds(replay, warmup=1, rep=3)
                    rows.append((*shape, W, warps, run, round(ms, 5)))
            torch.cuda.empty_cache()
    return rows


def predicted(row, walk, processors, copy_tb_per_s):
    """ms of a row by the model: its unit is one warp's step, on one of the GPU's multiprocessors, at the copy rate."""
    B, T, D, W, warps, run, _ = row
    columns = -(-D // G // (32 * warps))
    programs = B * -(-T // run) * columns
    step = 2 * G * 32 * (2 * W + 3) * processors / copy_tb_per_s / 1e9
    t = cost.time_of({**walk, "BLOCK": 32 * warps, "num_warps": warps}, run, programs, columns, D // G, W, processors)
    return LAUNCH + step * float(t)


def fitted(rows, processors, copy_tb_per_s):
    """``(walk, error)``: RESIDENT, RATE and FILL for the rows of one width and number of warps; the error is that of the
    predicted times, as a standard deviation of their logarithms."""
    best = {}
    for row in rows:
        best[row[:3]] = min(row[-1], best.get(row[:3], math.inf))
    rows = [row for row in rows if row[-1] <= SLOWEST * best[row[:3]]]
    measured = np.log([row[-1] for row in rows])
    found = None
    for resident in (8, 12, 16, 20, 24, 28, 32):
        for rate in np.arange(0.80, 1.06, 0.02):
            for fill in np.arange(2, 12, 0.25):
                walk = {"RESIDENT": resident, "RATE": round(float(rate), 2), "FILL": float(fill)}
                error = np.log([predicted(row, walk, processors, copy_tb_per_s) for row in rows]) - measured
                if found is None or error @ error < found[0]:
                    found = error @ error, walk
    return found[1], math.sqrt(found[0] / len(rows))


def fit(record):
    """``{class: options}`` of the backward kernel's table, and ``{class: {warps: error}}``."""
    machine = record["machine"]
    table, errors = {}, {}
    for W in sorted({row[3] for row in record["rows"]}):
        walks = []
        name = f"W{W} 16-bit"
        for warps in WARPS:
            rows = [tuple(row) for row in record["rows"] if row[3] == W and row[4] == warps]
            walk, error = fitted(rows, machine["multiprocessors"], machine["copy_tb_per_s"])
            walks.append({"BLOCK": 32 * warps, "num_warps": warps} | walk)
            errors.setdefault(name, {})[warps] = round(error, 3)
        table[name] = {"G": G, "ROWS": 1, "WALKS": walks}
    return table, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("--out", default=harness.RESULTS, help=f"folder of {RECORD}.json")
    parser.add_argument("--limit-seconds", type=float, default=300)
    given = parser.parse_args()
    if given.what == "measure":
        harness.require_gpu()
        machine = harness.machine()
        processors = torch.cuda.get_device_properties(runtime.device).multi_processor_count
        rows = measure(given.limit_seconds)
        machine["multiprocessors"] = processors
        print(harness.write(RECORD, {"machine": machine, "columns": COLUMNS, "rows": rows}, given.out))
        return
    record = json.loads((Path(given.out) / f"{RECORD}.json").read_text())
    lines, errors = fit(record)
    path = Path(configs.__file__).parent.parent / "dynamic_conv" / "configs.json"
    table = json.loads(path.read_text())
    table[record["machine"]["gpu"]]["backward"] |= lines
    path.write_text(configs.dump(table))
    for name, of in errors.items():
        print(name, of)


if __name__ == "__main__":
    main()
