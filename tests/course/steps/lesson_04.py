"""Wrong answers to lesson 04's "Your turn" cells, and what their checks must say."""

LOOP = """
@triton.jit
def scaled_loop(
    a_ptr, b_ptr, scale_ptr, offs_m, offs_n, K, stride_am, stride_bk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask = offs_k < K
        a = tl.load(a_ptr + offs_m * stride_am + offs_k[None, :], mask=mask[None, :], other=0.0)
        b = tl.load(b_ptr + offs_k[:, None] * stride_bk + offs_n, mask=mask[:, None], other=0.0)
        scale = tl.load(scale_ptr + offs_k, mask=mask, other=0.0)
        acc = tl.dot(a * scale[None, :], b, acc)
    return acc
"""

WIDE = LOOP.replace("a * scale[None, :], b, acc", "a.to(tl.float32) * scale.to(tl.float32)[None, :], b.to(tl.float32), acc")

WRONG = {
    "04-transposed": [
        (
            """
@triton.jit
def at_offsets(offs_m, offs_k, stride_at):
    return offs_m[:, None] * stride_at + offs_k[None, :]
""",
            "k that moves by stride_at",
        ),
        (
            """
@triton.jit
def at_offsets(offs_m, offs_k, stride_at):
    return offs_m[:, None] + offs_k[None, :]
""",
            "lies at at[32, 16]",
        ),
        (
            """
@triton.jit
def at_offsets(offs_m, offs_k, stride_at):
    return offs_k[:, None] * stride_at + offs_m[None, :]
""",
            "comes back transposed",
        ),
        (
            "@triton.jit\ndef at_offsets(offs_m, offs_k, stride_at):\n    return offs_k * stride_at + offs_m",
            "All rows are the same",
        ),
    ],
    "04-loop": [
        (
            LOOP.replace("scale_ptr + offs_k, mask=mask, other=0.0", "scale_ptr + offs_k"),
            "give each of the three loads a mask",
        ),
        (LOOP.replace("mask=mask[:, None], other=0.0", "mask=mask[:, None]"), "has a mask and no `other`"),
        (
            WIDE.replace("tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)", "0.0").replace(
                "acc = tl.dot(", "acc += tl.dot("
            ).replace(", acc)", ", input_precision='ieee')"),
            "Loop-carried variable acc",
        ),
        (LOOP.replace("dtype=tl.float32", "dtype=tl.float16"), "accumulator of 16 bits"),
        (
            LOOP.replace("b, acc)", "b, acc.to(tl.float16), out_dtype=tl.float16).to(tl.float32)"),
            "the sum is kept in 16 bits",
        ),
        (LOOP.replace("offs_m * stride_am", "offs_m * K"), "m moves by stride_am"),
        (LOOP.replace("* stride_bk", "* BLOCK_N"), "k by stride_bk"),
        (LOOP.replace("b, acc)", "b)"), "Only the last step's product is left"),
        (LOOP.replace("scale[None, :]", "scale[:, None]"), "Rows are scaled, not columns"),
        (LOOP.replace("a * scale[None, :]", "a"), "comes back unscaled"),
        (WIDE.replace("range(0, K,", "range(0, K - BLOCK_K + 1,"), "the terms from 16 on are missing"),
        (WIDE.replace("acc)", "acc, input_precision='ieee') * scale"), "elements are wrong, this one first"),
        (LOOP, "more than float16 holds"),
        (LOOP.replace("a * scale[None, :], b, acc", "a, b * scale[:, None], acc"), "more than float16 holds"),
        (WIDE, "round both tiles to TF32"),
        (WIDE.replace("acc)", "acc, input_precision='tf32')"), "round both tiles to TF32"),
    ],
    "04-order": [
        (
            """
def grouped_columns(pid, grid_m, grid_n, GROUP_N):
    programs = GROUP_N * grid_m
    first_n = pid // programs * GROUP_N
    return pid % programs // GROUP_N, first_n + pid % programs % GROUP_N
""",
            "the last group may have fewer columns",
        ),
        (
            """
def grouped_columns(pid, grid_m, grid_n, GROUP_N):
    programs = GROUP_N * grid_m
    first_n = pid // programs * GROUP_N
    columns = min(grid_n - first_n, GROUP_N)
    return pid % programs % grid_m, first_n + pid % programs // grid_m
""",
            "walk down whole columns",
        ),
        (
            """
def grouped_columns(pid, grid_m, grid_n, GROUP_N):
    programs = GROUP_N * grid_m
    first_n = pid // programs * GROUP_N
    columns = min(grid_n - first_n, GROUP_N)
    return pid % programs // columns, pid % programs % columns
""",
            "both get tile (0, 0)",
        ),
        (
            """
def grouped_columns(pid, grid_m, grid_n, GROUP_N):
    programs = GROUP_N * grid_m
    first_n = pid // programs * GROUP_N
    columns = min(grid_n - first_n, GROUP_N)
    return first_n + pid % programs % columns, pid % programs // columns
""",
            "row and column are swapped",
        ),
        (
            """
def grouped_columns(pid, grid_m, grid_n, GROUP_N):
    programs = GROUP_N * grid_m
    first_n = pid // programs * GROUP_N
    columns = min(grid_n - first_n, GROUP_N)
    return pid % programs % columns, first_n + pid % programs // columns
""",
            "row and column are swapped inside a group",
        ),
        (
            """
def grouped_columns(pid, grid_m, grid_n, GROUP_N):
    programs = GROUP_N * grid_m
    first_n = pid // programs * GROUP_N
    columns = min(grid_n - first_n, GROUP_N)
    return pid // columns, first_n + pid % programs % columns
""",
            "inside a group it is pid % programs that counts",
        ),
    ],
}
