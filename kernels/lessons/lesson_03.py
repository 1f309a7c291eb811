"""What lesson 03 goes on with, made from notebooks/03_the_machine.ipynb: see this package."""

import triton
import triton.language as tl


def room(w, rho, sigma):
    return min(64 // w, 32, 228 * 1024 // (sigma + 1024), 4 * (16384 // (32 * rho)) // w)


@triton.jit
def ahead_add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    step = tl.num_programs(0) * BLOCK  # from a block of this program to its next
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < N, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < N, other=0.0)
    for _ in range(tl.program_id(0) * BLOCK, N, step):
        ahead = offs + step
        next_x = tl.load(x_ptr + ahead, mask=ahead < N, other=0.0)
        next_y = tl.load(y_ptr + ahead, mask=ahead < N, other=0.0)
        tl.store(out_ptr + offs, x + y, mask=offs < N)
        offs, x, y = ahead, next_x, next_y
