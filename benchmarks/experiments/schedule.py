"""Waves of programs, where each ran and when, and what hides latency on one multiprocessor."""


import torch
import triton
import triton.language as tl

from benchmarks import harness
from benchmarks.experiments.clocks import cycles_now, multiprocessor, nanoseconds_now
from benchmarks.experiments.common import processors, short
from benchmarks.experiments.products import dot_call
from kernels import runtime

# 6. Waves.


@triton.jit
def wait_kernel(log_ptr, cycles):
    """Occupies its place for a number of cycles and does nothing; notes where and when."""
    pid = tl.program_id(0)
    moment, start = nanoseconds_now(), cycles_now()
    passed = start - start
    while passed < cycles:
        passed = cycles_now() - start
    tl.store(log_ptr + 3 * pid, multiprocessor().to(tl.int64))
    tl.store(log_ptr + 3 * pid + 1, moment)
    tl.store(log_ptr + 3 * pid + 2, nanoseconds_now())


WAVE_TILE = (128, 128, 256)  # 128 kB of operands: a multiprocessor has no room for a second program


def waves():
    """Time of a launch against its number of programs, all alike: those that fill a multiprocessor, and those of 512 threads,
    of which four would fit by their threads. (Three were recorded: that has no explanation yet, and no lesson uses it.)"""
    rows = []
    count = processors()
    borders = {waves * count + more for waves in range(1, 5) for more in (-1, 0, 1, 8)} | {8 * count, 8 * count + 1}
    quarters = {round(part * count / 4) for part in range(1, 24, 2)}
    between = {1, 2, 4, 8, 16, 5 * count, 6 * count, 7 * count} | quarters
    numbers = sorted(borders | between)
    log = torch.zeros(3 * max(numbers), dtype=torch.int64, device=runtime.device)
    for programs in numbers:
        row = {"measurement": "waves", "programs": programs}
        call, _ = dot_call(WAVE_TILE, torch.bfloat16, "tf32", 8, programs, 150)
        ms = harness.milliseconds(call, warmup=5, rep=20)
        rows.append(row | {"kernel": "product", "resident": 1, "us": short(1e3 * ms)})
        # 512 threads of 2048: four programs a multiprocessor
        ms = harness.milliseconds(lambda: wait_kernel[(programs,)](log, 40_000, num_warps=16), warmup=5, rep=20)  # noqa: B023
        rows.append(row | {"kernel": "wait", "resident": 4, "us": short(1e3 * ms)})
    return rows


def schedule():
    """Which multiprocessor ran which program from when to when, in microseconds from the first one's start."""
    programs = 2 * processors() + processors() // 4
    rows = []
    for kernel in ("product", "wait"):
        log = torch.zeros(3 * programs, dtype=torch.int64, device=runtime.device)
        if kernel == "product":
            call, _ = dot_call(WAVE_TILE, torch.bfloat16, "tf32", 8, programs, 150, log)
        else:
            call = lambda: wait_kernel[(programs,)](log, 40_000, num_warps=16)  # noqa: B023
        for _ in range(3):
            call()
        ran = log.view(programs, 3).tolist()
        first = min(start for _, start, _ in ran)
        ran = [[sm, round((start - first) / 1e3, 2), round((end - first) / 1e3, 2)] for sm, start, end in ran]
        rows.append({"measurement": "schedule", "kernel": kernel, "programs": programs, "ran": ran})
    return rows


# 7. What hides latency: warps, or independent work in one warp.


@triton.jit
def chain_kernel(out_ptr, steps, factor, CHAINS: tl.constexpr, BLOCK: tl.constexpr):
    """``CHAINS`` independent chains of multiply-adds in every thread, each step needing the one before it."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = offs.to(tl.float32)
    b, c, d = a + 1, a + 2, a + 3
    for _ in range(steps):
        for _ in tl.static_range(16):
            a = a * factor + 1.0
            if CHAINS > 1:
                b = b * factor + 1.0
            if CHAINS > 2:
                c = c * factor + 1.0
                d = d * factor + 1.0
    tl.store(out_ptr + offs, (a + b) + (c + d))


def occupancy():
    """Multiply-adds a second against the warps on a multiprocessor, for threads with 1, 2 and 4 independent chains."""
    rows = []
    steps, warps = 2000, 4
    for chains in (1, 2, 4):
        for resident in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16):
            programs = resident * processors()
            out = torch.empty(programs * 32 * warps, device=runtime.device)
            ms = harness.milliseconds(
                lambda: chain_kernel[(programs,)](out, steps, 0.5, CHAINS=chains, BLOCK=32 * warps, num_warps=warps),  # noqa: B023
                warmup=10,
                rep=30,
            )
            operations = 2 * chains * 16 * steps * out.numel()
            rows.append(
                {
                    "measurement": "occupancy",
                    "chains": chains,
                    "programs_a_multiprocessor": resident,
                    "warps_a_multiprocessor": resident * warps,
                    "tflop_per_s": short(1e-9 * operations / ms),
                    "ms": short(ms),
                }
            )
    return rows
