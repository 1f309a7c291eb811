"""Lesson 30's ladder: attention without a mask, from the matrix in memory to a pipeline whose softmax hides."""

import math

import torch

from benchmarks.flex_attention import SDPA
from benchmarks.ladder import Ladder, Peer, Rung, Sweep
from benchmarks.ladders.attention import LAST, exact, inputs, scaled_dot_product
from kernels.flex_attention import flex_attention

O = ("o",)
TILES = ("32x32", "64x32", "64x64", "128x32", "128x64", "128x128")


def ladder(B=4, H=16, M=4096, D=128, tiles=TILES, dtype=torch.bfloat16):
    def tensors(device):
        made = inputs(device, "qkvo", B, H, M, D, dtype)
        return made | {"lse": torch.empty(B, H, M, device=device)}

    def reference(t):
        return {"o": exact(*(t[name][LAST].double() for name in "qkv"))}

    def kernel(BLOCK_M, BLOCK_N, TAIL=True, **how):
        def run(ns, t):
            sizes = M, M, D, D, D**-0.5 * math.log2(math.e), 0
            grid = -(-M // BLOCK_M), B * H
            ns["attention_kernel"][grid](
                *(t[name] for name in ("q", "k", "v", "o", "lse")), *sizes, BLOCK_M, BLOCK_N, D, D, False, TAIL, **how
            )
            return {"o": t["o"][LAST]}

        return run

    def tile(ns, t, value):
        BLOCK_M, BLOCK_N = map(int, value.split("x"))
        return kernel(BLOCK_M, BLOCK_N, num_warps=8 if BLOCK_M > 64 else 4, num_stages=3 if BLOCK_N < 128 else 2)(ns, t)

    def by_torch(name):
        call = scaled_dot_product(name, causal=False)
        return lambda t: {"o": call(*(t[x] for x in "qkv"))[LAST]}

    return Ladder(
        lesson="30",
        kernel="flex_attention forward",
        shape={"B": B, "H": H, "M": M, "N": M, "D": D},
        dtype="bfloat16",
        tensors=tensors,
        reference=reference,
        flops=4 * B * H * M * M * D,
        bytes=2 * 4 * B * H * M * D,
        limit="matmul",
        rungs=[
            Rung("the matrix", "in PyTorch, and in memory",
                 lambda ns, t: {"o": ns["naive"](*(t[x] for x in "qkv"))[0][LAST]}, O, 6e-2),
            Rung("online softmax", "tiles, one pass, no matrix", kernel(64, 64, num_warps=4, num_stages=1), O),
            Rung("pipelining", "next keys come under the products", kernel(64, 64, num_warps=4, num_stages=3), O),
            Rung("larger tile", "a key serves 128 queries", kernel(128, 64, num_warps=8, num_stages=3), O),
            Rung("no tail test", "an instruction less a score", kernel(128, 64, TAIL=False, num_warps=8, num_stages=3), O),
            Rung("finished operator", "exponentials under products",
                 lambda ns, t: {"o": flex_attention(*(t[x] for x in "qkv"))[LAST]}, O, finished=True),
        ],
        peers=[Peer(name, by_torch(name), O) for name in SDPA],
        sweeps=[Sweep("tile", "queries and keys of a tile", tiles, tile, O)],
        tiny=lambda: ladder(B=1, H=2, M=256, D=16, tiles=("32x32",), dtype=torch.float32),
    )  # fmt: skip


LADDER = ladder()
