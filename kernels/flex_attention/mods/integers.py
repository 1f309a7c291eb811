"""Between which values a mod's integers lie, so that Python's signs need no code where nothing is below zero."""

import math

import torch

aten = torch.ops.aten

#: As far as positions are followed: with more, an int32 that is computed from them may go round unnoticed.
_LARGEST = {"b": 2**16, "h": 2**16, "q_idx": 2**20, "kv_idx": 2**20}


def bounds(f, x):
    """``(least, largest)`` of a node or number; f: the writer of the function that it is in, which keeps what is found."""
    if f.is_constant(x):
        return f.constant(x), f.constant(x)
    if x not in f.bounds:
        dtype = x.meta["val"].dtype
        ends = _ends(dtype)
        low, high = _computed(f, x) or ends
        if dtype.is_floating_point:
            f.bounds[x] = ends if math.isnan(low) or math.isnan(high) else (low, high)
        else:  # past one end an integer goes on at the other
            f.bounds[x] = (low, high) if ends[0] <= low and high <= ends[1] else ends
    return f.bounds[x]


def _ends(dtype):
    if dtype.is_floating_point:
        return -math.inf, math.inf
    return (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _computed(f, x):
    """By what makes it; ``None`` where that says nothing."""
    if x.op == "placeholder":
        return (0, _LARGEST[x.name]) if x.name in _LARGEST else None
    rule = _RULES.get(getattr(x.target, "overloadpacket", None))
    of = lambda i: bounds(f, i) if isinstance(i, torch.fx.Node | int | float) else None  # noqa: E731
    return rule and rule(x, *map(of, x.args), **{k: of(x.kwargs[k]) for k in ("min", "max") if k in x.kwargs})


def _corners(function):
    return lambda x, a, b: (lambda found: (min(found), max(found)))([function(i, j) for i in a for j in b])


def _sum(sign):
    def rule(x, a, b, *alpha):
        alpha = x.kwargs.get("alpha", alpha[0][0] if alpha else 1)
        return _corners(lambda i, j: i + sign * alpha * j)(x, a, b)

    return rule


def _clamp(x, a, low=None, high=None, **named):
    for function, of_bound in ((max, named.get("min", low)), (min, named.get("max", high))):
        if of_bound is not None:  # may move, too
            a = tuple(map(function, a, of_bound))
    return a


def _quotient(x, a, b):
    whole = x.target.overloadpacket is aten.floor_divide or x.kwargs.get("rounding_mode") is not None
    if not whole or a[0] < 0 or b[0] < 0:
        return None
    if x.meta["val"].dtype.is_floating_point:
        return 0, a[1] / b[0] if b[0] > 0 else math.inf
    return a[0] // max(b[1], 1), a[1] // max(b[0], 1)


def _remainder(x, a, b):
    if b[0] <= 0:
        return None
    return 0, b[1] if x.meta["val"].dtype.is_floating_point else b[1] - 1


def _copy(x, a, *rest):
    (low, high), (least, most) = a, _ends(x.meta["val"].dtype)
    if x.args[0].meta["val"].dtype.is_floating_point:  # what has no end has no integer either
        return max(low, least), min(high, most)
    return a


def _absolute(x, a):
    return max(a[0], -a[1], 0), max(abs(a[0]), abs(a[1]))


_RULES = {
    aten.add: _sum(1),
    aten.sub: _sum(-1),
    aten.mul: _corners(lambda i, j: i * j),
    aten.minimum: lambda x, a, b: (min(a[0], b[0]), min(a[1], b[1])),
    aten.maximum: lambda x, a, b: (max(a[0], b[0]), max(a[1], b[1])),
    aten.floor_divide: _quotient,
    aten.div: _quotient,
    aten.remainder: _remainder,
    aten.clamp: _clamp,
    aten.abs: _absolute,
    aten.gcd: lambda x, a, b: (0, max(_absolute(x, a)[1], _absolute(x, b)[1])),
    aten._to_copy: _copy,
}
