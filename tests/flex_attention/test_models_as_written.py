"""What people write around a call: one projection for q, k and v, numbers of a layer, tables, functions that are compiled."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels import runtime
from kernels.flex_attention import causal_block_mask, flex_attention
from kernels.flex_attention.reference import flex_attention_reference

DEVICE = runtime.device


class Layer(nn.Module):
    """q, k and v are views of one tensor; ``cap`` is a number of Python."""

    def __init__(self, cap):
        super().__init__()
        self.project, self.cap = nn.Linear(16, 48), cap

    def forward(self, x, block_mask):
        q, k, v = self.project(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, lambda s, b, h, m, n: self.cap * torch.tanh(s / self.cap), block_mask)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.thorough)])
def test_views_of_one_projection_and_numbers_that_are_tensors_and_symbols_to_dynamo(backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, mask = Layer(0.5).to(DEVICE), causal_block_mask(21, BLOCK_SIZE=16)
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    with torch.set_grad_enabled(backend != "eager"):
        for cap in (0.5, 0.25):
            layer.cap, results = cap, []
            for call in (layer, compiled):
                o = call(torch.ones(2, 21, 16, device=DEVICE).cumsum(1), mask)
                grads = torch.autograd.grad(o.square().sum(), layer.project.weight) if o.requires_grad else ()
                results.append((o, *grads))
            torch.testing.assert_close(*results)


def heads(M=20, **options):
    torch.manual_seed(0)
    return [torch.randn(1, 2, M, 16, device=DEVICE, **options) for _ in range(3)]


def test_an_embedding_is_a_table():
    table, wide = nn.Embedding(40, 2).to(DEVICE), nn.Embedding(40, 64).to(DEVICE)
    q, k, v = heads()

    def by_torch(score, b, h, m, n):
        return score + table(m - n + 20)[h] + F.embedding(n, wide.weight)[7]

    def by_index(score, b, h, m, n):
        return score + table.weight[m - n + 20, h] + wide.weight[n, 7]

    results = []
    for mod in (by_torch, by_index):
        o = flex_attention(q, k, v, mod)
        results.append((o, *torch.autograd.grad(o.square().sum(), (table.weight, wide.weight))))
    torch.testing.assert_close(*results)


def test_a_function_that_torch_has_compiled_is_compiled_here():
    q, k, v = heads()
    mod = torch.compile(lambda score, b, h, m, n: 2 * score, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(flex_attention(q, k, v, mod), flex_attention(q, k, v, scale=0.5))
    assert "2" in flex_attention.source(mod)


def test_what_torch_has_yet_to_negate():
    """The imaginary part of a conjugate: its sign is turned where it is read."""
    parts = [torch._neg_view(-t).requires_grad_() for t in heads()]
    plain = [t.requires_grad_() for t in heads()]
    gradient = heads()[0] + 1
    results = []
    for leaves, do in ((parts, torch._neg_view(-gradient)), (plain, gradient)):
        o = flex_attention(*leaves)
        results.append((o, *torch.autograd.grad(o, leaves, do)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    torch.testing.assert_close(results[0][0], flex_attention_reference(*plain))


def test_positions_in_64_bits_are_computed_in_64():
    """A hash of query and key, by which mods drop pairs, passes 2^31 at once."""
    q, k, v = heads()

    def dropped(score, b, h, m, n):
        mixed = (m.long() * 2654435761 + n.long() * 40503) >> 7
        return torch.where(mixed % 5 == 0, -torch.inf, score)

    at = torch.arange(20, device=DEVICE)
    mixed = (at[:, None] * 2654435761 + at * 40503) >> 7
    scores = (q @ k.mT / 4).masked_fill(mixed % 5 == 0, -torch.inf)
    torch.testing.assert_close(flex_attention(q, k, v, dropped), scores.softmax(-1) @ v)
    with pytest.raises(ValueError, match="dimension of size 5 with q_idx, needs 20"):
        flex_attention(q, k, v, lambda s, b, h, m, n: s + at[:5][m.long()])
