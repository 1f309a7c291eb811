"""The weight gradient as a product with im2col that is never stored: for any GPU, any geometry, and the interpreter.

Number the output pixels m = (n, p, q), and the weights of one output channel j = (r, s, c). Then

    dw[o, j] = sum_m dy[m, o] A[m, j],      A[m, j] = x[n, p σh + r δh - pt, q σw + s δw - pl, c], zero outside the image

is a product [Co x M][M x RSC] whose reduction runs over pixels. The address of A[m, j] is a part that depends on m plus a
part that depends on j: a program keeps its columns' part, and steps its rows' part from one block of pixels to the next
with additions and carries. Since j runs over taps too, a tile is as full for 3 channels as for 300.

The bias gradient, db[o] = sum_m dy[m, o], is summed by a kernel of its own or by programs behind the product's. Where a sum
is cut into splits (split-K), a second launch adds them, in order.
"""

import math
from typing import NamedTuple

import triton
import triton.language as tl

FAR = tl.constexpr(1 << 30)  # a coordinate outside every image; so is twice as much, in 32 unsigned bits
TILE = tl.constexpr(8192)  # elements of dy at once where the columns are summed beside a product


class Sizes(NamedTuple):
    """Of the output, the input and the filter."""

    P: int
    Q: int
    H: int
    W: int
    R: int
    S: int


class Steps(NamedTuple):
    """Along output pixels: stride, padding and dilation, and how far a block further lies in the input, in images, rows and
    columns."""

    sh: int
    sw: int
    pt: int
    pl: int
    dh: int
    dw: int
    step_n: int
    step_h: int
    step_w: int


class Tile(NamedTuple):
    """What ``wgrad_kernel`` is compiled for: see there."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    STAGES: int
    UNIT_O: int
    UNIT_C: int
    POINTWISE: bool
    TMA: bool
    WIDE: bool
    PRECISION: str | None
    TOGETHER: int


@triton.jit
def first_pixels(m, stride_n, sizes, steps, BLOCK_K: tl.constexpr, WIDE: tl.constexpr):
    """``(image, h, w)`` of the output pixels m ... m + BLOCK_K - 1: their images' offsets, and the input pixel under tap
    (0, 0), which may lie outside the image. Offsets have 64 bits if WIDE, else 32."""
    P, Q = sizes.P, sizes.Q
    n = m // (P * Q)  # of a scalar: the only division in 64 bits
    rest = (m - n * (P * Q)).to(tl.int32) + tl.arange(0, BLOCK_K)
    p = rest // Q
    q = rest - p * Q
    image = (n + p // P) * stride_n
    return image if WIDE else image.to(tl.int32), p % P * steps.sh - steps.pt, q * steps.sw - steps.pl


@triton.jit
def next_pixels(image, h, w, stride_n, sizes, steps):
    """The same a block later: an addition with carries, as in a number whose digits are n, p and q."""
    width, height = sizes.Q * steps.sw, sizes.P * steps.sh
    w += steps.step_w
    carry = w >= width - steps.pl
    w = tl.where(carry, w - width, w)
    h += tl.where(carry, steps.step_h + steps.sh, steps.step_h)
    carry = h >= height - steps.pt
    h = tl.where(carry, h - height, h)
    step = tl.cast(steps.step_n, image.dtype) * stride_n
    image += tl.where(carry, step + stride_n, step)
    return image, h, w


@triton.jit
def pixel_offset(h, w, stride_h, stride_w, WIDE: tl.constexpr):
    """Where pixel (h, w) lies in its image, with 64 bits if WIDE, else 32, which GPUs multiply in one instruction."""
    if WIDE:
        return h.to(tl.int64) * stride_h + w.to(tl.int64) * stride_w
    else:
        return h * stride_h + w * stride_w


@triton.jit
def inside(i, size):
    """0 <= i < size in one comparison: as an unsigned number, -1 is large."""
    return i.to(tl.uint32) < tl.cast(size, tl.uint32)


@triton.jit
def within(first, last):
    """The nearest to ``first`` of 0 ... ``last``, or 0: unlike by a minimum, known to be a multiple of what both are."""
    first = tl.where(first < last, first, last)
    return tl.where(first > 0, first, 0)


@triton.jit
def column_sums(
    dy_ptr, offs_o, m, count, M, Co, step, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr
):
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
    dy_ptr, out_ptr, M, Co, blocks, per, stride_m, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr
):
    """BLOCK_M channels of db[o] = sum_m dy[m, o], summed over one split of the pixels."""
    tiles = tl.cdiv(Co, BLOCK_M)
    pid = tl.program_id(0)
    split = pid // tiles
    offs_o = pid % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    first = split * per
    m = first.to(tl.int64) * BLOCK_K
    step = tl.cast(stride_m, tl.int64)
    count = tl.minimum(per, blocks - first)
    sums = column_sums(dy_ptr, offs_o, m, count, M, Co, step, BLOCK_M, BLOCK_K, STAGES)
    tl.store(out_ptr + split.to(tl.int64) * Co + offs_o, sums.to(out_ptr.dtype.element_ty), mask=offs_o < Co)


@triton.jit
def sum_all_columns(dy_ptr, out_ptr, o, M, Co, step, BLOCK_M: tl.constexpr):
    """BLOCK_M channels of db from o on, over all pixels; rows of dy lie ``step`` apart."""
    BLOCK_K: tl.constexpr = TILE // BLOCK_M
    offs_o = o + tl.arange(0, BLOCK_M)
    m = tl.cast(0, tl.int64)
    sums = column_sums(dy_ptr, offs_o, m, tl.cdiv(M, BLOCK_K), M, Co, step, BLOCK_M, BLOCK_K, 1)
    tl.store(out_ptr + offs_o, sums.to(out_ptr.dtype.element_ty), mask=offs_o < Co)


# Numbers that the compiler gains nothing from knowing: else it would compile anew for every geometry. They are no named
# tuples, because of a tuple's members Triton knows 1 and multiples of 16 whatever is said here.
GEOMETRY = "M groups o_units c_units per P Q H W R S dy_m x_n x_h x_w sh sw pt pl dh dw step_n step_h step_w".split()


@triton.jit(do_not_specialize=GEOMETRY)
def wgrad_kernel(
    dy_ptr, x_ptr, out_ptr, rows_ptr, bias_ptr,
    M, groups, o_units, c_units, per, P, Q, H, W, R, S, dy_m, x_n, x_h, x_w,
    sh, sw, pt, pl, dh, dw, step_n, step_h, step_w, T: tl.constexpr,
):
    """One tile [BLOCK_M output channels, BLOCK_N columns] of one group, summed over one split of the pixels.

    A group's channels, and the strides of dy's pixels and of x's images, rows and pixels, are given in units of UNIT_O and
    UNIT_C elements: the compiler then knows that they are multiples, and loads whole vectors. ``per``: blocks of pixels that
    a program sums, at most. POINTWISE: A is x itself, rows one step x_w apart. TMA: dy_ptr, and x_ptr if POINTWISE, are
    descriptors of such rows, of which the tensor memory accelerator copies whole blocks, zeros past their end; a row of dy is
    then as long as all groups' channels, and what a tile reads of the next group it does not store. WIDE: offsets in x need
    64 bits. Splits lie outermost in the grid: programs that run at the same time read the same pixels. bias_ptr: db, or
    ``None``; behind the product's programs are those that sum dy's columns into it, BLOCK_M channels each, from rows_ptr,
    which is dy whatever TMA says.
    """
    sizes = Sizes(P, Q, H, W, R, S)
    steps = Steps(sh, sw, pt, pl, dh, dw, step_n, step_h, step_w)
    blocks = tl.cast(tl.cdiv(M, T.BLOCK_K), tl.int32)
    Co = o_units * T.UNIT_O
    Ci = c_units * T.UNIT_C
    columns = R * S * Ci
    tiles_m = tl.cdiv(Co, T.BLOCK_M)
    tiles = tiles_m * tl.cdiv(columns, T.BLOCK_N)
    pid = tl.program_id(0)
    if bias_ptr is not None:
        products = tiles * groups * tl.cdiv(blocks, per)
        if pid >= products:
            step = tl.cast(dy_m, tl.int64) * T.UNIT_O
            sum_all_columns(rows_ptr, bias_ptr, (pid - products) * T.BLOCK_M, M, groups * Co, step, T.BLOCK_M)
            return
    split = pid // (tiles * groups)
    group = pid // tiles % groups
    o = pid % tiles % tiles_m * T.BLOCK_M
    j = pid % tiles // tiles_m * T.BLOCK_N
    own_o = o
    own_j = j
    if T.TMA:  # the last tile lies inside like all others: blocks of zeros take half as long again as those of values
        o = within(group * Co + o, groups * Co - T.BLOCK_M) - group * Co
        if T.POINTWISE:
            j = within(group * Ci + j, groups * Ci - T.BLOCK_N) - group * Ci
    offs_o = o + tl.arange(0, T.BLOCK_M)
    offs_j = j + tl.arange(0, T.BLOCK_N)
    offs_k = tl.arange(0, T.BLOCK_K)
    mask_o = offs_o < Co
    mask_j = offs_j < columns
    first = split * per
    m = first.to(tl.int64) * T.BLOCK_K

    if not T.TMA:  # dy[m, o]: rows one step apart
        step = tl.cast(dy_m, tl.int64) * T.UNIT_O
        dy_row = dy_ptr + group * Co + m * step
        dy_at = offs_k[:, None] * step + offs_o[None, :]

    if T.POINTWISE and not T.TMA:
        x_step = tl.cast(x_w, tl.int64) * T.UNIT_C
        x_row = x_ptr + group * Ci + m * x_step
        x_at = offs_k[:, None] * x_step + offs_j[None, :]
    if not T.POINTWISE:
        # A[m, j], the part of j = (r, s, c); a column that does not exist lies outside every image
        tap = offs_j // Ci
        r_h = tap // S * dh
        s_w = tap % S * dw
        x_column = x_ptr + group * Ci + (pixel_offset(r_h, s_w, x_h, x_w, WIDE=True) * T.UNIT_C + offs_j % Ci)
        r_h = tl.where(mask_j, r_h, FAR)
        image, h, w = first_pixels(m, x_n, sizes, steps, T.BLOCK_K, T.WIDE)
    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_N: tl.constexpr = T.BLOCK_N
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=T.STAGES):
        left = tl.minimum(M - m, T.BLOCK_K).to(tl.int32)
        mask_k = offs_k < left
        if T.TMA:
            dy = dy_ptr.load([m.to(tl.int32), group * Co + o])
        else:
            dy = tl.load(dy_row + dy_at, mask=mask_k[:, None] & mask_o[None, :], other=0.0)
            dy_row += step * T.BLOCK_K
        if T.POINTWISE and T.TMA:
            x = x_ptr.load([m.to(tl.int32), group * Ci + j])
        elif T.POINTWISE:
            x = tl.load(x_row + x_at, mask=mask_k[:, None] & mask_j[None, :], other=0.0)
            x_row += x_step * T.BLOCK_K
        else:
            # the part of m: pixel (h, w) may lie outside the image while (h + r δh, w + s δw) does not
            at = (image + pixel_offset(h, w, x_h, x_w, T.WIDE)).to(tl.int64) * T.UNIT_C
            h_or_far = tl.where(mask_k, h, FAR)
            mask_x = inside(h_or_far[:, None] + r_h[None, :], H) & inside(w[:, None] + s_w[None, :], W)
            x = tl.load(x_column[None, :] + at[:, None], mask=mask_x, other=0.0)
            image, h, w = next_pixels(image, h, w, x_n, sizes, steps)
        acc = tl.dot(tl.trans(dy), x, acc, input_precision=T.PRECISION)
        m += T.BLOCK_K

    rows = (split.to(tl.int64) * groups + group) * Co + offs_o
    mask = mask_o[:, None] & mask_j[None, :]
    if T.TMA:
        mask = mask & (offs_o >= own_o)[:, None] & (offs_j >= own_j)[None, :]
    if T.TOGETHER > 1:
        Ci_group = Ci // T.TOGETHER
        mask = mask & ((offs_o // (Co // T.TOGETHER))[:, None] == (offs_j % Ci // Ci_group)[None, :])
        columns = columns // T.TOGETHER
        offs_j = offs_j // Ci * Ci_group + offs_j % Ci_group
    out_at = out_ptr + rows[:, None] * columns + offs_j[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count"])
def sum_kernel(
    partial_ptr, out_ptr, numel, count, ACCUMULATE: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr
):
    """out (+)= the sum of ``count`` partial sums of ``numel`` elements each, in fp32, from the first to the last.

    AT_ONCE loads are under way before the first addition waits. That takes as many registers an element: a thread has one
    element, or a vector of them where partial sums are few.
    """
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    partial_at = partial_ptr + offs
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, AT_ONCE):
        parts = ()
        for i in tl.static_range(AT_ONCE):
            parts = parts + (tl.load(partial_at, mask=offs < tl.where(first + i < count, numel, 0), other=0.0),)
            partial_at += numel
        for i in tl.static_range(AT_ONCE):
            total += parts[i]
    if ACCUMULATE:
        total += tl.load(out_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count", "Co", "taps", "Ci"])
def turned_sum_kernel(
    partial_ptr, out_ptr, count, Co, taps, Ci, ACCUMULATE: tl.constexpr, AT_ONCE: tl.constexpr, SIDE: tl.constexpr
):
    """out[o, t, c] (+)= the sum of ``count`` partial sums [c, taps - 1 - t, o], as ``sum_kernel``'s: SIDE x SIDE channels of
    a tap, which are read along o and written along c."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(Co, SIDE)
    t = pid % taps
    o = pid // taps % blocks * SIDE + tl.arange(0, SIDE)
    c = pid // taps // blocks * SIDE + tl.arange(0, SIDE)
    mask = (c < Ci)[:, None] & (o < Co)[None, :]
    partial_at = partial_ptr + (c.to(tl.int64)[:, None] * taps + (taps - 1 - t)) * Co + o[None, :]
    step = tl.cast(Ci, tl.int64) * taps * Co
    total = tl.zeros([SIDE, SIDE], tl.float32)
    for first in range(0, count, AT_ONCE):
        parts = ()
        for i in tl.static_range(AT_ONCE):
            exists = (c < tl.where(first + i < count, Ci, 0))[:, None] & (o < Co)[None, :]
            parts = parts + (tl.load(partial_at, mask=exists, other=0.0),)
            partial_at += step
        for i in tl.static_range(AT_ONCE):
            total += parts[i]
    total = tl.trans(total)
    mask = tl.trans(mask)
    out_at = out_ptr + (o.to(tl.int64)[:, None] * taps + t) * Ci + c[None, :]
    if ACCUMULATE:
        total += tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=mask)


# What the host says of a geometry and its tensors.


def is_wide(g, BLOCK_K, stride_n, stride_h, stride_w):
    """Whether offsets of pixels need 64 bits, those under padding and up to a block past the last image included."""
    images = g.N + BLOCK_K // (g.P * g.Q) + 2
    return images * stride_n + (g.padded[0] + 1) * stride_h + (g.padded[1] + 1) * stride_w >= 2**31


def steps_of(g, BLOCK_K):
    """The ``Steps`` of a geometry by blocks of BLOCK_K output pixels: so many images, rows and columns, and what carries."""
    n, rest = divmod(BLOCK_K, g.P * g.Q)
    p, q = divmod(rest, g.Q)
    return Steps(*g.stride, g.padding[0], g.padding[2], *g.dilation, n, p * g.stride[0], q * g.stride[1])


def is_rows(g, strides):
    """Whether output pixel m is input pixel m, and those of x are one step apart in memory: x is then a matrix [M, Ci]."""
    n, h, w, _ = strides
    return g.pointwise and h == g.W * w and (g.N == 1 or n == g.H * h)


def channels_adjacent(x):
    """``x`` itself where its last dimension is adjacent in memory, else a contiguous copy: it is read once for every tap."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def rows_of(grad_output):
    """``grad_output`` as [N * P * Q, Co] with rows one step apart: a view where there is one, else a copy."""
    return channels_adjacent(grad_output.reshape(math.prod(grad_output.shape[:3]), grad_output.shape[-1]))


def common_unit(most, *sizes):
    """The largest power of two up to ``most`` that divides all sizes."""
    return math.gcd(most, *sizes)
