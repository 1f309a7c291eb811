"""How far a mask lets a query look: ends of ``q_idx - kv_idx``, read off what was recorded of the mask, and its numbers.

Every step of the recording becomes what is known of its value. Of an integer these are forms ``i q_idx + j kv_idx + c`` that
lie below it and above it; of a bool the ``Span`` of the pairs for which it holds, and of those for which it doesn't. A
comparison x <= y puts a form below x under a form above y; where both indices are left with opposite factors, that is an end
of the span. What is not understood has no forms and an endless span, so under an ``&`` it takes nothing away: the span may be
too wide, and is never too narrow.
"""

import functools
import math
from typing import NamedTuple

import torch

from kernels.flex_attention.mods.spans import (
    EVERY,
    LARGEST,
    NONE,
    OPERATIONS,
    SOME,
    UNKNOWN,
    Truth,
    Whole,
    constant,
    rules,
    truth,
    whole,
)


class _Step(int):
    """The number of a step, among arguments."""

    def __repr__(self):
        return f"_Step({int(self)})"


class _Number(int):
    """The place of a number that the mask is given."""

    def __repr__(self):
        return f"_Number({int(self)})"


class Reach:
    """The ``Span`` of a recorded mask, for the numbers of a call: ``reach(numbers, M, N)``, remembered.

    documents: whether it compares what a tensor holds at the query with what it holds there at the key, as masks of documents
    do: that has no end, but most see few keys.
    """

    def __init__(self, trace):
        documents, steps, places = any(map(_compares_documents, trace.graph.nodes)), [], {}
        for node in trace.graph.nodes:
            if node.op in ("placeholder", "call_function") and isinstance(node.meta.get("val"), torch.Tensor):
                places[node] = _Step(len(steps))
                steps.append(_step(trace, node, places))
        self._set(documents, steps, places.get(trace.value) if isinstance(trace.value, torch.fx.Node) else trace.value)

    def _set(self, documents, steps, value):
        self.documents, self.steps, self.value = documents, steps, value
        self._of = functools.lru_cache(64)(self._computed)

    @classmethod
    def of(cls, *made):
        """The same again, of what ``repr`` shows of it."""
        self = cls.__new__(cls)
        self._set(*made)
        return self

    def __repr__(self):
        return f"Reach.of({self.documents!r}, {self.steps!r}, {self.value!r})"

    def __call__(self, numbers, M, N):
        """Numbers as a tuple."""
        return self._of(numbers, M, N)

    def _computed(self, numbers, M, N):
        by_name, values = rules(M, N), []

        def known(x):
            if isinstance(x, _Step):
                return values[x]
            if isinstance(x, _Number):
                x = numbers[x]
            if isinstance(x, bool):
                return Truth(EVERY, NONE) if x else Truth(NONE, EVERY)
            if isinstance(x, int):
                return constant(x) if abs(x) < LARGEST else ...
            return x if x is None or isinstance(x, str) else ...

        for dtype, name, args, kwargs in self.steps:
            found = None
            if name is None:
                found = args if isinstance(args, Whole) else known(args)
            elif rule := by_name.get(name) if dtype in UNKNOWN else None:
                found = rule(*map(known, args), **{name: known(x) for name, x in kwargs.items()})
            fits = truth(found) if dtype == torch.bool else whole(found)
            values.append(found if fits and dtype in UNKNOWN else UNKNOWN.get(dtype, ...))
        value = known(self.value)
        return value.holds if truth(value) else SOME


def _compares_documents(node):
    """Whether a step is ``ids[..., q_idx] == ids[..., kv_idx]``, or the other way round."""
    if node.target is not torch.ops.aten.eq.Tensor:
        return False
    reads = [x.args for x in node.args if isinstance(x, torch.fx.Node) and x.target is torch.ops.aten.index.Tensor]
    if len(reads) < 2 or reads[0][0] is not reads[1][0]:
        return False
    apart = [{str(a), str(b)} for a, b in zip(reads[0][1], reads[1][1]) if a is not b]
    return apart == [{"q_idx", "kv_idx"}]


_POSITIONS = {"q_idx": Whole(((1, 0, 0),), ((1, 0, 0),)), "kv_idx": Whole(((0, 1, 0),), ((0, 1, 0),))}


def _step(trace, node, places):
    """``(dtype, the rule's name or None, arguments, named ones)``."""
    dtype = node.meta["val"].dtype
    if node.op == "placeholder":
        number = _Number(trace.numbers.index(node)) if node in trace.numbers else None
        return dtype, None, _POSITIONS.get(node.name, number), {}
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


#: What ``repr`` of a ``Reach`` needs to be read again.
NAMES = {"Reach": Reach, "Whole": Whole, "_Step": _Step, "_Number": _Number, "torch": torch}

MOST_KEYS = 4096
ONE_END = -1


class Extent(NamedTuple):
    """The class of a span that plans are known by. keys: how many a query may see, in 128s rounded up, if that is no more
    than ``MOST_KEYS``; else ``ONE_END`` if there is one, and 0 if there is none. exact: as of the span."""

    keys: int
    exact: bool


def breadth(span):
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
    return breadth(mask.extent(tuple(numbers), query[2], key[2]))
