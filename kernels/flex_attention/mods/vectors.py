"""Short vectors in a mod: ``(means[m] - means[n]).pow(2).sum(-1)`` as single numbers, unrolled while the mod is recorded.

A captured tensor [M, d] that is indexed with a query gives d numbers for it; so does one of [d] beside a position, as in
``(kv_idx == tokens).any()``, or a stack of single numbers. Up to ``LONGEST`` of them are kept apart in a ``Vector``: what
torch does element by element is done to each, and a sum adds them. The recording holds single numbers only, so that values
and gradients need no other rules.
"""

import functools
import operator

import torch
from torch.fx.traceback import annotate
from torch.utils._pytree import tree_map

# Each number is code of its own. Of a query or a key alone that is little; where it belongs to both, 32 numbers were compiled
# for 9 s for an H200, 64 for a minute; of the sums that gradients are, 32 for 10 s, 64 for minutes.
LONGEST, WIDEST, MOST_SUMS = 64, 32, 32

_REFLECTED = {"rsub": "sub", "rtruediv": "truediv", "rpow": "pow", "radd": "add", "rmul": "mul"}
_ATEN = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or"}


#: What is done to each element beside what torch calls pointwise.
_CONVERSIONS = "bfloat16 bool clone contiguous detach double float half int long requires_grad short to type_as".split()


def aten_name(function):
    """What the operation behind one of torch's functions, methods or operators is called."""
    name = getattr(function, "__name__", "").strip("_")
    name = _REFLECTED.get(name, name)
    return _ATEN.get(name, name)


def pointwise(function):
    """Whether torch does it element by element."""
    packet = getattr(torch.ops.aten, aten_name(function), None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


class Vector:
    """``elements``: d tensors without dimensions. index: what its index, another one behind those it has, gives, if anything.
    error: the exception for what cannot be done."""

    def __init__(self, elements, error, index=None):
        self.elements = elements
        self.error = error
        self.further = index

    ndim, requires_grad = 1, False
    shape = property(lambda self: torch.Size([len(self.elements)]))
    dtype = property(lambda self: self.elements[0].dtype)

    dim = lambda self: 1  # noqa: E731

    def size(self, dim=None):
        """As a tensor's."""
        return self.shape if dim is None else self.shape[dim]

    def __len__(self):
        return len(self.elements)

    def __iter__(self):
        return iter(self.elements)

    def __getitem__(self, index):
        if isinstance(index, tuple):
            rest = [i for i in index if i is not Ellipsis]
            index = rest[0] if len(rest) == 1 else index
        if isinstance(index, int):
            return self.elements[index]
        if isinstance(index, slice):
            return Vector(self.elements[index], self.error)
        if self.further is None:
            raise self.error("only what is captured can be indexed with a query or a key")
        return self.further(index)

    def __getattr__(self, name):
        function = getattr(torch.Tensor, name, None)
        if name.startswith("__") or not callable(function):
            raise AttributeError(f"a short vector has no {name}")
        return functools.partial(_applied(function), self)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        vectors = [x for x in (*args, *kwargs.values()) if isinstance(x, Vector)]
        name = function.__name__.strip("_")
        error, d = vectors[0].error, len(vectors[0])
        if any(len(v) != d for v in vectors):
            raise error(f"vectors of {' and '.join(str(len(v)) for v in vectors)} elements do not fit each other")
        if name in ("max", "min"):  # of one vector a number, of two things the larger of each
            others = [*args[1:], *kwargs.values()]
            if not all(isinstance(x, Vector | torch.Tensor) for x in others):
                raise error(f"of a short vector {name} along a dimension, and its place, is not to be had: a{name}")
            name = name if others else f"a{name}"
        if name in REDUCTIONS:
            return REDUCTIONS[name](error, *args, **{k: v for k, v in kwargs.items() if v is not None})
        if name not in _CONVERSIONS and not pointwise(function):
            instead = "element by element, or a sum, mean, dot, norm, amax ..."
            raise error(f"of a short vector {name} is not to be had: {instead}")

        def at(i):
            """Of the i-th elements of vectors, and of tensors as long."""
            pick = lambda x: x[i] if isinstance(x, Vector | torch.Tensor) and x.shape == (d,) else x  # noqa: E731
            some, named = tree_map(pick, (args, kwargs))
            return function(*some, **named)

        if any(isinstance(x, torch.Tensor) and x.ndim and x.shape != (d,) for x in (*args, *kwargs.values())):
            raise error(f"a vector of {d} elements meets a tensor of another shape")
        with annotate({"width": d}):
            return Vector([at(i) for i in range(d)], error)


def _applied(function):
    return lambda *args, **kwargs: Vector.__torch_function__(function, (), args, kwargs)


for _name in """
    add sub mul matmul truediv floordiv mod pow and or xor eq ne lt le gt ge neg abs invert
    radd rsub rmul rmatmul rtruediv rpow
""".split():
    setattr(Vector, f"__{_name}__", _applied(getattr(torch.Tensor, f"__{_name}__")))


# What makes one number of a vector.


def _elements(error, vector, dim=None, keepdim=False, axis=None, dtype=None):
    dim = axis if dim is None else dim
    if dim not in (None, 0, -1, (0,), (-1,), [0], [-1]) or keepdim or not isinstance(vector, Vector):
        raise error("a short vector is reduced along its only dimension, which is left out then")
    return [x if dtype is None else x.to(dtype) for x in vector.elements]


def _fold(function, finish=lambda x, d: x, prepare=lambda x: x):
    def reduce(error, *args, **kwargs):
        elements = _elements(error, *args, **kwargs)
        return finish(functools.reduce(function, map(prepare, elements)), len(elements))

    return reduce


def _sum(function=operator.add, finish=lambda x, d: x):
    """torch's sums of whole numbers and conditions are 64-bit."""
    return _fold(function, finish, lambda x: x if x.is_floating_point() else x.to(torch.int64))


def _dot(error, a, b, **kwargs):
    if kwargs or not all(len(x.shape) == 1 for x in (a, b)):
        raise error("dot takes two vectors")
    return (a * b if isinstance(a, Vector) else b * a).sum()


def _norm(error, vector, ord=None, dim=None, *, p=None, **kwargs):
    """The square root's gradient at zero is infinite, the norm's is 0."""
    kind = next((x for x in (p, ord) if x is not None), 2)
    elements = _elements(error, vector, dim, **kwargs)
    if kind in (1, 1.0):
        return functools.reduce(operator.add, (x.abs() for x in elements))
    if kind in (float("inf"), "inf"):
        return functools.reduce(torch.maximum, (x.abs() for x in elements))
    if kind not in (2, 2.0, "fro"):
        raise error(f"of a short vector the norms of order 1, 2 and infinity are to be had, not {kind!r}")
    squares = functools.reduce(operator.add, (x * x for x in elements))
    zero = squares == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def _squeeze(error, vector, dim=None):
    if len(vector) != 1:
        raise error(f"a vector of {len(vector)} elements is squeezed to one")
    return _elements(error, vector, dim)[0]


def _einsum(error, equation, *vectors):
    if len(vectors) == 1 and isinstance(vectors[0], tuple | list):
        vectors = vectors[0]
    letters, _, out = equation.replace(" ", "").partition("->")
    if out or len(set(letters.split(","))) != 1 or len(letters.split(",")[0]) != 1:
        raise error(f'einsum of short vectors sums their product, "i,i->", does not do {equation!r}')
    return functools.reduce(operator.mul, vectors).sum()


def _normalize(error, vector, p=2.0, dim=-1, eps=1e-12, **kwargs):
    return vector / _norm(error, vector, p, dim, **kwargs).clamp_min(eps)


def _cosine(error, x1, x2, dim=-1, eps=1e-8):
    return _dot(error, _normalize(error, x1, dim=dim, eps=eps), _normalize(error, x2, dim=dim, eps=eps))


def _distance(error, x1, x2, p=2.0, eps=1e-6, **kwargs):
    return _norm(error, x1 - x2 + eps, p, **kwargs)


REDUCTIONS = {
    **dict.fromkeys("dot inner vdot vecdot linalg_vecdot matmul rmatmul".split(), _dot),
    **dict.fromkeys("norm vector_norm linalg_norm linalg_vector_norm".split(), _norm),
    "squeeze": _squeeze,
    "einsum": _einsum,
    "normalize": _normalize,
    "cosine_similarity": _cosine,
    "pairwise_distance": _distance,
    "sum": _sum(),
    "prod": _sum(operator.mul),
    "mean": _sum(finish=lambda x, d: x / d),
    "amax": _fold(torch.maximum),
    "amin": _fold(torch.minimum),
    "all": _fold(operator.and_, prepare=lambda x: x != 0),
    "any": _fold(operator.or_, prepare=lambda x: x != 0),
}


# What looks for a number among a few.


def _isin(error, vector, number, assume_unique=False, invert=False):
    found = (vector == number).any()
    return ~found if invert else found


def _place(error, vector, number, right=False, out_int32=False, side=None, sorter=None):
    if sorter is not None:
        raise error("searchsorted with a sorter is not to be had: sort what is captured before")
    before = vector <= number if right or side == "right" else vector < number
    return before.sum().to(torch.int32 if out_int32 else torch.int64)


# In which argument, and how.
LOOKS = {torch.isin: (1, _isin), torch.searchsorted: (0, _place), torch.bucketize: (1, _place)}
