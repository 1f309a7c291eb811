"""What lesson 30 goes on with, made from notebooks/30_online_softmax.ipynb: see this package."""

import torch


def with_squares(top, l, u, z):
    new_top = torch.maximum(top, z)
    alpha, p = (top - new_top).exp(), (z - new_top).exp()
    l = alpha * l + p
    u = alpha**2 * u + p**2
    return new_top, l, u


def finish_with_sink(top, l, acc, sink):
    new_top = torch.maximum(top, sink)
    alpha = (top - new_top).exp()
    l = alpha * l + (sink - new_top).exp()
    return alpha[:, None] * acc / l[:, None], new_top + l.log()


def both(one, two):
    (top1, l1, acc1), (top2, l2, acc2) = one, two
    top = torch.maximum(top1, top2)
    shift = top.masked_fill(top == -torch.inf, 0.0)
    a, b = (top1 - shift).exp(), (top2 - shift).exp()
    return top, a * l1 + b * l2, a[:, None] * acc1 + b[:, None] * acc2
