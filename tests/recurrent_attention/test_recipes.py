"""Every named special case of the docstring, in one line each, against its own definition."""

import math

import pytest
import torch

from kernels import runtime
from kernels.recurrent_attention import recurrent_attention
from tests.recurrent_attention import cases

B, T, H, K, V = 1, 19, 3, 6, 5


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(runtime.device)


q, k, v = (randn(B, T, H, size, seed=seed) for seed, size in enumerate((K, K, V)))
g, gk, gv = (-randn(B, T, H, *size, seed=seed).abs() for seed, size in ((3, ()), (4, (K,)), (5, (V,))))
dt, A = randn(B, T, H, seed=6).exp(), -randn(H, seed=7).exp()
heads = torch.arange(H, device=runtime.device)


def attention(q, k, v, rows=None, columns=None, scale=K**-0.5):
    """All pairs of tokens, float64: o_t = c sum_{s <= t} (q_t . k_s e^{sums of gates on rows}) v_s e^{sums on columns}."""
    q, k, v = (x.double().cpu().transpose(1, 2) for x in (q, k, v))

    def decay(gates, size):
        gates = torch.zeros(B, T, H, size).double() if gates is None else gates.double().cpu().expand(B, T, H, size)
        total = gates.transpose(1, 2).cumsum(2)
        return (total[:, :, :, None] - total[:, :, None]).exp()  # [B, H, t, s, size]

    scores = torch.einsum("bhti,bhsi,bhtsi->bhts", q, k, decay(rows, K)).tril()
    return scale * torch.einsum("bhts,bhsj,bhtsj->bthj", scores, v, decay(columns, v.shape[-1]))


def normalised():
    o, _ = recurrent_attention(q.exp(), k.exp(), torch.cat([v, torch.ones_like(v[..., :1])], -1))
    return o[..., :-1] / o[..., -1:]


def softmax_of_linear():
    scores = torch.einsum("bthi,bshi->bhts", q.double().exp(), k.double().exp()).tril()
    return torch.einsum("bhts,bshj->bthj", scores / scores.sum(-1, keepdim=True), v.double())


def state_space():
    """Mamba-2 by its own equation: h_t = e^{A dt} h_{t-1} + dt B_t x_t, y_t = C_t h_t."""
    state, ys = torch.zeros(B, H, K, V).double(), []
    C, B_, x, step, rate = (y.double().cpu() for y in (q, k, v, dt, A))
    for t in range(T):
        state = (rate * step[:, t]).exp()[..., None, None] * state
        state = state + step[:, t, :, None, None] * B_[:, t, ..., None] * x[:, t, :, None, :]
        ys.append(torch.einsum("bhi,bhij->bhj", C[:, t], state))
    return torch.stack(ys, 1)


def one(*args, **gates):
    return lambda: recurrent_attention(*args, **gates)[0]


retention, lightning = torch.log(1 - 2.0 ** (-5 - heads)), -8 / H * heads * (1 - 3 / 24)
RECIPES = {
    "linear attention": (one(q, k, v), lambda: attention(q, k, v)),
    "normalised linear attention": (normalised, softmax_of_linear),
    "retention": (one(q, k, v, g_gamma=retention), lambda: attention(q, k, v, retention[:, None])),
    "lightning attention": (one(q, k, v, g_gamma=lightning), lambda: attention(q, k, v, lightning[:, None])),
    "simple GLA": (one(q, k, v, g=g), lambda: attention(q, k, v, g[..., None])),
    "Mamba-2 (SSD)": (one(q, k, v * dt[..., None], g=A * dt, scale=1), state_space),
    "GLA": (one(q, k, v, gk=gk), lambda: attention(q, k, v, gk)),
    "HGRN-2": (one(q, 1 - gk.exp(), v, gk=gk), lambda: attention(q, 1 - gk.exp(), v, gk)),
    "gates on both sides": (one(q, k, v, gk=gk, gv=gv), lambda: attention(q, k, v, gk, gv)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name):
    ours, definition = (function() for function in RECIPES[name])
    assert cases.relative_error(ours, definition) <= 3e-6


def test_every_recipe_of_the_docstring_is_tested():
    table = recurrent_attention.__doc__.split("==\n")[1].split("    ==")[0]
    assert [line.split("  ")[2].strip() for line in table.splitlines()] == list(RECIPES)


def test_lightning_attentions_first_head_never_forgets():
    assert lightning[0] == 0 and math.isclose(retention[0].item(), math.log(31 / 32), rel_tol=1e-5)
