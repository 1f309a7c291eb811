"""Plain calls in turn, of tensors with other layouts: whatever kernels depend on makes another plan."""

import itertools
import weakref

import pytest
import torch
from torch.autograd import forward_ad

from kernels import runtime
from kernels.flex_attention import flex_attention
from tests.tensors import LAYOUTS, agree, hooked, laid_out, takes_the_longer_way


@pytest.fixture
def called():
    """``(query, key, value)`` of a call that has been made before."""
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 20, 16, device=runtime.device) for _ in range(3)]
    flex_attention(*tensors)
    return tensors


def gradients(tensors, do, dlse=None, hook=None):
    leaves = [t.requires_grad_() for t in tensors]
    with hooked(hook):
        out = flex_attention(*leaves, return_lse=dlse is not None)
    return torch.autograd.grad(out, leaves, do if dlse is None else (do, dlse))


def test_what_the_checks_look_at(called):
    q, k, v = called
    for wrong, message in (
        ((q.half(), k, v), "dtype"), ((q, k[:, :1], v), "value has shape"), (([q], k, v), "must be a tensor"),
        ((q, k[:, :, 1:], v), "value has shape"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            flex_attention(*wrong)
    with pytest.raises(ValueError, match="scale"):
        flex_attention(q, k, v, scale="1")
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        flex_attention(forward_ad.make_dual(q, q), k, v)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(flex_attention)(q[None], k[None], v[None])
    with torch.autocast(runtime.device.type, torch.bfloat16):
        assert flex_attention(q, k, v).dtype == torch.bfloat16


@pytest.mark.share(2)
@pytest.mark.parametrize("first", LAYOUTS)
def test_other_layouts(called, first):
    """Those of a call, its gradients, and saved ones, which hooks may give back otherwise; after each."""
    do, dlse = torch.randn(1, 2, 20, 16, device=runtime.device), torch.randn(1, 2, 20, device=runtime.device)
    for more in (None, dlse):
        want = gradients([t.clone() for t in called], do, more)
        leaves = [laid_out(t, first).requires_grad_() for t in called]
        out = flex_attention(*leaves, return_lse=more is not None)
        for i, j in itertools.product((first, *LAYOUTS, first), LAYOUTS if more is not None else (0,)):
            given = laid_out(do, i) if more is None else (laid_out(do, i), laid_out(more, j))
            agree(torch.autograd.grad(out, leaves, given, retain_graph=True), want)
        for i in (first, *LAYOUTS):
            agree(gradients([laid_out(t, i) for t in called], do, more), want)
        for place in range(5):  # query, key, value, o, lse
            for i in (first, *LAYOUTS):
                seen = []
                hook = lambda t, i=i: seen.append(t) or (laid_out(t, i) if len(seen) == place + 1 else t)  # noqa: B023, E731
                agree(gradients([laid_out(t, first) for t in called], do, more, hook), want)
                assert len(seen) == 5


def test_who_looks_on_at_a_backward_pass(called):
    leaves = [t.requires_grad_() for t in called]
    o = flex_attention(*leaves)
    takes_the_longer_way(o, leaves)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.autograd.grad(o, leaves, forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))


def test_some_gradients_are_wanted(called):
    do = torch.randn_like(called[0])
    want = gradients([t.clone() for t in called], do)
    for needs in ((True, False, False), (False, True, False), (True, False, True), (False, True, True)):
        tensors = [t.clone().requires_grad_(need) for t, need in zip(called, needs, strict=True)]
        wanted = [t for t in tensors if t.requires_grad]
        agree(torch.autograd.grad(flex_attention(*tensors), wanted, do), [w for w, on in zip(want, needs, strict=True) if on])


def test_nothing_of_a_call_is_kept_alive(called):
    def call():
        leaves = [t.clone().requires_grad_() for t in called]
        out = flex_attention(*leaves)
        torch.autograd.grad(out, leaves, torch.ones_like(out))
        return [weakref.ref(t) for t in (*leaves, out)]

    assert [ref() for _ in range(3) for ref in call()] == [None] * 12
