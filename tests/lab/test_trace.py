"""``trace`` counts what kernels request, to the byte, and finds every access outside its tensor."""

import tracemalloc

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.lab import Trace, trace
from kernels.lab.accesses import Access, Launch, Operand


@triton.jit
def copy(src, dst, n, BLOCK: tl.constexpr, MASKED: tl.constexpr = True):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(dst + i, tl.load(src + i, mask=i < n, other=0.0), mask=i < n)
    else:
        tl.store(dst + i, tl.load(src + i))


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        tile_a = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        tile_b = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        acc += tl.dot(tile_a, tile_b, input_precision="ieee")
    tl.store(c + m * N + n, acc, mask=(m < M) & (n < N))


@triton.jit
def strided(src, dst, stride_m, stride_n, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(dst + m * N + n, tl.load(src + m * stride_m + n * stride_n))


@triton.jit
def add_all(src, total, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(src + i)))


@triton.jit
def all_store_to_the_first(dst):
    tl.store(dst, tl.program_id(0).to(tl.float32))


@triton.jit
def shift_left_in_place(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i + 1))


@triton.jit
def far_away(src, dst, other, DISTANCE: tl.constexpr):
    i = tl.arange(0, 4)
    tl.store(dst + i, tl.load(src + i.to(tl.int64) * DISTANCE, mask=i < 3, other=other))
    tl.store(dst + (i + 1).to(tl.int64) * DISTANCE, 1.0)
    tl.atomic_add(dst - DISTANCE + i, 1.0)
    tl.atomic_cas(src + DISTANCE, 0, 1)


@triton.jit
def walk(src, dst, ends, stride, WIDE: tl.constexpr, OF_TRITON: tl.constexpr):
    first, last = tl.load(ends), tl.load(ends + 1)
    if WIDE:
        last = last.to(tl.int64)
    if OF_TRITON:
        for i in tl.range(first, last, num_stages=2):
            tl.store(dst + i, tl.load(src + i * stride))
    else:
        for i in range(first, last):
            tl.store(dst + i, tl.load(src + i * stride))


@triton.jit
def four_halves_as_one_word(src, dst, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(src.to(tl.pointer_type(tl.int64)) + i)
    tl.store(dst.to(tl.pointer_type(tl.int64)) + i, words)


def test_counts_of_a_ragged_copy():
    src, dst = torch.arange(50.0), torch.full((50,), torch.nan)
    t = trace(copy, (4,), src, dst, 50, BLOCK=16)
    assert isinstance(t, Trace) and torch.equal(src, dst)
    assert t.requested_bytes == t.unique_bytes == {"src": 200, "dst": 200}
    assert t.sectors == {"src": 7, "dst": 7}  # 16 floats are two sectors, the last 2 floats touch one more
    assert t.outside() == [] and t.races() == {} and t.writes_everywhere("dst")
    assert t.programs("src") == {(p, 0, 0): list(range(16 * p, min(16 * p + 16, 50))) for p in range(4)}
    assert t.programs("src", "store") == {}


def test_counts_of_a_tiled_product_are_what_the_algorithm_says():
    M, N, K, BM, BN, BK = 20, 24, 18, 16, 8, 8
    a, b, c = torch.randn(M, K), torch.randn(K, N), torch.empty(M, N)
    t = trace(matmul, (triton.cdiv(M, BM), triton.cdiv(N, BN)), a, b, c, M, N, K, BM=BM, BN=BN, BK=BK)
    torch.testing.assert_close(c, a @ b)
    # Each block column of programs reads all of a, each block row of programs reads all of b.
    assert t.requested_bytes == {"a": 4 * M * K * 3, "b": 4 * K * N * 2, "c": 4 * M * N}
    assert t.unique_bytes == {"a": 4 * M * K, "b": 4 * K * N, "c": 4 * M * N}
    # A row of a b tile is 8 floats, 32 bytes, aligned because N is a multiple of 8: one sector.
    assert t.sectors["b"] == 2 * 3 * K
    assert t.launches[0].grid == (2, 3) and t.launches[0].kernel == "matmul"


def test_sectors_follow_alignment_and_stride():
    storage, dst = torch.arange(256.0), torch.empty(8, 8)
    aligned = trace(strided, (1,), storage, dst, 8, 1, M=8, N=8).sectors["src"]
    shifted = trace(strided, (1,), storage[1:], dst, 8, 1, M=8, N=8).sectors["src"]
    spread = trace(strided, (1,), storage, dst, 16, 2, M=8, N=8).sectors["src"]
    assert (aligned, shifted, spread) == (8, 9, 16)


def test_wide_loads_count_the_elements_they_carry():
    src, dst = torch.arange(64, dtype=torch.int16), torch.empty(64, dtype=torch.int16)
    t = trace(four_halves_as_one_word, (2,), src, dst, BLOCK=8)
    assert torch.equal(src, dst)
    assert t.requested_bytes == t.unique_bytes == {"src": 128, "dst": 128}
    assert t.programs("src")[(1, 0, 0)] == list(range(32, 64))
    shifted = trace(four_halves_as_one_word, (1,), src[2:], dst, BLOCK=8)
    assert shifted.sectors == {"src": 3, "dst": 2}  # bytes 4 to 68: two words reach over the end of a sector
    short = trace(four_halves_as_one_word, (2,), src[:62], dst, BLOCK=8)
    assert [(a.tensor, a.outside.tolist()) for a in short.outside()] == [("src", [60])]


def test_an_address_between_elements_is_outside():
    @triton.jit
    def one_byte_off(src, dst):
        byte = src.to(tl.pointer_type(tl.int8)) + 1
        tl.store(dst, tl.load(byte.to(tl.pointer_type(tl.int16))))

    t = trace(one_byte_off, (1,), torch.ones(4, dtype=torch.int16), torch.zeros(1, dtype=torch.int16))
    assert [a.tensor for a in t.outside()] == ["src"]


def test_alignment_is_what_it_was():
    @triton.jit
    def describes(src, dst):
        rows = tl.make_tensor_descriptor(src, shape=[4, 16], strides=[16, 1], block_shape=[4, 16])
        tl.store(dst, tl.sum(rows.load([0, 0])))

    storage, total = torch.ones(80), torch.zeros(1)
    trace(describes, (1,), storage[4:], total)
    assert total.item() == 64
    with pytest.raises(Exception, match="base must be 16-byte aligned"):
        trace(describes, (1,), storage[1:], total)


def test_a_missing_mask_shows_even_where_the_next_tensor_lies_behind():
    arena = torch.zeros(64)
    src, dst = arena[:20], arena[20:40]  # reading past src reads dst
    t = trace(copy, (2,), src, dst, 20, BLOCK=16, MASKED=False)
    assert [(a.kind, a.tensor, a.program[0], a.outside.tolist()) for a in t.outside()] == [
        ("load", "src", 1, list(range(20, 32))),
        ("store", "dst", 1, list(range(20, 32))),
    ]
    assert "tl.store(dst + i, tl.load(src + i))" in repr(t.outside()[0]) and "program (1, 0, 0)" in repr(t.outside()[0])


def test_gaps_of_a_view_are_outside():
    padded = torch.zeros(4, 8)
    view, dst = padded[:, :6], torch.empty(4, 8)
    t = trace(strided, (1,), view, dst, 8, 1, M=4, N=8)
    (access,) = t.outside()
    assert access.tensor == "src" and access.outside.tolist() == [6, 7, 14, 15, 22, 23, 30, 31]
    assert t.unique_bytes["src"] == 4 * 24


def test_accesses_far_outside_are_recorded_and_left_out():
    src, dst = torch.arange(1.0, 5.0), torch.zeros(4)
    t = trace(far_away, (1,), src, dst, 9.0, DISTANCE=1 << 36)
    assert dst.tolist() == [1, 9, 9, 9] and src.tolist() == [1, 2, 3, 4]
    assert [(a.kind, a.tensor, a.outside.size) for a in t.outside()] == [
        ("load", "src", 2),
        ("store", "dst", 4),
        ("atomic", "dst", 4),
        ("atomic", "src", 1),
    ]
    assert t.outside()[2].outside[0] == -(1 << 36)


@pytest.mark.parametrize("of_triton", [False, True], ids=["range", "tl.range"])
def test_a_loop_over_far_elements_counts_as_wide_as_its_bounds(of_triton):
    src, ends = torch.arange(1.0, 5.0), torch.tensor([0, 4], dtype=torch.int32)
    for wide, copied in ((True, [1, 2, 3, 4]), (False, [1, 2, 0, 0])):  # 2 * 2**30 wraps around in 32 bits
        dst = torch.zeros(4)
        with trace.recording(far=[(src, (1 << 30,))]) as t:
            walk[(1,)](src, dst, ends, src.stride(0), WIDE=wide, OF_TRITON=of_triton)
        assert dst.tolist() == copied and src.stride() == (1,) and len(t.outside()) == copied.count(0)
    assert "range" not in globals()


def test_without_the_guard_accesses_outside_happen():
    storage, dst = torch.arange(64.0), torch.zeros(32)
    with trace.recording(guard=False) as t:
        copy[(2,)](storage[:20], dst, 20, BLOCK=16, MASKED=False)
    assert dst[20:].tolist() == list(range(20, 32))
    assert [a.outside.size for a in t.outside()] == [12]


def test_an_address_that_comes_from_memory_is_attributed_to_nothing():
    @triton.jit
    def through_a_pointer_table(table, dst):
        pointer = tl.load(table).to(tl.pointer_type(tl.float32))
        tl.store(dst, tl.load(pointer))

    secret, dst = torch.tensor([5.0]), torch.zeros(1)
    table = torch.tensor([secret.data_ptr()])
    t = trace(through_a_pointer_table, (1,), table, dst)
    assert [a.tensor for a in t.outside()] == [None] and "no tensor argument" in repr(t.outside()[0])
    assert dst.item() == 0
    with trace.recording(guard=False):
        through_a_pointer_table[(1,)](table, dst)
    assert dst.item() == 5


def test_two_names_for_one_memory_stay_apart():
    x = torch.arange(16.0)
    t = trace(copy, (1,), x, x, 16, BLOCK=16)
    assert t.requested_bytes == {"src": 64, "dst": 64}
    assert {a.kind for a in t.accesses if a.tensor == "src"} == {"load"}


def test_interleaved_views_of_one_storage_stay_apart():
    packed = torch.arange(16.0).reshape(8, 2)
    t = trace(strided, (1,), packed[:, :1], packed[:, 1:], 2, 1, M=8, N=1)
    # dst is written densely although its view is strided: every odd step falls between its elements.
    assert t.programs("src")[(0, 0, 0)] == list(range(8))
    assert t.outside()[0].tensor == "dst" and t.outside()[0].outside.tolist() == [1, 3, 5, 7]


def test_expanded_tensors_count_memory_not_indices():
    row, dst = torch.arange(8.0), torch.empty(4, 8)
    t = trace(strided, (1,), row.expand(4, 8), dst, 0, 1, M=4, N=8)
    assert t.requested_bytes["src"] == 128 and t.unique_bytes["src"] == 32 and t.sectors["src"] == 1
    assert t.outside() == []
    t = trace(strided, (1,), torch.zeros(4, 8), row.expand(4, 8), 8, 1, M=4, N=8)
    assert t.outside()[0].outside.min() == 8 and t.writes_everywhere("dst")


def test_conflicts_are_counted_by_arrays():
    """Eight programs on all of a large tensor: no element becomes an object of Python's, which takes 32 bytes."""
    size = 1 << 16
    everything = np.arange(size)

    def access(program, kind):
        return Access("k", (program, 0, 0), 0, kind, "x", everything, everything[:0], 4 * size, size // 8, 1, "line")

    launch = Launch("k", (8,), {"x": Operand("x", (size,), (1,), 4, "float32")})
    launch.accesses += [access(program, kind) for program in range(8) for kind in ("load", "store")]
    tracemalloc.start()
    assert np.array_equal(launch.conflicts("x"), everything) and not launch.elements("x", "atomic").size
    assert len(launch.elements("x", "load", programs=8)) == size and not len(launch.elements("x", programs=9))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 80 * size, most
    assert launch.races()["x"][7] == [(program, 0, 0) for program in range(8)]


def test_races():
    dst = torch.zeros(2)
    assert trace(all_store_to_the_first, (3,), dst).races() == {"dst": {0: [(0, 0, 0), (1, 0, 0), (2, 0, 0)]}}
    assert not trace(all_store_to_the_first, (3,), dst).writes_everywhere("dst")
    t = trace(shift_left_in_place, (2,), torch.arange(9.0), BLOCK=4)
    assert t.races() == {"x": {4: [(0, 0, 0), (1, 0, 0)]}}
    assert trace(shift_left_in_place, (1,), torch.arange(9.0), BLOCK=8).races() == {}
    total = torch.zeros(1)
    t = trace(add_all, (4,), torch.ones(32), total, BLOCK=8)
    assert total.item() == 32 and t.races() == {}
    assert t.requested_bytes["total"] == 16 and t.unique_bytes["total"] == 4


def test_recording_keeps_launches_apart(capsys):
    def operator(x):
        y, z = torch.empty_like(x), torch.empty(8, 8)
        copy[lambda args: (triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
        strided[(1,)](y, z, 8, 1, M=8, N=8)
        return z

    with trace.recording() as t:
        result = operator(torch.arange(64.0))
    assert torch.equal(result.flatten(), torch.arange(64.0))
    assert [launch.kernel for launch in t.launches] == ["copy", "strided"]
    assert len(t.accesses) == 10 and t.launches[0].requested_bytes == {"src": 256, "dst": 256}
    assert t.requested_bytes == t.unique_bytes == {"src": 512, "dst": 512}
    assert t.sectors == {name: sum(launch.sectors[name] for launch in t.launches) for name in ("src", "dst")}
    t.table()
    printed = capsys.readouterr().out
    assert "copy, grid 4:" in printed and "strided, grid 1:" in printed
    assert printed.endswith("2 launches: 1,024 bytes requested, the floors come to 1,024\n")
    assert t.programs("dst", launch=1)[(0, 0, 0)] == list(range(64))
    assert repr(t) == "<Trace of [<copy, grid 4: 8 accesses>, <strided, grid 1: 2 accesses>]>"
    t.table(launch=1)
    assert "strided, grid 1:" in capsys.readouterr().out
    with pytest.raises(ValueError, match="launch is 2, but 2 launches"):
        t.table(launch=2)
    with trace.recording() as t:
        pass
    with pytest.raises(ValueError, match="0 launches"):
        t.requested_bytes  # noqa: B018


def test_recordings_nest():
    x, y = torch.arange(16.0), torch.zeros(16)
    with trace.recording() as outer, trace.recording() as inner:
        copy[(1,)](x, y, 16, BLOCK=16)
    assert torch.equal(x, y)
    assert outer.requested_bytes == inner.requested_bytes == {"src": 64, "dst": 64}
    assert outer.outside() == inner.outside() == []


def test_a_kernel_that_raises_leaves_a_readable_trace():
    @triton.jit
    def loads_then_fails(x):
        tl.load(x)
        tl.static_assert(False, "no")

    with pytest.raises(Exception, match="no"), trace.recording() as t:
        loads_then_fails[(2,)](torch.zeros(1))
    assert t.requested_bytes == {"x": 4} and t.launches[0].grid == (2,)


def test_empty_tensors_and_empty_grids():
    empty = torch.empty(0)
    t = trace(copy, (0,), empty, empty, 0, BLOCK=16)
    assert t.requested_bytes == t.sectors == t.unique_bytes == {"src": 0, "dst": 0}
    assert t.writes_everywhere("dst")
    assert trace(copy, (1,), empty, empty, 16, BLOCK=16).outside()[0].outside.size == 16


def test_table(capsys):
    trace(copy, (4,), torch.arange(50.0), torch.zeros(50), 50, BLOCK=16).table()
    assert capsys.readouterr().out.splitlines() == [
        "copy, grid 4: bytes that its programs request, beside the floor, each byte once "
        "(not DRAM traffic: caches serve repeats)",
        "tensor  access   requested  in 32-byte sectors  floor  ratio",
        "src     read           200             7 = 224    200  1.00×",
        "dst     written        200             7 = 224    200  1.00×",
        "total                  400            14 = 448    400  1.00×",
    ]
    trace(copy, (4,), torch.arange(50.0), torch.zeros(50), 50, BLOCK=16, MASKED=False).table()
    assert capsys.readouterr().out.splitlines()[-1] == "2 accesses reach outside their tensor: see outside()"


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"kernel is 3: trace needs a @triton.jit function"):
        trace(3, (1,))
    with pytest.raises(ValueError, match=r"grid is 2: it must be a tuple, such as \(2,\)"):
        trace(all_store_to_the_first, 2, torch.zeros(1))
    with pytest.raises(ValueError, match="argument 0 is a numpy array: a kernel takes tensors"):
        trace(all_store_to_the_first, (2,), torch.zeros(1).numpy())
    t = trace(all_store_to_the_first, (1,), torch.zeros(1))
    with pytest.raises(ValueError, match="name is 'src': the tensors of all_store_to_the_first are dst"):
        t.programs("src")
    with pytest.raises(ValueError, match="kind is 'read'"):
        t.programs("dst", "read")


LAYOUTS = {
    "contiguous": torch.zeros(3, 4, 5),
    "transposed": torch.zeros(3, 4, 5).permute(2, 0, 1),
    "sliced": torch.zeros(6, 9, 7)[1::2, ::3, 2:6],
    "expanded": torch.zeros(3, 1, 5).expand(3, 4, 5),
    "windows": torch.arange(10.0).unfold(0, 4, 1),
    "windows that leave gaps": torch.zeros(30).as_strided((3, 2, 2), (7, 3, 2)),
    "scalar": torch.tensor(1.0),
    "one element": torch.zeros(1, 1),
    "empty": torch.zeros(3, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_know_exactly_their_elements(layout):
    tensor = LAYOUTS[layout]
    operand = Operand("x", tuple(tensor.shape), tensor.stride(), 4, "float32")
    expected: dict[int, int] = {}
    for flat, index in enumerate(np.ndindex(*tensor.shape)):
        offset = sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
        expected.setdefault(offset, flat)
        assert operand.offsets(np.array([flat])).tolist() == [offset]
    probe = np.arange(-3, max(expected, default=0) + 60)
    assert operand.flat(probe).tolist() == [expected.get(offset, -1) for offset in probe.tolist()]
    assert operand.elements == len(expected)
