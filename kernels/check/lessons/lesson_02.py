"""Lesson 02's kernels: a row walked in blocks, and what goes back through it."""

import torch

from kernels.check.lessons import LessonKernel

LAYOUTS = {
    "packed": lambda draw, M, N: draw.normal(M, N),
    "transposed": lambda draw, M, N: draw.normal(N, M).t(),
    "every other column": lambda draw, M, N: draw.normal(M, 2 * N)[:, ::2],
}


def _rows(draw, M=3, N=16, BLOCK=8, far=3.0, how="packed", dtype=torch.float32, eps=0.1):
    x = LAYOUTS[how](draw, M, N).add_(far).to(dtype)  # in place: a sum of its own would be packed
    weight = draw.normal(2 * N, dtype=dtype)[::2] if how == "every other column" else draw.normal(N, dtype=dtype)
    return {"x": x, "weight": weight, "eps": eps, "BLOCK": BLOCK}


def _back(draw, M=3, N=16, BLOCK=8, dout="packed", xhat="packed"):
    weight = draw.normal(2 * N)[::2] if dout == "every other column" else draw.normal(N)
    return {
        "dout": LAYOUTS[dout](draw, M, N),
        "xhat": LAYOUTS[xhat](draw, M, N),
        "weight": weight,
        "r": 1 + draw.normal(M).abs(),
        "BLOCK": BLOCK,
    }


WALKS = """g = numbers(dout_ptr, offs, N, stride_dn) * numbers(weight_ptr, offs, N, stride_w)
        g_sum += g
        gx_sum += g * numbers(xhat_ptr, offs, N, stride_xn)
    g_mean = tl.sum(g_sum, axis=0) / N
    gx_mean = tl.sum(gx_sum, axis=0) / N
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        g = numbers(dout_ptr, offs, N, stride_dn) * numbers(weight_ptr, offs, N, stride_w)
"""  # both of dx_kernel's

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
            "a long row in bfloat16": {"M": 1, "N": 2496, "BLOCK": 8, "dtype": torch.bfloat16},
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
                "squares = tl.zeros((BLOCK,), tl.float32)",
                "squares = total",
                "the squares are added to the first walk's sums: they need an accumulator of their own, which begins at 0",
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
            ("/ N + eps", "/ BLOCK + eps", "the variance divides by the lanes, not by the row's elements"),
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
                "numbers(weight_ptr, offs, N, stride_w)",
                "numbers(weight_ptr, offs - start, N, stride_w)",
                "each block takes the first block's weights",
            ),
            ("N, stride_w)", "N, 1)", "the weights have a stride of their own, stride_w"),
            ("N, stride_w)", "N, stride_xn)", "the weights have a stride of their own, stride_w"),
            ("* stride_on, c", "* stride_xn, c", "out is written with the stride of x: its own is stride_on"),
            (" * stride_on, c", ", c", ""),
            ("weight, mask=offs < N", "weight", ""),
        ),
    ),
    "02-dx": LessonKernel(
        arguments=_back,
        cases={
            "one block": {"N": 8},
            "two blocks": {},
            "a ragged end": {"N": 21},
            "dout transposed": {"N": 13, "dout": "transposed"},
            "every other column of dout": {"N": 13, "dout": "every other column"},
            "every other column of xhat": {"N": 13, "xhat": "every other column"},
        },
        slips=(
            (
                "    g_sum += g",
                "    g_sum = g",
                "only the last block counts in the mean of g: add to what was there before",
            ),
            (
                "    gx_sum += ",
                "    gx_sum = ",
                "only the last block counts in the mean of g x̂: add to what was there before",
            ),
            (
                "gx_sum += g * numbers(xhat_ptr, offs, N, stride_xn)",
                "gx_sum += numbers(xhat_ptr, offs, N, stride_xn)",
                "the second mean is that of g x̂, not of x̂",
            ),
            ("tl.sum(g_sum, axis=0) / N", "tl.sum(g_sum, axis=0)", "the sum of g is not divided by N: it is no mean"),
            (
                "tl.sum(gx_sum, axis=0) / N",
                "tl.sum(gx_sum, axis=0)",
                "the sum of g x̂ is not divided by N: it is no mean",
            ),
            (
                "tl.sum(g_sum, axis=0) / N",
                "tl.sum(g_sum, axis=0) / BLOCK",
                "the mean of g divides by the lanes, not by N",
            ),
            (
                "tl.sum(gx_sum, axis=0) / N",
                "tl.sum(gx_sum, axis=0) / BLOCK",
                "the mean of g x̂ divides by the lanes, not by N",
            ),
            ("- g_mean ", "", "the mean of g is not subtracted"),
            (
                " - numbers(xhat_ptr, offs, N, stride_xn) * gx_mean",
                "",
                "the last term of the box is missing: x̂ times the mean of g x̂",
            ),
            (
                " - numbers(xhat_ptr, offs, N, stride_xn) * gx_mean",
                " - gx_mean",
                "the mean of g x̂ is multiplied by x̂ before it is subtracted",
            ),
            ("- numbers(xhat", "+ numbers(xhat", "both terms are subtracted from g"),
            ("r * (g", "(g", "the row's r is left out"),
            (WALKS, WALKS.replace(" * numbers(weight_ptr, offs, N, stride_w)", ""), "g is dout times the weight"),
            (
                "g = numbers(dout_ptr, offs, N, stride_dn) * numbers(weight_ptr, offs, N, stride_w)\n        dx",
                "g = numbers(dout_ptr, offs, N, stride_dn)\n        dx",
                "in the second walk g is dout without the weights",
            ),
            (
                "g = numbers(dout_ptr, offs, N, stride_dn) * numbers(weight_ptr, offs, N, stride_w)\n        g_sum",
                "g = numbers(dout_ptr, offs, N, stride_dn)\n        g_sum",
                "in the first walk g is dout without the weights",
            ),
            ("* stride_on, dx", "* stride_xn, dx", "dx is written with the stride of xhat: its own is stride_on"),
            ("* stride_on, dx", "* stride_dn, dx", "dx is written with the stride of dout: its own is stride_on"),
            ("dx, mask=offs < N", "dx", ""),
        ),
    ),
}
