"""The ladder of lesson 06: a product of two 4096 x 4096 matrices, from lesson 05's tiles to torch's.

Every rung multiplies the same float16 matrices and adds in float32. The first converts what it loads to float32.
"""

import torch
import triton.language as tl

from benchmarks.ladder import Ladder, Peer, Rung, Sweep

SIZE = 4096
WIDE = 65_536  # columns of a b whose bands do not fit into L2: there the order of programs decides
TILES = ("32x32", "32x64", "64x64", "64x128", "128x128", "128x256", "256x128")


def tensors(device):
    """The two factors and where their product goes; a wide b and its product for the sweep of orders."""
    torch.manual_seed(0)
    half = {"dtype": torch.float16, "device": device}
    return {
        "a": torch.randn(SIZE, SIZE, **half),
        "b": torch.randn(SIZE, SIZE, **half),
        "out": torch.empty(SIZE, SIZE, **half),
        "b_wide": torch.randn(SIZE, WIDE, **half),
        "out_wide": torch.empty(SIZE, WIDE, **half),
    }


def _tile(ns, t, value):
    BLOCK_M, BLOCK_N = map(int, value.split("x"))
    num_warps = 8 if BLOCK_M * BLOCK_N > 128 * 128 else 4
    ns["matmul"](t["a"], t["b"], t["out"], (BLOCK_M, BLOCK_N, 64), num_warps=num_warps, num_stages=3)


def _tiled(DOT):
    return lambda ns, t: ns["tiled"](t["a"], t["b"], t["out"], DOT=DOT)


def _grouped(tile, num_warps, num_stages):
    return lambda ns, t: ns["matmul"](t["a"], t["b"], t["out"], tile, num_warps=num_warps, num_stages=num_stages)


LADDER = Ladder(
    lesson="06",
    kernel="matmul",
    shape={"M": SIZE, "N": SIZE, "K": SIZE},
    dtype="float16",
    tensors=tensors,
    reference=lambda t: {
        "out": t["a"].float() @ t["b"].float(),
        "out_wide": t["a"].float() @ t["b_wide"].float(),
    },
    flops=2 * SIZE**3,
    bytes=3 * SIZE**2 * 2,
    limit="matmul",
    rungs=[
        Rung("tiles", "lesson 05's, in float32", run=_tiled(tl.float32), tolerance=1e-3),
        Rung("tensor cores", "tiles meet in 16 bits", run=_tiled(tl.float16), tolerance=1e-3),
        Rung("order", "a wave is a square of tiles", run=_grouped((64, 64, 64), 4, 1), tolerance=1e-3),
        Rung("buffers", "three steps under way", run=_grouped((64, 64, 64), 4, 3), tolerance=1e-3),
        Rung("128 × 128", "half the bytes", run=_grouped((128, 128, 64), 4, 3), tolerance=1e-3),
        Rung("128 × 256", "3/4 of them, on 8 warps", run=_grouped((128, 256, 64), 8, 3), tolerance=1e-3),
        Rung("four buffers", "one more step under way", run=_grouped((128, 256, 64), 8, 4), tolerance=1e-3),
    ],
    peers=[Peer("torch.matmul", lambda t: torch.matmul(t["a"], t["b"], out=t["out"]))],
    sweeps=[
        Sweep("tile", "bytes requested, by the tile", values=TILES, run=_tile),
        Sweep(
            "num_stages",
            "steps under way at once, tiles of 128 x 128",
            values=(1, 2, 3, 4, 5),
            run=lambda ns, t, value: ns["matmul"](
                t["a"], t["b"], t["out"], (128, 128, 64), num_warps=4, num_stages=value
            ),
        ),
        Sweep(
            "GROUP_M",
            "rows of tiles in a group, N = 4096",
            values=(1, 2, 4, 8, 16, 32),
            run=lambda ns, t, value: ns["matmul"](t["a"], t["b"], t["out"], GROUP_M=value),
        ),
        Sweep(
            "GROUP_M wide",
            "rows of tiles in a group, N = 65536",
            values=(1, 2, 4, 8, 16, 32),
            run=lambda ns, t, value: ns["matmul"](t["a"], t["b_wide"], t["out_wide"], GROUP_M=value),
            outputs=("out_wide",),
            tolerance=1e-3,
        ),
    ],
)
