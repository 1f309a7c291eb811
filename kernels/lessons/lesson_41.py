"""What lesson 41 goes on with, made from notebooks/41_conv_wgrad.ipynb: see this package."""

import numpy as np
import triton
import triton.language as tl


@triton.jit
def dy_tile(offs_m, offs_o, M, P, Q, Co):
    n, rest = offs_m // (P * Q), offs_m % (P * Q)
    at = (n * Co + offs_o) * P * Q + rest
    exists = (offs_m < M) & (offs_o < Co)
    return at, exists


def waste(sizes, tile):
    padded = [-(-size // width) * width for size, width in zip(sizes, tile)]
    return np.prod(padded, dtype=float) / np.prod(sizes, dtype=float)


def waste_of_groups(Co, J, M, G, tile):
    rows, columns = Co // G, J // G
    return waste((rows, columns, M), tile)


@triton.jit
def with_ones(A, offs_j, J):
    tile = tl.where(offs_j == J, 1.0, A)
    stored = offs_j <= J
    return tile, stored
