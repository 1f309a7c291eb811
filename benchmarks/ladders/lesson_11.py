"""Lesson 11's ladder: one dynamic convolution, from one program per token to words, a window and the finished operator."""

import torch

from benchmarks.dynamic_conv import equation
from benchmarks.ladder import Ladder, Peer, Rung, Sweep
from kernels.dynamic_conv import dynamic_conv

B, T, D, W = 8, 4096, 2048, 4
TAPS = range(2, 9)  # the numbers of taps that are swept


def tensors(device):
    """x and weight of the ladder; for the sweeps over W weights ``k2`` to ``k8``.

    Their last two taps are the same, the others 0: so one answer, ``pair``, serves every W.
    """
    half = {"dtype": torch.bfloat16, "device": device}
    made = {"x": torch.randn(B, T, D, **half), "weight": torch.randn(B, T, D, W, **half)}
    for taps in TAPS:
        made[f"k{taps}"] = torch.zeros(B, T, D, taps, **half)
        made[f"k{taps}"][..., -2:] = made["weight"][..., -2:]
    return made


def convolution(x, weight):
    """The equation, one sequence after another, summed in float64, as float32."""
    X = torch.nn.functional.pad(x, (0, 0, weight.shape[-1] - 1, 0))
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    for b in range(x.shape[0]):
        terms = (weight[b, :, :, w].double() * X[b, w : w + x.shape[1]].double() for w in range(weight.shape[-1]))
        y[b] = sum(terms)
    return y


def reference(t):
    """y of the ladder, and of the two taps that all swept weights have."""
    return {"y": convolution(t["x"], t["weight"]), "pair": convolution(t["x"], t["k2"])}


compiled = torch.compile(equation)

LADDER = Ladder(
    lesson="11",
    notebooks=("10", "11"),
    kernel="dynamic_conv forward",
    shape={"B": B, "T": T, "D": D, "W": W},
    dtype="bfloat16",
    tensors=tensors,
    reference=reference,
    flops=2 * W * B * T * D,
    bytes=2 * B * T * D * (W + 2),
    limit="copy",
    rungs=[
        Rung("published scheme", "one program per token",
             lambda ns, t: {"y": ns["one_token"](t["x"], t["weight"], KNOWN=False)}, ("y",)),
        Rung("stride known", "the compiler may join taps",
             lambda ns, t: {"y": ns["one_token"](t["x"], t["weight"], KNOWN=True)}, ("y",)),
        Rung("tap by tap", "a tile, eight channels a thread",
             lambda ns, t: {"y": ns["convolution"](t["x"], t["weight"])}, ("y",), 5e-3),
        Rung("four channels a thread", "half the tile: lanes less far apart",
             lambda ns, t: {"y": ns["convolution"](t["x"], t["weight"], BLOCK_T=4)}, ("y",), 5e-3),
        Rung("in words", "the same tile, four in every load",
             lambda ns, t: {"y": ns["walk_along"](t["x"], t["weight"], RUN=1)}, ("y",), 5e-3),
        Rung("window walk", "runs of two, the window kept",
             lambda ns, t: {"y": ns["walk_along"](t["x"], t["weight"], RUN=2)}, ("y",), 5e-3),
        Rung("finished operator", "tuned: short runs, small programs",
             lambda ns, t: {"y": dynamic_conv(t["x"], t["weight"])}, ("y",), 5e-3, finished=True),
    ],
    peers=[Peer("torch.compile", lambda t: {"y": compiled(t["x"], t["weight"])}, ("y",), 5e-3)],
    sweeps=[
        Sweep("RUN", "tokens that a window walks", (1, 2, 4, 8, 16, 32, 64, 128),
              lambda ns, t, value: {"y": ns["walk_along"](t["x"], t["weight"], RUN=value)}, ("y",), 5e-3),
        Sweep("channels a thread", "how far apart lanes read", (1, 2, 4, 8),  # a tile of 128 channels for 128 threads
              lambda ns, t, value: {"y": ns["convolution"](t["x"], t["weight"], BLOCK_T=value)}, ("y",), 5e-3),
        Sweep("W tap by tap", "one weight in a load", tuple(TAPS),
              lambda ns, t, value: {"pair": ns["convolution"](t["x"], t[f"k{value}"])}, ("pair",), 5e-3),
        Sweep("W in words", "four in a load", tuple(TAPS),
              lambda ns, t, value: {"pair": ns["walk_along"](t["x"], t[f"k{value}"], RUN=1)}, ("pair",), 5e-3),
    ],
)  # fmt: skip
