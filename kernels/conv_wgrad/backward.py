"""The weight gradient as a product with im2col that is never stored, for any GPU, any geometry, and the interpreter.

Number the output pixels m = (n, p, q), and the weights of one output channel j = (r, s, c). Then

    dw[o, j] = sum_m dy[m, o] A[m, j],      A[m, j] = x[n, p σh + r δh - pt, q σw + s δw - pl, c], zero outside the image

is a matrix product [Co x M][M x RSC]: the reduction is over pixels. A's address is a part that depends on m alone plus a part
that depends on j alone; so a program keeps its columns' part, and steps its rows' part from one block of pixels to the next
with additions and carries, no division. Since j runs over taps too, a tile is full whatever C is.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.common.configs import configuration
from kernels.common.launch import launch
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.split_k import choose_split, pieces, reduce_into

FAR = tl.constexpr(1 << 30)  # a coordinate that no image has


@triton.jit
def first_pixels(m, N, P, Q, sh, sw, pt, pl, BLOCK_K: tl.constexpr):
    """Image n and input coordinates (h, w) of tap (0, 0) for output pixels m ... m + BLOCK_K - 1."""
    image = m // (P * Q)  # the only 64-bit division, of a scalar
    rest = (m - image * P * Q).to(tl.int32) + tl.arange(0, BLOCK_K)
    p = rest // Q
    q = rest - p * Q
    n = image.to(tl.int32) + p // P
    return n, (p % P) * sh - pt, q * sw - pl


@triton.jit
def next_pixels(n, h, w, P, Q, sh, sw, pt, pl, step_n, step_h, step_w):
    """The same a block later: steps added as in a number whose digits are n, p, q, here p σh - pt and q σw - pl."""
    w += step_w
    over = w >= Q * sw - pl
    w = tl.where(over, w - Q * sw, w)
    h += tl.where(over, step_h + sh, step_h)
    over = h >= P * sh - pt
    h = tl.where(over, h - P * sh, h)
    n += tl.where(over, step_n + 1, step_n)
    return n, h, w


@triton.jit
def pixel_offset(n, h, w, stride_n, stride_h, stride_w):
    """Where pixel (h, w) of image n lies, in 64 bits."""
    return n.to(tl.int64) * stride_n + h.to(tl.int64) * stride_h + w.to(tl.int64) * stride_w


@triton.jit
def inside(i, size):
    """0 <= i < size in one comparison: as an unsigned number, -1 is large."""
    return i.to(tl.uint32) < tl.cast(size, tl.uint32)


@triton.jit
def wgrad_kernel(
    dy_ptr, x_ptr, out_ptr,
    M, N, P, Q, H, W, S, columns, blocks, per,
    o_units, c_units, groups,
    dy_units, xn_units, xh_units, xw_units,
    sh, sw, pt, pl, dh, dw,
    step_n, step_h, step_w,
    UNIT_O: tl.constexpr, UNIT_C: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_M output channels, BLOCK_N columns] of one group, summed over one piece of the pixels.

    Channels and strides come in units of UNIT_O and UNIT_C elements, so that the compiler knows what divides them. Pieces
    lie outermost in the grid: programs that run at the same time read the same pixels, one of them from memory.
    """
    Co = o_units * UNIT_O  # of a group
    Ci = c_units * UNIT_C
    tiles_m = tl.cdiv(Co, BLOCK_M)
    tiles_n = tl.cdiv(columns, BLOCK_N)
    tiles = tiles_m * tiles_n * groups
    pid = tl.program_id(0)
    piece = pid // tiles
    group = pid % tiles // (tiles_m * tiles_n)
    tile = pid % (tiles_m * tiles_n)
    offs_o = tile % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_j = tile // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K

    # dy[m, o]: rows one step apart
    offs_k = tl.arange(0, BLOCK_K)
    dy_step = tl.cast(dy_units, tl.int64) * UNIT_O
    dy_row = dy_ptr + m * dy_step + group * Co
    dy_at = offs_k.to(tl.int64)[:, None] * dy_step + offs_o[None, :]
    mask_o = offs_o < Co

    # A[m, j]: what depends on j = (r, s, c); a column that does not exist lies outside every image
    tap = offs_j // Ci
    r_h = tap // S * dh
    s_w = tap % S * dw
    x_column = x_ptr + group * Ci + (pixel_offset(0 * tap, r_h, s_w, 0, xh_units, xw_units) * UNIT_C + offs_j % Ci)
    r_h = tl.where(offs_j < columns, r_h, FAR)

    n, h, w = first_pixels(m, N, P, Q, sh, sw, pt, pl, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        dy = tl.load(dy_row + dy_at, mask=(offs_k < M - m)[:, None] & mask_o[None, :], other=0.0)
        # what depends on m; (h, w) may lie outside the image while (h + r δh, w + s δw) does not
        x_row = pixel_offset(n, h, w, xn_units, xh_units, xw_units) * UNIT_C
        h_or_far = tl.where(n < N, h, -FAR)
        mask_x = inside(h_or_far[:, None] + r_h[None, :], H) & inside(w[:, None] + s_w[None, :], W)
        x = tl.load(x_column[None, :] + x_row[:, None], mask=mask_x, other=0.0)
        acc = tl.dot(tl.trans(dy), x, acc, input_precision=PRECISION)
        dy_row += BLOCK_K * dy_step
        m += BLOCK_K
        n, h, w = next_pixels(n, h, w, P, Q, sh, sw, pt, pl, step_n, step_h, step_w)

    rows = (piece.to(tl.int64) * groups + group) * Co + offs_o
    out_at = out_ptr + rows[:, None] * columns + offs_j[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask_o[:, None] & (offs_j < columns)[None, :])


@triton.jit
def depthwise_kernel(
    dy_ptr, x_ptr, out_ptr,
    M, N, P, Q, H, W, S, taps, blocks, per,
    Co, multiplier,
    dy_step, xn, xh, xw,
    sh, sw, pt, pl, dh, dw,
    step_n, step_h, step_w,
    HAS_X: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tap of BLOCK_C output channels, summed over one piece of the pixels; output channel o sees input channel
    o // multiplier alone, so there is no matrix product. Without HAS_X, x = 1: the bias gradient."""
    tiles = tl.cdiv(Co, BLOCK_C)
    pid = tl.program_id(0)
    piece = pid // (tiles * taps)
    tap = pid // tiles % taps
    offs_o = pid % tiles * BLOCK_C + tl.arange(0, BLOCK_C)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K
    dy_at = dy_ptr + (m + offs_k)[:, None] * dy_step + offs_o[None, :]
    r_h = tap // S * dh
    s_w = tap % S * dw
    x_column = x_ptr + (pixel_offset(0 * tap, r_h, s_w, 0, xh, xw) + offs_o // multiplier) if HAS_X else offs_o
    n, h, w = first_pixels(m, N, P, Q, sh, sw, pt, pl, BLOCK_K)
    acc = tl.zeros([BLOCK_K, BLOCK_C], tl.float32)
    for block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        dy = tl.load(dy_at, mask=(offs_k < M - m)[:, None] & mask_o[None, :], other=0.0).to(tl.float32)
        if HAS_X:
            mask_x = (n < N) & inside(h + r_h, H) & inside(w + s_w, W)
            x_row = pixel_offset(n, h, w, xn, xh, xw)
            x = tl.load(x_column[None, :] + x_row[:, None], mask=mask_x[:, None] & mask_o[None, :], other=0.0)
            acc += dy * x.to(tl.float32)
            n, h, w = next_pixels(n, h, w, P, Q, sh, sw, pt, pl, step_n, step_h, step_w)
        else:
            acc += dy
        dy_at += tl.cast(dy_step, tl.int64) * BLOCK_K
        m += BLOCK_K
    out_at = out_ptr + (piece.to(tl.int64) * Co + offs_o) * taps + tap
    tl.store(out_at, tl.sum(acc, 0).to(out_ptr.dtype.element_ty), mask=mask_o)


@dataclass(frozen=True)
class Plan:
    """How a geometry is launched: a kernel, its options, tiles over (output channels, columns, pixels), pieces of the
    reduction of ``per`` blocks each."""

    kernel: str
    options: dict
    tile: tuple[int, int, int]
    tiles: int
    blocks: int
    pieces: int
    per: int


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry: it always can."""
    return None


def float32_precision():
    """How torch wants float32 convolutions multiplied: ``"tf32"`` or ``"ieee"``."""
    return "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "ieee"


def size_class(g, dtype):
    """The key of the product's configuration: element size, and what limits the tile."""
    if dtype == torch.float32:
        return f"32-bit {float32_precision()}"
    return "16-bit narrow" if g.Co_group <= 64 else "16-bit"


def plan(g, dtype, device, split_k=None):
    """The ``Plan`` for a ``Geometry``: a pure function of sizes, dtype and the GPU's name."""
    if g.Ci_group == 1 and g.groups > 1:
        kernel, sizes, names = "depthwise", (g.Co, g.R * g.S, g.M), ("BLOCK_C", None, "BLOCK_K")
    else:
        kernel, sizes, names = "product", (g.Co_group, g.columns, g.M), ("BLOCK_M", "BLOCK_N", "BLOCK_K")
    options = configuration("conv_wgrad", kernel, size_class(g, dtype) if kernel == "product" else "default", device)
    held = options.pop("HELD")
    return _cut(kernel, sizes, names, options, held, g.groups if kernel == "product" else 1, split_k)


def _cut(kernel, sizes, names, options, held, groups, split_k):
    tile = tuple(1 if n is None else min(options[n], max(16, triton.next_power_of_2(size))) for n, size in zip(names, sizes))
    options |= {name: size for name, size in zip(names, tile) if name is not None}
    rows, columns, blocks = (triton.cdiv(size, width) for size, width in zip(sizes, tile))
    tiles = rows * columns * groups
    active, per = pieces(blocks, choose_split(tiles, blocks, held) if split_k is None else split_k)
    return Plan(kernel, options, tile, tiles, blocks, active, per)


def describe(g, dtype, device, split_k=None):
    """The ``plan`` in words: kernel, configuration, split-K, tile waste."""
    chosen = plan(g, dtype, device, split_k)
    if chosen.kernel == "depthwise":
        sizes = (g.Co, g.R * g.S, g.M)
        what = f"depthwise sums, no product: {g.Co} channels, {g.R * g.S} taps, {g.M} pixels"
    else:
        sizes = (g.Co_group, g.columns, g.M)
        each = f" in each of {g.groups} groups" if g.groups > 1 else ""
        what = f"product [{g.Co_group} x {g.M}][{g.M} x {g.columns}]{each}"
    waste = f"tile waste {tile_waste(sizes, chosen.tile):.2f}" if 0 not in sizes else "nothing to sum"
    settings = ", ".join(f"{name} {value}" for name, value in chosen.options.items())
    return f"{what}; {settings}; {chosen.tiles} tiles, split-K {chosen.pieces}; {waste}"


def wgrad(input, grad_output, g, out, accumulate, split_k=None):
    """Bring the weight gradient into ``out``.

    Args:
        input: x [N, H, W, Ci].
        grad_output: dy [N, P, Q, Co], x's dtype.
        g: their ``Geometry``.
        out: [Co, R, S, Ci/groups], any float dtype and strides.
        accumulate: add to ``out`` rather than overwrite it.
        split_k: pieces of the reduction, or ``None`` for the table's choice.
    """
    chosen = plan(g, input.dtype, input.device, split_k)
    x, dy = in_place_or_copy(input), rows_of(grad_output, g)
    options = dict(chosen.options)
    num_stages = options.pop("STAGES")
    step = step_of(options["BLOCK_K"], g)
    where = (*g.stride, g.padding[0], g.padding[2], *g.dilation)
    pixels = (g.M, g.N, g.P, g.Q, g.H, g.W, g.S)

    def product(target):
        most = 16 // x.element_size()
        unit_o, unit_c = common_unit(most, g.Co_group, dy.stride(0)), common_unit(most, g.Ci_group, *x.stride()[:3])
        launch(
            wgrad_kernel,
            (chosen.tiles * chosen.pieces,),
            dy, x, target,
            *pixels, g.columns, chosen.blocks, chosen.per,
            g.Co_group // unit_o, g.Ci_group // unit_c, g.groups,
            dy.stride(0) // unit_o, *(stride // unit_c for stride in x.stride()[:3]),
            *where, *step,
            outputs=(target,),
            UNIT_O=unit_o, UNIT_C=unit_c, PRECISION=float32_precision() if x.dtype == torch.float32 else None,
            STAGES=num_stages, **options,
        )  # fmt: skip

    def depthwise(target):
        launch(
            depthwise_kernel,
            (chosen.tiles * g.R * g.S * chosen.pieces,),
            dy, x, target,
            *pixels, g.R * g.S, chosen.blocks, chosen.per,
            g.Co, g.Co_group,
            dy.stride(0), *x.stride()[:3],
            *where, *step,
            outputs=(target,),
            HAS_X=True, STAGES=num_stages, **options,
        )  # fmt: skip

    reduce_into(out, accumulate, chosen.pieces, product if chosen.kernel == "product" else depthwise)
