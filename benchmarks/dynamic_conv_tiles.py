"""Tiles that fill a multiprocessor to what their registers allow, timed in turn, and the table's lines that follow from them.

    python -m benchmarks.dynamic_conv_tiles measure      on a GPU: tiles and runs, on shapes of the tuning half
    python -m benchmarks.dynamic_conv_tiles fit          anywhere: from the record to its GPU's table

``benchmarks.dynamic_conv_cost`` fits how many warps a multiprocessor holds to times. Registers say it exactly: a run that
is planned for 20 warps, where a later version of the kernel has registers for 16, has a second wave of four, and takes a
fifth longer or more. Here a tile's RESIDENT is what its registers allow, with a bound (``maxnreg``) where the compiler would
take more; of the tiles it is the one whose chosen runs are the fastest.
"""

import argparse
import functools
import json
import math
from pathlib import Path

import torch

from benchmarks import dynamic_conv as bench
from benchmarks import dynamic_conv_cost as model
from benchmarks import harness
from kernels import runtime
from kernels.common import configs
from kernels.dynamic_conv import cost

RECORD = "tune_dynamic_conv_tiles"
COLUMNS = ("kernel", "B", "T", "D", "W", "tile", "RUN", "ms")
SHAPES = {
    "backward": [(8, 2048, 2048), (64, 512, 768), (2, 2048, 4096), (4, 8192, 1536)],
    "static backward": [(2, 8192, 1536), (1, 32768, 4096), (32, 512, 2560)],
    "static forward": [(2, 8192, 1536), (8, 2048, 5760), (1, 32768, 4096), (1, 131072, 4096)],
}
AHEAD = {"AHEAD": 8, "ROWS": 1, "num_warps": 1}
TILES = {
    "backward": [
        {"num_warps": 1, "maxnreg": 96, "RESIDENT": 20},
        {"num_warps": 1, "maxnreg": 128, "RESIDENT": 16},
        {"num_warps": 1, "maxnreg": 168, "RESIDENT": 12},
        {"num_warps": 1, "RESIDENT": 16},
        {"num_warps": 1, "RESIDENT": 8},
    ],
    "static backward": [
        AHEAD | {"RESIDENT": 12},
        AHEAD | {"RESIDENT": 8},
        AHEAD | {"AHEAD": 4, "maxnreg": 128, "RESIDENT": 16},
        AHEAD | {"AHEAD": 4, "RESIDENT": 12},
    ],
    "static forward": [{"AHEAD": 8, "ROWS": 4, "num_warps": 4}, AHEAD],
}
USED = {  # which of them, for each number of taps
    "backward": {3: (0, 3), 5: (1, 2), 7: (2, 4)},
    "static backward": {5: (0, 2, 3), 6: (0, 2, 3), 7: (1, 2, 3), 8: (1, 3)},
    "static forward": {4: (0, 1), 8: (0, 1)},
}
WAVES = (0.5, 1, 2, 3, 4)
FORWARD_RUNS = (8, 16, 24, 32, 64)
FILLS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
RATE = 0.96
CALLS = 14


def tile_of(kernel, number):
    """All that a launch with the tile says but its run."""
    tile = {"G": model.G, "BLOCK": 32, "ROWS": 1, **TILES[kernel][number]}
    tile.pop("RESIDENT", None)
    return tile


def candidate_of(kernel, number, fill):
    """The tile as a candidate of the model."""
    static = {"START": model.START} if kernel == "static backward" else {}
    return {"BLOCK": 32} | TILES[kernel][number] | {"RATE": RATE, "FILL": fill} | static


def runs(kernel, number, shape, W, processors):
    """Tokens in a run that are worth timing: those that make so many waves."""
    if kernel == "static forward":
        return FORWARD_RUNS
    B, T, D = shape
    candidate = candidate_of(kernel, number, 5.0)
    some = [candidate | {"RESIDENT": waves * candidate["RESIDENT"]} for waves in WAVES]
    return sorted({cost.fastest([one], T, B, 0, D // model.G, W, processors)[1] for one in some})


def measure(processors):
    """Rows of ``COLUMNS``: the launches of a shape take turns."""
    rows = []
    for kernel, used in USED.items():
        for W, shape in harness.progress([(W, shape) for W in used for shape in SHAPES[kernel]], desc=kernel):
            _, call = bench.tuned_call(kernel, shape, W, 16)
            calls = {}
            with torch.cuda.stream(torch.cuda.Stream()):
                for number in used[W]:
                    for run in runs(kernel, number, shape, W, processors):
                        how = tile_of(kernel, number) | {"RUN": run}
                        calls[number, run] = harness.captured(functools.partial(call, how))
                times = harness.in_turn(calls, CALLS)
            rows += [(kernel, *shape, W, *key, round(ms, 5)) for key, ms in times.items()]
            torch.cuda.empty_cache()
    return rows


def fit(record):
    """``{kernel: {class: options}}``, and ``{"kernel W": (mean regret, worst)}`` against each shape's fastest launch."""
    times = {}
    for kernel, B, T, D, W, number, run, ms in record["rows"]:
        times.setdefault((kernel, W), {}).setdefault(number, {}).setdefault((B, T, D, W), {})[run] = ms
    table, regrets = {}, {}
    for (kernel, W), tiles in sorted(times.items()):
        best = {}
        for shapes in tiles.values():
            for shape, of in shapes.items():
                best[shape] = min(min(of.values()), best.get(shape, math.inf))
        found = (forward_line if kernel == "static forward" else modelled_line)(kernel, tiles, best, record["machine"])
        table.setdefault(kernel, {})[f"W{W} 16-bit"] = found[2]
        regrets[f"{kernel} W{W}"] = round(math.exp(found[0]), 3), round(found[1], 3)
    return table, regrets


def modelled_line(kernel, tiles, best, machine):
    """``(mean regret, worst, options)`` of the tile, and the model of it, whose runs are the fastest."""
    found = None
    for number, shapes in tiles.items():
        behind = [math.log(min(of.values()) / best[shape]) for shape, of in shapes.items()]
        for fill in FILLS:
            candidate = candidate_of(kernel, number, fill)
            mean, worst = model.regret(shapes, candidate, machine["multiprocessors"])
            mean += sum(behind) / len(behind)
            if found is None or mean < found[0] - 1e-9:
                rows = {} if "ROWS" in candidate else {"ROWS": 1}
                found = mean, worst * math.exp(max(behind)), {"G": model.G, **rows, "TILES": [candidate]}
    return found


def forward_line(kernel, tiles, best, machine):
    """The same of the forward loop, which has one run for all shapes."""
    found = None
    for number, shapes in tiles.items():
        for run in set.intersection(*map(set, shapes.values())):
            behind = [math.log(of[run] / best[shape]) for shape, of in shapes.items()]
            mean = sum(behind) / len(behind)
            if found is None or mean < found[0] - 1e-9:
                found = mean, math.exp(max(behind)), tile_of(kernel, number) | {"RUN": run}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("--out", default="build", help="folder of the record")
    given = parser.parse_args()
    if given.what == "measure":
        harness.require_gpu()
        processors = torch.cuda.get_device_properties(runtime.device).multi_processor_count
        machine = harness.machine() | {"multiprocessors": processors}
        record = {"machine": machine, "timed": "graph", "columns": COLUMNS, "tiles": TILES, "rows": measure(processors)}
        print(harness.write(RECORD, record, given.out))
        return
    record = harness.read(RECORD, given.out)
    table, regrets = fit(record)
    path = Path(configs.__file__).parent.parent / "dynamic_conv" / "configs.json"
    whole = json.loads(path.read_text())
    for kernel, lines in table.items():
        whole[record["machine"]["gpu"]][kernel] |= lines
    path.write_text(harness.table_text(whole))
    for name, of in regrets.items():
        print(name, of)


if __name__ == "__main__":
    main()
