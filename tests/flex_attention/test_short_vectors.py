"""Mods that compare short vectors of captured tensors: values and gradients beside autograd's, and what cannot be done."""

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.flex_attention import ModError, flex_attention
from tests.flex_attention.cases import relative_error

DEVICE = runtime.device
M, D = 20, 3
TOKENS = torch.tensor([0, 5, 17], device=DEVICE)
LONGEST = torch.linspace(-1, 1, M * 64, device=DEVICE).sin().view(M, 64)
WIDEST = LONGEST[:, :32]


def tensors():
    torch.manual_seed(0)
    points, weights = torch.randn(M, D, device=DEVICE), torch.rand(D, device=DEVICE) + 0.5
    return points.requires_grad_(), weights.requires_grad_()


MODS = {
    "gaussian": lambda s, m, n, x, w: s - (x[m] - x[n]).pow(2).sum(-1),
    "dot": lambda s, m, n, x, w: s + torch.dot(x[m], x[n]),
    "matmul": lambda s, m, n, x, w: s + x[m] @ x[n],
    "weighted": lambda s, m, n, x, w: s + (w * x[m] * x[n] / 2).mean(),
    "weights behind": lambda s, m, n, x, w: s * (x[m] * w).sum(),
    "norm": lambda s, m, n, x, w: s - (x[m] - x[n]).norm(),
    "norm of torch": lambda s, m, n, x, w: s - torch.linalg.vector_norm(x[m] + 1, dim=-1) - torch.norm(x[n], p=1),
    "functions": lambda s, m, n, x, w: s * torch.sigmoid(x[m]).sum() + torch.exp(-(x[n] ** 2)).amax(),
    "taken apart": lambda s, m, n, x, w: s + x[m][0] * x[n][-1] + x[m][n % D] + sum(x[n]),
    "unpacked": lambda s, m, n, x, w: s + unpacked(x, m, n),
    "columns": lambda s, m, n, x, w: s + (x.T[:, m] * x[n, 0:3]).sum(0) + x[m, 1:].sum(),
    "conditions": lambda s, m, n, x, w: torch.where((x[m] > x[n] - 3).all(), s, s * 0.5) + (x[m] > 0).sum(),
    "where": lambda s, m, n, x, w: s + torch.where(x[m] > 0, x[n], 1.0).prod(),
    "a network": lambda s, m, n, x, w: s + (w * torch.relu(x[:3, 1] * (m - n) / M + w)).sum(),
    "a look": lambda s, m, n, x, w: torch.where(torch.isin(n, TOKENS) | (m == TOKENS).any(), s, s * 0.5),
    "a place": lambda s, m, n, x, w: s * torch.searchsorted(TOKENS, m, right=True) + torch.bucketize(m - n, TOKENS - 9),
    "a stack": lambda s, m, n, x, w: s - torch.stack([m % 4 - n % 4 + 0.5, m // 4 - n // 4 + x[m, 0]]).norm(),
    "similar": lambda s, m, n, x, w: s + F.cosine_similarity(x[m], x[n], dim=-1) + F.normalize(x[m], dim=-1)[0],
    "largest": lambda s, m, n, x, w: s + (x[m].max() * x[n] - torch.min(x[n])).sum() + torch.max(x[m], x[n]).sum(),
    "einsum": lambda s, m, n, x, w: s + torch.einsum("d,d->", x[m].float(), x[n]) - F.pairwise_distance(x[m], x[n] + 1),
    "the last": lambda s, m, n, x, w: s + x[m][..., 0] + x[n].to(torch.float32)[(1,)],
    "thirty-two": lambda s, m, n, x, w: s + torch.dot(WIDEST[m], WIDEST[n] - 1) / 9,
    "sixty-four of a query": lambda s, m, n, x, w: s * (LONGEST[m] * LONGEST[0]).sum() + (LONGEST[n] == n).any(),
    "score in it": lambda s, m, n, x, w: (s * x[m]).sum() + (2 - x[n]).clamp(min=0).sum() - (-x[m]).abs().sum(),
}


def unpacked(x, m, n):
    a, b, c = x[m] - x[n]
    return a * b - c


def dense(mod, x, w):
    """The mod on all pairs, one after the other, as PyTorch computes it."""
    rows = torch.arange(M, device=DEVICE)
    return lambda scores: torch.stack(
        [torch.stack([mod(scores[m, n], rows[m], rows[n], x, w) for n in range(M)]) for m in range(M)]
    )


@pytest.mark.parametrize("name", MODS)
def test_against_pytorch(name):
    mod, (x, w) = MODS[name], tensors()
    q, k, v = (torch.randn(1, 1, M, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    o = flex_attention(q, k, v, lambda s, b, h, m, n: mod(s, m, n, x, w))
    want = torch.softmax(dense(mod, x, w)(q[0, 0] @ k[0, 0].T / 4), -1) @ v[0, 0]
    assert relative_error(o[0, 0], want) < 1e-5
    leaves = [q, k, v, x, w]
    got = torch.autograd.grad(o.square().sum(), leaves, allow_unused=True)
    expected = torch.autograd.grad(want.square().sum(), leaves, allow_unused=True)
    for a, b in zip(got, expected, strict=True):
        if b is not None:
            assert relative_error(a, b) < 2e-5
        else:
            assert a is None or not a.any()


@pytest.mark.parametrize(
    ("mod", "line", "why"),
    [
        (lambda s, b, h, m, n: s + tensors()[0][m], "s + tensors()[0][m]", "index every dimension"),
        (lambda s, b, h, m, n: s + POINTS[m].cumsum(0).sum(), "POINTS[m].cumsum(0)", "cumsum is not to be had"),
        (lambda s, b, h, m, n: s + (POINTS[m] * PAIRS[n]).sum(), "POINTS[m] * PAIRS[n]", "vectors of 3 and 2 elements"),
        (lambda s, b, h, m, n: s + (POINTS[m] * MATRIX).sum(), "POINTS[m] * MATRIX", "a tensor of another shape"),
        (lambda s, b, h, m, n: s + (POINTS[m] + 1)[n], "(POINTS[m] + 1)[n]", "only what is captured can be indexed"),
        (lambda s, b, h, m, n: s + POINTS[m].max(0)[0], "POINTS[m].max(0)", "not to be had: amax"),
        (lambda s, b, h, m, n: s + LONG[m].sum(), "LONG[m].sum()", r"at most 64 numbers .* not \[200\]"),
        (lambda s, b, h, m, n: s + (s * LONG[0]).sum(), "(s * LONG[0])", r"at most 64 numbers .* not \[200\]"),
        (lambda s, b, h, m, n: s + torch.dot(LONGEST[m], LONGEST[n]), "torch.dot(LONGEST[m]", "of 64 .* at most 32"),
        (lambda s, b, h, m, n: (LONGEST[m, :33] * s).sum(), "(LONGEST[m, :33]", "of 33 .* at most 32"),
        (lambda s, b, h, m, n: s - (LEARNED[m] - LEARNED[n]).norm(), "(LEARNED[m] - LEARNED[n])", "34 sums .* at most 32"),
    ],
)
def test_what_cannot_be_done_shows_the_line(mod, line, why):
    q = torch.randn(1, 1, M, 16, device=DEVICE)
    with pytest.raises(ModError, match=f"(?s){why}") as error:
        flex_attention(q, q, q, mod)
    assert line in str(error.value) and "mods/scalars.py" not in str(error.value)


LEARNED = LONGEST[:, :17].clone().requires_grad_()
POINTS, PAIRS, MATRIX, LONG = (torch.ones(s, device=DEVICE) for s in ((M, 3), (M, 2), (3, 3), (M, 200)))
