"""What a mod does in single numbers instead while it is recorded: short vectors, and special functions.

A captured tensor [M, d] that is indexed with a query gives d numbers for it, as in ``(means[m] - means[n]).pow(2).sum(-1)``;
so does one of [d] beside a position, as in ``(kv_idx == tokens).any()``, or a stack of single numbers. Up to ``LONGEST`` of
them are kept apart in a ``Vector``: what torch does element by element is done to each, and a sum adds them. The recording
holds single numbers only, so that values and gradients need no other rules.

Special functions become torch's own elementary operations, which have rules: each is a decomposition for ``make_fx``.
"""

import functools
import math
import operator

import torch
from torch.fx.traceback import annotate
from torch.utils._pytree import tree_map

aten = torch.ops.aten

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
    packet = getattr(aten, aten_name(function), None)
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


# Special functions of a single number, in float32. Autograd has differentiated by torch's formulas before, so that only
# values are needed here. What has dimensions is computed by torch, before the kernel. Polynomials without a name are
# Chebyshev interpolations of mpmath's values.


def single(function):
    """A decomposition of operations on single numbers, as torch promotes them; of whole tensors, and of what ``function``
    has no formula for, the operation itself."""

    def decomposition(*args):
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if any(x.ndim for x in tensors):
            return NotImplemented
        dtype = tensors[-1].dtype if tensors[-1].is_floating_point() else torch.float32
        made = function(*(x.to(torch.float32) if isinstance(x, torch.Tensor) else x for x in args))
        return made if made is NotImplemented else made.to(dtype)

    return decomposition


def _numbers(text):
    return [float(number) for number in text.split()]


def _horner(x, coefficients):
    """The polynomial, its constant first."""
    *rest, value = coefficients
    for coefficient in reversed(rest):
        value = value * x + coefficient
    return value


def _reflected(x):
    """``(tan(pi x), sin(pi x))``, of a fraction: what is whole in x does not round them."""
    angle = math.pi * (x - torch.round(x))
    return torch.tan(angle), torch.sin(angle)


# Around its zeros at 1 and 2: lgamma(1 + z) = z (z - 1) p(z - 1/2) for z from -1/4 to 5/4.
_LGAMMA = _numbers("""
    0.483128941 -0.145960435 0.0629125587 -0.0312898285 0.0167737858 -0.00960399996 0.005615771 -0.00253392727
    0.00138237444 -0.00222017072 0.00145239238
""")


def lgamma(x):
    """Stirling's series behind 4 steps of lgamma(x + 1) = lgamma(x) + log(x), the polynomial near its zeros."""
    size = torch.where(x < 0, 1 - x, x.abs())
    low, high, near, far = size < 0.75, size > 2.25, size < 3.25, size >= 8
    z = torch.where(low, size, torch.where(high, size - 2, size - 1))
    y = torch.where(far, size, size + 4)
    part = torch.where(far, 1.0, size * (size + 1) * (size + 2) * (size + 3))
    part = torch.where(near, torch.where(low, size, torch.where(high, 1 / (size - 1), 1.0)), part)
    series = _horner(1 / (y * y), (1 / 12, -1 / 360, 1 / 1260)) / y
    stirling = (y - 0.5) * torch.log(y) - y + 0.5 * math.log(2 * math.pi) + series
    value = torch.where(near, z * (z - 1) * _horner(z - 0.5, _LGAMMA), stirling) - torch.log(part)
    value = torch.where(x < 0, math.log(math.pi) - torch.log(_reflected(x)[1].abs()) - value, value)
    return torch.where(size == math.inf, math.inf, value)


def digamma(x):
    """The series behind 6 steps of digamma(x + 1) = digamma(x) + 1 / x."""
    size = torch.where(x < 0, 1 - x, x)
    y = size + 6
    steps = 1 / size + sum(1 / (size + i) for i in range(1, 6))
    value = torch.log(y) - 0.5 / y - _horner(1 / (y * y), (1 / 12, -1 / 120, 1 / 252)) / (y * y) - steps
    at_pole = torch.where(x == torch.floor(x), math.nan, math.pi / _reflected(x)[0])
    return torch.where(x < 0, value - at_pole, value)


def polygamma(n, x):
    """Of the first two orders; trigamma by the series behind 6 steps."""
    if n == 0:
        return digamma(x)
    if n != 1:
        return NotImplemented
    size = torch.where(x < 0, 1 - x, x)
    y = size + 6
    steps = sum(1 / ((size + i) * (size + i)) for i in range(6))
    value = steps + 1 / y + 0.5 / (y * y) + _horner(1 / (y * y), (1 / 6, -1 / 30, 1 / 42)) / (y * y * y)
    sine = _reflected(x)[1] / math.pi
    return torch.where(x < 0, 1 / (sine * sine) - value, value)


# M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2010: single precision.
_CENTRAL = _numbers("""
    1.50140941 0.246640727 -0.00417768164 -0.00125372503 0.00021858087 -4.39150654e-06 -3.5233877e-06 3.43273939e-07
    2.81022636e-08
""")
_TAIL = _numbers("""
    2.83297682 1.00167406 0.00943887047 -0.0076224613 0.00573950773 -0.00367342844 0.00134934322 0.000100950558
    -0.000200214257
""")


def erfinv(x):
    """Giles' polynomials in log(1 - x^2)."""
    w = -torch.log((1 - x) * (1 + x))
    value = torch.where(w < 5, _horner(w - 2.5, _CENTRAL), _horner(torch.sqrt(w) - 3, _TAIL)) * x
    return torch.where(x.abs() == 1, x * math.inf, value)


# erfcx(x) = t exp(p(2 t - 1)) with t = 2 / (2 + x) for x >= 0.
_ERFCX = _numbers("""
    -0.671794056892395 0.6726431250572205 0.0473434180021286 -0.0468936413526535 -0.009874534793198109
    0.00880882516503334 0.0017706662183627486 -0.002288765273988247 -0.00018278229981660843 0.0005737663013860583
    -3.211361763533205e-05 -8.72837845236063e-05 1.3371448403631803e-05
""")


def erfcx(x):
    """exp(x^2) erfc(x)."""
    t = 2 / (2 + x.abs())
    value = t * torch.exp(_horner(2 * t - 1, _ERFCX))
    return torch.where(x < 0, 2 * torch.exp(x * x) - value, value)


def _bessel(order, scaled):
    """I_0 or I_1: the power series, whose terms are all positive, up to 8, Hankel's expansion from there on."""
    power = [1.0]
    for k in range(1, 21):
        power.append(power[-1] / (k * (k + order)))
    hankel = [1.0]
    for k in range(1, 11):
        hankel.append(hankel[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))

    def bessel(x):
        size = x.abs()
        inside = torch.clamp(size, max=8.0)
        near = _horner(inside * inside * 0.25, power) * (0.5 * inside if order else 1.0)
        outside = torch.clamp(size, min=8.0)
        far = _horner(1 / outside, hankel) * torch.rsqrt(2 * math.pi * outside)
        if scaled:
            value = torch.where(size <= 8, near * torch.exp(-inside), far)
        else:  # in two factors, one of which alone would be infinite too early
            half = torch.exp(0.5 * outside)
            value = torch.where(size <= 8, near, far * half * half)
        value = torch.where(x != x, x, value)
        return torch.where(x < 0, -value, value) if order else value

    return bessel


def angle(x):
    """Of a real number 0 or pi."""
    return torch.where(x < 0, math.pi, torch.where(x == x, 0.0, x))


def sinh(x):
    """(e^x - e^-x) / 2, exact for small x."""
    u = torch.expm1(x)
    return 0.5 * (u + u / (u + 1))


def asinh(x):
    """sign(x) log(|x| + sqrt(x^2 + 1)), exact for small x."""
    size = x.abs()
    value = torch.log1p(size + size * size / (1 + torch.sqrt(size * size + 1)))
    return torch.where(x < 0, -value, value)


def hypot(a, b):
    """sqrt(a^2 + b^2) without overflow."""
    a, b = a.abs(), b.abs()
    large = torch.maximum(a, b)
    ratio = torch.minimum(a, b) / torch.where(large == 0, 1.0, large)
    return large * torch.sqrt(1 + ratio * ratio)


def _or_the_number(better):
    """The better of two, and the number where the other is NaN."""
    return lambda a, b: torch.where(a != a, b, torch.where(b != b, a, torch.where(better(a, b), a, b)))


def multigammaln(x, p):
    """log of the multivariate gamma function: ``torch.mvlgamma`` without the p numbers in between."""
    return sum(torch.lgamma(x - 0.5 * i) for i in range(p)) + 0.25 * p * (p - 1) * math.log(math.pi)


def shrink_backward(gradient, x, bound):
    """The gradient where |x| is larger than the bound, 0 elsewhere."""
    return torch.where(x.abs() <= bound, 0.0, gradient)


DECOMPOSITIONS = {
    getattr(getattr(aten, name), overload): single(function)
    for name, function in {
        "lgamma": lgamma,
        "digamma": digamma,
        "polygamma": polygamma,
        "erfinv": erfinv,
        "special_erfcx": erfcx,
        "i0": _bessel(0, scaled=False),
        "special_modified_bessel_i0": _bessel(0, scaled=False),
        "special_i0e": _bessel(0, scaled=True),
        "special_i1": _bessel(1, scaled=False),
        "special_modified_bessel_i1": _bessel(1, scaled=False),
        "special_i1e": _bessel(1, scaled=True),
        "angle": angle,
        "erfc": lambda x: 1 - torch.erf(x),
        "tan": lambda x: torch.sin(x) / torch.cos(x),
        "asin": lambda x: torch.atan2(x, torch.sqrt((1 - x) * (1 + x))),
        "acos": lambda x: torch.atan2(torch.sqrt((1 - x) * (1 + x)), x),
        "sinh": sinh,
        "cosh": lambda x: 0.5 * (torch.exp(x) + torch.exp(-x)),
        "asinh": asinh,
        "acosh": lambda x: torch.log(x + torch.sqrt((x - 1) * (x + 1))),
        "atanh": lambda x: 0.5 * torch.log1p(2 * x / (1 - x)),
        "hypot": hypot,
        "hardshrink_backward": shrink_backward,
        "softshrink_backward": shrink_backward,
        "fmax": _or_the_number(torch.gt),
        "fmin": _or_the_number(torch.lt),
    }.items()
    for overload in getattr(aten, name).overloads()
    if overload != "out"
}
INSTEAD = dict.fromkeys((torch.mvlgamma, torch.Tensor.mvlgamma, torch.special.multigammaln), multigammaln)
