"""The weight gradient as a product with im2col that is never stored: for any GPU, any geometry, and the interpreter.

Number the output pixels m = (n, p, q), and the weights of one output channel j = (r, s, c). Then

    dw[o, j] = sum_m dy[m, o] A[m, j],      A[m, j] = x[n, p σh + r δh - pt, q σw + s δw - pl, c], zero outside the image

is a product [Co x M][M x RSC] whose reduction runs over pixels. The address of A[m, j] is a part that depends on m plus a
part that depends on j: a program keeps its columns' part, and steps its rows' part from one block of pixels to the next
with additions and carries. Since j runs over taps too, a tile is as full for 3 channels as for 300.
"""

import triton
import triton.language as tl

from kernels.conv_wgrad.portable.column_sums import sum_all_columns
from kernels.conv_wgrad.portable.pixels import first_pixels, inside, next_pixels, pixel_offset

FAR = tl.constexpr(1 << 30)  # a coordinate outside every image; so is twice as much, in 32 unsigned bits


@triton.jit
def within(first, last):
    """The nearest to ``first`` of 0 ... ``last``, or 0: unlike by a minimum, known to be a multiple of what both are."""
    first = tl.where(first < last, first, last)
    return tl.where(first > 0, first, 0)


# Integers that the compiler gains nothing from knowing: otherwise it would compile anew for every geometry.
@triton.jit(do_not_specialize=["M", "groups", "o_units", "c_units", "blocks", "per", "sizes", "units", "walk"])
def wgrad_kernel(
    dy_ptr, x_ptr, out_ptr, rows_ptr, bias_ptr,
    M, groups, o_units, c_units, blocks, per, sizes, units, walk,
    UNIT_O: tl.constexpr, UNIT_C: tl.constexpr, POINTWISE: tl.constexpr, TMA: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, TOGETHER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_M output channels, BLOCK_N columns] of one group, summed over one piece of the pixels.

    A group's channels and the strides of dy and x (``units``) are given in units of UNIT_O and UNIT_C elements: the compiler
    then knows that they are multiples, and loads whole vectors. POINTWISE: A is x itself, rows one step (units.w) apart.
    TMA: dy_ptr, and x_ptr if POINTWISE, are descriptors of such rows, of which the tensor memory accelerator copies whole
    blocks, zeros past their end; a row of dy is then as long as all groups' channels, and what a tile reads of the next
    group it does not store. WIDE: offsets in x need 64 bits. Pieces lie outermost in the grid: programs that run at the
    same time read the same pixels. bias_ptr: db, or ``None``; behind the product's programs stand those that sum dy's
    columns into it, BLOCK_M channels each, from rows_ptr, which is dy whatever TMA says.
    """
    Co = o_units * UNIT_O
    Ci = c_units * UNIT_C
    columns = sizes.R * sizes.S * Ci
    tiles_m = tl.cdiv(Co, BLOCK_M)
    tiles = tiles_m * tl.cdiv(columns, BLOCK_N)
    pid = tl.program_id(0)
    if bias_ptr is not None:
        products = tiles * groups * tl.cdiv(blocks, per)
        if pid >= products:
            step = tl.cast(units.m, tl.int64) * UNIT_O
            sum_all_columns(rows_ptr, bias_ptr, (pid - products) * BLOCK_M, M, groups * Co, step, BLOCK_M)
            return
    piece = pid // (tiles * groups)
    group = pid // tiles % groups
    o = pid % tiles % tiles_m * BLOCK_M
    j = pid % tiles // tiles_m * BLOCK_N
    own_o = o
    own_j = j
    if TMA:  # the last tile lies inside like all others: blocks of zeros take half as long again as blocks of values
        o = within(group * Co + o, groups * Co - BLOCK_M) - group * Co
        if POINTWISE:
            j = within(group * Ci + j, groups * Ci - BLOCK_N) - group * Ci
    offs_o = o + tl.arange(0, BLOCK_M)
    offs_j = j + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    mask_j = offs_j < columns
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K

    if not TMA:  # dy[m, o]: rows one step apart
        step = tl.cast(units.m, tl.int64) * UNIT_O
        dy_row = dy_ptr + group * Co + m * step
        dy_at = offs_k[:, None] * step + offs_o[None, :]

    if POINTWISE and not TMA:
        x_step = tl.cast(units.w, tl.int64) * UNIT_C
        x_row = x_ptr + group * Ci + m * x_step
        x_at = offs_k[:, None] * x_step + offs_j[None, :]
    if not POINTWISE:
        # A[m, j], the part of j = (r, s, c); a column that does not exist lies outside every image
        tap = offs_j // Ci
        r_h = tap // sizes.S * walk.dh
        s_w = tap % sizes.S * walk.dw
        x_column = x_ptr + group * Ci + (pixel_offset(r_h, s_w, units.h, units.w, WIDE=True) * UNIT_C + offs_j % Ci)
        r_h = tl.where(mask_j, r_h, FAR)
        image, h, w = first_pixels(m, units.n, sizes, walk, BLOCK_K, WIDE)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _block in tl.range(0, tl.minimum(per, blocks - first), num_stages=STAGES):
        left = tl.minimum(M - m, BLOCK_K).to(tl.int32)
        mask_k = offs_k < left
        if TMA:
            dy = dy_ptr.load([m.to(tl.int32), group * Co + o])
        else:
            dy = tl.load(dy_row + dy_at, mask=mask_k[:, None] & mask_o[None, :], other=0.0)
            dy_row += step * BLOCK_K
        if POINTWISE and TMA:
            x = x_ptr.load([m.to(tl.int32), group * Ci + j])
        elif POINTWISE:
            x = tl.load(x_row + x_at, mask=mask_k[:, None] & mask_j[None, :], other=0.0)
            x_row += x_step * BLOCK_K
        else:
            # the part of m: pixel (h, w) may lie outside the image while (h + r δh, w + s δw) does not
            at = (image + pixel_offset(h, w, units.h, units.w, WIDE)).to(tl.int64) * UNIT_C
            h_or_far = tl.where(mask_k, h, FAR)
            mask_x = inside(h_or_far[:, None] + r_h[None, :], sizes.H) & inside(w[:, None] + s_w[None, :], sizes.W)
            x = tl.load(x_column[None, :] + at[:, None], mask=mask_x, other=0.0)
            image, h, w = next_pixels(image, h, w, units.n, sizes, walk)
        acc = tl.dot(tl.trans(dy), x, acc, input_precision=PRECISION)
        m += BLOCK_K

    rows = (piece.to(tl.int64) * groups + group) * Co + offs_o
    mask = mask_o[:, None] & mask_j[None, :]
    if TMA:
        mask = mask & (offs_o >= own_o)[:, None] & (offs_j >= own_j)[None, :]
    if TOGETHER > 1:
        Ci_group = Ci // TOGETHER
        mask = mask & ((offs_o // (Co // TOGETHER))[:, None] == (offs_j % Ci // Ci_group)[None, :])
        columns = columns // TOGETHER
        offs_j = offs_j // Ci * Ci_group + offs_j % Ci_group
    out_at = out_ptr + rows[:, None] * columns + offs_j[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)
