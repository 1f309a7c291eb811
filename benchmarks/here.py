"""Is this GPU as fast as recorded? ``python -m benchmarks.here`` says it of twelve calls, in about two minutes.

A copy and a matrix product are timed first. A call that takes longer than recorded only as far as these do, too, is on a
slower machine; one that takes longer than that has a slower kernel. Records are by GPU: ``--record`` writes this one's.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
import triton

from benchmarks import ahead, dynamic_conv, harness, recurrent_attention, tables
from benchmarks.populations import conv_wgrad as convolutions
from benchmarks.populations import flex_attention as attention
from kernels.conv_wgrad import conv2d_wgrad
from kernels.dynamic_conv import dynamic_conv as convolve

NAME = "here"
ELEMENTS = 2**28  # that are copied: two gigabytes in all, which most cards have
ROUNDS = 1
ENOUGH = 0.93  # of the recorded speed: the rest is how two runs differ
RATES = {"copy": "copy_tb_per_s", "product": "matmul_tflop_per_s"}


class Call(NamedTuple):
    """A typical call: which rate of the machine bounds it, and a function of its sizes that gives ``({pass: function of
    nothing}, {pass: (bytes, flops)})``."""

    operator: str
    what: str
    bound: str
    made: Callable
    sizes: tuple


def with_backward(forward, leaves):
    """``{pass: function of nothing}`` of a call; backward too, where something requires a gradient."""
    if not leaves:
        return {"forward": torch.no_grad()(forward)}
    o = forward()
    do = torch.randn_like(o)
    return {"forward": forward, "backward": lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)}


def short_convolution(*sizes):
    x, weight, options = dynamic_conv.arguments(*sizes)
    work = {name: (moved, 0) for name, moved in dynamic_conv.least_bytes(*sizes).items()}
    return with_backward(lambda: convolve(x, weight, **options), (x, weight)), work


def recurrence(mode, gate, *shape):
    given, calls = recurrent_attention.problem(mode, gate, shape, peers=False)
    leaves = tuple(recurrent_attention.leaves_of(given).values())
    return with_backward(calls["ours"], leaves), recurrent_attention.cost(mode, gate, *shape)


def attend(layer):
    q, k, v = attention.tensors_of(layer)
    moved, flops = 2 * q.nbytes + k.nbytes + v.nbytes, attention.flops(layer)
    work = {"forward": (moved, flops), "backward": (2 * moved, 2.5 * flops)}
    return with_backward(attention.ours(layer, q, k, v), (q, k, v) if attention.trained(layer) else ()), work


def weight_gradient(N, Ci, Co, H, R, groups):
    sides = {"stride": [1, 1], "padding": [R // 2, R // 2], "dilation": [1, 1]}
    layer = {"Ci": Ci, "Co": Co, "H": H, "W": H, "R": R, "S": R, "groups": groups} | sides
    x, dy, g = convolutions.problem(layer, N)
    call = {"weight gradient": lambda: conv2d_wgrad(x, dy, *convolutions.arguments_of(g))}
    return call, {"weight gradient": (convolutions.bytes_of(g), g.flops)}


def heads(variant, B, H, Hkv, M, N, D, **more):
    return ({"variant": variant, "B": B, "H": H, "Hkv": Hkv, "M": M, "N": N, "D": D, **more},)


CALLS = [
    Call("dynamic_conv", "taps of each token", "copy", short_convolution, (4, 4096, 2048, 4, "plain")),
    Call("dynamic_conv", "taps of all tokens", "copy", short_convolution, (8, 4096, 4096, 4, "static")),
    Call("dynamic_conv", "taps of each token, 1023 channels", "copy", short_convolution, (4, 4096, 1023, 4, "plain")),
    Call("recurrent_attention", "chunks, a gate a head", "product", recurrence, ("chunk", "g", 2, 8192, 16, 128, 128)),
    Call("recurrent_attention", "chunks, a gate a channel", "product", recurrence, ("chunk", "gk", 2, 8192, 16, 128, 128)),
    Call("recurrent_attention", "a step of decoding", "copy", recurrence, ("step", "gk", 512, 1, 16, 128, 128)),
    Call("flex_attention", "causal 4k, d 128", "product", attend, heads("causal", 4, 16, 16, 4096, 4096, 128)),
    Call("flex_attention", "documents 8k, soft cap, 32 heads on 8", "product", attend,
         heads("documents", 1, 32, 8, 8192, 8192, 128, softcap=30.0)),
    Call("flex_attention", "a query behind 32k keys", "copy", attend, heads("decoding", 4, 32, 8, 1, 32768, 128)),
    Call("conv_wgrad", "3×3, 256 → 256 channels @28", "product", weight_gradient, (128, 256, 256, 28, 3, 1)),
    Call("conv_wgrad", "1×1, 1024 → 256 channels @14", "product", weight_gradient, (256, 1024, 256, 14, 1, 1)),
    Call("conv_wgrad", "3×3 depthwise, 384 channels @28", "copy", weight_gradient, (128, 384, 384, 28, 3, 384)),
]  # fmt: skip


def measure(case, machine, rounds):
    """The rows of one call; ``machine`` and ``rounds`` are what every benchmark is given."""
    call = CALLS[case]
    torch.manual_seed(0)
    with torch.cuda.stream(torch.cuda.Stream()):  # graphs are captured on the stream whose autograd nodes they replay
        passes, work = call.made(*call.sizes)
        ms, how = harness.timed(passes, rounds)
    rows = []
    for name, time in ms.items():
        share = harness.fraction(work[name][call.bound == "product"], time, machine[RATES[call.bound]])
        row = {"gpu": machine["gpu"], "operator": call.operator, "call": call.what, "pass": name}
        rows.append(row | {"bound": call.bound, "timed": how, "ms": round(time, 5), "share": share})
    return rows


def launches(case):
    """Everything that ``measure`` launches, once: what ``compile_ahead`` compiles."""
    call = CALLS[case]
    passes, _ = call.made(*call.sizes)
    for run in passes.values():
        run()


def gpu_here():
    """This GPU and how fast it copies and multiplies."""
    major, minor = torch.cuda.get_device_capability()
    architecture = {"gpu": torch.cuda.get_device_name(), "architecture": f"sm_{major}{minor}"}
    return architecture | {"torch": torch.__version__, "triton": triton.__version__} | harness.rates(ELEMENTS)


def recorded(record, gpu):
    """``(machine, {(operator, call, pass): row})`` of a GPU's record; ``(None, {})`` if there is none."""
    record = record or {"machines": [], "rows": []}
    machine = next((one for one in record["machines"] if one["gpu"] == gpu), None)
    return machine, {which(row): row for row in record["rows"] if row["gpu"] == gpu}


def which(row):
    """What tells a row from a GPU's others."""
    return row["operator"], row["call"], row["pass"]


def extended(record, machine, rows):
    """The record with this GPU's machine and rows in place of those that it had of it."""
    record = record or {"machines": [], "rows": []}
    others = {name: [one for one in record[name] if one["gpu"] != machine["gpu"]] for name in ("machines", "rows")}
    return {"machines": [*others["machines"], machine], "rows": [*others["rows"], *rows]}


def verdict(row, machine, then, ms):
    """``(ratio, words)``: the recorded time over this one, and whether the machine or the kernel is slower; ``then`` and
    ``ms`` are the recorded machine and time."""
    ratio, rate = ms / row["ms"], RATES[row["bound"]]
    share = machine[rate] / then[rate]
    if ratio >= ENOUGH:
        return ratio, "as fast as recorded"
    if ratio >= ENOUGH * share:
        return ratio, f"as fast as the machine: its {row['bound']} reaches {share:.2f} of the recorded one's"
    return ratio, f"SLOWER than recorded; a {row['bound']} reaches {share:.2f} of the recorded one's"


def versions(machine):
    return f"torch {machine['torch']}, Triton {machine['triton']}"


def about_tables(machine):
    """Which table of tiles each operator took, a line each."""
    lines = []
    for operator in tables.OPERATORS:
        by, whose = tables.table_of(operator, machine["gpu"], machine["architecture"])
        why = {machine["gpu"]: "by its name", machine["architecture"]: f"by its architecture, {by}"}
        none = f"there is none for this GPU, nor for {machine['architecture']}"
        lines.append(f"  {operator:20} tiles of {whose}: {why.get(by, none)}")
    return lines


def report(machine, rows, record):
    """The lines that are printed of a run, beside the record."""
    known = [one["gpu"] for one in (record or {"machines": []})["machines"]]
    then, before = recorded(record, machine["gpu"])
    lines = [f"{machine['gpu']} ({machine['architecture']}), {versions(machine)}"]
    if then and versions(then) != versions(machine):
        lines[0] += f"; recorded with {versions(then)}"
    for name, rate in RATES.items():
        unit = "TB/s" if name == "copy" else "TFLOP/s"
        lines.append(f"  {name:8}{machine[rate]:9.2f} {unit}" + (f", recorded {then[rate]:.2f}" if then else ""))
    lines += about_tables(machine)
    if not known:
        lines.append("Nothing is recorded yet; --record does it.")
    elif not then:
        lines.append(f"No {machine['gpu']} has been measured, so its times stand beside none. Recorded: {', '.join(known)}.")
    beside = "the recorded time over it" if then else "the recorded shares" if known else "nothing beside it"
    lines.append(f"Of each pass its time, its share of a copy's or a product's rate, and {beside}:")
    said = []
    for row in rows:
        beside = f"{row['share']:5.0%} of a {row['bound']}"
        if which(row) in before:
            ratio, words = verdict(row, machine, then, before[which(row)]["ms"])
            beside = f"{beside:18} {ratio:5.2f}  {words}"
            said.append(words)
        elif not then:
            shares = {gpu: recorded(record, gpu)[1].get(which(row)) for gpu in known}
            beside += "".join(f", {tables.short(gpu)} {one['share']:.0%}" for gpu, one in shares.items() if one)
        lines.append(f"  {row['operator']:20}{row['call']:38}{row['pass']:16}{row['ms']:9.4f} ms {beside}")
    if said:
        fast = sum(not words.startswith("SLOWER") for words in said)
        lines.append(f"{fast} of {len(said)} passes are as fast as recorded, or as fast as the machine allows.")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write this GPU's times into results/{NAME}.json")
    parser.add_argument("--out", default=harness.RESULTS, help=f"folder of {NAME}.json")
    given = parser.parse_args()
    harness.require_gpu()
    cases = list(range(len(CALLS)))
    ahead.compile_ahead("benchmarks.here", [((case,), 0, 1) for case in cases])
    machine = gpu_here()
    torch.cuda.empty_cache()
    rows, failed = [], []
    measured = harness.measure_all("benchmarks.here", cases, machine, ROUNDS)
    for case, found, error in harness.progress(measured, total=len(cases), desc=NAME):
        rows += found
        failed += [f"FAILED {CALLS[case].operator}, {CALLS[case].what}: {error}"] if error else []
    record = harness.read(NAME, given.out)
    print(*report(machine, rows, record), *failed, sep="\n")
    if given.record and not failed:
        print(harness.write(NAME, extended(record, harness.about() | machine, rows), given.out))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
