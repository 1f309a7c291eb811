"""The weight and the bias gradient: what may be asked, which backend answers, and its launch. Docstrings here are of record.

A call goes from its checks through PyTorch's dispatcher (``register``) to ``new_wgrad`` or ``wgrad_into``, which look up the
plan of tensors with these layouts and ``run`` it. ``conv2d_wgrad.explain`` prints the choice, ``choose``, and the plan.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.common.checks import (
    FLOAT_DTYPES,
    check_apart,
    check_choice,
    check_tensor,
    check_updated_in_place,
    explains,
    is_whole,
    public,
    shown,
)
from kernels.common.configs import configuration, declare
from kernels.common.math import block, cdiv
from kernels.common.operator import launch, layout, planned, register
from kernels.conv_wgrad import blackwell, hopper, portable
from kernels.conv_wgrad.cost import AT_ONCE, cheapest
from kernels.conv_wgrad.geometry import geometry
from kernels.conv_wgrad.plain import sum_kernel
from kernels.conv_wgrad.problem import Equivalent, Problem, equivalents, patches_as_channels

BACKENDS = {"blackwell": blackwell, "hopper": hopper, "triton": portable}  # in the order of preference
FEW = 4  # partial sums


@public
def conv2d_wgrad(
    input: Tensor,
    grad_output: Tensor,
    R: int,
    S: int,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    backend: str = "auto",
    split_k: int | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The gradient of a 2-D convolution's weight, from its input and the gradient of its output, channels last.

    .. math:: \\bar w_{o,r,s,c} = \\sum_{n,p,q} \\bar y_{n,p,q,o}\\;x_{n,h,w,c}
        \\qquad h = p\\,\\sigma_h + r\\,\\delta_h - p_t, \\quad w = q\\,\\sigma_w + s\\,\\delta_w - p_l

    with x zero outside the image, and c running over the channels of o's group. Sums are fp32, with one rounding to the
    result's dtype; float32 is multiplied in tf32 where torch does so (``torch.backends.cudnn.conv.fp32_precision``). The
    order of the sums is fixed: bit-identical from run to run. Never waits for the GPU. Not differentiable itself.

    Args:
        input: x [N, H, W, Ci], float32, float16 or bfloat16; any strides. It is read in place where its channels are adjacent
            in memory (and, by Hopper's backend, its pixels a multiple of 16 bytes apart; of patches that do not overlap, its
            pixels side by side), and copied first where not.
        grad_output: [N, P, Q, Co], in input's dtype; the same, and its pixels must be evenly spaced to be read in place.
        R, S: height and width of the filter.
        stride: :math:`\\sigma`, int or (h, w).
        padding: rows and columns of zeros around x: int, (h, w) or (top, bottom, left, right); ``"valid"`` or ``"same"``, as
            torch's.
        dilation: :math:`\\delta`, int or (h, w).
        groups: number of groups that the channels are cut into; Ci of them: depthwise.
        backend: ``"triton"``, ``"hopper"``, ``"blackwell"`` or ``"auto"``: ``conv2d_wgrad.explain`` says which, and why.
        split_k: how many splits the sum over pixels is cut into, each summed by programs of its own; no more than it has
            blocks. ``None``: as many as fill the GPU.
        out: [Co, R, S, Ci/groups] to write, any strides; ``None`` allocates.
        accumulate: add to ``out``, in fp32, rather than overwrite it.
        out_dtype: dtype of the result; ``None``: that of ``out``, else input's.

    Returns:
        [Co, R, S, Ci/groups], ``out`` itself where given. Zero where there are no pixels.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; the backend cannot do this.

    Source: the implicit product and split-K follow Triton's Gluon example ``02-conv-wgrad``.
    """
    given = R, S, stride, padding, dilation, groups
    convolution = _check(input, grad_output, given, backend, split_k, out, accumulate, out_dtype)
    split_k = split_k if split_k is None else int(split_k)
    if out is None:
        return _wgrad(input, grad_output, *convolution, backend, split_k, out_dtype)
    _wgrad_into(out, input.detach(), grad_output.detach(), *convolution, backend, split_k, accumulate)
    return out


@explains(conv2d_wgrad)
def explain(input, grad_output, backend, split_k, out, accumulate, out_dtype, **given):
    """What ``conv2d_wgrad`` would run for these arguments, and why, as text: the backend, its tiles and split-K, the share of
    work on padding (tile waste, 1.00 for none), which tensors it copies first, and, on GPUs that costs were fitted for, the
    predicted time of every candidate."""
    convolution = _check(input, grad_output, tuple(given.values()), backend, split_k, out, accumulate, out_dtype)
    g = geometry(input.shape, grad_output.shape[-1], *convolution)
    asked = problem_of(input, grad_output, g, split_k)
    choice, plan = plan_wgrad(*asked[1:3], convolution, asked.precision, asked.device, backend, split_k)
    equivalent, problem = choice.equivalent, choice.equivalent.problem
    what = "; ".join(text for text in (plan.text, str(equivalent)) if text)
    lines = [f"{choice.backend}: {what}", *(f"not {name}: {reason}" for name, reason in choice.why_not.items())]
    names = ("grad_output", "input") if problem.turned else ("input", "grad_output")
    copies = [("input", input.stride(), equivalent.copied)]
    copies += zip(names, (problem.input.strides, problem.grad_output.strides), plan.copied, strict=True)
    lines += [f"copies {name}: strides {tuple(strides)}, {why}" for name, strides, why in copies if why]
    return "\n".join(lines + predicted(asked))


@public
def conv2d_bias_grad(
    grad_output: Tensor,
    *,
    out: Tensor | None = None,
    accumulate: bool = False,
) -> Tensor:
    """The gradient of a convolution's bias: :math:`\\bar b_o = \\sum_{n,p,q} \\bar y_{n,p,q,o}`, summed in fp32.

    Bit-identical from run to run; never waits for the GPU; not differentiable itself.

    Args:
        grad_output: [N, P, Q, Co], float32, float16 or bfloat16.
        out: [Co] to write; ``None`` allocates, in grad_output's dtype.
        accumulate: add to ``out``, in fp32, rather than overwrite it.

    Returns:
        [Co], ``out`` itself where given.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit.
    """
    check_tensor("grad_output", grad_output, (None, None, None, None), "[N, P, Q, Co]")
    like = ("grad_output", grad_output)
    if out is not None or accumulate:
        _check_out(out, (grad_output.shape[-1],), "[Co]", accumulate, None, like, grad_output=grad_output)
    if out is None:
        return _bias_grad(grad_output)
    _bias_grad_into(out, grad_output.detach(), accumulate)
    return out


def _geometry(arguments, types=None):
    g = geometry(*arguments)
    return g, (g.R, g.S, g.stride, g.padding, g.dilation, g.groups), g.output_shape, g.weight_shape


_known_geometry = planned(_geometry)


def checked(*arguments):
    """``(Geometry, (R, S, stride, padding, dilation, groups), output_shape, weight_shape)`` of ``geometry``'s arguments;
    raises what that raises."""
    if torch.compiler.is_compiling():
        return _geometry(arguments)
    try:  # 1.0 is not 1 to who checks
        types = [tuple(map(type, x)) if type(x) is tuple else type(x) for x in arguments[1:]]
        return _known_geometry(arguments, tuple(types))
    except TypeError:  # symbols and lists have no hash
        return _geometry(arguments)


def _check(input, grad_output, convolution, backend, split_k, out, accumulate, out_dtype):
    """``(R, S, stride, padding, dilation, groups)``, which is ``convolution`` written out, of arguments that fit."""
    check_tensor("input", input, (None, None, None, None), "[N, H, W, Ci]")
    like = {"dtypes": (input.dtype,), "like": ("input", input)}
    check_tensor("grad_output", grad_output, (None, None, None, None), "[N, P, Q, Co]", **like)
    g, convolution, output_shape, weight_shape = checked(input.shape, grad_output.shape[-1], *convolution)
    check_tensor("grad_output", grad_output, output_shape, "[N, P, Q, Co]", **like)
    if split_k is not None and (not is_whole(split_k) or split_k < 1):
        raise ValueError(f"split_k is {shown(split_k)}, needs a whole number of at least 1, or None")
    if out is not None or accumulate or out_dtype is not None:
        read = {"input": input, "grad_output": grad_output}
        _check_out(out, weight_shape, "[Co, R, S, Ci/groups]", accumulate, out_dtype, ("input", input), **read)
    if backend != "auto":
        check_choice("backend", backend, ("auto", *BACKENDS))
        if reason := BACKENDS[backend].reason_not(patches_as_channels(g), input.dtype, input.device):
            raise ValueError(f"backend is {shown(backend)}, needs another here: {reason}")
    return convolution


def _check_out(out, shape, legend, accumulate, out_dtype, like, **read):
    if out_dtype is not None and out_dtype not in FLOAT_DTYPES:
        raise ValueError(f"out_dtype is {shown(out_dtype)}, needs one of float32, float16, bfloat16")
    if out is None:
        if accumulate:
            raise ValueError("accumulate is True, needs out to add to")
        return
    check_tensor("out", out, shape, legend, dtypes=FLOAT_DTYPES if out_dtype is None else (out_dtype,), like=like)
    check_updated_in_place("out", out)
    check_apart("out", out, **read)


# The choice: of the backends that can take a problem, or an equivalent one, the one that is predicted to be the fastest.

declare(
    "conv_wgrad",
    {
        "product": {"tf32", "ieee", "16-bit", "16-bit narrow", "16-bit scalar"},
        "depthwise": {"few taps", "many taps"},
        "bias": {"default"},
        "sum": {"few", "many"},
        "hopper": {"default"},
        "blackwell": {"default"},
    },
)


class Choice(NamedTuple):
    """A backend's name, the ``Equivalent`` of the problem that it is given, and of the others why not."""

    backend: str
    equivalent: Equivalent
    why_not: dict[str, str]


@planned
def choose(problem, asked="auto"):
    """The ``Choice`` for a problem: what is predicted to be the fastest, or, without a model of cost, the first backend that
    can take it as it is; ``asked``: ``"auto"``, or a backend by name."""
    choice, least = None, float("inf")
    for equivalent in equivalents(problem):
        why_not, times, own = {}, {}, equivalent.problem
        for name in BACKENDS if asked == "auto" else (asked,):
            reason = BACKENDS[name].reason_not(own.g, own.dtype, own.device)
            if reason is None and name == "blackwell" and asked == "auto":
                reason = blackwell.UNPROVEN
            if reason is not None:
                why_not[name] = reason
            elif found := BACKENDS[name].candidates(own):
                times[name] = cheapest(found).time
                why_not[name] = f"predicted {times[name]:.1f} us"
            else:
                times[name] = float("inf")
        if times and (choice is None or min(times.values()) < least):
            best = min(times, key=times.get)
            least = times[best]
            choice = Choice(best, equivalent, {name: why for name, why in why_not.items() if name != best})
    return choice


def predicted(problem):
    """Lines of text: every candidate that the model of cost weighed, of all backends that can take the problem, fastest
    first."""
    weighed = [
        (candidate.time, f"  {name}{' turned' * own.turned}{' folded' * (own.fold > 1)} {candidate}")
        for own in (equivalent.problem for equivalent in equivalents(problem))
        for name, backend in BACKENDS.items()
        if backend.reason_not(own.g, own.dtype, own.device) is None
        for candidate in backend.candidates(own)
    ]
    return ["predicted:", *(line for _, line in sorted(weighed))] if weighed else []


def problem_of(input, grad_output, g, split_k=None):
    """The ``Problem`` of tensors and their ``Geometry``."""
    precision = torch.backends.cudnn.conv.fp32_precision
    return Problem(g, layout(input), layout(grad_output), split_k, precision, input.device)


@planned
def plan_wgrad(input, grad_output, convolution, precision, device, backend="auto", split_k=None):
    """``(Choice, Plan)`` for tensors with these layouts."""
    g = geometry(input.shape, grad_output.shape[-1], *convolution)
    choice = choose(Problem(g, input, grad_output, split_k, precision, device), backend)
    return choice, BACKENDS[choice.backend].plan(choice.equivalent.problem)


# Behind the dispatcher: tensors that have been checked, and what is launched for them.


def run(plan, input, grad_output, out, accumulate=False, equivalent=None):
    """Launch a ``Plan`` and bring its sums into ``out``, in any layout; ``accumulate``: add them.

    equivalent: what the plan is for; ``None``: the problem as it is.
    """
    dense = out
    if not out.is_contiguous():  # rounded once: by the kernel, or by the addition
        dense = torch.empty(out.shape, dtype=torch.float32 if accumulate else out.dtype, device=out.device)
    target = dense
    if plan.slots != 1 or accumulate and dense is out:
        target = torch.empty((plan.slots, *out.shape), dtype=torch.float32, device=out.device)
    if plan.slots:
        x, dy = input, grad_output
        if equivalent is not None and equivalent.problem.g is not equivalent.g:
            x, dy = equivalent.tensors(input, grad_output)
        x = plan.copy(x) if plan.copied[0] else x
        dy = plan.copy(dy) if plan.copied[1] else dy
        launch(plan.kernel, plan.grid, *plan.arguments(x, dy, target), *plan.sizes, **plan.meta)
    if target is not dense:
        sum_splits(target, dense, accumulate and dense is out)
    if dense is not out:
        out.add_(dense) if accumulate else out.copy_(dense)


def sum_splits(partials, out, accumulate):
    """Sum partial results in order, in fp32, and round once to ``out``'s dtype.

    Args:
        partials: fp32 [splits, ...], contiguous; no splits sum to zero.
        out: contiguous; written, or with ``accumulate`` added to.
        accumulate: bool.
    """
    splits = partials.shape[0]
    options = _sum_options(splits <= FEW, out.device)
    at_once = FEW if splits <= FEW else min(AT_ONCE, block(splits))
    grid = (cdiv(out.numel(), options["BLOCK"]),)
    meta = {"ACCUMULATE": accumulate, "AT_ONCE": at_once} | options
    launch(sum_kernel, grid, partials, out, out.numel(), splits, **meta)


@planned
def _sum_options(few, device):
    return configuration("conv_wgrad", "sum", "few" if few else "many", device)


def wgrad_by(backend, input, grad_output, g, out, accumulate=False, split_k=None):
    """The weight gradient of the ``Geometry`` g by a backend, whatever the GPU is, in the problem as it is."""
    plan = BACKENDS[backend].plan(problem_of(input, grad_output, g, split_k))
    run(plan, input, grad_output, out, accumulate)


def wgrad_into(out, input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, accumulate):
    """The weight gradient in, or added to, a given one."""
    convolution = R, S, tuple(stride), tuple(padding), tuple(dilation), groups
    x, dy, precision = layout(input), layout(grad_output), torch.backends.cudnn.conv.fp32_precision
    choice, plan = plan_wgrad(x, dy, convolution, precision, input.device, backend, split_k)
    run(plan, input, grad_output, out, accumulate, choice.equivalent)


def new_wgrad(input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out_dtype):
    """The weight gradient in a new tensor."""
    convolution = R, S, tuple(stride), tuple(padding), tuple(dilation), groups
    x, dy, precision = layout(input), layout(grad_output), torch.backends.cudnn.conv.fp32_precision
    choice, plan = plan_wgrad(x, dy, convolution, precision, input.device, backend, split_k)
    out = input.new_empty(grad_output.shape[-1], R, S, input.shape[-1] // groups, dtype=out_dtype or input.dtype)
    run(plan, input, grad_output, out, equivalent=choice.equivalent)
    return out


def bias_grad_into(out, grad_output, accumulate):
    """The bias gradient in, or added to, a given one [Co] of any layout."""
    plan = portable.plan_bias(layout(grad_output), grad_output.device)
    run(plan, None, grad_output, out, accumulate)


def new_bias_grad(grad_output):
    """The bias gradient in a new tensor."""
    out = _bias_grad_shape(grad_output)
    bias_grad_into(out, grad_output, False)
    return out


# As torch sees them: operators with known output shapes, in a compiled graph as in an eager one.


GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
_WGRAD = f"Tensor input, Tensor grad_output, SymInt R, SymInt S, {GEOMETRY}, str backend, SymInt? split_k"


def _wgrad_shape(input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out_dtype):
    return input.new_empty(grad_output.shape[-1], R, S, input.shape[-1] // groups, dtype=out_dtype or input.dtype)


def _bias_grad_shape(grad_output):
    return grad_output.new_empty(grad_output.shape[-1])


def _flops(input, grad_output, R, S, stride, padding, dilation, groups, *rest):
    return 2 * grad_output.numel() * R * S * (input.shape[-1] // groups)


_wgrad = register(
    f"conv2d_wgrad({_WGRAD}, ScalarType? out_dtype) -> Tensor dw",
    new_wgrad,
    _wgrad_shape,
    operator="conv_wgrad",
    flops=_flops,
)
_wgrad_into = register(
    f"conv2d_wgrad_into(Tensor(a!) out, {_WGRAD}, bool accumulate) -> ()",
    wgrad_into,
    lambda *arguments: None,
    public="conv2d_wgrad",
    operator="conv_wgrad",
    flops=lambda out, *arguments: _flops(*arguments),
)
_bias_grad = register(
    "conv2d_bias_grad(Tensor grad_output) -> Tensor db",
    new_bias_grad,
    _bias_grad_shape,
    operator="conv_wgrad",
)
_bias_grad_into = register(
    "conv2d_bias_grad_into(Tensor(a!) out, Tensor grad_output, bool accumulate) -> ()",
    bias_grad_into,
    lambda *arguments: None,
    public="conv2d_bias_grad",
    operator="conv_wgrad",
)
