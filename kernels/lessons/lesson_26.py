"""What lesson 26 goes on with, made from notebooks/26_training.ipynb: see this package."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-104.0)


@triton.jit
def gate_gradient(t, W, read, written, outside):  # lesson 23's four parts, for each gate u of a chunk: s < u <= t
    before = t[None, :] < t[:, None]
    dg = tl.sum(tl.where(before, tl.cumsum(W, 0, reverse=True), 0.0), 1) + tl.cumsum(read, 0, reverse=True)
    return dg + tl.sum(tl.where(before, written[None, :], 0.0), 1) + outside


@triton.jit
def load_rows(ptr, rows, mask_t, size, BLOCK: tl.constexpr):  # [C, BLOCK]
    cols = tl.arange(0, BLOCK)
    return tl.load(ptr + rows[:, None] * size + cols[None, :], mask=mask_t[:, None] & (cols < size)[None, :], other=0.0)


@triton.jit
def product(a, b, dtype: tl.constexpr):  # operands rounded to the inputs' dtype, sums in float32
    return tl.dot(a.to(dtype), b.to(dtype), input_precision="ieee")


@triton.jit
def store_rows(ptr, rows, mask_t, size, x, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(ptr + rows[:, None] * size + cols[None, :], x, mask=mask_t[:, None] & (cols < size)[None, :])


@triton.jit
def backward_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, S_ptr, do_ptr, dS_ptr, dq_ptr, dk_ptr, dv_ptr, dg_ptr, T, H, K, V, c,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    n, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    t, offs_k, offs_v = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    at_state, mask_state = offs_k[:, None] * V + offs_v[None, :], (offs_k < K)[:, None] & (offs_v < V)[None, :]
    dS = tl.load(dS_ptr + (n * H + h) * K * V + at_state, mask=mask_state, other=0.0)
    chunks = tl.cdiv(T, C)
    for back in range(chunks):
        m = chunks - 1 - back
        mask_t, rows = m * C + t < T, (n * T + m * C + t) * H + h
        q, k = load_rows(q_ptr, rows, mask_t, K, BLOCK_K), load_rows(k_ptr, rows, mask_t, K, BLOCK_K)
        v, do = load_rows(v_ptr, rows, mask_t, V, BLOCK_V), load_rows(do_ptr, rows, mask_t, V, BLOCK_V)
        S = tl.load(S_ptr + ((n * H + h) * chunks + m) * K * V + at_state, mask=mask_state, other=0.0)
        Gamma = tl.cumsum(tl.maximum(tl.load(g_ptr + rows, mask=mask_t, other=0.0), LOWEST), 0)
        Gamma_C = tl.sum(tl.where(t == C - 1, Gamma, 0.0), 0)
        into, out = tl.exp(Gamma)[:, None], tl.exp(Gamma_C - Gamma)[:, None]
        decay = tl.exp(tl.where(t[:, None] >= t[None, :], Gamma[:, None] - Gamma[None, :], float("-inf")))
        scores = product(q, tl.trans(k), dtype)
        outside = tl.exp(Gamma_C) * tl.sum(tl.sum(S * dS, 1), 0)
        dA = c * decay * product(do, tl.trans(v), dtype)
        through_S = c * into * product(do, tl.trans(S), dtype)
        through_dS = out * product(v, tl.trans(dS), dtype)
        dq = through_S + product(dA, k, dtype)
        dk = through_dS + product(tl.trans(dA), q, dtype)
        dv = out * product(k, dS, dtype) + c * product(tl.trans(decay * scores), do, dtype)
        dS = tl.exp(Gamma_C) * dS + c * product(tl.trans(into * q), do, dtype)
        parts = dA * scores, tl.sum(q * through_S, 1), tl.sum(k * through_dS, 1)  # noqa: F821
        dg = gate_gradient(t, *parts, outside)
        store_rows(dq_ptr, rows, mask_t, K, dq, BLOCK_K)
        store_rows(dk_ptr, rows, mask_t, K, dk, BLOCK_K)
        store_rows(dv_ptr, rows, mask_t, V, dv, BLOCK_V)
        tl.store(dg_ptr + rows, dg, mask=mask_t)
    tl.store(dS_ptr + (n * H + h) * K * V + at_state, dS, mask=mask_state)


def slope(f, x, d, h):
    return (f(x + h * d) - f(x - h * d)) / (2 * h)
