"""What a mod reads from things whose state identities and attributes do not show: a change of it is another mod."""

import array
import collections
import datetime
import functools
import operator
import types
from decimal import Decimal

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.flex_attention import flex_attention
from tests.flex_attention.test_known_mods import agrees

DEVICE = runtime.device


class Meta(type):
    @property
    def factor(cls):
        return _held[0]


class OfMeta(metaclass=Meta):
    pass


_held = [0.5]


def by_attribute(holder):
    def mod(score, b, h, q_idx, kv_idx):
        return score * holder.factor

    holder.factor = 0.5
    return mod, lambda x: setattr(holder, "factor", x)


def by_variable():
    return lambda score, b, h, m, n: score * globals()["_held"][0], lambda x: operator.setitem(_held, 0, x)


class Base:
    def get(self):
        return self.factor


class Derived(Base):
    def get(self):
        return super().get() * 2


def by_super():
    holder = Derived()
    holder.factor = 0.5
    return lambda score, b, h, m, n: score * holder.get(), lambda x: setattr(holder, "factor", x)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


def by_forward():
    module = Doubled()
    return lambda score, b, h, m, n: module(score), lambda x: setattr(module, "forward", lambda score: score * x)


def by_tensor():
    t = torch.ones(2, device=DEVICE)
    t.factor = 0.5
    return lambda score, b, h, m, n: score * t[h] * t.factor, lambda x: setattr(t, "factor", x)


def in_itself(holder):
    holder[1 if isinstance(holder, list) else "itself"] = holder
    key = 0 if isinstance(holder, list) else "factor"
    get = operator.itemgetter(1 if isinstance(holder, list) else "itself")
    return lambda score, b, h, m, n: score * get(get(holder))[key], lambda x: operator.setitem(holder, key, x)


def by_getter():
    holder, get = types.SimpleNamespace(factor=0.5), operator.attrgetter("factor")
    return lambda score, b, h, m, n: score * get(holder), lambda x: setattr(holder, "factor", x)


def by_cache():
    kept = [0.5]
    cached = functools.cache(lambda: kept[0])

    def change(x):
        kept[0] = x
        cached.cache_clear()

    return lambda score, b, h, m, n: score * cached(), change


def by_item(holder, key=0):
    return lambda score, b, h, m, n: score * float(holder[key]), lambda x: operator.setitem(holder, key, x)


def by_method(holder, method, *given, key=0):
    get = getattr(holder, method)
    return lambda score, b, h, m, n: score * float(get(*given)), lambda x: operator.setitem(holder, key, x)


def by_method_of(holder, key):
    return lambda score, b, h, m, n: score * holder.get(key), lambda x: operator.setitem(holder, key, x)


class Number(float):
    pass


def by_value(make, read):
    """The name stands for another value of the same class."""
    held = make(0.5)

    def change(x):
        nonlocal held
        held = make(x)

    return lambda score, b, h, m, n: score * read(held), change


HOLDERS = {
    "a number's kind": lambda: by_value(Number, lambda held: held),
    "a number's kind, inside": lambda: by_value(lambda x: types.SimpleNamespace(a=Number(x)), lambda held: held.a),
    "timedelta": lambda: by_value(lambda x: datetime.timedelta(seconds=x), lambda held: held.total_seconds()),
    "numpy": lambda: by_item(np.array([0.5, 2.0])),
    "numpy's method": lambda: by_method(np.array([0.5]), "max"),
    "deque": lambda: by_item(collections.deque([0.5])),
    "array": lambda: by_item(array.array("d", [0.5])),
    "list's method": lambda: by_method([0.5], "__getitem__", 0),
    "dict's method": lambda: by_method({"a": 0.5}, "get", "a", key="a"),
    "a dict's kind": lambda: by_method_of(collections.OrderedDict(a=0.5), "a"),
    "function": lambda: by_attribute(lambda: None),
    "list in itself": lambda: in_itself([0.5, None]),
    "dict in itself": lambda: in_itself({"factor": 0.5}),
    "globals()": by_variable,
    "super()": by_super,
    "forward": by_forward,
    "tensor": by_tensor,
    "attrgetter": by_getter,
    "cache": by_cache,
    "metaclass": lambda: (lambda score, b, h, m, n: score * OfMeta.factor, lambda x: operator.setitem(_held, 0, x)),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_change_is_seen(holder):
    mod, change = HOLDERS[holder]()
    for x in (0.5, 2.0, 3.0):
        change(x)
        agrees(mod)


def test_the_mods_own_attribute():
    def mod(score, b, h, q_idx, kv_idx):
        return score * mod.factor

    for x in (0.5, 2.0, 3.0):
        mod.factor = x
        agrees(mod)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.array, Decimal, lambda x: functools.cache(lambda: x)])
def test_values_of_one_kind_are_told_apart(kind):
    for x in (2.0, 3.0, 4.0):
        value = kind(x)
        agrees(lambda score, b, h, m, n, value=value: score * float(value() if callable(value) else value))


def test_what_is_new_whenever_it_is_asked_has_an_end():
    class Endless:
        factor = 2.0

        def __getattr__(self, name):
            return Endless()

    endless = Endless()
    agrees(lambda score, b, h, m, n: score * endless.further.and_on.factor)


ARITHMETIC = {
    "power of integers": (lambda x: lambda s, b, h, m, n: s * 2**-x, (1, 2, 3)),
    "an integer's inverse": (lambda x: lambda s, b, h, m, n: s * x**-1, (1, 2, 3)),
    "large products": (lambda x: lambda s, b, h, m, n: torch.where(m >= x * x // 300000, s, s * 2), (2, 60000, 90000)),
    "large fractions": (lambda x: lambda s, b, h, m, n: s * (x**2 / x) / x, (1e25, 2e25, 3e25)),
    "a difference": (lambda x: lambda s, b, h, m, n: s * ((1 - x) * 1e9), (1 - 1e-9, 1 - 2e-9, 1 - 3e-9)),
    "a narrow tensor": (lambda x: lambda s, b, h, m, n: s + (m.to(torch.uint8) + x) * 0.1, (1, 240, 250)),
}


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_numbers_among_themselves_are_pythons(kind):
    make, numbers = ARITHMETIC[kind]
    for x in numbers:
        agrees(make(x))


@pytest.mark.thorough
def test_numbers_among_themselves_are_pythons_in_a_compiled_program():
    @functools.partial(torch.compile, backend="eager", dynamic=True, fullgraph=True)
    def program(q, k, v, x):
        return flex_attention(q, k, v, lambda s, b, h, m, n: torch.where(m >= x * x // 600000000, s * 0.5, s))

    q, k, v = (torch.randn(1, 1, 8, 16, device=DEVICE) for _ in range(3))
    for x in (50000, 50001):
        want = flex_attention(q, k, v, lambda s, b, h, m, n, x=x: torch.where(m >= x * x // 600000000, s * 0.5, s))
        torch.testing.assert_close(program(q, k, v, x), want)
