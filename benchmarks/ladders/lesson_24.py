"""Lesson 24's ladder: one long text, token by token, in chunks, and in runs of chunks."""

import torch

from benchmarks.ladder import Ladder, Rung, Sweep
from benchmarks.ladders.recurrent import LAST, exact, inputs, walk
from kernels.recurrent_attention import recurrent_attention

O = ("o",)
RUNS = (1, 2, 4, 8, 16, 32)
CHUNKS = (16, 32, 64, 128)
STAGES = (2, 3)


def ladder(B=1, T=32768, H=16, K=128, R=8, C=64, BLOCK_V=64, runs=RUNS, chunks=CHUNKS, stages=STAGES, dtype=torch.bfloat16):
    def tensors(device):
        made = inputs(device, B, T, H, K, dtype)
        states = B * runs[-1], H, K, K
        zeros = {"zeros": torch.zeros(states, device=device)}
        return made | zeros | {"left": torch.empty(states, device=device), "o": torch.empty_like(made["v"])}

    def launch(ns, inputs, o, entering, left, C, num_stages=2):
        q = inputs[0]
        grid = q.shape[0] * H, K // BLOCK_V
        sizes = q.shape[1], H, K, K, K**-0.5
        how = {"num_warps": 8 if C > 64 else 4, "num_stages": num_stages}  # what the registers and the shared memory hold
        ns["chunk_kernel"][grid](*inputs, entering, o, left, *sizes, C=C, BLOCK_K=K, BLOCK_V=BLOCK_V, **how)

    def states_alone(ns, inputs, left, C):
        _, k, v, g = inputs
        grid = k.shape[0] * H, K // BLOCK_V
        how = {"num_warps": 8 if C > 64 else 4, "num_stages": 2}
        ns["states_kernel"][grid](k, v, g, left, k.shape[1], H, K, K, C=C, BLOCK_K=K, BLOCK_V=BLOCK_V, **how)

    def in_runs(ns, t, R, C=C, alone=False, num_stages=2):
        rows = B * R
        q, k, v, g, o = (t[name].view(rows, T // R, *t[name].shape[2:]) for name in "qkvgo")
        zeros, left = t["zeros"][:rows], t["left"][:rows]
        if R == 1:
            launch(ns, (q, k, v, g), o, zeros, left, C, num_stages)
        else:  # as the lesson does: what each run leaves; what enters each; once more, from that
            if alone:
                states_alone(ns, (q, k, v, g), left, C)
            else:
                launch(ns, (q, k, v, g), o, zeros, left, C)
            total, own = g.sum(1)[..., None, None].exp().view(B, R, H, 1, 1), left.view(B, R, H, K, K)
            entering = [zeros[:B]]
            for r in range(R - 1):
                entering.append(total[:, r] * entering[r] + own[:, r])
            launch(ns, (q, k, v, g), o, torch.stack(entering, 1).view(rows, H, K, K), torch.empty_like(left), C)
        return {"o": t["o"][LAST]}

    def token_by_token(ns, t):
        walk(ns, t, 16, 1)
        return {"o": t["o"][LAST]}

    def finished(ns, t):
        return {"o": recurrent_attention(*(t[x] for x in "qkv"), g=t["g"], mode="chunk")[0][LAST]}

    return Ladder(
        lesson="24",
        notebooks=("20", "24"),
        kernel="recurrent_attention forward",
        shape={"B": B, "T": T, "H": H, "K": K, "V": K},
        dtype="bfloat16",
        tensors=tensors,
        reference=lambda t: {"o": exact(t)},
        flops=B * T * H * (4 * K * K + 2 * C * 2 * K),
        bytes=B * T * H * (2 * 4 * K + 4),
        limit="copy",
        rungs=[
            Rung("token by token", "lesson 20's walk", token_by_token, O),
            Rung("chunks", f"{C} tokens a step, tensor cores", lambda ns, t: in_runs(ns, t, 1), O),
            Rung("runs", f"{R} stretches of time at once", lambda ns, t: in_runs(ns, t, R), O),
            Rung("states first", "first pass: states alone", lambda ns, t: in_runs(ns, t, R, alone=True), O),
            Rung("finished operator", "runs, kernels tuned for them", finished, O, finished=True),
        ],
        sweeps=[
            Sweep("C", f"tokens in a chunk, {R} runs", chunks, lambda ns, t, value: in_runs(ns, t, R, value), O),
            Sweep("runs", f"runs, chunks of {C}", runs, lambda ns, t, value: in_runs(ns, t, value), O),
            Sweep("stages", "stages, one run", stages, lambda ns, t, value: in_runs(ns, t, 1, num_stages=value), O),
        ],
        tiny=lambda: ladder(B=1, T=64, H=2, K=64, R=2, C=16, runs=(1, 2), chunks=(16, 32), stages=(2,), dtype=torch.float32),
    )


LADDER = ladder()
