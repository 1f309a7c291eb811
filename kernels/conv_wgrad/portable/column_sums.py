"""The bias gradient: sums of columns, in a kernel of their own or in programs behind the weight gradient's."""

import triton
import triton.language as tl

TILE = tl.constexpr(8192)  # elements of dy at once where the columns are summed beside a product

@triton.jit
def column_sums(
    dy_ptr, offs_o, m, count, M, Co, step,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of dy [M, Co], rows ``step`` apart: columns ``offs_o`` over ``count`` blocks of BLOCK_K rows from m on."""
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    dy_at = dy_ptr + (m + offs_k)[:, None] * step + offs_o[None, :]
    acc = tl.zeros([BLOCK_K, BLOCK_M], tl.float32)
    for _block in tl.range(0, count, num_stages=STAGES):
        acc += tl.load(dy_at, mask=(offs_k < M - m)[:, None] & mask_o[None, :], other=0.0).to(tl.float32)
        dy_at += step * BLOCK_K
        m += BLOCK_K
    return tl.sum(acc, 0)


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
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K
    step = tl.cast(stride_m, tl.int64)
    sums = column_sums(
        dy_ptr, offs_o, m, tl.minimum(per, blocks - first), M, Co, step, BLOCK_M, BLOCK_K, STAGES
    )  # fmt: skip
    tl.store(out_ptr + piece.to(tl.int64) * Co + offs_o, sums.to(out_ptr.dtype.element_ty), mask=offs_o < Co)


@triton.jit
def sum_all_columns(dy_ptr, out_ptr, o, M, Co, step, BLOCK_M: tl.constexpr):
    """BLOCK_M channels of db from o on, over all pixels; rows of dy lie ``step`` apart."""
    BLOCK_K: tl.constexpr = TILE // BLOCK_M
    offs_o = o + tl.arange(0, BLOCK_M)
    m = tl.cast(0, tl.int64)
    sums = column_sums(dy_ptr, offs_o, m, tl.cdiv(M, BLOCK_K), M, Co, step, BLOCK_M, BLOCK_K, 1)
    tl.store(out_ptr + offs_o, sums.to(out_ptr.dtype.element_ty), mask=offs_o < Co)
