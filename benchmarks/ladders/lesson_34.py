"""Lesson 34's ladder: the gradients of causal attention, from a matrix that is kept to tiles that compute it again."""

import torch

from benchmarks.flex_attention import SDPA
from benchmarks.ladder import Ladder, Peer, Rung, differentiated
from benchmarks.ladders.attention import LAST, exact, inputs, scaled_dot_product
from kernels.flex_attention import causal_block_mask, flex_attention, mods

GRADIENTS = ("dq", "dk", "dv")


def ladder(B=4, H=16, M=4096, D=128, S=64, dtype=torch.bfloat16):
    def tensors(device):
        return inputs(device, ("q", "k", "v", "do", "dq", "dk", "dv"), B, H, M, D, dtype)

    def allowed(t):
        return torch.ones(M, M, dtype=torch.bool, device=t["q"].device).tril()

    def reference(t):
        leaves = [t[name][LAST].double().requires_grad_() for name in "qkv"]
        found = torch.autograd.grad(exact(*leaves, allowed(t)), leaves, t["do"][LAST].double())
        return dict(zip(GRADIENTS, found, strict=True))

    def kernels(every):
        """The lesson's two kernels over every tile, or over those that the mask leaves."""

        def run(ns, t):
            q, k, v, do = (t[name] for name in ("q", "k", "v", "do"))
            if "forward" not in t:  # which has been, wherever there is a backward pass
                mask = causal_block_mask(M, device=q.device)
                t["forward"] = flex_attention(q, k, v, block_mask=mask, return_lse=True)
                t["mods"] = ns["compiled"](unchanged, mods.causal)
                blocks = torch.ones(M // S, M // S, dtype=torch.bool, device=q.device)
                t["lists"] = {all_: ns["lists"](blocks if all_ else blocks.tril()) for all_ in (True, False)}
                t["columns"] = {all_: ns["lists"](blocks if all_ else blocks.tril().mT) for all_ in (True, False)}
            (o, lse), (functions, *tables) = t["forward"], t["mods"]
            delta = (o * do).sum(-1, dtype=torch.float32)
            sizes = M, M, M // S, 1, D**-0.5
            meta = functions | {"CHECK_M": True, "S": S, "D": D, "num_warps": 4, "num_stages": 2}
            shared = q, k, v, do, lse, delta
            ns["dq_kernel"][M // S, H, B](
                *shared, t["dq"], t["lists"][every], *tables, None, *sizes, **meta, SINK=ns["nothing"]
            )
            ns["dkdv_kernel"][M // S, H, B](*shared, t["dk"], t["dv"], t["columns"][every], *tables, *sizes, **meta)
            return {name: t[name][LAST] for name in GRADIENTS}

        return run

    def by_autograd(operator):
        return differentiated(operator, "qkv", GRADIENTS, "do", LAST)

    def matrix(names, q, k, v):
        return names["naive"](q, k, v, torch.ones(M, M, dtype=torch.bool, device=q.device).tril())[0]

    def finished(names, q, k, v):
        return flex_attention(q, k, v, block_mask=causal_block_mask(M, device=q.device))

    return Ladder(
        lesson="34",
        notebooks=("30", "34"),
        kernel="flex_attention backward",
        shape={"B": B, "H": H, "M": M, "N": M, "D": D},
        dtype="bfloat16",
        tensors=tensors,
        reference=reference,
        flops=5 * 2 * B * H * D * M * M // 2,
        bytes=2 * 8 * B * H * M * D,
        limit="matmul",
        rungs=[
            Rung("autograd", "PyTorch, its matrices kept", by_autograd(matrix), GRADIENTS, 0.1),
            Rung("two kernels", "p computed again, tile by tile", kernels(every=True), GRADIENTS),
            Rung("visible tiles", "rows' lists, and columns' lists", kernels(every=False), GRADIENTS),
            Rung("finished operator", "a pipeline; five products", by_autograd(finished), GRADIENTS, finished=True),
        ],
        peers=[Peer(name, by_autograd(scaled_dot_product(name, causal=True)), GRADIENTS) for name in SDPA],
        tiny=lambda: ladder(B=1, H=2, M=64, D=16, S=32, dtype=torch.float32),
    )


def unchanged(score, b, h, q_idx, kv_idx):
    """The score mod of attention without one, as the lesson compiles it."""
    return score * 1.0


LADDER = ladder()
