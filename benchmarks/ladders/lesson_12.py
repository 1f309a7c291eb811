"""Lesson 12: both gradients of a dynamic convolution, from one pass a gradient to one walk."""

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
    """dy, x and k, and room for both gradients."""
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(shape, device=device, dtype=torch.bfloat16)  # noqa: E731
    dy, x, k = make(B, T, D), make(B, T, D), make(B, T, D, W)
    return {"dy": dy, "x": x, "k": k, "dx": torch.empty_like(x), "dk": torch.empty_like(k)}


def reference(t):
    """Both gradients in float32, tap by tap."""
    dy, x, k = t["dy"].float(), t["x"].float(), t["k"]
    dx, dk = torch.zeros_like(x), torch.zeros(k.shape, device=k.device)
    for w in range(W):
        back = W - 1 - w
        dx[:, : T - back] += dy[:, back:] * k[:, back:, :, w].float()
        dk[:, back:, :, w] = dy[:, back:] * x[:, : T - back]
    return {"dx": dx, "dk": dk}


def lesson(name, **how):
    """A call of one of the lesson's functions, which all write dx and dk."""
    return lambda names, t: names[name](t["dy"], t["x"], t["k"], t["dx"], t["dk"], **how)


def sweep(name, parameter, **how):
    """The same with one of the function's parameters left to the sweep."""
    return lambda names, t, value: lesson(name, **{parameter: value}, **how)(names, t)


def as_published(names, t):
    """A token a program, two kernels, and dx filled with zeros before it is written."""
    t["dx"].zero_()
    names["two_passes"](t["dy"], t["x"], t["k"], t["dx"], t["dk"], BLOCK_T=1, BLOCK_D=128)


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
        Rung("token by token", "one program a token, two kernels", as_published, BOTH),
        Rung("two passes", "two tokens a tile, no zeros first", lesson("two_passes"), BOTH),
        Rung("one walk", "sums travel in registers", lesson("one_walk"), BOTH),
        Rung("one walk in words", "whole words and sectors", lesson("one_walk_in_words"), BOTH),
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
        Sweep("RUN", "what a longer run saves, and what it costs", RUNS, sweep("one_walk", "RUN"), BOTH),
        Sweep("RUN in words", "the same, four channels a load", RUNS, sweep("one_walk_in_words", "RUN"), BOTH),
        Sweep("BLOCK_T", "tokens in a tile", (1, 2, 4, 8, 16, 32), sweep("two_passes", "BLOCK_T"), BOTH),
    ],
)
