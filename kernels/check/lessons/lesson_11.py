"""Lesson 11's kernel: the walk over words."""

import torch

from kernels.check.lessons import LessonKernel


def _arguments(draw, B=2, T=4, D=32, W=3, RUN=2, ROWS=2, far=0.0, dtype=torch.float16):
    """One program for each sequence unless told: ROWS runs, and 8 words of 4 channels. ``far`` from 0, products cancel."""
    x, weight = draw.normal(B, T, D), draw.normal(B, T, D, W)
    if far:
        x, weight = x + far, weight - weight.mean(-1, keepdim=True)
        weight[:, : W - 1] = 0.0  # these tokens' products have nothing to cancel with
    return {"x": x.to(dtype), "weight": weight.to(dtype), "RUN": RUN, "ROWS": ROWS, "BLOCK_C": 8}


KERNELS = {
    "11-walk": LessonKernel(
        arguments=_arguments,
        cases={
            "one run": {"B": 1, "T": 4, "RUN": 4, "ROWS": 1},
            "runs side by side": {"T": 12, "D": 64},
            "runs of one token": {"T": 5, "RUN": 1},
            "ragged T and D": {"T": 9, "D": 44, "RUN": 3},
            "four taps": {"T": 7, "W": 4},
            "one tap": {"T": 5, "W": 1},
            "bfloat16": {"T": 8, "W": 4, "dtype": torch.bfloat16},
            "products that cancel in bfloat16": {"T": 9, "far": 256.0, "dtype": torch.bfloat16},
        },
        slips=[
            ("X = X[1:]", "pass", "nothing is forgotten: the window grows, and X[0] stays the first input of the walk"),
            (
                "X = X[1:]",
                "X = X[:-1]",
                "the window forgets its newest input, and keeps the oldest, which is the first: X[1:] is all but that",
            ),
            (
                "X += (tl.load(x_row + t * C, mask=mask, other=0),)",
                "X = (tl.load(x_row + t * C, mask=mask, other=0),) + X",
                "the new input goes in front: the window has its oldest input first, so the newest goes to the end",
            ),
            (
                "tl.load(x_row + t * C, mask",
                "tl.load(x_row + (t - W + 1) * C, mask",
                "the new input is the window's oldest once more: at token t the one that is missing is that of time t",
            ),
            (
                "X += (tl.load(x_row + t * C, mask=mask, other=0),)",
                "pass",
                "with its new input the window is X[0] to X[W - 1]: is it added, and is the index a tap, X[w]",
            ),
            ("t * C * W + m", "t * C * W", "all W words of weights are the first: word m is m further"),
            ("t * C * W + m", "t * C + m", "a token has C * W words of weights, so token t's begin at t * C * W"),
            ("t * C * W + m", "t * C * W + W - 1 - m", "the words of weights are turned around: k[m] is word m"),
            (
                "y_row + t * C,",
                "y_row + first * C,",
                "every step stores at the run's first token: the output is that of token t",
            ),
            ("y_row + t * C,", "y_row + t * C * W,", "token t's outputs begin at t * C, as its inputs do: they have no taps"),
            ("pack(y, dtype)", "y[0]", "what is stored is a word, of all four channels' sums: pack(y, dtype)"),
            (
                "part(X[w], i, dtype)\n",
                "part(X[w], i, dtype)\n                acc = acc.to(dtype).to(tl.float32)\n",
                "a sum is kept in float32 until all its taps are in it: digits that it rounds away can't come back",
            ),
            (
                "part(k[(i * W + w) // 4], (i * W + w) % 4, dtype)",
                "part(k[w], i, dtype)",
                "the taps of one channel are side by side: tap w of channel i is element i * W + w of the weights",
            ),
            ("part(X[w], i, dtype)", "part(X[W - 1 - w], i, dtype)", "the taps are turned around: X[0] is the oldest input"),
            (
                "part(X[w], i, dtype)",
                "part(X[w], w, dtype)",
                "a word of inputs has four channels at its four places: channel i is at place i",
            ),
            ("y += (acc,)", "y = (acc,) + y", "the four channels are turned around: channel 0 is at place 0"),
        ],
    ),
}
