"""What lesson 10 goes on with, made from notebooks/10_dynamic_conv_forward.ipynb: see this package."""

import triton
import triton.language as tl


@triton.jit
def convolve(x_ptr, k_ptr, y_ptr, T, D, W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    offs_d = (tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    offs_t = (tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    b = tl.program_id(2).to(tl.int64)  # 64 bits: b * T * D * W can pass 2**31
    mask = (offs_t < T) & (offs_d < D)
    here = (b * T + offs_t) * D + offs_d

    acc = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for w in tl.static_range(W):
        j = offs_t - (W - 1) + w
        X = tl.load(x_ptr + (b * T + j) * D + offs_d, mask=mask & (j >= 0), other=0.0).to(tl.float32)
        k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0).to(tl.float32)
        acc += k * X
    tl.store(y_ptr + here, acc, mask=mask)  # one rounding, to y's dtype


@triton.jit
def convolve_packed(
    x_ptr, k_ptr, state_ptr, y_ptr, after_ptr, n_ptr, cu_ptr, T, D,
    W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    offs_d = (tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    offs_t = (tl.program_id(1).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    mask = (offs_t < T) & (offs_d < D)
    here = offs_t * D + offs_d
    n = tl.load(n_ptr + offs_t, mask=offs_t < T, other=0)
    p = offs_t - tl.load(cu_ptr + n)
    last = mask & (offs_t + 1 == tl.load(cu_ptr + n + 1))
    slot = (n * D + offs_d) * (W - 1)

    acc = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for w in tl.static_range(W):
        back = W - 1 - w
        k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0).to(tl.float32)
        inside = back <= p
        X = tl.load(x_ptr + here - back * D, mask=mask & inside, other=0.0).to(tl.float32)
        X += tl.load(state_ptr + slot + p + w, mask=mask & ~inside, other=0.0).to(tl.float32)
        acc += k * X
        if w > 0:
            tl.store(after_ptr + slot + w - 1, X, mask=last)
    tl.store(y_ptr + here, acc, mask=mask)
