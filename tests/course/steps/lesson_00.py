"""Wrong answers to the turn of lesson 00, and what the check must say to each."""

REVERSE = """
@triton.jit
def reverse_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = {}
    tl.store(out_ptr + offs, x)
"""

WRONG = {
    "00-reverse": [
        (REVERSE.format("tl.load(x_ptr + offs)"), "x is copied as it is"),
        (REVERSE.format("x_ptr[N - 1 - offs]"), "a pointer is not indexed but added to"),
        (REVERSE.format("tl.load(x_ptr + N - offs)"), "Which element does place 0 of out want?"),
        (
            REVERSE.format("tl.load(x_ptr + tl.program_id(0) * BLOCK + BLOCK - 1 - tl.arange(0, BLOCK))"),
            "the blocks are still in their old order",
        ),
        (
            REVERSE.format("tl.load(x_ptr + N - BLOCK - tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))"),
            "in each the order is still the old one",
        ),
        (REVERSE.format("tl.load(x_ptr + N - 1 - tl.arange(0, BLOCK))"), "Every program loads the same four"),
        (REVERSE.format("tl.load(x_ptr + 15 - offs)"), "reads outside x [8]"),
        ("ONE = 1" + REVERSE.format("tl.load(x_ptr + N - ONE - offs)"), "ONE = tl.constexpr(...)"),
        (
            "one = torch.ones(3)" + REVERSE.format("tl.load(x_ptr + N - one.ndim - offs)"),
            "no GPU's compiler can be shown this: kernel uses 'one'",
        ),
    ],
}
