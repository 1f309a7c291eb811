"""Lesson 20's ladder: a recurrence over eight texts, from all pairs of tokens to one warp with a few columns of a state."""

import torch

from benchmarks.ladder import Ladder, Rung, Sweep
from benchmarks.ladders.recurrent import LAST, exact, for_all_heads, inputs, walk
from kernels.recurrent_attention import recurrent_attention

O = ("o",)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64)  # swept


def ladder(B=8, T=2048, H=16, K=128, sequences=SEQUENCES, dtype=torch.bfloat16):
    def tensors(device):
        made = inputs(device, B, T, H, K, dtype)
        many = {f"many {name}": x.repeat(max(1, sequences[-1] // B), 1, 1, *[1] * (x.ndim - 3)) for name, x in made.items()}
        made |= many | {"many o": torch.empty_like(many["many v"])}
        return made | {"o": torch.empty_like(made["v"]), "first": made["many o"][:1]}

    def one_row(t):  # all tokens of a text the same row: strides of 0
        return {name: t[name][:, :1].expand_as(t[name]) for name in "qkvg"}

    def reference(t):
        return {"o": exact(t), "first": exact({name: t[name][:1] for name in "qkvg"}), "same": exact(one_row(t))}

    def in_torch(name):
        return lambda ns, t: {"o": for_all_heads(ns[name], *(t[x] for x in "qkvg"))[LAST]}

    def kernel(**how):
        def run(ns, t):
            walk(ns, t, **how)
            return {"o": t["o"][LAST]}

        return run

    def finished(ns, t):
        return {"o": recurrent_attention(*(t[x] for x in "qkv"), g=t["g"], mode="recurrent")[0][LAST]}

    def texts(ns, t, value):  # one warp for 16 columns
        walk(ns, {name: t[f"many {name}"] for name in "qkvgo"}, 16, 1, value)

    def nearby(ns, t, value):
        q, k, v, g = (x[-value:] for x in one_row(t).values())
        return {"same": recurrent_attention(q, k, v, g=g, mode="recurrent")[0][LAST]}

    def nearby_rows(ns, t, value):  # a gate for each row, all of them alike
        q, k, v, g = (x[-value:] for x in one_row(t).values())
        gk = g[..., None].expand_as(q)
        return {"same": recurrent_attention(q, k, v, gk=gk, mode="recurrent")[0][LAST]}

    return Ladder(
        lesson="20",
        kernel="recurrent_attention forward",
        shape={"B": B, "T": T, "H": H, "K": K, "V": K},
        dtype="bfloat16",
        tensors=tensors,
        reference=reference,
        flops=5 * K * K * B * T * H,
        bytes=B * T * H * (2 * 4 * K + 4),
        limit="copy",
        rungs=[
            Rung("all pairs", "step 1's box, in PyTorch", in_torch("quadratic"), O),
            Rung("token by token", "step 2's box, in PyTorch", in_torch("recurrence"), O),
            Rung("128 columns", "the state stays in registers", kernel(BLOCK_V=K, num_warps=4), O),
            Rung("16 columns", "eight times the programs", kernel(BLOCK_V=16, num_warps=4), O),
            Rung("one warp", "no waiting for other warps", kernel(BLOCK_V=16, num_warps=1), O),
            Rung("finished operator", "the next token is asked for", finished, O, finished=True),
        ],
        sweeps=[
            Sweep("sequences", "texts of one length, 16 columns, one warp", sequences, texts, ("first",)),
            Sweep("one row", "texts whose tokens are one row, finished operator", (1, B), nearby, ("same",)),
            Sweep("one row, gk", "the same with a gate for each row of the state", (1, B), nearby_rows, ("same",)),
        ],
        tiny=lambda: ladder(B=2, T=9, H=2, K=32, sequences=(1, 2), dtype=torch.float32),
    )


LADDER = ladder()
