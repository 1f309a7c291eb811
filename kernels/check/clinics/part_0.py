"""The clinic after part 0: a softmax, a product in tiles, a matrix times a vector."""

import torch

from kernels.check.cases import Case, Output
from kernels.check.clinics.faulty_kernel import FaultyKernel, Relative
from kernels.check.tensors import Draw, Fenced

FENCE = 64
SMALL = tuple(range(1, 65))
BLOCKS = (1, 2, 4, 8, 16, 32, 64)

SOFTMAX = """\
@triton.jit
def row_softmax_kernel(x_ptr, out_ptr, N, stride_xm, stride_xn, stride_om, stride_on, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row, out_row = x_ptr + row * stride_xm, out_ptr + row * stride_om
    lanes = tl.arange(0, BLOCK_N)
    high = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    for start in range(0, N, BLOCK_N):
        offs_n = start + lanes
        x = tl.load(x_row + offs_n * stride_xn, mask=offs_n < N, other=-float("inf"))
        high = tl.maximum(high, x.to(tl.float32))
    row_max = tl.max(high, axis=0)
    total = tl.zeros((BLOCK_N,), tl.float32)
    for begin in range(0, N, BLOCK_N):
        offs = begin + lanes
        values = tl.load(x_row + offs * stride_xn, mask=offs < N, other=-float("inf"))
        total += tl.exp(values.to(tl.float32) - row_max)
    row_sum = tl.sum(total, axis=0)
    for start in range(0, N, BLOCK_N):
        offs_n = start + lanes
        mask_n = offs_n < N
        p = tl.exp(tl.load(x_row + offs_n * stride_xn, mask=mask_n, other=0.0).to(tl.float32) - row_max) / row_sum
        tl.store(out_row + offs_n * stride_on, p, mask=mask_n)


def row_softmax(x, out, BLOCK_N=16):
    M, N = x.shape
    row_softmax_kernel[(M,)](x, out, N, *x.stride(), *out.stride(), BLOCK_N=BLOCK_N)
"""
SUMMED = 'values = tl.load(x_row + offs * stride_xn, mask=offs < N, other=-float("inf"))'
HIGHEST = 'x = tl.load(x_row + offs_n * stride_xn, mask=offs_n < N, other=-float("inf"))'
TOTAL = "total += tl.exp(values.to(tl.float32) - row_max)"


def softmax_case(draw: Draw, M: int, N: int, BLOCK_N: int) -> Case:
    """One call of the softmax."""
    x = draw.normal(M, N)
    out = Fenced("out", "MN", torch.empty(M, N), fence={"N": FENCE})
    return Case(
        [Fenced("x", "MN", x, fence={"N": FENCE})], [Output(out, torch.softmax(x.double(), 1))], {"BLOCK_N": BLOCK_N}
    )


MATMUL = """\
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, out_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_om, stride_on, BLOCK: tl.constexpr
):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask_m, mask_n = offs_m < M, offs_n < N
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        offs_k = start + tl.arange(0, BLOCK)
        mask_k = offs_k < K
        a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    out_ptrs = out_ptr + offs_m[:, None] * stride_om + offs_n[None, :] * stride_on
    tl.store(out_ptrs, acc, mask=mask_m[:, None] & mask_n[None, :])


def matmul(a, b, out, BLOCK=16):
    (M, K), N = a.shape, b.shape[1]
    grid = triton.cdiv(M, BLOCK), triton.cdiv(N, BLOCK)
    matmul_kernel[grid](a, b, out, M, N, K, *a.stride(), *b.stride(), *out.stride(), BLOCK=BLOCK)
"""
LOAD_A = "a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)"
LOAD_B = "b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)"
STORE = "tl.store(out_ptrs, acc, mask=mask_m[:, None] & mask_n[None, :])"


def matmul_case(draw: Draw, M: int, N: int, K: int) -> Case:
    """One call of the product."""
    a, b = draw.normal(M, K), draw.normal(K, N)
    fence = dict.fromkeys("MNK", FENCE)
    out = Fenced("out", "MN", torch.empty(M, N), fence=fence)
    inputs = [Fenced("a", "MK", a, fence=fence), Fenced("b", "KN", b, fence=fence)]
    return Case(inputs, [Output(out, a.double() @ b.double(), tolerance=1e-4)])


MATVEC = """\
@triton.jit
def matvec_kernel(a_ptr, x_ptr, y_ptr, M, K, stride_am, stride_ak, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < M
    acc = tl.zeros((BLOCK_M,), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        offs_k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        mask_k = offs_k < K
        a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0).to(tl.float32)
        x = tl.load(x_ptr + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        acc += tl.sum(a * x[None, :], axis=1)
    tl.store(y_ptr + offs_m, acc, mask=mask_m)


def matvec(a, x, y, BLOCK_M=16, BLOCK_K=16):
    M, K = a.shape
    matvec_kernel[(triton.cdiv(M, BLOCK_M),)](a, x, y, M, K, *a.stride(), BLOCK_M=BLOCK_M, BLOCK_K=BLOCK_K)
"""
ROUNDS = "for step in range(tl.cdiv(K, BLOCK_K)):"
OFFS_K = "offs_k = step * BLOCK_K + tl.arange(0, BLOCK_K)"


def matvec_case(draw: Draw, M: int, K: int, BLOCK_K: int) -> Case:
    """One call of the product with a vector."""
    a, x = draw.normal(M, K), draw.normal(K)
    fence = dict.fromkeys("MK", FENCE)
    out = Output(Fenced("y", "M", torch.empty(M), fence=fence), a.double() @ x.double())
    return Case([Fenced("a", "MK", a, fence=fence), Fenced("x", "K", x, fence=fence)], [out], {"BLOCK_K": BLOCK_K})


FAULTY = (
    FaultyKernel(
        key="0a",
        function="row_softmax",
        right=SOFTMAX,
        fault=(SUMMED, SUMMED.replace('-float("inf")', "0.0")),
        lines=(SUMMED.replace('-float("inf")', "0.0"),),
        cause="neutral",
        sizes={"M": SMALL, "N": SMALL, "BLOCK_N": BLOCKS},
        case=softmax_case,
        broken=(
            Relative(
                "one with the same mistake, seen in other values", (HIGHEST, HIGHEST.replace('-float("inf")', "0.0"))
            ),
            Relative(
                "one with the same mistake at the start of a walk",
                ('tl.full((BLOCK_N,), -float("inf"), tl.float32)', "tl.zeros((BLOCK_N,), tl.float32)"),
            ),
            Relative("one with the same mistake, left unsaid", (SUMMED, SUMMED.replace(', other=-float("inf")', ""))),
        ),
        sound=(
            Relative("a right kernel with longer blocks", ("BLOCK_N=BLOCK_N)", "BLOCK_N=2 * BLOCK_N)")),
            Relative("a right kernel with short blocks", ("BLOCK_N=BLOCK_N)", "BLOCK_N=4)")),
            Relative(
                "a right kernel that is written otherwise",
                (
                    SUMMED,
                    SUMMED.replace('-float("inf")', "0.0"),
                    TOTAL,
                    "total += tl.where(offs < N, tl.exp(values.to(tl.float32) - row_max), 0.0)",
                ),
            ),
            Relative(
                "a right kernel with another exponential",
                (TOTAL, "total += tl.exp2((values - row_max) * 1.4426950408889634)"),
            ),
        ),
        lesson="Lesson 02, step 2",
    ),
    FaultyKernel(
        key="0b",
        function="matmul",
        right=MATMUL,
        fault=(LOAD_B, LOAD_B.replace("mask_n", "mask_m")),
        lines=(LOAD_B.replace("mask_n", "mask_m"),),
        cause="mask",
        sizes={"M": SMALL, "N": SMALL, "K": SMALL},
        case=matmul_case,
        broken=(
            Relative("one with the same mistake at the other tensor", (LOAD_A, LOAD_A.replace("mask_m", "mask_n"))),
            Relative(
                "one with the same mistake at the other tensor's other axis",
                (LOAD_A, LOAD_A.replace("mask_k[None", "mask_n[None")),
            ),
            Relative("one with the same mistake along K", (LOAD_B, LOAD_B.replace("mask_k", "mask_m"))),
            Relative("one with the same mistake at the result", (STORE, STORE.replace("mask_n", "mask_m"))),
        ),
        sound=(
            Relative(
                "a right kernel with larger tiles",
                ("stride(), BLOCK=BLOCK)", "stride(), BLOCK=32)", "BLOCK=16):", "BLOCK=16):\n    BLOCK = 32"),
            ),
            Relative(
                "a right kernel that is written otherwise", ("range(0, K, BLOCK)", "range(K - K % BLOCK, -1, -BLOCK)")
            ),
            Relative(
                "a right kernel that loads more than it stores",
                (
                    "mask_m, mask_n = offs_m < M, offs_n < N",
                    "mask_m, mask_n = offs_m < M, offs_n < N\n    wrap_n = offs_n % N",
                    "offs_n[None, :] * stride_bn",
                    "wrap_n[None, :] * stride_bn",
                    LOAD_B,
                    LOAD_B.replace(" & mask_n[None, :]", ""),
                ),
            ),
        ),
        lesson="Lesson 05, step 3",
    ),
    FaultyKernel(
        key="0c",
        function="matvec",
        right=MATVEC,
        fault=(ROUNDS, "for step in range(K // BLOCK_K):"),
        lines=("for step in range(K // BLOCK_K):",),
        cause="bound",
        sizes={"M": SMALL, "K": SMALL, "BLOCK_K": BLOCKS},
        case=matvec_case,
        broken=(
            Relative(
                "one with the same mistake, seen beyond one block alone",
                (ROUNDS, "for step in range(max(K // BLOCK_K, 1)):"),
            ),
            Relative(
                "one with the same mistake along the other axis",
                ("(triton.cdiv(M, BLOCK_M),)", "(max(M // BLOCK_M, 1),)"),
            ),
            Relative(
                "one with the same mistake, written otherwise",
                (
                    ROUNDS,
                    "for start in range(0, K - BLOCK_K + 1, BLOCK_K):",
                    OFFS_K,
                    "offs_k = start + tl.arange(0, BLOCK_K)",
                ),
            ),
        ),
        sound=(
            Relative(
                "a right kernel with longer blocks",
                ("BLOCK_M=BLOCK_M, BLOCK_K=BLOCK_K)", "BLOCK_M=BLOCK_M, BLOCK_K=4 * BLOCK_K)"),
            ),
            Relative(
                "a right kernel with one row a program",
                (
                    "(triton.cdiv(M, BLOCK_M),)",
                    "(M,)",
                    "BLOCK_M=BLOCK_M, BLOCK_K=BLOCK_K)",
                    "BLOCK_M=1, BLOCK_K=BLOCK_K)",
                ),
            ),
            Relative(
                "a right kernel that is written otherwise",
                (ROUNDS, "for step in range(K // BLOCK_K + 1):"),
            ),
        ),
        lesson="Lesson 05, step 3",
    ),
)
