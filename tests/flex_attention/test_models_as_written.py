"""What people write around a call: one projection for q, k and v, numbers of a layer, tables, functions that are compiled."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

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


def test_the_first_call_of_a_mod_may_be_inside_a_checkpoint():
    leaves = [t.requires_grad_() for t in heads()]
    slopes = torch.rand(2, device=DEVICE, requires_grad=True)

    def attend(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, m, n: torch.sin(score * slopes[h]) + slopes[h] / 3)

    results = []
    for call in (lambda *qkv: checkpoint(attend, *qkv, use_reentrant=False), attend):
        results.append(torch.autograd.grad(call(*leaves).square().sum(), (*leaves, slopes)))
    with torch.autograd.set_detect_anomaly(True):  # another mod, whose tracing must not look for NaN
        flex_attention(*leaves, lambda score, b, h, m, n: torch.cos(score * slopes[h])).sum().backward()
    torch.testing.assert_close(*results)


def test_a_counter_of_operations_sees_no_module_in_a_mod():
    leaves = [t.requires_grad_() for t in heads()]
    slopes = torch.rand(2, device=DEVICE, requires_grad=True)
    with FlopCounterMode(display=False):
        flex_attention(*leaves, lambda score, b, h, m, n: score - slopes.exp()[h] * (m - n)).sum().backward()
    assert slopes.grad.any()


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


class Scaled(torch.nn.Module):
    """Attention whose scores are multiplied by a number or a parameter."""

    def __init__(self, c):
        super().__init__()
        self.c = c

    def forward(self, q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, m, n: score * self.c)


def test_a_parameter_is_not_taken_for_the_number_that_another_layer_has_in_its_place():
    q, k, v = heads()
    numbers = Scaled(0.5)
    compiled = torch.compile(numbers, backend="eager", dynamic=True)
    for numbers.c in (0.5, 0.25):
        torch.testing.assert_close(compiled(q, k, v), numbers(q, k, v))
    learned = Scaled(torch.nn.Parameter(torch.tensor(0.3, device=DEVICE)))
    gradients = []
    for call in (torch.compile(learned, backend="eager", dynamic=True), learned):
        gradients.append(torch.autograd.grad(call(q, k, v).square().sum(), learned.c)[0])
    assert gradients[1] != 0
    torch.testing.assert_close(*gradients)


def test_a_fraction_is_not_taken_for_the_integer_that_stood_in_its_place():
    q, k, v = heads()

    def written():
        return lambda q, k, v, s: flex_attention(q, k, v, lambda score, b, h, m, n: score * s)

    for values in ((2, 3, 4), (0.5, 0.75, 0.25)):
        torch._dynamo.reset()
        plain = written()
        compiled = torch.compile(plain, backend="eager")
        for s in values:
            torch.testing.assert_close(compiled(q, k, v, s), plain(q, k, v, s))


def test_what_bounds_a_position_is_not_seen_through_another_number_made_of_it():
    q, k, v = heads()
    table, at = torch.tensor([0.0, 1.0], device=DEVICE), torch.arange(20, device=DEVICE)
    got = flex_attention(q, k, v, lambda s, b, h, m, n: s + table[m.bool().long()] * np.float32(2.0))
    scores = q @ k.mT / 4 + 2 * table[at.bool().long()][:, None]
    torch.testing.assert_close(got, scores.softmax(-1) @ v)
    assert flex_attention(q, k, v, lambda s, b, h, m, n: np.float32(1.0)).shape == v.shape


ONE_ELEMENT = {
    "as it is": lambda t: lambda s, b, h, m, n: s * t - t.exp() * (m - n),
    "indexed": lambda t: lambda s, b, h, m, n: s * t[0] - t[-1].exp() * (m - n),
    "cut": lambda t: lambda s, b, h, m, n: s * t[:1] - t[None, 0].exp() * (m - n),
    "transposed": lambda t: lambda s, b, h, m, n: s * t.view(1, 1).T - t.mean().exp() * (m - n),
    "summed": lambda t: lambda s, b, h, m, n: (s * t - t.squeeze().exp() * (m - n)).sum(-1),
}


@pytest.mark.parametrize("use", ONE_ELEMENT)
def test_a_learned_scale_has_one_element(use):
    """``nn.Parameter(torch.ones(1))``, as most layers write it."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    t = torch.full((1,), 0.7, device=DEVICE, requires_grad=True)
    got = flex_attention(q, k, v, ONE_ELEMENT[use](t))
    position = torch.arange(5, device=DEVICE)
    want = (q @ k.mT / 4 * t - t.exp() * (position[:, None] - position)).softmax(-1) @ v
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v, t)) for o in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def writes_into_captured(t):
    def mod(score, b, h, q_idx, kv_idx):
        t[0] = 5.0
        return score * t[h]

    return mod


def adds_to_captured(t):
    return lambda score, b, h, q_idx, kv_idx: score * t.add_(1)[h]


def writes_into_parts(t):
    def mod(score, b, h, q_idx, kv_idx):
        both = torch.zeros(2, device=score.device)
        both[0] = score
        return both[0] + t[h]

    return mod


def writes_what_a_view_sees(t):
    def mod(score, b, h, q_idx, kv_idx):
        t1 = t.clone()
        first = t1[0]
        t1 += 1
        return score * first

    return mod


def writes_out(t):
    def mod(score, b, h, q_idx, kv_idx):
        return torch.mul(score, t[h], out=torch.empty((), device=score.device))

    return mod


@pytest.mark.parametrize(
    "make", [writes_into_captured, adds_to_captured, writes_into_parts, writes_what_a_view_sees, writes_out]
)
def test_what_a_mod_writes_is_not_lost(make):
    t = torch.tensor([0.5, 2.0], device=DEVICE)
    with pytest.raises(ValueError, match="a mod writes") as caught:
        flex_attention(*torch.randn(3, 1, 2, 5, 16, device=DEVICE), make(t))
    assert "test_models_as_written.py" in str(caught.value)
    assert t.tolist() == [0.5, 2.0]
