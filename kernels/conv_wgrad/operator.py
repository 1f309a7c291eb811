"""The public functions: validate, register. Their docstrings are the ones of record."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.common.checks import (
    FLOAT_DTYPES,
    autocast,
    check_apart,
    check_choice,
    check_tensor,
    check_updated_in_place,
    explains,
    is_whole,
    public,
    shown,
)
from kernels.common.operator import Operator
from kernels.conv_wgrad import plan
from kernels.conv_wgrad.forward import convolution_of, memory_format


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
        split_k: how many pieces the sum over pixels is cut into, each summed by programs of its own; no more than it has
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
    g = _check(
        input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out, accumulate, out_dtype
    )
    rest = (g.R, g.S, g.stride, g.padding, g.dilation, g.groups, backend, split_k if split_k is None else int(split_k))
    if out is None:
        return _wgrad(input, grad_output, *rest, out_dtype)
    _wgrad_into(out, input.detach(), grad_output.detach(), *rest, accumulate)
    return out


@explains(conv2d_wgrad)
def explain(input, grad_output, backend, split_k, out, accumulate, **rest):
    """What ``conv2d_wgrad`` would run for these arguments, and why, as text: the backend, its tiles and split-K, the share of
    work on padding (tile waste, 1.00 for none), which tensors it copies first, and, on GPUs that costs were fitted for, the
    predicted time of every candidate."""
    g = _check(input, grad_output, backend=backend, split_k=split_k, out=out, accumulate=accumulate, **rest)
    problem = plan.problem_of(input, grad_output, g, split_k)
    choice, what = plan.chosen(problem, backend)
    what, form = what.of(out, accumulate), what.form
    lines = [f"{choice.name}: {what}", *str(choice).splitlines(), *form.copies(input, grad_output)]
    copies = plan.WAYS[choice.name].copies(*form.tensors(input, grad_output))
    return "\n".join(lines + [form.named(line) for line in copies] + plan.predicted(problem))


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
    _check_out(out, (grad_output.shape[-1],), "[Co]", accumulate, None, like, grad_output=grad_output)
    if out is None:
        return _bias_grad(grad_output)
    _bias_grad_into(out, grad_output.detach(), accumulate)
    return out


@public
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """A 2-D convolution of images with channels last, whose weight and bias gradients are this room's kernels.

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
    input, weight, bias = autocast(input, weight, bias)
    check_tensor("input", input, (None, None, None, None), "[N, H, W, Ci]")
    like = {"dtypes": (input.dtype,), "like": ("input", input)}
    check_tensor("weight", weight, (None, None, None, None), "[Co, R, S, Ci/groups]", **like)
    g = plan.checked(input.shape, *weight.shape[:3], stride, padding, dilation, groups)
    check_tensor("weight", weight, g.weight_shape, "[Co, R, S, Ci/groups]", **like)
    if bias is not None:
        check_tensor("bias", bias, (g.Co,), "[Co]", **like)
    g.check_output()
    planes = input.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    return OPERATOR(*planes, bias, g.stride, g.padding, g.dilation, g.groups).permute(0, 2, 3, 1).contiguous()


def _check(input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out, accumulate, out_dtype):
    check_tensor("input", input, (None, None, None, None), "[N, H, W, Ci]")
    like = ("input", input)
    check_tensor(
        "grad_output", grad_output, (None, None, None, None), "[N, P, Q, Co]", dtypes=(input.dtype,), like=like
    )
    g = plan.checked(input.shape, grad_output.shape[-1], R, S, stride, padding, dilation, groups)
    check_tensor("grad_output", grad_output, g.output_shape, "[N, P, Q, Co]", dtypes=(input.dtype,), like=like)
    check_choice("backend", backend, ("auto", *plan.WAYS))
    if split_k is not None and (not is_whole(split_k) or split_k < 1):
        raise ValueError(f"split_k is {shown(split_k)}, needs a whole number of at least 1, or None")
    read = {"input": input, "grad_output": grad_output}
    _check_out(out, g.weight_shape, "[Co, R, S, Ci/groups]", accumulate, out_dtype, like, **read)
    if backend != "auto" and (reason := plan.refused(backend, g, input.dtype, input.device)):
        raise ValueError(f"backend is {shown(backend)}, needs another here: {reason}")
    return g


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


# As torch sees them: opaque calls with known output shapes, in a compiled graph as in an eager one.


_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
_WGRAD = f"Tensor input, Tensor grad_output, SymInt R, SymInt S, {_GEOMETRY}, str backend, SymInt? split_k"


def _run_wgrad(out, input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, accumulate):
    g = plan.checked(input.shape, grad_output.shape[-1], R, S, tuple(stride), tuple(padding), tuple(dilation), groups)
    plan.wgrad(input, grad_output, g, out, accumulate, backend, split_k)


def _new_wgrad(*arguments):
    out = _wgrad_shape(*arguments)
    _run_wgrad(out, *arguments[:-1], False)
    return out


def _wgrad_shape(input, grad_output, R, S, stride, padding, dilation, groups, backend, split_k, out_dtype):
    return input.new_empty(grad_output.shape[-1], R, S, input.shape[-1] // groups, dtype=out_dtype or input.dtype)


def _new_bias_grad(grad_output):
    out = grad_output.new_empty(grad_output.shape[-1])
    plan.bias_grad(grad_output, out)
    return out


_wgrad = Operator(
    f"conv2d_wgrad({_WGRAD}, ScalarType? out_dtype) -> Tensor dw", _new_wgrad, _wgrad_shape, room="conv_wgrad"
)
_wgrad_into = Operator(
    f"conv2d_wgrad_into(Tensor(a!) out, {_WGRAD}, bool accumulate) -> ()",
    _run_wgrad, lambda *arguments: None, public="conv2d_wgrad", room="conv_wgrad",
)  # fmt: skip
_bias_grad = Operator(
    "conv2d_bias_grad(Tensor grad_output) -> Tensor db",
    _new_bias_grad, lambda dy: dy.new_empty(dy.shape[-1]), room="conv_wgrad",
)  # fmt: skip
_bias_grad_into = Operator(
    "conv2d_bias_grad_into(Tensor(a!) out, Tensor grad_output, bool accumulate) -> ()",
    lambda out, grad_output, accumulate: plan.bias_grad(grad_output, out, accumulate), lambda *arguments: None,
    public="conv2d_bias_grad", room="conv_wgrad",
)  # fmt: skip


def _planes(input, weight, stride, padding, dilation, groups):
    """``(Geometry, memory format of the output)`` of images and weights whose channels come before height and width."""
    N, Ci, H, W = input.shape
    Co, _, R, S = weight.shape
    g = plan.checked((N, H, W, Ci), Co, R, S, tuple(stride), tuple(padding), tuple(dilation), groups)
    return g, memory_format(input, weight)


def _convolution(input, weight, bias, *rest):
    """y [N, Co, P, Q] of input [N, Ci, H, W] and weight [Co, Ci/groups, R, S]."""
    return convolution_of(*_planes(input, weight, *rest))(input, weight, bias)


def _convolution_shape(input, weight, bias, *rest):
    g, layout = _planes(input, weight, *rest)
    return input.new_empty(g.N, g.Co, g.P, g.Q).contiguous(memory_format=layout)


def _convolution_backward(dy, input, weight, stride, padding, dilation, groups, needs):
    """The gradients of input, weight and bias, ``None`` where not needed."""
    options = tuple(stride), tuple(padding), tuple(dilation), groups
    return plan.of_backward(dy, input, weight, options).run(dy, input, weight, needs)


def _convolution_backward_shapes(dy, input, weight, *rest):
    dx = input.new_empty(input.shape).contiguous(memory_format=memory_format(input))
    return dx, torch.empty_like(weight), weight.new_empty(weight.shape[:1])


OPERATOR = Operator(
    f"conv2d(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}) -> Tensor y",
    _convolution,
    _convolution_shape,
    backward=_convolution_backward,
    gradients=("input", "weight", "bias"),
    saved=("input", "weight"),
    fake_backward=_convolution_backward_shapes,
    room="conv_wgrad",
)


# What torch's counter of floating-point operations is told: what it counts for a convolution of its own.


def _flops(input, weight, *rest):
    g, _ = _planes(input, weight, *rest[1:])
    return 2 * g.N * g.P * g.Q * weight.numel()


def _backward_flops(dy, input, weight, *rest):
    return 2 * sum(rest[-1][:2]) * dy.shape[0] * dy.shape[2:].numel() * weight.numel()


def _wgrad_flops(input, grad_output, R, S, stride, padding, dilation, groups, *rest):
    return 2 * grad_output.numel() * R * S * (input.shape[-1] // groups)


OPERATOR.counts(_flops, _backward_flops)
_wgrad.counts(_wgrad_flops)
_wgrad_into.counts(lambda out, *arguments: _wgrad_flops(*arguments))
