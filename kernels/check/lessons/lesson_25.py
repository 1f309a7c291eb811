"""Lesson 25's kernel: a level of scores with a gate for each channel."""

import math

import torch

from kernels.check.lessons import LessonKernel


def _arguments(draw, B=1, T=16, H=1, K=16, C=16, strong=0.0, every=8, dtype=torch.float32):
    g = -draw.normal(B, T, H, K).abs()
    if strong:
        g[:, every // 2 :: every] = strong
    return {"q": draw.normal(B, T, H, K, dtype=dtype), "k": draw.normal(B, T, H, K, dtype=dtype), "g": g, "C": C}


CROSSED = "(half[:, None] == half[None, :]) & (behind[:, None] == (t[None, :] <= t[:, None]))"
SQUARE = "behind[:, None] & (half[:, None] == half[None, :] + 1)"
BOUNDED = "tl.maximum(load_rows(g_ptr, rows, mask_t, K, BLOCK_K), LOWEST)"
MIRRORED = "(half[:, None] % 2 == 0) & (half[:, None] + 1 == half[None, :])"
SUMS = 'tl.dot(crossed.to(tl.float32), g, input_precision="tf32x3")'
KERNELS = {
    "25-level": LessonKernel(
        arguments=_arguments,
        cases={
            "one chunk": {},
            "several chunks": {"T": 48},
            "two texts, two heads": {"B": 2, "T": 32, "H": 2},
            "a longer chunk": {"T": 64, "C": 32},
            "ragged T and K": {"T": 37, "K": 20},
            "all gates -20": {"T": 32, "strong": -20.0, "every": 1},
            "gates of -1e9": {"T": 32, "strong": -1e9},
            "resets": {"T": 32, "strong": -math.inf},
            "bfloat16": {"T": 32, "dtype": torch.bfloat16},
        },
        slips=[
            (CROSSED, "t[None, :] <= t[:, None]", "all gates up to t are passed, in place of those to the middle"),
            (CROSSED, CROSSED.partition(" & ")[2], "gates of other halves are passed: u has to be of t's own half"),
            (CROSSED, CROSSED.replace("<=", "<"), "a query passes its own gate before it reads: u <= t"),
            (CROSSED, CROSSED.replace("] == (t", "] != (t"), "a query passes the gates u <= t, a key u > t"),
            (
                CROSSED,
                CROSSED.replace("(behind", "((~behind[:, None] & (t[None, :] == t[:, None])) | (behind") + ")",
                "a key has passed its own gate when it is written: u > t",
            ),
            ("crossed.to", "tl.trans(crossed).to", "row t of crossed is a token, column u a gate: yours is transposed"),
            (f"tl.exp({SUMS})", SUMS, "the sum of the gates is the decay's logarithm: e^ is missing"),
            (" * decay).to", ").to", "nothing decays: the rows are q and k themselves"),
            ("tl.where(behind[:, None], q, k)", "tl.where(behind[:, None], k, q)", "behind a middle are queries"),
            (SQUARE, SQUARE.partition(" & ")[2], "half 2 reads half 1, too, which is another level's square"),
            (SQUARE, "half[:, None] != half[None, :]", "pairs of other blocks are added: they are other levels'"),
            (SQUARE, "t[:, None] > t[None, :]", "each level adds all earlier pairs: it has its own squares alone"),
            (SQUARE, MIRRORED, "the square is transposed: row t is behind the middle, column s before it"),
            ("A += tl.where", "A = tl.where", "each level overwrites the one before: add its squares to A"),
            ("range(LEVELS)", "range(LEVELS - 1)", "the largest square is missing, the late half's with the early one"),
            ("range(LEVELS)", "range(1, LEVELS)", "the smallest squares are missing, neighbours' with each other"),
            (BOUNDED, BOUNDED[11:-9], "a gate of -inf times a zero is not a number"),
        ],
    )
}
