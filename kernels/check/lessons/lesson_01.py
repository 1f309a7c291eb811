"""Lesson 01: strides that overlap, and a tile of a matrix with any strides, copied."""

import torch

from kernels.check.lessons import LessonKernel, Turn


def _matrices(draw, M=8, N=8, BLOCK_M=4, BLOCK_N=4, how="packed", dtype=torch.float32):
    x = {
        "packed": lambda: draw.normal(M, N, dtype=dtype),
        "transposed": lambda: draw.normal(N, M, dtype=dtype).t(),
        "every other column": lambda: draw.normal(M, 2 * N, dtype=dtype)[:, ::2],
    }[how]()
    out = torch.full((N, M), float("nan"), dtype=dtype, device=x.device).t()  # stored by columns
    return {"x": x, "out": out, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}


def _windows(windows, x, W):
    view = windows(x, W)
    shares_memory = view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return view, shares_memory


ONE_AXIS = "rows and columns are counted by one axis of the grid: program_id(0) counts down, program_id(1) to the right"
OWN_STRIDES = "x is read with its own strides, stride_xm and stride_xn, and out is written with stride_om and stride_on"
READ = "offs_m * stride_xm + offs_n * stride_xn"
WRITTEN = "offs_m * stride_om + offs_n * stride_on"

KERNELS = {
    "01-copy": LessonKernel(
        arguments=_matrices,
        cases={
            "whole tiles": {"N": 12},
            "ragged M": {"M": 6},
            "ragged N": {"N": 7},
            "tall tiles": {"M": 9, "N": 5, "BLOCK_M": 8, "BLOCK_N": 2},
            "transposed": {"M": 6, "N": 7, "how": "transposed"},
            "every other column": {"M": 6, "N": 7, "how": "every other column"},
            "bfloat16": {"M": 6, "N": 7, "dtype": torch.bfloat16},
        },
        slips=(
            ("tl.program_id(0)", "tl.program_id(1)", ONE_AXIS),
            ("tl.program_id(1)", "tl.program_id(0)", ONE_AXIS),
            (
                "tl.program_id(0) * BLOCK_M + ",
                "",
                "every program does the first rows: they begin at program_id(0) * BLOCK_M",
            ),
            (
                "tl.program_id(1) * BLOCK_N + ",
                "",
                "every program does the first columns: they begin at program_id(1) * BLOCK_N",
            ),
            (
                "0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]\n    offs_n = (tl.program_id(1)",
                "1) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]\n    offs_n = (tl.program_id(0)",
                "the axes of the grid are exchanged: program_id(0) counts tiles down, program_id(1) to the right",
            ),
            (
                "tl.arange(0, BLOCK_M))[:, None]",
                "tl.arange(0, BLOCK_M))",
                "rows and columns lie along one axis, and only a diagonal is copied: offs_m goes down, by [:, None]",
            ),
            ("(offs_m < M) & (offs_n < N)", "(offs_n < N) & (offs_n < N)", ""),
            ("(offs_m < M) & (offs_n < N)", "(offs_m < M) & (offs_m < M)", ""),
            (
                READ,
                "offs_m * N + offs_n",
                OWN_STRIDES,
            ),
            (
                READ,
                "offs_m * stride_xm + offs_n",
                "a column of x is stride_xn further, not 1",
            ),
            (
                READ,
                "offs_m * stride_xn + offs_n * stride_xm",
                "the strides of x are exchanged: stride_xm goes a row down, stride_xn a column to the right",
            ),
            (
                WRITTEN,
                READ,
                OWN_STRIDES,
            ),
            (
                WRITTEN,
                "offs_m * N + offs_n",
                OWN_STRIDES,
            ),
            (
                f"{READ}, mask=mask, other=0.0)\n    tl.store(out_ptr + {WRITTEN}",
                "offs_m * N + offs_n, mask=mask, other=0.0)\n    tl.store(out_ptr + offs_m * N + offs_n",
                OWN_STRIDES,
            ),
            (
                "(offs_m < M) & (offs_n < N)",
                "(offs_m < M) and (offs_n < N)",
                "`and` asks whether a whole block is true",
            ),
            ("offs_n * stride_on, x, mask=mask", "offs_n * stride_on, x", ""),
        ),
    ),
}

STRIDES = "(x.stride(0), x.stride(0))"
TURNS = {
    "01-windows": Turn(
        "strides that overlap",
        arguments=lambda draw, W=3, stride=1: {"x": draw.normal(7 * stride)[::stride], "W": W},
        cases={
            "a vector of 7": {},
            "a vector of 7 whose stride is 2": {"stride": 2},
            "windows of one element": {"W": 1},
            "a single window": {"W": 7},
        },
        slips=(
            (STRIDES, "(1, 1)", "a vector's own stride needn't be 1: it is x.stride(0)"),
            ("W + 1, W", "W, W", "there are N - W + 1 windows"),
            (STRIDES, "(W * x.stride(0), x.stride(0))", "the next window begins an element further, not W"),
            (STRIDES, "(0, x.stride(0))", "all windows are the first one: the next begins an element further"),
            ("offset())", "offset()).clone()", "the numbers were copied: a view shares the vector's memory"),
        ),
        run=_windows,
    )
}
