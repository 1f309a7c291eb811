"""The ladder of lesson 03: one sum of two vectors, by programs alone on their multiprocessors and by several on each."""

import torch

from benchmarks.ladder import Ladder, Peer, Rung

N = 2**26


def tensors(device):
    """Two vectors, and where their sum goes."""
    torch.manual_seed(0)
    x, y = torch.randn(2, N, device=device)
    return {"x": x, "y": y, "out": torch.empty_like(x)}


def _sum(function, *how):
    return lambda ns, t: ns[function](t["x"], t["y"], t["out"], *how)


LADDER = Ladder(
    lesson="03",
    kernel="sum of two vectors",
    shape={"N": N},
    dtype="float32",
    tensors=tensors,
    reference=lambda t: {"out": t["x"] + t["y"]},
    flops=N,
    bytes=3 * N * 4,
    limit="copy",
    rungs=[
        Rung("32 lanes", "one program on each multiprocessor", run=_sum("looped_add", 132, 32, 1), tolerance=1e-6),
        Rung("32, ahead", "asks for its next block before", run=_sum("ahead_add", 132, 32, 1), tolerance=1e-6),
        Rung("4,096 lanes", "128 times as much in flight", run=_sum("looped_add", 132, 4096, 8), tolerance=1e-6),
        Rung("4,096, ahead", "asks for its next block before", run=_sum("ahead_add", 132, 4096, 8), tolerance=1e-6),
        Rung("four programs", "others fill a program's wait", run=_sum("looped_add", 528, 4096, 8), tolerance=1e-6),
    ],
    peers=[Peer("torch.add", lambda t: torch.add(t["x"], t["y"], out=t["out"]))],
)
