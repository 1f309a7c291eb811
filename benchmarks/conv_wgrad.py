"""The weight gradient of 2-D convolutions on this GPU beside cuDNN's: ``python -m benchmarks.conv_wgrad``."""

import argparse
import itertools
import re

import torch
import triton

from benchmarks import harness
from benchmarks.tune import launched_with
from kernels import runtime
from kernels.conv_wgrad import conv2d_bias_grad, conv2d_wgrad
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.operator import FEW, sum_splits
from kernels.conv_wgrad.portable import size_class
from kernels.conv_wgrad.reference import conv2d_wgrad_reference

CASES = [  # N, Ci, Co, H = W, R = S, stride, padding, groups
    (128, 384, 384, 64, 3, 1, 1, 1),
    (128, 128, 128, 64, 3, 1, 1, 1),
    (64, 256, 256, 56, 3, 1, 1, 1),
    (64, 512, 512, 28, 3, 1, 1, 1),
    (128, 256, 512, 56, 3, 2, 1, 1),
    (128, 384, 384, 64, 1, 1, 0, 1),
    (16, 96, 128, 64, 3, 1, 1, 1),
    (64, 64, 64, 56, 3, 1, 1, 1),
    (64, 3, 64, 224, 7, 2, 3, 1),
    (64, 384, 384, 28, 7, 1, 3, 384),
]
NAMES = ("N", "Ci", "Co", "H", "R", "stride", "padding", "groups")
CHANNELS_COMPARED = 8  # output channels that are held against float64


def describe(case):
    """A case in words, which ``--only`` is matched with: ``"N128 Ci384 Co384 H64 R3 stride1 padding1 groups1"``."""
    return " ".join(f"{name}{size}" for name, size in zip(NAMES, case, strict=True))


def variant(case):
    """What kind of convolution a case is."""
    *_, R, _, _, groups = case
    return "depthwise" if groups > 1 else f"{R}x{R}"


def geometry_of(case):
    """The ``Geometry`` of a case."""
    N, Ci, Co, H, R, stride, padding, groups = case
    return geometry((N, H, H, Ci), Co, R, R, stride, padding, 1, groups)


def problem(case, dtype=torch.bfloat16):
    """``(input, grad_output, Geometry)`` with random values, channels last."""
    g = geometry_of(case)
    make = lambda shape: torch.randn(shape, device=runtime.device).to(dtype)  # noqa: E731
    return make(g.input_shape), make(g.output_shape), g


def ours(x, dy, g, backend="auto"):
    """Our weight gradient, [Co, R, S, Ci/groups]."""
    return conv2d_wgrad(x, dy, g.R, g.S, g.stride, g.padding, g.dilation, g.groups, backend=backend)


def by_torch(x, dy, g, memory_format):
    """torch's weight gradient, cuDNN's on a GPU, as a function of nothing; tensors in ``memory_format`` beforehand."""
    x, dy = (t.permute(0, 3, 1, 2).contiguous(memory_format=memory_format) for t in (x, dy))
    weight = torch.empty(g.weight_shape, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
    weight = weight.contiguous(memory_format=memory_format)
    padding = [g.padding[0], g.padding[2]]
    wanted = [False, True, False]

    def call():
        arguments = (g.stride, padding, g.dilation, False, [0, 0], g.groups, wanted)
        return torch.ops.aten.convolution_backward(dy, x, weight, None, *arguments)[1].permute(0, 2, 3, 1)

    return call


def calls_of(x, dy, g):
    """``{name: function of nothing that gives the gradient}``; the portable kernel's, too, where another is faster."""
    chosen = conv2d_wgrad.explain(x, dy, g.R, g.S, g.stride, g.padding, g.dilation, g.groups)
    portable = {} if chosen.startswith("triton: ") else {"ours, portable": lambda: ours(x, dy, g, "triton")}
    return {
        "ours": lambda: ours(x, dy, g),
        **portable,
        "cuDNN nhwc": by_torch(x, dy, g, torch.channels_last),
        "cuDNN nchw": by_torch(x, dy, g, torch.contiguous_format),
    }


def cost(case, element=2):
    """``(bytes, flops)``: both tensors read once and the gradient written once; a multiplication and an addition a term."""
    g = geometry_of(case)
    return element * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns), g.flops


def errors_of(x, dy, g, results):
    """``{name: error}`` of the first output channels against float64, tap by tap: im2col in float64 fills a GPU."""
    few = min(CHANNELS_COMPARED, g.Co) if g.groups == 1 else g.Co
    top, bottom, left, right = g.padding
    padded = torch.nn.functional.pad(x, (0, 0, left, right, top, bottom))
    want = torch.empty(few, g.R, g.S, g.Ci_group, dtype=torch.float64, device=x.device)
    exact = dy[..., :few].double()
    for r, s in itertools.product(range(g.R), range(g.S)):
        seen = padded[:, r * g.dilation[0] :, s * g.dilation[1] :]
        seen = seen[:, : (g.P - 1) * g.stride[0] + 1, : (g.Q - 1) * g.stride[1] + 1].double()
        want[:, r : r + 1, s : s + 1] = conv2d_wgrad_reference(seen, exact, 1, 1, g.stride, groups=g.groups)
    return {name: harness.relative_error(result[:few], want) for name, result in results.items()}


def measure(case, machine, rounds):
    """The row of one case."""
    torch.manual_seed(0)
    x, dy, g = problem(case)
    with torch.cuda.stream(torch.cuda.Stream()):
        calls = calls_of(x, dy, g)
        errors = errors_of(x, dy, g, {name: call() for name, call in calls.items()})
        ms, how = harness.timed(calls, rounds)
    moved, flops = cost(case)
    short = {name: float(f"{error:.3g}") for name, error in errors.items()}
    return {
        "kernel": "conv_wgrad",
        "pass": "weight gradient",
        "shape": dict(zip(NAMES, case, strict=True)),
        "dtype": "bfloat16",
        "variant": variant(case),
        "timed": how,
        "explained": harness.explained(conv2d_wgrad, x, dy, g.R, g.S, g.stride, g.padding, g.dilation, g.groups),
        "ours_ms": round(ms["ours"], 4),
        "bytes": moved,
        "flops": flops,
        "tflop_per_s": round(flops / ms["ours"] / 1e9, 1),
        "fraction_of_matmul": harness.fraction(flops, ms["ours"], machine["matmul_tflop_per_s"]),
        "relative_error": short["ours"],
        "peers": [
            {
                "name": peer,
                "version": f"torch {torch.__version__}"
                + (
                    f", cuDNN {torch.backends.cudnn.version()}" if "cuDNN" in peer else f", Triton {triton.__version__}"
                ),
                "ms": round(ms[peer], 4),
                "relative_error": short[peer],
            }
            for peer in calls
            if peer != "ours"
        ],
    }


# What ``benchmarks.tune`` asks for: the classes to tune, the candidates, the problems, a call that uses a candidate.

CLASSES = {  # dtype, input and output channels, groups, height and width of the filter
    "product": [
        ("bfloat16", 384, 384, 1, 3),
        ("bfloat16", 64, 64, 1, 3),
        ("bfloat16", 256, 64, 1, 1),
        ("bfloat16", 3, 64, 1, 7),
        ("float32", 128, 384, 1, 3),
    ],
    "hopper": [("bfloat16", 384, 384, 1, 3)],
    "depthwise": [("bfloat16", 384, 384, 384, 3)],
    "bias": [("bfloat16", 384, 384, 1, 3)],
    "sum": [("bfloat16", 384, 384, 1, 3)],
}
SHARED_BYTES = 227 * 1024
TILES = [(128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64)]


def candidates(kernel):
    """Launch configurations worth timing: of the product, tiles that fit in registers with as many stages as fit in shared
    memory, for one program or two on a multiprocessor; of Hopper's, tiles of all registers with fewer stages, too."""
    processors = torch.cuda.get_device_properties(runtime.device).multi_processor_count
    if kernel == "sum":
        return [{"BLOCK": block, "num_warps": warps} for block in (256, 512, 1024, 2048) for warps in (2, 4, 8)]
    if kernel == "bias":
        return [
            {"BLOCK_M": m, "BLOCK_K": k, "STAGES": 1, "HELD": processors * programs, "num_warps": warps}
            for m, k in itertools.product((32, 64, 128), (16, 32, 64, 128))
            for warps in (2, 4, 8)
            for programs in (4, 8)
            if 8 <= m * k // (32 * warps) <= 64
        ]
    if kernel == "depthwise":
        return [
            {"BLOCK_M": m, "BLOCK_K": k, "RUN": run, "SUMS": 49, "HELD": processors * 16 // warps, "num_warps": warps}
            for m, k, run, warps in itertools.product((32, 64, 128), (4, 8, 16, 32), (4, 7, 14), (4, 8))
            if 1 <= m * k // (32 * warps) <= 8  # taps multiply a thread's sums
        ]
    if kernel == "hopper":
        return [
            {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": k, "GROUPS": 3, "STAGES": stages}
            for k, stages in ((32, 6), (32, 5), (32, 4), (64, 3), (64, 2))
        ]
    found = []
    for (m, n), k, programs, warps in itertools.product(TILES, (32, 64), (1, 2), (4, 8)):
        stages = min(6, SHARED_BYTES // programs // (2 * k * (m + n)))
        accumulators = m * n // (32 * warps)
        if stages >= 3 and 32 <= accumulators <= 128 and programs * warps * accumulators <= 1024:
            options = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages}
            rest = {"HELD": processors * programs, "num_warps": warps}
            found += [options | {"TMA": tma} | rest for tma in (False, True)]
    return found


def tuning_shapes(kernel):
    """``(N, H)`` of the problems that candidates are timed on."""
    return [(128, 64), (64, 56), (64, 28)]


def tuned_call(kernel, shape, dtype, Ci, Co, groups, R):
    """``(name of the class, call(options))``: the gradient that launches ``kernel`` on random inputs, with these options."""
    N, H = shape
    dtype = getattr(torch, dtype)
    x, dy, g = problem((N, Ci, Co, H, R, 1, R // 2, groups), dtype)
    backend = "hopper" if kernel == "hopper" else "triton"
    run = {"bias": lambda: conv2d_bias_grad(dy), "sum": lambda: sum_splits(partials, out, False)}.get(
        kernel, lambda: ours(x, dy, g, backend)
    )
    out = torch.empty(g.weight_shape, dtype=dtype, device=x.device)
    partials = torch.randn(FEW, *g.weight_shape, device=x.device) if kernel == "sum" else None

    def call(options):
        with launched_with(kernel, options):
            run()

    precision = "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "ieee"
    names = {"product": size_class(g, dtype, precision), "depthwise": size_class(g, dtype, precision), "sum": "few"}
    return names.get(kernel, "default"), call


def line(row):
    """A row as one line of text."""
    peers = "  ".join(f"{p['ms'] / row['ours_ms']:.2f}x {p['name']} ({p['relative_error']:.1e})" for p in row["peers"])
    speed = f"{row['tflop_per_s']:6.1f} TFLOP/s, {row['fraction_of_matmul']:.3f} of matmul"
    shape = str(list(row["shape"].values()))
    return (
        f"{row['variant']:9} {shape:38} {row['ours_ms']:7.3f} ms  {speed}  error {row['relative_error']:.1e}  {peers}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=harness.RESULTS, help="folder for conv_wgrad.json")
    parser.add_argument(
        "--only", default="", help="only the cases this regular expression is found in, as 'R3 stride1'"
    )
    parser.add_argument("--quick", action="store_true", help="a third of the calls")
    given = parser.parse_args()
    harness.require_gpu()
    torch.backends.cudnn.benchmark = True
    machine = harness.machine()
    selected = [case for case in CASES if re.search(given.only, describe(case))]
    rows = []
    for case in harness.progress(selected, desc="conv_wgrad"):
        rows.append(measure(case, machine, rounds=1 if given.quick else 3))
        print(line(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    print(machine, harness.write("conv_wgrad", {"machine": machine, "rows": rows}, given.out))


if __name__ == "__main__":
    main()
