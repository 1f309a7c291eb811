"""Dynamic causal convolution in plain PyTorch: slow, obviously right, any float dtype, differentiable by autograd."""

import torch
import torch.nn.functional as F


def dynamic_conv_reference(
    x,
    weight,
    *,
    bias=None,
    residual=None,
    activation=None,
    initial_state=None,
    output_final_state=False,
    cu_seqlens=None,
):
    """The equation of ``dynamic_conv``, one sequence at a time: same arguments, same results, computed in x's dtype.

    .. math:: u_{t,d} = \\sum_{w<W} k_{t,d,w}\\, X_{t-W+1+w,d}, \\qquad y = \\varphi(u + b) + r

    where :math:`X` is ``x`` with the initial state (or zeros) in front of each sequence.
    """
    B, T, D = x.shape
    W = weight.shape[-1]
    if cu_seqlens is None:
        spans = [(b, 0, T) for b in range(B)]
    else:
        ends = cu_seqlens.tolist()
        spans = [(0, begin, end) for begin, end in zip(ends[:-1], ends[1:], strict=True)]
    k = weight.expand(B, T, D, W)

    outputs, states = [], []
    for n, (b, begin, end) in enumerate(spans):
        before = x.new_zeros(W - 1, D) if initial_state is None else initial_state[n].T.to(x.dtype)
        X = torch.cat([before, x[b, begin:end]])  # X[j + W - 1] is the input at time j, for j >= -(W - 1)
        u = x.new_zeros(end - begin, D)
        for w in range(W):
            u = u + k[b, begin:end, :, w] * X[w : w + end - begin]
        outputs.append(u)
        states.append(X[X.shape[0] - (W - 1) :].T)  # the last W - 1 inputs, which are the old state's where L < W - 1

    y = torch.cat([*outputs, x.new_zeros(0, D)])
    if bias is not None:
        y = y + bias
    if activation in ("silu", "swish"):
        y = F.silu(y)
    if residual is not None:
        y = y + residual.reshape(B * T, D)[: len(y)]
    y = F.pad(y, (0, 0, 0, B * T - len(y))).reshape(B, T, D)  # behind the last sequence lies padding
    if not output_final_state:
        return y
    return y, torch.stack(states) if states else x.new_zeros(0, D, W - 1)


def dynamic_conv_step_reference(x, weight, state, *, bias=None, residual=None, activation=None, slots=None):
    """One token of the equation: ``(y, new_state)`` for ``x`` [B, D] and ``state`` [B or pool, D, W-1], nothing in place."""
    chosen = torch.arange(x.shape[0], device=x.device) if slots is None else slots.long().clamp(min=0)
    residual = None if residual is None else residual[:, None]
    weight = weight if weight.ndim == 2 else weight[:, None]
    y, shifted = dynamic_conv_reference(
        x[:, None],
        weight,
        bias=bias,
        residual=residual,
        activation=activation,
        initial_state=state[chosen] if state.shape[0] else None,
        output_final_state=True,
    )
    if slots is None:
        return y[:, 0], state.index_copy(0, chosen, shifted.to(state.dtype))
    there = slots >= 0  # the other rows are padding
    y = torch.where(there[:, None], y[:, 0], 0)
    return y, state.index_copy(0, chosen[there], shifted[there].to(state.dtype))
