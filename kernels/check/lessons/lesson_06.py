"""Lesson 06's kernels: a product of float32 tiles in bfloat16 parts, and a program's tile, in groups of rows of tiles."""

import torch

from kernels.check.lessons import LessonKernel


def _grid(draw, grid_m=4, grid_n=4, GROUP_M=2):
    return {"grid_m": grid_m, "grid_n": grid_n, "GROUP_M": GROUP_M}


def _factors(draw, K=16, beyond=False):
    a, b = draw.normal(16, K), draw.normal(K, 16)
    if beyond:  # every sum is exact in float32, and what two parts of b don't hold is a part in 4096 of the result
        a, b = torch.ones_like(a), torch.ones_like(b)
        b[0] += 2**-10 + 2**-22
        a[:, 1:] = 0
        a[:, 1], b[1] = -1, 1
    return {"a": a, "b": b}


KERNELS = {
    "06-order": LessonKernel(
        arguments=_grid,
        cases={
            "whole groups": {},
            "more columns than rows": {"grid_m": 4, "grid_n": 7},
            "a short last group": {"grid_m": 5, "grid_n": 3},
            "one row a group": {"grid_m": 3, "grid_n": 4, "GROUP_M": 1},
            "one group": {"grid_m": 3, "grid_n": 4, "GROUP_M": 8},
        },
        slips=(
            (
                "GROUP_M * grid_n",
                "GROUP_M * grid_m",
                "a group is counted as GROUP_M * grid_m programs, but its rows of tiles have grid_n each",
            ),
            (
                "pid // programs * GROUP_M",
                "pid // programs",
                "a group's number is taken for its first row, which is GROUP_M times that",
            ),
            (
                "min(grid_m - first_m, GROUP_M)",
                "GROUP_M",
                "the last group is not shortened: it has the grid_m - first_m rows that are left",
            ),
            ("return first_m + pid", "return pid", "every group begins at row 0: add the group's first row"),
            (
                "first_m + pid % programs % rows, pid % programs // rows",
                "first_m + pid % programs // grid_n, pid % programs % grid_n",
                "programs go across first: in a group they go down its rows, then on to the next column",
            ),
            (
                "pid % programs // rows",
                "pid % programs // GROUP_M",
                "the column is divided off by GROUP_M, but the last group may have fewer rows",
            ),
            (
                "first_m + pid % programs % rows, pid % programs // rows",
                "first_m + pid % rows, pid // rows",
                "the whole id is divided, but what counts is its place in the group, pid % programs",
            ),
            (
                "first_m + pid % programs % rows, pid % programs // rows",
                "pid % programs // rows, first_m + pid % programs % rows",
                "row and column are exchanged: the tile's row is returned first",
            ),
        ),
    ),
    "06-product": LessonKernel(
        arguments=_factors,
        cases={"one step": {}, "several steps": {"K": 48}, "bits beyond the second part": {"beyond": True}},
        slips=(
            (
                "acc = tl.dot(a_1, b_1, acc)\n    acc = tl.dot(a_1, b_2, acc)\n    return tl.dot(a_2, b_1, acc)",
                "return tl.dot(a_1, b_1, acc)",
                "both tiles are rounded once: the two products with what that took off are missing",
            ),
            ("acc = tl.dot(a_1, b_2, acc)\n", "pass\n", "a_1 b_2 is missing: b is rounded once"),
            ("return tl.dot(a_2, b_1, acc)", "return acc", "a_2 b_1 is missing: a is rounded once"),
            (
                "acc = tl.dot(a_1, b_1, acc)",
                "acc = tl.dot(a_1, b_1)",
                "what came in as acc is lost: the first product is added to it, too",
            ),
            (
                "return tl.dot(a_2, b_1, acc)",
                "return tl.dot(a_2, b_1)",
                "only the last product is returned: each is added to acc",
            ),
            (
                "(a - a_1).to(tl.bfloat16), (b - b_1).to(tl.bfloat16)",
                "a.to(tl.bfloat16), b.to(tl.bfloat16)",
                "the second part is the tile once more: it is what the rounding took off, a - a_1",
            ),
            (
                "(a - a_1).to(tl.bfloat16), (b - b_1).to(tl.bfloat16)",
                "(a_1 - a).to(tl.bfloat16), (b_1 - b).to(tl.bfloat16)",
                "the rest has the wrong sign: it is the tile less its rounded part",
            ),
            (
                "acc = tl.dot(a_1, b_1, acc)\n    acc = tl.dot(a_1, b_2, acc)\n    return tl.dot(a_2, b_1, acc)",
                'return tl.dot(a, b, acc, input_precision="ieee")',
                "bits arrive that two parts in bfloat16 don't hold: multiply those parts, not float32 tiles or other types",
            ),
        ),
    ),
}
