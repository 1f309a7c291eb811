"""Candidates of the weight gradient on layers of the tuning half, beside cuDNN: what the model of cost is fitted to.
``python -m benchmarks.populations.measure tune_conv_wgrad --half tuning --out build``.

Of the tiles that are listed here, a row times those that the model predicts to be the fastest, and the next best cuts of the
first few. A tile that was never measured is predicted by a guess.
"""

import functools
import itertools
import json

import torch

from benchmarks import conv_wgrad as bench
from benchmarks import harness
from benchmarks.populations import conv_wgrad as rows
from benchmarks.populations import fit, population
from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad, cost, depthwise, hopper, operator, portable
from kernels.conv_wgrad.problem import equivalents

OPERATOR = "conv_wgrad"
describe = rows.describe

GPU = "NVIDIA H200"
TILES = [  # BLOCK_M, BLOCK_N, BLOCK_K, STAGES, num_warps, programs on a multiprocessor
    (256, 128, 64, 3, 8, 1), (128, 256, 64, 3, 8, 1), (128, 128, 64, 3, 4, 2), (128, 128, 32, 6, 4, 2),
    (64, 256, 64, 3, 4, 1), (128, 64, 64, 4, 4, 2), (64, 128, 64, 4, 4, 2), (64, 64, 64, 4, 4, 3),
    (64, 64, 128, 3, 4, 2), (64, 32, 64, 4, 4, 3), (32, 64, 64, 4, 4, 3), (64, 64, 32, 6, 4, 3),
    (32, 32, 128, 3, 4, 4), (16, 128, 64, 4, 4, 3), (16, 16, 256, 3, 4, 4),
    (256, 64, 64, 4, 8, 1), (256, 32, 64, 4, 8, 2), (128, 32, 64, 4, 4, 3), (128, 32, 128, 3, 4, 2),
    (32, 128, 64, 4, 4, 3), (32, 256, 64, 3, 8, 2),
]  # fmt: skip
HOPPER = [  # BLOCK_M, BLOCK_N, BLOCK_K, GROUPS, STAGES
    (128, 128, 32, 3, 6), (128, 128, 64, 3, 3), (128, 128, 64, 2, 4), (64, 128, 64, 3, 4), (128, 64, 64, 3, 5),
    (64, 64, 64, 3, 6), (64, 128, 64, 2, 5), (128, 64, 64, 2, 6), (64, 256, 64, 2, 3),
]  # fmt: skip
CHANNELS = [(1, 32), (2, 32), (2, 64), (4, 32), (4, 64), (4, 128), (8, 64), (8, 256)]  # a thread's, BLOCK_M
SUMS, RUNS, WARPS = (3, 9, 14, 28, 49), (4, 7, 14), (4, 8)
LOADS = 64  # of a depthwise program in a step, at most: more take long to compile

FASTEST, CUTS = {"product": 5, "hopper": 3, "depthwise": 14}, 2
HOPELESS = 1.6  # times the fastest one's predicted time


def named():
    """The rows of the benchmark of named layers."""
    found = []
    for N, Ci, Co, H, R, stride, padding, groups in bench.CASES:
        layer = {"Ci": Ci, "Co": Co, "H": H, "W": H, "R": R, "S": R, "groups": groups}
        pairs = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1, 1]}
        found.append((layer | pairs, N, "tuning", ["named"]))
    return found


def cases(half):
    """The named ones, and the population's, one of each kind in turn, since a few kinds are most of the layers."""
    kinds = {}
    for case in rows.cases(half):
        layer = case[0]
        common = rows.kind(layer) in ("1x1/1", "3x3/1", "3x3/2", "depthwise", "grouped")
        small = layer["H"] * layer["W"] < 20 * 20
        kinds.setdefault((rows.kind(layer), small) if common else "rare", []).append(case)
    turns = itertools.zip_longest(*kinds.values(), named())
    return [case for turn in turns for case in turn if case is not None]


def listed(g):
    """``[tile]`` without parameters: what is worth timing of the portable way on a geometry."""
    if not portable.is_depthwise(g):
        aligned = portable.tiles_for(g) in ("product rows", "product im2col")
        tiles = [
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages, "TMA": tma, "num_warps": warps, "held": held}
            for m, n, k, stages, warps, held in TILES
            for tma in (True, False)
            if aligned or m * n <= 128 * 128
        ]
        return [tile for tile in tiles if portable.suits(g, tile)]
    found = {}
    for (E, m), sums, run, warps in itertools.product(CHANNELS, SUMS, RUNS, WARPS):
        filter_rows, taps = depthwise.taps_of(g, sums)
        tile = {"BLOCK_M": m, "BLOCK_K": 32 * warps * E // m, "RUN": run, "SUMS": filter_rows * taps, "num_warps": warps}
        here = tile | {"RUN": depthwise.shares(g.Q, run)}
        values = portable.registers(g, here)
        loads = here["RUN"] + filter_rows * (values // E - tile["SUMS"] - here["RUN"])
        if values <= portable.REGISTERS and loads <= LOADS and m < 2 * max(g.Co, 32):
            found[str(here)] = tile | {"held": max(1, 65536 // (32 * warps * (values + 48)))}
    return list(found.values())


def known(tiles, kind):
    """The same with parameters: the fitted ones, of the tile or of one that is as large, or guesses."""
    text = lambda tile: json.dumps(cost.options_of(tile) | {"TMA": None}, sort_keys=True)  # noqa: E731
    fitted = {text(tile): tile for tile in cost.tiles_of(cost.costs_of({"COSTS": GPU}), kind)}
    guessed = [tile | dict(zip(("busy", "alone"), fit.guess_of(kind, tile), strict=True)) for tile in tiles]
    return [guess | times_of(fitted.get(text(guess), {})) for guess in guessed]


def times_of(tile):
    """The fitted times of a tile, if it has any."""
    return {name: tile[name] for name in ("busy", "alone") if name in tile}


def variants(problem):
    """``[(Equivalent, backend, Candidate)]`` of all equivalents: of each backend's tiles the few that are predicted to be the
    fastest, then the next best cut of the first."""
    found = [(equivalent, *one) for equivalent in equivalents(problem) for one in _variants(equivalent.problem)]
    best = min(candidate.time for *_, candidate in found)
    return [one for one in found if one[-1].time < HOPELESS * best]


def _variants(problem):
    g, costs = problem.g, cost.costs_of({"COSTS": GPU})
    kind = portable.tiles_for(g)
    ways = {kind.split()[0]: portable.considered(problem, costs, known(listed(g), kind))}
    if hopper.unfit(g, problem.dtype) is None and g.Ci >= 8:
        names = "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUPS", "STAGES"
        tiles = [dict(zip(names, tile, strict=True)) for tile in HOPPER]
        ways["hopper"] = hopper.considered(problem, costs, known(tiles, hopper.tiles_for(g)))
    found = []
    for way, tiles in ways.items():
        ordered = sorted((sorted(cuts, key=lambda c: c.time) for cuts in tiles), key=lambda cuts: cuts[0].time)
        found += [(way, cuts[0]) for cuts in ordered[: FASTEST[way]]]
        found += [(way, cut) for cuts in ordered[:1] for cut in cuts[1:CUTS]]
    return found


def call_of(equivalent, way, candidate, x, dy, out):
    """The gradient by one candidate, a function of nothing."""
    problem = equivalent.problem
    if way == "hopper":
        plan = hopper.plan_cut(problem, candidate.cut)
    else:
        plan = portable.plan_cut(problem, candidate.cut)

    def call():
        operator.run(plan, x, dy, out, equivalent=equivalent)
        return out

    return call


def recorded(equivalent, way, candidate):
    """What a record says of a candidate."""
    tile = cost.options_of(candidate.tile)
    if way != "hopper":
        tile["HELD"] = candidate.tile["held"] * fit.PROCESSORS[GPU]
    return {
        "backend": way,
        "turned": equivalent.problem.turned,
        "fold": equivalent.problem.fold,
        "options": tile,
        "plan": candidate.cut[1:],
        "predicted_ms": round(candidate.time / 1000, 5),
    }


def measure(case, machine, rounds):
    """One row: every candidate's time and error."""
    layer, N, half, models = case
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    x, dy, g = rows.problem(layer, N)
    problem = operator.problem_of(x, dy, g)
    found = variants(problem)
    calls = {"ours": lambda: conv2d_wgrad(x, dy, *rows.arguments_of(g))}
    if not runtime.interpreted:
        calls["cuDNN nhwc"] = bench.by_torch(x, dy, g, torch.channels_last)
    with torch.no_grad():
        errors = bench.errors_of(x, dy, g, {name: call() for name, call in calls.items()})
        want = calls["ours"]()
        answers, reasons = {}, {}
        for i, (equivalent, way, candidate) in enumerate(found):
            out = torch.full(g.weight_shape, float("nan"), dtype=x.dtype, device=x.device)
            try:
                call = call_of(equivalent, way, candidate, x, dy, out)
                answers[i] = harness.relative_error(call(), want)
                calls[i] = call
            except Exception as error:  # it does not fit this GPU; the record says so
                reasons[i] = f"{type(error).__name__}: {str(error)[:120]}"
        with population.stream():
            ms, how = population.timed(calls, 5 * rounds)
    return [
        {
            "kernel": OPERATOR,
            "half": half,
            "models": models,
            "kind": rows.kind(layer),
            "shape": {"N": N, **layer},
            "timed": how["ours"],
            "ours_ms": round(ms["ours"], 5),
            "explained": rows.explained(x, dy, g),
            "bytes": rows.bytes_of(g),
            "flops": g.flops,
            "relative_error": population.short(errors["ours"]),
            "peers": [
                population.peer(name, f"torch {torch.__version__}", ms[name], how[name], population.short(errors[name]))
                for name in ("cuDNN nhwc",)
                if name in calls
            ],
            "candidates": [
                recorded(equivalent, way, candidate)
                | ({"ms": round(ms[i], 5), "off": population.short(answers[i])} if i in calls else {"reason": reasons[i]})
                for i, (equivalent, way, candidate) in enumerate(found)
            ],
        }
    ]


def launches(layer, N, share, shares):
    """What ``measure`` launches, of a share of the candidates."""
    x, dy, g = rows.problem(layer, N)
    problem = operator.problem_of(x, dy, g)
    for equivalent, way, candidate in variants(problem)[share::shares]:
        out = torch.empty(g.weight_shape, dtype=x.dtype, device=x.device)
        try:
            call_of(equivalent, way, candidate, x, dy, out)()
        except Exception as error:  # it fails again where it is measured, and is recorded there
            print(type(error).__name__, str(error)[:100])
    if share == 0:
        conv2d_wgrad(x, dy, *rows.arguments_of(g))


def compile_jobs(selected, shares=2):
    """What ``ahead.compile_ahead`` is given: every row, the longest to compile first."""
    ordered = sorted(selected, key=lambda case: rows.kind(case[0]) != "depthwise")
    return [((layer, N, share, shares), 0, 1) for layer, N, *_ in ordered for share in range(shares)]


def line(row):
    """A row as one line of text, with its fastest candidates."""
    timed = sorted((c for c in row["candidates"] if "ms" in c and c["off"] < 0.02), key=lambda c: c["ms"])
    wrong = sum("ms" not in c or not c["off"] < 0.02 for c in row["candidates"])
    short = functools.partial(map, lambda c: f"{c['ms']:.4f} {c['backend']} {list(c['options'].values())} {c['plan']}")
    return f"{rows.line(row)} | {wrong} of {len(row['candidates'])} wrong | " + " | ".join(short(timed[:3]))
