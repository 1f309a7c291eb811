"""The public functions: validate, choose, wire autograd. Their docstrings are the ones of record."""

import torch
from torch import Tensor

from kernels.common.operator import public, refuse_second_derivative
from kernels.common.sequences import check_cu_seqlens
from kernels.common.validate import check_choice, check_slots, check_tensor
from kernels.dynamic_conv import backward as backward_pass
from kernels.dynamic_conv import forward as forward_pass
from kernels.dynamic_conv.words import channels_per_word

ACTIVATIONS = (None, "silu")


@public
def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise convolution along time whose kernel differs from token to token.

    .. math::
        u_{t,d} = \\sum_{w=0}^{W-1} k_{t,d,w}\\, X_{t-W+1+w,\\,d}, \\qquad y = \\varphi(u + b) + r

    :math:`X_j` is :math:`x_j` for :math:`j \\ge 0` and the initial state (or zero) for the W - 1 times before. Products and
    sums are fp32, with one rounding to the dtype of ``x``. Differentiable once in every tensor argument; the gradient of
    each has that tensor's dtype. Bit-identical from run to run; never waits for the GPU.

    Args:
        x: inputs [B, T, D], float32, float16 or bfloat16; any strides.
        weight: k, one kernel a token [B, T, D, W] or one for all [D, W]; any W >= 1; its dtype may differ from x's.
        bias: b, [D], or ``None``.
        residual: r, [B, T, D], or ``None``.
        activation: :math:`\\varphi`: ``None`` (identity) or ``"silu"``.
        initial_state: [N, D, W-1]; slot i holds the input at time i - (W-1). ``None`` means zeros.
        output_final_state: return the state after the last token too.
        cu_seqlens: int32 or int64 [N+1], for sequences packed end to end along T with B = 1: sequence n is tokens
            ``cu_seqlens[n]`` to ``cu_seqlens[n+1] - 1``; it may be empty. ``None``: every batch row is a sequence, N = B.

    Returns:
        y [B, T, D] in x's dtype; with ``output_final_state``, ``(y, state)`` with state [N, D, W-1] in the dtype of
        ``initial_state``, else of x.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; the values of ``cu_seqlens`` do not (checked
            when it is on the CPU or ``KERNELS_CHECK=1``).

    Source: the dynamic convolution of Jet-Nemotron (Gu et al., 2025, arXiv:2508.15884).
    """
    _check(x, weight, bias, residual, activation)
    B, T, D = x.shape
    N = check_cu_seqlens(cu_seqlens, B, T, ("x", x))
    if initial_state is not None:
        check_tensor("initial_state", initial_state, (N, D, weight.shape[-1] - 1), "[N, D, W-1]", like=("x", x))
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()
    y, state = _forward(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens)
    return (y, state) if output_final_state else y


@public
def dynamic_conv_step(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slots: Tensor | None = None,
) -> Tensor:
    """One token of ``dynamic_conv`` for each sequence, for decoding; ``state`` is shifted in place. Not differentiable.

    .. math::
        y = \\varphi\\Big(\\sum_{w<W-1} k_w s_w + k_{W-1} x + b\\Big) + r, \\qquad s \\leftarrow [s_1, \\dots, s_{W-2}, x]

    Args:
        x: [B, D], float32, float16 or bfloat16.
        weight: [B, D, W] or [D, W].
        state: [B, D, W-1], or a pool [S, D, W-1] with ``slots``; contiguous, because it is updated in place.
        bias: [D], or ``None``.
        residual: [B, D], or ``None``.
        activation: ``None`` or ``"silu"``.
        slots: int64 [B], which state of the pool belongs to each row of x, no two the same; ``None``: row b uses state b.

    Returns:
        y [B, D] in x's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit; the values of ``slots`` do not
            (checked when it is on the CPU or ``KERNELS_CHECK=1``).
    """
    check_tensor("x", x, (None, None), "[B, D]")
    B, D = x.shape
    like = ("x", x)
    W = _check_weight(weight, (B, D), "[B, D, W] or [D, W]", like)
    check_tensor("state", state, (B if slots is None else None, D, W - 1), "[B or pool, D, W-1]", like=like)
    if not state.is_contiguous():
        raise ValueError(f"state has strides {state.stride()}, needs to be contiguous: it is updated in place")
    if state.requires_grad and torch.is_grad_enabled():
        raise ValueError("state requires a gradient, needs none: a step updates it in place and is not differentiable")
    _check_tail(bias, residual, activation, x, "[B, D]")
    if slots is not None:
        check_slots("slots", slots, B, state.shape[0], like)
    return _step(x, weight, state, bias, residual, activation, slots)


def explain(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> str:
    """How ``dynamic_conv`` would access memory for these arguments, and why, as text."""
    _check(x, weight, bias, residual, activation)
    rows = {"x": x} | ({} if residual is None else {"residual": residual})
    G, reason = channels_per_word(rows, {"weight": weight.expand(*x.shape, weight.shape[-1])})
    limit = forward_pass.configuration("dynamic_conv", "forward", forward_pass.size_class(weight), x.device)["G"]
    if limit < G:
        G, reason = (
            limit,
            f"the table of configurations says so for {weight.shape[-1]} taps, whose window lives in registers",
        )
    return f"{'whole words' if G > 1 else 'one element at a time'}: {reason}"


dynamic_conv.explain = explain


def _check(x, weight, bias, residual, activation):
    check_tensor("x", x, (None, None, None), "[B, T, D]")
    _check_weight(weight, x.shape, "[B, T, D, W] or [D, W]", ("x", x))
    _check_tail(bias, residual, activation, x, "[B, T, D]")


def _check_weight(weight, rows, legend, like):
    dynamic = isinstance(weight, Tensor) and weight.ndim == len(rows) + 1
    check_tensor("weight", weight, (*rows, None) if dynamic else (rows[-1], None), legend, like=like)
    if weight.shape[-1] == 0:
        raise ValueError(f"weight has shape {list(weight.shape)}, needs at least one tap (W >= 1)")
    return weight.shape[-1]


def _check_tail(bias, residual, activation, x, legend):
    check_choice("activation", activation, ACTIVATIONS)
    if bias is not None:
        check_tensor("bias", bias, (x.shape[-1],), "[D]", like=("x", x))
    if residual is not None:
        check_tensor("residual", residual, tuple(x.shape), legend, like=("x", x))


# Custom operators, so that torch.compile sees one opaque call with known output shapes instead of breaking the graph.


@torch.library.custom_op("kernels_from_math::dynamic_conv", mutates_args=())
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    y, state = forward_pass.forward(
        x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens
    )
    return y, x.new_empty(0) if state is None else state


@_forward.register_fake
def _(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    B, T, D = x.shape
    y = x.new_empty(B, T, D)
    if not output_final_state:
        return y, x.new_empty(0)
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return y, (x if initial_state is None else initial_state).new_empty(N, D, weight.shape[-1] - 1)


@torch.library.custom_op("kernels_from_math::dynamic_conv_backward", mutates_args=())
def _backward(
    dy: Tensor,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = backward_pass.backward(dy, dfinal, x, weight, bias, activation, initial_state, cu_seqlens, needs)
    return tuple(x.new_empty(0) if grad is None else grad for grad in grads)


@_backward.register_fake
def _(dy, dfinal, x, weight, bias, activation, initial_state, cu_seqlens, needs):
    given = (x, weight, bias, initial_state)
    return tuple(t.new_empty(t.shape) if need else x.new_empty(0) for t, need in zip(given, needs, strict=True))


def _save(ctx, inputs, output):
    x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens = inputs
    ctx.save_for_backward(x, weight, bias, initial_state, cu_seqlens)
    ctx.activation = activation
    ctx.final_state = output_final_state
    ctx.residual_dtype = None if residual is None else residual.dtype


def _differentiate(ctx, dy, dfinal):
    x, weight, bias, initial_state, cu_seqlens = ctx.saved_tensors
    need_x, need_weight, need_bias, need_residual, _, need_state, _, _ = ctx.needs_input_grad
    needs = [need_x, need_weight, need_bias, need_state]
    grads = _backward(
        dy, dfinal if ctx.final_state else None, x, weight, bias, ctx.activation, initial_state, cu_seqlens, needs
    )
    dx, dweight, dbias, dstate = (grad if need else None for grad, need in zip(grads, needs, strict=True))
    dresidual = dy.to(ctx.residual_dtype) if need_residual else None
    return dx, dweight, dbias, dresidual, None, dstate, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(refuse_second_derivative("dynamic_conv"))


@torch.library.custom_op("kernels_from_math::dynamic_conv_step", mutates_args=("state",))
def _step(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    slots: Tensor | None,
) -> Tensor:
    return forward_pass.step(x, weight, state, bias, residual, activation, slots)


@_step.register_fake
def _(x, weight, state, bias, residual, activation, slots):
    return x.new_empty(x.shape)
