"""The ways that the weight gradient can go, and the choice among them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from kernels.common.configs import declare
from kernels.common.plan import Bounded, Layout, choose, layout, remembered
from kernels.common.precision import convolution_in_tf32
from kernels.conv_wgrad.forms import FormPlan, folded, forms
from kernels.conv_wgrad.forward import format_of, input_grad_of
from kernels.conv_wgrad.geometry import Geometry, geometry
from kernels.conv_wgrad.gluon import blackwell_way as blackwell
from kernels.conv_wgrad.gluon import hopper
from kernels.conv_wgrad.portable import way as portable

WAYS = {"blackwell": blackwell, "hopper": hopper, "triton": portable}

_PRODUCTS = {f"16-bit{which}{size}" for which in ("", " pointwise") for size in ("", " narrow", " wide")}
declare(
    "conv_wgrad",
    {
        "product": {"tf32", "ieee", "16-bit scalar", *_PRODUCTS},
        "depthwise": {"few taps", "many taps"},
        "bias": {"default"},
        "sum": {"few", "many"},
        "short": {"default"},
        **{kernel: {"3 chunks", "2 chunks"} for kernel in ("hopper", "hopper, short rows", "blackwell")},
    },
)


class Problem(NamedTuple):
    """Everything that a way and its plan depend on; ``turned``: x and dy have each other's roles, see ``forms``."""

    g: Geometry
    input: Layout
    grad_output: Layout
    split_k: int | None
    precision: str
    device: torch.device
    turned: bool = False

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
    return Problem(g, layout(input), layout(grad_output), split_k, _precision(input.dtype), input.device)


def _precision(dtype):
    return "tf32" if dtype == torch.float32 and convolution_in_tf32() else "ieee"  # the switch takes long to ask


@remembered
def chosen(problem, asked):
    """``(Choice, FormPlan)`` of a problem, in the form that is predicted to be the fastest; ``asked``: ``"auto"``, or a way
    by name."""
    plain, *others = forms(problem)
    best, choice = plain, choose(WAYS, plain.problem, asked)
    for form in others:
        ways = {name: way for name, way in WAYS.items() if asked in ("auto", name)}
        if modelled(form.problem) and any(way.reason_not(form.problem) is None for way in ways.values()):
            other = choose(ways, form.problem)
            if time_of(other, form) < time_of(choice, best):
                best, choice = form, other
    return choice, FormPlan(best, WAYS[choice.name].plan(best.problem))


class Gradients(NamedTuple):
    """What a backward pass launches, for tensors whose channels come before height and width, as torch's convolutions have
    them. ``straight``: the weight gradient's kernel reads the tensors and writes the gradient as they lie."""

    input_grad: Callable
    weights: FormPlan
    biases: portable.BiasPlan
    straight: bool

    def run(self, dy, input, weight, needs, looked_at=False):
        """``[dx, dw, db]``, ``None`` where ``needs`` says so.

        Args:
            dy: [N, Co, P, Q]; input: [N, Ci, H, W]; weight: [Co, Ci/groups, R, S].
            needs: three bools.
            looked_at: whether these tensors are known to be as those that it was made for.
        """
        dx = self.input_grad(dy, input, weight) if needs[0] else None
        dw = db = None
        if needs[2]:
            db = dy.new_empty(dy.shape[1])
        if needs[1]:
            dw = torch.empty_like(weight)
            beside = db if self.weights.takes_bias else None
            if self.straight:
                self.weights.plan.fill(input, dy, dw, beside, looked_at)
            else:
                x, pixels, sums = (t.permute(0, 2, 3, 1) for t in (input, dy, dw))
                self.weights.run(x, pixels, sums, False, beside)
            if beside is not None:
                return [dx, dw, db]
        if db is not None:
            self.biases.run(dy.permute(0, 2, 3, 1), db, False)
        return [dx, dw, db]

    def run_known(self, dy, input, weight, needs):
        """``run`` of tensors that have been looked at."""
        return self.run(dy, input, weight, needs, True)


class Backward:
    """The backward passes of calls that are alike: what they launch is found by what may differ nonetheless.

    Those are the output's gradient, and what hooks on saved tensors have put in the place of the others: of the same dtypes.
    """

    def __init__(self, options):
        self.options, self.known = options, Bounded()

    def of(self, dy, input, weight):
        """``run(dy, input, weight, needs)``; ``None`` without a gradient, and for tensors that begin at an odd address."""
        if dy is None or (dy.data_ptr() | input.data_ptr()) & 15:
            return None
        dtype = dy.dtype
        key = (
            dy.shape, dy.stride(), dtype, input.shape, input.stride(), input.dtype, weight.shape, weight.stride(),
            weight.dtype, dtype == torch.float32 and convolution_in_tf32(),
        )  # fmt: skip
        run = self.known.get(key)
        if run is None and dtype == input.dtype == weight.dtype:
            run = self.known.keep(key, of_backward(dy, input, weight, self.options).run_known)
        return run


def of_backward(dy, input, weight, options):
    """The ``Gradients`` of tensors that lie so; options: (stride, padding, dilation, groups)."""
    dtype = input.dtype
    return _of_backward(
        dy.shape, dy.stride(), dy.data_ptr() & 15, input.shape, input.stride(), input.data_ptr() & 15, weight.shape,
        weight.stride(), options, dtype, _precision(dtype), input.device,
    )  # fmt: skip


@remembered
def _of_backward(
    dy_shape, dy_strides, dy_address, shape, strides, address, weight_shape, weight_strides, options, dtype, precision, device
):  # fmt: skip
    last = lambda sizes: (sizes[0], sizes[2], sizes[3], sizes[1])  # noqa: E731
    Co, _, R, S = weight_shape
    g = checked(last(shape), Co, R, S, *options)
    x = Layout(torch.Size(last(shape)), last(strides), dtype, address)
    dy = Layout(torch.Size(last(dy_shape)), last(dy_strides), dtype, dy_address)
    _, weights = chosen(Problem(g, x, dy, None, precision, device), "auto")
    made = torch.empty_like(torch.empty_strided(weight_shape, weight_strides, device="meta"))
    straight = weights.straight and made.permute(0, 2, 3, 1).is_contiguous()
    return Gradients(input_grad_of(g, format_of(shape, strides)), weights, portable.plan_bias(dy, device), straight)


def modelled(problem):
    """Whether the model of cost knows the GPU: without it nobody knows which roles are faster."""
    return bool(portable.candidates(problem))


def time_of(choice, form):
    """The predicted time of a ``Choice`` for a form."""
    return WAYS[choice.name].cost(form.problem).time


def refused(backend, g, dtype, device):
    """Why a backend cannot compute a geometry's gradient, as text, or ``None``."""
    return WAYS[backend].reason_not(Refusable(folded(g), dtype, device))


def predicted(problem):
    """Lines of text: every candidate that the model of cost weighed, of all ways that can take the problem, fastest first."""
    ways = {"hopper": hopper, "triton": portable}
    weighed = [
        (candidate.time, f"  {name}{' turned' * form.problem.turned} {candidate}")
        for form in forms(problem)
        for name, way in ways.items() if way.reason_not(form.problem) is None
        for candidate in way.candidates(form.problem)
    ]  # fmt: skip
    return ["predicted:", *(line for _, line in sorted(weighed))] if weighed else []


@functools.lru_cache(1024)
def _geometry(arguments, types):
    return geometry(*arguments)


def checked(*arguments):
    """``geometry``, remembered unless a tracer's sizes are symbols."""
    if torch.compiler.is_compiling():
        return geometry(*arguments)
    try:
        types = [tuple(map(type, x)) if type(x) is tuple else type(x) for x in arguments[1:]]  # 1.0 is not 1 to who checks
        return _geometry(arguments, tuple(types))
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
