"""Special functions of a single number, in float32 and in torch's own elementary operations, which have rules.

Each is a decomposition for ``make_fx``: autograd has differentiated by torch's formulas before, so that only values are
needed here. What has dimensions is computed by torch, before the kernel. Polynomials without a name are Chebyshev
interpolations of mpmath's values.
"""

import math

import torch

aten = torch.ops.aten


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


def log_ndtr(x):
    """The logarithm of the normal distribution."""
    y = x * math.sqrt(0.5)
    left = torch.log(0.5 * erfcx(-torch.clamp(y, max=0.0))) - y * y
    return torch.where(x < 0, left, torch.log1p(-0.5 * torch.erfc(y)))


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


def xlog1py(x, y):
    """x log(1 + y), 0 where x is."""
    x, y = (torch.full((), float(t)) if not isinstance(t, torch.Tensor) else t for t in (x, y))
    return torch.where((x == 0) & (y == y), 0.0, x * torch.log1p(y))


def multigammaln(x, p):
    """log of the multivariate gamma function: ``torch.mvlgamma`` without the p numbers in between."""
    return sum(torch.lgamma(x - 0.5 * i) for i in range(p)) + 0.25 * p * (p - 1) * math.log(math.pi)


DECOMPOSITIONS = {
    getattr(getattr(aten, name), overload): single(function)
    for name, function in {
        "lgamma": lgamma,
        "digamma": digamma,
        "polygamma": polygamma,
        "erfinv": erfinv,
        "special_erfcx": erfcx,
        "special_log_ndtr": log_ndtr,
        "i0": _bessel(0, scaled=False),
        "special_modified_bessel_i0": _bessel(0, scaled=False),
        "special_i0e": _bessel(0, scaled=True),
        "special_i1": _bessel(1, scaled=False),
        "special_modified_bessel_i1": _bessel(1, scaled=False),
        "special_i1e": _bessel(1, scaled=True),
        "angle": angle,
        "special_xlog1py": xlog1py,
    }.items()
    for overload in getattr(aten, name).overloads()
    if overload != "out"
}
INSTEAD = dict.fromkeys((torch.mvlgamma, torch.Tensor.mvlgamma, torch.special.multigammaln), multigammaln)
