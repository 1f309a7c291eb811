"""Interval analysis: between which values a mod's integers lie, and how far a mask lets a query look, its *extent*.

``bounds`` gives numbers: the emitter writes no code for Python's signs where nothing is below zero. ``Rules`` gives linear
forms ``i q_idx + j kv_idx + c`` below and above an integer, and for a bool the ``Span`` of the pairs for which it holds.

The extent, the ends of ``q_idx - kv_idx``, follows from a mask's recording: of every step what is known of its inputs says
what is known of it. A comparison x <= y puts a form below x under a form above y; where both indices are left with opposite
factors, that is an end of the span. What is not understood has no forms and an endless span, so under an ``&`` it takes
nothing away: the span may be too wide, and is never too narrow.
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import torch

aten = torch.ops.aten

# In numbers.

#: Positions up to here; with larger ones, an int32 that is computed from them may overflow unnoticed.
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
    """By the operation that makes it; ``None`` where that says nothing."""
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
    for function, bound in ((max, named.get("min", low)), (min, named.get("max", high))):
        if bound is not None:  # an interval itself
            a = tuple(map(function, a, bound))
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

# In forms.

MOST_FORMS = 4  # that are kept of one integer and side
LARGEST = 2**24  # of constants; with more, int32 may overflow
INTEGERS = torch.int32, torch.int64


class Span(NamedTuple):
    """Pairs with ``-ahead <= q_idx - kv_idx <= behind``, infinite without an end; exact: all of those, and not some."""

    behind: float
    ahead: float
    exact: bool = False


EVERY, SOME, NONE = Span(math.inf, math.inf, True), Span(math.inf, math.inf), Span(-math.inf, -math.inf, True)


class Truth(NamedTuple):
    """A bool: where it holds, and where it doesn't."""

    holds: Span
    fails: Span


class Integer(NamedTuple):
    """An integer: forms ``(i, j, c)`` below and above it."""

    below: tuple
    above: tuple


UNKNOWN = {torch.bool: Truth(SOME, SOME), **dict.fromkeys(INTEGERS, Integer((), ()))}


def _both(a, b):
    return Span(min(a.behind, b.behind), min(a.ahead, b.ahead), a.exact and b.exact)


def _either(a, b):
    if a == NONE or b == NONE:
        return b if a == NONE else a
    return Span(max(a.behind, b.behind), max(a.ahead, b.ahead))


def _plus(a, b, factor=1):
    return tuple(x + factor * y for x, y in zip(a, b, strict=True))


def _scaled(forms, factor):
    return tuple(tuple(factor * x for x in form) for form in forms)


def constant(c):
    """An integer that is known."""
    return Integer(((0, 0, c),), ((0, 0, c),))


def known(x):
    """A value of Python among an operation's inputs: ``...`` for what nothing can be known of."""
    if isinstance(x, bool):
        return Truth(EVERY, NONE) if x else Truth(NONE, EVERY)
    if isinstance(x, int):
        return constant(x) if abs(x) < LARGEST else ...
    return x if x is None or isinstance(x, str) else ...


ONE = constant(1)


def _known(x):
    """The number that an integer is, or ``None``."""
    (form, *more) = x.below or (None,)
    return form[2] if not more and form and form[:2] == (0, 0) and x.below == x.above else None


def _under(a, b):
    """Where forms a and b have a <= b."""
    i, j, c = _plus(a, b, -1)
    if i != -j:
        return SOME
    if i == 0:
        return EVERY if c <= 0 else NONE
    end = math.floor(Fraction(-c) / abs(i))
    return Span(end, math.inf, True) if i > 0 else Span(math.inf, end, True)


def _not(a):
    return Truth(a.fails, a.holds)


def _and(a, b):
    return Truth(_both(a.holds, b.holds), _either(a.fails, b.fails))


def _or(a, b):
    return _not(_and(_not(a), _not(b)))


def _of(*kinds):
    """A rule for operands of these kinds alone: of others nothing is known, ``None``."""

    def decorate(rule):
        def checked(self, *args, **named):
            return rule(self, *args, **named) if all(isinstance(x, kinds) for x in (*args, *named.values())) else None

        return checked

    return decorate


class Rules:
    """What is known of a value by what is known of an operation's inputs: a method for each of torch's operations, by its
    name; ``None`` if nothing is. An input of which nothing can be known is ``...``."""

    def __init__(self, M, N):
        self._ends = M - 1, N - 1

    # Between which numbers an integer lies.

    def _low(self, x):
        """At least; minus infinity if nothing says so."""
        return max((c + sum(min(0, i) * end for i, end in zip(f, self._ends)) for *f, c in x.below), default=-math.inf)

    def _high(self, x):
        """At most."""
        return -self._low(_mirrored(x))

    def _made(self, below, above):
        """An integer that arithmetic has made: nothing is known of one that may have overflowed."""
        x = Integer(*(tuple(dict.fromkeys(forms))[:MOST_FORMS] for forms in (below, above)))
        return x if -(2**31) <= self._low(x) and self._high(x) < 2**31 else None

    # Integers.

    @_of(Integer)
    def add(self, x, y, alpha=ONE):
        """And ``alpha`` times y."""
        y = self.mul(y, alpha)
        return y and self._made(*([_plus(a, b) for a in x[side] for b in y[side]] for side in (0, 1)))

    @_of(Integer)
    def neg(self, x):
        return self._made(*_mirrored(x))

    def sub(self, x, y, alpha=ONE):
        return self.add(x, self.neg(y), alpha)

    def rsub(self, x, y, alpha=ONE):
        return self.sub(y, x, alpha)

    @_of(Integer, Truth)
    def mul(self, x, y):
        if isinstance(x, Truth) or isinstance(y, Truth):
            return self.bitwise_and(x, y)
        x, y = (x, y) if _known(x) is None else (y, x)
        if (factor := _known(y)) is not None:
            forms = _scaled(x.below, factor), _scaled(x.above, factor)
            return self._made(*forms[:: -1 if factor < 0 else 1])

    @_of(Integer)
    def floor_divide(self, x, y):
        """By positive numbers only."""
        if (by := _known(y)) is not None and by > 0:
            each = Fraction(1, by)
            return self._made(_scaled([_plus(a, (0, 0, 1 - by)) for a in x.below], each), _scaled(x.above, each))

    def div(self, x, y, rounding_mode=None):
        return self.floor_divide(x, y) if rounding_mode == "floor" else None

    @_of(Integer)
    def remainder(self, x, y):
        if (by := _known(y)) is not None and by > 0:
            return self._made([(0, 0, 0)], [(0, 0, by - 1), *(x.above if self._low(x) >= 0 else ())])

    @_of(Integer)
    def maximum(self, x, y):
        """Above x by no more than y may be."""
        above = []
        for a, b in ((x, y), (y, x)):
            more = max(0, self._high(b) - self._low(a))
            above += [_plus(form, (0, 0, more)) for form in a.above if more < math.inf]
        above.sort(key=lambda form: form[2])
        return Integer((*x.below, *y.below)[:MOST_FORMS], tuple(dict.fromkeys(above))[:MOST_FORMS])

    @_of(Integer)
    def minimum(self, x, y):
        return _mirrored(self.maximum(_mirrored(x), _mirrored(y)))

    def clamp(self, x, min=None, max=None):  # noqa: A002
        x = x if min is None else self.maximum(x, min)
        return x if max is None else self.minimum(x, max)

    clamp_min, clamp_max = maximum, minimum

    @_of(Integer)
    def abs(self, x):
        if (low := self._low(x)) >= -LARGEST and (high := self._high(x)) <= LARGEST:
            above = (0, 0, max(abs(low), abs(high)))
            return self._made([*x.below, *_scaled(x.above, -1), (0, 0, 0)], [*(x.above if low >= 0 else ()), above])

    # Comparisons.

    @_of(Integer)
    def le(self, x, y):
        of_one_form = all(len(z.below) == 1 and z.below == z.above for z in (x, y))
        sides = []
        for a, b, more in ((x, y, 0), (y, x, 1)):  # x <= y, and y + 1 <= x
            span = functools.reduce(_both, (_under(_plus(i, (0, 0, more)), j) for i in a.below for j in b.above), EVERY)
            sides.append(span._replace(exact=span.exact and of_one_form))
        return Truth(*sides)

    def ge(self, x, y):
        return self.le(y, x)

    def gt(self, x, y):
        return (found := self.le(x, y)) and _not(found)

    def lt(self, x, y):
        return self.gt(y, x)

    @_of(Integer)
    def eq(self, x, y):
        return _and(self.le(x, y), self.le(y, x))

    def ne(self, x, y):
        return (found := self.eq(x, y)) and _not(found)

    # Bools.

    @_of(Truth)
    def bitwise_and(self, x, y):
        return _and(x, y)

    @_of(Truth)
    def bitwise_or(self, x, y):
        return _or(x, y)

    @_of(Truth)
    def bitwise_not(self, x):
        return _not(x)

    logical_and, logical_or, logical_not = bitwise_and, bitwise_or, bitwise_not

    @_of(Truth)
    def where(self, of, x, y):
        return _or(_and(of, x), _and(_not(of), y))

    # What changes nothing.

    def view(self, x, *_):
        return x

    def _to_copy(self, x, **_):
        return self._made(*x) if isinstance(x, Integer) else x

    def full(self, size, fill, **_):
        return fill


def _mirrored(x):
    """Minus an integer, which is not computed and cannot overflow."""
    return Integer(_scaled(x.above, -1), _scaled(x.below, -1))


#: Names of torch's operations that have a rule.
OPERATIONS = {name for name in vars(Rules) if name == "_to_copy" or name[0] != "_"}


# The extent of a mask.


class MaskExtent:
    """The ``Span`` of a recorded mask, for the numbers of a call: ``extent(numbers, M, N)``, numbers as a tuple; cached.

    documents: whether it compares what a tensor holds at the query with what it holds there at the key, as masks of documents
    do: that has no end, but most see few keys. steps: ``(dtype, the rule's name or None, arguments, named ones)`` each, an
    argument ``("step", i)``, ``("number", i)``, ``("position", name)`` or itself; value: the mask's, or a bool.
    """

    def __init__(self, documents, steps, value):
        self.documents, self.steps, self.value = documents, steps, value
        self._span = functools.lru_cache(64)(self._computed)

    def __repr__(self):
        return f"MaskExtent({self.documents!r}, {self.steps!r}, {self.value!r})"

    def __call__(self, numbers, M, N):
        return self._span(numbers, M, N)

    def _computed(self, numbers, M, N):
        rules, values = Rules(M, N), []
        sources = {"step": values, "position": _POSITIONS, "number": list(map(known, numbers))}
        of = lambda x: sources[x[0]][x[1]] if isinstance(x, tuple) else known(x)  # noqa: E731

        for dtype, name, args, kwargs in self.steps:
            found, unknown = None, UNKNOWN.get(dtype, ...)
            if name is None:
                found = of(args)
            elif dtype in UNKNOWN:
                found = getattr(rules, name)(*map(of, args), **{key: of(x) for key, x in kwargs.items()})
            values.append(found if type(found) is type(unknown) else unknown)
        value = of(self.value)
        return value.holds if isinstance(value, Truth) else SOME


def extent_of_trace(trace):
    """The ``MaskExtent`` of a recorded mask."""
    documents, steps, places = any(map(_compares_documents, trace.graph.nodes)), [], {}
    for node in trace.graph.nodes:
        if node.op in ("placeholder", "call_function") and isinstance(node.meta.get("val"), torch.Tensor):
            places[node] = "step", len(steps)
            steps.append(_step(trace, node, places))
    value = trace.value
    return MaskExtent(documents, steps, places.get(value) if isinstance(value, torch.fx.Node) else value)


def _compares_documents(node):
    """Whether a step is ``ids[..., q_idx] == ids[..., kv_idx]``, or the other way round."""
    if node.target is not torch.ops.aten.eq.Tensor:
        return False
    reads = [x.args for x in node.args if isinstance(x, torch.fx.Node) and x.target is torch.ops.aten.index.Tensor]
    if len(reads) < 2 or reads[0][0] is not reads[1][0]:
        return False
    apart = [{str(a), str(b)} for a, b in zip(reads[0][1], reads[1][1]) if a is not b]
    return apart == [{"q_idx", "kv_idx"}]


_POSITIONS = {"q_idx": Integer(((1, 0, 0),), ((1, 0, 0),)), "kv_idx": Integer(((0, 1, 0),), ((0, 1, 0),))}


def _step(trace, node, places):
    dtype = node.meta["val"].dtype
    if node.op == "placeholder":
        source = ("number", trace.numbers.index(node)) if node in trace.numbers else None
        return dtype, None, ("position", node.name) if node.name in _POSITIONS else source, {}
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", None)
    if name not in OPERATIONS:
        return dtype, None, None, {}
    plain = lambda x: x if isinstance(x, int | str | None) else ...  # noqa: E731
    of = lambda x: places.get(x, ...) if isinstance(x, torch.fx.Node) else plain(x)  # noqa: E731
    kwargs = {key: of(x) for key, x in node.kwargs.items() if key not in ("dtype", "device", "layout", "pin_memory")}
    args = tuple(map(of, node.args))
    if name == "full" and dtype == torch.bool:
        args = args[0], bool(node.args[1])
    return dtype, name, args, kwargs


#: What ``repr`` of a ``MaskExtent`` needs to be read again.
NAMES = {"MaskExtent": MaskExtent, "torch": torch}

MOST_KEYS = 4096
ONE_END = -1


class Extent(NamedTuple):
    """The class of a span that plans are known by. keys: how many a query may see, in 128s rounded up, if that is no more
    than ``MOST_KEYS``; else ``ONE_END`` if there is one, and 0 if there is none. exact: as of the span."""

    keys: int
    exact: bool


def rounded(span):
    """The ``Extent`` of a span."""
    width = span.behind + span.ahead + 1
    if width <= MOST_KEYS:
        return Extent(128 * max(1, -(-int(max(width, 0)) // 128)), span.exact)
    return Extent(ONE_END, span.exact) if min(span.behind, span.ahead) < math.inf else ENDLESS


ENDLESS = Extent(0, False)
#: Head sizes, and the fewest queries, whose plans depend on how far the mask lets a query look.
MOST_HEADS, LEAST_QUERIES = 64, 128


def extent_of(mask, numbers, query, key, value):
    """The ``Extent`` of a compiled mask with these numbers where plans depend on it; query, key and value are shapes."""
    if mask is None or query[2] < LEAST_QUERIES or max(query[3], value[3]) > MOST_HEADS:
        return ENDLESS
    return rounded(mask.extent(tuple(numbers), query[2], key[2]))
