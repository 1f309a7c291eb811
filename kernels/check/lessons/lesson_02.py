"""Lesson 02's kernel: a row walked in blocks."""

import torch

from kernels.check.lessons import LessonKernel


def _rows(draw, M=3, N=16, BLOCK=8, far=3.0, how="packed", dtype=torch.float32, eps=0.1):
    x = {
        "packed": lambda: draw.normal(M, N),
        "transposed": lambda: draw.normal(N, M).t(),
        "every other column": lambda: draw.normal(M, 2 * N)[:, ::2],
    }[how]()
    return {"x": (x + far).to(dtype), "weight": draw.normal(N, dtype=dtype), "eps": eps, "BLOCK": BLOCK}


KERNELS = {
    "02-standardise": LessonKernel(
        arguments=_rows,
        cases={
            "one block": {"N": 8},
            "two blocks": {},
            "a ragged end": {"N": 21},
            "shorter than a block": {"N": 5},
            "a large mean": {"N": 21, "far": 1000.0},
            "every other column": {"N": 13, "how": "every other column"},
            "transposed": {"N": 13, "how": "transposed"},
            "bfloat16": {"N": 21, "dtype": torch.bfloat16},
            "a long row in bfloat16": {"N": 2500, "dtype": torch.bfloat16},
        },
        slips=(
            (
                "total += numbers(x_ptr, offs, N, stride_xn)",
                "total = (total + numbers(x_ptr, offs, N, stride_xn)).to(x_ptr.dtype.element_ty).to(tl.float32)",
                "the sum is kept in the row's own 16 bits: keep it in float32",
            ),
            (
                "total += ",
                "total = ",
                "only the last block counts in the mean: add to what the accumulator held before",
            ),
            (
                "squares += ",
                "squares = ",
                "only the last block counts in the variance: add to what the accumulator held before",
            ),
            (
                "tl.sum(total, axis=0) / N",
                "tl.sum(total, axis=0) / BLOCK",
                "the mean divides by the lanes, not by the row's elements",
            ),
            ("tl.sum(total, axis=0) / N", "tl.sum(total, axis=0)", "the sum is not divided by N: it is no mean"),
            (
                "tl.where(offs < N, numbers(x_ptr, offs, N, stride_xn) - mean, 0.0)",
                "numbers(x_ptr, offs, N, stride_xn) - mean",
                "in the second walk the padding is -mean, and its square is added: neutral again, just before the sum",
            ),
            (
                "tl.where(offs < N, numbers(x_ptr, offs, N, stride_xn) - mean, 0.0)",
                "tl.where(offs < N, numbers(x_ptr, offs, N, stride_xn), 0.0)",
                "the squares are those of x, not those around the mean",
            ),
            ("/ N + eps", "/ N", "eps is left out"),
            ("/ N + eps)", "/ N) + eps", "eps is added outside of the root: it belongs to the variance"),
            (
                "tl.rsqrt(tl.sum(squares, axis=0) / N + eps)",
                "1.0 / (tl.sqrt(tl.sum(squares, axis=0) / N) + eps)",
                "eps is added outside of the root: it belongs to the variance",
            ),
            (
                "/ N + eps",
                "/ (N - 1) + eps",
                "the variance divides by N - 1: here it is the mean of the squares, over N",
            ),
            (
                "centred = tl.where(offs < N, numbers(x_ptr, offs, N, stride_xn) - mean, 0.0)\n"
                "        squares += centred * centred\n"
                "    scale = tl.rsqrt(tl.sum(squares, axis=0) / N + eps)",
                "centred = numbers(x_ptr, offs, N, stride_xn)\n"
                "        squares += centred * centred\n"
                "    scale = tl.rsqrt(tl.sum(squares, axis=0) / N - mean * mean + eps)",
                "the variance is a difference of two large numbers, which leaves no digits: sum the squares around the mean",
            ),
            (
                "range(0, N, BLOCK):\n        offs = start + tl.arange(0, BLOCK)\n        total",
                "range(0, BLOCK, BLOCK):\n        offs = start + tl.arange(0, BLOCK)\n        total",
                "only the first block counts in the mean: walk on to N",
            ),
            (
                "range(0, N, BLOCK):\n        offs = start + tl.arange(0, BLOCK)\n        centred = numbers",
                "range(0, BLOCK, BLOCK):\n        offs = start + tl.arange(0, BLOCK)\n        centred = numbers",
                "only the first block is written: walk on to N",
            ),
            ("tl.sum(squares, axis=0) / N + eps", "tl.sum(squares, axis=0) + eps", "the squares are not divided by N"),
            ("tl.rsqrt", "tl.sqrt", "the row is multiplied by the standard deviation: rsqrt is 1 / sqrt"),
            (
                "centred = numbers(x_ptr, offs, N, stride_xn) - mean",
                "centred = numbers(x_ptr, offs, N, stride_xn)",
                "the mean is not subtracted from what is stored",
            ),
            ("centred * scale * weight", "centred * scale", "the weights are left out"),
            (
                "numbers(weight_ptr, offs, N, 1)",
                "numbers(weight_ptr, offs - start, N, 1)",
                "each block takes the first block's weights",
            ),
            ("offs * stride_on, c", "offs, c", ""),
            ("weight, mask=offs < N", "weight", ""),
        ),
    ),
}
