"""The checks of exercise 08: im2col, a convolution's weight gradient as a product with it, and the same in pieces.

``im2col(x, A)`` writes what each output pixel sees, ``wgrad(x, dy, dweight)`` the weight gradient, ``wgrad_split(x, dy,
partials, dweight)`` the sums of Z pieces of the pixels and their sum. All take ``R=, S=, stride=, padding=, dilation=`` and
block sizes; x [N, H, W, C], dy [N, P, Q, O], A [M, J], dweight [O, J], partials [Z, O, J], with m = (n, p, q), j = (r, s, c).
Images are maps of the globe: beyond their rows there are zeros, their columns run round.
"""

from kernels.check.conv_cases import AXES, Function
from kernels.check.conv_mistakes import OWN, suspects
from kernels.check.framework import Cheap, Compiles, Exercise, Property, Tier

MASKS = {(tensor, axis, "after"): "" for tensor, axes in AXES.items() for axis in axes}
MASKS |= {("x", "H", side): "mask_h" for side in ("before", "after")}
MASKS |= {(tensor, "N", "after"): "mask_m" for tensor in ("x", "dy")}
MASKS |= {("A", "M", "after"): "mask_m", ("dy", "O", "after"): "mask_o"}
MASKS |= {(tensor, "J", "after"): "mask_j" for tensor in ("A", "dweight", "partials")}
MASKS |= {(tensor, "O", "after"): "mask_o" for tensor in ("dweight", "partials")}

SPOKEN = {(tensor, "N"): "M" for tensor in ("x", "dy")}  # pixels are numbered m, whatever the image

READ_STRIDES, READ_FP32 = "Lesson 01, step 4", "Lesson 05, step 4"
PIXEL, MAP, TILE = (f"Lesson 40, step {step}" for step in (1, 2, 3))
PRODUCT, LOOP = "Lesson 41, step 1", "Lesson 41, step 2"
PIECES, ORDER = "Lesson 42, step 1", "Lesson 42, step 2"

MEMORY = "each tensor has its own strides, and some are 0: an address takes those of its own"
BLOCKS = "the answer depends on a block size: offsets of block i are i * BLOCK + tl.arange(0, BLOCK)"
F16 = "something is rounded to float16: acc, partials and total stay float32, and tiles keep their tensor's dtype"


def _exercise(name: str, missing: str, *properties: Property, **verdicts) -> Exercise:
    """One of the three exercises."""
    return Exercise(name, missing, properties, suspects, MASKS, given=("at", "at_tile"), spoken=SPOKEN, **verdicts)


gather = Function(("x",), ("A",), ("BLOCK_N", "BLOCK_K"))
product = Function(("x", "dy"), ("dweight",), ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
split = Function(("x", "dy"), ("partials", "dweight"), ("BLOCK_M", "BLOCK_N", "BLOCK_K"))

IM2COL = _exercise(
    "im2col",
    "the kernel stores nothing yet. It needs the index map, a load of the pixels it points to, and a store of A.",
    Property(
        "pixels and taps",
        2,
        MAP,
        gather.whole,
        "A[m, j] = x[n, p + r, q + s, c], m = (n P + p) Q + q, j = (r S + s) C + c",
    ),
    Property("strides in memory", 1, READ_STRIDES, gather.memory, MEMORY),
    Property(
        "ragged sizes", 1, TILE, gather.ragged, "rows beyond M and columns beyond J are not stored (mask_m, mask_j)"
    ),
    Property(
        "padding",
        2,
        PIXEL,
        gather.padded,
        "h = p * sh + r * dil_h - pt, and x is 0 where that is no row; w = (q * sw + s * dil_w - pl) mod W, 0..W-1",
    ),
    Property(
        "stride and dilation", 2, PIXEL, gather.spread, "h = p * sh + r * dil_h - pt, w = q * sw + s * dil_w - pl"
    ),
    Property("block sizes", 1, TILE, gather.tiles, BLOCKS),
    Property.stays_inside(TILE, gather.everything),
    compiles=Compiles(gather.usual, TILE),
    cheap=Cheap(
        gather.costed,
        gather.steps,
        (Tier(3, read=3.1, steps=1.1), Tier(1, read=6.2, written=4.0, steps=2.0)),
        "each element of A is loaded once, where it is stored",
        TILE,
        sectors=2.0,
    ),
)
WGRAD = _exercise(
    "wgrad",
    "the kernel stores nothing yet. It needs a loop over the blocks of pixels, and a store of dweight.",
    Property(
        "whole blocks", 2, PRODUCT, product.whole, "dweight[o, j] = sum over m of dy[m, o] A[m, j], that is dy^T A"
    ),
    Property("strides in memory", 1, READ_STRIDES, product.memory, MEMORY),
    Property("ragged pixels", 2, LOOP, product.no_pixels, "pixels beyond M add nothing: dy and A are 0 there (mask_m)"),
    Property("ragged channels", 1, LOOP, product.channels, "channels beyond O and columns beyond J are not stored"),
    Property("padding, stride, dilation", 1, PIXEL, product.everywhere, "the tile of A is im2col_tile's"),
    Property("block sizes", 1, LOOP, product.tiles, BLOCKS),
    Property("float16", 1, READ_FP32, product.half, F16),
    Property.stays_inside(LOOP, product.everything),
    Property.in_bfloat16(READ_FP32, product.bfloat),
    Property("float32 without TF32", 0, READ_FP32, product.single, 'say input_precision="ieee"', needs="a GPU"),
    compiles=Compiles(product.usual, LOOP, products={80: "HMMA", 90: "HGMMA"}),
    cheap=Cheap(
        product.costed,
        product.steps,
        (Tier(3, read=3.05, steps=1.1), Tier(1, read=6.1, written=4.0, steps=2.0)),
        "there are cdiv(M, BLOCK_K) blocks of pixels, each with one load of dy and one of x; one store after the last",
        LOOP,
        sectors=2.0,
    ),
)
SPLIT = _exercise(
    "wgrad_split",
    "the kernels store nothing yet. They need the blocks of each piece, their sum, and the sum of the pieces.",
    Property("equal pieces", 2, PIECES, split.even, OWN),
    Property("strides in memory", 1, READ_STRIDES, split.memory, MEMORY),
    Property("unequal pieces", 2, PIECES, split.uneven, OWN),
    Property("pieces without blocks", 1, PIECES, split.more_pieces, "a piece without blocks is stored too, as zeros"),
    Property(
        "order of the sum",
        1,
        ORDER,
        split.cancelling,
        "the pieces are added from the first to the last, in float32",
        F16,
    ),
    Property(
        "the same bits every time",
        1,
        ORDER,
        split.several_pieces,
        "programs come in no fixed order, so the last bits change from run to run: one program adds up all pieces",
        needs="the interpreter",
        shared_updates=True,
    ),
    Property("ragged sizes", 1, PIECES, split.ragged, "each program's tile ends at O and J (mask_o, mask_j)"),
    Property.stays_inside(PIECES, split.everything),
    compiles=Compiles(split.usual, PIECES, products={80: "HMMA", 90: "HGMMA"}, own_blocks=split.own),
    cheap=Cheap(
        split.costed,
        split.steps,
        (Tier(3, read=3.8, steps=1.1), Tier(1, read=7.6, written=4.0, steps=2.0)),
        "each block of pixels belongs to one piece, and each piece of a tile is stored once and loaded once",
        PIECES,
        sectors=2.0,
    ),
)
