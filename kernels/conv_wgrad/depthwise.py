"""Sums over pixels without a matrix product: the weight gradient of depthwise convolutions, and the bias gradient."""

import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.conv_wgrad.pixels import (
    WALK,
    channels_adjacent,
    first_pixels,
    inside,
    is_wide,
    next_pixels,
    pixel_offset,
    rows_of,
    walk,
)


@triton.jit(do_not_specialize=["M", "P", "Q", "H", "W", "S", "taps", "multiplier", "blocks", "per", *WALK])
def depthwise_kernel(
    dy_ptr, x_ptr, out_ptr,
    M, P, Q, H, W, S, taps, multiplier,
    Co, blocks, per,
    stride_m, stride_xn, stride_xh, stride_xw,
    sh, sw, pt, pl, dh, dw,
    step_n, step_h, step_w,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tap of BLOCK_M output channels, summed over one piece of the pixels. Output channel o sees input channel
    o // multiplier alone: dw[o, tap] = sum_m dy[m, o] x[m's pixel under the tap, o // multiplier]."""
    tiles = tl.cdiv(Co, BLOCK_M)
    pid = tl.program_id(0)
    piece = pid // (tiles * taps)
    tap = pid // tiles % taps
    offs_o = pid % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K
    step = tl.cast(stride_m, tl.int64)
    dy_at = dy_ptr + (m + offs_k)[:, None] * step + offs_o[None, :]
    r_h = tap // S * dh
    s_w = tap % S * dw
    x_column = x_ptr + (pixel_offset(r_h, s_w, stride_xh, stride_xw, WIDE=True) + offs_o // multiplier)
    image, h, w = first_pixels(m, stride_xn, P, Q, sh, sw, pt, pl, BLOCK_K, WIDE)
    acc = tl.zeros([BLOCK_K, BLOCK_M], tl.float32)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        mask_k = offs_k < M - m
        dy = tl.load(dy_at, mask=mask_k[:, None] & mask_o[None, :], other=0.0)
        mask_k = mask_k & inside(h + r_h, H) & inside(w + s_w, W)
        x_row = image + pixel_offset(h, w, stride_xh, stride_xw, WIDE)
        x = tl.load(x_column[None, :] + x_row[:, None], mask=mask_k[:, None] & mask_o[None, :], other=0.0)
        acc += dy.to(tl.float32) * x.to(tl.float32)
        dy_at += step * BLOCK_K
        m += BLOCK_K
        image, h, w = next_pixels(image, h, w, stride_xn, P, Q, sh, sw, pt, pl, step_n, step_h, step_w)
    out_at = out_ptr + (piece.to(tl.int64) * Co + offs_o) * taps + tap
    tl.store(out_at, tl.sum(acc, 0).to(out_ptr.dtype.element_ty), mask=mask_o)


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


def depthwise(input, grad_output, g, cut, out):
    """Write ``cut.pieces`` partial sums of a depthwise weight gradient to ``out``.

    Args:
        input: [N, H, W, Ci].
        grad_output: [N, P, Q, Co].
        g: their ``Geometry``, with one input channel a group.
        cut: the ``Cut`` of its pixels.
        out: contiguous, [pieces, *g.weight_shape].
    """
    x, dy = channels_adjacent(input), rows_of(grad_output)
    start, step = walk(g, cut.options["BLOCK_K"])
    launch(
        depthwise_kernel,
        (cut.tiles * cut.pieces,),
        dy, x, out,
        g.M, g.P, g.Q, g.H, g.W, g.S, g.R * g.S, g.Co_group,
        g.Co, cut.blocks, cut.per,
        dy.stride(0), *x.stride()[:3],
        *start, *g.dilation,
        *step,
        outputs=(out,),
        WIDE=is_wide(g, cut.options["BLOCK_K"], *x.stride()[:3]), **cut.options,
    )  # fmt: skip


def column_sums(grad_output, cut, out):
    """Write ``cut.pieces`` partial sums of ``grad_output`` [N, P, Q, Co] over its pixels to ``out`` [pieces, Co]."""
    dy = rows_of(grad_output)
    launch(
        bias_kernel,
        (cut.tiles * cut.pieces,),
        dy, out, *dy.shape, cut.blocks, cut.per, dy.stride(0),
        outputs=(out,),
        **cut.options,
    )  # fmt: skip
