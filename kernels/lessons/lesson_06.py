"""What lesson 06 goes on with, made from notebooks/06_tensor_cores.ipynb: see this package."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, acc):
    a_1, b_1 = a.to(tl.bfloat16), b.to(tl.bfloat16)
    a_2, b_2 = (a - a_1).to(tl.bfloat16), (b - b_1).to(tl.bfloat16)
    acc = tl.dot(a_1, b_1, acc)
    acc = tl.dot(a_1, b_2, acc)
    return tl.dot(a_2, b_1, acc)


@triton.jit
def grouped(pid, grid_m, grid_n, GROUP_M: tl.constexpr):
    programs = GROUP_M * grid_n
    first_m = pid // programs * GROUP_M
    rows = min(grid_m - first_m, GROUP_M)
    return first_m + pid % programs % rows, pid % programs // rows
