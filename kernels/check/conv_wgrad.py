"""The checks of exercise 08: im2col, a convolution's weight gradient as a product with it, and the same in pieces.

``im2col(x, A)`` writes what each output pixel sees, ``wgrad(x, dy, dweight)`` the weight gradient, ``wgrad_split(x, dy,
partials, dweight)`` the sums of Z pieces of the pixels and their sum. All take ``R=, S=, stride=, padding=, dilation=`` and
block sizes; x [N, H, W, C], dy [N, P, Q, O], A [M, J], dweight [O, J], partials [Z, O, J], with m = (n, p, q), j = (r, s, c).
Images are maps of the globe: beyond their rows there are zeros, their columns run round. A variation numbers the columns j
in another order, or turns the filter over.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from kernels.check.conv_mistakes import OWN, Filter, Problem, by_reference, problem_of, suspects
from kernels.check.framework import (
    Case,
    Cheap,
    Compiles,
    Draw,
    Exercise,
    Fenced,
    Output,
    Property,
    Tier,
)
from kernels.conv_wgrad.reference import geometry

AXES = {"x": "NHWC", "dy": "NPQO", "A": "MJ", "dweight": "OJ", "partials": "ZOJ"}
BORDER = tuple((axis, side) for axis in "HW" for side in ("before", "after"))


@dataclass(frozen=True)
class Function:
    """One of the three functions: its inputs, its outputs, its block sizes."""

    inputs: tuple[str, ...]
    outs: tuple[str, ...]
    blocks: tuple[str, ...]
    task: Filter = Filter()

    def case(
        self, draw: Draw, *, N=2, H=5, W=5, C=8, O=16, R=2, S=2, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1),
        Z=2, blocks=(16, 16, 16), **how,
    ) -> Case:  # fmt: skip
        """One call of these sizes; ``blocks`` are BLOCK_M, BLOCK_N and BLOCK_K.

        ``how``: ``values`` replaces normal ones by name, ``half`` is the inputs' dtype, ``magnitude`` multiplies them;
        ``orders``, ``shared``, ``out_order`` and ``packed`` say how tensors lie in memory; ``poison`` and ``tolerance``
        go to the case and its outputs.
        """
        g = geometry((N, H, W, C), O, R, S, stride, padding, dilation)
        sizes = {"N": N, "H": H, "W": W, "C": C, "P": g.P, "Q": g.Q, "O": O, "M": g.M, "J": g.columns, "Z": Z}
        fence = {"N": 2, "H": 4, "W": 4, "O": blocks[0], "J": blocks[1], "M": blocks[2], "Z": 1}
        fence = None if how.get("packed") else fence
        inputs = []
        for name in self.inputs:
            axes, still = AXES[name], how.get("shared", {}).get(name, "")
            one = [1 if axis in still else sizes[axis] for axis in axes]
            values = how.get("values", {}).get(name)
            if values is None:
                values = draw.normal(*one, scale=how.get("magnitude", 1.0), dtype=how.get("half", torch.float32))
            values = values.expand([sizes[axis] for axis in axes])
            inputs.append(
                Fenced(name, axes, values, fence=fence, order=how.get("orders", {}).get(name, ""), shared=still)
            )
        launch = {"R": R, "S": S, "stride": stride, "padding": padding, "dilation": dilation}
        launch |= {f"BLOCK_{axis}": n for axis, n in zip("MNK", blocks) if f"BLOCK_{axis}" in self.blocks}
        case = Case(inputs, [], launch, poison=how.get("poison", ()))
        x, *dy = (tensor.values.double() for tensor in inputs)
        answers = by_reference(Problem(x, dy[0] if dy else None, g, blocks[2], Z, self.task))
        for name in self.outs:
            tensor = Fenced(
                name, AXES[name], torch.empty([sizes[axis] for axis in AXES[name]]), fence=fence,
                order=how.get("out_order", {}).get(name, ""),
            )  # fmt: skip
            # The precision property alone looks at the last digits.
            case.outs.append(Output(tensor, answers[name], tolerance=how.get("tolerance", 5e-3)))
        return case

    # What more than one of the functions is held to.

    def whole(self, draw):
        """Sizes that fill every block, several images; a square image, too, so that what is swapped has the right shape.

        A tile of A is no square: a column that should be a row has the wrong shape at once.
        """
        how = {"C": 16, "blocks": (16, 32, 16), "packed": True}
        yield self.case(draw, N=draw.size(2, 2, 3), H=9, W=9, **how)
        yield self.case(draw, N=draw.size(2, 2, 4), W=10, S=3, **how)

    def padded(self, draw):
        """Padding on all sides, on each side another one, around a filter larger than the image, and twice round it."""
        yield self.case(draw, N=1, H=6, W=6, C=16, R=3, S=3, padding=(2, 2, 2, 2), poison=BORDER)
        yield self.case(draw, H=4, W=6, R=3, padding=(0, draw.size(2, 1, 2), draw.size(2, 2, 3), 1), poison=BORDER)
        yield self.case(draw, N=4, H=2, W=3, R=5, S=4, padding=(3, draw.size(2, 2, 3), 2, 2), poison=BORDER)
        yield self.case(draw, N=4, H=2, W=3, S=3, padding=(0, 0, 4, draw.size(5, 4, 6)), poison=BORDER)

    def spread(self, draw):
        """Strides and dilations, each for rows and columns its own; a stride larger than the filter."""
        H = draw.size(9, 8, 11)
        yield self.case(draw, H=H, W=11, stride=(3, 2))
        yield self.case(draw, H=H, W=11, R=3, dilation=(2, 3))
        yield self.case(draw, H=H, W=11, stride=(2, 3), dilation=(3, 1), poison=BORDER)
        yield self.case(draw, H=12, W=11, stride=(4, 3), padding=(1, 0, 1, 0), poison=BORDER)

    def everywhere(self, draw):
        """All of it at once."""
        for H, W, top, bottom in ((7, 9, 1, 0), (9, 6, 0, 2)):
            how = {"stride": (2, 1), "padding": (top, bottom, 2, 1), "dilation": (1, 2)}
            yield self.case(draw, H=draw.size(H, H, H + 2), W=W, C=draw.size(8, 4, 8), R=3, **how, poison=BORDER)

    def pixels(self, draw):
        """Numbers of pixels that fill no block, fewer than a block has, a single one."""
        after = (("N", "before"), ("N", "after"))
        yield self.case(draw, N=3, H=draw.size(6, 5, 7), W=6, poison=after)
        yield self.case(draw, N=1, H=3, W=draw.size(4, 3, 6), poison=after)
        yield self.case(draw, N=1, H=1, W=1, C=16, R=1, S=1, poison=after)

    def channels(self, draw):
        """Numbers of channels and columns that fill no block, and fewer than a block has."""
        ends = tuple((axis, side) for axis in "OCJ" for side in ("before", "after"))
        yield self.case(draw, C=draw.size(3, 3, 7, but_not_of=4), O=draw.size(20, 17, 31), S=3, poison=ends)
        yield self.case(draw, C=draw.size(3, 1, 7), O=draw.size(5, 1, 15), R=1, S=1, poison=ends)

    def tiles(self, draw):
        """The same problem in blocks of several sizes."""
        H = draw.size(9, 9, 13)
        for blocks in ((16, 32, 64), (32, 64, 16), (64, 16, 32)):
            yield self.case(draw, H=H, W=9, C=16, O=64, blocks=blocks)

    def memory(self, draw):
        """Channels first in memory, as NCHW has them; other orders; images and gradients that stand still."""
        sizes = {"W": draw.size(6, 5, 9), "S": 3}
        yield self.case(draw, **sizes)
        yield self.case(draw, **sizes, orders={"x": "NCHW", "dy": "NOPQ"})
        yield self.case(draw, **sizes, orders={"x": "WCNH", "dy": "QPON"})
        yield self.case(draw, **sizes, out_order={"A": "JM", "dweight": "JO", "partials": "JZO"})
        yield self.case(draw, **sizes, shared={"x": "N", "dy": "NPQ"})

    def half(self, draw):
        """float16 values whose products float16 cannot hold, sums whose last digits it cannot, and float32 values."""
        for magnitude in (300.0, 1.0):
            yield self.case(draw, N=8, half=torch.float16, magnitude=magnitude, tolerance=2e-5)
        yield self.case(draw, N=8, tolerance=2e-5)

    def bfloat(self, draw):
        """bfloat16 values."""
        yield self.case(draw, half=torch.bfloat16)

    def single(self, draw):
        """float32 values: a GPU's tl.dot rounds them to TF32 unless told otherwise, the interpreter never does."""
        yield self.case(draw, N=8, tolerance=2e-5)

    def everything(self, draw):
        """Everything ragged at once, for the addresses."""
        how = {"stride": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 2)}
        yield self.case(draw, N=3, H=draw.size(6, 5, 7), W=7, C=3, O=draw.size(20, 17, 31), R=3, **how)

    def usual(self, draw):
        """A tile as a GPU wants it, float16; then float32, whose digits are asked for."""
        for half, blocks in ((torch.float16, (64, 64, 32)), (torch.float32, (32, 32, 32))):
            yield self.case(draw, C=64, O=64, half=half, blocks=blocks, packed=True)

    def own(self, draw) -> Case:
        """A call for blocks of the learner's own, which decide what each piece sums: the sum of all is judged, not they."""
        case = self.case(draw, C=16, half=torch.float16, packed=True)
        case.outs = [out if out.name == "dweight" else replace(out, expected=None) for out in case.outs]
        return case

    def costed(self, draw):
        """Two images, two tiles on each axis of the gradient, six blocks of pixels, nothing ragged but the last block."""
        yield self.case(draw, N=2, H=8, W=8, C=8, O=32, R=2, S=2, Z=3, packed=True)

    def steps(self, case: Case) -> int:
        """A load and a store for each tile of A; two loads for each block of each tile, and a store; the pieces' sum."""
        problem, (outer, columns) = problem_of(case), case.outs[-1].tensor.shape
        across = -(-columns // case.launch["BLOCK_N"])
        if "A" in self.outs:
            return 2 * problem.blocks * across
        tiles = -(-outer // case.launch["BLOCK_M"]) * across
        pieces = problem.pieces if "partials" in self.outs else 0
        return tiles * (2 * problem.blocks + 1 + (2 * pieces if pieces else 0))

    def ragged(self, draw):
        """Pixels, then columns that fill no block."""
        yield from self.pixels(draw)
        yield from self.channels(draw)

    def no_pixels(self, draw):
        """The same for pixels, and no image at all."""
        yield from self.pixels(draw)
        yield self.case(draw, N=0)

    def even(self, draw):
        """Blocks that the pieces share evenly."""
        for Z in (2, 4, 1):
            yield self.case(draw, N=draw.size(2, 1, 3), H=9, W=9, Z=Z, packed=True)

    def uneven(self, draw):
        """Blocks that the pieces do not share evenly, and a partial one; each piece has some."""
        yield self.case(draw, N=draw.size(5, 3, 9, but_not_of=2), Z=2)
        yield self.case(draw, N=7, Z=4)
        yield self.case(draw, N=3, H=6, W=6, Z=3)

    def more_pieces(self, draw):
        """More pieces than blocks; pieces without blocks though there are fewer; no blocks at all."""
        yield self.case(draw, N=2, Z=draw.size(5, 3, 6))
        yield self.case(draw, N=9, Z=7)
        yield self.case(draw, N=0, Z=3)

    def cancelling(self, draw):
        """Three pieces, of which the second undoes the large first: in order, the third is left to its last digit."""
        x, dy = draw.normal(3, 5, 5, 8), draw.normal(3, 4, 4, 16)
        x[1], dy[0], dy[1] = x[0], 2.0**30 * dy[0], -(2.0**30) * dy[0]
        yield self.case(draw, N=3, Z=3, values={"x": x, "dy": dy})

    def split_ragged(self, draw):
        """Pixels, then channels that fill no block."""
        yield from self.pixels(draw)
        yield from self.channels(draw)

    def several_pieces(self, draw):
        """Several pieces of everything ragged."""
        yield self.case(draw, N=6, C=draw.size(5, 3, 7), O=draw.size(20, 17, 31), Z=4)


MASKS = {(tensor, axis, "after"): "" for tensor, axes in AXES.items() for axis in axes}
MASKS |= {("x", "H", side): "mask_h" for side in ("before", "after")}
MASKS |= {(tensor, "N", "after"): "mask_m" for tensor in ("x", "dy")}
MASKS |= {("A", "M", "after"): "mask_m", ("dy", "O", "after"): "mask_o"}
MASKS |= {(tensor, "J", "after"): "mask_j" for tensor in ("A", "dweight", "partials")}
MASKS |= {(tensor, "O", "after"): "mask_o" for tensor in ("dweight", "partials")}

SPOKEN = {(tensor, "N"): "M" for tensor in ("x", "dy")}  # pixels are numbered m, whatever the image

READ_STRIDES, READ_FP32 = "Lesson 01, step 4", "Lesson 03, step 5"
PIXEL, MAP, TILE = (f"Lesson 40, step {step}" for step in (1, 2, 3))
PRODUCT, LOOP, PIECES, ORDER = (f"Lesson 41, step {step}" for step in (1, 2, 4, 5))

MEMORY = "each tensor has its own strides, and some are 0: an address takes those of its own"
BLOCKS = "the answer depends on a block size: offsets of block i are i * BLOCK + tl.arange(0, BLOCK)"
F16 = "something is rounded to float16: acc, partials and total stay float32, and tiles keep their tensor's dtype"


@functools.cache
def exercises(task: Filter) -> tuple[Exercise, Exercise, Exercise]:
    """The three exercises where ``task`` is asked."""
    gather = Function(("x",), ("A",), ("BLOCK_N", "BLOCK_K"), task)
    product = Function(("x", "dy"), ("dweight",), ("BLOCK_M", "BLOCK_N", "BLOCK_K"), task)
    split = Function(("x", "dy"), ("partials", "dweight"), ("BLOCK_M", "BLOCK_N", "BLOCK_K"), task)
    mistakes = functools.partial(suspects, task=task)
    row, column = task.taps

    def vary(which: int) -> Callable[[Mapping], Exercise]:
        return lambda varied: exercises(Filter.of(varied))[which]

    im2col = Exercise(
        "im2col",
        "the kernel stores nothing yet. It needs the index map, a load of the pixels it points to, and a store of A.",
        (
            Property(
                "pixels and taps",
                2,
                MAP,
                gather.whole,
                f"A[m, j] = x[n, p + {row}, q + {column}, c], m = (n P + p) Q + q, j = {task.number}",
            ),
            Property("strides in memory", 1, READ_STRIDES, gather.memory, MEMORY),
            Property(
                "ragged sizes",
                1,
                TILE,
                gather.ragged,
                "rows beyond M and columns beyond J are not stored (mask_m, mask_j)",
            ),
            Property(
                "padding",
                2,
                PIXEL,
                gather.padded,
                f"h = p * sh + {row} * dil_h - pt, and x is 0 where that is no row; "
                f"w = (q * sw + {column} * dil_w - pl) mod W, 0..W-1",
            ),
            Property(
                "stride and dilation",
                2,
                PIXEL,
                gather.spread,
                f"h = p * sh + {row} * dil_h - pt, w = q * sw + {column} * dil_w - pl",
            ),
            Property("block sizes", 1, TILE, gather.tiles, BLOCKS),
            Property.stays_inside(TILE, gather.everything),
        ),
        mistakes,
        MASKS,
        given=("at", "at_tile"),
        spoken=SPOKEN,
        compiles=Compiles(gather.usual, TILE),
        cheap=Cheap(
            gather.costed,
            gather.steps,
            (Tier(3, read=3.1, steps=1.1), Tier(1, read=6.2, written=4.0, steps=2.0)),
            "each element of A is loaded once, where it is stored",
            TILE,
            sectors=2.0,
        ),
        vary=vary(0),
    )
    wgrad = Exercise(
        "wgrad",
        "the kernel stores nothing yet. It needs a loop over the blocks of pixels, and a store of dweight.",
        (
            Property(
                "whole blocks",
                2,
                PRODUCT,
                product.whole,
                "dweight[o, j] = sum over m of dy[m, o] A[m, j], that is dy^T A",
            ),
            Property("strides in memory", 1, READ_STRIDES, product.memory, MEMORY),
            Property(
                "ragged pixels",
                2,
                LOOP,
                product.no_pixels,
                "pixels beyond M add nothing: dy and A are 0 there (mask_m)",
            ),
            Property(
                "ragged channels", 1, LOOP, product.channels, "channels beyond O and columns beyond J are not stored"
            ),
            Property("padding, stride, dilation", 1, PIXEL, product.everywhere, "the tile of A is im2col_tile's"),
            Property("block sizes", 1, LOOP, product.tiles, BLOCKS),
            Property("float16", 1, READ_FP32, product.half, F16),
            Property.stays_inside(LOOP, product.everything),
            Property.in_bfloat16(READ_FP32, product.bfloat),
            Property("float32 without TF32", 0, READ_FP32, product.single, 'say input_precision="ieee"', needs="a GPU"),
        ),
        mistakes,
        MASKS,
        given=("at", "at_tile"),
        spoken=SPOKEN,
        compiles=Compiles(product.usual, LOOP, products={80: "HMMA", 90: "HGMMA"}),
        cheap=Cheap(
            product.costed,
            product.steps,
            (Tier(3, read=3.05, steps=1.1), Tier(1, read=6.1, written=4.0, steps=2.0)),
            "there are cdiv(M, BLOCK_K) blocks of pixels, each with one load of dy and one of x; one store after the last",
            LOOP,
            sectors=2.0,
        ),
        vary=vary(1),
    )
    wgrad_split = Exercise(
        "wgrad_split",
        "the kernels store nothing yet. They need the blocks of each piece, their sum, and the sum of the pieces.",
        (
            Property("equal pieces", 2, PIECES, split.even, OWN),
            Property("strides in memory", 1, READ_STRIDES, split.memory, MEMORY),
            Property("unequal pieces", 2, PIECES, split.uneven, OWN),
            Property(
                "pieces without blocks", 1, PIECES, split.more_pieces, "a piece without blocks is stored too, as zeros"
            ),
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
            Property(
                "ragged sizes", 1, PIECES, split.split_ragged, "each program's tile ends at O and J (mask_o, mask_j)"
            ),
            Property.stays_inside(PIECES, split.everything),
        ),
        mistakes,
        MASKS,
        given=("at", "at_tile"),
        spoken=SPOKEN,
        compiles=Compiles(split.usual, PIECES, products={80: "HMMA", 90: "HGMMA"}, own_blocks=split.own),
        cheap=Cheap(
            split.costed,
            split.steps,
            (Tier(3, read=3.8, steps=1.1), Tier(1, read=7.6, written=4.0, steps=2.0)),
            "each block of pixels belongs to one piece, and each piece of a tile is stored once and loaded once",
            PIECES,
            sectors=2.0,
        ),
        vary=vary(2),
    )
    return im2col, wgrad, wgrad_split


IM2COL, WGRAD, SPLIT = exercises(Filter())
