"""causal_conv1d's functions by their names and layout, [B, D, T], over our kernels: what Mamba-like models call.

``from kernels.dynamic_conv.causal_conv1d import causal_conv1d_fn, causal_conv1d_update`` in place of
``from causal_conv1d import ...``. Time is moved in front of the channels as a view: a tensor stored [B, T, D], which those
models make anyway, is read in place and whole words at a time; one stored [B, D, T] is read in place, element by element.
"""

import torch
from torch import Tensor

from kernels.common.checks import (
    autocast,
    check_cu_seqlens,
    check_slots,
    check_tensor,
    check_updated_in_place,
    is_whole,
    public,
    shown,
)
from kernels.dynamic_conv import caches
from kernels.dynamic_conv.operator import _step, activation_named, dynamic_conv

INTEGERS = torch.int32, torch.int64


@public
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise convolution along the last dimension.

    .. math:: y_{d,t} = \\varphi\\Big(b_d + \\sum_{w=0}^{W-1} k_{d,w}\\, x_{d,\\,t-W+1+w}\\Big)

    Differentiable once in x, weight, bias and initial_states, through the final states, too. With ``seq_idx`` it waits for
    the GPU, to learn how many sequences there are; ``dynamic_conv`` with ``cu_seqlens`` never does.

    Args:
        x: [B, D, T], float32, float16 or bfloat16; any strides.
        weight: k, [D, W].
        bias: b, [D], or ``None``.
        seq_idx: [B, T] integers, which sequence each token belongs to: a run of equal numbers is a sequence, which sees no
            other; a negative number is padding, whose y is 0. ``None``: every row is one sequence.
        initial_states: [B, D, W-1], the inputs before the first, or ``None`` for zeros; not with ``seq_idx``.
        return_final_states: return the last W-1 inputs, [B, D, W-1], too; not with ``seq_idx``.
        final_states_out: a tensor to write them to, or ``None``.
        activation: :math:`\\varphi`: ``None``, or ``"silu"``, which is called ``"swish"``, too.

    Returns:
        y [B, D, T] in x's dtype, or ``(y, final_states)``.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit; a state is given or asked for with ``seq_idx``.

    Source: the interface is that of causal_conv1d (https://github.com/Dao-AILab/causal-conv1d).
    """
    check_tensor("x", x, (None, None, None), "[B, D, T]")
    activation = activation_named(activation)
    if return_final_states and final_states_out is not None:
        kept = weight.shape[-1] - 1 if isinstance(weight, Tensor) and weight.ndim == 2 else None
        check_tensor("final_states_out", final_states_out, (x.shape[0], x.shape[1], kept), "[B, D, W-1]", like=("x", x))
    if seq_idx is None:
        out = dynamic_conv(
            *(x.mT, weight),
            bias=bias,
            activation=activation,
            initial_state=initial_states,
            output_final_state=return_final_states,
        )
        if not return_final_states:
            return out.mT
        y, last = out
        return y.mT, last if final_states_out is None else final_states_out.copy_(last)

    B, D, T = x.shape
    check_tensor("seq_idx", seq_idx, (B, T), "[B, T]", dtypes=INTEGERS, like=("x", x))
    if initial_states is not None or return_final_states:
        raise ValueError(
            "seq_idx is given with a state, needs none: sequences inside a row begin and end where they say"
        )
    rows = x.mT.reshape(1, B * T, D)
    y = dynamic_conv(rows, weight, bias=bias, activation=activation, cu_seqlens=_ends(seq_idx)).view(B, T, D)
    return torch.where(seq_idx[..., None] < 0, 0, y).mT


@public
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """The next token, or tokens, of ``causal_conv1d_fn``, for decoding; ``conv_state`` is shifted in place. Not
    differentiable.

    Args:
        x: [B, D], or [B, D, T].
        conv_state: [B or pool, D, at least W-1], the last inputs; any strides.
        weight: [D, W].
        bias: [D], or ``None``.
        activation: as above.
        cache_seqlens: [B] integers, how many inputs there were before: the state is a circle then, input i at place i modulo
            its length. ``None``: the last input is the state's last, and the others move up.
        conv_state_indices: [B] integers, which row of the pool belongs to each row of x; negative where that is padding, and
            y is 0; ``None``: row b.

    Returns:
        y of x's shape and dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit.
    """
    x, weight, bias = autocast(x, weight, bias)
    single = isinstance(x, Tensor) and x.ndim == 2
    check_tensor("x", x, (None, None) if single else (None, None, None), "[B, D] or [B, D, T]")
    like = ("x", x)
    B, D = x.shape[:2]
    check_tensor("weight", weight, (D, None), "[D, W]", like=like)
    W = weight.shape[-1]
    if W == 0:
        raise ValueError(f"weight has shape {list(weight.shape)}, needs at least one tap (W >= 1)")
    if bias is not None:
        check_tensor("bias", bias, (D,), "[D]", like=like)
    slots = conv_state_indices
    check_tensor("conv_state", conv_state, (B if slots is None else None, D, None), "[B or pool, D, any]", like=like)
    kept = conv_state.shape[-1]
    if kept < W - 1:
        raise ValueError(f"conv_state has shape {list(conv_state.shape)}, needs at least W-1 = {W - 1} inputs")
    check_updated_in_place("conv_state", conv_state)
    if cache_seqlens is not None:
        check_tensor("cache_seqlens", cache_seqlens, (B,), "[B]", dtypes=INTEGERS, like=like)
    if slots is not None:
        check_tensor("conv_state_indices", slots, (B,), "[B]", dtypes=INTEGERS, like=like)
        check_slots("conv_state_indices", slots, B, conv_state.shape[0], like)
    rest = {"bias": bias, "activation": activation_named(activation), "slots": slots}
    with torch.no_grad():
        if single and kept <= W and cache_seqlens is None:
            return _step(x, weight, conv_state, bias, None, rest["activation"], slots)
        tokens = x[:, None] if single else x.mT
        y = caches.several(tokens, weight, conv_state, seen=cache_seqlens, **rest)
        return y[:, 0] if single else y.mT


@public
def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last ``state_len`` inputs of sequences that lie end to end, zeros before the first of one that is shorter.

    Args:
        x: [T, D].
        cu_seqlens: int32 or int64 [N+1], see ``dynamic_conv``.
        state_len: inputs of each.

    Returns:
        [N, D, state_len] in x's dtype. Not differentiable.

    Raises:
        ValueError: an argument's type, shape, dtype or device does not fit.
    """
    check_tensor("x", x, (None, None), "[T, D]")
    N = check_cu_seqlens(cu_seqlens, 1, ("x", x), x.shape[0])
    cu_seqlens = cu_seqlens.contiguous()
    if not is_whole(state_len) or state_len < 0:
        raise ValueError(f"state_len is {shown(state_len)}, needs a whole number, at least 0")
    states = x.new_zeros(N, x.shape[1], int(state_len))
    if states.numel():
        caches.remember(states, x[None], cu_seqlens)
    return states


def _ends(seq_idx):
    """``cu_seqlens`` of the runs of equal numbers in rows that lie end to end."""
    begins = torch.ones_like(seq_idx, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    starts = begins.flatten().nonzero()[:, 0]
    return torch.cat([starts, starts.new_full((1,), seq_idx.numel())])
