"""Lesson 50's ladder: one product with one buffer, with a ring of them, and with a worker that asks."""

import torch

from benchmarks.ladder import Ladder, Peer, Rung, Sweep

STAGES = (1, 2, 3, 4, 5, 6)


def ladder(M=4096, N=4096, K=4096, tile=(128, 128, 64)):
    def tensors(device):
        torch.manual_seed(0)
        half = {"dtype": torch.float16, "device": device}
        return {"a": torch.randn(M, K, **half), "b": torch.randn(K, N, **half), "out": torch.empty(M, N, **half)}

    def launch(ns, t, kernel, **how):
        BM, BN, BK = tile
        if "descriptors" not in t:
            t["descriptors"] = ns["described"](t["a"], BM, BK), ns["described"](t["b"], BK, BN)
        grid = -(-M // BM), -(-N // BN)
        kernel[grid](*t["descriptors"], t["out"], M, N, K, ns["accumulator"](BN), **how, num_warps=4)

    def ring(ns, t, value):
        launch(ns, t, ns["ring_kernel"], STAGES=value)

    def two_workers(ns, t):
        if "pipeline" not in t:
            t["pipeline"] = ns["pipeline_of"](ns["loader"], ns["multiplier"])
        launch(ns, t, t["pipeline"], STAGES=4)

    return Ladder(
        lesson="50",
        kernel="matmul",
        shape={"M": M, "N": N, "K": K},
        dtype="float16",
        tensors=tensors,
        reference=lambda t: {"out": t["a"].float() @ t["b"].float()},
        flops=2 * M * N * K,
        bytes=2 * (M * K + K * N + M * N),
        limit="matmul",
        rungs=[
            Rung("one buffer", "ask, wait, multiply, wait", lambda ns, t: launch(ns, t, ns["single_kernel"])),
            Rung("a ring of two", "a copy under each product", lambda ns, t: ring(ns, t, 2)),
            Rung("a ring of four", "three copies on their way", lambda ns, t: ring(ns, t, 4)),
            Rung("two workers", "one asks; products overlap", two_workers),
        ],
        peers=[Peer("torch.matmul", lambda t: torch.matmul(t["a"], t["b"], out=t["out"]))],
        sweeps=[Sweep("STAGES", "buffers in the ring", STAGES, ring)],
        seconds=20,
    )


LADDER = ladder()
