"""Lesson 40's turns: padding that keeps the size, weights in torch's order, a residue class as a dense walk."""

from itertools import product

import torch
import triton
import triton.language as tl

from kernels.check.lessons import Turn, as_given, listed


@triton.jit
def _tile_kernel(
    h_ptr, w_ptr, place_ptr, h0_ptr, w0_ptr, first, R, S, dil_h, dil_w, stride_h, stride_w, stride_c, tile: tl.constexpr
):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 16)[None, :]
    h0, w0 = tl.load(h0_ptr + i), tl.load(w0_ptr + i)
    h, w, place = tile(first + j, h0, w0, R, S, dil_h, dil_w, stride_h, stride_w, stride_c)
    tl.store(h_ptr + i * 16 + j, h)
    tl.store(w_ptr + i * 16 + j, w)
    tl.store(place_ptr + i * 16 + j, place)


def _tile(torch_tile, h0, w0, first):
    h, w, place = torch.empty(3, 4, 16, dtype=torch.int64, device=h0.device)
    _tile_kernel[(1,)](h, w, place, h0, w0, first, 3, 2, 2, 3, 1000, 50, 7, torch_tile)
    return h, w, place


MISSING = "max((P - 1) * stride + dilation * (R - 1) + 1 - H, 0)"
HALVES = "missing // 2, missing - missing // 2"
MEET = "row h and tap r meet in the output row p with p · stride + r − top = h"
CLASS = "(h + top) mod stride must be a: count what lies above the image"
TURNS = {
    "40-same": Turn(
        "the padding that keeps the size",
        arguments=as_given,
        cases=listed("stride dilation R H", *product((1, 2, 3), (1, 3), (3, 2, 1), (5, 6, 9))),
        slips=(
            ("dilation * (R - 1) + 1", "R", "dilation spreads the filter's taps: it spans δ (R − 1) + 1 rows"),
            (MISSING, "dilation * (R - 1)", "with a stride fewer are enough: the last filter begins at row (P − 1) σ"),
            (MISSING, MISSING[4:-4], "nothing is missing where the last filter ends inside, and padding is at least 0"),
            ("- 1) + 1 - H", "- 1) - H", "the filter's first row counts, too"),
            (HALVES, "missing - missing // 2, missing // 2", "an odd one belongs below"),
            (HALVES, "missing, 0", "half of it belongs above, and half below"),
            (HALVES, "missing / 2, missing / 2", "rows are whole: divide with `//`"),
        ),
    ),
    "40-torch": Turn(
        "a tile of im2col in torch's order of weights",
        arguments=lambda draw, first: {
            "h0": torch.tensor([-1, 1, 3, 5]),
            "w0": torch.tensor([0, 2, -2, 4]),
            "first": first,
        },
        cases={f"16 columns from number {first} on": {"first": first} for first in (0, 5, 16)},
        slips=(
            ("// S % R, offs_j % S", "// R % S, offs_j % R", "r and s are exchanged: s is the innermost"),
            ("// S % R", "// R % R", "of a channel's R · S taps, a row has S: it is S by which r is divided off"),
            ("// S % R", "// S", "r grows beyond R − 1: take it modulo R, as each channel begins with tap row 0"),
            ("(R * S)", "S", "each channel has R · S columns: divide by both to find c"),
            ("r * dil_h", "r", "tap r lies r · dil_h rows below where the filter begins, not r rows"),
            ("s * dil_w", "s", "tap s lies s · dil_w columns to the right of where the filter begins, not s columns"),
            ("r * dil_h, w0 + s * dil_w", "r, w0 + s", "the taps lie dilation pixels apart"),
            ("r * dil_h, w0 + s * dil_w", "r * dil_w, w0 + s * dil_h", "the two dilations are exchanged"),
            ("h0 + r", "h0 - r", "taps run down from where the filter begins: h is h0 + r · dil_h"),
            ("w * stride_w", "w", "each of h, w and c has to be multiplied with its stride"),
            (" + c * stride_c", "", "every channel reads channel 0: add c times stride_c"),
        ),
        run=_tile,
    ),
    "40-class": Turn(
        "a residue class as a walk of its own",
        arguments=as_given,
        cases=listed(
            "stride a top i k",
            *((stride, *rest) for stride in (2, 3, 1, 4) for rest in product(range(stride), (1, 0, 3), (0, 2), (0, 1))),
        ),
        slips=(
            ("(a - top) % stride + i", "a - top + i", "that row does not exist: the first is (a − top) mod stride"),
            ("(a - top) % stride", "a", CLASS),
            ("a - top", "a + top", CLASS),
            ("i * stride", "(i + 1) * stride", "the class's rows are counted from 0"),
            ("r = a + ", "r = ", "rows of this class meet the taps a, a + stride, …, whose r mod stride is a"),
            ("(h + top - r) // stride", "i - k", MEET),
            ("(h + top - r) // stride", "(h + top) // stride - r", MEET),
            ("(h + top - r) // stride", "(h + top - r) / stride", "rows are whole: divide with `//`"),
        ),
    ),
}
