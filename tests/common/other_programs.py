"""What other people's programs do to a function, for the rooms whose tests say that it works or is refused by name.

``function(*leaves)`` gives one tensor; ``name`` is the public function's, which messages show.
"""

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint


def gradients(function, leaves):
    return torch.autograd.grad(function(*leaves).float().square().sum(), leaves)


def refuses_transforms(function, leaves, name):
    values = [t.detach() for t in leaves]
    ones = [torch.ones_like(t) for t in values]
    with pytest.raises(RuntimeError, match=f"{name} cannot run under torch.func's jvp"):
        torch.func.jvp(function, tuple(values), tuple(ones))
    with pytest.raises(RuntimeError, match=f"{name} has no forward-mode derivative"), forward_ad.dual_level():
        function(forward_ad.make_dual(values[0], ones[0]), *values[1:])
    with pytest.raises(RuntimeError, match=f"{name} cannot run under torch.func's vmap"):
        torch.func.vmap(function)(*[t[None] for t in values])
    with pytest.raises(RuntimeError, match=f"{name} cannot run under torch.func's grad"):
        torch.func.grad(lambda *x: function(*x).sum())(*values)


def says_that_gradients_come_one_by_one(function, leaves, name):
    """``is_grads_batched`` works, with the same numbers, or says what to do instead."""
    out = function(*leaves)
    several = torch.randn(2, *out.shape, device=out.device)
    try:
        batched = torch.autograd.grad(out, leaves, several, is_grads_batched=True, retain_graph=True)
    except RuntimeError as error:
        assert "is_grads_batched" in str(error) and name in str(error)
        return
    for i, one in enumerate(several):
        for got, want in zip(batched, torch.autograd.grad(out, leaves, one, retain_graph=True), strict=True):
            torch.testing.assert_close(got[i], want)


def refuses_second_derivatives(function, leaves, name):
    with pytest.raises(RuntimeError, match=f"{name} has no second derivative.*reference"):
        made = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
        sum(g.sum() for g in made).backward()


def is_recorded(function, leaves, public):
    graph = torch.fx.symbolic_trace(function)
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"].count(public) == 1
    values = [t.detach() for t in leaves]
    torch.testing.assert_close(graph(*values), function(*values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(function, tuple(values))
    other = [torch.randn_like(t) for t in values]
    torch.testing.assert_close(traced(*other), function(*other))


def takes_negative_views(function, leaves):
    """A tensor whose negative bit is set: its memory holds the numbers with the other sign. As argument, and as gradient."""
    want = function(*leaves)
    grads = torch.autograd.grad(want, leaves, torch.ones_like(want), retain_graph=True)
    turned = [torch._neg_view(-t.detach()).requires_grad_() for t in leaves]
    assert all(t.is_neg() for t in turned)
    got = function(*turned)
    assert torch.equal(got, want)
    for a, b in zip(torch.autograd.grad(got, turned, torch._neg_view(-torch.ones_like(got))), grads, strict=True):
        assert torch.equal(a, b)


def fake_sequences_are_packed(function, leaves):
    """Under fake tensors, whose values nobody can read: ``function(*leaves, cu_seqlens)``."""
    values = [t.detach() for t in leaves]
    cu_seqlens = torch.tensor([0, 3, values[0].shape[1]], device=values[0].device)
    traced = make_fx(function, tracing_mode="symbolic")(*values, cu_seqlens)
    torch.testing.assert_close(traced(*values, cu_seqlens), function(*values, cu_seqlens))


def lets_saved_tensors_be_replaced(function, leaves):
    """As activation offloading does: what comes back is another tensor with the same values."""
    want, packed = gradients(function, leaves), []
    pack = lambda t: packed.append(t.data_ptr()) or t.detach().clone()  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = function(*leaves)
    got = torch.autograd.grad(out.float().square().sum(), leaves)
    assert {t.data_ptr() for t in leaves} & set(packed)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def notices_changes_in_place(function, leaves):
    out = function(*leaves)
    with torch.no_grad():
        leaves[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def can_be_checkpointed(function, leaves, use_reentrant):
    want = gradients(function, leaves)
    got = gradients(lambda *x: checkpoint(function, *x, use_reentrant=use_reentrant), leaves) if not use_reentrant else None
    if use_reentrant:  # which supports backward() alone
        checkpoint(function, *leaves, use_reentrant=True).float().square().sum().backward()
        got = [t.grad for t in leaves]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
