"""Tensor cores: the rate of each tile and type, and a product of matrices in tiles."""


import torch
import triton
import triton.language as tl

from benchmarks import harness
from benchmarks.experiments.clocks import multiprocessor, nanoseconds_now
from benchmarks.experiments.common import processors, short
from kernels import runtime


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, out_ptr, log_ptr, steps,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Multiplies the same two tiles again and again, so that nothing but the multiplication takes time."""
    pid = tl.program_id(0)
    if LOG:
        start = nanoseconds_now()
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    total = tl.zeros([M, N], tl.float32)
    for _ in range(steps):
        total = tl.dot(a, b, total, input_precision=PRECISION)
    tl.store(out_ptr + pid.to(tl.int64) * M * N + m[:, None] * N + n[None, :], total)
    if LOG:
        tl.store(log_ptr + 3 * pid, multiprocessor().to(tl.int64))
        tl.store(log_ptr + 3 * pid + 1, start)
        tl.store(log_ptr + 3 * pid + 2, nanoseconds_now())


def dot_call(tile, dtype, precision, warps, programs, steps, log=None):
    """A function of nothing that launches ``dot_kernel`` on random tiles, and its output."""
    M, N, K = tile
    a, b = (torch.randn(shape, device=runtime.device).to(dtype) for shape in ((M, K), (K, N)))
    out = torch.empty(programs, M, N, device=runtime.device)
    meta = {"M": M, "N": N, "K": K, "PRECISION": precision, "LOG": log is not None, "num_warps": warps, "num_stages": 2}

    def call():
        dot_kernel[(programs,)](a, b, out, out if log is None else log, steps, **meta)

    return call, (a, b, out)


TILES = {  # tile: warps a program, programs a multiprocessor
    (16, 16, 16): (1, 32),
    (32, 32, 32): (1, 32),
    (64, 64, 32): (4, 8),
    (64, 64, 64): (4, 6),
    (64, 128, 64): (4, 4),
    (128, 128, 32): (4, 2),
    (128, 128, 64): (4, 2),
    (128, 256, 32): (8, 1),
    (128, 256, 64): (8, 1),
}
PRECISIONS = {  # name: dtype, input_precision
    "bfloat16": (torch.bfloat16, "tf32"),
    "float16": (torch.float16, "tf32"),
    "tf32": (torch.float32, "tf32"),
    "float32, no tensor cores": (torch.float32, "ieee"),
}


def tensor_cores():
    """Operations a second against the tile's size and the elements' type; the tiles stay where the tensor cores read them."""
    rows = []
    for name, (dtype, precision) in PRECISIONS.items():
        for tile, (warps, resident) in TILES.items():
            M, N, K = tile
            if precision == "ieee" and M * N * K > 64 * 64 * 32:  # every multiplication is an instruction of its own
                continue
            programs = resident * processors()
            total = 2e10 if precision == "ieee" else 2e11
            steps = max(1, round(total / (2 * M * N * K * programs)))
            row = {"measurement": "tensor_cores", "dtype": name, "tile": tile, "num_warps": warps, "resident": resident}
            try:
                call, _ = dot_call(tile, dtype, precision, warps, programs, steps)
                ms = harness.milliseconds(call, warmup=10, rep=40)
                rows.append(row | {"tflop_per_s": short(2e-9 * M * N * K * steps * programs / ms)})
            except Exception as error:  # a tile that does not fit costs itself
                rows.append(row | {"error": f"{type(error).__name__}: {str(error)[:200]}"})
    return rows


@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A product of square matrices whose tiles come from memory at every step."""
    m = tl.program_id(1) * M + tl.arange(0, M)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    total = tl.zeros([M, N], tl.float32)
    for first in range(0, SIZE, K):
        a = tl.load(a_ptr + m[:, None] * SIZE + first + k[None, :])
        b = tl.load(b_ptr + (first + k[:, None]) * SIZE + n[None, :])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + m[:, None] * SIZE + n[None, :], total.to(out_ptr.dtype.element_ty))


def matmul_tiles(size=4096):
    """The same against tile size when the tiles have to be fetched: a plain kernel, and torch's product."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=runtime.device) for _ in range(2))
    out = torch.empty_like(a)
    row = {"measurement": "matmul_tiles", "size": size, "dtype": "bfloat16"}
    rows = []
    for (M, N, K), warps in {
        (16, 16, 16): 1, (32, 32, 32): 1, (64, 64, 32): 4, (64, 64, 64): 4, (128, 64, 64): 4,
        (128, 128, 32): 8, (128, 128, 64): 8, (128, 256, 64): 8,
    }.items():  # fmt: skip
        call = lambda: matmul_kernel[(size // N, size // M)](  # noqa: B023
            a, b, out, SIZE=size, M=M, N=N, K=K, num_warps=warps, num_stages=3  # noqa: B023
        )
        try:
            ms = harness.milliseconds(call, warmup=10, rep=40)
            rows.append(row | {"tile": (M, N, K), "num_warps": warps, "tflop_per_s": short(2e-9 * size**3 / ms)})
        except Exception as error:
            error = f"{type(error).__name__}: {str(error)[:200]}"
            rows.append(row | {"tile": (M, N, K), "num_warps": warps, "error": error})
    for n in (size, 8192):
        rows.append({"measurement": "matmul_tiles", "size": n, "dtype": "bfloat16", "tile": None, "by": "torch",
                     "tflop_per_s": short(harness.matmul_rate(n))})  # fmt: skip
    return rows
