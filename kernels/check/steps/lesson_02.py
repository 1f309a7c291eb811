"""Lesson 02's turns: programs in flight, sectors of a warp, room on a multiprocessor, idle places of the last wave."""

import math

from kernels.check.steps import step


def _number(got, what: str) -> str:
    """What is wrong with an answer that is no number; empty if it is one."""
    return "" if isinstance(got, (int, float)) and not isinstance(got, bool) else f"{what} is {got!r}, not a number"


@step("02-in-flight", "how many programs keep the memory busy")
def in_flight(answer):
    """programs(block, loads, element_bytes, latency_ns, tb_per_s)."""
    cases = ((1024, 1, 4, 336, 4.28), (32, 2, 4, 336, 4.28), (512, 3, 2, 500, 3.2), (1000, 1, 4, 410, 5.0))
    for block, loads, size, ns, rate in cases:
        got = answer(block, loads, size, ns, rate)
        asked = f"{loads} load{'s' * (loads > 1)} of {block} lanes × {size} bytes, {ns} ns, {rate} TB/s"
        if wrong := _number(got, f"For {asked} the result"):
            return wrong
        exact = ns * rate * 1e3 / (block * loads * size)
        want = math.ceil(exact)
        if got in (math.ceil(exact * (1 - 1e-9)), math.ceil(exact * (1 + 1e-9))):  # any order of the factors will do
            continue
        said = f"{asked}: {want:,} programs, and you say {got:,.6g}"
        if math.isclose(got, exact, rel_tol=1e-6):
            return f"{said}. There is no fraction of a program: round up"
        if got == want - 1:
            return f"{said}. Rounded down, they are not quite enough: round up"
        if loads > 1 and math.isclose(got, exact * loads, rel_tol=0.02, abs_tol=1):
            return f"{said}. All {loads} loads of a program are under way together: count each"
        if math.isclose(got, exact * size, rel_tol=0.02, abs_tol=1):
            return f"{said}. The pipe holds bytes, and a lane has {size} of them"
        if any(
            math.isclose(got, max(1, exact * 10.0**power), rel_tol=0.02) for power in (-12, -9, -6, -3, 3, 6, 9, 12)
        ):
            return f"{said}. Mind the units: 1 ns × 1 TB/s is 1e-9 s × 1e12 bytes per second, 1,000 bytes"
        each = block * loads * size
        return (
            f"{said}. Bytes in flight are latency × bandwidth, {ns * rate * 1e3:,.0f}; a program has {each:,} of them"
        )
    return ""


KB = 1024
CHOICES = (1, 2, 4, 8, 16)


def _allowed(warps, registers, shared_bytes):
    """How many programs each thing that they need allows on a multiprocessor."""
    return {
        "threads": 2048 // (32 * warps),
        "registers": 65536 // (32 * warps * registers),
        "shared memory": 228 * KB // (shared_bytes + KB),
        "programs": 32,
    }


def _best(resident):
    return max(CHOICES, key=resident)


@step("02-rooms", "how many warps a program should have")
def rooms(answer):
    """best_warps(registers, shared_bytes)."""
    cases = ((16, 4 * KB), (32, 0), (128, 0), (40, 0), (32, 20 * KB), (64, 48 * KB), (168, 64 * KB), (80, 0), (255, 0))
    for registers, shared in cases:
        got = answer(registers, shared)
        asked = f"{registers} registers in a thread, {shared:,} bytes of shared memory"
        if got not in CHOICES:
            return f"For {asked} the result is {got!r}, not one of 1, 2, 4, 8, 16"
        allowed = {warps: _allowed(warps, registers, shared) for warps in CHOICES}
        homes = {warps: warps * min(allowed[warps].values()) for warps in CHOICES}
        want = _best(homes.get)
        if got == want:
            continue
        said = f"{asked}: programs of {want} warps make {homes[want]} resident, and yours, of {got}, {homes[got]}"
        if homes[got] == homes[want]:
            return f"{said}. Of equals take the smallest: max() keeps the first"
        for name in ("programs", "threads", "registers", "shared memory"):
            if got == _best(lambda w: w * min(v for n, v in allowed[w].items() if n != name)):  # noqa: B023
                least = {w: allowed[w][name] for w in CHOICES}[got]
                return f"{said}. There {least} fit by the limit on {name}, which your minimum leaves out"
        if got == _best(lambda w: min(allowed[w].values())):  # noqa: B023
            return f"{said}. You took the most programs; what hides latency are warps, so multiply by the warps of each"
        if got == _best(lambda w: w * min(2048 // (32 * w), 65536 // (w * registers), allowed[w]["shared memory"], 32)):  # noqa: B023
            return f"{said}. Registers are counted for each thread, and a warp has 32 of them"
        return (
            f"{said}. A multiprocessor holds the least of what threads, registers, shared memory and 32 programs allow"
        )
    return ""


@step("02-idle", "which share of the places is idle")
def idle(answer):
    """idle(M, N, tile_m, tile_n, multiprocessors)."""
    cases = (
        (2048, 2048, 128, 256, 132),
        (2176, 2048, 128, 256, 132),
        (100, 100, 64, 64, 3),
        (4096, 4096, 128, 128, 132),
        (1, 1, 16, 16, 132),
    )
    for M, N, m, n, count in cases:
        got = answer(M, N, m, n, count)
        asked = f"{M} × {N} in tiles of {m} × {n} on {count} multiprocessors"
        if wrong := _number(got, f"{asked}: the result"):
            return wrong
        tiles = math.ceil(M / m) * math.ceil(N / n)
        waves = math.ceil(tiles / count)
        want = 1 - tiles / (waves * count)
        if math.isclose(got, want, abs_tol=1e-9):
            continue
        said = f"{asked}: {want:.1%} of the places are idle, and you say {got:.1%}".replace("%", " %")
        if math.isclose(got, 1 - want, abs_tol=1e-9):
            return f"{said}. That is the busy share"
        if math.isclose(got, 1 - (tiles - (waves - 1) * count) / count, abs_tol=1e-9):
            return f"{said}. That is the share of the last wave alone; the full waves before it count too"
        if tiles >= count and math.isclose(got, 1 - tiles / (tiles // count * count), abs_tol=1e-9):
            return f"{said}. A wave that is not full takes its time all the same: round the number of waves up"
        for other in {(M // m) * (N // n), math.ceil(M * N / (m * n)), M * N / (m * n)} - {tiles}:
            places = math.ceil(other / count) * count
            if places and math.isclose(got, 1 - other / places, abs_tol=1e-9):
                return f"{said}. There are {tiles} tiles: a ragged edge has its own, so round up along each axis"
        return f"{said}. {tiles} tiles need {waves} waves of {count} places, {waves * count} in all"
    return ""
