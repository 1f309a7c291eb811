"""What lesson 25 goes on with, made from notebooks/25_chunked_gates.ipynb: see this package."""

import triton
import triton.language as tl


def square(q, k, Gamma):
    n = len(q) // 2
    ref = Gamma[n - 1]
    return (q[n:] * (Gamma[n:] - ref).exp()) @ (k[:n] * (ref - Gamma[:n]).exp()).T


LOWEST = tl.constexpr(-104.0)


@triton.jit
def load_rows(ptr, rows, mask_t, size, BLOCK: tl.constexpr):  # [C, BLOCK]
    cols = tl.arange(0, BLOCK)
    return tl.load(ptr + rows[:, None] * size + cols[None, :], mask=mask_t[:, None] & (cols < size)[None, :], other=0.0)


@triton.jit
def scores_kernel(
    q_ptr, k_ptr, g_ptr, A_ptr, T, H, K, C: tl.constexpr, LEVELS: tl.constexpr, BLOCK_K: tl.constexpr
):
    n, chunk, h = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, C)
    rows, mask_t = (n * T + chunk * C + t) * H + h, chunk * C + t < T
    q, k = load_rows(q_ptr, rows, mask_t, K, BLOCK_K), load_rows(k_ptr, rows, mask_t, K, BLOCK_K)
    g = tl.maximum(load_rows(g_ptr, rows, mask_t, K, BLOCK_K), LOWEST)  # 0 times -inf is no sum
    own = tl.sum(q.to(tl.float32) * k, 1)
    A = tl.where(t[:, None] == t[None, :], own[:, None], 0.0)
    for level in range(LEVELS):
        half = t >> level
        behind = half % 2 == 1
        crossed = (half[:, None] == half[None, :]) & (behind[:, None] == (t[None, :] <= t[:, None]))
        decay = tl.exp(tl.dot(crossed.to(tl.float32), g, input_precision="tf32x3"))
        x = (tl.where(behind[:, None], q, k) * decay).to(q.dtype)
        square = behind[:, None] & (half[:, None] == half[None, :] + 1)
        A += tl.where(square, tl.dot(x, tl.trans(x), input_precision="ieee"), 0.0)
    tl.store(A_ptr + rows[:, None] * C + t[None, :], A, mask=mask_t[:, None])
