"""Pieces of the language that the larger kernels do not use: aggregates with methods, device descriptors, slices, atomics."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
    pytest.skip("the model needs Triton 3.8", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels import gluon_model
from kernels.gluon_model.races import Access, History
from kernels.gluon_model.source import NOWHERE
from tests.gluon_model.cases import descriptor

ROW = gl.BlockedLayout([1], [32], [4], [0])
TILE = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
SCALE = gl.constexpr(3)


@gluon.constexpr_function
def doubled(n):
    return 2 * n


@gluon.aggregate
class Counter:
    """A ring index and its phase, advanced together."""

    index: gl.tensor
    phase: gl.tensor
    depth: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, index, phase, depth):
        self.index = index
        self.phase = phase
        self.depth = gl.constexpr(depth)

    @gluon.jit
    def next(self):
        wraps = self.index == self.depth - 1
        return Counter(gl.where(wraps, 0, self.index + 1), gl.where(wraps, self.phase ^ 1, self.phase), self.depth)


@gluon.jit
def counting(out, steps, layout: gl.constexpr):
    at = Counter(gl.to_tensor(0), gl.to_tensor(0), 3)
    for i in range(steps):
        gl.store(out + 2 * i, at.index)
        gl.store(out + 2 * i + 1, at.phase * SCALE + doubled(5))
        at = at.next()


def test_aggregates_with_methods_constants_and_compile_time_functions():
    out = torch.zeros(14, dtype=torch.int32)
    assert gluon_model.run(counting, 1, out, 7, ROW).ok
    assert out.view(7, 2).tolist() == [[i % 3, 10 + 3 * (i // 3 % 2)] for i in range(7)]


@gluon.jit
def scaled_rows(x, y, M, N, layout: gl.constexpr, shared: gl.constexpr):
    x_desc = tma.make_tensor_descriptor(x, [M, N], [N, 1], [16, 16], shared)
    y_desc = tma.make_tensor_descriptor(y + 16, [M, N - 16], [N, 1], [16, 16], shared)
    tile = gl.allocate_shared_memory(gl.float32, [16, 16], shared)
    loaded = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [8, -4], loaded, tile)
    mbarrier.wait(loaded, 0)
    tile.store(tile.load(layout) * 2)
    fence_async_shared()
    tma.async_store(y_desc, [-3, 0], tile)
    tma.store_wait(0, read_only=False)
    tma.async_atomic_add(y_desc, [-3, 0], tile)
    tma.store_wait(0)
    mbarrier.invalidate(loaded)


def test_descriptors_made_on_the_device_clip_at_every_edge():
    x, y = torch.randn(20, 24), torch.zeros(20, 40)
    shared = gl.NVMMASharedLayout.get_default_for([16, 16], gl.float32)
    for schedule in gluon_model.SCHEDULES:
        y.zero_()
        # y's rows are 24 elements long here: its memory is used as a [20, 24] tensor.
        assert gluon_model.run(scaled_rows, 1, x, y, 20, 24, TILE, shared, schedule=schedule).ok
        tile = torch.zeros(16, 16)
        tile[:12, 4:] = x[8:20, :12]
        expected = torch.zeros(20, 24)
        expected[:13, 16:] = 4 * tile[3:, :8]
        assert torch.equal(y.view(-1)[: 20 * 24].view(20, 24), expected)


@gluon.jit
def writer(buffer, layout: gl.constexpr):
    buffer.slice(0, 8).store(gl.full([8, 16], 1.0, gl.float32, layout))


@gluon.jit
def reader(buffer, out, FIRST: gl.constexpr, layout: gl.constexpr):
    values = buffer.slice(FIRST, 8).load(layout)
    gl.store(out + gl.arange(0, 16, gl.SliceLayout(0, layout)), gl.sum(values, 0))


@gluon.jit
def halves(out, FIRST: gl.constexpr, layout: gl.constexpr, shared: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.float32, [16, 16], shared)
    buffer.slice(8, 8).store(gl.full([8, 16], 2.0, gl.float32, layout))
    gl.warp_specialize([(reader, (buffer, out, FIRST, layout)), (writer, (buffer, layout))], [4])


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
def test_slices_that_do_not_overlap_are_no_race_and_overlapping_ones_are(schedule):
    shared = gl.NVMMASharedLayout.get_default_for([16, 16], gl.float32)
    out = torch.zeros(16)
    assert gluon_model.run(halves, 1, out, 8, TILE, shared, schedule=schedule).ok
    assert out.tolist() == [16.0] * 16
    result = gluon_model.run(halves, 1, out, 4, TILE, shared, schedule=schedule)
    kinds = {finding.kind for finding in result.findings}
    assert "race" in kinds and kinds <= {"race", "uninitialized"}
    race = next(finding for finding in result.findings if finding.kind == "race")
    assert "buffer[4:12, :]" in race.message and "reader" in race.message and "writer" in race.message


def test_a_write_over_part_of_a_box_leaves_the_rest_of_its_history():
    def access(lane, write):
        return Access(write, "x", None, None, lane, 1, NOWHERE, 0)

    history, whole, upper, lower = History(), ((0, 16),), ((0, 8),), ((8, 16),)
    first, second, third = access(0, True), access(1, True), access(2, False)
    assert list(history.access(whole, first, {0: 1})) == []
    assert list(history.access(upper, second, {0: 1, 1: 1})) == []
    assert list(history.access(lower, third, {2: 1})) == [first]
    assert list(history.access(upper, access(3, False), {0: 1, 3: 1})) == [second]
    assert set(history.access(whole, access(4, True), {4: 1})) >= {first, second, third}


@gluon.jit
def eager_arriver(bar):
    mbarrier.arrive(bar, count=1)
    mbarrier.arrive(bar, count=1)


@gluon.jit
def late_arriver(bar):
    mbarrier.arrive(bar, count=1)
    mbarrier.arrive(bar, count=1)


@gluon.jit
def two_arrive(x):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=2)
    gl.warp_specialize([(eager_arriver, (bar,)), (late_arriver, (bar,))], [1])


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
def test_an_arrival_that_may_count_for_an_earlier_phase_is_found(schedule):
    result = gluon_model.run(two_arrive, 1, torch.zeros(1), schedule=schedule)
    assert [finding.kind for finding in result.findings] and {f.kind for f in result.findings} == {"barrier"}
    assert "without knowing that phase 0 of it is complete" in result.findings[0].message


@gluon.jit
def atomics(total, largest, layout: gl.constexpr):
    i = gl.arange(0, 8, layout)
    gl.atomic_add(total + i % 2, i.to(gl.float32), mask=i < 6)
    gl.atomic_max(largest, gl.program_id(0) * 7 % 5)


def test_atomics_of_many_programs():
    total, largest = torch.zeros(2), torch.zeros(1, dtype=torch.int32)
    assert gluon_model.run(atomics, (2, 2), total, largest, ROW).ok
    assert total.tolist() == [4 * 6.0, 4 * 9.0] and largest.tolist() == [2]


def test_numpy_arrays_are_written_in_place():
    total, largest = np.zeros(2, dtype=np.float32), np.zeros(1, dtype=np.int32)
    assert gluon_model.check_all_schedules(atomics, 3, total, largest, ROW).ok
    assert total.tolist() == [3 * 6.0, 3 * 9.0] and largest.tolist() == [4]


def test_the_text_of_a_cell_without_a_file_gives_its_line(cell):
    source = """
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier

    @gluon.jit
    def stuck(x):
        full = mbarrier.allocate_mbarrier(
            batch=2,
        )
        mbarrier.init(full.index(1), count=1)
        mbarrier.wait(
            full.index(1),
            0,
        )
    """
    result = gluon_model.run(cell(source)["stuck"], 1, torch.zeros(1))
    (finding,) = result.findings
    assert finding.kind == "deadlock" and finding.barrier == "full[1]" and finding.place.line == 12
    assert "stuck, line 12: waits for parity 0 of full[1]\n      mbarrier.wait(full.index(1), 0)" in finding.message


def test_memory_gets_its_name_from_the_variable_or_the_field():
    x = torch.randn(16, 16)
    result = gluon_model.run(naming, 1, descriptor(x, [16, 16]))
    assert [allocation.name for allocation in result.machines[0].allocations] == ["left", "right", "alone", "empty"]


@gluon.aggregate
class Pair:
    left: gl.shared_memory_descriptor
    right: gl.shared_memory_descriptor


@gluon.jit
def naming(x_desc):
    Pair(
        gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout),
        right=gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout),
    )
    alone, empty = (
        gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout),
        mbarrier.allocate_mbarrier(),
    )
    mbarrier.init(empty, count=1)
    alone._keep_alive()


@gluon.jit
def apply(x, function: gl.constexpr, layout: gl.constexpr):
    at = gl.arange(0, 4, layout)
    gl.store(x + at, function(gl.load(x + at)))


@gluon.jit
def one_less(x):
    return gl.maximum(x, 0.0) - 1


def test_a_compile_time_argument_may_be_a_function():
    x = torch.tensor([-2.0, 0.0, 1.0, 5.0])
    assert gluon_model.run(apply, 1, x, one_less, ROW).ok
    assert x.tolist() == [-1.0, -1.0, 0.0, 4.0]


COMPILED = tl.constexpr(True)


@triton.jit
def plus_reciprocal(x, y):
    if COMPILED:
        inverse = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [y], tl.float32, is_pure=True, pack=1)
    else:
        inverse = 1.0 / y
    return x + inverse


@triton.jit
def in_plain_triton(x, SCALE: tl.constexpr):
    columns = tl.broadcast_to(tl.arange(0, 4)[None, :], x.shape)
    total = tl.zeros([4], tl.float32) + tl.sum(tl.trans(x) * columns.to(tl.float32), 0)
    for i in tl.static_range(2):
        total = tl.where(tl.maximum(total, 0.0) == total, plus_reciprocal(total, total + i), tl.sigmoid(total))
    return total * SCALE


@gluon.jit
def calls_plain_triton(x, out, layout: gl.constexpr):
    rows, columns = gl.arange(0, 4, gl.SliceLayout(1, layout)), gl.arange(0, 4, gl.SliceLayout(0, layout))
    values = gl.load(x + gl.expand_dims(rows * 4, 1) + gl.expand_dims(columns, 0))
    gl.store(out + columns, in_plain_triton(values, 2.0))


def test_functions_of_plain_triton_run_without_a_gpus_own_instructions():
    x, out = torch.randn(4, 4), torch.zeros(4)
    assert gluon_model.run(calls_plain_triton, 1, x, out, TILE).ok
    total = (x.T * torch.arange(4.0)).sum(0)
    for i in range(2):
        total = torch.where(total >= 0, total + 1 / (total + i), total.sigmoid())
    torch.testing.assert_close(out, total * 2)


@gluon.jit
def choose_address(x, y, out, layout: gl.constexpr):
    at = gl.arange(0, 4, layout)
    for i in range(2):
        gl.store(out + 4 * i + at, gl.load(gl.where(i == 0, x + 3, y + i) + at))
    gl.store(out + 8 + at, gl.load(gl.where(at < 2, x + at, x)))


@gluon.jit
def mix_addresses(x, y, out, layout: gl.constexpr):
    at = gl.arange(0, 4, layout)
    gl.store(out + at, gl.load(gl.where(at < 2, x + at, y + at)))


def test_one_number_chooses_between_addresses_in_two_tensors():
    x, y, out = torch.arange(8), 100 + torch.arange(8), torch.zeros(12, dtype=torch.int64)
    assert gluon_model.run(choose_address, 1, x, y, out, ROW).ok
    assert out.tolist() == [3, 4, 5, 6, 101, 102, 103, 104, 0, 1, 0, 0]
    with pytest.raises(gluon_model.ModelError, match="mixes addresses in x and y in one block"):
        gluon_model.run(mix_addresses, 1, x, y, out, ROW)


def test_a_kernel_knows_nothing_of_autograd():
    x, y = torch.randn(16, 16, requires_grad=True), torch.zeros(16, 16, requires_grad=True)
    result = gluon_model.run(copies, 1, descriptor(x, [16, 16]), y, TILE)
    assert result.ok and torch.equal(x, y) and y.grad_fn is None
    assert not any(allocation.data.requires_grad for allocation in result.machines[0].allocations)


@gluon.jit
def copying(x_desc, y, tile, loaded, layout: gl.constexpr):
    mbarrier.wait(loaded, 0)
    rows, columns = gl.arange(0, 16, gl.SliceLayout(1, layout)), gl.arange(0, 16, gl.SliceLayout(0, layout))
    at = gl.expand_dims(rows * 16, 1) + gl.expand_dims(columns, 0)
    gl.store(y + at, tile.load(layout))


@gluon.jit
def loading(x_desc, y, tile, loaded, layout: gl.constexpr):
    mbarrier.expect(loaded, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [0, 0], loaded, tile)


@gluon.jit
def copies(x_desc, y, layout: gl.constexpr):
    tile = gl.allocate_shared_memory(x_desc.dtype, [16, 16], x_desc.layout)
    loaded = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    arguments = (x_desc, y, tile, loaded, layout)
    gl.warp_specialize([(copying, arguments), (loading, arguments)], [1])


class Shares(NamedTuple):
    """Numbers that a launch gives by name."""

    first: Any
    second: Any


@gluon.jit
def of_shares(out, shares, absent):
    if absent is None:
        gl.store(out, shares.first // shares.second)
    gl.store(out + 1, shares[1])


def test_a_named_tuple_keeps_its_names():
    out = torch.zeros(2, dtype=torch.int32)
    assert gluon_model.run(of_shares, 1, out, Shares(21, 4), None).ok
    assert out.tolist() == [5, 4]


class Ends(NamedTuple):
    """Where tiles come from, and where they go."""

    source: Any
    sums: Any


class Buffer(NamedTuple):
    """A tile in shared memory, and its barrier."""

    tile: Any
    loaded: Any


class Tiling(NamedTuple):
    """What a kernel is compiled for."""

    ROWS: int
    COLUMNS: int
    TWICE: bool


@gluon.jit
def fill(buffer, ends, T: gl.constexpr):
    for row in range(0, ends.source.shape[0], T.ROWS):
        mbarrier.expect(buffer.loaded, ends.source.nbytes_per_cta)
        tma.async_load(ends.source, [row, 0], buffer.loaded, buffer.tile)


@gluon.jit
def add(buffer, ends, T: gl.constexpr):
    mbarrier.wait(buffer.loaded, 0)
    x = buffer.tile.load(TILE)
    if T.TWICE:
        x += x
    gl.store(ends.sums + gl.arange(0, T.COLUMNS, gl.SliceLayout(0, TILE)), gl.sum(x, 0))


@gluon.jit
def by_names(ends, T: gl.constexpr):
    tile = gl.allocate_shared_memory(ends.source.dtype, [T.ROWS, T.COLUMNS], ends.source.layout)
    buffer = Buffer(tile, loaded=mbarrier.allocate_mbarrier())
    mbarrier.init(buffer.loaded, count=1)
    gl.warp_specialize([(add, (buffer, ends, T)), (fill, (buffer, ends, T))], [1])


@pytest.mark.parametrize("rows", [16, 32])
def test_named_tuples_hold_descriptors_shared_memory_and_constants(rows):
    """Of 32 rows the second tile overwrites the first, whose barrier nobody waits for again: buffers go by their names."""
    x, sums = torch.randn(rows, 16), torch.zeros(16)
    result = gluon_model.run(by_names, 1, Ends(descriptor(x, [16, 16]), sums), Tiling(16, 16, True))
    if rows == 16:
        assert result.ok and torch.allclose(sums, 2 * x.sum(0), atol=1e-5), result
    else:
        assert not result.ok and "tile" in str(result) and "loaded" in str(result)
