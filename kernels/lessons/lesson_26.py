"""What lesson 26 goes on with, made from notebooks/26_training.ipynb: see this package."""

import torch


def constant_gate(W):
    t = torch.arange(len(W), device=W.device)
    return (W * (t[:, None] - t[None, :])).sum()


def slope(f, x, d, h):
    return (f(x + h * d) - f(x - h * d)) / (2 * h)
