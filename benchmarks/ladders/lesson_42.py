"""Lesson 42's ladder: the same layer with im2col given, as in the lesson, and its sum cut into pieces."""

import torch

from benchmarks.ladder import Ladder, Peer, Rung, Sweep
from benchmarks.ladders.convolution import FEW, cudnn, exact, inputs, layer
from kernels.conv_wgrad import conv2d_wgrad
from kernels.conv_wgrad.reference import im2col

PIECES = (1, 2, 4, 8, 14, 15, 22, 29, 30, 44, 58, 59, 88)
TILES = (128, 128, 64), (64, 64, 64)  # as large as the registers hold, and smaller


def ladder(N=128, Ci=128, Co=128, H=64, R=3, tiles=TILES, pieces=PIECES, Z=44, dtype=torch.bfloat16):
    tile, small = tiles
    g = layer(N, Ci, Co, H, R)

    def tensors(device):
        x, dy = inputs(device, g, dtype, g.output_shape)
        made = {"x": x, "dy": dy, "A": im2col(x, g).reshape(g.M, g.columns).contiguous()}
        made |= {"out": torch.empty(Co, g.columns, device=device)}
        made |= {"partial": torch.empty(pieces[-1], Co, g.columns, device=device)}
        return made | {"order": torch.arange(100_000, device=device)}

    def first_pass(ns, t, out, Z, tile, atomic):
        BM, BN, BK = tile
        Z, per = ns["cut"](-(-g.M // BK), Z)
        items = Z * -(-Co // BM) * -(-g.columns // BN)
        ns["split_kernel"][(items,)](
            t["dy"], t["A"], out, t["order"], g.M, Co, g.columns, per, atomic, BM, BN, BK, num_warps=8 if BM > 64 else 4
        )
        return Z

    def one_pass(Z, tile, atomic=False):
        def run(ns, t):
            if atomic:
                t["out"].zero_()
            first_pass(ns, t, t["out"], Z, tile, atomic)
            return {"dw": t["out"][-FEW:]}

        return run

    def two_passes(ns, t, value):
        made = first_pass(ns, t, t["partial"], value, tile, False)
        numel = t["out"].numel()
        ns["sum_kernel"][(-(-numel // 1024),)](t["partial"], t["out"], numel, made, 1024)
        return {"dw": t["out"][-FEW:]}

    def finished(ns, t):
        return {"dw": conv2d_wgrad(t["x"], t["dy"], R, R, g.stride, g.padding)[-FEW:].flatten(1)}

    def count(tile):
        return -(-Co // tile[0]) * -(-g.columns // tile[1])

    return Ladder(
        lesson="42",
        kernel="conv_wgrad",
        shape={"N": N, "Ci": Ci, "Co": Co, "H": H, "R": R},
        dtype="bfloat16",
        tensors=tensors,
        reference=lambda t: {"dw": exact(t["x"], t["dy"], g)},
        flops=g.flops,
        bytes=2 * (g.N * g.H * g.W * Ci + g.M * Co + Co * g.columns),
        limit="matmul",
        rungs=[
            Rung("a program a tile", f"{count(tile)} programs", one_pass(1, tile), ("dw",)),
            Rung("smaller tiles", f"{count(small)} programs", one_pass(1, small), ("dw",)),
            Rung("split-K, atomics", f"{Z} pieces, {Z * count(tile)} programs", one_pass(Z, tile, True), ("dw",)),
            Rung("split-K, two passes", "the same bits every time", lambda ns, t: two_passes(ns, t, Z), ("dw",)),
            Rung("finished operator", "makes its own im2col, in tiles", finished, ("dw",), finished=True),
        ],
        peers=[
            Peer("torch.matmul", lambda t: {"dw": (t["dy"].flatten(0, 2).T @ t["A"])[-FEW:]}, ("dw",)),
            Peer("cuDNN nhwc", lambda t: cudnn(t, g), ("dw",)),
        ],
        sweeps=[Sweep("pieces", "programs side by side, or a tail", pieces, two_passes, ("dw",))],
        scratch=("out", "partial"),
        tiny=lambda: ladder(2, 16, 32, 8, 3, ((32, 32, 32), (16, 16, 32)), pieces=(1, 3, 4), Z=3, dtype=torch.float32),
    )


LADDER = ladder()
