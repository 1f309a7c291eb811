"""Heads wider than 128 on the model: right numbers, the same bits under every schedule, planted faults found."""

import pytest
import torch
import triton

from kernels import runtime
from kernels.common import gluon as common_gluon
from kernels.common.operator import clear_caches
from kernels.flex_attention import causal_block_mask
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import fused, scheduler
from tests.flex_attention import cases

if common_gluon.gluon is None:
    pytest.skip("Gluon's copy engine, and the model of it, need Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.flex_attention.hopper import tiles, wide_kernel
from tests.flex_attention.hopper_faults import OF_WIDE_HEADS
from tests.gluon_model.cases import found, planted

pytestmark = pytest.mark.skipif(not runtime.interpreted, reason="on a GPU the other tests run these kernels themselves")

KERNEL = "attention_dkdv_wide_hopper_kernel"
SCHEDULES = [("round-robin", 0), ("greedy", 1), ("eager", 0), ("random", 1)]
SMALL = (1, 1, 1, 192, 192, 136, 136)  # B, Hq, Hkv, M, N, D, Dv: 3 items of up to 4 tiles


@pytest.fixture
def table(hopper_table, monkeypatch):
    """The kernels take every call; yields {kernel: other options}."""
    monkeypatch.setattr(fused, "reason_not", lambda *_: "heads of 256 do not fit the registers")
    return hopper_table


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("causal", (1, 2, 1, 130, 200, 256, 192), torch.bfloat16),
        ("nothing", (2, 1, 1, 70, 130, 136, 256), torch.float16),
        ("softcap", (1, 2, 2, 130, 130, 192, 136), torch.bfloat16),
    ],
)
def test_numbers(table, name, shape, dtype):
    with gluon_model.executing(schedule="random") as results:
        cases.check(name, shape=shape, dtype=dtype, BLOCK_SIZE=128)
    assert [result.kernel for result in results] == ["attention_forward_hopper_kernel", KERNEL]
    assert all(result.ok for result in results), "\n\n".join(map(str, results))


def alone(schedule="round-robin", seed=0):
    """``(what the kernel leaves, as bits; what the model found)`` of rows whose lse and delta are zero."""
    B, Hq, Hkv, M, N, D, Dv = SMALL
    clear_caches()
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=generator).bfloat16() for s in ((B, Hq, M, D), (B, Hkv, N, D), (B, Hkv, N, Dv)))
    p, x = cases.resolved(q, k, v, None, causal_block_mask(M, N), None, True)
    rows, columns = (triton.cdiv(length, 128) * 128 for length in (N, M))
    zeros, ds = torch.zeros(B * Hq, columns), torch.zeros(B * Hq, rows, columns, dtype=q.dtype)
    dk, dv = torch.full_like(k, float("nan")), torch.full_like(v, float("nan"))
    with gluon_model.executing(schedule=schedule, seed=seed) as results:
        hopper_backward.launch_dkdv(p, x, q, [zeros, zeros], (dk, dv), ds, (0, B * Hkv))
    return [x.view(torch.uint8) for x in (dk, dv, ds)], results[0]


def test_every_schedule_and_number_of_programs_leaves_the_same_bits(table, monkeypatch):
    first, result = alone()
    assert result.grid == (3,)
    for schedule, seed in SCHEDULES:
        monkeypatch.setattr(scheduler, "multiprocessors", lambda device, n=seed % 2 + 1: n)
        again, result = alone(schedule, seed)
        assert result.ok and result.grid == (seed % 2 + 1,), result
        assert all(map(torch.equal, first, again)), (schedule, seed)


@pytest.mark.parametrize("fault", OF_WIDE_HEADS)
def test_a_planted_fault_is_found_under_every_schedule(table, monkeypatch, fault):
    edits, wanted = OF_WIDE_HEADS[fault]
    copy = planted(wide_kernel, *edits)
    monkeypatch.setattr(wide_kernel, KERNEL, copy[KERNEL])
    monkeypatch.setattr(scheduler, "multiprocessors", lambda device: 1)
    for schedule, seed in SCHEDULES[::3]:
        _, result = alone(schedule, seed)
        files = copy["__file__"], tiles.__file__  # where queries are loaded
        assert any(found(result, *wanted, file=file) for file in files), f"{schedule}, seed {seed}:\n{result}"
