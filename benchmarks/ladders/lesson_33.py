"""Lesson 33's ladder: a window of 1024 keys, from every tile with a mask to the tiles that it leaves."""

import torch
import torch.nn.functional as F

from benchmarks.flex_attention import compiled_flex_attention, pairs
from benchmarks.ladder import Ladder, Peer, Rung
from benchmarks.ladders.attention import LAST, exact, inputs
from kernels.flex_attention import flex_attention, sliding_window_block_mask

O = ("o",)


def ladder(B=4, H=16, M=4096, D=128, window=1024, S=128, tile=(128, 64), dtype=torch.bfloat16):
    def tensors(device):
        made = inputs(device, "qkv", B, H, M, D, dtype)
        apart = torch.arange(M, device=device)[:, None] - torch.arange(M, device=device)
        return made | {"allowed": (apart >= 0) & (apart <= window)}

    def block_mask(t):
        if "block mask" not in t:
            t["block mask"] = sliding_window_block_mask(window, M, BLOCK_SIZE=S, device=t["q"].device)
        return t["block mask"]

    def kernel(which):
        """The lesson's kernel on its own lists, or on others; its arguments are made at the first call."""

        def run(ns, t):
            if which not in t:
                BLOCK_M, BLOCK_N = tile
                t[which] = ns["arguments"](*(t[x] for x in "qkv"), block_mask(t), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)
                grid, arguments, meta, o, lse = t[which]
                blocks = block_mask(t).to_dense().bool()
                blocks = {"every tile": torch.ones_like(blocks), "visible tiles": blocks}.get(which)
                if blocks is not None:  # all of them partial
                    partial, none = (ns["lists"](x.contiguous()) for x in (blocks, torch.zeros_like(blocks)))
                    arguments = (*arguments[:5], partial, none, *arguments[7:])
                    t[which] = grid, arguments, meta, o, lse
            grid, arguments, meta, o, _ = t[which]
            ns["blocks_kernel"][grid](*arguments, **meta, num_warps=8, num_stages=2)
            return {"o": o[LAST]}

        return run

    def with_a_mask(t):
        return {"o": F.scaled_dot_product_attention(*(t[x] for x in "qkv"), attn_mask=t["allowed"])[LAST]}

    def compiled(t):
        return {"o": compiled_flex_attention()(*(t[x] for x in "qkv"), None, block_mask(t))[LAST]}

    return Ladder(
        lesson="33",
        kernel="flex_attention forward",
        shape={"B": B, "H": H, "M": M, "N": M, "D": D, "window": window},
        dtype="bfloat16",
        tensors=tensors,
        reference=lambda t: {"o": exact(*(t[x][LAST].double() for x in "qkv"), t["allowed"])},
        flops=4 * B * H * D * (pairs("window 1024", M, M) if window == 1024 else M * window),
        bytes=2 * 4 * B * H * M * D,
        limit="matmul",
        rungs=[
            Rung("every tile", "masked pair by pair", kernel("every tile"), O),
            Rung("visible tiles", "empty blocks are not listed", kernel("visible tiles"), O),
            Rung("two lists", "no mask in full blocks", kernel("two lists"), O),
            Rung("finished operator", "the same walk in a pipeline", lambda ns, t: {
                "o": flex_attention(*(t[x] for x in "qkv"), block_mask=block_mask(t))[LAST]
            }, O, finished=True),
        ],
        peers=[Peer("SDPA, mask in memory", with_a_mask, O), Peer("compiled flex_attention", compiled, O)],
        tiny=lambda: ladder(B=1, H=2, M=128, D=16, window=40, S=32, tile=(32, 16), dtype=torch.float32),
    )  # fmt: skip


LADDER = ladder()
