"""Latency, bytes in flight, the caches, and what a warp asks for at once."""

import statistics

import torch
import triton
import triton.language as tl

from benchmarks import harness
from benchmarks.experiments.common import BUFFER, GB, KB, LINE, MB, once, processors, random_words, short
from kernels import runtime

# 1. Latency: each load's address is what the load before it brought.


@triton.jit
def chase_kernel(next_ptr, at_ptr, steps):
    at = tl.load(at_ptr)
    for _ in range(steps):
        at = tl.load(next_ptr + at)
    tl.store(at_ptr, at)


def random_cycle(nbytes):
    """int32 tensor whose elements, ``LINE`` bytes apart, each hold the index of the next of a random walk through all."""
    apart = LINE // 4
    count = nbytes // LINE
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


#: dtype, elements a thread, warps a program: the last is as wide as the one before, and has as many programs as the second
WORDS = [(torch.int16, 1, 4), (torch.int32, 1, 4), (torch.int64, 1, 4), (torch.int32, 4, 4), (torch.int32, 4, 1)]


def bytes_a_load():
    """Bandwidth against the bytes that a thread loads at once: a copy, and a read of one load at a time by every thread."""
    x = random_words(GB)
    out = torch.empty_like(x)
    rows = []
    for dtype, elements, num_warps in WORDS:
        source, target = x.view(dtype), out.view(dtype)
        block = 32 * num_warps * elements
        width = dtype.itemsize * elements
        ms = harness.milliseconds(
            lambda: copy_kernel[(source.numel() // block,)](source, target, BLOCK=block, num_warps=num_warps),  # noqa: B023
            warmup=10,
            rep=60,
        )
        row = {"measurement": "bytes_a_load", "bytes_a_thread": width, "ms": short(ms)}
        name = "copy" if num_warps == 4 else "copy, one warp"
        rows.append(row | {"kernel": name, "tb_per_s": short(2e-9 * x.nbytes / ms)})
        if num_warps < 4:
            continue
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


def sectors_a_warp(stride):
    """How many sectors of 32 bytes the 32 threads of a warp ask for when they load every ``stride``-th element of 4."""
    return len({thread * stride * 4 // 32 for thread in range(32)})


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
