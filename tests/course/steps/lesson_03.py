"""Wrong answers to lesson 03's "Your turn" cells, and what their checks must say."""

WRONG = {
    "03-transposed": [
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
    ],
    "03-scale": [
        (
            """
@triton.jit
def scaled(a, scale_ptr, offs_k, K):
    return a * tl.load(scale_ptr + offs_k)[None, :]
""",
            "mask that load with offs_k < K",
        ),
        (
            """
@triton.jit
def scaled(a, scale_ptr, offs_k, K):
    return a * tl.load(scale_ptr + offs_k, mask=offs_k < K, other=0.0)[:, None]
""",
            "Rows are scaled, not columns",
        ),
        (
            """
@triton.jit
def scaled(a, scale_ptr, offs_k, K):
    lane = tl.arange(0, 16)
    return a * tl.load(scale_ptr + lane, mask=lane < K, other=0.0)[None, :]
""",
            "Every step uses the first step's scales",
        ),
    ],
    "03-order": [
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
            "computed twice",
        ),
    ],
}
