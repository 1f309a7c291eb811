"""From an output pixel's number to the input pixels it sees: the index map on the device, and tensors it can walk."""

import math
from typing import NamedTuple

import triton
import triton.language as tl


class Sizes(NamedTuple):
    """Of the output, the input and the filter."""

    P: int
    Q: int
    H: int
    W: int
    R: int
    S: int


class Units(NamedTuple):
    """Strides of dy's pixels, and of x's images, rows and pixels, in units of several elements."""

    m: int
    n: int
    h: int
    w: int


class Walk(NamedTuple):
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


@triton.jit
def first_pixels(m, stride_n, sizes, walk, BLOCK_K: tl.constexpr, WIDE: tl.constexpr):
    """``(image, h, w)`` of the output pixels m ... m + BLOCK_K - 1: their images' offsets, and the input pixel under tap
    (0, 0), which may lie outside the image. Offsets have 64 bits if WIDE, else 32."""
    P, Q = sizes.P, sizes.Q
    n = m // (P * Q)  # of a scalar: the only division in 64 bits
    rest = (m - n * (P * Q)).to(tl.int32) + tl.arange(0, BLOCK_K)
    p = rest // Q
    q = rest - p * Q
    image = (n + p // P) * stride_n
    return image if WIDE else image.to(tl.int32), p % P * walk.sh - walk.pt, q * walk.sw - walk.pl


@triton.jit
def next_pixels(image, h, w, stride_n, sizes, walk):
    """The same a block later: an addition with carries, as in a number whose digits are n, p and q."""
    width, height = sizes.Q * walk.sw, sizes.P * walk.sh
    w += walk.step_w
    carry = w >= width - walk.pl
    w = tl.where(carry, w - width, w)
    h += tl.where(carry, walk.step_h + walk.sh, walk.step_h)
    carry = h >= height - walk.pt
    h = tl.where(carry, h - height, h)
    step = tl.cast(walk.step_n, image.dtype) * stride_n
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


def is_wide(g, BLOCK_K, stride_n, stride_h, stride_w):
    """Whether offsets of pixels need 64 bits, those under padding and up to a block past the last image included."""
    images = g.N + BLOCK_K // (g.P * g.Q) + 2
    return images * stride_n + (g.padded[0] + 1) * stride_h + (g.padded[1] + 1) * stride_w >= 2**31


def walk(g, BLOCK_K):
    """The ``Walk`` of a geometry by blocks of BLOCK_K output pixels: so many images, rows and columns, and what carries."""
    n, rest = divmod(BLOCK_K, g.P * g.Q)
    p, q = divmod(rest, g.Q)
    return Walk(*g.stride, g.padding[0], g.padding[2], *g.dilation, n, p * g.stride[0], q * g.stride[1])


def is_rows(g, x):
    """Whether output pixel m is input pixel m, and those are one step apart in memory: x is then a matrix [M, Ci]."""
    return g.pointwise and x.stride(1) == g.W * x.stride(2) and (g.N == 1 or x.stride(0) == g.H * x.stride(1))


def channels_adjacent(x):
    """``x`` itself where its last dimension is adjacent in memory, else a contiguous copy: it is read once for every tap."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def rows_of(grad_output):
    """``grad_output`` as [N * P * Q, Co] with rows one step apart: a view where there is one, else a copy."""
    return channels_adjacent(grad_output.reshape(math.prod(grad_output.shape[:3]), grad_output.shape[-1]))


def common_unit(most, *sizes):
    """The largest power of two up to ``most`` that divides all sizes."""
    return math.gcd(most, *sizes)
