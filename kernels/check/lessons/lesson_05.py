"""Lesson 05's kernel: the masked loop of a product in tiles."""

import torch

from kernels.check.lessons import LessonKernel


def _factors(draw, M=16, N=16, K=16, dtype=torch.float32, how="packed"):
    a, b = draw.normal(M, K, dtype=dtype), draw.normal(K, N, dtype=dtype)
    if how == "transposed":
        a, b = draw.normal(K, M, dtype=dtype).t(), draw.normal(N, K, dtype=dtype).t()
    out = torch.full((M, N), float("nan"), dtype=dtype, device=a.device)
    return {"a": a, "b": b, "out": out, "tile": (16, 16, 16)}


KERNELS = {
    "05-matmul": LessonKernel(
        arguments=_factors,
        cases={
            "one tile": {},
            "several steps": {"K": 48},
            "several tiles": {"M": 32, "N": 48},
            "ragged M": {"M": 23},
            "ragged N": {"N": 37},
            "ragged K": {"K": 20},
            "K below a step": {"K": 5},
            "transposed factors": {"M": 23, "N": 37, "K": 20, "how": "transposed"},
            "float16": {"M": 23, "N": 37, "K": 20, "dtype": torch.float16},
            "bfloat16": {"M": 23, "N": 37, "K": 20, "dtype": torch.bfloat16},
        },
        slips=(
            (
                "start + tl.arange(0, BLOCK_K)",
                "tl.arange(0, BLOCK_K)",
                "every step takes the first values of k: add start",
            ),
            ("b.to(DOT), acc, ", "b.to(DOT), ", "only the last step counts: tl.dot(a, b, acc) adds to acc"),
            (
                "acc = tl.dot(",
                "acc += tl.dot(",
                "each step adds the sum so far once more: tl.dot(a, b, acc) has added to acc, so its result replaces acc",
            ),
            (
                "acc = tl.dot(",
                "tl.dot(",
                "what tl.dot returns is thrown away: it doesn't change acc, so write acc = tl.dot",
            ),
            (
                "mask=(offs_m < M) & mask_k[None, :]",
                "mask=offs_m < M",
                "columns of a beyond K are multiplied, too: its mask needs mask_k",
            ),
            ("mask=(offs_m < M) & mask_k[None, :]", "mask=mask_k[None, :]", ""),
            (
                "mask=mask_k[:, None] & (offs_n < N)",
                "mask=offs_n < N",
                "rows of b beyond K are multiplied, too: its mask needs mask_k",
            ),
            ("mask=mask_k[:, None] & (offs_n < N)", "mask=mask_k[:, None]", ""),
            ("mask_k[None, :], other=0.0", "mask_k[None, :]", ""),
            ("(offs_n < N), other=0.0", "(offs_n < N)", ""),
            ("offs_k[None, :] * stride_ak", "offs_k[None, :]", "a column of a is stride_ak further, not 1"),
            ("+ offs_n * stride_bn", "+ offs_n", "a column of b is stride_bn further, not 1"),
            ("offs_k[:, None] * stride_bk", "offs_k[:, None] * stride_bn", ""),
            (
                "offs_k[:, None] * stride_bk + offs_n * stride_bn",
                "offs_k[:, None] * stride_bn + offs_n * stride_bk",
                "the strides of b are exchanged: stride_bk goes a row down, stride_bn a column to the right",
            ),
            ("a.to(DOT), b.to(DOT)", "a.to(DOT), a.to(DOT)", "a is multiplied by itself"),
            (', input_precision="ieee"', "", "keeps 10 of 23 bits unless it says"),
        ),
    ),
}
