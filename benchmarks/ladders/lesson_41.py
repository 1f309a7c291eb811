"""Lesson 41's ladder: the weight gradient of a layer with few channels, a program for each tile of the result."""

import torch

from benchmarks.ladder import Ladder, Peer, Rung, Sweep
from benchmarks.ladders.convolution import FEW, cudnn, exact, inputs, layer, sizes
from kernels.conv_wgrad import conv2d_wgrad
from kernels.conv_wgrad.reference import im2col

TILES = ("128x256", "128x128", "64x128", "64x64", "32x64", "32x32")


def ladder(N=128, Ci=128, Co=128, H=64, R=3, BK=64, tiles=TILES, dtype=torch.bfloat16):
    g = layer(N, Ci, Co, H, R)

    def tensors(device):
        x, dy = inputs(device, g, dtype, g.output_shape)
        return {"x": x, "dy": dy, "out": torch.empty(g.weight_shape, dtype=dtype, device=device)}

    def tile(ns, t, value):
        BM, BN = map(int, value.split("x"))
        grid = -(-Co // BM), -(-g.columns // BN)
        num_warps = 8 if BM * BN >= 128 * 128 else 4
        ns["tile_kernel"][grid](t["dy"], t["x"], t["out"], sizes(g), BM, BN, BK, num_warps=num_warps)
        return {"dw": t["out"][-FEW:].flatten(1)}

    def programs(value):
        BM, BN = map(int, value.split("x"))
        return -(-Co // BM) * -(-g.columns // BN)

    def finished(ns, t):
        return {"dw": conv2d_wgrad(t["x"], t["dy"], R, R, g.stride, g.padding)[-FEW:].flatten(1)}

    def in_memory(t):
        A = im2col(t["x"], g).reshape(g.M, g.columns)
        return {"dw": (t["dy"].flatten(0, 2).T @ A)[-FEW:]}

    large, small = tiles[0], tiles[3] if len(tiles) > 3 else tiles[-1]
    return Ladder(
        lesson="41",
        kernel="conv_wgrad",
        shape={"N": N, "Ci": Ci, "Co": Co, "H": H, "R": R},
        dtype="bfloat16",
        tensors=tensors,
        reference=lambda t: {"dw": exact(t["x"], t["dy"], g)},
        flops=g.flops,
        bytes=2 * (g.N * g.H * g.W * Ci + g.M * Co + Co * g.columns),
        limit="matmul",
        rungs=[
            Rung("tiles of " + large, f"{programs(large)} programs, all pixels each",
                 lambda ns, t: tile(ns, t, large), ("dw",)),
            Rung("tiles of " + small, f"{programs(small)} programs, each all pixels still",
                 lambda ns, t: tile(ns, t, small), ("dw",)),
            Rung("finished operator", "the sum is shared out, too", finished, ("dw",), finished=True),
        ],
        peers=[
            Peer("im2col, torch.matmul", in_memory, ("dw",)),
            Peer("cuDNN nhwc", lambda t: cudnn(t, g), ("dw",)),
        ],
        sweeps=[Sweep("tile", "fewer programs, or more bytes", tiles, tile, ("dw",))],
        scratch=("out",),
        tiny=lambda: ladder(N=2, Ci=16, Co=32, H=8, R=3, BK=32, tiles=("32x64", "16x32"), dtype=torch.float32),
    )  # fmt: skip


LADDER = ladder()
