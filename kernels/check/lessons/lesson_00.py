"""Lesson 00's kernel: a sum of two vectors that stays inside them."""

import torch

from kernels.check.lessons import LessonKernel


def _vectors(draw, N=16, BLOCK=8):
    return {"x": draw.normal(N), "y": draw.normal(N), "out": torch.full((N,), float("nan")), "BLOCK": BLOCK}


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
