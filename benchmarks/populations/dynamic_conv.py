"""Short convolutions of real sequence models, with taps of their own for each token or the same for all; beside a copy."""

import functools

import torch

from benchmarks import dynamic_conv as bench
from benchmarks import harness
from benchmarks.populations import population
from kernels.dynamic_conv import dynamic_conv

OPERATOR = "dynamic_conv"
MOST_BYTES = 4 * 2**30  # of a forward pass


def cases(half):
    """``(layer, half, models)`` of every row, with fewer tokens where they would take long."""
    return population.cases(OPERATOR, half, fitted)


def variant_of(layer):
    """What the benchmark of the operator calls it."""
    return "static" if layer["taps"] == "static" else "plain"


def bytes_of(layer):
    """``{pass: bytes}``: every input read once, every output written once."""
    return bench.least_bytes(*(layer[name] for name in "BTDW"), variant_of(layer))


def fitted(layer):
    """A layer with its channels halved, as they would be dealt to several GPUs, until it is short enough."""
    layer = dict(layer)
    while bytes_of(layer)["forward"] > MOST_BYTES:
        layer["D"] //= 2
    return layer


def describe(case):
    """A case in words, which ``--only`` is matched with."""
    layer, half, models = case
    return f"{half} {layer['taps']} " + " ".join(f"{name}{layer[name]}" for name in "BTDW") + f" {models[0]}"


def measure(case, machine, rounds):
    """The rows of one case, forward and backward."""
    layer, half, models = case
    torch.manual_seed(0)
    B, T, D, W = (layer[name] for name in "BTDW")
    with population.stream():
        x, weight, options = bench.arguments(B, T, D, W, variant_of(layer))
        y = dynamic_conv(x, weight, **options)
        dy = torch.randn_like(y)
        passes = {
            "forward": lambda: dynamic_conv(x, weight, **options),
            "backward": functools.partial(torch.autograd.grad, y, (x, weight), dy, retain_graph=True),
        }
        errors = few_errors(x, weight, y, passes["backward"](), dy)
        times = {}
        for name, call in passes.items():
            moved = bytes_of(layer)[name]
            source = torch.empty(moved // 4, dtype=torch.bfloat16, device=x.device)
            target = torch.empty_like(source)
            # A kernel that reads and writes every element once. The driver's own copy takes half as long again where the size
            # is no multiple of 4 KiB, and where it passes a gigabyte.
            calls = {"ours": call, "copy": functools.partial(torch.neg, source, out=target)}
            times[name] = population.timed(calls, 10 * rounds)
    return [
        {
            "kernel": OPERATOR,
            "pass": name,
            "half": half,
            "models": models,
            "kind": f"{layer['taps']} W{W}",
            "shape": layer,
            "dtype": "bfloat16",
            "timed": how["ours"],
            "ours_ms": round(ms["ours"], 5),
            "bytes": bytes_of(layer)[name],
            "relative_error": max(errors[name].values(), default=None),
            "errors": errors[name],
            "peers": [population.peer("copy", f"torch {torch.__version__}", ms["copy"], how["copy"], 0.0)],
        }
        for name, (ms, how) in times.items()
    ]


def few_errors(x, weight, y, gradients, dy, tokens=4096):
    """``{pass: {tensor: error}}`` against float64, on the first sequence; a long one's first tokens, as far as a token's
    gradient is known without the later ones."""
    T, W = x.shape[1], weight.shape[-1]
    some = min(T, tokens)
    sure = some if some == T else some - (W - 1)  # x's gradient reads the next W - 1 tokens
    first = lambda t: t.detach()[:1, :some].double().requires_grad_()  # noqa: E731
    x64 = first(x)
    w64 = first(weight) if weight.ndim > 2 else weight.detach().double().requires_grad_()
    y64 = exact(x64, w64)
    dx, dw = torch.autograd.grad(y64, (x64, w64), dy[:1, :some].double())
    error = lambda ours, want: population.short(harness.relative_error(ours, want))  # noqa: E731
    errors = {"forward": {"y": error(y[:1, :some], y64)}, "backward": {"x": error(gradients[0][:1, :sure], dx[:, :sure])}}
    if weight.ndim > 2:
        errors["backward"]["weight"] = error(gradients[1][:1, :some], dw)
    elif x.shape[0] == 1 and some == T:
        errors["backward"]["weight"] = error(gradients[1], dw)
    return errors


def exact(x, weight):
    """The equation in float64."""
    T, W = x.shape[1], weight.shape[-1]
    padded = torch.nn.functional.pad(x, (0, 0, W - 1, 0))
    return sum(padded[:, w : w + T] * weight[..., w] for w in range(W))


def launches(layer):
    """What ``measure`` launches of ours."""
    x, weight, options = bench.arguments(*(layer[name] for name in "BTDW"), variant_of(layer))
    y = dynamic_conv(x, weight, **options)
    torch.autograd.grad(y, (x, weight), y.detach())


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given."""
    return [((layer,), 0, 1) for layer, *_ in selected]


def line(row):
    """A row as one line of text."""
    sizes = " ".join(f"{name}{row['shape'][name]}" for name in "BTDW")
    copy = row["peers"][0]
    return (
        f"{row['half']:8} {row['pass']:8} {row['kind']:9} {sizes:26} {row['ours_ms']:8.4f} ms "
        f"{copy['ms'] / row['ours_ms']:.3f} of a copy  error {row['relative_error']}"
    )
