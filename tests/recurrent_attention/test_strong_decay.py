"""Gradients of strong gates: what the published running sums lose to cancellation, and a gate of -inf makes NaN of."""

import math

import pytest
import torch

from tests.recurrent_attention import cases

KINDS = [("recurrent", "g"), ("chunk", "g"), ("recurrent", "gk"), ("chunk", "gk"), ("recurrent", "gv")]
STRONG = -15
# The acceptance is 1e-4. Measured on the strong gates alone: 2.4e-6, and 9e-6 in chunks, where they add up before a
# difference is taken; the published running sum is off by factors.
LARGEST = {"recurrent": 8e-6, "chunk": 3e-5}


def constant(shape, generator):
    return torch.full(shape, -20.0)


def one_in_16(shape, generator):
    gates = torch.full(shape, -0.05)
    gates.view(-1)[torch.randperm(gates.numel(), generator=generator)[: -(-gates.numel() // 16)]] = -20.0
    return gates


def uniform(shape, generator):
    return -25 * torch.rand(shape, generator=generator)


def erased(shape, generator):
    return torch.where(one_in_16(shape, generator) == -20.0, -math.inf, -0.05)


def gradients(mode, gate, pattern, dtype=torch.float32, **options):
    """The gate, and ``compare``'s pairs, with a nonzero initial state and gradient of the final state."""
    leaves, packing = cases.problem(1, 40, 1, 1, 12, 16, gates=[gate], initial=True, dtype=dtype)
    with torch.no_grad():
        leaves[gate].copy_(pattern(leaves[gate].shape, torch.Generator().manual_seed(3)))
    pairs = cases.compare(leaves, mode=mode, final=True, **options, **packing)
    assert all(got.isfinite().all() for got, _ in pairs.values())
    return leaves[gate].detach(), *pairs[f"d{gate}"]


@pytest.mark.parametrize("pattern", [constant, one_in_16, uniform])
@pytest.mark.parametrize(("mode", "gate"), KINDS)
def test_the_gradient_of_strong_gates_alone(mode, gate, pattern):
    values, got, exact = gradients(mode, gate, pattern)
    strong = values <= STRONG
    assert strong.any() and exact[strong].count_nonzero() == strong.sum()
    error = cases.relative_error(got[strong], exact[strong])
    assert error <= LARGEST[mode], f"{error:.1e}"


@pytest.mark.parametrize(("mode", "gate"), KINDS)
def test_a_gate_of_minus_infinity_has_gradient_zero(mode, gate):
    values, got, exact = gradients(mode, gate, erased)
    erasing = values == -math.inf
    assert erasing.any() and got[erasing].count_nonzero() == 0
    assert got[~erasing].count_nonzero() > 0.8 * (~erasing).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("mode", "gate"), KINDS)
def test_a_masks_large_negative_numbers_cost_no_digits(mode, gate, dtype):
    """-1e4 and -1e9 are what programs write for "forget all": they give the bits of -inf, and the small gates that follow
    keep their digits."""
    leaves, packing = cases.problem(1, 73, 1, 1, 12, 16, gates=[gate], initial=True, dtype=dtype)
    found = []
    for low, lower in ((-1e4, -1e9), (-math.inf, -math.inf)):
        with torch.no_grad():
            leaves[gate][:, ::7] = low
            leaves[gate][:, 3::14] = lower
        found.append([got for got, _ in cases.measure(leaves, mode=mode, final=True, **packing).values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
def test_strong_decay_walked_in_reverse(mode):
    values, got, exact = gradients(mode, "g", one_in_16, reverse=True)
    assert cases.relative_error(got[values <= STRONG], exact[values <= STRONG]) <= LARGEST[mode]


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
def test_strong_decay_in_bfloat16(mode):
    """The numbers are rounded once, at the end, so even the gates that decay everything away keep bfloat16's digits."""
    values, got, exact = gradients(mode, "g", one_in_16, dtype=torch.bfloat16)
    assert cases.relative_error(got[values <= STRONG], exact[values <= STRONG]) <= cases.TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
def test_the_gradient_of_a_head_of_constant_strong_decay(mode):
    leaves, _ = cases.problem(1, 40, 2, 2, 12, 16, gates=["g_gamma"], initial=True)
    with torch.no_grad():
        leaves["g_gamma"].copy_(torch.tensor([-0.05, -20.0]))
    pairs = cases.compare(leaves, mode=mode, final=True)
    got, exact = (x[1:] for x in pairs["dg_gamma"])
    assert cases.relative_error(got, exact) <= 1e-4  # measured 2.4e-5, in chunks


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
def test_a_running_sum_of_differences_would_fail_here(mode):
    """The published identity, in float32 on the same numbers: its error on the strong gates is what these tests refuse."""
    leaves, _ = cases.problem(1, 40, 1, 1, 12, 16, gates=["g"])
    with torch.no_grad():
        leaves["g"].copy_(one_in_16(leaves["g"].shape, torch.Generator().manual_seed(3)))
    pairs = cases.compare(leaves, mode=mode)
    q, k, dq, dk = leaves["q"], leaves["k"], pairs["dq"][0], pairs["dk"][0]
    published = ((q * dq).sum(-1) - (k * dk).sum(-1)).flip(1).cumsum(1).flip(1)
    strong = leaves["g"] <= STRONG
    got, exact = pairs["dg"]
    assert cases.relative_error(published[strong], exact[strong]) > 1
    assert cases.relative_error(got[strong], exact[strong]) <= LARGEST[mode]
