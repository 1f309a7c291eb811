"""The bias gradient: sums of columns."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M", "blocks", "per"])
def bias_kernel(
    dy_ptr, out_ptr, M, Co, blocks, per, stride_m,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BLOCK_M channels of db[o] = sum_m dy[m, o], summed over one piece of the pixels."""
    tiles = tl.cdiv(Co, BLOCK_M)
    pid = tl.program_id(0)
    piece = pid // tiles
    offs_o = pid % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K
    step = tl.cast(stride_m, tl.int64)
    dy_at = dy_ptr + (m + offs_k)[:, None] * step + offs_o[None, :]
    acc = tl.zeros([BLOCK_K, BLOCK_M], tl.float32)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        acc += tl.load(dy_at, mask=(offs_k < M - m)[:, None] & mask_o[None, :], other=0.0).to(tl.float32)
        dy_at += step * BLOCK_K
        m += BLOCK_K
    tl.store(out_ptr + piece.to(tl.int64) * Co + offs_o, tl.sum(acc, 0).to(out_ptr.dtype.element_ty), mask=mask_o)
