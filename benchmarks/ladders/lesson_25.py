"""Lesson 25's ladder: the scores of chunks with a gate for each channel, pair by pair and by levels."""

import torch

from benchmarks.ladder import Ladder, Rung, Sweep
from benchmarks.ladders.recurrent import LAST

O = ("A",)


def exact(t, C):
    """Scores of the last text, float64, chunk by chunk."""
    q, k, g = (t[name][LAST].double() for name in "qkg")
    _, T, H, K = q.shape
    q, k, g = (x.view(T // C, C, H, K) for x in (q, k, g))
    Gamma, A = g.cumsum(1), torch.zeros(T // C, C, H, C, dtype=q.dtype, device=q.device)
    for s in range(C):
        decay = (Gamma[:, s:] - Gamma[:, s : s + 1]).exp()
        A[:, s:, :, s] = (q[:, s:] * decay * k[:, s : s + 1]).sum(-1)
    return A.view(1, T, H, C)


def ladder(B=8, T=2048, H=16, K=128, C=64, warps=(4, 8), dtype=torch.bfloat16):
    def tensors(device):
        torch.manual_seed(0)
        q, k = (torch.randn(B, T, H, K, dtype=dtype, device=device) for _ in range(2))
        return {"q": q, "k": k, "g": -torch.rand(B, T, H, K, device=device), "A": torch.empty(B, T, H, C, device=device)}

    def launch(ns, t, name, num_warps=8):
        levels = C.bit_length() - 1
        ns[name][B, T // C, H](
            t["q"], t["k"], t["g"], t["A"], T, H, K, C=C, LEVELS=levels, BLOCK_K=K, num_warps=num_warps
        )
        return {"A": t["A"][LAST]}

    return Ladder(
        lesson="25",
        kernel="scores with a gate a channel",
        shape={"B": B, "T": T, "H": H, "K": K},
        dtype="bfloat16",
        tensors=tensors,
        reference=lambda t: {"A": exact(t, C)},
        flops=B * T * H * (C.bit_length() - 1) * 2 * C * K,
        bytes=B * T * H * (2 * 2 * K + 4 * K + 4 * C),
        limit="copy",
        rungs=[
            Rung("pair by pair", "an exponential a pair and channel", lambda ns, t: launch(ns, t, "pairs_kernel"), O),
            Rung("levels", "products of rows scaled once", lambda ns, t: launch(ns, t, "scores_kernel"), O),
        ],
        sweeps=[Sweep("warps", "levels, warps", warps, lambda ns, t, value: launch(ns, t, "scores_kernel", value), O)],
        tiny=lambda: ladder(B=2, T=32, H=2, K=16, C=16, warps=(4,), dtype=torch.float32),
    )


LADDER = ladder()
