"""What lesson 04 goes on with, made from notebooks/04_the_law_of_time.ipynb: see this package."""

import triton
import triton.language as tl


def law(amounts, rates):
    return max(amount / rates[name] for name, amount in amounts.items())


@triton.jit
def strided_kernel(x_ptr, out_ptr, N, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * stride, mask=offs < N, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x, axis=0))
