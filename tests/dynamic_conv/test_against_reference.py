"""The kernels against the float64 reference: every pair of options, random shapes, extremes of size and layout."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import runtime
from kernels.common import configs
from kernels.common.operator import clear_caches
from kernels.dynamic_conv import dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_reference
from tests.dynamic_conv import cases

PAIRS = list(cases.pairwise(cases.CHOICES))


@pytest.mark.parametrize("case", PAIRS, ids=range(len(PAIRS)))
def test_every_pair_of_options(case):
    cases.run(case)


@pytest.mark.slow
def test_every_product_of_options():
    names = [name for name in cases.CHOICES if name not in ("shape", "layout", "weight_dtype")]
    for values in itertools.product(*(cases.CHOICES[name] for name in names)):
        case = dict(zip(names, values, strict=True))
        cases.run(case | {"shape": (2, 13, 12), "layout": "flat", "weight_dtype": None})


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    B=st.integers(1, 3), T=st.integers(1, 40), D=st.integers(1, 70), W=st.integers(1, 9),
    layout=st.sampled_from(cases.LAYOUTS), state=st.booleans(), silu=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_random_shapes_and_layouts(B, T, D, W, layout, state, silu, seed):
    cases.check(B, T, D, W, layout=layout, state=state, final=state, activation="silu" if silu else None, seed=seed)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=6), W=st.integers(1, 6), state=st.booleans())
def test_random_packings(lengths, W, state):
    cu_seqlens = [0, *itertools.accumulate(lengths)]
    cases.check(D=8, W=W, cu_seqlens=cu_seqlens, state=state, final=state, bias=True, activation="silu")


TILES = [
    {"G": 1, "ROWS": 1, "RUN": 1, "BLOCK": 32},
    {"G": 4, "ROWS": 1, "RUN": 8, "BLOCK": 32},
    {"G": 1, "ROWS": 2, "RUN": 3, "BLOCK": 16},
    {"G": 2, "ROWS": 64, "RUN": 1, "BLOCK": 16},
    {"G": 4, "ROWS": 1, "RUN": 64, "BLOCK": 4},
]


@pytest.mark.share(2)
@pytest.mark.parametrize("packed", [False, True])
def test_the_tile_is_no_part_of_the_answer(monkeypatch, packed):
    """Any word, rows, run and block give the same bits: each sum is taken in the order of time, whoever takes it. Compiled
    for a GPU, products and sums may be fused differently from tile to tile, so there the last bit is free."""
    torch.manual_seed(0)
    B, T, D, W = 1, 21, 20, 4
    x, weight = torch.randn(B, T, D, device=runtime.device), torch.randn(B, T, D, W, device=runtime.device)
    dy = torch.randn_like(x)
    cu_seqlens = torch.tensor([0, 2, 2, 9, 21], device=runtime.device) if packed else None
    results = []
    for tile in TILES:
        monkeypatch.setattr(configs, "_says", lambda *_, tile=tile: dict(tile, num_warps=1))
        clear_caches()
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = dynamic_conv(*leaves, activation="silu", cu_seqlens=cu_seqlens)
        results.append((y, *torch.autograd.grad(y, leaves, dy)))
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            if runtime.interpreted:
                assert torch.equal(got, want)
            else:
                assert cases.relative_error(got, want) <= 1e-6


@pytest.mark.parametrize("B, T", [(2, 0), (0, 5), (2, 1), (2, 40)])
def test_runs_balanced_for_a_gpu_serve_every_size(monkeypatch, B, T):
    """A GPU's table gives tiles, from which the tile and the run's length follow, where the interpreter's gives these."""
    tile = {"BLOCK": 16, "num_warps": 1, "RESIDENT": 8, "RATE": 1.0, "FILL": 4.0}
    options = {"G": 4, "ROWS": 1, "TILES": [tile, {**tile, "BLOCK": 32, "num_warps": 2}]}
    says = lambda package, kernel, *rest: (options if kernel == "backward" else configs.table_says(package, kernel, *rest))  # noqa: E731
    monkeypatch.setattr(configs, "_says", says)
    x, weight = (torch.randn(s, device=runtime.device, requires_grad=True) for s in ((B, T, 12), (B, T, 12, 4)))
    dy = torch.randn(B, T, 12, device=runtime.device)
    dx, dk = torch.autograd.grad(dynamic_conv(x, weight), (x, weight), dy)
    assert (dx.shape, dk.shape) == (x.shape, weight.shape)
    if x.numel():
        want = torch.autograd.grad(dynamic_conv_reference(x, weight), (x, weight), dy)
        assert cases.relative_error(dx, want[0]) <= 2e-6 and cases.relative_error(dk, want[1]) <= 2e-6


@pytest.mark.parametrize("stride_zero", ["x", "weight", "dy"])
def test_expanded_inputs(stride_zero):
    torch.manual_seed(0)
    B, T, D, W = 2, 9, 8, 3
    x, weight, dy = torch.randn(B, T, D), torch.randn(B, T, D, W), torch.randn(B, T, D)
    if stride_zero == "x":
        x = x[:, :1].expand(B, T, D)
    elif stride_zero == "weight":
        weight = weight[:, :, :1].expand(B, T, D, W)
    else:
        dy = torch.tensor(1.0).expand(B, T, D)
    leaves = [t.to(runtime.device).detach().requires_grad_() for t in (x, weight)]
    dense = [t.detach().contiguous().requires_grad_() for t in leaves]
    ours = torch.autograd.grad(dynamic_conv(*leaves), leaves, dy.to(runtime.device))
    want = torch.autograd.grad(dynamic_conv(*dense), dense, dy.contiguous().to(runtime.device))
    assert all(torch.equal(a, b) for a, b in zip(ours, want, strict=True))


@pytest.mark.parametrize("B, T, D, W", [(2, 0, 4, 3), (2, 5, 0, 3), (2, 5, 4, 1), (1, 1, 1, 1)])
def test_sizes_of_zero_and_one(B, T, D, W):
    cases.check(B, T, D, W, state=True, final=True, bias=True, residual=True, activation="silu")


@pytest.mark.parametrize("packed", [False, True])
def test_no_sequences_at_all(packed):
    B, T, D, W = (1, 0, 4, 3) if packed else (0, 5, 4, 3)
    shapes = {"x": (B, T, D), "weight": (D, W), "bias": (D,), "initial_state": (0, D, W - 1)}
    inputs = {name: torch.randn(shape, device=runtime.device, requires_grad=True) for name, shape in shapes.items()}
    cu_seqlens = torch.tensor([0], device=runtime.device) if packed else None
    y, state = dynamic_conv(**inputs, cu_seqlens=cu_seqlens, output_final_state=True)
    assert (tuple(y.shape), tuple(state.shape)) == ((B, T, D), (0, D, W - 1))
    (y.sum() + state.sum()).backward()
    assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in inputs.values())


def test_large_magnitudes():
    """fp16 holds 65504; products of 300 and 300 do not fit, their fp32 sums do."""
    x = torch.full((1, 4, 4), 300.0, dtype=torch.float16, device=runtime.device)
    weight = torch.tensor([300.0, -300.0], dtype=torch.float16, device=runtime.device).expand(1, 4, 4, 2).contiguous()
    y = dynamic_conv(x, weight)
    assert torch.equal(y[:, 1:], torch.zeros_like(y[:, 1:]))


def test_the_same_call_gives_the_same_bits():
    torch.manual_seed(0)
    x, weight = (torch.randn(s, device=runtime.device, requires_grad=True) for s in ((2, 40, 24), (24, 4)))
    bias = torch.randn(24, device=runtime.device, requires_grad=True)
    runs = []
    for _ in range(3):
        y = dynamic_conv(x, weight, bias=bias, activation="silu")
        runs.append((y, *torch.autograd.grad(y.square().sum(), (x, weight, bias))))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))
