"""The price of a launch, and one sum launched in several ways."""

import statistics
import time

import torch
import triton
import triton.language as tl

from benchmarks import harness
from benchmarks.experiments.common import once, processors, short
from kernels import runtime

# 8. A launch.


@triton.jit
def empty_kernel(x_ptr):
    pass


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


def host_us(fn, calls):
    """Microseconds of one of ``calls`` calls: until Python is done with them, and until the GPU is."""
    seen = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        submitted = time.perf_counter()
        torch.cuda.synchronize()
        seen.append((1e6 * (submitted - start) / calls, 1e6 * (time.perf_counter() - start) / calls))
    return tuple(statistics.median(times) for times in zip(*seen))


def graph_us(fn, calls):
    """Microseconds of one of ``calls`` calls inside a CUDA graph."""
    fn()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        replay = harness.captured(lambda: [fn() for _ in range(calls)])
        replay()
        torch.cuda.synchronize()
        return 1e3 * statistics.median(once(replay) for _ in range(9)) / calls


def launches():
    """What a launch costs: on the host, back to back, and inside a CUDA graph."""
    x = torch.zeros(32, device=runtime.device)
    rows = []
    for name, fn in {
        "empty kernel": lambda: empty_kernel[(1,)](x),
        "empty kernel, 132 programs": lambda: empty_kernel[(132,)](x),
        "empty kernel, 100000 programs": lambda: empty_kernel[(100_000,)](x, num_warps=4),
        "torch: x.add_(1)": lambda: x.add_(1),
    }.items():
        fn()
        host, total = host_us(fn, 1000)
        rows.append({"measurement": "launches", "what": name, "host_us": short(host), "us": short(total),
                     "graph_us": short(graph_us(fn, 200))})  # fmt: skip
    return rows


def add_sizes():
    """Time of one sum of two vectors against its length: launched back to back from Python, by torch, and in a graph."""
    rows = []
    for power in range(8, 29, 2):
        n = 2**power
        x, y = torch.randn(2, n, device=runtime.device)
        out = torch.empty_like(x)
        for name, fn in {
            "triton": lambda: add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024),  # noqa: B023
            "torch": lambda: torch.add(x, y, out=out),  # noqa: B023
        }.items():
            fn()
            calls = 500 if n <= 2**20 else 50
            _, us = host_us(fn, calls)
            row = {"measurement": "add_sizes", "by": name, "n": n, "bytes": 12 * n, "us": short(us)}
            rows.append(row | {"graph_us": short(graph_us(fn, 20))})
    return rows


# The lesson's puzzle: one kernel, the same sum, several ways to launch it.


@triton.jit
def looped_add_kernel(x_ptr, y_ptr, out_ptr, N, BLOCK: tl.constexpr):
    """Every program takes block after block, ``num_programs`` blocks apart."""
    for first in range(tl.program_id(0) * BLOCK, N, tl.num_programs(0) * BLOCK):
        offs = first + tl.arange(0, BLOCK)
        mask = offs < N
        x = tl.load(x_ptr + offs, mask=mask, other=0.0)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0)
        tl.store(out_ptr + offs, x + y, mask=mask)


def puzzle(n=2**26):
    """The same sum of two vectors by the same kernel; what differs is how many programs there are, and how large."""
    x, y = torch.randn(2, n, device=runtime.device)
    out = torch.empty_like(x)
    rows = []
    for programs, block, warps in (
        (1, 32, 1), (132, 32, 1), (132, 128, 4), (132, 1024, 4), (132, 1024, 8), (132, 4096, 8), (264, 1024, 8),
        (528, 1024, 8), (1056, 1024, 8), (2112, 512, 4), (2112, 1024, 4), (4224, 1024, 4), (n // 1024, 1024, 4),
    ):  # fmt: skip
        size = n // 64 if programs == 1 else n  # one program alone would take half a minute
        call = lambda: looped_add_kernel[(programs,)](x, y, out, size, BLOCK=block, num_warps=warps, num_stages=1)  # noqa: B023
        out.fill_(float("nan"))
        call()
        right = torch.equal(out[:size], (x + y)[:size])
        ms = harness.milliseconds(call, warmup=5, rep=60)
        rows.append(
            {
                "measurement": "puzzle",
                "programs": programs,
                "block": block,
                "num_warps": warps,
                "n": size,
                "bytes": 12 * size,
                "bytes_in_flight": min(8 * block, 8 * size) * min(programs, processors() * min(32, 64 // warps)),
                "right": right,
                "ms": short(ms),
                "tb_per_s": short(12e-9 * size / ms),
            }
        )
    return rows
