"""The state as other programs keep it: a cache of the last W inputs, or of W - 1, at any strides, updated in place."""

import torch

from kernels.common.validate import check_slots, check_tensor, check_updated_in_place
from kernels.dynamic_conv.operator import _step, dynamic_conv
from kernels.dynamic_conv.reference import dynamic_conv_step_reference


def check_cache(name, cache, N, D, W, like):
    """Raise ``ValueError`` unless ``cache`` is [N, D, W], or [N, D, W-1], and can be updated in place."""
    kept = W - 1 if isinstance(cache, torch.Tensor) and cache.shape[-1:] == (W - 1,) else W
    check_tensor(name, cache, (N, D, kept), "[N, D, W] or [N, D, W-1]", like=like)
    check_updated_in_place(name, cache)


def state_of(cache, W):
    """The state [N, D, W-1] that ``dynamic_conv`` takes: of W inputs, the first is read no more."""
    return cache[..., cache.shape[-1] - (W - 1) :]


def step(x, weight, cache, *, bias=None, activation=None, slots=None, name="cache"):
    """``dynamic_conv_step`` on a cache.

    Args:
        x: [B, D].
        weight: [B, D, W] or [D, W].
        cache: [B or pool, D, W or W-1].
        bias, activation, slots: as ``dynamic_conv_step``.
        name: the cache's in messages.

    Returns:
        y [B, D]. ``cache`` is shifted in place.

    Raises:
        ValueError: the cache or the slots do not fit.
    """
    _check_step(x, weight, cache, bias, slots, name)
    return _step(x, weight, cache, bias, None, activation, slots)


def several(x, weight, cache, *, bias=None, activation=None, slots=None, name="cache"):
    """``step`` for T tokens at once: x and y are [B, T, D], weight is [D, W]."""
    _check_step(x, weight, cache, bias, slots, name)
    rows = cache if slots is None else cache[slots]
    y = dynamic_conv(x, weight, bias=bias, activation=activation, initial_state=state_of(rows, weight.shape[-1]))
    remember(rows, x)
    if slots is not None:
        cache[slots] = rows
    return y


def _check_step(x, weight, cache, bias, slots, name):
    B, D = x.shape[0], x.shape[-1]
    check_cache(name, cache, B if slots is None else None, D, weight.shape[-1], ("x", x))
    if bias is not None:
        check_tensor("bias", bias, (D,), "[D]", like=("x", x))
    if slots is not None:
        check_slots("slots", slots, B, cache.shape[0], ("x", x))


@torch.no_grad()
def step_reference(x, weight, cache, *, bias=None, activation=None, slots=None):
    """``step`` in plain PyTorch."""
    rest = {"bias": bias, "activation": activation, "slots": slots}
    y, _ = dynamic_conv_step_reference(x, weight, state_of(cache, weight.shape[-1]), **rest)
    rows = cache if slots is None else cache[slots]
    remember(rows, x[:, None])
    if slots is not None:
        cache[slots] = rows
    return y


@torch.no_grad()
def remember(cache, x, cu_seqlens=None):
    """Shift ``cache`` [N, D, any] in place by the inputs ``x`` [B, T, D] of its sequences; T = 0 changes nothing."""
    N, D, kept = cache.shape
    if cu_seqlens is None:
        cu_seqlens = torch.arange(N + 1, device=x.device) * x.shape[1]
    begin, end = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    place = torch.arange(kept, device=x.device) - kept  # of each slot, counted from the sequence's end
    inside = (end + place >= begin)[:, None]
    old = cache.gather(2, (end - begin + place + kept).clamp(max=kept - 1)[:, None].expand(N, D, kept))
    rows = x.reshape(-1, D)
    if rows.shape[0]:
        new = rows[(end + place).clamp(min=0).flatten()].view(N, kept, D).mT
        cache.copy_(torch.where(inside, new.to(cache.dtype), old))
