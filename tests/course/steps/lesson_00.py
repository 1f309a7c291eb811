"""Wrong answers to the turns of lesson 00, and what the check must say to each."""

REVERSE = """
@triton.jit
def reverse_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = {}
    tl.store(out_ptr + offs, x)
"""
PAIR = """
@triton.jit
def pair_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x_ptr + offs, mask=offs < N, other=0.0)
    right = {}
    tl.store(out_ptr + offs, here + right, mask=offs < N)
"""
SUMS = """
@triton.jit
def block_sums_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = {}
    {}
"""
BLOCK = "tl.load(x_ptr + offs, mask=offs < N, other=0.0)"
SUM = "tl.store(out_ptr + pid, tl.sum(x, axis=0))"

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
    ],
    "00-pair": [
        (
            PAIR.format("tl.load(x_ptr + offs + 1, mask=offs < N, other=0.0)"),
            "must ask about the element that this line",
        ),
        (PAIR.format("tl.load(x_ptr + offs + 1)"), "must ask about the element that this line"),
        (PAIR.format("tl.load(x_ptr + (offs + 1) % N, mask=offs < N, other=0.0)"), "has x[0] in it"),
        (PAIR.format("tl.load(x_ptr + offs + 1, mask=offs + 1 < N)"), "`other` is missing"),
        (PAIR.format("here[offs + 1]"), "a block has no elements to pick"),
        ("ONE = 1" + PAIR.format("tl.load(x_ptr + offs + ONE, mask=offs + 1 < N, other=0.0)"), "ONE = tl.constexpr(...)"),
        (
            "x = torch.ones(3)" + PAIR.format("tl.load(x_ptr + offs + x.ndim, mask=offs + 1 < N, other=0.0)"),
            "no GPU's compiler can be shown this: kernel uses 'x'",
        ),
        (PAIR.format("here"), "the right neighbour is at offs + 1"),
        (PAIR.format("here + 1"), "The 1 is added to the number"),
        (PAIR.format("tl.load(x_ptr + offs + 1, mask=offs + 2 < N, other=0.0)"), "With N = 13, out[11] is"),
    ],
    "00-block-sums": [
        (SUMS.format("tl.load(x_ptr + offs)", SUM), "loads beyond the end of x"),
        (SUMS.format("tl.load(x_ptr + offs, mask=offs < N)", SUM), "`other` is missing"),
        (SUMS.format(BLOCK.replace("0.0", "1.0"), SUM), "Lanes beyond N must add nothing."),
        (SUMS.format(BLOCK, SUM.replace("out_ptr + pid", "out_ptr + offs")), "one place for each program"),
        (SUMS.format(BLOCK, SUM.replace("out_ptr + pid", "out_ptr")), "Only out[0] was stored"),
        (SUMS.format(BLOCK, SUM.replace("tl.sum(x, axis=0)", "tl.max(x, axis=0)")), "out[0] is"),
    ],
}
