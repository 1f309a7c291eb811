"""Clusters of two CTAs on the model: multicast, barriers that both share, meetings, and what goes wrong between them."""

import math

import pytest
import torch

from kernels.common.gluon import has_clusters

if not has_clusters():
    pytest.skip("clusters need Triton 3.9", allow_module_level=True)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import cluster, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import gluon_model
from kernels.gluon_model import picture
from tests.gluon_model import cluster_kernels
from tests.gluon_model.cases import found, planted

ROWS, SHARED, STEP = 16, 8, 16  # of y in both CTAs together, of x; columns of a block
ACROSS, ALONG, SAME = [[1, 0]], [[0, 1]], [[0, 0]]
LAYOUT = gl.BlockedLayout([1, 4], [8, 4], [1, 4], [1, 0], ACROSS)
WHOLE = gl.BlockedLayout([1, 4], [8, 4], [1, 4], [1, 0], SAME)
ROW = gl.BlockedLayout([1], [32], [4], [0], [[1]])


def descriptor(x, block, cga):
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.float32, cga_layout=cga)
    return TensorDescriptor.from_tensor(x, block, layout)


def blocks(columns=STEP, of_y=ACROSS, of_x=SAME):
    torch.manual_seed(0)
    y, x = torch.randn(ROWS, columns), torch.randn(SHARED, columns)
    return y, x, descriptor(y, [ROWS, STEP], of_y), descriptor(x, [SHARED, STEP], of_x)


def ring(run=gluon_model.run, kernel=cluster_kernels.weighted_rows, steps=7, stages=2, **options):
    """``(result, whether the sums are right)``."""
    y, x, y_desc, x_desc = blocks(steps * STEP)
    out = torch.full((ROWS,), math.nan)
    result = run(kernel, 1, y_desc, x_desc, out, steps, LAYOUT, WHOLE, stages, num_ctas=2, **options)
    return result, torch.allclose(out, y @ x.sum(0), atol=1e-4)


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
def test_a_copy_by_multicast_lands_in_both(schedule):
    y, x, y_desc, x_desc = blocks()
    out = torch.full((ROWS, STEP), math.nan)
    result = gluon_model.run(
        cluster_kernels.add_shared, 1, y_desc, x_desc, out, STEP, LAYOUT, WHOLE, num_ctas=2, schedule=schedule
    )
    assert result.ok, str(result)
    assert torch.allclose(out, y + x.sum(0), atol=1e-5)
    (machine,) = result.machines
    loads = [(o.issuer.name, [view.label for view in o.writes]) for o in machine.operations]
    assert sorted(loads) == [
        ("add_shared of CTA 0", ["x of CTA 0", "x of CTA 1"]),
        ("add_shared of CTA 0", ["y of CTA 0"]),
        ("add_shared of CTA 1", ["y of CTA 1"]),
    ]


def test_a_cta_holds_its_part_and_poison():
    _, _, y_desc, x_desc = blocks()
    out = torch.zeros(ROWS, STEP)
    result = gluon_model.run(cluster_kernels.add_shared, 1, y_desc, x_desc, out, STEP, LAYOUT, WHOLE, num_ctas=2)
    first, second = (a.data.isnan() for a in result.machines[0].allocations if a.name == "y")
    assert not first[: ROWS // 2].any() and first[ROWS // 2 :].all() and torch.equal(second, ~first)


def test_a_ring_of_two_ctas_under_every_schedule():
    sweep, right = ring(run=gluon_model.check_all_schedules)
    assert sweep.ok and right, str(sweep)
    assert str(sweep) == (
        "weighted_rows, grid 1 in clusters of 2 CTAs, 5 schedules: no finding, same bits."
    )
    assert ring(steps=1)[0].ok and ring(steps=2, stages=3)[0].ok


WAIT = "mbarrier.wait(both.index(s), (i // STAGES & 1) ^ 1)"
EARLY = "barrier", "fetch_shared", "multicast", "ready[0] of CTA 1", "without knowing that phase 0 of it is complete"
FAULTS = {  # function, old text, new text; kind, partition, part of its line, barrier, part of its message; more of them
    "the first overwrites what the other reads": (
        ("fetch_shared", WAIT, "pass"),
        ("early overwrite", "fetch_shared", "multicast", None, "x_s[0] of CTA 1 is overwritten while"),
        EARLY,  # which is found where the second one comes so late that it has read nothing yet
    ),
    "the other's release is not asked for": (
        ("add_up", "mbarrier.arrive(both.index(s), count=1)", "pass"),
        ("deadlock", "fetch_shared", "wait(both", "both[0]", "lacks 2 of 2 arrivals. Nobody has signalled it yet"),
    ),
    "x is released before it is read": (
        ("add_up", "weights = gl", "mbarrier.arrive(both.index(s), count=1)\n        weights = gl",
         "        mbarrier.arrive(both.index(s), count=1)\n    gl.store", "    gl.store"),
        ("early overwrite", "fetch_shared", "multicast", "both[0]", "which add_up of CTA "),
    ),
    "too many releases are asked for": (
        ("weighted_rows", "mbarrier.init(both.index(s), count=1)", "mbarrier.init(both.index(s), count=2)"),
        ("deadlock", "add_up", "wait(ready", None, "both[0] has completed 0 phases; phase 0 lacks 2 of 4 arrivals"),
    ),
    "only y's bytes are expected": (
        ("fetch_shared", "y_desc.nbytes_per_cta + x_desc.nbytes_per_cta", "y_desc.nbytes_per_cta"),
        ("byte count", "fetch_shared", "mbarrier.expect", "ready[0]", "told to expect 512 bytes, and its loads bring 1024"),
    ),
    "the bytes of both parts are expected": (
        ("fetch_shared", "y_desc.nbytes_per_cta", "2 * y_desc.nbytes_per_cta"),
        ("byte count", "fetch_shared", "mbarrier.expect", "ready[0]", "told to expect 1536 bytes, and its loads bring 1024"),
    ),
    "both bring x for themselves, and the second runs ahead": (
        ("fetch_shared", ", multicast=True", ""),
        ("barrier", "add_up", "arrive(both", "both[0]", "add_up of CTA 1 arrives on both[0] without knowing that phase 0"),
    ),
    "the first ends a barrier that the other may arrive on": (
        ("weighted_rows", "cluster.barrier()", "pass"),
        ("barrier", "weighted_rows", "invalidate(both", "both[", "while add_up of CTA 1 may use it"),
    ),
    "the shared barrier is not shared": (
        ("weighted_rows", ", two_ctas=True", ""),
        ("early overwrite", "fetch_shared", "multicast", None, "x_s[0] of CTA 1 is overwritten while"),
        EARLY,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_under_every_schedule(name):
    (function, *edits), *faults = FAULTS[name]
    kernel = planted(cluster_kernels, function, *edits)["weighted_rows"]
    sweep, _ = ring(run=gluon_model.check_all_schedules, kernel=kernel)
    for result in sweep.results.values():
        assert any(found(result, *fault) for fault in faults), str(result)
    assert all(any(found(result, *fault) for result in sweep.results.values()) for fault in faults)


def test_bytes_that_come_before_they_are_expected_are_not_counted_where_nobody_goes_on():
    kernel = planted(cluster_kernels, "fetch_shared", WAIT, "pass")["weighted_rows"]
    result, _ = ring(kernel=kernel, schedule="eager")
    assert not result.completed and not found(result, "byte count"), str(result)


def test_a_fault_in_either_cta_is_one_of_the_sweep():
    kernel = planted(cluster_kernels, "fetch_shared", WAIT, "pass")["weighted_rows"]
    sweep, _ = ring(run=gluon_model.check_all_schedules, kernel=kernel)
    places = [(finding.kind, finding.place) for finding in sweep.findings]
    assert len(set(places)) == len(places)


def test_a_deadlock_names_the_ctas():
    kernel = planted(cluster_kernels, "add_up", "mbarrier.arrive(free.index(s), count=1)", "pass")["weighted_rows"]
    result, _ = ring(kernel=kernel)
    (deadlock,) = found(result, "deadlock")
    for cta in (0, 1):
        assert f"add_up of CTA {cta}, " in deadlock.message and f"fetch_shared of CTA {cta}, " in deadlock.message
        assert f"free[0] of CTA {cta} has completed 0 phases" in deadlock.message
    assert not result.completed


def test_a_run_is_drawn_with_both_ctas():
    result, _ = ring()
    assert "buffers x_s[0] of CTA 0, x_s[0] of CTA 1, x_s[1] of CTA 0, x_s[1] of CTA 1, y_s[0] of" in result.picture().alt
    assert picture._buffer("x_s[1][:, 4:8] of CTA 0") == "x_s[1] of CTA 0"
    assert "fetch_shared of CTA 1" in result.state(40) and "ready[0] of CTA 0: in phase" in result.state(40)


# Meetings.


def turned(kernel=cluster_kernels.turn_round, **options):
    x, out = torch.arange(64.0), torch.full((64,), math.nan)
    result = gluon_model.run(kernel, 1, x, out, 64, ROW, num_ctas=2, **options)
    return result, torch.equal(out, 2 * torch.arange(63.0, -1, -1))


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
def test_ctas_meet_and_know_what_the_other_stored(schedule):
    result, right = turned(schedule=schedule)
    assert result.ok and right, str(result)


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
@pytest.mark.parametrize("instead", ["gl.barrier()", "cluster.barrier(relaxed=True)", "pass"])
def test_without_a_meeting_that_orders_them_they_race(instead, schedule):
    kernel = planted(cluster_kernels, "turn_round", "cluster.barrier()", instead)["turn_round"]
    result, _ = turned(kernel, schedule=schedule)
    assert found(result, "race", "turn_round", "gl."), str(result)


def test_a_barrier_of_the_cluster_has_two_names():
    kernel = planted(cluster_kernels, "turn_round", "cluster.barrier()", "gl.barrier(cluster=True)")["turn_round"]
    assert turned(kernel)[0].ok


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
def test_an_atomic_on_one_number_is_done_once_and_all_have_its_answer(schedule):
    counter, taken, out = (torch.full((n,), 0, dtype=torch.int32) for n in (1, 3, 3 * 64))
    result = gluon_model.run(cluster_kernels.take_tickets, 3, counter, taken, out, 64, ROW, num_ctas=2, schedule=schedule)
    assert result.ok and counter.item() == 3 and sorted(taken.tolist()) == [0, 1, 2], str(result)
    assert torch.equal(out, torch.arange(3, dtype=torch.int32).repeat_interleave(64))


@pytest.mark.parametrize("cga", [[[1]], [[0]]])
def test_an_element_that_both_hold_is_the_firsts_to_change(cga):
    counts = torch.zeros(64, dtype=torch.int32)
    layout = gl.BlockedLayout([1], [32], [4], [0], cga)
    assert gluon_model.run(cluster_kernels.count_rows, 3, counts, 64, layout, num_ctas=2).ok
    assert counts.tolist() == [3] * 64


def test_four_ctas():
    row = gl.BlockedLayout([1], [32], [4], [0], [[1], [2]])
    x, out = torch.arange(256.0), torch.full((256,), math.nan)
    assert gluon_model.run(cluster_kernels.turn_round, 1, x, out, 256, row, num_ctas=4).ok
    assert torch.equal(out, 2 * torch.arange(255.0, -1, -1))
    halves = gl.BlockedLayout([1], [32], [4], [0], [[1], [0]])  # of which the first and the third hold the same one
    counts = torch.zeros(64, dtype=torch.int32)
    assert gluon_model.run(cluster_kernels.count_rows, 3, counts, 64, halves, num_ctas=4).ok
    assert counts.tolist() == [3] * 64


@gluon.jit
def wait_for_ever():
    both = mbarrier.allocate_mbarrier(two_ctas=True)
    mbarrier.init(both, count=1)
    mbarrier.wait(both, 0)
    cluster.barrier()


def test_who_waits_for_the_other_cta_is_named_in_a_deadlock():
    """A shared barrier is waited for by the CTA that it lies in; the other one goes on, and waits for that one."""
    (deadlock,) = found(gluon_model.run(wait_for_ever, 1, num_ctas=2), "deadlock", "wait_for_ever", "mbarrier.wait")
    assert "both has completed 0 phases; phase 0 lacks 2 of 2 arrivals" in deadlock.message
    assert "wait_for_ever of CTA 1, " in deadlock.message and "waits for the cluster's other CTAs" in deadlock.message


# What ends a run.


@gluon.jit
def refuse(x, layout: gl.constexpr):
    values = gl.load(x + gl.arange(0, 64, layout))
    gl.device_assert((values < 64) & (values != 40), "on purpose")
    cluster.barrier()


@gluon.jit
def idle():
    pass


@gluon.jit
def refuse_inside(x, layout: gl.constexpr):
    gl.warp_specialize([(idle, ()), (refuse, (x, layout))], [1], [24])


@pytest.mark.parametrize("schedule", gluon_model.SCHEDULES)
@pytest.mark.parametrize("kernel", [refuse, refuse_inside])
def test_an_error_of_the_second_cta_ends_the_first(kernel, schedule):
    assert gluon_model.run(kernel, 1, torch.arange(64) // 2, ROW, num_ctas=2, schedule=schedule).ok
    with pytest.raises(gluon_model.ModelError, match="(?s)test_clusters.py.*device_assert: on purpose"):
        gluon_model.run(kernel, 1, torch.arange(64), ROW, num_ctas=2, schedule=schedule)


@gluon.jit
def sum_all(x, out, layout: gl.constexpr):
    gl.store(out, gl.sum(gl.load(x + gl.arange(0, 64, layout)), 0))


@gluon.jit
def sums_of_columns(y_desc, out, layout: gl.constexpr):
    y = gl.allocate_shared_memory(y_desc.dtype, y_desc.block_type.shape, y_desc.layout)
    loaded = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    tma.async_load(y_desc, [0, 0], loaded, y)
    gl.sum(y.load(layout), 1)


def test_what_needs_another_ctas_part_is_said():
    needs = r"CTA \d needs what another CTA holds"
    with pytest.raises(gluon_model.ModelError, match=f"sum along axis 0: {needs}"):
        gluon_model.run(sum_all, 1, torch.zeros(64), torch.zeros(1), ROW, num_ctas=2)
    with pytest.raises(gluon_model.ModelError, match=rf"a load of y of CTA \d: {needs}"):
        gluon_model.run(sums_of_columns, 1, blocks(of_y=ALONG)[2], torch.zeros(ROWS), LAYOUT, num_ctas=2)
    none = gl.BlockedLayout([1], [32], [4], [0])
    with pytest.raises(gluon_model.ModelError, match="does not say how 2 CTAs share a block"):
        gluon_model.run(sum_all, 1, torch.zeros(64), torch.zeros(1), none, num_ctas=2)


@gluon.jit
def refused(y_desc, what: gl.constexpr):
    y = gl.allocate_shared_memory(y_desc.dtype, y_desc.block_type.shape, y_desc.layout)
    if what == "made by hand":
        gl.allocate_shared_memory(gl.int64, [2], mbarrier.MBarrierLayout.multicta(2))
    elif what == "stored":
        tma.async_store(y_desc, [0, 0], y)
    else:
        both = mbarrier.allocate_mbarrier()
        mbarrier.init(both, count=1)
        mbarrier.arrive(both, count=1, from_cta=0)


@pytest.mark.parametrize("what, words", [
    ("made by hand", "takes barriers from mbarrier.allocate_mbarrier"),
    ("stored", "a copy to global memory is not modelled in a cluster"),
    ("routed", "from_cta=0 is not modelled"),
])  # fmt: skip
def test_what_is_not_modelled_in_a_cluster_is_said(what, words):
    with pytest.raises(gluon_model.ModelError, match=words):
        gluon_model.run(refused, 1, blocks()[2], what, num_ctas=2)


def test_numbers_of_ctas():
    for wrong in (0, 3, 32):
        with pytest.raises(ValueError, match=f"num_ctas is {wrong}: it must be a power of two, 16 at most"):
            gluon_model.run(wait_for_ever, 1, num_ctas=wrong)
