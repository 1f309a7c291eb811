"""Interval analysis: between which values a mod's integers lie, and how far a mask lets a query look, its *extent*.

Of every step of a recording, what is known of its inputs says what is known of it (``Rules``): an integer lies between linear
forms ``i q_idx + j kv_idx + c``, a bool holds for pairs within a ``Span``, the ends of ``q_idx - kv_idx``. A comparison
x <= y puts a form below x under a form above y; where both indices are left with opposite factors, that is an end of the
span. What is not understood lies between its dtype's ends, and has an endless span, so under an ``&`` it takes nothing away:
the span may be too wide, and is never too narrow.

The emitter writes no code for Python's signs where nothing is below zero (``least``); a plan leaves out tiles of keys that a
mask's extent does not reach (``extent_of``).
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import torch

MOST_FORMS = 4  # that are kept of one integer and side
LARGEST = 2**24  # of constants; with more, int32 may overflow
#: Positions up to here; with larger ones, an int32 that is computed from them may overflow unnoticed.
MOST_POSITIONS, MOST_ROWS = 2**20, 2**16
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


def _between(low, high):
    return Integer(((0, 0, low),), ((0, 0, high),))


ONE = _between(1, 1)


def _unknown(dtype):
    """A value of which only its dtype is known."""
    if dtype == torch.bool:
        return Truth(SOME, SOME)
    if dtype in INTEGERS or dtype.is_floating_point or dtype.is_complex:
        return Integer((), ()) if dtype in INTEGERS else ...
    return _between(torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _known(x):
    """A value of Python among an operation's inputs: ``...`` for what nothing can be known of."""
    if isinstance(x, bool):
        return Truth(EVERY, NONE) if x else Truth(NONE, EVERY)
    if isinstance(x, int):
        return _between(x, x) if abs(x) < LARGEST else ...
    return x if x is None or isinstance(x, str) else ...


def _number(x):
    """The number that an integer is, or ``None``."""
    (form, *more) = x.below or (None,)
    return form[2] if not more and form and form[:2] == (0, 0) and x.below == x.above else None


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


def _mirrored(x):
    """Minus an integer, which is not computed and cannot overflow."""
    return Integer(_scaled(x.above, -1), _scaled(x.below, -1))


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
        self._last = M - 1, N - 1

    # Between which numbers an integer lies.

    def _low(self, x):
        """At least; minus infinity if nothing says so."""
        ends = (math.ceil(c + sum(min(0, i) * end for i, end in zip(f, self._last))) for *f, c in x.below)
        return max(ends, default=-math.inf)

    def _high(self, x):
        """At most."""
        return -self._low(_mirrored(x))

    def _made(self, below, above):
        """An integer that arithmetic has made: nothing is known of one that may have overflowed."""
        x = Integer(*(tuple(dict.fromkeys(forms))[:MOST_FORMS] for forms in (below, above)))
        return x if -(2**31) <= self._low(x) and self._high(x) < 2**31 else None

    def _up_to(self, most):
        return self._made(*_between(0, most)) if most < math.inf else None

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

    @_of(Integer, Truth)
    def mul(self, x, y):
        if isinstance(x, Truth) or isinstance(y, Truth):
            return self.bitwise_and(x, y)
        x, y = (x, y) if _number(x) is None else (y, x)
        if (factor := _number(y)) is not None:
            forms = _scaled(x.below, factor), _scaled(x.above, factor)
            return self._made(*forms[:: -1 if factor < 0 else 1])
        return self._up_to(self._high(x) * self._high(y)) if min(self._low(x), self._low(y)) >= 0 else None

    @_of(Integer)
    def _floor_divide(self, x, y):
        """By a positive number, or of what is not negative by what is not."""
        if (by := _number(y)) is not None and by > 0:
            each = Fraction(1, by)
            return self._made(_scaled([_plus(a, (0, 0, 1 - by)) for a in x.below], each), _scaled(x.above, each))
        return self._made([(0, 0, 0)], x.above) if min(self._low(x), self._low(y)) >= 0 else None

    def div(self, x, y, rounding_mode=None):
        return self._floor_divide(x, y) if rounding_mode == "floor" else None

    @_of(Integer)
    def remainder(self, x, y):
        if self._low(y) > 0:
            return self._made([(0, 0, 0)], [(0, 0, self._high(y) - 1), *(x.above if self._low(x) >= 0 else ())])

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

    @_of(Integer)
    def abs(self, x):
        if (low := self._low(x)) >= -LARGEST and (high := self._high(x)) <= LARGEST:
            above = (0, 0, max(abs(low), abs(high)))
            return self._made([*x.below, *_scaled(x.above, -1), (0, 0, 0)], [*(x.above if low >= 0 else ()), above])

    @_of(Integer)
    def gcd(self, x, y):
        return self._up_to(max(-self._low(x), self._high(x), -self._low(y), self._high(y)))

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


#: Names of torch's operations that have a rule.
OPERATIONS = {name for name in vars(Rules) if name == "_to_copy" or name[0] != "_"}

_POSITIONS = {"q_idx": Integer(((1, 0, 0),), ((1, 0, 0),)), "kv_idx": Integer(((0, 1, 0),), ((0, 1, 0),))}
_POSITIONS |= dict.fromkeys(("b", "h"), _between(0, MOST_ROWS))



def steps_of(trace):
    """``({node: its place}, steps)`` of a recording: ``(dtype, the rule's name or None, arguments, named ones)`` each, an
    argument ``("step", i)``, ``("number", i)``, ``("position", name)`` or itself."""
    places, steps = {}, []
    plain = lambda x: x if isinstance(x, int | str | None) else ...  # noqa: E731
    of = lambda x: places.get(x, ...) if isinstance(x, torch.fx.Node) else plain(x)  # noqa: E731
    for node in trace.graph.nodes:
        if node.op not in ("placeholder", "call_function") or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        dtype, name, args, kwargs = node.meta["val"].dtype, None, None, {}
        packet = getattr(getattr(node.target, "overloadpacket", None), "__name__", None)
        if node in trace.numbers:
            args = "number", trace.numbers.index(node)
        elif node.name in _POSITIONS:
            args = "position", node.name
        elif packet in OPERATIONS and (dtype == torch.bool or dtype in INTEGERS):
            name, args = packet, tuple(map(of, node.args))
            kwargs = {k: of(x) for k, x in node.kwargs.items() if k not in ("dtype", "device", "layout", "pin_memory")}
            if name == "full" and dtype == torch.bool:
                args = args[0], bool(node.args[1])
        places[node] = "step", len(steps)
        steps.append((dtype, name, args, kwargs))
    return places, steps


def _found(steps, numbers, M, N):
    """What is known of each step, and of what stands for one."""
    rules, values = Rules(M, N), []
    sources = {"step": values, "position": _POSITIONS, "number": list(map(_known, numbers))}
    of = lambda x: sources[x[0]][x[1]] if isinstance(x, tuple) else _known(x)  # noqa: E731
    for dtype, name, args, kwargs in steps:
        given = {key: of(x) for key, x in kwargs.items()}
        found, unknown = of(args) if name is None else getattr(rules, name)(*map(of, args), **given), _unknown(dtype)
        if dtype in INTEGERS and isinstance(found, Truth):
            found = _between(0, 1)
        values.append(found if type(found) is type(unknown) else unknown)
    return values, of


def least(trace):
    """``{node: at least}`` of the integers of a recording, whatever its numbers are."""
    places, steps = steps_of(trace)
    rules = Rules(MOST_POSITIONS, MOST_POSITIONS)
    values, _ = _found(steps, [...] * len(trace.numbers), MOST_POSITIONS, MOST_POSITIONS)
    return {node: rules._low(x) for node, x in zip(places, values, strict=True) if isinstance(x, Integer)}


# The extent of a mask.


class MaskExtent:
    """The ``Span`` of a recorded mask, for the numbers of a call: ``extent(numbers, M, N)``, numbers as a tuple; cached.

    steps: see ``steps_of``; value: the mask's place among them, or a bool.
    """

    def __init__(self, steps, value):
        self.steps, self.value = steps, value
        self._span = functools.lru_cache(64)(self._computed)

    def __repr__(self):
        return f"MaskExtent({self.steps!r}, {self.value!r})"

    def __call__(self, numbers, M, N):
        return self._span(numbers, M, N)

    def _computed(self, numbers, M, N):
        _, of = _found(self.steps, numbers, M, N)
        value = of(self.value)
        return value.holds if isinstance(value, Truth) else SOME


def extent_of_trace(trace):
    """The ``MaskExtent`` of a recorded mask."""
    places, steps = steps_of(trace)
    value = places.get(trace.value) if isinstance(trace.value, torch.fx.Node) else trace.value
    return MaskExtent(steps, value)


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
