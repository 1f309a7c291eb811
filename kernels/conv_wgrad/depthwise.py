"""The weight gradient of depthwise convolutions: no product is left, so what counts is that values are read once.

Output pixels lie in strips, RUN neighbours in a row. A program keeps the sums of all taps of the filter in registers, or as
many as fit, for a few channels; of each strip it reads dy once, and of every row under the filter the pixels that the strip's
taps see, once for all of them:

    dw[o, r, s] = sum over strips, i of dy[o, i] x[o // multiplier, row r, i σw + s δw]
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.conv_wgrad.plain import inside, pixel_offset

MOST_TAPS = 8  # in a row of the filter, of a program


class Tile(NamedTuple):
    """What ``depthwise_kernel`` is compiled for: see there."""

    BLOCK_M: int
    BLOCK_K: int
    RUN: int
    UNIT: int
    ROWS: int
    TAPS: int
    STRIDE: int
    DILATION: int


# Numbers that the compiler gains nothing from knowing; ``plain`` says why they are no named tuples.
GEOMETRY = "strips runs o_units blocks per P Q H W R S dy_m x_n x_h x_w sh pt pl dh".split()


@triton.jit(do_not_specialize=GEOMETRY)
def depthwise_kernel(
    dy_ptr, x_ptr, out_ptr, strips, runs, multiplier, o_units, blocks, per,
    P, Q, H, W, R, S, dy_m, x_n, x_h, x_w, sh, pt, pl, dh, T: tl.constexpr,
):
    """ROWS x TAPS taps of the filter, for BLOCK_M output channels, summed over one split of the strips, BLOCK_K at a time.

    ``runs`` strips lie in a row of output pixels. STRIDE and DILATION are those along a row. Co and the strides of dy
    and x are given in units of UNIT elements: the compiler then loads whole vectors.
    """
    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_K: tl.constexpr = T.BLOCK_K
    RUN: tl.constexpr = T.RUN
    UNIT: tl.constexpr = T.UNIT
    ROWS: tl.constexpr = T.ROWS
    TAPS: tl.constexpr = T.TAPS
    STRIDE: tl.constexpr = T.STRIDE
    DILATION: tl.constexpr = T.DILATION
    Co = o_units * UNIT
    tiles = tl.cdiv(Co, BLOCK_M)
    shares = tl.cdiv(S, TAPS)
    pid = tl.program_id(0)
    column = pid // tiles % (tl.cdiv(R, ROWS) * shares)
    split = pid // tiles // (tl.cdiv(R, ROWS) * shares)
    r0 = column // shares * ROWS
    s0 = column % shares * TAPS
    offs_o = pid % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_o = offs_o < Co
    # where the split begins: the only divisions in 64 bits, of scalars
    first = split * per
    begin = first.to(tl.int64) * BLOCK_K
    row = begin // runs
    image = row // P
    run = (begin - row * runs).to(tl.int32)
    line = (row - image * P).to(tl.int32)
    left = tl.minimum(strips - begin, per * BLOCK_K).to(tl.int32)
    step = tl.cast(dy_m, tl.int64) * UNIT
    next_pixel = tl.cast(x_w, tl.int64) * UNIT
    accs = ()
    for _i in tl.static_range(ROWS * TAPS):
        accs = accs + (tl.zeros([BLOCK_K, BLOCK_M], tl.float32),)
    for block in range(0, tl.minimum(per, blocks - first)):
        strip = block * BLOCK_K + tl.arange(0, BLOCK_K)
        there = strip < left
        q = (run + strip) % runs * RUN
        lines = line + (run + strip) // runs
        p = lines % P
        n = image + lines // P
        m = (n * P + p) * Q + q
        dy_at = dy_ptr + m[:, None] * step + offs_o[None, :]
        dys = ()
        for i in tl.static_range(RUN):
            mask = there & (q + i < Q)
            value = tl.load(dy_at + i * step, mask=mask[:, None] & mask_o[None, :], other=0.0)
            dys = dys + (value.to(tl.float32),)
        h = p * sh + r0 * dh - pt
        w = q * STRIDE + s0 * DILATION - pl
        sums = ()
        for r in tl.static_range(ROWS):
            seen = there & inside(h + r * dh, H)
            at = (n * x_n + pixel_offset(h + r * dh, w, x_h, x_w, WIDE=True)) * UNIT
            x_at = x_ptr + at[:, None] + (offs_o // multiplier)[None, :]
            xs = ()
            for j in tl.static_range((RUN - 1) * STRIDE + (TAPS - 1) * DILATION + 1):
                mask = seen & inside(w + j, W)
                value = tl.load(x_at + j * next_pixel, mask=mask[:, None] & mask_o[None, :], other=0.0)
                xs = xs + (value.to(tl.float32),)
            for s in tl.static_range(TAPS):
                acc = accs[r * TAPS + s]
                for i in tl.static_range(RUN):
                    acc += dys[i] * xs[i * STRIDE + s * DILATION]
                sums = sums + (acc,)
        accs = sums
    out_at = out_ptr + (split.to(tl.int64) * Co + offs_o) * (R * S)
    for r in tl.static_range(ROWS):
        for s in tl.static_range(TAPS):
            exists = offs_o < tl.where(r0 + r < R, tl.where(s0 + s < S, Co, 0), 0)
            total = tl.sum(accs[r * TAPS + s], 0).to(out_ptr.dtype.element_ty)
            tl.store(out_at + (r0 + r) * S + s0 + s, total, mask=exists)


def shares(size, most):
    """The length of equal shares of ``size``, as few as hold at most ``most``."""
    return -(-size // -(-size // most))


def taps_of(g, sums):
    """``(rows, taps in a row)`` of the filter that a program sums, which keeps about so many sums."""
    taps = shares(g.S, MOST_TAPS)
    return shares(g.R, max(1, sums // taps)), taps
