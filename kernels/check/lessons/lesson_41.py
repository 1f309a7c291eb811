"""Lesson 41's turns: gradients with channels first, the waste of groups, a column of ones in a tile."""

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.check.lessons import Turn, as_given, listed


@triton.jit
def _gradients_kernel(at_ptr, exists_ptr, m0, o0, M, P, Q, Co, tile: tl.constexpr):
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 4)[None, :]
    at, exists = tile(m0 + i, o0 + j, M, P, Q, Co)
    tl.store(at_ptr + i * 4 + j, at)
    tl.store(exists_ptr + i * 4 + j, exists)


def _gradients(dy_tile, pixel, channel):
    at, exists = (torch.empty(8, 4, dtype=dtype, device=runtime.device) for dtype in (torch.int64, torch.bool))
    _gradients_kernel[(1,)](at, exists, pixel, channel, 45, 5, 3, 7, dy_tile)
    at = torch.where(exists, at, 0)
    return exists, at


@triton.jit
def _ones_kernel(A_ptr, tile_ptr, stored_ptr, first, J, with_ones: tl.constexpr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 16)[None, :]
    tile, stored = with_ones(tl.load(A_ptr + i * 16 + j), first + j, J)
    tl.store(tile_ptr + i * 16 + j, tile)
    tl.store(stored_ptr + i * 16 + j, stored & (i == i))


def _ones(with_ones, A, first):
    column = first + torch.arange(16, device=A.device)
    A = torch.where(column < 20, A, 0.0)
    tile, stored = torch.empty_like(A), torch.empty_like(A, dtype=torch.bool)
    _ones_kernel[(1,)](A, tile, stored, first, 20, with_ones)
    tile = torch.where(column <= 20, tile, 0.0)  # what lies behind has no meaning
    return stored, tile


AT = "(n * Co + offs_o) * P * Q + rest"
WASTE = "waste((rows, columns, M), tile)"
CANCELS = "G products are done and G asked for: G cancels"
ONES = "tl.where(offs_j == J, 1.0, A)"
TURNS = {
    "41-first": Turn(
        "where a tile of gradients lies with channels first",
        arguments=as_given,
        cases=listed("pixel channel", (8, 0), (40, 4)),  # across images, and at both ends
        slips=(
            (AT, "offs_m * Co + offs_o", "with channels *last* it lies there: here a channel's image comes first"),
            (AT, "offs_o * M + offs_m", "an image ends after its own Co planes, not all images after a channel"),
            ("n * Co", "n", "an image has Co planes of P · Q numbers: the next one begins Co · P · Q further"),
            ("+ rest", "+ offs_m", "m runs on over images: a plane has P · Q pixels, so take what is left of m"),
            (AT, "n + offs_o + rest", "an image has Co planes, and a plane P · Q pixels"),
            (" & (offs_o < Co)", "", "channels are read that don't exist"),
            ("(offs_m < M) & ", "", "pixels are read that don't exist"),
            ("offs_m < M", "offs_m < M - 1", "pixels are left out that exist"),
        ),
        run=_gradients,
    ),
    "41-groups": Turn(
        "what tiles waste where channels come in groups",
        arguments=lambda draw, **case: {**case, "tile": (64, 128, 64)},
        cases=listed(
            "Co J M G", (384, 3456, 8192, 1), (128, 1152, 1000, 8), (128, 1152, 4096, 2), (384, 9408, 4096, 192)
        ),
        slips=(
            ("Co // G, J // G", "Co, J", "each group is a product of its own, and is padded by itself"),
            ("J // G", "J", "an output channel sees its group's J / G columns only"),
            ("Co // G", "Co", "a group has Co / G output channels"),
            (WASTE, f"{WASTE} * G", CANCELS),
            (WASTE, f"{WASTE} / G", CANCELS),
            (", M), tile", ", tile[2]), tile", "the last step over the pixels is padded, too"),
            (WASTE, f"{WASTE} * rows * columns * M", "that is what is multiplied: ω is that over what was asked for"),
            (WASTE, f"1 / {WASTE}", "that is what was asked for over what is multiplied: ω is the other way round"),
            (WASTE, "1.0", "something is padded there: each side of a tile that overhangs is multiplied to its end"),
        ),
    ),
    "41-ones": Turn(
        "a tile whose column J is all ones",
        arguments=lambda draw, first: {"A": draw.normal(4, 16) + 100.0, "first": first},
        cases=listed("first", (0,), (16,)),
        slips=(
            ("<= J", "< J", "column J is the bias's: with J weights there are J + 1 columns now, 0 to J"),
            ("<= J", "< J + 2", "behind the bias, column J, the tile overhangs"),
            ("<= J", "> 0", "columns 0 to J - 1 are the weights'"),
            ("== J", "== J - 1", "column J - 1 is the last weight's, and the ones stand behind it"),
            (ONES, "A", "column J holds the zeros that it was loaded with: ones in every row sum each channel of dy"),
            (ONES, "tl.where(offs_j < J, 1.0, A)", "the weights' columns stay: column J alone is the bias's"),
        ),
        run=_ones,
    ),
}
