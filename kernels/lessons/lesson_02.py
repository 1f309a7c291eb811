"""What lesson 02 goes on with, made from notebooks/02_rows_and_reductions.ipynb: see this package."""

import triton
import triton.language as tl


@triton.jit
def numbers(ptr, offs, N, stride):  # float32; 0 where the row has ended
    return tl.load(ptr + offs.to(tl.int64) * stride, mask=offs < N, other=0.0).to(tl.float32)


@triton.jit
def standardise_kernel(
    x_ptr, weight_ptr, out_ptr, N, stride_xm, stride_xn, stride_w, stride_om, stride_on, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # 64 bits: lesson 01
    x_ptr += row * stride_xm  # now the row's first element
    out_ptr += row * stride_om
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += numbers(x_ptr, offs, N, stride_xn)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        centred = tl.where(offs < N, numbers(x_ptr, offs, N, stride_xn) - mean, 0.0)
        squares += centred * centred
    scale = tl.rsqrt(tl.sum(squares, axis=0) / N + eps)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        centred = numbers(x_ptr, offs, N, stride_xn) - mean
        weight = numbers(weight_ptr, offs, N, stride_w)
        tl.store(out_ptr + offs.to(tl.int64) * stride_on, centred * scale * weight, mask=offs < N)


@triton.jit
def dx_kernel(
    dout_ptr, xhat_ptr, weight_ptr, r_ptr, dx_ptr, N, stride_dm, stride_dn, stride_xm, stride_xn,
    stride_w, stride_om, stride_on, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    dout_ptr += row * stride_dm
    xhat_ptr += row * stride_xm
    dx_ptr += row * stride_om
    r = tl.load(r_ptr + row)
    g_sum = tl.zeros((BLOCK,), tl.float32)
    gx_sum = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        g = numbers(dout_ptr, offs, N, stride_dn) * numbers(weight_ptr, offs, N, stride_w)
        g_sum += g
        gx_sum += g * numbers(xhat_ptr, offs, N, stride_xn)
    g_mean = tl.sum(g_sum, axis=0) / N
    gx_mean = tl.sum(gx_sum, axis=0) / N
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        g = numbers(dout_ptr, offs, N, stride_dn) * numbers(weight_ptr, offs, N, stride_w)
        dx = r * (g - g_mean - numbers(xhat_ptr, offs, N, stride_xn) * gx_mean)
        tl.store(dx_ptr + offs.to(tl.int64) * stride_on, dx, mask=offs < N)
