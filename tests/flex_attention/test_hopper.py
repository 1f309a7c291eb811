"""The warp-specialised forward kernel's own source on the model: no race under any schedule, planted faults found.

The zoo's numbers, of both passes, are in ``test_hopper_backward``.
"""

import pytest
import torch

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.common.operator import clear_caches
from kernels.flex_attention import causal_block_mask, create_block_mask, flex_attention, mods
from kernels.flex_attention.hopper import forward as hopper
from kernels.flex_attention.hopper import forward_kernel, scheduler
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)


from kernels import gluon_model
from tests.flex_attention.hopper_faults import FAULTS
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

RAGGED = (1, 4, 2, 200, 300, 64, 64)  # B, Hq, Hkv, M, N, D, Dv
FORWARD, BACKWARD = "attention_forward_hopper_kernel", "attention_gradients_hopper_kernel"
SCHEDULES = [("round-robin", 0), ("greedy", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]


def check(name="nothing", schedule="round-robin", seed=0, launches=1, backward=BACKWARD, **options):
    """A case of the zoo, forward and backward, against float64; the model ran both kernels and found nothing."""
    clear_caches()  # a table that a test has changed since
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        o, grads = cases.check(name, **{"shape": RAGGED, "dtype": torch.bfloat16, "BLOCK_SIZE": 128} | options)
    assert [result.kernel for result in results] == [FORWARD] + [backward] * launches
    assert all(result.ok for result in results), "\n\n".join(map(str, results))
    return (o.detach(), *grads), results


def random_call(shape, mask_mod=mods.causal):
    """``(problem, inputs)`` of random numbers."""
    clear_caches()
    B, Hq, Hkv, M, N, D, Dv = shape
    generator = torch.Generator().manual_seed(0)
    sizes = (B, Hq, M, D), (B, Hkv, N, D), (B, Hkv, N, Dv)
    tensors = [torch.randn(size, generator=generator).bfloat16() for size in sizes]
    mask = mask_mod and create_block_mask(mask_mod, B, Hq, M, N, device="cpu", BLOCK_SIZE=128)
    return cases.resolved(*tensors, None, mask, None, True)


# Numbers.


def test_what_a_mod_captures_is_read_inside_its_bounds(hopper_table):
    per_query, per_key = torch.randn(200), torch.randn(300)
    check(score_mod=lambda score, b, h, q_idx, kv_idx: score + per_query[q_idx] * per_key[kv_idx])


def test_a_derivative_that_is_infinite_where_the_mask_forbids(hopper_table):
    """The reference has no number there: 0 times infinity."""
    q, k, v = (torch.randn(1, 2, 256, 64).bfloat16().requires_grad_() for _ in range(3))
    with gluon_model.executing() as results:
        o = flex_attention(
            q, k, v, lambda score, b, h, q_idx, kv_idx: score / (q_idx - kv_idx + 1), causal_block_mask(256)
        )
        grads = torch.autograd.grad(o, (q, k, v), torch.randn_like(o))
    assert [result.kernel for result in results] == [FORWARD, BACKWARD] and all(result.ok for result in results)
    assert all(x.isfinite().all() and x.any() for x in (o, *grads))


@pytest.mark.parametrize("name", ["causal", "softcap"])
def test_other_tiles_and_rings(hopper_table, name):
    hopper_table["forward_hopper"] = {"BLOCK_N": 64, "STAGES": 3, "KEPT": 2}
    hopper_table["backward_hopper"] = {"BLOCK_M": 32, "STAGES": 2}
    check(name, shape=(1, 2, 1, 250, 700, 64, 64), schedule="random")


# Schedules, programs, orders.


def alone(schedule="round-robin", seed=0, shape=RAGGED):
    """``(what the forward kernel leaves, as bits; what the model found)``."""
    p, x = random_call(shape)
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        o, lse, _ = cases.outputs(p)
        hopper.USUAL.forward(p, x, o, lse, None)
    return [x.view(torch.uint8) for x in (o, lse)], results[0]


def test_every_schedule_leaves_the_same_bits(hopper_table):
    first, result = alone()
    assert result.grid == (3,)
    for schedule, seed in SCHEDULES:
        again, result = alone(schedule, seed)
        assert result.ok, result
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.share(2)
@pytest.mark.parametrize("names", scheduler.ORDERS)
def test_every_order_and_number_of_programs_leaves_the_same_bits(hopper_table, monkeypatch, names):
    first, _ = alone()
    monkeypatch.setattr(
        scheduler, "tile_order", lambda *_: dict(zip(("TILES_FIRST", "SERPENTINE"), names, strict=True))
    )
    for programs in (1, 2, 3, 5, 100):
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=programs: n)
        again, result = alone("random")
        assert result.grid == (min(programs, 8),)
        assert result.ok, result
        assert all(map(torch.equal, first, again)), programs


# Planted faults.


@pytest.fixture
def small_rings(hopper_table, monkeypatch):
    """One program for all items, rings of two: everything is used again."""
    hopper_table["forward_hopper"] = {"STAGES": 2, "KEPT": 1}
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 1)
    return hopper_table["forward_hopper"]


PLANTED = (1, 2, 1, 384, 384, 64, 64)  # 6 items of up to 3 tiles


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_without_a_fault_nothing_is_found(small_rings, schedule, seed):
    _, result = alone(schedule, seed, PLANTED)
    assert result.ok, result


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_under_every_schedule(small_rings, monkeypatch, fault):
    edits, wanted = FAULTS[fault]
    copy = planted(forward_kernel, *edits)
    monkeypatch.setattr(forward_kernel, FORWARD, copy[FORWARD])
    small_rings["KEPT"] = 1 + ("kept queries" in fault)
    for schedule, seed in SCHEDULES[:4]:
        _, result = alone(schedule, seed, PLANTED)
        assert found(result, *wanted, file=copy["__file__"]), f"{schedule}, seed {seed}:\n{result}"
