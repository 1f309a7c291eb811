"""Lesson 22's ladder: gradients through a recurrence, from states that are kept to two loops that make them again."""

import torch

from benchmarks.ladder import Ladder, Rung, Sweep, differentiated
from benchmarks.ladders.recurrent import LAST, inputs
from kernels.recurrent_attention import recurrent_attention
from kernels.recurrent_attention.reference import recurrent_attention_reference

GRADIENTS = ("dq", "dk", "dv")
WARPS = {8: 1, 16: 1, 32: 4, 64: 4, 128: 8}  # of a program with so many columns


def keeping_states(q, k, v, g):
    """Lesson 20's recurrence for all heads in float32, token by token: autograd keeps each state."""
    S, outputs = 0, []
    for q_t, k_t, v_t, g_t in zip(*(x.float().unbind(1) for x in (q, k, v, g)), strict=True):
        S = g_t.exp()[..., None, None] * S + k_t[..., :, None] * v_t[..., None, :]
        outputs.append(q.shape[-1] ** -0.5 * torch.einsum("bhkv,bhk->bhv", S, q_t))
    return torch.stack(outputs, 1).to(q.dtype)


def ladder(B=8, T=2048, H=16, K=128, columns=(8, 16, 32, 64, 128), dtype=torch.bfloat16):
    def tensors(device):
        made = inputs(device, B, T, H, K, dtype)
        made |= {"do": torch.randn_like(made["v"]), "dv": torch.empty_like(made["v"])}
        shares = K // columns[0], B, T, H, K
        made |= {f"shares of {name}": torch.empty(shares, device=device) for name in ("dq", "dk")}
        states = {name: torch.zeros(B, H, K, K, device=device) for name in ("first", "dlast")}
        return made | states | {"dfirst": torch.empty(B, H, K, K, device=device)}

    def reference(t):
        leaves = [t[name][LAST].double().requires_grad_() for name in "qkv"]
        o, _ = recurrent_attention_reference(*leaves, g=t["g"][LAST].double())
        return dict(zip(GRADIENTS, torch.autograd.grad(o, leaves, t["do"][LAST].double()), strict=True))

    def two_loops(ns, t, value, num_warps=None):
        q, k, v, do, g = (t[name] for name in ("q", "k", "v", "do", "g"))
        blocks, how = K // value, {"BLOCK_K": K, "BLOCK_V": value, "num_warps": num_warps or WARPS[value]}
        dq, dk = (t[f"shares of {name}"][:blocks] for name in ("dq", "dk"))
        gates, sizes, grid = (g, None, None, None), (T, H, K, K, K**-0.5), (B, H, blocks)
        ns["again_kernel"][grid](k, v, do, *gates, t["first"], dq, *sizes, **how)
        ns["back_kernel"][grid](q, k, v, do, *gates, t["dlast"], dk, t["dv"], t["dfirst"], *sizes, **how)
        return dict(zip(GRADIENTS, (x[LAST] for x in (dq.sum(0), dk.sum(0), t["dv"])), strict=True))

    kept = {}

    def by_autograd(name, operator):  # a gate's gradient is not asked for
        def run(ns, t):
            if name not in kept:
                of = lambda names, q, k, v: operator(q, k, v, t["g"])  # noqa: E731
                kept[name] = differentiated(of, "qkv", GRADIENTS, "do", LAST)
            return kept[name](ns, t)

        return run

    def finished(q, k, v, g):
        return recurrent_attention(q, k, v, g=g, mode="recurrent")[0]

    autograd, ours, wide = by_autograd("PyTorch", keeping_states), by_autograd("ours", finished), min(K, 64)
    return Ladder(
        lesson="22",
        kernel="recurrent_attention backward",
        shape={"B": B, "T": T, "H": H, "K": K, "V": K},
        dtype="bfloat16",
        tensors=tensors,
        reference=reference,
        flops=12 * K * K * B * T * H,
        bytes=B * T * H * (2 * 7 * K + 4),
        limit="copy",
        rungs=[
            Rung("autograd", "PyTorch keeps every state", autograd, GRADIENTS),
            Rung(f"{wide} columns", f"no state kept, {K // wide} shares", lambda ns, t: two_loops(ns, t, wide, 4), GRADIENTS),
            Rung("16 columns", f"more programs, {K // 16} shares", lambda ns, t: two_loops(ns, t, 16, 4), GRADIENTS),
            Rung("one warp", "no waiting for other warps", lambda ns, t: two_loops(ns, t, 16, 1), GRADIENTS),
            Rung("finished operator", "blocks of tokens, as products", ours, GRADIENTS, finished=True),
        ],
        sweeps=[Sweep("columns", "shares to add, or programs to spare", columns, two_loops, GRADIENTS)],
        scratch=("shares of dq", "shares of dk"),
        tiny=lambda: ladder(B=2, T=7, H=2, K=32, columns=(16, 32), dtype=torch.float32),
    )


LADDER = ladder()
