"""The ladder of lesson 02: 4096 rows of 16384 numbers at mean 0 and variance 1, by PyTorch's calls and by one kernel."""

import torch

from benchmarks.ladder import Ladder, Peer, Rung

M, N = 4096, 16_384


def tensors(device):
    """The rows, their weights, and where each rung's answer goes."""
    torch.manual_seed(0)
    return {
        "x": (3 + torch.randn(M, N, device=device)).bfloat16(),
        "weight": torch.randn(N, device=device).bfloat16(),
    }


LADDER = Ladder(
    lesson="02",
    kernel="standardise",
    shape={"M": M, "N": N},
    dtype="bfloat16",
    tensors=tensors,
    reference=lambda t: {"out": torch.nn.functional.layer_norm(t["x"].float(), (N,), t["weight"].float())},
    flops=8 * M * N,
    bytes=2 * M * N * 2,
    limit="copy",
    rungs=[
        Rung("plain PyTorch", "a call for each operation", run=lambda ns, t: {"out": ns["plain"](t["x"], t["weight"])}),
        Rung(
            "one kernel",
            "one program walks a row",
            run=lambda ns, t: {"out": ns["standardise"](t["x"], t["weight"])},
        ),
    ],
    peers=[
        Peer("torch's layer_norm", lambda t: {"out": torch.nn.functional.layer_norm(t["x"], (N,), t["weight"])}),
    ],
)
