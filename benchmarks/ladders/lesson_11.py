"""Lesson 11's ladder: one dynamic convolution, from one program per token to words, a window and the finished operator."""

import torch

from benchmarks.dynamic_conv import equation
from benchmarks.ladder import Ladder, Peer, Rung, Sweep
from kernels.dynamic_conv import dynamic_conv

B, T, D, W = 8, 4096, 2048, 4
TAPS = range(2, 9)  # the numbers of taps that are swept


def tensors(device):
    """x, weight and y of the ladder; for the sweeps over W weights ``k2`` to ``k8``, and ``pair``, what they all give.

    Their last two taps are the same, the others 0: so one answer serves every W.
    """
    half = {"dtype": torch.bfloat16, "device": device}
    made = {"x": torch.randn(B, T, D, **half), "weight": torch.randn(B, T, D, W, **half)}
    for taps in TAPS:
        made[f"k{taps}"] = torch.zeros(B, T, D, taps, **half)
        made[f"k{taps}"][..., -2:] = made["weight"][..., -2:]
    return made | {name: torch.empty(B, T, D, **half) for name in ("y", "pair")}


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
             lambda ns, t: ns["one_token"](t["x"], t["weight"], t["y"], KNOWN=False), ("y",)),
        Rung("stride known", "the compiler may join taps",
             lambda ns, t: ns["one_token"](t["x"], t["weight"], t["y"], KNOWN=True), ("y",)),
        Rung("tap by tap", "a tile, eight channels a thread",
             lambda ns, t: ns["tap_by_tap"](t["x"], t["weight"], t["y"]), ("y",), 5e-3),
        Rung("narrow tile", "a thread has two channels",  # the best of the sweep over channels a thread
             lambda ns, t: ns["tap_by_tap"](t["x"], t["weight"], t["y"], BLOCK_T=2), ("y",), 5e-3),
        Rung("in words", "four channels in every load",
             lambda ns, t: ns["in_words"](t["x"], t["weight"], t["y"]), ("y",), 5e-3),
        Rung("window walk", "each input loaded about once",
             lambda ns, t: ns["walk"](t["x"], t["weight"], t["y"], RUN=2), ("y",), 5e-3),
        Rung("finished operator", "tuned: short runs, small programs",
             lambda ns, t: {"y": dynamic_conv(t["x"], t["weight"])}, ("y",), 5e-3, finished=True),
    ],
    peers=[Peer("torch.compile", lambda t: {"y": compiled(t["x"], t["weight"])}, ("y",), 5e-3)],
    sweeps=[
        Sweep("RUN", "tokens that a window walks", (1, 2, 4, 8, 16, 32, 64, 128),
              lambda ns, t, value: ns["walk"](t["x"], t["weight"], t["y"], RUN=value), ("y",), 5e-3),
        Sweep("channels a thread", "how far apart lanes read", (1, 2, 4, 8),  # a tile of 128 channels for 128 threads
              lambda ns, t, value: ns["tap_by_tap"](t["x"], t["weight"], t["y"], BLOCK_T=value), ("y",), 5e-3),
        Sweep("W narrow tile", "one output a thread", tuple(TAPS),  # the narrowest, BLOCK_T=1: does the time follow W?
              lambda ns, t, value: ns["tap_by_tap"](t["x"], t[f"k{value}"], t["pair"], BLOCK_T=1), ("pair",), 5e-3),
        Sweep("W tap by tap", "one weight in a load", tuple(TAPS),
              lambda ns, t, value: ns["tap_by_tap"](t["x"], t[f"k{value}"], t["pair"]), ("pair",), 5e-3),
        Sweep("W in words", "four in a load", tuple(TAPS),
              lambda ns, t, value: ns["in_words"](t["x"], t[f"k{value}"], t["pair"]), ("pair",), 5e-3),
    ],
)  # fmt: skip
