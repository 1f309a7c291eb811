"""The weight gradient as a product with im2col that is never stored: for any GPU, any geometry, and the interpreter.

Number the output pixels m = (n, p, q), and the weights of one output channel j = (r, s, c). Then

    dw[o, j] = sum_m dy[m, o] A[m, j],      A[m, j] = x[n, p σh + r δh - pt, q σw + s δw - pl, c], zero outside the image

is a product [Co x M][M x RSC] whose reduction runs over pixels. The address of A[m, j] is a part that depends on m plus a
part that depends on j: a program keeps its columns' part, and steps its rows' part from one block of pixels to the next
with additions and carries. Since j runs over taps too, a tile is as full for 3 channels as for 300.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import runtime
from kernels.common.gpu import is_cuda_architecture
from kernels.common.launch import launch
from kernels.common.precision import convolution_in_tf32
from kernels.conv_wgrad.geometry import tile_waste
from kernels.conv_wgrad.portable.depthwise import column_sums, depthwise, taps_at_once
from kernels.conv_wgrad.portable.pixels import (
    UNITS,
    WALK,
    channels_adjacent,
    common_unit,
    first_pixels,
    inside,
    is_rows,
    is_wide,
    next_pixels,
    pixel_offset,
    rows_of,
    walk,
)
from kernels.conv_wgrad.split_k import cut, reduce_into

FAR = tl.constexpr(1 << 30)  # a coordinate outside every image; so is twice as much, in 32 unsigned bits

# Integers that the compiler gains nothing from knowing: without this it would compile anew for every geometry.
SIZES = ["M", "P", "Q", "H", "W", "R", "S", "groups", "o_units", "c_units", "blocks", "per", *WALK]


@triton.jit(do_not_specialize=[*SIZES, *UNITS])
def wgrad_kernel(
    dy_ptr, x_ptr, out_ptr,
    M, P, Q, H, W, R, S, groups,
    o_units, c_units, blocks, per,
    m_units, n_units, h_units, w_units,
    sh, sw, pt, pl, dh, dw,
    step_n, step_h, step_w,
    UNIT_O: tl.constexpr, UNIT_C: tl.constexpr, POINTWISE: tl.constexpr, TMA: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_M output channels, BLOCK_N columns] of one group, summed over one piece of the pixels.

    A group's channels and the strides of dy (m_units) and x are given in units of UNIT_O and UNIT_C elements: the compiler
    then knows that they are multiples, and loads whole vectors. POINTWISE: A is x itself, rows one step (w_units) apart.
    TMA: dy_ptr, and x_ptr if POINTWISE, are descriptors of such rows, of which the tensor memory accelerator copies whole
    blocks, zeros past their end; a row of dy is then as long as all groups' channels, and what a tile reads of the next
    group it does not store. WIDE: offsets in x need 64 bits. Pieces lie outermost in the grid: programs that run at the
    same time read the same pixels.
    """
    Co = o_units * UNIT_O
    Ci = c_units * UNIT_C
    columns = R * S * Ci
    tiles_m = tl.cdiv(Co, BLOCK_M)
    tiles = tiles_m * tl.cdiv(columns, BLOCK_N)
    pid = tl.program_id(0)
    piece = pid // (tiles * groups)
    group = pid // tiles % groups
    o = pid % tiles % tiles_m * BLOCK_M
    j = pid % tiles // tiles_m * BLOCK_N
    offs_o = o + tl.arange(0, BLOCK_M)
    offs_j = j + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    mask_o = offs_o < Co
    mask_j = offs_j < columns
    first = piece * per
    m = first.to(tl.int64) * BLOCK_K

    if not TMA:  # dy[m, o]: rows one step apart
        step = tl.cast(m_units, tl.int64) * UNIT_O
        dy_row = dy_ptr + group * Co + m * step
        dy_at = offs_k[:, None] * step + offs_o[None, :]

    if POINTWISE and not TMA:
        x_step = tl.cast(w_units, tl.int64) * UNIT_C
        x_row = x_ptr + group * Ci + m * x_step
        x_at = offs_k[:, None] * x_step + offs_j[None, :]
    if not POINTWISE:
        # A[m, j], the part of j = (r, s, c); a column that does not exist lies outside every image
        tap = offs_j // Ci
        r_h = tap // S * dh
        s_w = tap % S * dw
        x_column = x_ptr + group * Ci + (pixel_offset(r_h, s_w, h_units, w_units, WIDE=True) * UNIT_C + offs_j % Ci)
        r_h = tl.where(mask_j, r_h, FAR)
        image, h, w = first_pixels(m, n_units, P, Q, sh, sw, pt, pl, BLOCK_K, WIDE)
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
            at = (image + pixel_offset(h, w, h_units, w_units, WIDE)).to(tl.int64) * UNIT_C
            h_or_far = tl.where(mask_k, h, FAR)
            mask_x = inside(h_or_far[:, None] + r_h[None, :], H) & inside(w[:, None] + s_w[None, :], W)
            x = tl.load(x_column[None, :] + at[:, None], mask=mask_x, other=0.0)
            image, h, w = next_pixels(image, h, w, n_units, P, Q, sh, sw, pt, pl, step_n, step_h, step_w)
        acc = tl.dot(tl.trans(dy), x, acc, input_precision=PRECISION)
        m += BLOCK_K

    rows = (piece.to(tl.int64) * groups + group) * Co + offs_o
    out_at = out_ptr + rows[:, None] * columns + offs_j[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask_o[:, None] & mask_j[None, :])


def product(input, grad_output, g, cut, out):
    """Write ``cut.pieces`` partial sums of the weight gradient to ``out``.

    Args:
        input: [N, H, W, Ci].
        grad_output: [N, P, Q, Co].
        g: their ``Geometry``.
        cut: the ``Cut`` of its product.
        out: contiguous, [pieces, *g.weight_shape].
    """
    x, dy = channels_adjacent(input), rows_of(grad_output)
    vector = 16 // x.element_size()
    unit_o = common_unit(vector, g.Co_group, dy.stride(0))
    unit_c = common_unit(vector, g.Ci_group, *x.stride()[:3])
    x_units = [stride // unit_c for stride in x.stride()[:3]]
    options = dict(cut.options)
    BLOCK_M, BLOCK_N, BLOCK_K = (options[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    start, step = walk(g, BLOCK_K)

    pointwise = is_rows(g, x)
    dy_source, x_source = dy, x.as_strided((g.M, g.Ci), (x.stride(2), 1)) if pointwise else x
    described = [(dy_source, unit_o)] + [(x_source, unit_c)] * pointwise
    options["TMA"] &= all(unit == vector and has_descriptor(rows) for rows, unit in described)
    if options["TMA"]:
        dy_source = TensorDescriptor.from_tensor(dy_source, [BLOCK_K, BLOCK_M])
        x_source = TensorDescriptor.from_tensor(x_source, [BLOCK_K, BLOCK_N]) if pointwise else x_source
    launch(
        wgrad_kernel,
        (cut.tiles * cut.pieces,),
        dy_source, x_source, out,
        g.M, g.P, g.Q, g.H, g.W, g.R, g.S, g.groups,
        g.Co_group // unit_o, g.Ci_group // unit_c, cut.blocks, cut.per,
        dy.stride(0) // unit_o, *x_units,
        *start, *g.dilation,
        *step,
        outputs=(out,),
        UNIT_O=unit_o, UNIT_C=unit_c, POINTWISE=pointwise, WIDE=is_wide(g, BLOCK_K, *x_units),
        PRECISION=float32_precision() if x.dtype == torch.float32 else None,
        **options,
    )  # fmt: skip


def has_descriptor(rows):
    """Whether the tensor memory accelerator can copy blocks of ``rows`` [M, C], whose length is a multiple of 16 bytes."""
    if runtime.interpreted:
        there = rows.dtype != torch.bfloat16  # the interpreter's float32 copies are made of tensors, not of descriptors
    else:
        there = is_cuda_architecture(rows.device, 9, 10, 11, 12)
    return there and rows.data_ptr() % 16 == 0 and rows.stride(0) >= rows.shape[1] and rows.shape[0] < 2**31


def float32_precision():
    """How torch wants float32 convolutions multiplied: ``"tf32"`` or ``"ieee"``."""
    return "tf32" if convolution_in_tf32() else "ieee"


def size_class(g, dtype):
    """The product's key in the table: the arithmetic, whether x is read by single channels, whether it is im2col already,
    which tiles the channels fill."""
    if dtype == torch.float32:
        return float32_precision()
    if g.Ci_group % 4:
        return "16-bit scalar"
    words = ["16-bit"]
    if g.pointwise:
        words.append("pointwise")
    if g.Co_group <= 64:
        words.append("narrow")
    elif g.Co_group % 256 == 0:
        words.append("wide")
    return " ".join(words)


def is_depthwise(g):
    """Whether each group has one input channel, so that no product is left."""
    return g.Ci_group == 1 and g.groups > 1


def plan(g, dtype, device, split_k=None):
    """``(sizes of the sum, Cut)`` of a geometry."""
    if is_depthwise(g):
        shares = -(-g.S // taps_at_once(g.S))
        return (g.Co, g.R * g.S, g.M), cut((g.Co, g.R * shares, g.M), "depthwise", "default", device, 1, split_k)
    sizes = (g.Co_group, g.columns, g.M)
    return sizes, cut(sizes, "product", size_class(g, dtype), device, g.groups, split_k)


# What every backend has: why it cannot, what it would do, and doing it.


def reason_not(g, dtype, device):
    """Why this backend cannot compute a geometry, as text, or ``None``: it always can."""
    return None


def reason_slower(g, dtype, device):
    """Why ``"auto"`` passes over this backend although it can, as text, or ``None``: it is the last."""
    return None


def describe(g, dtype, device, split_k=None):
    """What ``wgrad`` would launch, in words: sizes, configuration, split-K and tile waste."""
    sizes, chosen = plan(g, dtype, device, split_k)
    rows, columns, pixels = sizes
    if is_depthwise(g):
        what = f"sums of {rows} channels and {columns} taps over {pixels} pixels, no product"
    else:
        what = f"product [{rows} x {pixels}][{pixels} x {columns}]" + (f" in {g.groups} groups" * (g.groups > 1))
    options = ", ".join(f"{name} {value}" for name, value in chosen.options.items())
    waste = f"{waste_of(g, sizes, chosen.tile):.2f}" if 0 not in sizes else "none, there is nothing to sum"
    return f"{what}; {options}; {chosen.tiles} tiles, split-K {chosen.pieces}; tile waste {waste}"


def waste_of(g, sizes, tile):
    """``tile_waste`` of what ``plan`` says; a depthwise sum's tiles are taps along a row of the filter."""
    if is_depthwise(g):
        rows, _, pixels = sizes
        return tile_waste((rows, g.R, g.S, pixels), (tile[0], 1, taps_at_once(g.S), tile[2]))
    return tile_waste(sizes, tile)


def copies(input, grad_output):
    """Lines of text: which tensors ``wgrad`` copies before it reads them, and why."""
    lines = []
    if channels_adjacent(input) is not input:
        lines.append(f"copies input: strides {input.stride()}, its channels are not adjacent")
    if grad_output.numel() and rows_of(grad_output).data_ptr() != grad_output.data_ptr():
        lines.append(
            f"copies grad_output: strides {grad_output.stride()}, not rows of adjacent channels one step apart"
        )
    return lines


def wgrad(input, grad_output, g, out, accumulate, split_k=None):
    """Bring the weight gradient into ``out``.

    Args:
        input: x, [N, H, W, Ci].
        grad_output: dy, [N, P, Q, Co], x's dtype.
        g: their ``Geometry``.
        out: [Co, R, S, Ci/groups], any strides.
        accumulate: add to ``out`` rather than overwrite it.
        split_k: pieces of the reduction, or ``None`` for the table's choice.
    """
    _, chosen = plan(g, input.dtype, input.device, split_k)
    run = depthwise if is_depthwise(g) else product
    reduce_into(out, accumulate, chosen.pieces, lambda target: run(input, grad_output, g, chosen, target))


def bias_grad(grad_output, out, accumulate):
    """Bring the bias gradient, the sum of ``grad_output`` [N, P, Q, Co] over its pixels, into ``out`` [Co]."""
    N, P, Q, Co = grad_output.shape
    chosen = cut((Co, 1, N * P * Q), "bias", "default", grad_output.device)
    reduce_into(out, accumulate, chosen.pieces, lambda target: column_sums(grad_output, chosen, target))
