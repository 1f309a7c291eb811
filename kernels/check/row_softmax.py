"""The check of exercise 01: the softmax of each row of x [M, N] to out, and its entropy to entropy [M].

``row_softmax(x, out, entropy, BLOCK_N=None)`` is the function. Most properties look at out alone, so that a softmax earns
points before its entropy is there.
"""

import torch

from kernels.check.cases import ROUNDED
from kernels.check.framework import Case, Cheap, Compiles, Draw, Exercise, Fenced, Output, Property, Tier
from kernels.check.softmax_mistakes import entropies, softmaxes

INF = float("inf")


def case(
    x, *, entropy=False, packed=False, order="", shared="", out_order="", out_dtype=None, poison=(), **launch
) -> Case:
    """One call on ``x``, with a fence as wide as the widest block that the launch may use.

    The entropies are judged where ``entropy``.
    """
    fence = None if packed else {"M": 2, "N": max(64, launch.get("BLOCK_N", 0))}
    p = torch.softmax(x.double(), dim=1).nan_to_num(nan=0.0)
    out = Fenced("out", "MN", torch.empty(x.shape, dtype=out_dtype or x.dtype), fence=fence, order=out_order)
    each_row = Fenced("entropy", "M", torch.empty(len(x)), fence=fence)
    answer = torch.special.entr(p).sum(dim=1) if entropy else None
    slack = torch.full([len(x)], ROUNDED)  # it is a difference: near 0 the rounding of 1 and of ln 1 is left
    return Case(
        inputs=[Fenced("x", "MN", x, fence=fence, order=order, shared=shared)],
        outs=[Output(out, p), Output(each_row, answer, slack=slack)],
        launch=launch,
        neutral=-INF,
        poison=poison,
    )


def aligned(draw: Draw):
    """A width that is a power of two, rows one after another in memory."""
    yield case(draw.normal(draw.size(4, 2, 6), draw.size(16, 16, 32, multiple_of=16)), packed=True)


def strides(draw: Draw):
    """Rows with gaps, a transposed x, a row that is repeated with stride 0, an output laid out unlike x; far rows."""
    M, N = draw.size(3, 2, 6), 16
    yield case(draw.normal(M, N))
    yield case(draw.normal(M, N), order="NM")
    yield case(draw.normal(1, N).expand(M, N), shared="M")
    yield case(draw.normal(M, N), out_order="NM")
    yield case(draw.normal(3, N)).stretched(x="M", out="M")


def ragged(draw: Draw):
    """Widths that fill no block: a little less, one element, and almost all of it."""
    for shown, low, high in ((13, 9, 15), (1, 1, 1), (60, 57, 63)):
        yield case(draw.normal(3, draw.size(shown, low, high)), poison=None)


def wide(draw: Draw):
    """Rows of several blocks, the last of them whole, ragged, or of one element; one far wider than a block can be."""
    yield case(draw.normal(2, draw.size(48, 48, 64, multiple_of=16)), BLOCK_N=16)
    yield case(draw.normal(1, draw.size(70_000, 66_000, 72_000)), BLOCK_N=4096, poison=None)
    for N in (draw.size(41, 34, 47), 33):
        yield case(draw.normal(3, N), BLOCK_N=16, poison=None)


def blocks(draw: Draw):
    """The same rows with three block lengths."""
    x = draw.normal(2, draw.size(13, 9, 15))
    for BLOCK_N in (16, 64, 256):
        yield case(x, BLOCK_N=BLOCK_N)


def decided(draw: Draw):
    """Rows of one block, of several, narrower than theirs and ragged; equal numbers; ones that have nearly everything."""
    x = draw.normal(4, draw.size(13, 9, 15))
    x[1], x[2, 0] = 0.5, 9.0
    yield case(draw.normal(3, 16), entropy=True)
    yield case(draw.normal(3, draw.size(48, 48, 64, multiple_of=16)), entropy=True, BLOCK_N=16)
    yield case(x, entropy=True)
    x = draw.normal(3, draw.size(200, 190, 256))
    x[:, 0] = 14.0
    yield case(x, entropy=True)
    yield case(draw.normal(3, draw.size(41, 33, 47), dtype=torch.float16), entropy=True, BLOCK_N=16, poison=None)


def large(draw: Draw):
    """Rows around +1000 and -1000, where exp overflows or is 0; wide ones, their maximum in any block; lowest numbers."""
    x = draw.normal(4, draw.size(16, 16, 32, multiple_of=16))
    yield case(x + torch.tensor([[1000.0], [-1000.0], [0.0], [80.0]]), entropy=True)
    x = draw.normal(3, draw.size(48, 48, 64, multiple_of=16))
    for row, columns in enumerate((slice(16), slice(16, 32), slice(-16, None))):
        x[row, columns] += 1000.0
    yield case(x, entropy=True, BLOCK_N=16)
    x = draw.normal(3, 16)
    x[1] = -1e38
    yield case(x, entropy=True)
    x = draw.normal(3, draw.size(41, 33, 47))
    x[0, -1] += 1000.0  # in the last block, which is ragged
    x[1] = -1e38
    yield case(x, entropy=True, BLOCK_N=16)


def excluded(draw: Draw):
    """Entries that take no part, and a row of nothing else; wide rows in which whole blocks are."""
    x = draw.normal(3, draw.size(16, 16, 32, multiple_of=16))
    x[0, ::3] = x[1] = x[2, 0] = -INF
    yield case(x, entropy=True)
    x = draw.normal(3, draw.size(48, 48, 64, multiple_of=16))
    x[0, :16] = x[1] = x[2, -16:] = -INF
    yield case(x, entropy=True, BLOCK_N=16)


def half(draw: Draw):
    """float16 values with a float32 output, where only float32 arithmetic gives the digits; then a float16 output."""
    x = draw.normal(2, draw.size(1024, 1024, 2048, multiple_of=1024), dtype=torch.float16, scale=3.0)
    yield case(x, out_dtype=torch.float32)
    yield case(x)


def bfloat(draw: Draw):
    """bfloat16 in and out."""
    yield case(draw.normal(4, 64, dtype=torch.bfloat16))


def suspects(case: Case, out: Output):
    """Known mistakes, as formulas."""
    return entropies(case, out.expected) if out.name == "entropy" else softmaxes(case)


def long_rows(draw: Draw):
    """Rows of four blocks of 1024."""
    yield case(draw.normal(2, 4096, dtype=torch.float16), packed=True)


def walked(draw: Draw):
    """Rows of four whole blocks."""
    yield case(draw.normal(4, 64), entropy=True, packed=True, BLOCK_N=16)


def walks(case: Case) -> int:
    """Three walks along each row: three loads of each block, and a store; and the store of the entropy."""
    M, N = case.outs[0].tensor.shape
    return M * (4 * (N // case.launch["BLOCK_N"]) + 1)


READ_STRIDES = "Lesson 01, step 4"
READ_PADDING = "Lesson 02, step 2"
READ_WALK = "Lesson 02, step 3"

EXERCISE = Exercise(
    name="row_softmax",
    missing="the kernel stores nothing yet. It needs three walks along a row: its maximum, its sum, and what is stored.",
    properties=(
        Property("one block wide", 1, READ_PADDING, aligned),
        Property(
            "strides",
            1,
            READ_STRIDES,
            strides,
            "each address is row * stride_m + offs_n * stride_n, with the strides of that tensor",
        ),
        Property(
            "ragged width", 1, READ_PADDING, ragged, "the block must cover the row: its length is BLOCK_N, not a number"
        ),
        Property(
            "wide rows",
            1,
            READ_WALK,
            wide,
            "something is not carried from block to block, or not every block is visited",
        ),
        Property("block length", 1, READ_PADDING, blocks, "the answer depends on BLOCK_N, it must not"),
        Property("entropy", 1, READ_WALK, decided, "it is minus the sum of p times ln p along row m, at place m"),
        Property("large values", 1, READ_PADDING, large),
        Property("excluded entries", 1, READ_PADDING, excluded),
        Property(
            "float16",
            1,
            READ_WALK,
            half,
            "the arithmetic is done in float16: convert to tl.float32 right after the load",
        ),
        Property.stays_inside(READ_PADDING, ragged),
        Property.in_bfloat16(READ_WALK, bfloat),
    ),
    suspects=suspects,
    masks={("entropy", "M", "after"): ""},  # one program a row: what goes astray there has a wrong address
    compiles=Compiles(long_rows, READ_WALK),
    cheap=Cheap(
        walked,
        walks,
        (Tier(3, read=3.0, steps=1.25), Tier(1, read=6.0, written=3.0, steps=3.0)),
        "three walks are enough, one load of each block in each, and each element is stored once",
        READ_WALK,
    ),
)
