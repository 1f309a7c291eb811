"""The weight gradient as a product with im2col that is never stored: for any GPU, any geometry, and the interpreter.

Number the output pixels m = (n, p, q), and the weights of one output channel j = (r, s, c). Then

    dw[o, j] = sum_m dy[m, o] A[m, j],      A[m, j] = x[n, p σh + r δh - pt, q σw + s δw - pl, c], zero outside the image

is a product [Co x M][M x RSC] whose reduction runs over pixels. The address of A[m, j] is a part that depends on m plus a
part that depends on j: a program keeps its columns' part, and steps its rows' part from one block of pixels to the next
with additions and carries. Since j runs over taps too, a tile is as full for 3 channels as for 300.

The bias gradient is db[o] = sum_m dy[m, o]. Where a sum is cut into splits (split-K), a second launch adds them, in order.
"""

import math
from typing import NamedTuple

import triton
import triton.language as tl

FAR = tl.constexpr(1 << 30)  # a coordinate outside every image; so is twice as much, in 32 unsigned bits


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
    TURNED: bool
    WITHIN: bool


@triton.jit
def first_pixels(m, x_n, P, Q, sh, sw, pt, pl, BLOCK_K: tl.constexpr, WIDE: tl.constexpr):
    """``(image, h, w)`` of the output pixels m ... m + BLOCK_K - 1: their images' offsets, and the input pixel under tap
    (0, 0), which may lie outside the image. Offsets have 64 bits if WIDE, else 32."""
    n = m // (P * Q)  # of a scalar: the only division in 64 bits
    rest = (m - n * (P * Q)).to(tl.int32) + tl.arange(0, BLOCK_K)
    p = rest // Q
    image = (n + p // P) * x_n
    return image if WIDE else image.to(tl.int32), p % P * sh - pt, rest % Q * sw - pl


@triton.jit
def next_pixels(image, h, w, x_n, width, height, sh, pt, pl, step_n, step_h, step_w):
    """The same a block later: an addition with carries, as in a number whose digits are n, p and q. ``width``, ``height``: of
    all output pixels, in the input; a block is step_n images, step_h rows and step_w pixels there."""
    w += step_w
    carry = w >= width - pl
    w = tl.where(carry, w - width, w)
    h += tl.where(carry, step_h + sh, step_h)
    carry = h >= height - pt
    h = tl.where(carry, h - height, h)
    step = tl.cast(step_n, image.dtype) * x_n
    image += tl.where(carry, step + x_n, step)
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
def load_rows(rows, m, left, step, c, channels, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, TMA: tl.constexpr):
    """``left`` rows from m on, at most BLOCK_K, and BLOCK_C of all ``channels`` from c on; rows lie ``step`` apart or,
    with TMA, are given by their descriptor. Zeros elsewhere."""
    if TMA:
        values = rows.load([m.to(tl.int32), c])
    else:
        offs_k = tl.arange(0, BLOCK_K)
        offs_c = c + tl.arange(0, BLOCK_C)
        at = rows + m * step + (offs_k[:, None] * step + offs_c[None, :])
        values = tl.load(at, mask=(offs_k < left)[:, None] & (offs_c < channels)[None, :], other=0.0)
    return values


@triton.jit(do_not_specialize=["M", "blocks", "per"])
def bias_kernel(
    dy_ptr, out_ptr, M, Co, blocks, per, stride_m, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr
):
    """BLOCK_M channels of db[o] = sum_m dy[m, o], summed over one split of the pixels."""
    tiles = tl.cdiv(Co, BLOCK_M)
    pid = tl.program_id(0)
    split = pid // tiles
    offs_o = pid % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    first = split * per
    m = first.to(tl.int64) * BLOCK_K
    step = tl.cast(stride_m, tl.int64)
    dy_at = dy_ptr + (m + offs_k)[:, None] * step + offs_o[None, :]
    acc = tl.zeros([BLOCK_K, BLOCK_M], tl.float32)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        acc += tl.load(dy_at, mask=(offs_k < M - m)[:, None] & mask_o[None, :], other=0.0).to(tl.float32)
        dy_at += step * BLOCK_K
        m += BLOCK_K
    tl.store(out_ptr + split.to(tl.int64) * Co + offs_o, tl.sum(acc, 0).to(out_ptr.dtype.element_ty), mask=mask_o)


# Numbers that the compiler gains nothing from knowing: else it would compile anew for every geometry. They are no named
# tuples, because of a tuple's members Triton knows 1 and multiples of 16 whatever is said here.
GEOMETRY = "M groups tiles tiles_m Co Ci per P Q H W R S dy_m x_n x_h x_w sh sw pt pl dh dw step_n step_h step_w".split()


@triton.jit(do_not_specialize=GEOMETRY)
def wgrad_kernel(
    dy_ptr, x_ptr, out_ptr, M, groups, tiles, tiles_m, Co, Ci, per, P, Q, H, W, R, S, dy_m, x_n, x_h, x_w,
    sh, sw, pt, pl, dh, dw, step_n, step_h, step_w, T: tl.constexpr,
):
    """One tile [BLOCK_M output channels, BLOCK_N columns] of one group, summed over one split of the pixels.

    Co, Ci: of a group, which has ``tiles``, tiles_m of them along its output channels. ``per``: blocks of pixels that a
    program sums, at most. All groups' channels, and the strides of dy's pixels and of x's images, rows and pixels, are
    multiples of UNIT_O and UNIT_C; the strides are given in these units: the compiler then knows, and loads whole vectors.
    WITHIN: a group may begin within a vector. Its first tile begins with the vector; what a tile reads of other groups it
    does not store. POINTWISE: A is x itself, rows one step x_w apart. TMA: dy_ptr, and x_ptr if POINTWISE, are descriptors
    of such rows, of which the tensor memory accelerator copies whole blocks, zeros past their end. WIDE: offsets in x need
    64 bits. TOGETHER: so many groups are one here, of whose product only the blocks along the diagonal are stored. TURNED: x
    and dy have each other's roles, so that the sum of row o and column (t, c) is stored as that of row c and column
    (taps - 1 - t, o). Splits lie outermost in the grid: programs that run at the same time read the same pixels.
    """
    blocks = tl.cast(tl.cdiv(M, T.BLOCK_K), tl.int32)
    pid = tl.program_id(0)
    split = pid // (tiles * groups)
    group = pid // tiles % groups
    # nothing changes but what the compiler knows
    if not T.WITHIN:
        Co = Co // T.UNIT_O * T.UNIT_O
    if not (T.WITHIN and T.POINTWISE):
        Ci = Ci // T.UNIT_C * T.UNIT_C
    columns = R * S * Ci
    all_o = groups * Co // T.UNIT_O * T.UNIT_O
    all_c = groups * Ci // T.UNIT_C * T.UNIT_C
    # channels that a tile begins at, counted from the first group's first one, and from its own group's
    first_o = group * Co // T.UNIT_O * T.UNIT_O + pid % tiles % tiles_m * T.BLOCK_M
    first_c = group * Ci // T.UNIT_C * T.UNIT_C
    own_o = first_o - group * Co
    own_j = pid % tiles // tiles_m * T.BLOCK_N
    if T.POINTWISE:
        first_c += own_j
        own_j = first_c - group * Ci
    if T.TMA:  # the last tile lies inside like all others: blocks of zeros take half as long again as those of values
        first_o = within(first_o, all_o - T.BLOCK_M)
        if T.POINTWISE:
            first_c = within(first_c, all_c - T.BLOCK_N)
    offs_o = first_o - group * Co + tl.arange(0, T.BLOCK_M)
    offs_j = (first_c - group * Ci if T.POINTWISE else own_j) + tl.arange(0, T.BLOCK_N)
    first = split * per
    m = first.to(tl.int64) * T.BLOCK_K
    dy_step = tl.cast(dy_m, tl.int64) * T.UNIT_O
    x_step = tl.cast(x_w, tl.int64) * T.UNIT_C
    if not T.POINTWISE:
        # A[m, j], the part of j = (r, s, c); a column that does not exist lies outside every image
        tap = offs_j // Ci
        r_h = tap // S * dh
        s_w = tap % S * dw
        x_column = x_ptr + first_c + (pixel_offset(r_h, s_w, x_h, x_w, WIDE=True) * T.UNIT_C + offs_j % Ci)
        r_h = tl.where(offs_j < columns, r_h, FAR)
        image, h, w = first_pixels(m, x_n, P, Q, sh, sw, pt, pl, T.BLOCK_K, T.WIDE)
    BLOCK_M: tl.constexpr = T.BLOCK_M
    BLOCK_N: tl.constexpr = T.BLOCK_N
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=T.STAGES):
        left = tl.minimum(M - m, T.BLOCK_K).to(tl.int32)
        dy = load_rows(dy_ptr, m, left, dy_step, first_o, all_o, T.BLOCK_K, T.BLOCK_M, T.TMA)
        if T.POINTWISE:
            x = load_rows(x_ptr, m, left, x_step, first_c, all_c, T.BLOCK_K, T.BLOCK_N, T.TMA)
        else:
            # the part of m: pixel (h, w) may lie outside the image while (h + r δh, w + s δw) does not
            at = (image + pixel_offset(h, w, x_h, x_w, T.WIDE)).to(tl.int64) * T.UNIT_C
            h_or_far = tl.where(tl.arange(0, T.BLOCK_K) < left, h, FAR)
            mask_x = inside(h_or_far[:, None] + r_h[None, :], H) & inside(w[:, None] + s_w[None, :], W)
            x = tl.load(x_column[None, :] + at[:, None], mask=mask_x, other=0.0)
            image, h, w = next_pixels(image, h, w, x_n, Q * sw, P * sh, sh, pt, pl, step_n, step_h, step_w)
        acc = tl.dot(tl.trans(dy), x, acc, input_precision=T.PRECISION)
        m += T.BLOCK_K

    mask = (offs_o < Co)[:, None] & (offs_j < columns)[None, :]
    if T.TMA:
        mask = mask & (offs_o >= own_o)[:, None] & (offs_j >= own_j)[None, :]
    if T.WITHIN:
        mask = mask & (offs_o >= 0)[:, None] & (offs_j >= 0)[None, :]
    if T.TOGETHER > 1:
        Ci_group = Ci // T.TOGETHER
        mask = mask & ((offs_o // (Co // T.TOGETHER))[:, None] == (offs_j % Ci // Ci_group)[None, :])
        columns = columns // T.TOGETHER
        offs_j = offs_j // Ci * Ci_group + offs_j % Ci_group
    out_at = out_ptr + (split.to(tl.int64) * groups + group) * Co * columns
    if T.TURNED:
        row = offs_j % Ci * (R * S) + (R * S - 1 - offs_j // Ci)
        out_at = out_at + row.to(tl.int64)[None, :] * Co + offs_o[:, None]
    else:
        out_at = out_at + offs_o.to(tl.int64)[:, None] * columns + offs_j[None, :]
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


# What the host says of a geometry and its tensors.


def is_wide(g, BLOCK_K, stride_n, stride_h, stride_w):
    """Whether offsets of pixels need 64 bits, those under padding and up to a block past the last image included."""
    images = g.N + BLOCK_K // (g.P * g.Q) + 2
    return images * stride_n + (g.padded[0] + 1) * stride_h + (g.padded[1] + 1) * stride_w >= 2**31


def steps_of(g, BLOCK_K):
    """Along output pixels: stride, padding, dilation, and how far BLOCK_K pixels further lies, in images, rows and pixels."""
    n, rest = divmod(BLOCK_K, g.P * g.Q)
    p, q = divmod(rest, g.Q)
    return *g.stride, g.padding[0], g.padding[2], *g.dilation, n, p * g.stride[0], q * g.stride[1]


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
