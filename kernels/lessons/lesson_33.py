"""What lesson 33 goes on with, made from notebooks/33_block_masks.ipynb: see this package."""

import torch
import triton
import triton.language as tl


def rows_that_visit(num, indices, J):
    place = torch.arange(indices.shape[1])
    return ((indices == J) & (place[None, :] < num[:, None])).any(1)


def chunk_blocks(c, M, N, S_M, S_N):
    q0, k0 = torch.arange(0, M, S_M)[:, None], torch.arange(0, N, S_N)
    q1, k1 = (q0 + S_M - 1).clamp(max=M - 1), (k0 + S_N - 1).clamp(max=N - 1)
    inside = (q0 + S_M <= M) & (k0 + S_N <= N)
    some = (q0 // c <= k1 // c) & (k0 // c <= q1 // c)
    full = (q0 // c == k1 // c) & (q1 // c == k0 // c) & inside
    return some, full


@triton.jit
def tail_tile(col, tile, N, S_N: tl.constexpr, BLOCK_N: tl.constexpr):
    n = col * S_N + tile * BLOCK_N + tl.arange(0, BLOCK_N)
    keep = (n < (col + 1) * S_N) & (n < N)
    return n, keep
