"""Wrong answers to the turns of lesson 01, and what the check must say to each."""

LOWER = """
@triton.jit
def lower_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs_m = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_n = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (offs_m < N) & (offs_n < N)
    x = tl.load(x_ptr + offs_m * N + offs_n, mask={}, other=0.0)
    tl.store(out_ptr + offs_m * N + offs_n, x, mask={})
"""
WINDOWS = """
def windows(x, W):
    return {}
"""
SPANS = """
@triton.jit
def spans_kernel(x_ptr, out_ptr, N, stride_xm, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    high = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    low = {}
    for start in range(0, N, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        x = tl.load(x_ptr + row * stride_xm + offs_n, mask=offs_n < N, other=0.0)
        high = {}
        low = {}
    tl.store(out_ptr + row, tl.max(high, axis=0) - tl.min(low, axis=0))
"""
BOTH = "inside & (offs_n <= offs_m)"
HIGH = 'tl.maximum(high, tl.where(offs_n < N, x, -float("inf")))'
LOW = 'tl.minimum(low, tl.where(offs_n < N, x, float("inf")))'
START = 'tl.full((BLOCK_N,), float("inf"), tl.float32)'
VIEW = "torch.as_strided(x, {}, {}, x.storage_offset())"

WRONG = {
    "01-lower": [
        (LOWER.format(BOTH, BOTH), "out keeps whatever it held"),
        (LOWER.format("inside & (offs_n >= offs_m)", "inside"), "This is the upper triangle"),
        (LOWER.format("inside & (offs_n < offs_m)", "inside"), "The diagonal is missing"),
        (LOWER.format("inside", "inside"), "Everything is copied"),
        (LOWER.format("inside and offs_n <= offs_m", "inside"), "use `&`"),
        (LOWER.format("inside & offs_n <= offs_m", "inside"), "bind more tightly"),
        (LOWER.format("offs_n <= offs_m", "inside"), "doesn't know where the matrix ends"),
        (
            LOWER.format("inside", "inside").replace(
                "    tl.store", "    x = tl.where(offs_n <= offs_m, x, 0.0)\n    tl.store"
            ),
            "The result is right, but 64 elements are loaded where 36 are enough",
        ),
    ],
    "01-windows": [
        (WINDOWS.format(VIEW.format("(x.numel() - W + 1, W)", "(1, 1)")), "A vector's own stride needn't be 1"),
        (WINDOWS.format(VIEW.format("(x.numel() - W, W)", "(x.stride(0), x.stride(0))")), "N - W + 1 windows"),
        (WINDOWS.format(VIEW.format("(x.numel() - W + 1, W)", "(0, x.stride(0))")), "the view[1, 0] is"),
        (WINDOWS.format(VIEW.format("(x.numel() - W + 1, W)", "(W * x.stride(0), x.stride(0))")), "lie side by side"),
        (WINDOWS.format("torch.stack([x[i : i + W] for i in range(x.numel() - W + 1)])"), "they were copied"),
    ],
    "01-spans": [
        (SPANS.format(START, "tl.maximum(high, x)", LOW), "isn't neutral"),
        (SPANS.format(START, HIGH, "tl.minimum(low, x)"), "isn't neutral"),
        (SPANS.format(START, "tl.maximum(high, x)", "tl.minimum(low, x)").replace(", other=0.0", ""), "isn't neutral"),
        (SPANS.format(START, "tl.max(high, x)", LOW), "tl.maximum and tl.minimum compare two blocks"),
        (SPANS.format(START, HIGH, LOW.replace("tl.minimum", "tl.maximum")), "still holds an infinity"),
        (SPANS.format(START, "max(high, x)", "min(low, x)"), "`max(high, x)` is Python's"),
        (SPANS.format('float("inf")', HIGH, LOW), "Loop-carried variable low"),
        (SPANS.format("tl.zeros((BLOCK_N,), tl.float32)", HIGH, LOW), "isn't neutral"),
        (SPANS.format(START.replace('float("inf")', "1e9"), HIGH, LOW), "With rows of 37 huge numbers"),
        (
            SPANS.format(START, HIGH.replace("tl.maximum(high, ", "("), LOW.replace("tl.minimum(low, ", "(")),
            "only the last block counts",
        ),
    ],
}
