"""The checks of exercise 03: the dilated dynamic convolution, forward, dx and dweight.

``dynamic_conv_forward(x, weight, y)``, ``dynamic_conv_dx(dy, weight, dx)``, ``dynamic_conv_dweight(dy, x, dweight)``,
each with ``dilation=, BLOCK_T=, BLOCK_D=``, write their last tensor: x, y, dx, dy [B, T, D], weight, dweight
[B, T, D, W]. Tap w of token t reads time t - (W - 1 - w) * dilation.
"""

import torch

from kernels.check.dynamic_conv_mistakes import OPERATORS, Operator
from kernels.check.framework import Cheap, Compiles, Exercise, Property, Tier
from kernels.check.tensors import both_ends

# Where each output's equation, its masks, the use of its strides and its kernel are explained.
READ = {
    "y": ("Lesson 10, step 1", "Lesson 10, step 3", "Lesson 01, step 4", "Lesson 10, step 2"),
    "dx": ("Lesson 12, step 3", "Lesson 12, step 5", "Lesson 12, step 7", "Lesson 12, step 5"),
    "dweight": ("Lesson 12, step 2", "Lesson 10, step 3", "Lesson 12, step 7", "Lesson 12, step 5"),
}
READ_FP32 = "Lesson 10, step 2"
# What the lessons' scheme asks for, and the naive one: x once a tap, a weight once; or dy once a tap, too; or a store a tap.
CHEAP = {
    "y": (Tier(3, read=1.6, steps=1.1), Tier(1, read=3.2, written=5.0, steps=2.0)),
    "dx": (Tier(3, read=1.6, steps=1.1), Tier(1, read=3.2, written=5.0, steps=2.0)),
    "dweight": (Tier(3, read=2.5, steps=1.1), Tier(1, read=4.5, written=2.0, steps=2.0)),
}
ADVICE = {
    "y": "each tap loads x and its weight once, the sum stays in registers, and y is stored once, after the loop",
    "dx": "each tap loads dy and its weight once, the sum stays in registers, and dx is stored once, after the loop",
    "dweight": "dy is the same for every tap: load it once, before the loop, and store each slot once",
}


def _exercise(name: str, op: Operator) -> Exercise:
    equation, masks, memory, kernel = READ[op.out]
    reach, past = "the first tokens", "before the first token"
    if op.out == "dx":
        reach, past = "the last tokens", "after the last token"

    def usual(draw):
        dtypes = (torch.float16, torch.float16)
        yield op.case(draw, B=1, T=128, D=128, BLOCK_T=16, BLOCK_D=64, dtypes=dtypes, packed=True)

    def own(draw):
        return op.case(draw, B=1, T=32, D=64, dtypes=(torch.float16, torch.float16), packed=True)

    def costed(draw):
        yield op.case(draw, T=64, D=32, dilation=1, packed=True)

    def steps(case):
        """Two loads for each tap and a store; or one load before the loop, and a load and a store for each tap."""
        sizes = {axis: n for tensor in case.tensors for axis, n in zip(tensor.axes, tensor.shape)}
        programs = sizes["B"] * -(-sizes["T"] // case.launch["BLOCK_T"]) * -(-sizes["D"] // case.launch["BLOCK_D"])
        return programs * (2 * sizes["W"] + 1)

    def aligned(draw):
        # No square: an accumulator with its axes swapped has the wrong shape at once.
        yield op.case(draw, B=1, T=draw.size(16, 16, 48, multiple_of=16), D=64, BLOCK_D=32, packed=True)

    def strides(draw):
        T = draw.size(16, 16, 32, multiple_of=16)
        yield op.case(draw, T=T)
        yield op.case(draw, T=T, orders={"BTD": "BDT", "BTDW": "BTWD"})
        yield op.case(draw, T=T, out_order={"BTD": "TBD", "BTDW": "WBTD"})
        # Along T, a repeated token looks right or wrong by the mask on the time: that is the next property's.
        yield op.case(draw, T=T, shared=tuple(axes.replace("T", "") for axes in op.shared))
        case = op.case(draw, B=3, T=16)
        yield case.stretched(**{tensor.name: "B" for tensor in case.tensors})

    def ends(draw):
        yield op.case(draw, T=draw.size(16, 16, 32, multiple_of=16), W=draw.size(4, 3, 6), poison=None)
        yield op.case(draw, T=draw.size(16, 16, 32, multiple_of=16), shared=op.shared)

    def length(draw):
        for shown, low, high in ((13, 9, 15), (2, 1, 3), (37, 33, 47), (17, 17, 17), (300, 260, 350)):
            yield op.case(draw, T=draw.size(shown, low, high))

    def dilations(draw):
        for dilation in (1, draw.size(3, 3, 4), draw.size(9, 8, 20)):  # with the last one, few taps read anything
            yield op.case(draw, B=1, T=draw.size(16, 16, 48, multiple_of=16), W=3, dilation=dilation, packed=True)

    def channels(draw):
        for shown, low, high in ((20, 18, 31), (3, 1, 7), (17, 17, 17), (150, 130, 170)):
            yield op.case(draw, D=draw.size(shown, low, high))

    def taps(draw):
        for W in (1, 2, 3, draw.size(6, 5, 9)):
            yield op.case(draw, W=W, poison=both_ends("W"))

    def blocks(draw):
        T, D = draw.size(64, 64, 128, multiple_of=64), 32
        for BLOCK_T, BLOCK_D in ((8, 32), (32, 8), (64, 16)):
            yield op.case(draw, B=1, T=T, D=D, BLOCK_T=BLOCK_T, BLOCK_D=BLOCK_D)

    def half(draw):
        yield op.case(draw, dtypes=(torch.float16, torch.float16), scale=300.0, tolerance=2e-5)
        yield op.case(draw, dtypes=(torch.float32, torch.float16), tolerance=2e-5)

    def everything(draw):
        yield op.case(draw, T=draw.size(37, 17, 47), D=draw.size(20, 17, 31), W=draw.size(4, 3, 6))

    def bfloat(draw):
        yield op.case(draw, dtypes=(torch.bfloat16, torch.bfloat16))

    return Exercise(
        name=name,
        missing=f"the kernel stores nothing yet. It needs a loop over the W taps, and a store of {op.out}.",
        properties=(
            Property("whole blocks", 1, equation, aligned),
            Property("dilation", 1, equation, dilations, "neighbouring taps read times that lie dilation apart"),
            Property(
                "strides", 1, memory, strides, "each axis of each tensor has its own stride, and some strides are 0"
            ),
            Property(reach, 1, masks, ends, f"a tap {past} adds nothing"),
            Property(
                "ragged length",
                1,
                masks,
                length,
                "the grid must cover the last, partial block of T, and mask_t must cut it",
            ),
            Property(
                "ragged channels",
                1,
                masks,
                channels,
                "the grid must cover the last, partial block of D, and mask_d must cut it",
            ),
            Property("number of taps", 1, kernel, taps, "the loop must run over W taps, no more"),
            Property(
                "block sizes",
                1,
                kernel,
                blocks,
                "the answer depends on the block sizes: offs_t takes BLOCK_T, offs_d BLOCK_D",
            ),
            Property(
                "float16",
                1,
                READ_FP32,
                half,
                "products or sums are taken in float16: convert to tl.float32 right after each load",
            ),
            Property.stays_inside(masks, everything),
            Property.in_bfloat16(READ_FP32, bfloat),
        ),
        suspects=op.suspects,
        masks=op.masks,
        compiles=Compiles(usual, kernel, own_blocks=own if op.out == "dweight" else None),
        cheap=Cheap(costed, steps, CHEAP[op.out], ADVICE[op.out], kernel, sectors=2.5),
    )


FORWARD, DX, DWEIGHT = (_exercise(name, op) for name, op in OPERATORS.items())
