"""Lesson 26's turn: the slope of a function in a direction."""

import torch

from kernels.check.lessons import Turn


def _arguments(draw, n=5, curved=False, h=0.01):
    x, d = (draw.normal(n, dtype=torch.float64) for _ in range(2))
    return {"f": (lambda x: (x**3).sum()) if curved else (lambda x: (2 * x).sum() + 1), "x": x, "d": d, "h": h}


BOTH = "(f(x + h * d) - f(x - h * d)) / (2 * h)"
TURNS = {
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
