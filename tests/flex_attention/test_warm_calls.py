"""A call like one before rebuilds nothing; whatever has changed since is noticed; and nothing outlives its mod."""

import functools
import gc
import weakref

import pytest
import torch

from kernels import runtime
from kernels.common.operator import clear_caches
from kernels.flex_attention import causal_block_mask, flex_attention, mods, plan, problem
from kernels.flex_attention.mods import bind
from kernels.flex_attention.reference import flex_attention_reference

DEVICE = runtime.device
FACTOR = 2.0


def inputs(tokens=20):
    torch.manual_seed(0)
    return [torch.randn(1, 2, tokens, 16, device=DEVICE, requires_grad=True) for _ in range(3)]


def passes(q, k, v, *arguments):
    return torch.autograd.grad(flex_attention(q, k, v, *arguments).square().sum(), (q, k, v))


def test_a_warm_call_rebuilds_nothing(monkeypatch):
    q, k, v = inputs()
    arguments = mods.learned_alibi(torch.rand(2, device=DEVICE)), causal_block_mask(20, BLOCK_SIZE=16, device=DEVICE)
    cold = passes(q, k, v, *arguments)

    def again(*_, **__):
        raise AssertionError("made again")

    monkeypatch.setattr(bind, "Fingerprint", again)
    monkeypatch.setattr(plan, "Problem", again)
    monkeypatch.setattr(plan.Plan, "__init__", again)
    monkeypatch.setattr(problem, "configuration", again)
    monkeypatch.setattr(problem.Problem, "launch_options", again)
    assert all(map(torch.equal, passes(q, k, v, *arguments), cold))
    monkeypatch.undo()
    clear_caches()
    assert all(map(torch.equal, passes(q, k, v, *arguments), cold))


def variable():
    factor = 2.0

    def change(to):
        nonlocal factor
        factor = to

    return lambda score, b, h, q_idx, kv_idx: score * factor, change


def a_global():
    space = {"factor": 2.0}
    exec("def mod(score, b, h, q_idx, kv_idx):\n    return score * factor", space)
    return space["mod"], lambda to: space.update(factor=to)


def a_new_global():
    space = {"__builtins__": {"abs": lambda x: 2.0 * x}}
    exec("def mod(score, b, h, q_idx, kv_idx):\n    return abs(score)", space)
    return space["mod"], lambda to: space.update(abs=lambda x: to * x)


def in_a_list():
    factors = [2.0]
    return lambda score, b, h, q_idx, kv_idx: score * factors[0], lambda to: factors.__setitem__(0, to)


def in_a_dict():
    factors = {"one": 2.0}
    return lambda score, b, h, q_idx, kv_idx: score * factors["one"], lambda to: factors.update(one=to)


def default():
    def mod(score, b, h, q_idx, kv_idx, factor=2.0):
        return score * factor

    return mod, lambda to: setattr(mod, "__defaults__", (to,))


def keyword():
    def mod(score, b, h, q_idx, kv_idx, *, factor=2.0):
        return score * factor

    return mod, lambda to: mod.__kwdefaults__.update(factor=to)


def code():
    def mod(score, b, h, q_idx, kv_idx):
        return score * 2.0

    def other(score, b, h, q_idx, kv_idx):
        return score * 3.0

    return mod, lambda to: setattr(mod, "__code__", other.__code__)


def of_an_object():
    class Holder:
        factor = 2.0

    holder = Holder()
    return lambda score, b, h, q_idx, kv_idx: score * holder.factor, lambda to: setattr(holder, "factor", to)


def tensor():
    factor = torch.full((2,), 2.0, device=DEVICE)
    return lambda score, b, h, q_idx, kv_idx: score * factor[h], lambda to: factor.fill_(to)


def layout():
    factor = torch.full((2,), 2.0, device=DEVICE)
    longer = torch.tensor([3.0, 9.0, 3.0, 9.0], device=DEVICE)[::2]
    return lambda score, b, h, q_idx, kv_idx: score * factor[h], lambda to: factor.set_(longer)


CHANGES = [
    variable, a_global, a_new_global, in_a_list, in_a_dict, default, keyword, code, of_an_object, tensor, layout,
]  # fmt: skip


@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_a_change_is_noticed(make):
    q, k, v = inputs()
    mod, change = make()
    for factor in (2.0, 2.0, 3.0, 3.0):
        if factor == 3.0:
            change(factor)
        want = flex_attention_reference(q, k, v, lambda score, *_: score * factor)  # noqa: B023
        torch.testing.assert_close(flex_attention(q, k, v, mod), want, rtol=1e-5, atol=1e-5)


def test_a_tensor_that_wants_a_gradient_from_now_on():
    q, k, v = (t.detach() for t in inputs())
    slopes = torch.rand(2, device=DEVICE)
    mod = mods.learned_alibi(slopes)
    assert not flex_attention(q, k, v, mod).requires_grad
    slopes.requires_grad_()
    (gradient,) = torch.autograd.grad(flex_attention(q, k, v, mod).sum(), slopes)
    assert gradient.isfinite().all()


def test_other_tensors_of_the_same_shape_are_told_apart():
    """By strides, dtype and alignment."""
    q, k, v = (t.detach() for t in inputs())
    want = flex_attention(q, k, v)
    others = [q.mT.contiguous().mT, torch.cat([q.new_zeros(1), q.flatten()])[1:].view_as(q)]
    for other in others:
        torch.testing.assert_close(flex_attention(other, k, v), want)
    assert flex_attention(q.half(), k.half(), v.half()).dtype == torch.float16


def with_helper(bias):
    helper = lambda score, h: score * bias[h]  # noqa: E731
    return lambda score, b, h, m, n: helper(score, h)


def of_a_class(bias):
    class Mod:
        def __call__(self, score, b, h, m, n):
            return score * bias[h]

    return Mod()


def of_a_module(bias):
    class Mod(torch.nn.Module):
        def forward(self, score, b, h, m, n):
            return score * bias[h]

    return Mod()


MADE = {
    "object": of_a_class,
    "module": of_a_module,
    "zoo": mods.learned_alibi,
    "function": lambda bias: lambda score, b, h, m, n: score * bias[h],
    "with a helper": with_helper,
    "default": lambda bias: lambda score, b, h, m, n, bias=bias: score * bias[h],
    "partial": lambda bias: functools.partial(lambda bias, score, b, h, m, n: score * bias[h], bias),
}


@pytest.mark.parametrize("kind", MADE)
def test_nothing_outlives_its_mod(kind):
    q, k, v = (t.detach() for t in inputs())
    bias = torch.rand(2, device=DEVICE)
    mod = MADE[kind](bias)
    flex_attention(q, k, v, mod)
    flex_attention(q, k, v, mod)
    gone = [weakref.ref(x) for x in (mod, bias, q)]
    del mod, bias, q
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
