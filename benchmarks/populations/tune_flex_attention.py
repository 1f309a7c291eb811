"""Cuts of flex attention's Hopper backward on layers with few key heads, beside cuDNN: what its model of cost is fitted to.
``python -m benchmarks.populations.measure tune_flex_attention --out build``.

A layer's cuts are what runs uncut, those that the model predicts to be the fastest, and the best of each other way. Layers
are of the tuning half, or of no model at all; those of the held-out half are measured to see what is chosen, and the fit
leaves them out.
"""

import functools
import itertools

import torch
from torch.nn.attention import SDPBackend

from benchmarks import flex_attention as bench
from benchmarks import harness
from benchmarks.populations import flex_attention as rows
from benchmarks.populations import population
from kernels import runtime
from kernels.flex_attention import operator, plain_backward, stored_ds
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import cost, split

OPERATOR = "flex_attention"
describe = rows.describe
FASTEST = 3  # cuts that are timed, and of each way at least one
ALIKE = 3  # layers of a kind whose kernels are compiled ahead
LONG = 6e-3  # s: of ten calls, one that takes longer is called less often

#: Variant, B, H, Hkv, M, D: shapes of no model, which lie between and beyond those of the tuning half.
BETWEEN = [
    ("causal", 1, 16, 1, 4096, 128), ("causal", 1, 16, 1, 16384, 128), ("causal", 1, 4, 1, 65536, 128),
    ("causal", 1, 2, 1, 65536, 128), ("causal", 2, 4, 1, 8192, 128), ("causal", 1, 32, 4, 4096, 128),
    ("causal", 1, 48, 8, 8192, 128), ("causal", 1, 32, 2, 12288, 128), ("causal", 1, 24, 2, 8192, 128),
    ("causal", 2, 32, 8, 8192, 128), ("causal", 1, 1, 1, 8192, 128), ("causal", 1, 3, 3, 12288, 128),
    ("causal", 1, 2, 1, 131072, 128), ("full", 1, 8, 1, 5000, 128), ("full", 1, 16, 2, 3000, 128),
    ("causal", 1, 8, 1, 5000, 128), ("full", 1, 4, 1, 16384, 128),
    ("causal", 1, 8, 2, 16384, 64), ("causal", 1, 2, 2, 8192, 64), ("causal", 1, 48, 8, 8192, 64),
    ("causal", 1, 2, 1, 65536, 64), ("full", 1, 8, 1, 8192, 64), ("full", 1, 8, 1, 3000, 64),
    ("causal", 4, 16, 16, 4096, 64), ("causal", 1, 16, 1, 4096, 64), ("causal", 1, 8, 2, 16384, 256),
    ("causal", 1, 2, 1, 65536, 256), ("full", 1, 8, 1, 8192, 256),
]  # fmt: skip


def cases(half):
    """``(layer, half, models)``, of no model and of models by turns."""
    of_models = [case for case in rows.cases("both") if few(case[0])]
    known = {str(layer) for layer, *_ in of_models}
    names = ("variant", "B", "H", "Hkv", "M", "D")
    between = [dict(zip(names, sizes, strict=True)) for sizes in BETWEEN]
    between = [{**layer, "N": layer["M"]} for layer in between]
    found = [(layer, "tuning", ["no model"]) for layer in between if str(layer) not in known]
    by_turns = itertools.chain(*itertools.zip_longest(found, of_models))
    chosen = {str(case[0]): case for case in by_turns if case is not None and half in ("both", case[1])}
    return list(chosen.values())


def few(layer):
    """Whether tiles of keys are few, or ds too large for the workspace."""
    items = layer["B"] * layer["Hkv"] * layer["M"] <= 2**17 and layer["B"] <= 8
    return items and layer["variant"] == "causal" and "softcap" not in layer


def looked_up(layer, q, k, v):
    """``(plan, inputs, the operator's arguments behind the tensors)`` of our call."""
    score_mod, block_mask = rows.mods_of(layer)
    *arguments, spec = operator._arguments(q, k, v, score_mod, block_mask, None, q.shape[1] != k.shape[1], None)
    plan, x, _ = operator._resolved(q, k, v, *arguments, spec)
    return plan, x, (*arguments, False, spec)


def resolved(layer, q, k, v):
    """``(problem, inputs, o, lse)`` of our call."""
    plan, x, arguments = looked_up(layer, q, k, v)
    return plan.problem, x, *operator.forward(q, k, v, *arguments)[:2]


def cuts(p):
    """What runs uncut, then others, the fastest first."""
    usual, others = cost.candidates(p)
    ordered = sorted(others, key=lambda cut: cut.time)
    chosen = ordered[:FASTEST]
    for way in ("counters", "stored"):
        chosen += [cut for cut in ordered[FASTEST:] if cut.way == way and way not in {one.way for one in chosen}][:1]
    return [usual, *chosen]


def gradients_of(p, x, outputs, cut, usual):
    """dq, dk and dv by this cut."""
    if cut is usual and cut.way != "counters":
        backend = {"stored": stored_ds, "recomputed": plain_backward}[cut.way]
        return backend.gradients(p, x, outputs, hopper_backward if hopper_backward.reason_not(p, True) is None else None)
    grads = plain_backward.new_gradients(x)
    split.gradients_of(p, x, outputs.do, hopper_backward.rows_of(p, *outputs), *grads, cut)
    return grads


def measure(case, machine, rounds):
    """One row: every cut's time, predicted time, and how far off it is; of stored ds also the time without dq's product."""
    layer, half, models = case
    torch.manual_seed(0)
    with torch.cuda.stream(None if runtime.interpreted else torch.cuda.Stream()):
        q, k, v = rows.tensors_of(layer)
        do = torch.randn_like(q)
        want = rows.exact(layer, q, k, v, do)
        p, x, o, lse = resolved(layer, q, k, v)
        usual, *others = cuts(p)
        calls, seen, uncut = {}, {}, None
        for cut in (usual, *others):
            backward = functools.partial(gradients_of, p, x, plain_backward.Outputs(do, None, o, lse), cut, usual)
            gradients = backward()
            again = backward()
            uncut = uncut or gradients
            seen[cut] = {
                "same_bits": all(map(torch.equal, gradients, again)),
                "error": max(rows.errors_of(want, o, gradients).values()),
                "off": population.short(max(map(harness.relative_error, gradients, uncut))),
            }
            calls[cut] = backward
            del gradients, again
        del uncut
        dkdv = {cut: functools.partial(without_dq, backward) for cut, backward in calls.items() if cut.way == "stored"}
        functions = {("all", cut): call for cut, call in calls.items()} | {("dkdv", cut): call for cut, call in dkdv.items()}
        peer, reason = peer_of(layer, q, k, v, do)
        functions |= {("peer", None): peer} if peer else {}
        often = max(4, min(10 * rounds, int(LONG * 10 * rounds / (usual.time * 1e-3))))
        if runtime.interpreted:
            ms, how = dict.fromkeys(functions, 1.0), dict.fromkeys(functions, "interpreted")
        else:
            ms, how = population.timed(functions, often)
    ways = [
        {
            **{name: value for name, value in cut._asdict().items() if name != "time"},
            "predicted_ms": population.short(cut.time),
            "ms": round(ms["all", cut], 5),
            **({"dkdv_ms": round(ms["dkdv", cut], 5)} if cut in dkdv else {}),
            **seen[cut],
        }
        for cut in calls
    ]
    row = {"shape": layer, "half": half, "models": models, "timed": how["all", usual], "cuts": ways}
    chosen = cost.cut(p)
    row["chosen"] = 0 if chosen is None else next((i for i, cut in enumerate(calls) if cut == chosen), None)
    return [row | ({"cudnn_ms": round(ms["peer", None], 5)} if peer else {"no_cudnn": reason})]


def without_dq(backward):
    """A backward pass that leaves ds where it is."""
    product, stored_ds.dq_from_ds = stored_ds.dq_from_ds, lambda *_: None
    try:
        return backward()
    finally:
        stored_ds.dq_from_ds = product


def peer_of(layer, q, k, v, do):
    """``(cuDNN's backward pass, a function of nothing, None)`` or ``(None, why there is none)``."""
    if runtime.interpreted:
        return None, "no GPU"
    try:
        o = bench.sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, layer["variant"] == "causal", q.shape[1] != k.shape[1])
    except RuntimeError as error:  # heads it cannot share
        return None, str(error).splitlines()[0][:200]
    return functools.partial(torch.autograd.grad, o, (q, k, v), do, retain_graph=True), None


def launches(layer, which):
    """What ``measure`` compiles for the cut number ``which``."""
    q, k, v = rows.tensors_of(layer)
    p, x, o, lse = resolved(layer, q, k, v)
    usual, *others = cuts(p)
    if which > len(others):
        return
    gradients_of(p, x, plain_backward.Outputs(torch.zeros_like(q), None, o, lse), (usual, *others)[which], usual)


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given."""
    kinds = {}
    for layer, *_ in selected:
        kinds.setdefault((layer["variant"], layer["D"], layer["M"] % 128 == 0), []).append(layer)
    chosen = [layer for layers in kinds.values() for layer in layers[:ALIKE]]  # others ask for the same kernels
    return [((layer, which), 0, 1) for which in range(FASTEST + 2) for layer in chosen]


def line(row):
    """A row as lines of text."""
    layer = row["shape"]
    head = f"{row['half']} " + " ".join(f"{name} {value}" for name, value in layer.items() if name != "N")
    head += f"  cuDNN {row['cudnn_ms']:.4f} ms" if "cudnn_ms" in row else ""
    lines = [
        f"   {'*' if i == row['chosen'] else ' '} {cut['ms']:9.4f} ms, predicted {cut['predicted_ms']:9.4f}, without dq "
        f"{cut.get('dkdv_ms', 0):9.4f}  {cost.Cut(*(cut[name] for name in cost.Cut._fields[:-1]), 0.0)}"
        f"  error {cut['error']:.1e} off {cut['off']:.1e} same {cut['same_bits']}"
        for i, cut in enumerate(row["cuts"])
    ]
    return "\n".join([head, *lines])
