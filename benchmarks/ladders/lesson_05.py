"""The ladder of lesson 05: a product of two 4096 x 4096 matrices, by one output a program and by tiles.

Both rungs convert the float16 numbers that they load to float32, multiply them there, and add in float32.
"""

import torch
import triton.language as tl

from benchmarks.ladder import Ladder, Rung

SIZE = 4096


def tensors(device):
    """The two factors and where their product goes."""
    torch.manual_seed(0)
    half = {"dtype": torch.float16, "device": device}
    a, b = torch.randn(SIZE, SIZE, **half), torch.randn(SIZE, SIZE, **half)
    return {"a": a, "b": b, "out": torch.empty(SIZE, SIZE, **half)}


LADDER = Ladder(
    lesson="05",
    kernel="matmul",
    shape={"M": SIZE, "N": SIZE, "K": SIZE},
    dtype="float16",
    tensors=tensors,
    reference=lambda t: {"out": t["a"].float() @ t["b"].float()},
    flops=2 * SIZE**3,
    bytes=3 * SIZE**2 * 2,
    limit="matmul",
    rungs=[
        Rung(
            "naive",
            "one element of out a program",
            run=lambda ns, t: ns["naive"](t["a"], t["b"], t["out"]),
            tolerance=1e-3,
        ),
        Rung(
            "tiles",
            "a number loaded serves 64 times",
            run=lambda ns, t: ns["tiled"](t["a"], t["b"], t["out"], DOT=tl.float32),
            tolerance=1e-3,
        ),
    ],
)
