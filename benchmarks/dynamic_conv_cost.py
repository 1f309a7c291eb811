"""Times of dynamic convolution's loops over shapes, and the model of cost that is fitted to them.

    python -m benchmarks.dynamic_conv_cost measure --of static      on a GPU: tiles and runs, on shapes of the tuning half
    python -m benchmarks.dynamic_conv_cost fit --of static          anywhere: from the record to its GPU's table

``--of token`` is the backward loop of weights per token, ``--of static`` both loops of one weight for all.
``kernels/dynamic_conv/cost.py`` says what is fitted. A tile's numbers are those with the least squared error of the
predicted times' logarithms, over the launches that take at most SLOWEST times the shape's fastest.
"""

import argparse
import functools
import itertools
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

RECORDS = {"token": "tune_dynamic_conv", "static": "tune_dynamic_conv_static"}
SHAPES = [
    (8, 2048, 2048), (8, 4096, 2048), (4, 8192, 1536), (64, 512, 768), (32, 1000, 1000), (1, 65536, 1024), (2, 2048, 4096),
]  # fmt: skip
WIDTHS = range(2, 9)
G = 4
WARPS = (1, 2, 4)
PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
SLOWEST = 2.5
START = 16  # steps: a run of one weight's loop waits for its first tokens and leaves a part of the gradient behind
LAUNCH = 0.0025  # ms that a replayed graph takes of itself
COLUMNS = {
    "token": ("B", "T", "D", "W", "num_warps", "RUN", "ms"),
    "static": ("kernel", "B", "T", "D", "W", "tile", "RUN", "ms"),
}

STATIC_SHAPES = [(2, 8192, 1536), (1, 32768, 4096), (32, 512, 2560), (8, 2048, 2560), (1, 131072, 1536)]
STATIC_WIDTHS = {4: 5, 3: 4, 2: 3, 8: 3}  # taps, and how many of the shapes
TILES = {
    "static backward": [
        {"AHEAD": 8, "ROWS": 4, "num_warps": 4},
        {"AHEAD": 8, "ROWS": 4, "num_warps": 4, "maxnreg": 128},
        {"AHEAD": 4, "ROWS": 4, "num_warps": 4},
        {"AHEAD": 8, "ROWS": 1, "num_warps": 1},
    ],
    "static forward": [
        {"AHEAD": 8, "ROWS": 4, "num_warps": 4},
        {"AHEAD": 4, "ROWS": 4, "num_warps": 4},
        {"AHEAD": 8, "ROWS": 1, "num_warps": 1},
    ],
}
WARPS_PER_MULTIPROCESSOR = {"static backward": (4, 6, 8, 11, 15, 23, 31, 46), "static forward": (15, 23, 31, 47, 63, 95, 127)}


def runs(T):
    """Tokens in a run, of the pieces that leave 16 to 1024."""
    return sorted({-(-T // pieces) for pieces in PIECES if 16 <= T // pieces <= 1024} or {T})


def static_runs(kernel, shape, processors):
    """Tokens in a run, in steps of 8, that give each multiprocessor so many warps."""
    B, T, D = shape
    warps = WARPS_PER_MULTIPROCESSOR[kernel]
    wanted = {math.ceil(B * T * (D / G / 32) / processors / each / 8) * 8 for each in warps}
    return sorted({min(max(16, run), math.ceil(T / 8) * 8) for run in wanted})


def options(warps, run):
    """One word a thread."""
    return {"G": G, "ROWS": 1, "RUN": run, "BLOCK": 32 * warps, "num_warps": warps}


def _compile(job):
    kernel, W, tiles = job
    if kernel == "backward":
        for _, T, D in SHAPES:
            for run, warps in itertools.product(runs(T), tiles):
                bench.tuned_call(kernel, (1, T, D), W, 16)[1](options(warps, run))
    else:
        for tile, D in itertools.product(tiles, (2048, 2560)):
            bench.tuned_call(kernel, (1, 256, D), W, 16)[1]({"G": G, "BLOCK": 32, "RUN": 16, **tile})
    torch.cuda.synchronize()


def timed(call, how):
    """ms of ``call(how)``, replayed."""
    with torch.cuda.stream(torch.cuda.Stream()):
        replay = harness.captured(functools.partial(call, how))
    return round(harness.milliseconds(replay, warmup=1, rep=3), 5)


def compile_ahead(jobs):
    """In as many processes as there are cores for."""
    with multiprocessing.get_context("spawn").Pool(min(14, multiprocessing.cpu_count())) as pool:
        list(harness.progress(pool.imap_unordered(_compile, jobs), total=len(jobs), desc="compile"))


def measure_token(seconds, processors):
    """Rows of ``COLUMNS``, shapes in turn, until the time is over."""
    begin = time.monotonic()
    compile_ahead([("backward", W, (warps,)) for W in reversed(WIDTHS) for warps in WARPS])
    rows = []
    for shape in harness.progress(SHAPES, desc="time"):
        for W in WIDTHS:
            if time.monotonic() - begin > seconds:
                return rows
            _, call = bench.tuned_call("backward", shape, W, 16)
            for warps, run in itertools.product(WARPS, runs(shape[1])):
                rows.append((*shape, W, warps, run, timed(call, options(warps, run))))
            torch.cuda.empty_cache()
    return rows


def measure_static(seconds, processors):
    """The same for both loops of one weight; the commonest width first."""
    begin = time.monotonic()
    compile_ahead([(kernel, W, (tile,)) for W in STATIC_WIDTHS for kernel, tiles in TILES.items() for tile in tiles])
    rows = []
    for W, kernel in itertools.product(STATIC_WIDTHS, TILES):
        for shape in STATIC_SHAPES[: STATIC_WIDTHS[W]]:
            _, call = bench.tuned_call(kernel, shape, W, 16)
            for (number, tile), run in itertools.product(enumerate(TILES[kernel]), static_runs(kernel, shape, processors)):
                if time.monotonic() - begin > seconds:
                    return rows
                how = {"G": G, "BLOCK": 32, "RUN": run, **tile}
                rows.append((kernel, *shape, W, number, run, timed(call, how)))
            torch.cuda.empty_cache()
    return rows


def predicted(rows, tile, processors, copy_tb_per_s, words):
    """ms of rows ``(B, T, D, W, RUN)`` by the model: its unit is one warp's step, on one of the GPU's multiprocessors, at the
    copy rate; ``words`` are read and written in a step."""
    B, T, D, W, run = np.asarray(rows).T
    columns = -(-(D // G) // tile["BLOCK"])
    programs = -(-(B * -(-T // run)) // tile.get("ROWS", 1)) * columns
    step = 2 * G * 32 * words * processors / copy_tb_per_s / 1e9
    return LAUNCH + step * cost.time_of(tile, run, programs, columns, D // G, W, processors)


def fitted(rows, tile, machine, words):
    """``(model, error)``: RESIDENT, RATE and FILL for rows ``(B, T, D, W, RUN, ms)`` of one tile; the error is that of the
    predicted times, as a standard deviation of their logarithms."""
    best = {}
    for row in rows:
        best[row[:3]] = min(row[-1], best.get(row[:3], math.inf))
    rows = [row for row in rows if row[-1] <= SLOWEST * best[row[:3]]]
    measured = np.log([row[-1] for row in rows])
    shapes = np.array([row[:-1] for row in rows])
    found = None
    for resident, rate, fill in itertools.product(
        (8, 12, 16, 20, 24, 28, 32), np.arange(0.80, 1.06, 0.02), np.arange(2, 12, 0.25)
    ):  # fmt: skip
        model = {"RESIDENT": resident, "RATE": round(float(rate), 2), "FILL": float(fill)}
        of = predicted(shapes, tile | model, machine["multiprocessors"], machine["copy_tb_per_s"], words)
        error = np.log(of) - measured
        if found is None or error @ error < found[0]:
            found = error @ error, model
    return found[1], math.sqrt(found[0] / len(rows))


def fit_token(record):
    """``{kernel: {class: options}}``, and ``{class: {warps: error}}``."""
    table, errors = {}, {}
    for W in sorted({row[3] for row in record["rows"]}):
        tiles = []
        name = f"W{W} 16-bit"
        for warps in WARPS:
            rows = [(*row[:4], *row[5:]) for row in record["rows"] if row[3] == W and row[4] == warps]
            tile = {"BLOCK": 32 * warps, "num_warps": warps}
            model, error = fitted(rows, tile, record["machine"], 2 * W + 3)
            tiles.append(tile | model)
            errors.setdefault(name, {})[warps] = round(error, 3)
        table[name] = {"G": G, "ROWS": 1, "TILES": tiles}
    return {"backward": table}, errors


def regret(rows, tile, processors):
    """How much longer the launches that ``tile`` would choose take than each shape's fastest, as the mean of the logarithms
    and as the worst ratio; ``rows``: ``{(B, T, D, W): {RUN: ms}}``. For a RUN not measured stands the one with nearly
    as many runs, with a fourth of the distance added, so that nothing is chosen which is far from all that was measured."""
    ratios = []
    for (B, T, D, W), times in rows.items():
        _, run, _ = cost.fastest([tile], T, B, 0, D // G, W, processors)
        pieces = lambda run, T=T: -(-T // run)
        far, _, ms = min(
            (abs(math.log(pieces(timed) / pieces(run))), abs(timed - run), ms) for timed, ms in times.items()
        )
        ratios.append(ms * math.exp(far / 4) / min(times.values()))
    return sum(map(math.log, ratios)) / len(ratios), max(ratios)


def fit_static(record):
    """Of the backward loop of one weight, a tile for each class, and a model of it that chooses well: what matters of a
    prediction is which run it picks. ``{kernel: {class: options}}``, and ``{class: regret}``.

    The forward loop needs no model: its times hardly depend on its runs, short ones are a little faster, and the table says
    so by hand (``"RUN"`` tokens at least, and where that leaves more than ``"WARPS"`` for a multiprocessor, longer ones).
    """
    table, regrets = {}, {}
    for W in sorted({row[4] for row in record["rows"]}):
        kernel = "static backward"
        found = None
        for number, tile in enumerate(record["tiles"][kernel]):
            rows = {}
            for row in record["rows"]:
                if (row[0], row[4], row[5]) == (kernel, W, number):
                    rows.setdefault(tuple(row[1:5]), {})[row[6]] = row[7]
            best = {shape: min(row[7] for row in record["rows"] if (row[0], *row[1:5]) == (kernel, *shape)) for shape in rows}
            behind = sum(math.log(min(times.values()) / best[shape]) for shape, times in rows.items()) / max(1, len(rows))
            for resident, fill in itertools.product((8, 9, 10, 11, 12, 14, 16), (2.0, 3.0, 4.0, 6.0, 8.0)):
                candidate = {"BLOCK": 32, **tile, "RESIDENT": resident, "RATE": 0.96, "FILL": fill, "START": START}
                mean, worst = regret(rows, candidate, record["machine"]["multiprocessors"])
                if rows and (found is None or mean + behind < found[0] - 1e-9):
                    found = mean + behind, round(worst, 3), candidate
        table.setdefault(kernel, {})[f"W{W} 16-bit"] = {"G": G, "TILES": [found[2]]}
        regrets[f"{kernel} W{W}"] = round(math.exp(found[0]), 3), found[1]
    return table, regrets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("--of", choices=RECORDS, default="token")
    parser.add_argument("--out", default="build", help="folder of the record")
    parser.add_argument("--limit-seconds", type=float, default=300)
    given = parser.parse_args()
    if given.what == "measure":
        harness.require_gpu()
        machine = harness.machine()
        processors = torch.cuda.get_device_properties(runtime.device).multi_processor_count
        machine["multiprocessors"] = processors
        rows = {"token": measure_token, "static": measure_static}[given.of](given.limit_seconds, processors)
        record = {"machine": machine, "columns": COLUMNS[given.of], "rows": rows}
        print(harness.write(RECORDS[given.of], record | ({"tiles": TILES} if given.of == "static" else {}), given.out))
        return
    record = harness.read(RECORDS[given.of], given.out)
    table, errors = {"token": fit_token, "static": fit_static}[given.of](record)
    path = Path(configs.__file__).parent.parent / "dynamic_conv" / "configs.json"
    whole = json.loads(path.read_text())
    for kernel, lines in table.items():
        of_gpu = whole[record["machine"]["gpu"]]
        of_gpu[kernel] = of_gpu.get(kernel, {}) | lines
    path.write_text(harness.table_text(whole))
    for name, of in errors.items():
        print(name, of)


if __name__ == "__main__":
    main()
