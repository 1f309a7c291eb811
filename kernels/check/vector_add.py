"""The check that lesson 00 shows: ``vector_add(x, y, out, BLOCK=8)`` writes x + y to out, vectors of length N."""

import torch

from kernels.check.framework import Case, Draw, Exercise, Fenced, Output, Property


def case(draw: Draw, N: int, *, packed=False, **launch) -> Case:
    """One call on two vectors of length ``N``, with a fence of one block."""
    x, y = draw.normal(N), draw.normal(N)
    fence = None if packed else {"N": launch.get("BLOCK", 8)}
    return Case(
        inputs=[Fenced("x", "N", x, fence=fence), Fenced("y", "N", y, fence=fence)],
        outs=[Output(Fenced("out", "N", torch.empty(N), fence=fence), x.double() + y.double())],
        launch=launch,
    )


def aligned(draw: Draw):
    """A length that is a multiple of the block."""
    yield case(draw, draw.size(16, 16, 64, multiple_of=8), packed=True)


def ragged(draw: Draw):
    """Lengths that fill no block, and one element."""
    for shown, low, high in ((13, 9, 15), (1, 1, 1)):
        yield case(draw, draw.size(shown, low, high))


def blocks(draw: Draw):
    """The same length with two block lengths."""
    for BLOCK in (4, 32):
        yield case(draw, draw.size(13, 9, 15), BLOCK=BLOCK)


def suspects(case: Case, out: Output):
    """Known mistakes, as formulas."""
    x, y = (tensor.values for tensor in case.inputs)
    yield "the vectors are subtracted", x - y
    yield "the vectors are multiplied", x * y
    yield "only x is stored", x
    yield "only y is stored", y


READ_BLOCKS, READ_MASK = "Lesson 00, step 1", "Lesson 00, step 3"
_OFFSETS = "each program's offsets are pid * BLOCK + tl.arange(0, BLOCK)"

EXERCISE = Exercise(
    name="vector_add",
    missing="the kernel stores nothing yet. It needs two loads, their sum, and a store.",
    properties=(
        Property("whole blocks", 1, READ_BLOCKS, aligned, _OFFSETS),
        Property("ragged length", 1, READ_MASK, ragged, "the last block must reach the end of the vector"),
        Property("block length", 1, READ_BLOCKS, blocks, "the answer depends on BLOCK, it must not"),
        Property.stays_inside(READ_MASK, ragged, points=0),
    ),
    suspects=suspects,
    masks={(name, "N", "after"): "mask" for name in ("x", "y", "out")},
)
