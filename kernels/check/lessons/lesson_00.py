"""Lesson 00: a copy that runs backwards, and a sum of two vectors that stays inside them."""

import torch

from kernels.check.lessons import LessonKernel, Turn


def _vectors(draw, N=16, BLOCK=8):
    return {"x": draw.normal(N), "y": draw.normal(N), "out": torch.full((N,), float("nan")), "BLOCK": BLOCK}


def _reversed(kernel, x):
    out = torch.empty_like(x)
    kernel[(len(x) // 4,)](x, out, len(x), BLOCK=4)
    return out


KERNELS = {
    "00-add": LessonKernel(
        arguments=_vectors,
        cases={
            "whole blocks": {},
            "a ragged end": {"N": 13},
            "shorter than a block": {"N": 3},
            "other blocks": {"N": 13, "BLOCK": 4},
        },
        slips=(
            (
                "pid * BLOCK + tl.arange(0, BLOCK)",
                "tl.arange(0, BLOCK)",
                "every program does block 0: lanes alone don't know their program",
            ),
            (
                "pid * BLOCK + tl.arange(0, BLOCK)",
                "pid + tl.arange(0, BLOCK)",
                "each block begins one element after the one before: block pid begins at pid * BLOCK",
            ),
            ("offs < N", "offs <= N", ""),
            (
                "offs < N",
                "offs < N - 1",
                "the last element is missing: it has the index N - 1, so the mask is offs < N",
            ),
            ("tl.load(x_ptr + offs, mask=mask, other=0.0)", "tl.load(x_ptr + offs)", ""),
            ("tl.load(y_ptr + offs, mask=mask, other=0.0)", "tl.load(y_ptr + offs)", ""),
            ("x + y, mask=mask", "x + y", ""),
            ("x + y", "x * y", "the two are multiplied, not added"),
            ("x + y", "x", "only x is stored"),
            (
                "tl.store(out_ptr + offs, x + y, mask=mask)",
                "return x + y",
                "a kernel returns nothing, it writes into out",
            ),
        ),
    ),
}

LAST = "N - 1 - offs"
TURNS = {
    "00-reverse": Turn(
        "a copy that runs backwards",
        arguments=lambda draw, N: {"x": draw.normal(N)},
        cases={"four blocks": {"N": 16}, "two blocks": {"N": 8}},
        slips=(
            (LAST, "offs", "nothing is reversed, x is copied as it is: the load has to run the other way"),
            (LAST, "N - offs", ""),
            (LAST, "15 - offs", ""),
            (
                LAST,
                "tl.program_id(0) * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK)",
                "each block is reversed, but the blocks are still in their old order: count from the end of x",
            ),
            (
                LAST,
                "N - BLOCK - tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                "the blocks have changed places, but in each the order is still the old one: count from the end of x",
            ),
            (
                LAST,
                "N - 1 - tl.arange(0, BLOCK)",
                "every program loads the same four elements: count with offs, for lanes alone don't know their program",
            ),
        ),
        run=_reversed,
    )
}
