"""One weight for all tokens: the walks' tiles are no part of the answer, and every product lands in exactly one run's sum."""

import pytest
import torch

from kernels import runtime
from kernels.common import configs
from kernels.dynamic_conv import dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_reference
from tests.dynamic_conv import cases

TILES = [
    {"G": 4, "AHEAD": 8, "ROWS": 1, "RUN": 8, "BLOCK": 32},
    {"G": 1, "AHEAD": 3, "ROWS": 2, "RUN": 4, "BLOCK": 16},  # 4 is no multiple of 3: runs are of 6
    {"G": 2, "AHEAD": 2, "ROWS": 16, "RUN": 2, "BLOCK": 16},
]


def launched_with(tile):
    says = lambda package, kernel, *rest: (  # noqa: E731
        dict(tile, num_warps=1) if "static" in kernel else configs.table_says(package, kernel, *rest)
    )
    return configs.instead(says)


def test_the_tile_is_no_part_of_the_answer():
    """What is no sum over time has the same bits from any tile; such sums are cut elsewhere, and agree to rounding."""
    torch.manual_seed(0)
    B, T, D, W, N = 1, 17, 12, 4, 4
    make = lambda *shape: torch.randn(shape, device=runtime.device, requires_grad=True)  # noqa: E731
    leaves = make(B, T, D), make(D, W), make(D), make(N, D, W - 1)
    cu_seqlens = torch.tensor([0, 2, 2, 7, 17], device=runtime.device)
    dy = torch.randn(B, T, D, device=runtime.device)
    results = []
    for tile in TILES:
        with launched_with(tile):
            x, weight, bias, state = leaves
            y = dynamic_conv(
                x, weight, bias=bias, activation="silu", initial_state=state, cu_seqlens=cu_seqlens, residual=x.detach()
            )
            results.append((y, *torch.autograd.grad(y, leaves, dy)))
    for result in results[1:]:
        for name, got, want in zip(("y", "dx", "dweight", "dbias", "dstate"), result, results[0], strict=True):
            if runtime.interpreted and name in ("y", "dx", "dstate"):
                assert torch.equal(got, want), name
            else:
                assert cases.relative_error(got, want) <= 1e-6, name


@pytest.mark.parametrize("needs", ["x", "weight", "bias", "weight and bias"])
@pytest.mark.skipif(not runtime.interpreted, reason="on CPU tensors")
def test_gradients_that_nobody_wants_are_left_out(needs):
    torch.manual_seed(0)
    given = {"x": torch.randn(2, 11, 12), "weight": torch.randn(12, 3), "bias": torch.randn(12)}
    dy = torch.randn(2, 11, 12)
    leaves = [given[name].requires_grad_() for name in given if name in needs]
    got = torch.autograd.grad(dynamic_conv(activation="silu", **given), leaves, dy)
    want = torch.autograd.grad(dynamic_conv_reference(activation="silu", **given), leaves, dy)
    assert all(cases.relative_error(a, b) <= 2e-6 for a, b in zip(got, want, strict=True))


def test_explain_tells_of_the_second_launch():
    x, every = torch.zeros(2, 64, 512, device=runtime.device), torch.zeros(2, 64, 512, 4, device=runtime.device)
    assert "the sum of the weight gradient's" in dynamic_conv.explain(x, every[0, 0])
    assert "the sum of" not in dynamic_conv.explain(x, every)
