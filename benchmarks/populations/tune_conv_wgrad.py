"""Every candidate configuration of the weight gradient on layers of the tuning half, beside cuDNN: what the model of cost is
fitted to. ``python -m benchmarks.populations.measure tune_conv_wgrad --half tuning``.
"""

import functools
import itertools

import torch

from benchmarks import conv_wgrad as bench
from benchmarks import harness
from benchmarks.populations import conv_wgrad as rows
from benchmarks.populations import population
from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad, split_k
from kernels.conv_wgrad.gluon import hopper, tma
from kernels.conv_wgrad.portable import product

ROOM = "conv_wgrad"
describe = rows.describe

PROCESSORS = 132
TILES = [  # BLOCK_M, BLOCK_N, BLOCK_K, STAGES, num_warps, programs on a multiprocessor
    (256, 128, 64, 3, 8, 1), (128, 256, 64, 3, 8, 1), (128, 128, 64, 3, 4, 2), (128, 128, 32, 6, 4, 2),
    (64, 256, 64, 3, 4, 1), (128, 64, 64, 4, 4, 2), (64, 128, 64, 4, 4, 2), (64, 64, 64, 4, 4, 3),
]  # fmt: skip
NARROW = [(64, 64, 128, 3, 4, 2), (64, 32, 64, 4, 4, 3), (32, 64, 64, 4, 4, 3), (64, 64, 32, 6, 4, 3)]
HOPPER = [  # BLOCK_M, BLOCK_N, BLOCK_K, GROUPS, STAGES
    (128, 128, 32, 3, 6), (128, 128, 64, 3, 3), (128, 128, 64, 2, 4), (64, 128, 64, 3, 4), (128, 64, 64, 3, 5),
    (64, 64, 64, 3, 6), (64, 128, 64, 2, 5), (128, 64, 64, 2, 6),
]  # fmt: skip
DEPTHWISE = list(itertools.product((1, 2, 4, 8), (4, 7, 14), (2, 4, 8)))  # channels a thread, RUN, warps
SPLITS = (1.0, 0.5, 2.0)


def cases(half):
    """The population's, one of each kind in turn, since a few kinds are most of the layers."""
    kinds = {}
    for case in rows.cases(half):
        layer = case[0]
        common = rows.kind(layer) in ("1x1/1", "3x3/1", "3x3/2", "depthwise", "grouped")
        small = layer["H"] * layer["W"] < 20 * 20
        kinds.setdefault((rows.kind(layer), small) if common else "rare", []).append(case)
    turns = itertools.zip_longest(*kinds.values())
    return [case for turn in turns for case in turn if case is not None]


def candidates(g):
    """``[(backend, options)]`` worth timing on a geometry."""
    if product.is_depthwise(g):
        taps = g.R * g.S
        return [
            (
                "depthwise",
                {"BLOCK_M": 32 * E, "BLOCK_K": warps, "RUN": run, "HELD": PROCESSORS * 16 // warps, "num_warps": warps},
            )
            for E, run, warps in DEPTHWISE
            if E * taps <= 130 and run < 2 * g.Q and (E > 1 or taps > 9) and 32 * E < 2 * max(g.Co, 64) and run * E <= 56
        ]
    widest = max(g.Co_group * product.groups_together(g), 32)
    tiles = TILES + NARROW if min(g.Ci, g.Co) <= 96 or g.groups > 1 else TILES
    aligned = g.Ci_group * product.groups_together(g) % 8 == 0 and g.Co % 8 == 0
    found = [
        (
            "product",
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages, "TMA": aligned, "HELD": PROCESSORS * held}
            | {"num_warps": warps},
        )
        for m, n, k, stages, warps, held in tiles
        if m < 2 * widest and (aligned or m * n <= 128 * 128)
    ]
    if tma.unfit(g, torch.bfloat16) is None and g.Ci >= 16:
        found += [
            ("hopper", {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUPS": groups, "STAGES": stages})
            for m, n, k, groups, stages in HOPPER
            if m < 2 * max(g.Co, 64) and n < 2 * max(g.Ci, 16) and (groups == 2 or g.Ci % 16 == 0)
        ]
    return found


def forced(options):
    """``configuration`` of a table in which every kernel that is launched here has these options."""
    return lambda room, kernel, key, device: (
        table_says(room, kernel, key, device) if kernel == "sum" else dict(options)
    )


table_says = split_k.configuration


def plan_of(backend, options, g, device, split=None):
    """``(tiles, blocks, pieces, per)`` of what a candidate would launch."""
    with use(options):
        if backend == "hopper":
            work = tma.plan(hopper.kernel_of(g), g, device, split).work
            return work.tiles, work.blocks, work.pieces, work.per
        cut = product.plan(g, torch.bfloat16, device, split)[1]
        return cut.tiles, cut.blocks, cut.pieces, cut.per


class use:
    """Within this, launches take these options in place of the table's."""

    def __init__(self, options):
        self.options = options

    def __enter__(self):
        self.kept = split_k.configuration, tma.configuration
        split_k.configuration = tma.configuration = forced(self.options)

    def __exit__(self, *_):
        split_k.configuration, tma.configuration = self.kept


def call_of(backend, options, split, x, dy, g, out):
    """The gradient by one candidate, a function of nothing."""
    module = hopper if backend == "hopper" else product

    def call():
        with use(options):
            module.wgrad(x, dy, g, out, False, split)
        return out

    return call


def variants(g, device, splits=SPLITS):
    """``[(backend, options, split, plan)]``: every candidate with as many pieces as the model says, and fewer and more."""
    found = []
    for backend, options in candidates(g):
        seen = set()
        tiles, blocks, pieces, per = plan_of(backend, options, g, device)
        for factor in splits:
            split = None if factor == 1 else max(1, min(256, round(pieces * factor)))
            plan = plan_of(backend, options, g, device, split)
            if plan not in seen:
                seen.add(plan)
                found.append((backend, options, split, plan))
    return found


def measure(case, machine, rounds):
    """One row: every candidate's time and error."""
    layer, N, half, models = case
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    x, dy, g = rows.problem(layer, N)
    found = variants(g, x.device)
    calls = {"ours": lambda: conv2d_wgrad(x, dy, *rows.arguments_of(g))}
    if not runtime.interpreted:
        calls["cuDNN nhwc"] = bench.by_torch(x, dy, g, torch.channels_last)
    with torch.no_grad():
        errors = bench.errors_of(x, dy, g, {name: call() for name, call in calls.items()})
        want = calls["ours"]()
        answers, reasons = {}, {}
        for i, (backend, options, split, _plan) in enumerate(found):
            out = torch.full(g.weight_shape, float("nan"), dtype=x.dtype, device=x.device)
            try:
                answers[i] = harness.relative_error(call_of(backend, options, split, x, dy, g, out)(), want)
                calls[i] = call_of(backend, options, split, x, dy, g, out)
            except Exception as error:  # it does not fit this GPU; the record says so
                reasons[i] = f"{type(error).__name__}: {str(error)[:120]}"
        if runtime.interpreted:
            ms, how = dict.fromkeys(calls, 1.0), dict.fromkeys(calls, "interpreted")
        else:
            with torch.cuda.stream(torch.cuda.Stream()):
                ms, how = population.timed(calls, 5 * rounds)
    return [
        {
            "kernel": ROOM,
            "half": half,
            "models": models,
            "kind": rows.kind(layer),
            "shape": {"N": N, **layer},
            "timed": how["ours"],
            "ours_ms": round(ms["ours"], 5),
            "explained": conv2d_wgrad.explain(x, dy, *rows.arguments_of(g)),
            "bytes": rows.bytes_of(g),
            "flops": g.flops,
            "relative_error": population.short(errors["ours"]),
            "peers": [
                population.peer(name, f"torch {torch.__version__}", ms[name], how[name], population.short(errors[name]))
                for name in ("cuDNN nhwc",)
                if name in calls
            ],
            "candidates": [
                {"backend": backend, "options": options, "plan": plan}
                | ({"ms": round(ms[i], 5), "off": population.short(answers[i])} if i in calls else {"reason": reasons[i]})
                for i, (backend, options, split, plan) in enumerate(found)
            ],
        }
    ]


def launches(layer, N, share, shares):
    """What ``measure`` launches of a share of the candidates."""
    x, dy, g = rows.problem(layer, N)
    for backend, options in candidates(g)[share::shares]:
        out = torch.empty(g.weight_shape, dtype=x.dtype, device=x.device)
        try:
            call_of(backend, options, None, x, dy, g, out)()
            call_of(backend, options, 2, x, dy, g, out)()
        except Exception as error:  # it fails again where it is measured, and is recorded there
            print(type(error).__name__, str(error)[:100])


def compile_jobs(selected, shares=4):
    """What ``ahead.compile_ahead`` is given."""
    distinct = {rows.compiled_for(layer, N): (layer, N) for layer, N, *_ in reversed(selected)}
    return [((*case, share, shares), 0, 1) for case in distinct.values() for share in range(shares)]


def line(row):
    """A row as one line of text, with its fastest candidates."""
    timed = sorted((c for c in row["candidates"] if "ms" in c and c["off"] < 0.02), key=lambda c: c["ms"])
    wrong = sum("ms" not in c or not c["off"] < 0.02 for c in row["candidates"])
    short = functools.partial(map, lambda c: f"{c['ms']:.4f} {c['backend']} {list(c['options'].values())} {c['plan']}")
    return f"{rows.line(row)} | {wrong} of {len(row['candidates'])} wrong | " + " | ".join(short(timed[:3]))
