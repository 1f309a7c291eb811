"""Lesson 03's turns: programs in flight, sectors of a warp, room on a multiprocessor, idle places of the last wave."""

import functools
import math

from kernels.check.steps import step


def _number(got, what: str) -> str:
    """What is wrong with an answer that is no number; empty if it is one."""
    return "" if isinstance(got, (int, float)) and not isinstance(got, bool) else f"{what} is {got!r}, not a number"


@step("03-in-flight", "how many programs keep the memory busy")
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
            return f"{said}. The {loads} loads of a program are under way together: count each"
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
        "shared_memory": 228 * KB // (shared_bytes + KB),
        "programs": 32,
    }


def _best(resident):
    return max(CHOICES, key=resident)


def _resident(rho, sigma, **changed):
    """Resident warps by the warps of a program, with some of the four limits changed, or left out (None).

    rho, sigma: registers of a thread, bytes of shared memory of a program.
    """
    found = {}
    for warps in CHOICES:
        allowed = _allowed(warps, rho, sigma)
        for name, limit in changed.items():
            allowed[name] = limit(sigma) if limit else math.inf
        found[warps] = warps * min(allowed.values())
    return found


def _programs(registers, shared_bytes):
    return {warps: count / warps for warps, count in _resident(registers, shared_bytes).items()}


def _in_part(rho, sigma):
    shared = 228 * KB / (sigma + KB)
    return {warps: warps * min(64 / warps, 65536 / (32 * warps * rho), shared, 32) for warps in CHOICES}


_ROOM_MISTAKES = [
    *(
        (
            functools.partial(_resident, **{name: None}),
            f"Your minimum leaves out the limit on {name.replace('_', ' ')}",
        )
        for name in ("programs", "threads", "shared_memory")
    ),
    (_programs, "You took the most programs; what hides latency are warps, so multiply by the warps of each"),
    (
        functools.partial(_resident, registers=None),  # without the 32 it never counts, either
        "Your minimum never meets the limit on registers, which are counted for each thread, 32 in a warp",
    ),
    (
        functools.partial(_resident, shared_memory=lambda sigma: 228 * KB // max(sigma, 1)),
        "Every program takes 1 kB of shared memory more than it asks for",
    ),
    (_in_part, "A program that has room only in part isn't resident: round each quotient down, with //"),
]


@step("03-rooms", "how many warps a program should have")
def rooms(answer):
    """best_warps(registers, shared_bytes). The last two: one program, so 16 warps; 1.6 of 16 warps, or 3.2 of 8."""
    small = ((16, 4 * KB), (32, 0), (128, 0), (40, 0), (32, 20 * KB), (32, 14592))  # the last: 14.25 kB, and 1 kB more
    cases = (*small, (64, 48 * KB), (168, 64 * KB), (80, 0), (255, 0), (32, 150 * KB), (80, 72 * KB))
    answers = [answer(*case) for case in cases]
    for (registers, shared), got in zip(cases, answers):
        asked = f"{registers} registers in a thread, {shared:,} bytes of shared memory"
        if got not in CHOICES:
            return f"For {asked} the result is {got!r}, not one of 1, 2, 4, 8, 16"
        homes = _resident(registers, shared)
        want = _best(homes.get)
        if got == want:
            continue
        said = f"{asked}: {want} for each program make {homes[want]} warps resident, and your {got} make {homes[got]}"
        for mistake, why in _ROOM_MISTAKES:
            if answers == [_best(mistake(*case).get) for case in cases]:
                return f"{said}. {why}"
        if want not in answers:
            return f"{said}. {want} warps for each program are a choice, too"
        if homes[got] == homes[want]:
            return f"{said}. Of equals take the smallest: max() keeps the first"
        return (
            f"{said}. A multiprocessor holds the least of what threads, registers, shared memory and 32 programs allow"
        )
    return ""


@step("03-idle", "which share of the places is idle")
def idle(answer):
    """idle(M, N, tile_m, tile_n, multiprocessors)."""
    cases = (
        (4096, 4096, 128, 128, 132),
        (2048, 2048, 128, 256, 132),
        (2176, 2048, 128, 256, 132),
        (100, 100, 64, 64, 3),
        (1536, 1408, 128, 128, 132),  # one whole wave
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
        if math.isclose(got, 1 - tiles / ((waves + 1) * count), abs_tol=1e-9):
            return f"{said}. The {tiles} tiles fill {waves * count} places, and no further wave begins"
        if math.isclose(got, 0, abs_tol=1e-9):
            return f"{said}. {tiles} tiles are no whole number of waves of {count}: round the waves up"
        return f"{said}. {tiles} tiles need {waves} × {count} = {waves * count} places"
    return ""
