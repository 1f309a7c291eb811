"""The check that lesson 00 shows: ``vector_add(x, y, out, BLOCK=8)`` writes x + y to out, vectors of length N."""

import functools

import torch

from kernels.check.framework import Case, Draw, Exercise, Fenced, Output, Property, Size, calls


def case(draw: Draw, N: int, *, packed=False, **launch) -> Case:
    """One call on two vectors of length ``N``, with a fence of one block."""
    x, y = draw.normal(N), draw.normal(N)
    fence = None if packed else {"N": launch.get("BLOCK", 8)}
    return Case(
        inputs=[Fenced("x", "N", x, fence=fence), Fenced("y", "N", y, fence=fence)],
        outs=[Output(Fenced("out", "N", torch.empty(N), fence=fence), x.double() + y.double())],
        launch=launch,
    )


def suspects(case: Case, out: Output):
    """Known mistakes, and the sums they give."""
    x, y = (tensor.values for tensor in case.inputs)
    yield "the vectors are subtracted", x - y
    yield "the vectors are multiplied", x * y
    yield "only x is stored", x
    yield "only y is stored", y


of = functools.partial(calls, case)
RAGGED = of({"N": Size(13, 9, 15)}, {"N": 1})
READ_BLOCKS, READ_MASK = "Lesson 00, step 1", "Lesson 00, step 3"

EXERCISE = Exercise(
    name="vector_add",
    missing="the kernel stores nothing yet. It needs two loads, their sum, and a store.",
    properties=(
        Property(
            "whole blocks",
            1,
            READ_BLOCKS,
            of(N=Size(16, 16, 64, 8), packed=True),
            "each program's offsets are pid * BLOCK + tl.arange(0, BLOCK)",
        ),
        Property("ragged length", 1, READ_MASK, RAGGED, "the last block must reach the end of the vector"),
        Property(
            "block length",
            1,
            READ_BLOCKS,
            of({"BLOCK": 4}, {"BLOCK": 32}, N=Size(13, 9, 15)),
            "the answer depends on BLOCK, it must not",
        ),
        Property.stays_inside(READ_MASK, RAGGED, points=0),
    ),
    suspects=suspects,
    masks={(name, "N", "after"): "mask" for name in ("x", "y", "out")},
)
