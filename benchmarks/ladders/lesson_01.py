"""The ladder of lesson 01: one matrix of 8192 x 8192 float32 numbers, transposed by one kernel with tiles of three shapes.

Each tile has 1,024 lanes; what differs is which of them lie together in memory.
"""

import torch

from benchmarks.ladder import Ladder, Peer, Rung

SIZE = 8192


def tensors(device, size=SIZE):
    """A matrix that is stored by columns, and one that is stored by rows for its copy."""
    torch.manual_seed(0)
    return {"x": torch.randn(size, size, device=device).t(), "out": torch.empty(size, size, device=device)}


def _copy(BLOCK_M, BLOCK_N):
    return lambda ns, t: ns["copy"](t["x"], t["out"], BLOCK_M, BLOCK_N)


LADDER = Ladder(
    lesson="01",
    kernel="copy",
    shape={"M": SIZE, "N": SIZE},
    dtype="float32",
    tensors=tensors,
    reference=lambda t: {"out": t["x"].clone()},
    flops=0,
    bytes=2 * SIZE**2 * 4,
    limit="copy",
    rungs=[
        Rung("rows", "tiles of 1 x 1024", run=_copy(1, 1024), outputs=("out",), tolerance=1e-6),
        Rung("columns", "tiles of 1024 x 1", run=_copy(1024, 1), outputs=("out",), tolerance=1e-6),
        Rung("squares", "tiles of 32 x 32", run=_copy(32, 32), outputs=("out",), tolerance=1e-6),
    ],
    peers=[Peer("torch's copy_", lambda t: t["out"].copy_(t["x"]))],
)  # fmt: skip
