"""Lesson 03's kernel: a sum of two vectors whose loop asks for its next block before it stores this one."""

import torch

from kernels.check.lessons import LATE, LessonKernel, Turn, listed


def _vectors(draw, N=8, programs=1, BLOCK=8):
    x, y = draw.normal(N), draw.normal(N)
    out = torch.full_like(x, float("nan"))
    return {"x": x, "y": y, "out": out, "programs": programs, "BLOCK": BLOCK, "warps": 1}


ASK = """next_x = tl.load(x_ptr + ahead, mask=ahead < N, other=0.0)
        next_y = tl.load(y_ptr + ahead, mask=ahead < N, other=0.0)"""
STORE = "tl.store(out_ptr + offs, x + y, mask=offs < N)"

KERNELS = {
    "03-ahead": LessonKernel(
        arguments=_vectors,
        cases={
            "one block": {},
            "several turns": {"N": 48, "programs": 2},
            "a ragged end": {"N": 45, "programs": 2},
            "more programs than blocks": {"N": 13, "programs": 4},
        },
        slips=(
            (
                "ahead = offs + step",
                "ahead = offs + BLOCK",
                "a program's next block is `step` further: BLOCK further is the next program's",
            ),
            ("x_ptr + ahead, mask=ahead < N", "x_ptr + ahead, mask=offs < N", ""),
            ("y_ptr + ahead, mask=ahead < N", "y_ptr + ahead", ""),
            (
                "x_ptr + ahead, mask=ahead < N",
                "x_ptr + offs, mask=offs < N",
                "x is this block's again: the next one is at ahead",
            ),
            ("tl.store(out_ptr + offs, x + y, mask=offs < N)", "tl.store(out_ptr + ahead, x + y, mask=ahead < N)", ""),
            (
                "x + y, mask=offs < N",
                "x + y, mask=ahead < N",
                "this block is stored where the next one exists: its mask is offs < N",
            ),
            ("x + y, mask=offs < N", "x + y", ""),
            ("x + y,", "next_x + next_y,", "each block gets the sum of the one after it"),
            (
                "x, y = ahead, next_x, next_y",
                "x, y = ahead, x, y",
                "x and y stay the first block's: next_x, next_y take their place",
            ),
            (
                "x, y = ahead, next_x, next_y",
                "x, y = ahead, next_x, y",
                "y stays the first block's: next_y takes its place",
            ),
            (
                "offs, x, y = ahead, next_x, next_y",
                "x, y = next_x, next_y",
                "offs stays the first block's: ahead takes its place",
            ),
            (
                f"{ASK}\n        {STORE}",
                f"{STORE}\n        {ASK}",
                LATE,
            ),
        ),
        ahead=True,
    ),
}

PLACES = "4 * (16384 // (32 * rho)) // w"
TURNS = {
    "03-room": Turn(
        "how many programs the registers have room for",
        arguments=lambda draw, **case: case,
        cases=listed(
            "w rho sigma", (2, 240, 0), (1, 80, 0), (8, 64, 0), (4, 80, 0), (8, 128, 49152), (1, 32, 0), (8, 32, 0)
        ),
        slips=(
            (
                PLACES,
                "65536 // (32 * rho * w)",
                "a warp has all of its registers in one quarter: what is left over there helps nobody",
            ),
            (PLACES, "65536 // rho // w", "a warp has 32 threads, each of which takes rho registers"),
            (PLACES, "4 * (16384 // (32 * rho))", "these are warps: a program has w of them"),
            (PLACES, "16384 // (32 * rho) // w", "there are four quarters: this is the room of one"),
            (
                PLACES,
                "4 * (16384 // (32 * rho * w))",
                "a program's warps may lie in different quarters: divide by w last",
            ),
        ),
    )
}
