"""The reference is the equation: against its own loops, and its autograd against finite differences."""

import itertools
import math

import pytest
import torch

from kernels.recurrent_attention.reference import recurrent_attention_reference, recurrent_attention_step_reference
from tests.recurrent_attention import cases


def doubles(*sizes, gates=cases.GATES, cu_seqlens=None, seed=0):
    """float64 leaves, and the packing; cases.problem makes them on the kernels' device in float32."""
    leaves, _ = cases.problem(*sizes, gates=gates, initial=True, cu_seqlens=cu_seqlens, seed=seed)
    packing = None if cu_seqlens is None else torch.tensor(cu_seqlens)
    return {n: x.detach().cpu().double().requires_grad_() for n, x in leaves.items()}, packing


def by_the_letter(L, q, k, v, g, g_gamma, gk, gv, state, c):
    """One head, one number at a time: decay, then write, then read."""
    K, V = state.shape
    S, o = state.clone(), torch.zeros(L, V, dtype=torch.float64)
    for t, i, j in itertools.product(range(L), range(K), range(V)):
        S[i, j] = math.exp(g[t] + g_gamma + gk[t, i] + gv[t, j]) * S[i, j] + k[t, i] * v[t, j]
        o[t, j] += c * S[i, j] * q[t, i]
    return o, S


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("L", [0, 1, 2, 5])
def test_reference_is_the_equation(L, reverse):
    leaves, _ = doubles(1, L, 2, 1, 3, 2)
    x = {name: leaf.detach() for name, leaf in leaves.items()}
    o, final = recurrent_attention_reference(**x, output_final_state=True, reverse=reverse)
    order = slice(None) if not reverse else torch.arange(L - 1, -1, -1)
    for h in range(2):
        rows = [x[name][0, :, head][order] for name, head in (("q", h), ("k", 0), ("v", 0), ("g", h))]
        gates = x["g_gamma"][h], *(x[name][0, :, h][order] for name in ("gk", "gv"))
        want, state = by_the_letter(L, *rows, *gates, x["initial_state"][0, h], 3**-0.5)
        torch.testing.assert_close(o[0, :, h], want[order])
        torch.testing.assert_close(final[0, h], state)


@pytest.mark.share(5)
@pytest.mark.parametrize(
    "gates", [(), ("g",), ("g_gamma",), ("gk",), ("gv",), cases.GATES], ids=lambda gates: "+".join(gates) or "none"
)
@pytest.mark.parametrize("way", ["forward", "reverse", "packed", "packed reverse"])
def test_gradcheck(gates, way):
    leaves, packing = doubles(2, 3, 2, 1, 2, 3, gates=gates, cu_seqlens=[0, 2, 2, 5] if "packed" in way else None)

    def function(*tensors):
        return recurrent_attention_reference(
            **dict(zip(leaves, tensors, strict=True)), output_final_state=True, reverse="reverse" in way,
            cu_seqlens=packing,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))


def test_a_gate_of_minus_infinity_erases_and_has_gradient_zero():
    leaves, _ = doubles(1, 4, 1, 1, 2, 2, gates=("g",))
    with torch.no_grad():
        leaves["g"][0, 2] = -math.inf
    o, _ = recurrent_attention_reference(**leaves)
    alone, _ = recurrent_attention_reference(**{name: leaves[name][:, 2:] for name in ("q", "k", "v", "g")})
    assert torch.equal(o[:, 2:], alone)
    (dg,) = torch.autograd.grad(o.square().sum(), leaves["g"])
    assert dg[0, 2] == 0 and dg.isfinite().all() and dg[0, 1] != 0


def test_step_reference_is_one_token_of_the_sequence():
    leaves, _ = doubles(3, 1, 2, 1, 3, 2)
    x = {name: leaf.detach() for name, leaf in leaves.items()}
    state = x.pop("initial_state")
    o, final = recurrent_attention_reference(**x, initial_state=state, output_final_state=True)
    token = {name: value if name == "g_gamma" else value[:, 0] for name, value in x.items()}
    pool, slots = torch.randn(5, *state.shape[1:], dtype=torch.float64), torch.tensor([4, 0, 2])
    pool[slots] = state
    step_o, step_pool = recurrent_attention_step_reference(**token, state=pool, slots=slots)
    assert torch.equal(step_o, o[:, 0]) and torch.equal(step_pool[slots], final)
    assert torch.equal(step_pool[[1, 3]], pool[[1, 3]])
