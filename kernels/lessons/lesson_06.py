"""What lesson 06 goes on with, made from notebooks/06_tensor_cores.ipynb: see this package."""

import triton
import triton.language as tl


@triton.jit
def grouped(pid, grid_m, grid_n, GROUP_M: tl.constexpr):
    programs = GROUP_M * grid_n
    first_m = pid // programs * GROUP_M
    rows = min(grid_m - first_m, GROUP_M)
    return first_m + pid % programs % rows, pid % programs // rows
