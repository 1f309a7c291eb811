"""Weight gradients of real models' convolutions, ours beside cuDNN's, in channels last."""

import torch

from benchmarks import conv_wgrad as bench
from benchmarks import harness
from benchmarks.populations import population
from kernels import runtime
from kernels.conv_wgrad import conv2d_wgrad
from kernels.conv_wgrad.geometry import geometry

OPERATOR = "conv_wgrad"
TFLOP_S, TB_S = 500e12, 4e12  # what a layer's time is guessed by, to choose its batch
LEAST_S, MOST_S = 40e-6, 800e-6
BATCHES = (1, 512)


def geometry_of(layer, N):
    """The ``Geometry`` of a layer and a batch."""
    shape = (N, layer["H"], layer["W"], layer["Ci"])
    stride, padding, dilation = (tuple(layer[name]) for name in ("stride", "padding", "dilation"))
    return geometry(shape, layer["Co"], layer["R"], layer["S"], stride, padding, dilation, layer["groups"])


def bytes_of(g, element=2):
    """Both tensors read once and the gradient written once."""
    return element * (g.N * g.H * g.W * g.Ci + g.M * g.Co + g.Co * g.columns)


def guess(g):
    """Seconds that a good kernel would take."""
    return max(g.flops / TFLOP_S, bytes_of(g) / TB_S)


def batch_of(layer):
    """Images: 128, or as many halves or doubles of it as bring the guessed time between the limits."""
    N = 128
    while N > BATCHES[0] and guess(geometry_of(layer, N)) > MOST_S:
        N //= 2
    while N < BATCHES[1] and guess(geometry_of(layer, N)) < LEAST_S:
        N *= 2
    return N


def cases(half):
    """``(layer, batch, half, models)`` of every row; a layer that was drawn later brings its batch."""
    rows = population.layers(OPERATOR, half)
    return [(row["layer"], row.get("N") or batch_of(row["layer"]), row["half"], row["models"]) for row in rows]


def kind(layer):
    """What kind of convolution it is: ``"3x3/2"``, ``"grouped"``, ``"depthwise"``."""
    if layer["groups"] > 1:
        return "depthwise" if layer["Ci"] == layer["groups"] else "grouped"
    return f"{layer['R']}x{layer['S']}/{layer['stride'][0]}"


def describe(case):
    """A case in words, which ``--only`` is matched with."""
    layer, N, half, models = case
    sizes = f"{layer['Ci']}->{layer['Co']} @{layer['H']}x{layer['W']}"
    groups = f" groups {layer['groups']}" if layer["groups"] > 1 else ""
    return f"{half} {kind(layer)} {layer['R']}x{layer['S']}/{layer['stride'][0]} {sizes}{groups} N{N} {models[0]}"


def problem(layer, N):
    """``(input, grad_output, Geometry)`` with random values, channels last."""
    g = geometry_of(layer, N)
    make = lambda shape: torch.randn(shape, dtype=torch.bfloat16, device=runtime.device)  # noqa: E731
    return make(g.input_shape), make(g.output_shape), g


def arguments_of(g):
    """The rest of the arguments of ``conv2d_wgrad``."""
    return g.R, g.S, g.stride, g.padding, g.dilation, g.groups


def measure(case, machine, rounds):
    """The row of one case."""
    layer, N, half, models = case
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    x, dy, g = problem(layer, N)
    calls = {"ours": lambda: conv2d_wgrad(x, dy, *arguments_of(g))}
    if not runtime.interpreted:
        calls["cuDNN nhwc"] = bench.by_torch(x, dy, g, torch.channels_last)
    with torch.no_grad():
        errors = bench.errors_of(x, dy, g, {name: call() for name, call in calls.items()})
        with population.stream():
            ms, how = population.timed(calls, 10 * rounds)
    version = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    peers = [
        population.peer(name, version, ms[name], how[name], population.short(errors[name]))
        for name in calls
        if name != "ours"
    ]
    return [
        {
            "kernel": OPERATOR,
            "pass": "weight gradient",
            "half": half,
            "models": models,
            "kind": kind(layer),
            "shape": {"N": N, **layer},
            "dtype": "bfloat16",
            "timed": how["ours"],
            "explained": explained(x, dy, g),
            "ours_ms": round(ms["ours"], 5),
            "bytes": bytes_of(g),
            "flops": g.flops,
            "relative_error": population.short(errors["ours"]),
            "peers": peers,
        }
    ]


def explained(x, dy, g):
    """What ``explain`` says was chosen, without all that was not."""
    return harness.explained(conv2d_wgrad, x, dy, *arguments_of(g)).partition("\n")[0]


def launches(layer, N):
    """What ``measure`` launches of ours."""
    x, dy, g = problem(layer, N)
    conv2d_wgrad(x, dy, *arguments_of(g))


def compile_jobs(selected):
    """What ``ahead.compile_ahead`` is given: of layers that differ in sizes that nothing is compiled for, the first."""
    return list({compiled_for(layer, N): ((layer, N), 0, 1) for layer, N, *_ in reversed(selected)}.values())


def compiled_for(layer, N):
    """What decides which kernel is compiled: kinds of addresses, vectors of channels, tiles that channels fill."""
    g = geometry_of(layer, N)
    unit = lambda size: next(unit for unit in (8, 4, 2, 1) if size % unit == 0)  # noqa: E731
    units = unit(g.Ci), unit(g.Co), unit(g.Ci_group), unit(g.Co_group)
    tiles = min(g.Co_group, 256), min(g.Ci_group, 256), g.M < 20000
    return units, tiles, g.pointwise, (g.R, g.S, *g.stride, g.Q) if kind(layer) == "depthwise" else kind(layer)


def line(row):
    """A row as one line of text."""
    shape = row["shape"]
    peers = "  ".join(
        f"{p['ms'] / row['ours_ms']:.2f}x {p['name']} ({p['relative_error']:.1e})" if "ms" in p else f"no {p['name']}"
        for p in row["peers"]
    )
    what = f"{shape['Ci']}->{shape['Co']} @{shape['H']} g{shape['groups']} N{shape['N']}"
    return f"{row['half']:8} {row['kind']:9} {what:34} {row['ours_ms']:8.4f} ms error {row['relative_error']:.1e}  {peers}"
