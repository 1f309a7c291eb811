"""The ways that the weight gradient can go, and the choice among them."""

import functools
from typing import NamedTuple

import torch

from kernels.common.configs import declare
from kernels.common.plan import Layout, choose, layout, remembered
from kernels.common.precision import convolution_in_tf32
from kernels.conv_wgrad.geometry import Geometry, geometry
from kernels.conv_wgrad.gluon import blackwell, hopper
from kernels.conv_wgrad.portable import way as portable

WAYS = {"blackwell": blackwell, "hopper": hopper, "triton": portable}

_PRODUCTS = {f"16-bit{which}{size}" for which in ("", " pointwise") for size in ("", " narrow", " wide")}
declare(
    "conv_wgrad",
    {
        "product": {"tf32", "ieee", "16-bit scalar", *_PRODUCTS},
        "depthwise": {"few taps", "many taps"},
        **{kernel: {"default"} for kernel in ("bias", "sum")},
        **{kernel: {"3 chunks", "2 chunks"} for kernel in ("hopper", "hopper, short rows", "blackwell")},
    },
)


class Problem(NamedTuple):
    """Everything that a way and its plan depend on."""

    g: Geometry
    input: Layout
    grad_output: Layout
    split_k: int | None
    precision: str
    device: torch.device

    @property
    def dtype(self):
        """The inputs'."""
        return self.input.dtype


class Refusable(NamedTuple):
    """What a way's ``reason_not`` looks at of a ``Problem``."""

    g: Geometry
    dtype: torch.dtype
    device: torch.device


def problem_of(input, grad_output, g, split_k=None):
    """The ``Problem`` of tensors and their ``Geometry``."""
    precision = "tf32" if input.dtype == torch.float32 and convolution_in_tf32() else "ieee"  # the switch takes long to ask
    return Problem(g, layout(input), layout(grad_output), split_k, precision, input.device)


@remembered
def chosen(problem, asked):
    """``(Choice, Plan)`` of a problem; ``asked``: ``"auto"``, or a way by name."""
    choice = choose(WAYS, problem, asked)
    return choice, WAYS[choice.name].plan(problem)


def predicted(problem):
    """Lines of text: every candidate that the model of cost weighed, of all ways that can take the problem, fastest first."""
    ways = {"hopper": hopper, "triton": portable}
    weighed = [
        (candidate.time, f"  {name} {candidate}")
        for name, way in ways.items() if way.reason_not(problem) is None
        for candidate in way.candidates(problem)
    ]  # fmt: skip
    return ["predicted:", *(line for _, line in sorted(weighed))] if weighed else []


_geometry = functools.lru_cache(1024, typed=True)(geometry)  # 1.0 is not 1 to who checks


def checked(*arguments):
    """``geometry``, remembered unless a tracer's sizes are symbols."""
    if torch.compiler.is_compiling():
        return geometry(*arguments)
    try:
        return _geometry(*arguments)
    except TypeError:  # symbols and lists have no hash
        return geometry(*arguments)


def wgrad(input, grad_output, g, out, accumulate=False, asked="auto", split_k=None):
    """Bring the weight gradient into ``out``.

    Args:
        input: x, [N, H, W, Ci].
        grad_output: dy, [N, P, Q, Co], x's dtype.
        g: their ``Geometry``.
        out: [Co, R, S, Ci/groups], any strides.
        accumulate: add to ``out`` rather than overwrite it.
        asked: ``"auto"``, or a way by name.
        split_k: pieces of the reduction, or ``None`` for the table's choice.
    """
    _, plan = chosen(problem_of(input, grad_output, g, split_k), asked)
    plan.run(input, grad_output, out, accumulate)


def bias_grad(grad_output, out, accumulate=False):
    """Bring the bias gradient, the sum of ``grad_output`` [N, P, Q, Co] over its pixels, into ``out`` [Co]."""
    portable.plan_bias(layout(grad_output), grad_output.device).run(grad_output, out, accumulate)
