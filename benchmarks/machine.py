"""What this GPU is, in numbers: latencies, rates, waves and the price of a launch: ``python -m benchmarks.machine``.

Each function whose name is in ``MEASUREMENTS`` is one experiment of lesson 02 and gives its rows. Nothing here is tuned:
the kernels are the smallest that isolate one property of the machine, and each row says how it was launched.
"""

import argparse
import re
import statistics
import time

import torch
import triton
import triton.language as tl

from benchmarks import harness
from kernels import runtime

LINE = 128  # bytes: what the L1 cache keeps together
KB, MB, GB = 2**10, 2**20, 2**30
BUFFER = 4 * GB  # far more than any cache holds


def processors():
    """Multiprocessors of this GPU."""
    return torch.cuda.get_device_properties(runtime.device).multi_processor_count


def device():
    """The sizes that the driver reports."""
    given = torch.cuda.get_device_properties(runtime.device)
    fields = {
        "multiprocessors": "multi_processor_count",
        "warp_size": "warp_size",
        "threads_a_multiprocessor": "max_threads_per_multi_processor",
        "registers_a_multiprocessor": "regs_per_multiprocessor",
        "shared_bytes_a_multiprocessor": "shared_memory_per_multiprocessor",
        "shared_bytes_a_program": "shared_memory_per_block_optin",
        "l2_bytes": "L2_cache_size",
        "dram_bytes": "total_memory",
    }
    return {name: getattr(given, field, None) for name, field in fields.items()}


def once(fn):
    """Milliseconds of one ``fn()`` on the GPU, with whatever the caches hold."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    fn()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def warm_up():
    """A GPU that was idle takes a while to raise its clock."""
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device=runtime.device)
    for _ in range(200):
        a @ a
    torch.cuda.synchronize()


def short(number):
    """Four digits: no time is known better."""
    return float(f"{number:.4g}")


def random_words(nbytes):
    """int32 tensor of ``nbytes`` with random values."""
    return torch.randint(-(2**31), 2**31 - 1, (nbytes // 4,), dtype=torch.int32, device=runtime.device)


# The machine's own clocks and numbers.


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


# 1. Latency: each load's address is what the load before it brought.


@triton.jit
def chase_kernel(next_ptr, at_ptr, steps):
    at = tl.load(at_ptr)
    for _ in range(steps):
        at = tl.load(next_ptr + at)
    tl.store(at_ptr, at)


def random_cycle(nbytes, distance=LINE):
    """int32 tensor whose elements, ``distance`` bytes apart, each hold the index of the next of a random walk through all."""
    apart = distance // 4
    count = nbytes // distance
    order = torch.randperm(count, device=runtime.device, dtype=torch.int32)
    following = torch.zeros(count * apart, dtype=torch.int32, device=runtime.device)
    following[order.long() * apart] = order.roll(-1) * apart
    return following


SETS = [
    *(k * KB for k in (4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 384, 512)),
    *(m * MB for m in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 256, 512, 1024)),
]


def latency():
    """Nanoseconds from one load to the next that needs its answer, against the bytes among which the walk goes round.

    A launch takes time, too, and begins with an empty L1 cache: two walks that differ by ``steps`` are subtracted.
    """
    rows = []
    at = torch.zeros(1, dtype=torch.int32, device=runtime.device)
    for nbytes in SETS:
        following = random_cycle(nbytes)
        at.zero_()
        walk = lambda steps: chase_kernel[(1,)](following, at, steps, num_warps=1)  # noqa: B023
        lines = nbytes // LINE
        first = 2 * lines if lines <= 4096 else 1024
        steps = 16384
        if nbytes <= 128 * MB:
            walk(lines)  # what fits into L2 is there now
        walk(first)
        torch.cuda.synchronize()
        times = []
        for _ in range(7):
            short_walk = once(lambda: walk(first))  # noqa: B023
            times.append(1e6 * (once(lambda: walk(first + steps)) - short_walk) / steps)  # noqa: B023
        rows.append({"measurement": "latency", "bytes": nbytes, "ns": short(statistics.median(times))})
    return rows


# 2. Bytes in flight: a program asks for BLOCK elements, and for the next ones only when these are there.


@triton.jit
def in_flight_kernel(x_ptr, out_ptr, rounds, zero, BLOCK: tl.constexpr, WORD: tl.constexpr):
    """``WORD`` neighbouring elements a thread and load. ``zero`` is 0, which the compiler doesn't know: it has to have a
    value before it can compute the next one's address."""
    pid = tl.program_id(0)
    step = tl.num_programs(0) * BLOCK
    word = tl.arange(0, WORD)[None, :]
    lanes = tl.arange(0, BLOCK // WORD) * WORD
    moved = lanes * 0
    total = tl.zeros([BLOCK // WORD, WORD], x_ptr.dtype.element_ty)
    for _ in range(rounds):
        x = tl.load(x_ptr + tl.multiple_of(moved + (pid * BLOCK + lanes), [WORD])[:, None] + word)
        total += x
        moved += step + tl.max(x & zero, axis=1).to(tl.int32)
    tl.store(out_ptr + pid * BLOCK + lanes[:, None] + word, total)


PROGRAMS = (1, 4, 16, 33, 66, 132, 264, 528, 1056, 2112, 4224)
IN_FLIGHT = [(block, programs) for block in (32, 128, 256, 512) for programs in PROGRAMS]


def bytes_in_flight():
    """Bandwidth of reading DRAM against the bytes that were asked for and have not come: programs times bytes a program."""
    x = random_words(BUFFER)
    rows = []
    for block, programs in IN_FLIGHT:
        out = torch.empty(programs * block, dtype=torch.int32, device=runtime.device)
        rounds = min(2000, x.numel() // (programs * block))
        ms = harness.milliseconds(
            lambda: in_flight_kernel[(programs,)](  # noqa: B023
                x, out, rounds, 0, BLOCK=block, WORD=min(4, block // 32), num_warps=1, num_stages=1  # noqa: B023
            ),
            warmup=10,
            rep=40,
        )
        rows.append(
            {
                "measurement": "bytes_in_flight",
                "programs": programs,
                "bytes_a_program": 4 * block,
                "bytes_in_flight": 4 * block * programs,
                "tb_per_s": short(4e-9 * block * programs * rounds / ms),
                "ns_a_round": short(1e6 * ms / rounds),
            }
        )
    return rows


# 3. Bandwidth against the working set: every program reads its own blocks round and round.


@triton.jit
def read_again_kernel(x_ptr, out_ptr, count, rounds, BLOCK: tl.constexpr, CACHE: tl.constexpr):
    pid, programs = tl.program_id(0), tl.num_programs(0)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    which = 0
    for _ in range(rounds):
        total += tl.load(x_ptr + (which * programs + pid) * BLOCK + lanes, cache_modifier=CACHE)
        which += 1
        which = tl.where(which == count, 0, which)
    tl.store(out_ptr + pid * BLOCK + lanes, total)


def working_set():
    """Bandwidth against how many bytes all programs together read again and again, with the L1 caches and without.

    Programs with a single block keep it in registers: the first row of each series says nothing about a cache.
    """
    block, warps, programs = 2048, 8, 4 * processors()
    x = random_words(BUFFER)
    out = torch.empty(programs * block, dtype=torch.int32, device=runtime.device)
    rows = []
    for cache in ("", ".cg"):  # .cg: kept in L2 alone
        for count in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32, 64, 128, 256):
            rounds = count * -(-2000 // count)
            ms = harness.milliseconds(
                lambda: read_again_kernel[(programs,)](  # noqa: B023
                    x, out, count, rounds, BLOCK=block, CACHE=cache, num_warps=warps, num_stages=1  # noqa: B023
                ),
                warmup=10,
                rep=50,
            )
            rows.append(
                {
                    "measurement": "working_set",
                    "caches": "L2" if cache else "L1 and L2",
                    "bytes": 4 * block * programs * count,
                    "bytes_a_multiprocessor": 4 * block * 4 * count,
                    "tb_per_s": short(4e-9 * block * programs * rounds / ms),
                }
            )
    return rows


# 4. What a warp asks for at once.


@triton.jit
def copy_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))


WORDS = [(torch.int16, 1), (torch.int32, 1), (torch.int64, 1), (torch.int32, 4)]  # dtype and elements a thread


def bytes_a_load():
    """Bandwidth against the bytes that a thread loads at once: a copy, and a read of one load at a time by every thread."""
    x = random_words(GB)
    out = torch.empty_like(x)
    rows = []
    for dtype, elements in WORDS:
        source, target = x.view(dtype), out.view(dtype)
        block = 128 * elements
        width = dtype.itemsize * elements
        ms = harness.milliseconds(
            lambda: copy_kernel[(source.numel() // block,)](source, target, BLOCK=block, num_warps=4),  # noqa: B023
            warmup=10,
            rep=60,
        )
        row = {"measurement": "bytes_a_load", "bytes_a_thread": width, "ms": short(ms)}
        rows.append(row | {"kernel": "copy", "tb_per_s": short(2e-9 * x.nbytes / ms)})
        programs = 16 * processors()
        rounds = min(400, source.numel() // (programs * block))
        total = out.view(dtype)
        read = lambda: in_flight_kernel[(programs,)](  # noqa: B023
            source, total, rounds, 0, BLOCK=block, WORD=elements, num_warps=4, num_stages=1  # noqa: B023
        )
        ms = harness.milliseconds(read, warmup=10, rep=60)
        row = {"measurement": "bytes_a_load", "bytes_a_thread": width, "ms": short(ms)}
        moved = programs * 128 * width
        rows.append(row | {"kernel": "read", "bytes_in_flight": moved, "tb_per_s": short(1e-9 * moved * rounds / ms)})
    return rows


@triton.jit(do_not_specialize=["stride"])
def strided_kernel(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    """Sum of a block of every ``stride``-th element; one 4-byte load a thread and element, whatever the stride."""
    pid = tl.program_id(0)
    offs = (pid * BLOCK + tl.arange(0, BLOCK)) * stride
    tl.store(out_ptr + pid, tl.sum(tl.load(x_ptr + offs), axis=0))


def sectors_a_warp(stride, element=4):
    """How many sectors of 32 bytes the 32 threads of a warp ask for when they load every ``stride``-th element."""
    return len({thread * stride * element // 32 for thread in range(32)})


def strides():
    """Time of reading 2^25 elements of which every ``stride``-th is wanted."""
    x = random_words(BUFFER)
    n, block = 2**25, 1024
    out = torch.empty(n // block, dtype=torch.int32, device=runtime.device)
    rows = []
    for stride in (1, 2, 4, 8, 16, 32):
        ms = harness.milliseconds(
            lambda: strided_kernel[(n // block,)](x, out, stride, BLOCK=block, num_warps=4),  # noqa: B023
            warmup=10,
            rep=60,
        )
        rows.append(
            {
                "measurement": "strides",
                "stride": stride,
                "sectors_a_warp": sectors_a_warp(stride),
                "ms": short(ms),
                "useful_tb_per_s": short(4e-9 * n / ms),
                "sector_tb_per_s": short(1e-9 * n * sectors_a_warp(stride) / ms),
            }
        )
    return rows


# 5. Tensor cores.


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


MEASUREMENTS = {
    f.__name__: f
    for f in (clock, puzzle, latency, bytes_in_flight, working_set, bytes_a_load, strides, tensor_cores, matmul_tiles, waves,
              schedule, occupancy, launches, add_sizes)
}  # fmt: skip


def measure(case, machine, rounds):
    """The rows of one measurement; ``machine`` and ``rounds`` are what every benchmark is given."""
    torch.manual_seed(0)
    warm_up()
    return MEASUREMENTS[case]()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=harness.RESULTS, help="folder for machine.json")
    parser.add_argument("--only", default="", help="only the measurements this regular expression is found in")
    given = parser.parse_args()
    harness.require_gpu()
    machine = harness.machine()
    selected = [name for name in MEASUREMENTS if re.search(given.only, name)]
    rows, failed = [], []
    measured = harness.measure_all("benchmarks.machine", selected, machine, 1)
    for name, found, error in harness.progress(measured, total=len(selected), desc="machine"):
        rows += found
        if error:
            failed.append({"measurement": name, "error": error})
        print(name, error or f"{len(found)} rows", flush=True)
        for row in found:
            print("  ", {key: value for key, value in row.items() if key not in ("measurement", "ran")})
    record = {"machine": machine, "device": device(), "rows": rows, "failed": failed}
    print(machine, harness.write("machine", record, given.out))


if __name__ == "__main__":
    main()
