"""Captured tensors indexed in several steps, as torch reads them: what a step leaves is what the next one indexes."""

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.flex_attention import ModError, flex_attention

N = 20
STEPS = {
    "all at once": lambda t, b, h, m, n: t[b, h, m, n],
    "one after the other": lambda t, b, h, m, n: t[b][h][m][n],
    "behind a slice": lambda t, b, h, m, n: t[:, :, m][b][h][n],
    "two behind a slice": lambda t, b, h, m, n: t[:, :, m][b, h, n],
    "the last first": lambda t, b, h, m, n: t[..., n][..., m][b, h],
    "behind dots": lambda t, b, h, m, n: t[..., m, :][b, ..., n][h],
    "a slice in the middle": lambda t, b, h, m, n: t[b, :, m][h][n],
    "a number behind a slice": lambda t, b, h, m, n: torch.where(h == 0, t[:, :, m][b][0][n], t[:, np.int64(1), m][b, n]),
    "behind a part": lambda t, b, h, m, n: torch.where(h == 0, t[b, :, m][0, n], t[:, 1:, m][b][0][n]),
    "a dimension more": lambda t, b, h, m, n: t[None, b][0][None, h, :, n][0, m],
    "negative": lambda t, b, h, m, n: t[:, :, m][b - 2][h - 2][n - N],
}


@pytest.mark.parametrize("name", STEPS)
def test_in_steps(name):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, N, 16, device=runtime.device) for _ in range(3))
    table = torch.randn(2, 2, N, N, device=runtime.device, requires_grad=True)
    o = flex_attention(q, k, v, lambda s, b, h, m, n: s + STEPS[name](table, b, h, m, n))
    want = torch.softmax(q @ k.mT / 4 + table, -1) @ v
    torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-5)
    do = torch.randn_like(o)
    got, expected = (torch.autograd.grad(x, table, do)[0] for x in (o, want))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["behind a slice", "behind dots", "a number behind a slice", "a dimension more"])
def test_in_steps_inside_a_compiled_program(name):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, N, 16, device=runtime.device) for _ in range(3))
    table = torch.randn(2, 2, N, N, device=runtime.device)
    program = lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, m, n: s + STEPS[name](table, b, h, m, n))  # noqa: E731
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), program(q, k, v))


def test_too_many_indices_are_shown_with_their_line():
    q, table = torch.randn(1, 1, N, 16, device=runtime.device), torch.zeros(N, 100, device=runtime.device)
    with pytest.raises(ModError, match=r"(?s)table\[m\]\[n, h\].*too many indices"):
        flex_attention(q, q, q, lambda s, b, h, m, n: s + table[m][n, h])
