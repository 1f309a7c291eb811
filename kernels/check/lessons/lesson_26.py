"""Lesson 26's turns: a constant gate's gradient, and the slope of a function in a direction."""

import torch

from kernels.check.lessons import Turn


def _arguments(draw, n=5, curved=False, h=0.01):
    x, d = (draw.normal(n, dtype=torch.float64) for _ in range(2))
    return {"f": (lambda x: (x**3).sum()) if curved else (lambda x: (2 * x).sum() + 1), "x": x, "d": d, "h": h}


def _pairs(draw, large=False):
    W = draw.normal(6, 6, dtype=torch.float32 if large else torch.float64).tril()
    if large:
        W[2, 2] = 1e8
    return {"W": W}


WEIGHED = "(W * (t[:, None] - t[None, :])).sum()"
ONCE = "each pair is counted once: W[t, s] stands in the sum of every gate between the two"
BOTH = "(f(x + h * d) - f(x - h * d)) / (2 * h)"
TURNS = {
    "26-gamma": Turn(
        "the gradient of a constant gate, from pairs",
        arguments=_pairs,
        cases={"pairs of all distances": {}, "1e8 on the diagonal, where no gate is passed": {"large": True}},
        slips=(
            (WEIGHED, "W.sum()", ONCE),
            (WEIGHED, "W.tril(-1).sum()", ONCE),
            ("t[None, :]))", "t[None, :] + 1))", "a pair counts once too often: the gate of s itself acted before s wrote"),
            ("t[None, :]))", "t[None, :] - 1))", "a pair counts once too little: the gate of t itself acts before t reads"),
            ("(W *", "-(W *", "the sign is turned: between s and t lie t - s gates"),
            (" - t[None, :]", "", "between s and t lie t - s gates, not t"),
            (
                WEIGHED,
                "sum(W[: u + 1, u + 1 :].sum() for u in range(len(W)))",
                "rows are queries and columns keys: that sums where W is 0",
            ),
            (
                WEIGHED,
                "(W.sum(1) - W.sum(0)).flip(0).cumsum(0).sum()",
                "you add rows and take columns away, and their rounding stays: weigh each pair by its distance",
            ),
            (".sum()", ".sum(0)", "one number is asked for: the sum of all pairs"),
        ),
    ),
    "26-slope": Turn(
        "the slope of a function in a direction",
        arguments=_arguments,
        cases={"a straight line": {}, "a curve": {"curved": True}, "a large step": {"curved": True, "h": 0.5}},
        slips=(
            (BOTH, "(f(x + h * d) - f(x - h * d)) / h", "the two points are 2h apart"),
            (BOTH, "(f(x + h * d) - f(x - h * d)) / 2 * h", "/ 2 * h multiplies by h: put 2 * h into brackets"),
            (BOTH, "f(x + h * d) - f(x - h * d)", "the difference is divided by 2h"),
            (BOTH, "(f(x + h * d) - f(x)) / h", "to one side the error is of size h: take both"),
            (BOTH, "(f(x + h) - f(x - h)) / (2 * h)", "go along d, not along (1, 1, ...)"),
            (BOTH, "(f(x - h * d) - f(x + h * d)) / (2 * h)", "the sign is turned"),
        ),
    )
}
