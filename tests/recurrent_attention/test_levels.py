"""What the interpreter leaves out of the levels' products: numbers made small enough for float16."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.recurrent_attention.chunk.decays import over_its_unit
from tests.recurrent_attention import cases


@triton.jit
def _unit_kernel(x_ptr, out_ptr, unit_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    x, unit = over_its_unit(tl.load(x_ptr + offsets), DTYPE)
    tl.store(out_ptr + offsets, x)
    tl.store(unit_ptr, unit)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 0.75, 1.0, 3.0, 1e30, 3e38])
def test_a_tile_over_its_unit_fits_into_float16_and_nothing_is_lost(size):
    torch.manual_seed(0)
    x = (torch.rand(8, 16, device=runtime.device) * 2 - 1).to(torch.bfloat16).float() * size
    x[3, 5] = -size
    out, unit = torch.empty_like(x), torch.empty(1, device=runtime.device)
    _unit_kernel[(1,)](x, out, unit, 8, 16, tl.bfloat16)
    assert out.abs().max() < 8 and (size < 1e-37 or out.abs().max() >= 1)
    assert torch.equal(out.double() * unit.double(), x.double())


def test_float32_needs_none():
    x = torch.full((8, 16), 1e30, device=runtime.device)
    out, unit = torch.empty_like(x), torch.empty(1, device=runtime.device)
    _unit_kernel[(1,)](x, out, unit, 8, 16, tl.float32)
    assert torch.equal(out, x) and unit.item() == 1


@pytest.mark.skipif(runtime.interpreted, reason="the interpreter computes bfloat16 as float32")
def test_dv_keeps_what_rounding_the_scores_would_lose():
    leaves, _ = cases.problem(1, 512, 2, K=128, V=128, gates=("gk",), dtype=torch.bfloat16, gate_dtype=torch.float32)
    dv, exact = cases.measure(leaves, mode="chunk")["dv"]
    assert cases.relative_error(dv, exact) < 2e-3  # 2.4e-3 from rounded scores alone; 1.7e-3 is dv's own rounding
