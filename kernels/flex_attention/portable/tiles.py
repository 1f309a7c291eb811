"""What every kernel here does with tiles: read rows, apply the mods, find a row's list of blocks."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def load_rows(
    source, row, end, D: tl.constexpr, EDGE: tl.constexpr, TMA: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Rows row ... row + BLOCK - 1 of a matrix [., D], zero from ``end`` on (where EDGE) and past D.

    source: ``(pointer, stride of rows, stride of columns)``; with TMA ``(descriptor of [B, H, ., D], b, h)``: one thread asks
    the GPU's copy engine for the whole tile, and no thread computes an address.
    """
    if TMA:
        return source[0].load([source[1], source[2], row, 0]).reshape([BLOCK, BLOCK_D])
    else:
        offs_r = row.to(tl.int64) + tl.arange(0, BLOCK)
        offs_d = tl.arange(0, BLOCK_D)
        at = source[0] + offs_r[:, None] * source[1] + offs_d[None, :].to(tl.int64) * source[2]
        if EDGE:
            return tl.load(at, mask=(offs_r < end)[:, None] & (offs_d < D)[None, :], other=0.0)
        elif BLOCK_D != D:
            return tl.load(at, mask=(offs_d < D)[None, :], other=0.0)
        else:
            return tl.load(at)


@triton.jit
def source_of(x, b, h, stride_b, stride_h, stride_r, stride_d, TMA: tl.constexpr):
    """What ``load_rows`` reads of x [B, H, ., D]: the matrix of batch b and head h."""
    if TMA:
        return x, b, h
    else:
        return x + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h, stride_r, stride_d


@triton.jit
def logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr):
    """f(scale s), minus infinity where the mask or ``inside`` forbids. Without a score mod the scale is left to the caller:
    s itself, which costs no instruction."""
    x = s if SCORE_MOD is None else SCORE_MOD(s * scale, b, h, m, n, score_tables)
    if MASK_MOD is not None:
        x = tl.where(MASK_MOD(b, h, m, n, mask_tables), x, float("-inf"))
    if inside is not None:
        x = tl.where(inside, x, float("-inf"))
    return x


@triton.jit
def list_row(lists, b, h, r):
    """Where in a pair of lists ``(num_blocks, indices, batch stride, head stride, width)`` block row r of (b, h) lies."""
    return b.to(tl.int64) * lists[2] + h * lists[3] + r


def like_strided(x, shape, dtype=None):
    """Uninitialized memory of ``shape`` whose dimensions lie in memory in the order in which x's do."""
    order = sorted(range(len(shape)), key=lambda i: (-x.stride(i), i))
    memory = torch.empty([shape[i] for i in order], dtype=dtype or x.dtype, device=x.device)
    return memory.permute([order.index(i) for i in range(len(shape))])


def fits_copy_engine(t):
    """Whether the copy engine can read a tensor: columns side by side, all else at multiples of 16 bytes."""
    steps = [stride * t.element_size() for stride in t.stride()[:-1]]
    return t.numel() > 0 and t.stride(-1) == 1 and t.data_ptr() % 16 == 0 and all(s % 16 == 0 and s > 0 for s in steps)


def sources(TMA, BLOCK, *tensors):
    """``(TMA, kernel arguments)``: descriptors of tensors [B, H, ., D] in tiles of BLOCK rows, if ``TMA`` asks for them and
    the copy engine can read them all; else the tensors."""
    if not (TMA and all(map(fits_copy_engine, tensors))):
        return False, tensors
    tiles = ([1, 1, BLOCK, max(16, triton.next_power_of_2(t.shape[-1]))] for t in tensors)
    return True, [TensorDescriptor(t, list(t.shape), list(t.stride()), tile) for t, tile in zip(tensors, tiles)]
