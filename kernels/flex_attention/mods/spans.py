"""What is known of the values that a mask computes: integers by forms below and above them, bools by where they hold."""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

import torch

MOST_FORMS = 4  # that are kept of one integer and side
LARGEST = 2**24  # of constants; with more, int32 may go round
WHOLE = torch.int32, torch.int64


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


class Whole(NamedTuple):
    """An integer: forms ``(i, j, c)`` below and above it."""

    below: tuple
    above: tuple


UNKNOWN = {torch.bool: Truth(SOME, SOME), **dict.fromkeys(WHOLE, Whole((), ()))}


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
    return Whole(((0, 0, c),), ((0, 0, c),))


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


class _Rules:
    """What is known of a step's value by what is known of its inputs: a method for each of torch's operations; ``None`` if
    nothing is. An input of which nothing can be known is ``...``."""

    def __init__(self, M, N):
        self.ends = M - 1, N - 1

    # Between which numbers an integer lies.

    def low(self, x):
        """At least; minus infinity if nothing says so."""
        return max((c + sum(min(0, i) * end for i, end in zip(f, self.ends)) for *f, c in x.below), default=-math.inf)

    def high(self, x):
        """At most."""
        return -self.low(Whole(_scaled(x.above, -1), ()))

    def made(self, below, above):
        """An integer that arithmetic has made: nothing is known of one that may have gone round."""
        x = Whole(*(tuple(dict.fromkeys(forms))[:MOST_FORMS] for forms in (below, above)))
        return x if -(2**31) <= self.low(x) and self.high(x) < 2**31 else None

    # Integers.

    def add(self, x, y, alpha=None):
        """And ``alpha`` times y."""
        if whole(x, y) and (alpha is None or whole(alpha) and _known(alpha) is not None):
            y = y if alpha is None else self.mul(y, alpha)
            return y and self.made(
                [_plus(a, b) for a in x.below for b in y.below], [_plus(a, b) for a in x.above for b in y.above]
            )

    def neg(self, x):
        return self.made(*_mirrored(x)) if whole(x) else None

    def sub(self, x, y, alpha=None):
        return self.add(x, self.neg(y), alpha)

    def rsub(self, x, y, alpha=None):
        return self.sub(y, x) if alpha is None else None

    def mul(self, x, y):
        if truth(x, y):
            return _and(x, y)
        if whole(x, y):
            x, y = (x, y) if _known(x) is None else (y, x)
            if (factor := _known(y)) is not None:
                forms = _scaled(x.below, factor), _scaled(x.above, factor)
                return self.made(*forms[:: -1 if factor < 0 else 1])

    def floor_divide(self, x, y):
        """Of positive numbers only."""
        if whole(x, y) and (by := _known(y)) is not None and by > 0:
            each = Fraction(1, by)
            return self.made(_scaled([_plus(a, (0, 0, 1 - by)) for a in x.below], each), _scaled(x.above, each))

    def div(self, x, y, rounding_mode=None):
        return self.floor_divide(x, y) if rounding_mode == "floor" else None

    def remainder(self, x, y):
        if whole(x, y) and (by := _known(y)) is not None and by > 0:
            return self.made([(0, 0, 0)], [(0, 0, by - 1), *(x.above if self.low(x) >= 0 else ())])

    def maximum(self, x, y):
        """Above x by no more than y may be."""
        if whole(x, y):
            above = []
            for a, b in ((x, y), (y, x)):
                more = max(0, self.high(b) - self.low(a))
                above += [_plus(form, (0, 0, more)) for form in a.above if more < math.inf]
            above.sort(key=lambda form: form[2])
            return Whole((*x.below, *y.below)[:MOST_FORMS], tuple(dict.fromkeys(above))[:MOST_FORMS])

    def minimum(self, x, y):
        return _mirrored(self.maximum(_mirrored(x), _mirrored(y))) if whole(x, y) else None

    def clamp(self, x, min=None, max=None):  # noqa: A002
        x = x if min is None else self.maximum(x, min)
        return x if max is None else self.minimum(x, max)

    clamp_min = maximum
    clamp_max = minimum

    def abs(self, x):
        if whole(x) and (low := self.low(x)) >= -LARGEST and (high := self.high(x)) <= LARGEST:
            above = (0, 0, max(abs(low), abs(high)))
            return self.made([*x.below, *_scaled(x.above, -1), (0, 0, 0)], [*(x.above if low >= 0 else ()), above])

    # Comparisons.

    def le(self, x, y):
        if not whole(x, y):
            return None
        of_one_form = all(len(z.below) == 1 and z.below == z.above for z in (x, y))
        sides = []
        for a, b, more in ((x, y, 0), (y, x, 1)):  # x <= y, and y + 1 <= x
            span = functools.reduce(_both, (_under(_plus(i, (0, 0, more)), j) for i in a.below for j in b.above), EVERY)
            sides.append(span._replace(exact=span.exact and of_one_form))
        return Truth(*sides)

    def ge(self, x, y):
        return self.le(y, x)

    def gt(self, x, y):
        return _not(found) if (found := self.le(x, y)) else None

    def lt(self, x, y):
        return self.gt(y, x)

    def eq(self, x, y):
        return _and(self.le(x, y), self.le(y, x)) if whole(x, y) else None

    def ne(self, x, y):
        return _not(self.eq(x, y)) if whole(x, y) else None

    # Bools.

    def bitwise_and(self, x, y):
        return _and(x, y) if truth(x, y) else None

    def bitwise_or(self, x, y):
        return _or(x, y) if truth(x, y) else None

    def bitwise_not(self, x):
        return _not(x) if truth(x) else None

    logical_and, logical_or, logical_not = bitwise_and, bitwise_or, bitwise_not

    def where(self, of, x, y):
        return _or(_and(of, x), _and(_not(of), y)) if truth(of, x, y) else None

    # What changes nothing.

    def view(self, x, *_):
        return x

    def _to_copy(self, x, **_):
        return self.made(*x) if whole(x) else x

    def full(self, size, fill, **_):
        return fill


def whole(*xs):
    """Whether all are integers of which something is known."""
    return all(isinstance(x, Whole) for x in xs)


def truth(*xs):
    """Whether all are bools."""
    return all(isinstance(x, Truth) for x in xs)


def _mirrored(x):
    """An integer, the other way round in proofs alone."""
    return Whole(_scaled(x.above, -1), _scaled(x.below, -1))


#: By their names in torch.
OPERATIONS = {name for name in vars(_Rules) if not name.startswith("__")} - {"low", "high", "made"}


def rules(M, N):
    """``{operation: rule}`` for that many queries and keys."""
    of = _Rules(M, N)
    return {name: getattr(of, name) for name in OPERATIONS}
