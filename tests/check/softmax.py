"""A right answer to exercise 01 as text, for tests that replace some of it."""

from kernels import check

KERNEL = """
@triton.jit
def kernel(x_ptr, out_ptr, entropy_ptr, N, stride_xm, stride_xn, stride_om, stride_on, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    p = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(p, axis=0)
    tl.store(out_ptr + row * stride_om + offs_n * stride_on, p / tl.where(total == 0.0, 1.0, total), mask=mask_n)
    q = p / tl.where(total == 0.0, 1.0, total)
    tl.store(entropy_ptr + row, -tl.sum(q * tl.log(tl.where(q > 0.0, q, 1.0)), axis=0))


def row_softmax(x, out, entropy, BLOCK_N=None):
    M, N = x.shape
    BLOCK_N = max(BLOCK_N or 0, triton.next_power_of_2(N))  # a row in one block, however wide
    kernel[(M,)](x, out, entropy, N, *x.stride(), *out.stride(), BLOCK_N=BLOCK_N)
"""


def right(fn, **how):
    """The points of the verdict "right" alone."""
    return check.row_softmax(fn, verdicts="right", **how)


SUM = "    total = tl.sum(p, axis=0)\n"


RUNAWAY = "    step = 0\n    while step < N:\n        step += 0\n    total = tl.sum(p, axis=0)\n"


# The entropy is a sum: with q read back from a neighbour's place it is the same, in the interpreter.
QUOTIENT = "    q = p / tl.where(total == 0.0, 1.0, total)\n"
READ_BACK = """\
    q_ptrs = out_ptr + row * stride_om + (offs_n + 1) % N * stride_on
    q = tl.load(q_ptrs, mask=mask_n, other=0.0).to(tl.float32)
"""
