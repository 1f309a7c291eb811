"""Lesson 40's ladder: a convolution as a product, with im2col written to memory and without."""

import torch
import torch.nn.functional as F

from benchmarks.ladder import Ladder, Peer, Rung
from benchmarks.ladders.convolution import inputs, layer, sizes
from kernels.conv_wgrad import conv2d


def ladder(N=64, Ci=256, Co=256, H=56, R=3, tile=(128, 128, 64), dtype=torch.bfloat16):
    g = layer(N, Ci, Co, H, R)

    def tensors(device):
        x, weight = inputs(device, g, dtype, g.weight_shape)
        half = {"dtype": dtype, "device": device}
        return {"x": x, "weight": weight, "y": torch.empty(g.output_shape, **half), "A": torch.empty(g.M, g.columns, **half)}

    def of_torch(x, weight):
        weight = weight.permute(0, 3, 1, 2)
        return F.conv2d(x.permute(0, 3, 1, 2), weight, None, g.stride, g.padding[::2]).permute(0, 2, 3, 1)

    def product(ns, t, x, of, strides, tile):
        BM, BN, BK = tile
        grid = -(-g.M // BM), -(-Co // BN), 1
        ns["forward_kernel"][grid](x, t["weight"], t["y"], of, strides, BM, BN, BK, num_warps=8 if BM > 64 else 4)
        return {"y": t["y"][-1:]}

    def stored(ns, t):
        grid = -(-g.M // 128), -(-g.columns // 64)
        ns["im2col_kernel"][grid](t["x"], t["A"], sizes(g), t["x"].stride(), g.columns, 128, 64)
        pixels = g.M, g.M, 1, g.M, 1, 1, 1, g.columns, Co, 1, 1, 0, 0, 1, 1
        return product(ns, t, t["A"], pixels, (0, g.columns, g.columns, 1), tile)

    def implicit(tile):
        return lambda ns, t: product(ns, t, t["x"], sizes(g), t["x"].stride(), tile)

    def unfolded(t):
        columns = F.unfold(t["x"].permute(0, 3, 1, 2), R, padding=R // 2)  # [N, Ci R S, P Q]
        y = t["weight"].permute(0, 3, 1, 2).flatten(1) @ columns
        return {"y": y[-1:].mT.reshape(1, g.P, g.Q, Co)}

    return Ladder(
        lesson="40",
        kernel="convolution forward",
        shape={"N": N, "Ci": Ci, "Co": Co, "H": H, "R": R},
        dtype="bfloat16",
        tensors=tensors,
        reference=lambda t: {"y": of_torch(t["x"][-1:].double(), t["weight"].double())},
        flops=g.flops,
        bytes=2 * (g.N * g.H * g.W * Ci + g.M * Co + Co * g.columns),
        limit="matmul",
        rungs=[
            Rung("small tiles", "32 x 32, addresses instead of im2col", implicit((32, 32, 32)), ("y",)),
            Rung("im2col in memory", f"tiles of {tile[0]}; written, read back", stored, ("y",)),
            Rung("implicit", "the same tile, no matrix", implicit(tile), ("y",)),
            Rung("conv2d", "cuDNN's", lambda ns, t: {
                "y": conv2d(t["x"], t["weight"], None, g.stride, g.padding)[-1:]
            }, ("y",), finished=True),
        ],
        peers=[Peer("F.unfold, torch.matmul", unfolded, ("y",))],
        scratch=("A",),
        tiny=lambda: ladder(N=2, Ci=16, Co=24, H=6, R=3, tile=(32, 32, 32), dtype=torch.float32),
    )  # fmt: skip


LADDER = ladder()
