"""Lesson 06's kernel: the tile of a program, in groups of rows of tiles."""

from kernels.check.lessons import LessonKernel


def _grid(draw, grid_m=4, grid_n=4, GROUP_M=2):
    return {"grid_m": grid_m, "grid_n": grid_n, "GROUP_M": GROUP_M}


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
            ("GROUP_M * grid_n", "GROUP_M * grid_m", ""),
            ("pid // programs * GROUP_M", "pid // programs", ""),
            ("min(grid_m - first_m, GROUP_M)", "GROUP_M", ""),
            ("return first_m + pid", "return pid", ""),
            (
                "first_m + pid % programs % rows, pid % programs // rows",
                "first_m + pid % programs // grid_n, pid % programs % grid_n",
                "programs go across first: in a group they go down its rows, then on to the next column",
            ),
            ("pid % programs // rows", "pid % programs // GROUP_M", ""),
            (
                "first_m + pid % programs % rows, pid % programs // rows",
                "pid % programs // rows, first_m + pid % programs % rows",
                "",
            ),
        ),
    ),
}
