"""A race between lanes of one program is found with both lines and its element, and nothing else is called one."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.lab import races, trace
from kernels.lab.accesses import Operand

N = 16


@triton.jit
def neighbour(x, out, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, 2.0 * tl.load(out + i))
    if BARRIER:
        tl.debug_barrier()
    tl.store(out + i, tl.load(x + (i + 1) % N))


@triton.jit
def shifted(x, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    left = tl.load(x + i + 1, mask=i < N - 1, other=0.0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + i, left)


@triton.jit
def stored_twice(x, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, 1.0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + N - 1 - i, 2.0)


@triton.jit
def transposed(x, BARRIER: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(x + i * N + j, 1.0 * i)
    if BARRIER:
        tl.debug_barrier()
    tl.load(x + j * N + i)


@triton.jit
def scalar_to_block(x, BARRIER: tl.constexpr, N: tl.constexpr):
    tl.store(x + 3, 1.0)
    if BARRIER:
        tl.debug_barrier()
    tl.load(x + tl.arange(0, N))


@triton.jit
def block_of_another_shape(x, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, 1.0)
    if BARRIER:
        tl.debug_barrier()
    tl.load(x + i[:, None])


@triton.jit
def carried_by_memory(x, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for _ in range(3):
        y = tl.load(x + (i + 1) % N)
        if BARRIER:
            tl.debug_barrier()
        tl.store(x + i, y)
        if BARRIER:
            tl.debug_barrier()


@triton.jit
def updated_then_read(x, BARRIER: tl.constexpr, N: tl.constexpr):
    tl.atomic_add(x + tl.arange(0, N) * 0, 1.0)
    if BARRIER:
        tl.debug_barrier()
    tl.load(x)


@triton.jit
def word_then_halves(x, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N // 2)
    tl.store(x.to(tl.pointer_type(tl.int64)) + i, i.to(tl.int64))
    if BARRIER:
        tl.debug_barrier()
    tl.load(x + (2 * i + 3) % N)


RACING = {  # kernel -> element, kinds and lines, as far from the first line of the kernel, of each race
    neighbour: [(0, ("store", "load"), (2, 5))],
    shifted: [(1, ("load", "store"), (2, 5))],
    stored_twice: [(0, ("store", "store"), (2, 5))],
    transposed: [(1, ("store", "load"), (2, 5))],
    scalar_to_block: [(3, ("store", "load"), (1, 4))],
    block_of_another_shape: [(0, ("store", "load"), (2, 5))],
    carried_by_memory: [(0, ("load", "store"), (3, 6))],
    updated_then_read: [(0, ("atomic", "load"), (1, 4))],
    word_then_halves: [(1, ("store", "load"), (2, 5))],
}


def arguments(kernel):
    x = torch.zeros(N * N, device=runtime.device)
    return (x, torch.zeros(N, device=runtime.device)) if kernel is neighbour else (x,)


def first_line(kernel):
    return kernel.fn.__code__.co_firstlineno + 1  # below the decorator


@pytest.mark.parametrize("kernel", RACING, ids=lambda kernel: kernel.fn.__name__)
def test_a_race_has_its_lines_its_element_and_its_cure(kernel):
    found = trace(kernel, (2,), *arguments(kernel), BARRIER=False, N=N).races_inside()
    begin = first_line(kernel)
    assert [(r.element, r.kinds, tuple(n - begin for n in r.lines)) for r in found] == RACING[kernel]
    assert {r.tensor for r in found} == {"x"} and {r.program for r in found} == {(0, 0, 0)}
    for race in found:
        assert all(kind in source for kind, source in zip(race.kinds, race.sources, strict=True))
    assert trace(kernel, (2,), *arguments(kernel), BARRIER=True, N=N).races_inside() == []


@triton.jit
def in_step(x, total, N: tl.constexpr):
    """Each lane, a scalar too, comes back to its own elements; updates of one element are atomic; all read one."""
    i = tl.arange(0, N)
    for _ in range(3):
        tl.store(x + i, tl.load(x + i) + 1.0, mask=i < N - 3)
        tl.store(total, tl.load(total) + 1.0)
        tl.store(total + tl.zeros([1, 1], tl.int32), 1.0)
        tl.atomic_add(total + 1 + i * 0, 1.0)
        tl.atomic_max(total + 1, 7.0)
        tl.load(total + 2 + i * 0)
        tl.load(total + 2)


@triton.jit
def one_program_after_the_other(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + (i + tl.program_id(0)) % N, 1.0)


@triton.jit
def in_two_halves(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, 1.0)
    tl.load(y + i)


def test_what_is_no_race():
    x, total = torch.zeros(N), torch.zeros(3)
    assert trace(in_step, (2,), x, total, N=N).races_inside() == []
    assert trace(one_program_after_the_other, (4,), x, N=N).races_inside() == []
    assert trace(in_two_halves, (1,), x, total.new_zeros(N), N=N).races_inside() == []
    with trace.recording() as t:  # launches come one after the other
        stored_twice[(1,)](x, BARRIER=True, N=N)
        stored_twice[(1,)](x, BARRIER=True, N=N)
    assert t.races_inside() == []


@pytest.mark.skipif(not runtime.interpreted, reason="a child process has copies of its own")
def test_two_arguments_that_share_memory_are_one():
    x = torch.zeros(2 * N)
    (race,) = trace(in_two_halves, (1,), x[:N], x[1 : N + 1], N=N).races_inside()
    assert (race.tensor, race.element, race.kinds) == ("x", 1, ("store", "load"))
    (race,) = trace(in_two_halves, (1,), x[::2], x[::2].view(torch.int32)[3:], N=N // 2).races_inside()
    assert (race.tensor, race.element) == ("x", 3)
    assert trace(in_two_halves, (1,), x[:N], x[N:], N=N).races_inside() == []
    assert trace(in_two_halves, (1,), x[::2], x[1::2], N=N).races_inside() == []


def events(seed: int):
    """Some accesses to 24 bytes: blocks of two shapes and a scalar, words of one, two and four bytes, and barriers."""
    draw = np.random.default_rng(seed)
    for _ in range(draw.integers(2, 9)):
        shape = ((4,), (2, 2), (1,))[draw.integers(3)]
        nbytes = (1, 2, 4)[draw.integers(3)]
        lanes = np.flatnonzero(draw.random(np.prod(shape)) < 0.7)
        places = draw.integers(24 // nbytes, size=len(lanes)).astype(np.uint64) * np.uint64(nbytes)
        kind = ("load", "load", "store", "atomic")[draw.integers(4)]
        yield races.Touched(kind, int(draw.integers(4)), "", 1, shape, nbytes, places + np.uint64(4096), lanes)


def by_the_definition(touched) -> set[frozenset]:
    """The pairs of lines that race, by looking at each pair of lanes of each pair of accesses."""
    found = set()
    for j, second in enumerate(touched):
        for first in touched[:j]:
            if {first.kind, second.kind} in ({"load"}, {"atomic"}):
                continue
            for at, lane in zip(first.addresses.tolist(), first.lanes.tolist(), strict=True):
                for other_at, other in zip(second.addresses.tolist(), second.lanes.tolist(), strict=True):
                    if at < other_at + second.nbytes and other_at < at + first.nbytes:
                        if first.shape != second.shape or lane != other:
                            found.add(frozenset(((first.line, first.kind), (second.line, second.kind))))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_what_the_definition_says(seed):
    for number in range(10):
        touched = list(events(100 * seed + number))
        found = []
        interval = races.BarrierInterval(found)
        interval.operands[1] = Operand("x", (24,), (1,), 1, "torch.int8"), 4096
        for one in touched:
            interval.add((0, 0, 0), one)
        interval.end()
        pairs = {frozenset(zip(race.lines, race.kinds, strict=True)) for race in found}
        assert pairs == by_the_definition(touched) and len(found) == len(pairs)
