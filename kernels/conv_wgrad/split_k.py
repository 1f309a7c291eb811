"""Split-K: how many pieces a reduction is cut into, which blocks each piece owns, and their sum in a fixed order."""

import functools

import torch
import triton
import triton.language as tl

from kernels.common.configs import configuration
from kernels.common.launch import launch

# What a piece costs beside its blocks, in blocks: filling the pipeline, and storing a tile; its partial sums written and read.
START = 6
PARTIAL = 3
MOST = 256


def pieces(blocks, splits):
    """``(active, per)``: piece i of ``active`` owns blocks i * per to (i + 1) * per - 1; none is empty, the last may be shorter.

    Args:
        blocks: length of the reduction in blocks.
        splits: pieces asked for; there are at most as many as blocks.
    """
    if blocks == 0:
        return 0, 0
    per = -(-blocks // min(splits, blocks))
    return -(-blocks // per), per


@functools.cache
def choose_split(tiles, blocks, held):
    """The number of pieces with the smallest modelled time: full waves of programs, few partial sums.

    Args:
        tiles: output tiles, each a program a piece.
        blocks: length of the reduction in blocks.
        held: programs that the GPU runs at once.
    """

    def cost(splits):
        active, per = pieces(blocks, splits)
        waves = -(-tiles * active // held)
        return waves * (per + START) + (PARTIAL * tiles * active / held if active > 1 else 0)

    return min(range(1, min(max(blocks, 1), MOST) + 1), key=cost)


@triton.jit
def sum_kernel(partial_ptr, out_ptr, numel, count, ACCUMULATE: tl.constexpr, BLOCK: tl.constexpr):
    """out (+)= sum of ``count`` partial sums of ``numel`` elements each, in fp32, from the first to the last."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(count):
        total += tl.load(partial_ptr + offs, mask=mask, other=0.0)
        partial_ptr += numel
    if ACCUMULATE:
        total += tl.load(out_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, total.to(out_ptr.dtype.element_ty), mask=mask)


def sum_partials(partials, out, accumulate):
    """Sum partial results in order and round once to ``out``'s dtype.

    Args:
        partials: fp32 [pieces, ...], contiguous; no pieces sum to zero.
        out: any strides; written, or with ``accumulate`` added to, in fp32.
        accumulate: bool.
    """
    if not out.is_contiguous():
        total = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        sum_partials(partials, total, False)
        out.add_(total) if accumulate else out.copy_(total)
        return
    options = configuration("conv_wgrad", "sum", "default", out.device)
    grid = (triton.cdiv(out.numel(), options["BLOCK"]),)
    launch(
        sum_kernel,
        grid,
        partials,
        out,
        out.numel(),
        partials.shape[0],
        outputs=(out,),
        ACCUMULATE=accumulate,
        **options,
    )


def reduce_into(out, accumulate, active, run):
    """Let ``run(target)`` write ``active`` pieces and bring their sum into ``out``.

    With one piece to write, ``run`` is given ``out`` itself, with none nothing runs; otherwise an fp32 workspace
    [active, *out.shape].
    """
    if active == 1 and not accumulate and out.is_contiguous():
        run(out)
        return
    partials = torch.empty((active, *out.shape), dtype=torch.float32, device=out.device)
    if active:
        run(partials)
    sum_partials(partials, out, accumulate)
