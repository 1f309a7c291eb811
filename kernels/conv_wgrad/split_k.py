"""Split-K: how a reduction is cut into pieces that different programs sum, and the pieces' sum in a fixed order."""

import functools
import math
from dataclasses import dataclass

import triton
import triton.language as tl

from kernels.common.configs import configuration
from kernels.common.launch import launch, planned

# What a program costs beside its pixels, in pixels: filling the pipeline and storing its tile; partial sums written and read.
START = 256
PARTIAL = 800
MOST = 256
AT_ONCE = 16  # partial sums that are loaded before the first addition waits
FEW = 4
SIDES = (16, 32)  # of a turned block: a thread has one element, or four where partial sums are few


@dataclass(frozen=True)
class Cut:
    """A launch of ``tiles`` * ``pieces`` programs: each sums one tile over ``per`` of the reduction's ``blocks``.

    ``options`` are the kernel's constexpr arguments and number of warps; ``tile`` its extent along rows, columns, reduction.
    """

    options: dict
    tile: tuple[int, int, int]
    tiles: int
    blocks: int
    pieces: int
    per: int


def cut(sizes, options, groups=1, split_k=None, length=1):
    """The ``Cut`` of a sum with these sizes.

    Args:
        sizes: (rows, columns, reduction) of one group. A kernel without BLOCK_N has a program for each column.
        options: of the kernel, and ``HELD``: how many programs the GPU runs at once; without it ``split_k`` must be given,
            and tiles are taken as long as they are.
        groups: how many such sums there are.
        split_k: pieces of the reduction, or ``None`` for as many as cost least.
        length: pixels in one step of the reduction.
    """
    held = options.get("HELD")
    names = "BLOCK_M", "BLOCK_N", "BLOCK_K"
    # no tile is more than twice as long as what it covers, but matrix units need 16; a model of tiles takes them whole
    most = [math.inf if held is None else max(16, 1 << max(0, size - 1).bit_length()) for size in sizes]
    tile = tuple(min(options.get(name, 1), limit) for name, limit in zip(names, most, strict=True))
    options = {name: value for name, value in options.items() if name != "HELD"}
    options |= {name: size for name, size in zip(names, tile, strict=True) if name in options}
    rows, columns, blocks = (-(-size // width) for size, width in zip(sizes, tile, strict=True))
    tiles = rows * columns * groups
    active, per = pieces(blocks, choose_split(tiles, blocks, tile[2] * length, held) if split_k is None else split_k)
    return Cut(options, tile, tiles, blocks, active, per)


def pieces(blocks, splits):
    """``(active, per)``: piece i of ``active`` owns ``per`` blocks from i * per on; none is empty, the last may have fewer.

    Args:
        blocks: length of the reduction in blocks.
        splits: pieces asked for; there are at most as many as blocks.
    """
    if blocks == 0:
        return 0, 0
    per = -(-blocks // min(splits, blocks))
    return -(-blocks // per), per


@functools.cache
def choose_split(tiles, blocks, block, held):
    """The number of pieces with the smallest modelled time: full waves of programs, few partial sums.

    Args:
        tiles: output tiles, each a program a piece.
        blocks: length of the reduction in blocks.
        block: pixels in a block.
        held: programs that the GPU runs at once.
    """

    def cost(splits):
        active, per = pieces(blocks, splits)
        waves = -(-tiles * active // held)
        return waves * (per * block + START) + (PARTIAL * tiles * active / held if active > 1 else 0)

    return min(range(1, min(max(blocks, 1), MOST) + 1), key=cost)


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


def sum_pieces(partials, out, accumulate, turned=False):
    """Sum partial results in order, in fp32, and round once to ``out``'s dtype.

    Args:
        partials: fp32 [pieces, ...], contiguous; no pieces sum to zero.
        out: contiguous; written, or with ``accumulate`` added to.
        accumulate: bool.
        turned: ``out`` is [Co, R, S, Ci], and a partial result [Ci, R, S, Co] with taps from the last to the first.
    """
    pieces = partials.shape[0]
    options = _sum_options(pieces <= FEW, out.device)
    meta = {"ACCUMULATE": accumulate, "AT_ONCE": FEW if pieces <= FEW else AT_ONCE, "num_warps": options["num_warps"]}
    if turned:
        Co, R, S, Ci = out.shape
        side = SIDES[pieces <= FEW]
        grid = (R * S * -(-Co // side) * -(-Ci // side),)
        launch(turned_sum_kernel, grid, partials, out, pieces, Co, R * S, Ci, SIDE=side, **meta)
    else:
        grid = (-(-out.numel() // options["BLOCK"]),)
        launch(sum_kernel, grid, partials, out, out.numel(), pieces, BLOCK=options["BLOCK"], **meta)


@planned
def _sum_options(few, device):
    return configuration("conv_wgrad", "sum", "few" if few else "many", device)
