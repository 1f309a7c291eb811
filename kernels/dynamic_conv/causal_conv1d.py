"""causal_conv1d's two functions by their names and layout, [B, D, T], over our kernels: what Mamba-like models call.

``from kernels.dynamic_conv.causal_conv1d import causal_conv1d_fn, causal_conv1d_update`` in place of
``from causal_conv1d import ...``. Time is moved in front of the channels as a view: a tensor stored [B, T, D], which those
models make anyway, is read in place and whole words at a time; one stored [B, D, T] is read in place, element by element.
"""

import torch
from torch import Tensor

from kernels.common.public import public
from kernels.common.validate import check_choice, check_tensor
from kernels.dynamic_conv import caches
from kernels.dynamic_conv.operator import ACTIVATIONS, dynamic_conv


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
    activation = _activation(activation)
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
    check_tensor("seq_idx", seq_idx, (B, T), "[B, T]", dtypes=(torch.int32, torch.int64), like=("x", x))
    if initial_states is not None or return_final_states:
        raise ValueError("seq_idx is given with a state, needs none: sequences inside a row begin and end where they say")
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
        conv_state: [B or pool, D, W-1] or [B or pool, D, W], the last inputs; any strides.
        weight: [D, W].
        bias: [D], or ``None``.
        activation: as above.
        cache_seqlens: must be ``None``: there are no circular states here.
        conv_state_indices: [B] integers, which row of the pool belongs to each row of x; ``None``: row b.

    Returns:
        y of x's shape and dtype.

    Raises:
        ValueError: an argument's type, shape, dtype, device or layout does not fit.
    """
    if cache_seqlens is not None:
        raise ValueError("cache_seqlens is given, needs to be None: states are shifted, not written around in a circle")
    single = isinstance(x, Tensor) and x.ndim == 2
    check_tensor("x", x, (None, None) if single else (None, None, None), "[B, D] or [B, D, T]")
    check_tensor("weight", weight, (x.shape[1], None), "[D, W]", like=("x", x))
    slots = conv_state_indices
    if slots is not None:
        indices = (torch.int32, torch.int64)
        check_tensor("conv_state_indices", slots, (x.shape[0],), "[B]", dtypes=indices, like=("x", x))
        slots = slots.long()
    rest = {"bias": bias, "activation": _activation(activation), "slots": slots}
    with torch.no_grad():
        if single:
            return caches.step(x, weight, conv_state, name="conv_state", **rest)
        return caches.several(x.mT, weight, conv_state, name="conv_state", **rest).mT


def _activation(activation):
    check_choice("activation", activation, (*ACTIVATIONS, "swish"))
    return "silu" if activation == "swish" else activation


def _ends(seq_idx):
    """``cu_seqlens`` of the runs of equal numbers in rows that lie end to end."""
    begins = torch.ones_like(seq_idx, dtype=torch.bool)
    begins[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    starts = begins.flatten().nonzero()[:, 0]
    return torch.cat([starts, starts.new_full((1,), seq_idx.numel())])
