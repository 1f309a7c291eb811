"""The published scheme of dynamic convolution, for comparison only: one program per (batch, time) and 128 channels.

Nothing is reused between time steps, so each row of x is read W times and the backward pass is two kernels.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _forward_kernel(x_ptr, k_ptr, y_ptr, T, D, W: tl.constexpr, BLOCK: tl.constexpr):
    bt = tl.program_id(0).to(tl.int64)
    t = bt % T
    offs_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs_w = tl.arange(0, W)
    mask_d = offs_d < D
    j = t - (W - 1) + offs_w[None, :]
    x = tl.load(x_ptr + (bt - t + j) * D + offs_d[:, None], mask=mask_d[:, None] & (j >= 0), other=0.0)
    k = tl.load(k_ptr + (bt * D + offs_d[:, None]) * W + offs_w[None, :], mask=mask_d[:, None], other=0.0)
    y = tl.sum(x.to(tl.float32) * k.to(tl.float32), 1)
    tl.store(y_ptr + bt * D + offs_d, y.to(y_ptr.dtype.element_ty), mask=mask_d)


@triton.jit
def _dx_kernel(dy_ptr, k_ptr, dx_ptr, T, D, W: tl.constexpr, BLOCK: tl.constexpr):
    bt = tl.program_id(0).to(tl.int64)
    t = bt % T
    offs_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dx = tl.zeros([BLOCK], tl.float32)
    for w in tl.static_range(W):
        seen = offs_d < tl.where(t + W - 1 - w < T, D, 0)
        row = (bt + W - 1 - w) * D + offs_d
        dy = tl.load(dy_ptr + row, mask=seen, other=0.0).to(tl.float32)
        dx += dy * tl.load(k_ptr + row * W + w, mask=seen, other=0.0).to(tl.float32)
    tl.store(dx_ptr + bt * D + offs_d, dx.to(dx_ptr.dtype.element_ty), mask=offs_d < D)


@triton.jit
def _dk_kernel(dy_ptr, x_ptr, dk_ptr, T, D, W: tl.constexpr, BLOCK: tl.constexpr):
    bt = tl.program_id(0).to(tl.int64)
    t = bt % T
    offs_d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs_w = tl.arange(0, W)
    mask_d = offs_d < D
    j = t - (W - 1) + offs_w[None, :]
    x = tl.load(x_ptr + (bt - t + j) * D + offs_d[:, None], mask=mask_d[:, None] & (j >= 0), other=0.0)
    dy = tl.load(dy_ptr + bt * D + offs_d, mask=mask_d, other=0.0)
    dk = x.to(tl.float32) * dy.to(tl.float32)[:, None]
    at = dk_ptr + (bt * D + offs_d[:, None]) * W + offs_w[None, :]
    tl.store(at, dk.to(dk_ptr.dtype.element_ty), mask=mask_d[:, None])


class PublishedDynamicConv(torch.autograd.Function):
    """Forward and backward of the published scheme; contiguous x [B, T, D], weight [B, T, D, W], W a power of two."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        B, T, D = x.shape
        y = torch.empty_like(x)
        _forward_kernel[(B * T, triton.cdiv(D, 128))](x, weight, y, T, D, W=weight.shape[-1], BLOCK=128)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        B, T, D = x.shape
        dx, dk = torch.zeros_like(x), torch.empty_like(weight)
        grid = (B * T, triton.cdiv(D, 128))
        _dx_kernel[grid](dy, weight, dx, T, D, W=weight.shape[-1], BLOCK=128)
        _dk_kernel[grid](dy, x, dk, T, D, W=weight.shape[-1], BLOCK=128)
        return dx, dk
