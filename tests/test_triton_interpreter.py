"""The quickened interpreter is Triton's own: the same bits, accesses and errors, with each of the replaced names."""

import contextlib

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from kernels import _triton_interpreter, runtime
from kernels.lab import trace

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="the interpreter is not in use")


@contextlib.contextmanager
def tritons_own():
    _triton_interpreter.restore()
    try:
        yield
    finally:
        _triton_interpreter.quicken()


def both_ways(run):
    """What ``run()`` returns, quickened and by Triton's own functions."""
    quick = run()
    with tritons_own():
        own = run()
    return quick, own


@triton.jit
def helper(x, y):
    return tl.where(x > y, x - y, tl.cdiv(y, 2)) * tl.math.exp2(0.5)


@triton.jit
def reduced(a, b):
    return a + b * 2


@triton.jit
def everything(src, ints, small, dst, flags, n, scale, M: tl.constexpr, N: tl.constexpr):
    """Blocks and scalars of several types and ranks, wrapped integers, helpers, loops, reductions, products."""
    pid = tl.program_id(0)
    rows, columns = pid * M + tl.arange(0, M), tl.arange(0, N)
    mask = (rows[:, None] < n) & (columns < N - 1)[None, :]
    x = tl.load(src + rows[:, None] * N + columns[None, :], mask=mask, other=0.0)
    i = tl.load(ints + columns, mask=columns < n, other=3)
    wrapped = i * 1_000_000 * 3_000 - (i << 28)  # beyond 32 bits, where it wraps
    byte = tl.load(small + columns)
    x = x * scale + wrapped + byte.to(tl.float32) / 3 + helper(x, columns) - (i % 5) // 2
    total = tl.zeros((M,), tl.float32)
    for step in range(0, 3):
        total += tl.sum(x * step, axis=1) + tl.max(x, axis=1) - tl.min(x)
    square = tl.dot(x.to(tl.float16), tl.trans(x).to(tl.float16))
    x += tl.cumsum(x, axis=1)[:, None, :].reshape(M, N) * tl.sum(square, axis=0)[:, None]
    best = tl.argmax(x, axis=1) + tl.associative_scan(total, 0, reduced)
    best += (~(columns < 2) | (x == x) | (pid != 0)).to(tl.int8).sum() + byte.to(tl.uint8, bitcast=True).sum()
    x += (best + total)[:, None] + (columns * x)
    tl.store(dst + rows[:, None] * N + columns[None, :], x, mask=mask)
    tl.atomic_add(flags + rows, total.to(tl.bfloat16).to(tl.float32), mask=rows < n)


def arguments():
    draw = torch.Generator().manual_seed(1)
    return (
        torch.randn(48, 32, generator=draw),
        torch.randint(-9, 9, (32,), dtype=torch.int32, generator=draw),
        torch.randint(-9, 9, (32,), dtype=torch.int8, generator=draw),
        torch.zeros(48, 32),
        torch.zeros(48),
        41,
        0.7,
    )


def bits(tensor):
    return tensor.contiguous().view(torch.int8).tolist()


def test_the_same_bits_and_the_same_accesses():
    def run():
        given = arguments()
        recorded = trace(everything, (3,), *given, M=16, N=32)
        seen = [(a.kind, a.tensor, a.program, a.offsets.tolist(), a.line, a.sectors) for a in recorded.accesses]
        return [bits(tensor) for tensor in given[:5]], seen

    quick, own = both_ways(run)
    assert quick == own and len(quick[1]) == 15 and any(quick[0][3])


@triton.jit
def unlike(dst):
    tl.store(dst + tl.arange(0, 4), tl.arange(0, 4) + tl.arange(0, 8))


@triton.jit
def of_no_power(dst):
    tl.store(dst + tl.arange(0, 4), tl.zeros((3,), tl.float32))


@triton.jit
def of_no_axis(dst):
    tl.store(dst + tl.arange(0, 4), tl.full((), 1.0, tl.float32) + tl.zeros((), tl.float32).reshape(()))


@triton.jit
def of_no_number(dst, size):
    tl.store(dst + tl.arange(0, 4), tl.zeros((size,), tl.float32))


@triton.jit
def of_ranks(dst):
    tl.store(dst + tl.arange(0, 4), tl.zeros((2, 4), tl.float32) + tl.zeros((2, 2, 2), tl.float32))


@triton.jit
def pointers(dst):
    tl.store(dst + dst, 1.0)


@pytest.mark.parametrize("kernel", [unlike, of_no_power, of_no_axis, of_no_number, of_ranks, pointers])
def test_the_same_errors(kernel):
    def run():
        given = [torch.zeros(4)] + ([2.5] if kernel is of_no_number else [])
        try:
            kernel[(1,)](*given)
        except Exception as error:
            return type(error), str(error), given[0].tolist()
        return given[0].tolist()

    quick, own = both_ways(run)
    assert quick == own


@triton.jit
def product(dst, factor):
    tl.store(dst, tl.load(dst) * factor)


@pytest.mark.parametrize("debug", [False, True])
def test_an_overflow_is_noticed_where_triton_notices_it(monkeypatch, debug):
    monkeypatch.setattr(
        interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(debug=debug, sanitize_overflow=True)
    )

    def run():
        number = torch.full((1,), 1 << 30, dtype=torch.int32)
        try:
            product[(1,)](number, 4)
        except Exception as error:
            assert "int32 overflow detected for operation mul" in str(error)
            return "noticed"
        return number.tolist()

    quick, own = both_ways(run)
    assert quick == own == ("noticed" if debug else [0])


def test_outside_of_a_launch_the_language_is_as_it_was():
    everything[(1,)](*arguments(), M=16, N=32)
    with pytest.raises(ValueError, match="Did you forget to add @triton.jit"):
        tl.load(None)
    assert all(tl.core.is_builtin(f) for f in (tl.load, tl.math.exp2, tl.tensor.__add__))


def test_a_helper_that_knows_only_the_core_of_the_language(cell):
    """Its launch replaces functions of `triton.language`; those of `triton.language.core` follow when it is called."""
    helper = """
        import triton
        import triton.language.core as core
        del tl
        @triton.jit
        def one_more(x):
            return core.add(x, 1)
        """
    kernel = """
        @triton.jit
        def kernel(dst):
            tl.store(dst, one_more(tl.load(dst)))
        """

    def run():
        number = torch.full((1,), 3.0)
        cell(kernel, one_more=cell(helper)["one_more"])["kernel"][(1,)](number)
        return number.tolist()

    quick, own = both_ways(run)
    assert quick == own == [4.0]


def test_restoring_puts_every_name_back():
    with tritons_own():
        before = [vars(owner)[name] for owner, name in _triton_interpreter.NAMES]
        _triton_interpreter.quicken()
        replaced = [vars(owner)[name] for owner, name in _triton_interpreter.NAMES]
        _triton_interpreter.restore()
        after = [vars(owner)[name] for owner, name in _triton_interpreter.NAMES]
    assert before == after and not any(a is b for a, b in zip(before, replaced, strict=True))


def test_a_version_without_one_of_the_names_is_left_alone(monkeypatch):
    with tritons_own():
        monkeypatch.setattr(_triton_interpreter, "NAMES", (*_triton_interpreter.NAMES, (tl, "no such name")))
        before = tl.core.tensor.__init__
        _triton_interpreter.quicken()
        assert tl.core.tensor.__init__ is before and not _triton_interpreter.originals
        monkeypatch.undo()


@triton.jit
def masked_by_both(src, dst, n, rows, WAY: tl.constexpr):
    lanes, row = tl.arange(0, 8), tl.program_id(0)
    if WAY == "block first":
        mask = (lanes < n) & (row < rows)
    elif WAY == "number first":
        mask = (row < rows) & (lanes < n)
    elif WAY == "not":
        mask = ~(row >= rows) & (lanes < n)
    elif WAY == "or":
        mask = ((row >= rows) | (lanes < n)) & (row < rows)
    else:
        mask = (lanes < n) ^ (row >= rows)
        mask = mask & (row < rows)
    tl.store(dst + row * 8 + lanes, tl.load(src + lanes, mask=mask, other=-1.0), mask=mask)
    tl.store(dst + 24 + row * 8 + lanes, tl.load(src + lanes, mask=row < rows, other=-1.0), mask=row < rows)


@pytest.mark.parametrize("way", ["block first", "number first", "not", "or", "xor"])
def test_a_mask_of_a_block_and_a_number_is_a_mask(way):
    out = torch.full((48,), 7.0)
    masked_by_both[(3,)](torch.arange(8.0), out, 5, 2, way)
    row, lane = torch.arange(3)[:, None], torch.arange(8)
    assert torch.equal(out[:24].view(3, 8), torch.where((row < 2) & (lane < 5), lane, 7.0))
    assert torch.equal(out[24:].view(3, 8), torch.where(row < 2, lane, 7.0))
