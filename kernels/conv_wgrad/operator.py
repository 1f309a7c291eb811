"""The public functions: what may be asked, which backend answers, and its launch. Their docstrings are the ones of record.

A call goes from its checks through PyTorch's dispatcher (``register``) to ``new_wgrad``, ``wgrad_into`` or
``convolution_backward``, which look up the plan of tensors with these layouts and ``run`` it. ``conv2d_wgrad.explain`` prints
the choice, ``choose``, and the plan.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
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
from kernels.common.operator import launch, layout, planned, register
from kernels.conv_wgrad import blackwell, portable
from kernels.conv_wgrad.equivalent import Equivalent, equivalents, patches_as_channels
from kernels.conv_wgrad.geometry import Geometry, geometry
from kernels.conv_wgrad.hopper import kernel as hopper
from kernels.conv_wgrad.plain import sum_kernel, turned_sum_kernel
from kernels.conv_wgrad.problem import Problem
from kernels.conv_wgrad.split_k import AT_ONCE, FEW, SIDES

BACKENDS = {"blackwell": blackwell, "hopper": hopper, "triton": portable}  # in the order of preference


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
    adds = accumulate and out.is_contiguous()
    tf32 = torch.backends.cudnn.conv.fp32_precision == "tf32"
    choice, plan = plan_wgrad(
        layout(input), layout(grad_output), convolution, tf32, input.device, backend, split_k, adds
    )
    equivalent = choice.equivalent
    what = "; ".join(text for text in (str(plan), str(equivalent)) if text)
    lines = [f"{choice.backend}: {what}", *(f"not {name}: {reason}" for name, reason in choice.why_not.items())]
    copies = BACKENDS[choice.backend].copies(*equivalent.tensors(input, grad_output))
    lines += equivalent.copies(input, grad_output) + [equivalent.named(line) for line in copies]
    g = geometry(input.shape, grad_output.shape[-1], *convolution)
    return "\n".join(lines + predicted(problem_of(input, grad_output, g, split_k)))


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


@public(casts=("input", "weight", "bias"))
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """A 2-D convolution of images with channels last, whose weight and bias gradients are this package's kernels.

    .. math:: y_{n,p,q,o} = b_o + \\sum_{r,s,c} w_{o,r,s,c}\\;x_{n,h,w,c}
        \\qquad h = p\\,\\sigma_h + r\\,\\delta_h - p_t, \\quad w = q\\,\\sigma_w + s\\,\\delta_w - p_l

    The forward pass and the input gradient are torch's. Differentiable once in every tensor; follows autocast.

    Args:
        input: x [N, H, W, Ci], float32, float16 or bfloat16.
        weight: [Co, R, S, Ci/groups], in input's dtype.
        bias: [Co], in input's dtype, or ``None``.
        stride, padding, dilation, groups: as in ``conv2d_wgrad``.

    Returns:
        y [N, P, Q, Co], contiguous, in input's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; the filter is larger than the padded input.
        RuntimeError: a second derivative, forward mode or a transform of ``torch.func`` is asked for.
    """
    check_tensor("input", input, (None, None, None, None), "[N, H, W, Ci]")
    like = {"dtypes": (input.dtype,), "like": ("input", input)}
    check_tensor("weight", weight, (None, None, None, None), "[Co, R, S, Ci/groups]", **like)
    g = checked(input.shape, *weight.shape[:3], stride, padding, dilation, groups).g
    check_tensor("weight", weight, g.weight_shape, "[Co, R, S, Ci/groups]", **like)
    if bias is not None:
        check_tensor("bias", bias, (g.Co,), "[Co]", **like)
    g.check_output()
    planes = input.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    return convolve(*planes, bias, g.stride, g.padding, g.dilation, g.groups).permute(0, 2, 3, 1).contiguous()


class Checked(NamedTuple):
    """A checked ``Geometry``, and what most calls ask of it: ``convolution`` is (R, S, stride, padding, dilation, groups)."""

    g: Geometry
    convolution: tuple
    output_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]


def _geometry(arguments, types=None):
    g = geometry(*arguments)
    convolution = g.R, g.S, g.stride, g.padding, g.dilation, g.groups
    return Checked(g, convolution, g.output_shape, g.weight_shape)


_known_geometry = planned(_geometry)


def checked(*arguments):
    """The ``Checked`` of ``geometry``'s arguments; raises what that raises."""
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
    if backend != "auto":
        check_choice("backend", backend, ("auto", *BACKENDS))
    if split_k is not None and (not is_whole(split_k) or split_k < 1):
        raise ValueError(f"split_k is {shown(split_k)}, needs a whole number of at least 1, or None")
    if out is not None or accumulate or out_dtype is not None:
        read = {"input": input, "grad_output": grad_output}
        _check_out(out, weight_shape, "[Co, R, S, Ci/groups]", accumulate, out_dtype, ("input", input), **read)
    refuse = BACKENDS[backend].reason_not if backend != "auto" else None
    if refuse is not None and (reason := refuse(patches_as_channels(g), input.dtype, input.device)):
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


class Choice(NamedTuple):
    """A backend's name, the ``Equivalent`` of the problem that it is given, the predicted time, and of the others why not."""

    backend: str
    equivalent: Equivalent
    time: float
    why_not: dict[str, str]


@planned
def choose(problem, asked="auto"):
    """The ``Choice`` for a problem; ``asked``: ``"auto"``, or a backend by name."""
    as_given, *others = equivalents(problem)
    best = _cheapest(as_given, asked)
    for equivalent in others:
        known = portable.candidates(equivalent.problem)  # without a model of cost nobody knows which is faster
        if known and (other := _cheapest(equivalent, asked)) and other.time < best.time:
            best = other
    return best


def _cheapest(equivalent, asked):
    """The ``Choice`` of the cheapest backend that can take it, the first of equal ones; ``None`` where none can."""
    why_not, costs, problem = {}, {}, equivalent.problem
    for name in BACKENDS if asked == "auto" else (asked,):
        if reason := BACKENDS[name].reason_not(problem.g, problem.dtype, problem.device):
            why_not[name] = reason
        else:
            costs[name] = BACKENDS[name].cost(problem)
    if not costs:
        return None
    best = min(costs, key=lambda name: costs[name].time)
    why_not |= {name: cost.because for name, cost in costs.items() if name != best and cost.because}
    return Choice(best, equivalent, costs[best].time, {name: why_not[name] for name in BACKENDS if name in why_not})


def predicted(problem):
    """Lines of text: every candidate that the model of cost weighed, of all backends that can take the problem, fastest
    first."""
    weighed = [
        (candidate.time, f"  {name}{' turned' * equivalent.problem.turned} {candidate}")
        for equivalent in equivalents(problem)
        for name in ("hopper", "triton")
        if BACKENDS[name].reason_not(equivalent.problem.g, problem.dtype, problem.device) is None
        for candidate in BACKENDS[name].candidates(equivalent.problem)
    ]
    return ["predicted:", *(line for _, line in sorted(weighed))] if weighed else []


def problem_of(input, grad_output, g, split_k=None):
    """The ``Problem`` of tensors and their ``Geometry``."""
    precision = _precision(input.dtype, torch.backends.cudnn.conv.fp32_precision == "tf32")
    return Problem(g, layout(input), layout(grad_output), split_k, precision, input.device)


def _precision(dtype, tf32):
    """How a dtype is multiplied; tf32: torch's switch for convolutions."""
    return "tf32" if tf32 and dtype == torch.float32 else "ieee"


@planned
def plan_wgrad(input, grad_output, convolution, tf32, device, backend="auto", split_k=None, adds=False):
    """``(Choice, Plan)`` for tensors with these layouts; ``tf32``: whether float32 may be multiplied so; ``adds``: whether
    the sums are added to a tensor."""
    g = geometry(input.shape, grad_output.shape[-1], *convolution)
    problem = Problem(g, input, grad_output, split_k, _precision(input.dtype, tf32), device)
    choice = choose(problem, backend)
    return choice, BACKENDS[choice.backend].plan(choice.equivalent.problem, may_fix_up=not adds)


# Behind the dispatcher: tensors that have been checked, and what is launched for them.


def run(plan, input, grad_output, out, accumulate=False, bias=None, equivalent=None):
    """Launch a ``Plan`` and bring its sums into ``out``, in any layout; ``accumulate``: add them.

    bias: where the bias gradient [Co] goes, of a plan with a ``bias_grid``. equivalent: what the plan is for; ``None``: the
    problem as it is.
    """
    dense = out
    if not out.is_contiguous():  # rounded once: by the kernel, or by the addition
        dense = torch.empty(out.shape, dtype=torch.float32 if accumulate else out.dtype, device=out.device)
    adds, turned = accumulate and dense is out, equivalent is not None and equivalent.problem.turned
    x, dy = input, grad_output
    if equivalent is not None and not equivalent.as_given:
        x, dy = equivalent.tensors(input, grad_output)
    target = dense
    if plan.slots != 1 or adds or turned:
        target = torch.empty((plan.slots, *out.shape), dtype=torch.float32, device=out.device)
    if plan.slots:
        x = x.contiguous() if plan.copied[0] else x
        dy = dy.contiguous() if plan.copied[1] else dy
        arguments = plan.arguments
        tensors = (dy, x, target, dy, bias)[plan.taken] if arguments is None else arguments(x, dy, target, bias)
        launch(plan.kernel, plan.grid if bias is None else plan.bias_grid, *tensors, *plan.sizes, **plan.meta)
    if target is not dense:
        sum_splits(target, dense.view(equivalent.f.weight_shape) if turned else dense, adds, turned)
    if dense is not out:
        out.add_(dense) if accumulate else out.copy_(dense)


def sum_splits(partials, out, accumulate, turned=False):
    """Sum partial results in order, in fp32, and round once to ``out``'s dtype.

    Args:
        partials: fp32 [splits, ...], contiguous; no splits sum to zero.
        out: contiguous; written, or with ``accumulate`` added to.
        accumulate: bool.
        turned: ``out`` is [Co, R, S, Ci], and a partial result [Ci, R, S, Co] with taps from the last to the first.
    """
    splits = partials.shape[0]
    options = _sum_options(splits <= FEW, out.device)
    meta = {"ACCUMULATE": accumulate, "AT_ONCE": FEW if splits <= FEW else AT_ONCE, "num_warps": options["num_warps"]}
    if turned:
        Co, R, S, Ci = out.shape
        side = SIDES[splits <= FEW]
        grid = (R * S * -(-Co // side) * -(-Ci // side),)
        launch(turned_sum_kernel, grid, partials, out, splits, Co, R * S, Ci, SIDE=side, **meta)
    else:
        grid = (-(-out.numel() // options["BLOCK"]),)
        launch(sum_kernel, grid, partials, out, out.numel(), splits, BLOCK=options["BLOCK"], **meta)


@planned
def _sum_options(few, device):
    return configuration("conv_wgrad", "sum", "few" if few else "many", device)


def wgrad_by(backend, input, grad_output, g, out, accumulate=False, split_k=None):
    """The weight gradient of the ``Geometry`` g by a backend, whatever the GPU is, in the problem as it is."""
    plan = BACKENDS[backend].plan(problem_of(input, grad_output, g, split_k), may_fix_up=not accumulate)
    run(plan, input, grad_output, out, accumulate)


def new_wgrad(input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out_dtype):
    """The weight gradient in a new tensor."""
    convolution = R, S, tuple(stride), tuple(padding), tuple(dilation), groups
    tf32 = torch.backends.cudnn.conv.fp32_precision == "tf32"
    choice, plan = plan_wgrad(layout(input), layout(grad_output), convolution, tf32, input.device, backend, split_k)
    out = input.new_empty(grad_output.shape[-1], R, S, input.shape[-1] // groups, dtype=out_dtype or input.dtype)
    run(plan, input, grad_output, out, equivalent=choice.equivalent)
    return out


def wgrad_into(out, input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, accumulate):
    """The weight gradient in, or added to, a given one."""
    convolution = R, S, tuple(stride), tuple(padding), tuple(dilation), groups
    adds, tf32 = accumulate and out.is_contiguous(), torch.backends.cudnn.conv.fp32_precision == "tf32"
    choice, plan = plan_wgrad(
        layout(input), layout(grad_output), convolution, tf32, input.device, backend, split_k, adds
    )
    run(plan, input, grad_output, out, accumulate, equivalent=choice.equivalent)


def new_bias_grad(grad_output):
    """The bias gradient in a new tensor."""
    out = grad_output.new_empty(grad_output.shape[-1])
    bias_grad_into(out, grad_output, False)
    return out


def bias_grad_into(out, grad_output, accumulate):
    """The bias gradient in, or added to, a given one [Co] of any layout."""
    plan = portable.plan_bias(layout(grad_output), grad_output.device)
    run(plan, None, grad_output, out, accumulate)


def convolution(input, weight, bias, stride, padding, dilation, groups):
    """y [N, Co, P, Q] of input [N, Ci, H, W] and weight [Co, Ci/groups, R, S], by torch."""
    y = by_torch(input, weight, bias, _planes(input, weight, stride, padding, dilation, groups))
    return y.contiguous(memory_format=memory_format(input, weight))  # whatever torch chose, as the operator's fake says


def by_torch(input, weight, bias, g):
    """y [N, Co, P, Q] of the ``Geometry`` g."""
    if 0 in g.output_shape or 0 in g.input_shape:  # torch refuses most of these; no products, so y is the bias
        y = input.new_zeros(g.N, g.Co, g.P, g.Q)
        return y if bias is None else y + bias[:, None, None]
    symmetric, excess = g.padding_of_torch
    x = F.pad(input, excess) if any(excess) else input
    # Not by its name in torch.nn.functional, under which a program may have put ours.
    return torch.conv2d(x, weight, bias, g.stride, symmetric, g.dilation, g.groups)


def convolution_backward(dy, input, weight, stride, padding, dilation, groups, needs):
    """The gradients of input, weight and bias, ``None`` where not needed."""
    rows, x = dy.permute(0, 2, 3, 1), input.permute(0, 2, 3, 1)
    convolution = *weight.shape[2:], tuple(stride), tuple(padding), tuple(dilation), groups
    tf32 = torch.backends.cudnn.conv.fp32_precision == "tf32"
    how, choice, plan = plan_gradients(layout(x), layout(rows), convolution, tf32, x.device)
    dx = _input_grad(dy, input, weight, how) if needs[0] else None
    dw = torch.empty_like(weight) if needs[1] else None
    db = dy.new_empty(dy.shape[1]) if needs[2] else None
    beside = db if needs[1] and plan.bias_grid else None
    if needs[1]:
        run(plan, x, rows, dw.permute(0, 2, 3, 1), False, beside, choice.equivalent)
    if db is not None and beside is None:
        bias_grad_into(db, rows, False)
    return dx, dw, db


class InputGrad(NamedTuple):
    """How torch computes dx of a ``Geometry``: its padding, what is cut off from dx then, and how dx is stored."""

    g: Geometry
    nothing: bool
    symmetric: tuple[int, int]
    excess: tuple[int, ...]
    stored: torch.memory_format


@planned
def plan_gradients(x, rows, convolution, tf32, device):
    """``(InputGrad, Choice, Plan)`` for images [N, H, W, Ci] and gradients [N, P, Q, Co] with these layouts."""
    g = geometry(x.shape, rows.shape[-1], *convolution)
    nothing = 0 in g.output_shape or 0 in g.input_shape
    how = InputGrad(g, nothing, *g.padding_of_torch, memory_format(x.meta().permute(0, 3, 1, 2)))
    return how, *plan_wgrad(x, rows, convolution, tf32, device)


def _input_grad(dy, input, weight, how):
    """dx [N, Ci, H, W]: the transposed convolution of dy [N, Co, P, Q] with weight, by torch."""
    g, nothing, symmetric, excess, stored = how
    left, right, top, bottom = excess
    if nothing:
        return dy.new_zeros(input.shape).contiguous(memory_format=stored)
    if any(excess):  # of the input its shape and format are all that is used
        input = dy.new_empty(g.N, g.Ci, g.H + top + bottom, g.W + left + right).to(memory_format=stored)
    options = g.stride, symmetric, g.dilation, False, (0, 0), g.groups, (True, False, False)
    dx, _, _ = torch.ops.aten.convolution_backward.default(dy, input, weight, None, *options)
    if any(excess):
        dx = dx[:, :, top : top + g.H, left : left + g.W]
    return dx.contiguous(memory_format=stored)


def _planes(input, weight, stride, padding, dilation, groups):
    """The ``Geometry`` of images and weights whose channels come before height and width."""
    N, Ci, H, W = input.shape
    Co, _, R, S = weight.shape
    return checked((N, H, W, Ci), Co, R, S, tuple(stride), tuple(padding), tuple(dilation), groups).g


def memory_format(*tensors):
    """The format torch's convolutions give their output: channels last where one of these [N, C, H, W] is stored so."""
    return torch.channels_last if any(map(_is_channels_last, tensors)) else torch.contiguous_format


def _is_channels_last(x):
    """By torch's rule: strides grow from channels to images, and tell channels from images where there is one of each; not
    where a tracer does not know."""
    sizes, steps, least, true = x.shape, x.stride(), 0, bool
    if any(isinstance(number, torch.SymInt) for number in (*sizes, *steps)):
        # to import it takes half a second, unless a tracer has
        from torch.fx.experimental.symbolic_shapes import guard_or_true as true
    if true(steps[1] == 0):
        return False
    for d in (1, 3, 2, 0):
        if true(sizes[d] == 0) or true(steps[d] < least) or d == 0 and least == steps[1]:
            return False
        least = steps[d] * sizes[d]
    return True


# As torch sees them: operators with known output shapes, in a compiled graph as in an eager one.


_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
_WGRAD = f"Tensor input, Tensor grad_output, SymInt R, SymInt S, {_GEOMETRY}, str backend, SymInt? split_k"


def _wgrad_shape(input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out_dtype):
    return input.new_empty(grad_output.shape[-1], R, S, input.shape[-1] // groups, dtype=out_dtype or input.dtype)


def _convolution_shape(input, weight, bias, *rest):
    g = _planes(input, weight, *rest)
    return input.new_empty(g.N, g.Co, g.P, g.Q).contiguous(memory_format=memory_format(input, weight))


def _convolution_backward_shapes(dy, input, weight, *rest):
    dx = input.new_empty(input.shape).contiguous(memory_format=memory_format(input))
    return dx, torch.empty_like(weight), weight.new_empty(weight.shape[:1])


def _flops(input, weight, *rest):
    g = _planes(input, weight, *rest[1:])
    return 2 * g.N * g.P * g.Q * weight.numel()


def _backward_flops(dy, input, weight, *rest):
    return 2 * sum(rest[-1][:2]) * dy.shape[0] * dy.shape[2:].numel() * weight.numel()


def _wgrad_flops(input, grad_output, R, S, stride, padding, dilation, groups, *rest):
    return 2 * grad_output.numel() * R * S * (input.shape[-1] // groups)


_wgrad = register(
    f"conv2d_wgrad({_WGRAD}, ScalarType? out_dtype) -> Tensor dw",
    new_wgrad,
    _wgrad_shape,
    operator="conv_wgrad",
    flops=_wgrad_flops,
)
_wgrad_into = register(
    f"conv2d_wgrad_into(Tensor(a!) out, {_WGRAD}, bool accumulate) -> ()",
    wgrad_into,
    lambda *arguments: None,
    public="conv2d_wgrad",
    operator="conv_wgrad",
    flops=lambda out, *arguments: _wgrad_flops(*arguments),
)
_bias_grad = register(
    "conv2d_bias_grad(Tensor grad_output) -> Tensor db",
    new_bias_grad,
    lambda dy: dy.new_empty(dy.shape[-1]),
    operator="conv_wgrad",
)
_bias_grad_into = register(
    "conv2d_bias_grad_into(Tensor(a!) out, Tensor grad_output, bool accumulate) -> ()",
    bias_grad_into,
    lambda *arguments: None,
    public="conv2d_bias_grad",
    operator="conv_wgrad",
)
convolve = register(
    f"conv2d(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}) -> Tensor y",
    convolution,
    _convolution_shape,
    backward=convolution_backward,
    gradients=("input", "weight", "bias"),
    saved=("input", "weight"),
    fake_backward=_convolution_backward_shapes,
    operator="conv_wgrad",
    flops=_flops,
    backward_flops=_backward_flops,
)
