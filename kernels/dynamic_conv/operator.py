"""The public functions: validate, register. Their docstrings are the ones of record."""

import torch
from torch import Tensor

from kernels.common.plan import layout, strided
from kernels.common.public import autocast, explains, public
from kernels.common.registration import register
from kernels.common.sequences import check_cu_seqlens, check_cu_values, without_outside
from kernels.common.validate import check_choice, check_slots, check_tensor, check_writable
from kernels.dynamic_conv import plan

ACTIVATIONS = {None: None, "silu": "silu", "swish": "silu"}  # by all their names


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
    each has that tensor's dtype. Follows autocast, which casts x, weight and bias as it does those of torch's convolutions.
    Bit-identical from run to run; never waits for the GPU.

    What others call it:

    ======================  ==============================================================================================
    Jet-Nemotron            its ``dynamic_conv_triton_autograd(x, kernels)`` with kernels [B, T, D, W] as weight; its layer is
                            ``kernels.dynamic_conv.jet_nemotron.DynamicShortConvolution``
    flash-linear-attention  its ``causal_conv1d(x, weight)`` with weight [D, W], the other names as here, but states hold W
                            inputs: ``initial_state[..., 1:]``
    causal_conv1d, Mamba    ``causal_conv1d_fn`` and ``causal_conv1d_update`` of ``kernels.dynamic_conv.causal_conv1d``
    ======================  ==============================================================================================

    Args:
        x: inputs [B, T, D], float32, float16 or bfloat16; any strides.
        weight: k, one kernel a token [B, T, D, W] or one for all [D, W]; any W >= 1; its dtype may differ from x's.
        bias: b, [D], or ``None``.
        residual: r, [B, T, D], or ``None``.
        activation: :math:`\\varphi`: ``None`` (identity) or ``"silu"``, which is called ``"swish"``, too.
        initial_state: [N, D, W-1]; slot i holds the input at time i - (W-1). ``None`` means zeros.
        output_final_state: return the state after the last token too.
        cu_seqlens: int32 or int64 [N+1], for sequences packed end to end along T with B = 1: sequence n is tokens
            ``cu_seqlens[n]`` to ``cu_seqlens[n+1] - 1``; it may be empty. Tokens behind the last are padding: their y and all
            their gradients are 0. ``None``: every batch row is a sequence, N = B.

    Returns:
        y [B, T, D] in x's dtype; with ``output_final_state``, ``(y, state)`` with state [N, D, W-1] in the dtype of
        ``initial_state``, else of x.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; the values of ``cu_seqlens`` do not (checked
            when it is on the CPU or ``KERNELS_CHECK=1``).
        RuntimeError: a second derivative, forward mode or a transform of ``torch.func`` is asked for.

    Source: the dynamic convolution of Jet-Nemotron (Gu et al., 2025, arXiv:2508.15884).
    """
    x, weight, bias = autocast(x, weight, bias)
    _check(x, weight, bias, residual, activation, initial_state, cu_seqlens)
    activation = ACTIVATIONS[activation]
    if cu_seqlens is not None:
        cu_seqlens = check_cu_values(cu_seqlens, x.shape[1])
        if residual is not None and residual.requires_grad:  # its gradient is y's
            residual = without_outside(residual, cu_seqlens)
    y, state = _convolve(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens)
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
        activation: ``None`` or ``"silu"``, which is called ``"swish"``, too.
        slots: int32 or int64 [B], which state of the pool belongs to each row of x, no two the same; negative where a row is
            padding: its y is 0. ``None``: row b uses state b.

    Returns:
        y [B, D] in x's dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit; the values of ``slots`` do not
            (checked when it is on the CPU or ``KERNELS_CHECK=1``).
        RuntimeError: a gradient is asked for.
    """
    x, weight, bias = autocast(x, weight, bias)
    check_tensor("x", x, (None, None), "[B, D]")
    B, D = x.shape
    like = ("x", x)
    W = _check_weight(weight, (B, D), "[B, D, W] or [D, W]", like)
    check_tensor("state", state, (B if slots is None else None, D, W - 1), "[B or pool, D, W-1]", like=like)
    if not state.is_contiguous():
        raise ValueError(f"state has strides {state.stride()}, needs to be contiguous: it is updated in place")
    check_writable("state", state)
    _check_tail(bias, residual, activation, x, "[B, D]")
    if slots is not None:
        check_slots("slots", slots, B, state.shape[0], like)
    return _step(x, weight, state, bias, residual, ACTIVATIONS[activation], slots)


@explains(dynamic_conv)
def explain(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    """How ``dynamic_conv`` would access memory for these arguments, and why, as text."""
    x, weight, bias = autocast(x, weight, bias)
    N = _check(x, weight, bias, residual, activation, initial_state, cu_seqlens)
    activation = ACTIVATIONS[activation]
    check_cu_values(cu_seqlens, x.shape[1])
    packed = None if cu_seqlens is None else N
    of_x, of_k, of_bias, of_residual, of_state = map(layout, (x, weight, bias, residual, initial_state))
    forward = plan.plan_forward(
        of_x, of_k, of_bias, of_residual, of_state, activation, output_final_state, packed, x.device
    )
    dy = strided(torch.empty(x.shape, dtype=x.dtype, device="meta"))  # as most programs bring it
    needs = True, True, bias is not None, initial_state is not None
    backward = plan.plan_backward(dy, None, of_x, of_k, of_bias, of_state, activation, packed, needs, x.device)
    return f"{forward}\nbackward: {backward}"


def _check(x, weight, bias, residual, activation, initial_state, cu_seqlens):
    """The number of sequences of arguments that fit."""
    check_tensor("x", x, (None, None, None), "[B, T, D]")
    W = _check_weight(weight, x.shape, "[B, T, D, W] or [D, W]", ("x", x))
    _check_tail(bias, residual, activation, x, "[B, T, D]")
    B, _, D = x.shape
    N = check_cu_seqlens(cu_seqlens, B, ("x", x))
    if initial_state is not None:
        check_tensor("initial_state", initial_state, (N, D, W - 1), "[N, D, W-1]", like=("x", x))
    return N


def activation_named(activation):
    """One of ``ACTIVATIONS`` by its first name; raises ``ValueError`` for another."""
    check_choice("activation", activation, tuple(ACTIVATIONS))
    return ACTIVATIONS[activation]


def _check_weight(weight, rows, legend, like):
    dynamic = isinstance(weight, Tensor) and weight.ndim == len(rows) + 1
    check_tensor("weight", weight, (*rows, None) if dynamic else (rows[-1], None), legend, like=like)
    if weight.shape[-1] == 0:
        raise ValueError(f"weight has shape {list(weight.shape)}, needs at least one tap (W >= 1)")
    return weight.shape[-1]


def _check_tail(bias, residual, activation, x, legend):
    check_choice("activation", activation, tuple(ACTIVATIONS))
    if bias is not None:
        check_tensor("bias", bias, (x.shape[-1],), "[D]", like=("x", x))
    if residual is not None:
        check_tensor("residual", residual, tuple(x.shape), legend, like=("x", x))


# As torch sees them: one opaque call with known output shapes, in a compiled graph as in an eager one.


def _forward_shapes(x, weight, bias, residual, activation, initial_state, output_final_state, cu_seqlens):
    if not output_final_state:
        return x.new_empty(x.shape), None
    N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = (x if initial_state is None else initial_state).new_empty(N, x.shape[-1], weight.shape[-1] - 1)
    return x.new_empty(x.shape), state


def _backward(dy, dfinal, x, weight, bias, initial_state, cu_seqlens, activation, output_final_state, needs):
    if dy is None:  # only the final state was used
        dy = x.new_zeros(()).expand(x.shape)
    if not output_final_state:
        dfinal = None
    return plan.backward(dy, dfinal, x, weight, bias, activation, initial_state, cu_seqlens, needs)


_convolve = register(
    "dynamic_conv(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str? activation, Tensor? initial_state, "
    "bool output_final_state, Tensor? cu_seqlens) -> (Tensor y, Tensor state)",
    plan.forward,
    _forward_shapes,
    backward=_backward,
    gradients=("x", "weight", "bias", "initial_state"),
    saved=("x", "weight", "bias", "initial_state", "cu_seqlens"),
    passed={"residual": "y"},
)
_step = register(
    "dynamic_conv_step(Tensor x, Tensor weight, Tensor(a!) state, Tensor? bias, Tensor? residual, str? activation, "
    "Tensor? slots) -> Tensor y",
    plan.step,
    lambda x, *rest: x.new_empty(x.shape),
    operator="dynamic_conv",
)


# What torch's counter of floating-point operations is told: a product and a sum a tap; backward dx takes the same, dk a
# product, and an activation's derivative needs u again.


def _flops(x, weight, *rest):
    return 2 * x.numel() * weight.shape[-1]


def _backward_flops(dy, dfinal, x, weight, bias, initial_state, cu_seqlens, activation, output_final_state, needs):
    again = activation is not None
    return (2 * again + 2 * needs[0] + needs[1]) * x.numel() * weight.shape[-1]


_convolve.counts(_flops, _backward_flops)
_step.counts(_flops)
