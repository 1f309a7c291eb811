"""Lesson 12: both gradients of a dynamic convolution in one walk."""

import torch

from benchmarks.dynamic_conv import equation
from benchmarks.ladder import Ladder, Peer, Rung, Sweep, differentiated
from benchmarks.published_dynamic_conv import PublishedDynamicConv
from kernels.dynamic_conv import operator

SHAPE = {"B": 8, "T": 4096, "D": 2048, "W": 4}
B, T, D, W = SHAPE.values()
BOTH = ("dx", "dk")
RUNS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def tensors(device):
    """dy, x and k."""
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(shape, device=device, dtype=torch.bfloat16)  # noqa: E731
    return {"dy": make(B, T, D), "x": make(B, T, D), "k": make(B, T, D, W)}


def reference(t):
    """Both gradients in float32, tap by tap."""
    dy, x, k = t["dy"].float(), t["x"].float(), t["k"]
    dx, dk = torch.zeros_like(x), torch.zeros(k.shape, device=k.device)
    for w in range(W):
        back = W - 1 - w
        dx[:, : T - back] += dy[:, back:] * k[:, back:, :, w].float()
        dk[:, back:, :, w] = dy[:, back:] * x[:, : T - back]
    return {"dx": dx, "dk": dk}


def walk(RUN=128, WHOLE=False):
    """The lesson's walk; its list of runs is made once, as it would be for many layers."""
    runs = {}

    def run(names, t, RUN=RUN):
        if RUN not in runs:
            runs[RUN] = names["runs_of"](torch.arange(B + 1, device=t["x"].device) * T, RUN)
        found = names["gradients"](t["dy"], t["x"], t["k"], RUN=RUN, WHOLE=WHOLE, runs=runs[RUN])
        return {"dx": found[0], "dk": found[1]}

    return run


def finished(names, t):
    """The operator's own backward pass."""
    needs = (True, True, False, False)
    dx, dk, *_ = operator.backward(t["dy"], None, t["x"], t["k"], None, None, None, None, False, needs)
    return {"dx": dx, "dk": dk}


def compiled():
    """The equation through torch.compile, which is imported with the first call."""
    made = []

    def operator(x, k):
        made or made.append(torch.compile(equation))
        return made[0](x, k)

    return operator


LADDER = Ladder(
    lesson="12",
    kernel="dynamic_conv",
    shape=SHAPE,
    dtype="bfloat16",
    tensors=tensors,
    reference=reference,
    flops=3 * W * B * T * D,
    bytes=2 * B * T * D * (2 * W + 3),
    limit="copy",
    rungs=[
        Rung("one walk", "sums travel in registers", walk(), BOTH),
        Rung("whole sectors", "a channel's taps in one store", walk(WHOLE=True), BOTH),
        Rung("dynamic_conv", "all options, no dearer", finished, BOTH, finished=True),
    ],
    peers=[
        Peer("torch.compile", differentiated(compiled(), ("x", "k"), BOTH, "dy"), BOTH),
        Peer(
            "Jet-Nemotron's scheme",
            differentiated(PublishedDynamicConv.apply, ("x", "k"), BOTH, "dy"),
            BOTH,
            version=lambda: "its two kernels, written here",
        ),
    ],
    sweeps=[
        Sweep("RUN", "what a longer run saves, and what it costs", RUNS, walk(), BOTH),
        Sweep("RUN whole", "the same with whole sectors", RUNS, walk(WHOLE=True), BOTH),
    ],
)
