"""Special functions of mods, written in elementary ones: their values in float32 beside torch's in float64."""

import math

import pytest
import torch

from kernels.flex_attention.mods import scalars

EDGES = torch.tensor([0.0, -0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 88.0, -88.0, 1e4, 1e20, math.inf, -math.inf, math.nan])
WIDE = torch.cat([torch.linspace(-9, 9, 4001), torch.logspace(-6, 4, 300), -torch.logspace(-6, 4, 300), EDGES])
GAMMA = torch.cat([torch.linspace(-5.37, 12, 4001), torch.logspace(-6, 20, 300), EDGES])
INSIDE = torch.cat([torch.linspace(-1, 1, 4001), 1 - torch.logspace(-6, -1, 100), torch.tensor([0.0, -0.0, 2.0, math.nan])])
FUNCTIONS = {
    "lgamma": (scalars.lgamma, torch.lgamma, GAMMA),
    "digamma": (scalars.digamma, torch.digamma, GAMMA),
    "trigamma": (lambda x: scalars.polygamma(1, x), lambda x: torch.polygamma(1, x), GAMMA[GAMMA > 0]),
    "erfinv": (scalars.erfinv, torch.erfinv, INSIDE),
    "erfcx": (scalars.erfcx, torch.special.erfcx, WIDE),
    "i0": (scalars._bessel(0, scaled=False), torch.i0, WIDE),
    "i0e": (scalars._bessel(0, scaled=True), torch.special.i0e, WIDE),
    "i1": (scalars._bessel(1, scaled=False), torch.special.i1, WIDE),
    "i1e": (scalars._bessel(1, scaled=True), torch.special.i1e, WIDE),
    "angle": (scalars.angle, torch.angle, WIDE),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    function, exact, x = FUNCTIONS[name]
    got, want = function(x), exact(x.double()).float()
    rtol = 1e-5 if name not in ("lgamma", "digamma") else 3e-5  # below zero they cross zero again and again
    torch.testing.assert_close(got, want, rtol=rtol, atol=2e-6, equal_nan=True)


def test_of_a_whole_tensor_torch_computes_them():
    for decomposition in scalars.DECOMPOSITIONS.values():
        assert decomposition(torch.zeros(3)) is NotImplemented
