"""A call without mods and a mask that is alike an earlier one: whatever kernels depend on makes it another."""

import itertools
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import AuxRequest

from kernels import runtime
from kernels.common import plan as plans
from kernels.flex_attention import alike, flex_attention, problem
from kernels.flex_attention.portable import delta, dkdv, dq, forward
from tests.tensors import LAYOUTS, agree, hooked, laid_out, settled, takes_the_longer_way


@pytest.fixture(params=[True, False], ids=["one kernel for all gradients", "several"])
def known(request, monkeypatch):
    """``(query, key, value)`` of a call that is known by now."""
    table = problem.table_options
    monkeypatch.setattr(problem, "table_options", lambda *a: table(*a) | {"SHORT": 140 * request.param})
    monkeypatch.setattr(alike, "_plain", type(alike._plain)())
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 20, 16, device=runtime.device) for _ in range(3)]
    flex_attention(*tensors)
    assert len(alike._plain) == 1
    return tensors


def gradients(tensors, do, dlse=None, hook=None):
    leaves = [t.requires_grad_() for t in tensors]
    with hooked(hook):
        out = flex_attention(*leaves, return_lse=dlse is not None)
    return torch.autograd.grad(out, leaves, do if dlse is None else (do, dlse))


def test_a_known_call_is_not_checked_again_and_gives_the_same(known, monkeypatch):
    from kernels.flex_attention import operator

    q, k, v = known
    want = flex_attention(q + 1, k, v, kernel_options={"num_stages": 1}, return_lse=True)
    monkeypatch.setattr(operator, "_call", None)  # to call it would be a TypeError
    agree(flex_attention(q + 1, k, v, return_lse=True), want)
    for other in ({"scale": 0.25}, {"scale": 1}, {"enable_gqa": True}, {"kernel_options": {"num_stages": 1}}):
        with pytest.raises(TypeError):
            flex_attention(q, k, v, **other)


def test_what_the_checks_look_at(known):
    q, k, v = known
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


@pytest.mark.parametrize("first", LAYOUTS)
def test_tensors_that_lie_in_other_ways(known, first):
    """Those of a call, its gradients, and saved ones, which hooks may give back otherwise; after each."""
    do, dlse = torch.randn(1, 2, 20, 16, device=runtime.device), torch.randn(1, 2, 20, device=runtime.device)
    for more in (None, dlse):
        want = gradients([t.clone() for t in known], do, more)
        alike._plain.clear()
        leaves = [laid_out(t, first).requires_grad_() for t in known]
        out = flex_attention(*leaves, return_lse=more is not None)
        for i, j in itertools.product((first, *LAYOUTS, first), LAYOUTS if more is not None else (0,)):
            given = laid_out(do, i) if more is None else (laid_out(do, i), laid_out(more, j))
            agree(torch.autograd.grad(out, leaves, given, retain_graph=True), want)
        for i in (first, *LAYOUTS):
            agree(gradients([laid_out(t, i) for t in known], do, more), want)
        for place in range(5):  # query, key, value, o, lse
            for i in (first, *LAYOUTS):
                seen = []
                hook = lambda t, i=i: seen.append(t) or (laid_out(t, i) if len(seen) == place + 1 else t)  # noqa: B023, E731
                agree(gradients([laid_out(t, first) for t in known], do, more, hook), want)
                assert len(seen) == 5


def test_what_a_known_backward_pass_is_not_for(known):
    leaves = [t.requires_grad_() for t in known]
    o = flex_attention(*leaves)
    takes_the_longer_way(o, leaves)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.autograd.grad(o, leaves, forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))


def test_some_gradients_are_wanted(known):
    do = torch.randn_like(known[0])
    want = gradients([t.clone() for t in known], do)
    for needs in ((True, False, False), (False, True, False), (True, False, True), (False, True, True)):
        tensors = [t.clone().requires_grad_(need) for t, need in zip(known, needs, strict=True)]
        wanted = [t for t in tensors if t.requires_grad]
        agree(torch.autograd.grad(flex_attention(*tensors), wanted, do), [w for w, on in zip(want, needs, strict=True) if on])


def test_what_is_not_looked_at_is_always_alike(monkeypatch, known):
    """Where a launch's constants settle all, all that kernels are compiled for is the same in each of their launches,
    whatever hooks give back for o, and for the lse in 16 bits."""
    seen = settled(monkeypatch, forward, dkdv, delta, dq)
    for dtype, i in itertools.product((torch.float32, torch.bfloat16), LAYOUTS):
        leaves = [laid_out(t.to(dtype), i).requires_grad_() for t in known]
        for want, of in itertools.product((False, True), (None, *LAYOUTS, torch.float16)):

            def hook(t, of=of):
                if t.grad_fn is None or of is None:
                    return t
                if t.ndim == 3:
                    return t.half() if of is torch.float16 else t
                return t if of is torch.float16 else laid_out(t, of)

            flex_attention(*leaves, return_aux=AuxRequest(max_scores=want))
            with hooked(hook):
                out = flex_attention(*leaves, return_lse=want)
            for j, k in itertools.product(LAYOUTS, LAYOUTS):
                do = laid_out(torch.ones_like(known[0], dtype=dtype), j)
                torch.autograd.grad(
                    out, leaves, (do, laid_out(torch.ones_like(out[1]), k)) if want else do, retain_graph=True
                )
    assert all(len(set(of)) == 1 for of in seen.values())
    assert len(seen) > 3 and max(map(len, seen.values())) > 1
    kernels = {kernel for of in seen.values() for kernel, *_ in of}
    one = problem.table_options("backward_dkdv", "default", runtime.device)["SHORT"] > 0
    assert kernels == {forward.attention_forward_kernel, *[dkdv.attention_dkdv_kernel] * one}


def test_switches_are_asked(known, monkeypatch):
    for count, (where, switch) in enumerate([(alike, "matmul_in_tf32"), (torch, "are_deterministic_algorithms_enabled")], 2):
        on = getattr(where, switch)()
        monkeypatch.setattr(where, switch, lambda on=on: not on)
        flex_attention(*known)
        assert len(alike._plain) == count


def test_nothing_of_a_known_call_is_kept_alive(known):
    def call():
        leaves = [t.clone().requires_grad_() for t in known]
        out = flex_attention(*leaves)
        torch.autograd.grad(out, leaves, torch.ones_like(out))
        return [weakref.ref(t) for t in (*leaves, out)]

    assert [ref() for _ in range(3) for ref in call()] == [None] * 12


def test_plans_that_are_forgotten_are_so_here():
    flex_attention(*(torch.randn(1, 1, 20, 16, device=runtime.device) for _ in range(3)))
    assert alike._plain
    plans.forget()
    assert not alike._plain
