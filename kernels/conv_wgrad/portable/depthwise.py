"""Sums over pixels without a matrix product: the weight gradient of depthwise convolutions, and the bias gradient."""

import triton
import triton.language as tl

from kernels.conv_wgrad.portable.pixels import UNITS, WALK, first_pixels, inside, next_pixels, pixel_offset

MOST_TAPS = 8  # a program's sums, side by side in registers


@triton.jit(do_not_specialize=["M", "P", "Q", "H", "W", "S", "taps", "o_units", "blocks", "per", *UNITS, *WALK])
def depthwise_kernel(
    dy_ptr, x_ptr, out_ptr,
    M, P, Q, H, W, S, taps, multiplier,
    o_units, blocks, per,
    m_units, n_units, h_units, w_units,
    sh, sw, pt, pl, dh, dw,
    step_n, step_h, step_w,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """TAPS neighbouring taps in a row of the filter, for BLOCK_M output channels, summed over one piece of the pixels. Output
    channel o sees input channel o // multiplier alone:

        dw[o, r, s] = sum_m dy[m, o] x[m's pixel under (r, s), o // multiplier]

    dy is loaded once for all of these taps; what they see of x overlaps but for a pixel, and comes from the L1 cache. Co and
    the strides of dy and x are given in units of UNIT elements: the compiler then loads whole vectors.
    """
    Co = o_units * UNIT
    tiles = tl.cdiv(Co, BLOCK_M)
    rows = taps // S
    pid = tl.program_id(0)
    column = pid // tiles % (rows * tl.cdiv(S, TAPS))
    piece = pid // tiles // (rows * tl.cdiv(S, TAPS))
    r = column % rows
    s = column // rows * TAPS
    offs_o = pid % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K
    step = tl.cast(m_units, tl.int64) * UNIT
    dy_at = dy_ptr + (m + offs_k)[:, None] * step + offs_o[None, :]
    x_column = x_ptr + (pixel_offset(r * dh, s * dw, h_units, w_units, WIDE=True) * UNIT + offs_o // multiplier)
    image, h, w = first_pixels(m, n_units, P, Q, sh, sw, pt, pl, BLOCK_K, WIDE)
    next_tap = tl.cast(dw, tl.int64) * w_units * UNIT
    accs = ()
    for _i in tl.static_range(TAPS):
        accs = accs + (tl.zeros([BLOCK_K, BLOCK_M], tl.float32),)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        mask_k = offs_k < M - m
        dy = tl.load(dy_at, mask=mask_k[:, None] & mask_o[None, :], other=0.0).to(tl.float32)
        mask_k = mask_k & inside(h + r * dh, H)
        at = (image + pixel_offset(h, w, h_units, w_units, WIDE)).to(tl.int64) * UNIT
        x_at = x_column[None, :] + at[:, None]
        sums = ()
        for i in tl.static_range(TAPS):
            mask_x = mask_k & inside(w + (s + i) * dw, W)
            x = tl.load(x_at + i * next_tap, mask=mask_x[:, None] & mask_o[None, :], other=0.0)
            sums = sums + (accs[i] + dy * x.to(tl.float32),)
        accs = sums
        dy_at += step * BLOCK_K
        m += BLOCK_K
        image, h, w = next_pixels(image, h, w, n_units, P, Q, sh, sw, pt, pl, step_n, step_h, step_w)
    out_at = out_ptr + (piece.to(tl.int64) * Co + offs_o) * taps + r * S + s
    for i in tl.static_range(TAPS):
        there = offs_o < tl.where(s + i < S, Co, 0)
        tl.store(out_at + i, tl.sum(accs[i], 0).to(out_ptr.dtype.element_ty), mask=there)


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


def taps_at_once(S):
    """How many taps of a row of ``S`` a program sums: all, or as few shares as hold at most MOST_TAPS."""
    return -(-S // -(-S // MOST_TAPS))
