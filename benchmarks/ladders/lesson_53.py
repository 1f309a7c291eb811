"""Lesson 53's ladder: its loop with one group and with two, with a short ring and a deep one, and the operator.

The lesson's kernel knows one tile of queries, so every program computes the same one: the products and exponentials of
attention with heads of 64, and hardly its traffic. A program is alone on its multiprocessor: two have not enough registers.
"""

import math

import torch

from benchmarks.flex_attention import SDPA
from benchmarks.ladder import Ladder, Peer, Rung
from benchmarks.ladders.attention import exact, inputs, scaled_dot_product
from kernels.flex_attention import flex_attention

O = ("o",)
DEEP = 11  # buffers of keys and of values, 8 kB each: most of shared memory


def ladder(B=4, H=16, M=4096, D=64):
    def tensors(device):
        made = inputs(device, ("all q", "all k", "all v"), B, H, M, D, torch.float16)
        mine = {name: made[f"all {name}"][-1, -1] for name in "qkv"}
        return made | mine | {"o": torch.empty(128, D, dtype=torch.float16, device=device)}

    def groups(GROUPS, STAGES):
        def run(ns, t):
            if "descriptors" not in t:
                t["descriptors"] = [ns["described"](t[name]) for name in "qkv"]
            programs = B * H * M // (64 * GROUPS)
            unit = math.log2(math.e) / math.sqrt(D)
            arguments = *t["descriptors"], t["o"], M // 64, unit, ns["ours"], GROUPS, STAGES
            ns["attention_kernel"][(programs,)](*arguments, num_warps=4)
            return {"o": t["o"][:64]}  # which one group computes, too

        return run

    def of_all(call):
        return lambda t: {"o": call(*(t[f"all {name}"] for name in "qkv"))[-1, -1, :64]}

    return Ladder(
        lesson="53",
        kernel="attention forward",
        shape={"B": B, "H": H, "M": M, "N": M, "D": D},
        dtype="float16",
        tensors=tensors,
        reference=lambda t: {"o": exact(*(t[name][None].double() for name in "qkv"))[0, :64]},
        flops=4 * B * H * M * M * D,
        bytes=2 * 4 * B * H * M * D,
        limit="matmul",
        rungs=[
            Rung("one group, ring of 2", "values a tile late", groups(1, 2), O),
            Rung("one group, ring of 11", "copies further ahead", groups(1, DEEP), O),
            Rung("two groups, ring of 2", "one multiplies, one exponentiates", groups(2, 2), O),
            Rung("two groups, ring of 11", "and copies further ahead", groups(2, DEEP), O),
            Rung("finished operator", "larger tiles, every head its own", lambda ns, t: of_all(flex_attention)(t),
                 O, finished=True),
        ],
        peers=[Peer(name, of_all(scaled_dot_product(name, causal=False)), O) for name in SDPA],
        seconds=20,
    )  # fmt: skip


LADDER = ladder()
