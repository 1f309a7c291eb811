"""What lesson 01 goes on with, made from notebooks/01_programs_and_blocks.ipynb: see this package."""

import torch
import triton
import triton.language as tl


def windows(x, W):
    return torch.as_strided(x, (x.numel() - W + 1, W), (x.stride(0), x.stride(0)), x.storage_offset())


@triton.jit
def copy_kernel(
    x_ptr, out_ptr, M, N, stride_xm, stride_xn, stride_om, stride_on,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    offs_m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    offs_n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (offs_m < M) & (offs_n < N)
    x = tl.load(x_ptr + offs_m * stride_xm + offs_n * stride_xn, mask=mask, other=0.0)
    tl.store(out_ptr + offs_m * stride_om + offs_n * stride_on, x, mask=mask)
