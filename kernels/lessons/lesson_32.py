"""What lesson 32 goes on with, made from notebooks/32_score_mod_compiler.ipynb: see this package."""

import math

import torch


def prefix_window(prefix, size):
    def mod(score, b, h, q_idx, kv_idx):
        sees = (kv_idx < prefix[b]) | (kv_idx <= q_idx) & (q_idx - kv_idx < size)
        return torch.where(sees, score, -torch.inf)

    return mod


def divide(a, b):
    if not isinstance(b, str) and abs(math.frexp(b)[0]) == 0.5:
        return f"{a} * {1 / b}"
    return f"{a} / {b}"


def depends(x, name):
    return isinstance(x, torch.fx.Node) and (x.name == name or any(depends(i, name) for i in x.all_input_nodes))
