"""The machine's own clocks and numbers, read inside a kernel."""

import statistics

import torch
import triton
import triton.language as tl

from benchmarks.experiments.common import short
from kernels import runtime


@triton.jit
def cycles_now():
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def nanoseconds_now():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def multiprocessor():
    return tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def clock_kernel(out_ptr, cycles):
    """Waits for a number of cycles and stores how many passed, and how many nanoseconds."""
    nanoseconds, start = nanoseconds_now(), cycles_now()
    passed = start - start
    while passed < cycles:
        passed = cycles_now() - start
    tl.store(out_ptr, passed)
    tl.store(out_ptr + 1, nanoseconds_now() - nanoseconds)


def clock():
    """The multiprocessors' clock while one of them waits: turns nanoseconds into cycles."""
    out = torch.zeros(2, dtype=torch.int64, device=runtime.device)
    seen = []
    for _ in range(5):
        clock_kernel[(1,)](out, 20_000_000, num_warps=1)
        cycles, nanoseconds = out.tolist()
        seen.append(1000 * cycles / nanoseconds)
    return [{"measurement": "clock", "mhz": short(statistics.median(seen))}]
