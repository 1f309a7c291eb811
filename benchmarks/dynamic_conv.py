"""Dynamic convolution on this GPU, beside torch.compile and the published scheme: ``python -m benchmarks.dynamic_conv``."""

import argparse

import torch
import torch.nn.functional as F

from benchmarks import harness
from benchmarks.published_dynamic_conv import PublishedDynamicConv
from benchmarks.tune import launched_with
from kernels import runtime
from kernels.dynamic_conv import dynamic_conv, operator
from kernels.dynamic_conv.reference import dynamic_conv_reference

SHAPES = [(8, 4096, 2048), (4, 8192, 1536), (16, 2048, 1024)]
WIDTHS = [2, 3, 8]
VARIANTS = ["silu", "state", "packed", "packed state", "static", "float16", "float32"]


def equation(x, weight):
    """What one would write in PyTorch and hand to torch.compile."""
    T, W = x.shape[1], weight.shape[-1]
    padded = F.pad(x, (0, 0, W - 1, 0)).float()
    return sum(padded[:, w : w + T] * weight[..., w].float() for w in range(W)).to(x.dtype)


def cases():
    """(shape, W, variant) of every row."""
    yield from (((*shape, 4), "plain") for shape in SHAPES)
    yield from (((*SHAPES[0], W), "plain") for W in WIDTHS)
    yield from (((*SHAPES[0], 4), variant) for variant in VARIANTS)


def arguments(B, T, D, W, variant):
    """Random arguments of a case: ``(x, weight, keyword arguments)``; packed cases lay the batch end to end."""
    dtype = {"float16": torch.float16, "float32": torch.float32}.get(variant, torch.bfloat16)
    make = lambda *shape: torch.randn(shape, device=runtime.device, dtype=dtype).requires_grad_()  # noqa: E731
    options = {}
    if "packed" in variant:
        options["cu_seqlens"] = torch.arange(B + 1, device=runtime.device) * T
    if "state" in variant:
        options["initial_state"] = make(B, D, W - 1)
        options["output_final_state"] = True
    if variant == "silu":
        options["activation"] = "silu"
    rows = (1, B * T) if "packed" in variant else (B, T)
    return make(*rows, D), make(D, W) if "static" in variant else make(*rows, D, W), options


def least_bytes(B, T, D, W, variant):
    """Bytes that must move, forward and backward: every input read once, every output written once."""
    element = 4 if variant == "float32" else 2
    weight = D * W if "static" in variant else B * T * D * W
    return {"forward": element * (2 * B * T * D + weight), "backward": element * (3 * B * T * D + 2 * weight)}


def measure(shape, variant, machine):
    """The two rows, forward and backward, of one case; the GPU's time alone, replayed from CUDA graphs."""
    B, T, D, W = shape
    x, weight, options = arguments(*shape, variant)
    leaves = [x, weight] + [options[name] for name in ("initial_state",) if name in options]
    calls = {"ours": lambda: dynamic_conv(x, weight, **options)}
    versions = {}
    if variant == "plain":
        compiled = harness.compiled(equation)
        calls["torch.compile"] = lambda: compiled(x, weight)
        versions["torch.compile"] = torch.__version__
        if W in (2, 4, 8):
            calls["one program per (batch, time)"] = lambda: PublishedDynamicConv.apply(x, weight)
            versions["one program per (batch, time)"] = "the published scheme, written here"

    # Graphs are captured on the stream whose autograd nodes they replay.
    with torch.cuda.stream(torch.cuda.Stream()):
        outputs = {name: call() for name, call in calls.items()}
        outputs = {name: out if isinstance(out, tuple) else (out,) for name, out in outputs.items()}
        gradients = [torch.randn_like(out) for out in outputs["ours"]]
        backward = {
            name: lambda out=out: torch.autograd.grad(out, leaves, gradients, retain_graph=True)
            for name, out in outputs.items()
        }
        errors = {
            name: first_sequence_errors(x, weight, options, T, out, backward[name](), gradients)
            for name, out in outputs.items()
        }
        forward_ms = harness.alternately({name: harness.captured(call) for name, call in calls.items()})
        backward_ms = harness.alternately({name: harness.captured(call) for name, call in backward.items()})

    moved = least_bytes(*shape, variant)
    rows = []
    for i, (name, ms) in enumerate((("forward", forward_ms), ("backward", backward_ms))):
        rate = moved[name] / ms["ours"] / 1e9
        rows.append(
            {
                "kernel": "dynamic_conv",
                "pass": name,
                "shape": dict(zip("BTDW", shape, strict=True)),
                "dtype": str(x.dtype).removeprefix("torch."),
                "variant": variant if variant not in ("float16", "float32") else "plain",
                "ours_ms": round(ms["ours"], 4),
                "bytes": moved[name],
                "flops": (2 if name == "forward" else 3) * W * B * T * D,
                "fraction_of_copy": round(rate / machine["copy_tb_per_s"], 4),
                "relative_error": float(f"{errors['ours'][i]:.3g}"),
                "peers": [
                    {
                        "name": peer,
                        "version": versions[peer],
                        "ms": round(ms[peer], 4),
                        "relative_error": float(f"{errors[peer][i]:.3g}"),
                    }
                    for peer in versions
                ],
            }
        )
    return rows


def first_sequence_errors(x, weight, options, T, out, grads, gradients):
    """Errors of y, and of dx and dweight together, on the first sequence, against the float64 reference."""
    kept = dict(options)
    if kept.pop("cu_seqlens", None) is not None:
        kept["cu_seqlens"] = torch.tensor([0, T], device=x.device)
    first = lambda t: (
        t.detach()[:1, :T].double().requires_grad_() if t.ndim > 2 else t.detach().double().requires_grad_()
    )  # noqa: E731
    x64, k64 = first(x), first(weight)
    if "initial_state" in kept:
        kept["initial_state"] = kept["initial_state"].detach()[:1].double()
    y64 = dynamic_conv_reference(x64, k64, **kept)
    y64 = y64 if isinstance(y64, tuple) else (y64,)
    dy = [gradients[0][:1, :T].double()] + [g[:1].double() for g in gradients[1:]]
    dx64, dk64 = torch.autograd.grad(y64, (x64, k64), dy)
    pairs = [(grads[0][:1, :T], dx64)] + ([(grads[1][:1, :T], dk64)] if weight.ndim > 2 else [])
    return harness.relative_error(out[0][:1, :T], y64[0]), max(harness.relative_error(a, b) for a, b in pairs)


# What ``benchmarks.tune`` asks for: the classes to tune, the candidates, a call that uses one.

CONVOLUTIONS = [(2, 16), (3, 16), (4, 16), (8, 16), (4, 32)]
CLASSES = {
    "forward": CONVOLUTIONS,
    "step": [(4, 16), (4, 32)],
}


def candidates(kernel):
    """Launch configurations worth timing: one word a thread; forward, runs of few steps. Those of the backward loop, and of
    both loops of a weight that all tokens share, are chosen by a model of cost (``benchmarks.dynamic_conv_cost``)."""
    if kernel == "step":
        return [{"BLOCK": block, "num_warps": warps} for block in (64, 128, 256, 512) for warps in (1, 2, 4, 8)]
    if kernel == "forward":
        return [
            {"G": 4, "ROWS": 1, "RUN": run, "BLOCK": 32 * warps, "num_warps": warps}
            for warps in (1, 2, 4, 8)
            for run in (1, 2, 4, 8, 16)
        ]


def tuning_shapes(kernel):
    """B, T, D of the problems that candidates are timed on."""
    return SHAPES


def tuned_call(kernel, shape, W, bits, *variant):
    """``(name of the class, call(options))``: run ``kernel`` on random inputs with the given launch configuration; a "static"
    one with one weight for all tokens."""
    B, T, D = shape
    dtype = torch.bfloat16 if bits == 16 else torch.float32
    make = lambda *size: torch.randn(size, device=runtime.device, dtype=dtype)  # noqa: E731
    packed, static = "packed" in variant, "static" in kernel
    cu_seqlens = torch.arange(B + 1, device=runtime.device) * T if packed else None
    rows = (B * T // 32,) if kernel == "step" else (1, B * T) if packed else (B, T)
    x, weight = make(*rows, D), make(D, W) if static else make(*rows, D, W)
    if kernel == "step":
        state = make(*rows, D, W - 1)
        run = lambda: operator.step(x, weight, state, None, None, None, None)  # noqa: E731
    elif "forward" in kernel:
        run = lambda: operator.forward(x, weight, None, None, None, None, False, cu_seqlens)  # noqa: E731
    else:
        dy = make(*rows, D)
        needs = (True, True, False, False)
        run = lambda: operator.backward(dy, None, x, weight, None, None, cu_seqlens, None, False, needs)  # noqa: E731

    def call(options):
        with launched_with(kernel, options):
            run()

    return operator.size_class(W, dtype, packed=packed and kernel == "backward"), call


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=harness.RESULTS, help="folder for dynamic_conv.json")
    parser.add_argument("--only", default="", help="run only the rows whose description contains this")
    arguments_given = parser.parse_args()
    harness.require_gpu()
    machine = harness.machine()
    rows = []
    selected = [case for case in cases() if arguments_given.only in str(case)]
    for shape, variant in harness.progress(selected, desc="dynamic_conv"):
        torch._dynamo.reset()
        rows += measure(shape, variant, machine)
        torch.cuda.empty_cache()
    path = harness.write("dynamic_conv", {"machine": machine, "rows": rows}, arguments_given.out)
    for row in rows:
        peers = "  ".join(f"{p['name']} {p['ms'] / row['ours_ms']:.2f}x" for p in row["peers"])
        print(f"{row['pass']:8} {list(row['shape'].values())} {row['dtype']:8} {row['variant']:12} {row['ours_ms']:.3f} ms  "
              f"{row['fraction_of_copy']:.3f} of copy  error {row['relative_error']:.1e}  {peers}")  # fmt: skip
    print(machine, path)


if __name__ == "__main__":
    main()
