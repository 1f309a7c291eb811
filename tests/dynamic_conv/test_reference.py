"""The reference is the equation: against its own double loop, and its autograd against finite differences."""

import itertools

import pytest
import torch

from kernels.dynamic_conv.reference import dynamic_conv_reference, dynamic_conv_step_reference


def by_the_letter(x, weight, state, L):
    """u[t, d] = sum_w k[t, d, w] X[t-W+1+w, d], one number at a time."""
    D, W = weight.shape[-2:]
    X = lambda j, d: x[j, d] if j >= 0 else state[d, W - 1 + j]  # noqa: E731
    u = torch.zeros(L, D, dtype=torch.float64)
    for t, d, w in itertools.product(range(L), range(D), range(W)):
        u[t, d] += weight[t, d, w] * X(t - W + 1 + w, d)
    final = torch.zeros(D, W - 1, dtype=torch.float64)
    for d, i in itertools.product(range(D), range(W - 1)):
        final[d, i] = X(L - (W - 1) + i, d)
    return u, final


@pytest.mark.parametrize("L", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("W", [1, 2, 4, 5])
def test_reference_is_the_equation(L, W):
    torch.manual_seed(0)
    x, weight, state = (torch.randn(s, dtype=torch.float64) for s in ((L, 3), (L, 3, W), (3, W - 1)))
    y, final = dynamic_conv_reference(x[None], weight[None], initial_state=state[None], output_final_state=True)
    want_y, want_final = by_the_letter(x, weight, state, L)
    torch.testing.assert_close(y[0], want_y)
    torch.testing.assert_close(final[0], want_final)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("cu_seqlens", [None, [0, 2, 2, 6]])
@pytest.mark.parametrize("static", [False, True])
def test_gradcheck(activation, cu_seqlens, static):
    torch.manual_seed(0)
    B, T, D, W = (2, 4, 2, 3) if cu_seqlens is None else (1, 6, 2, 3)
    N = B if cu_seqlens is None else 3
    shapes = [(B, T, D), (D, W) if static else (B, T, D, W), (D,), (B, T, D), (N, D, W - 1)]
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    packing = None if cu_seqlens is None else torch.tensor(cu_seqlens)

    def function(x, weight, bias, residual, state):
        return dynamic_conv_reference(
            x, weight, bias=bias, residual=residual, activation=activation, initial_state=state,
            output_final_state=True, cu_seqlens=packing,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, inputs)


def test_step_reference_is_one_token_of_the_sequence():
    torch.manual_seed(0)
    x, weight, state = torch.randn(3, 1, 5), torch.randn(3, 1, 5, 4), torch.randn(3, 5, 3)
    y, final = dynamic_conv_reference(x, weight, initial_state=state, output_final_state=True)
    step_y, step_state = dynamic_conv_step_reference(x[:, 0], weight[:, 0], state)
    assert torch.equal(step_y, y[:, 0]) and torch.equal(step_state, final)
