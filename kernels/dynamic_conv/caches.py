"""The state as other programs keep it: a cache of the last W inputs, or of W - 1, at any strides, updated in place."""

import torch

from kernels.common.checks import autocast, check_slots, check_tensor, check_updated_in_place
from kernels.dynamic_conv.operator import _step, dynamic_conv


def check_cache(name, cache, N, D, W, like):
    """Raise ``ValueError`` unless ``cache`` is [N, D, W], or [N, D, W-1], and can be updated in place."""
    kept = W - 1 if isinstance(cache, torch.Tensor) and cache.shape[-1:] == (W - 1,) else W
    check_tensor(name, cache, (N, D, kept), "[N, D, W] or [N, D, W-1]", like=like)
    check_updated_in_place(name, cache)


def check_rows(x, cache, slots, W):
    """Raise ``ValueError`` unless each row of ``x`` [B, D] has a row of ``cache`` for itself, its own or its slot's."""
    B, D = x.shape
    check_cache("cache", cache, B if slots is None else None, D, W, ("x", x))
    if slots is not None:
        check_slots("slots", slots, B, cache.shape[0], ("x", x))


def state_of(cache, W):
    """The state [N, D, W-1] that ``dynamic_conv`` takes: of W inputs, the first is read no more."""
    return cache[..., cache.shape[-1] - (W - 1) :]


def step(x, weight, cache, *, bias=None, activation=None, slots=None):
    """``dynamic_conv_step`` on a cache.

    Args:
        x: [B, D].
        weight: [B, D, W] or [D, W].
        cache: [B or pool, D, W or W-1].
        bias, activation, slots: as ``dynamic_conv_step``; rows with a negative slot are padding.

    Returns:
        y [B, D]. ``cache`` is shifted in place.

    Raises:
        ValueError: the cache or the slots do not fit.
    """
    x, weight, bias = autocast(x, weight, bias)
    check_rows(x, cache, slots, weight.shape[-1])
    return _step(x, weight, cache, bias, None, activation, slots)


def several(x, weight, cache, *, bias=None, activation=None, slots=None, seen=None, convolve=dynamic_conv):
    """``step`` of checked arguments for T tokens at once, on a cache of any W-1 or more inputs.

    Args:
        x: [B, T, D]; y is, too.
        weight: [D, W] or [B, T, D, W].
        cache, bias, activation, slots: as above.
        seen: ``None``, or integers [B], how many inputs there were before: the cache is a circle then, in which input i is at
            place i modulo its length.
        convolve: ``dynamic_conv`` or its reference.
    """
    if not cache.shape[0]:  # no row has a state
        return torch.zeros_like(x)
    W = weight.shape[-1]
    old = cache if slots is None else cache[slots.clamp(min=0)]
    rows = cache if slots is None else old.clone()
    state = state_of(rows, W) if seen is None else _circle(rows, seen, range(1 - W, 0))[0]
    y = convolve(x, weight, bias=bias, activation=activation, initial_state=state)
    if seen is None:
        remember(rows, x)
    else:
        T, kept = x.shape[1], rows.shape[-1]
        last = range(max(0, T - kept), T)
        rows.scatter_(2, _circle(rows, seen, last)[1], x[:, last.start :].mT.to(rows.dtype))
    if slots is not None and slots.numel():
        _put(cache, slots, rows, old)
        y = y.masked_fill(slots[:, None, None] < 0, 0)
    return y


def _circle(rows, seen, inputs):
    """``(values, places)`` of ``inputs``, a range that counts from the next one, in circles ``rows`` [B, D, kept]."""
    B, D, kept = rows.shape
    places = torch.arange(inputs.start, inputs.stop, device=rows.device) + seen[:, None].long()
    places = (places % max(kept, 1))[:, None].expand(B, D, len(inputs))
    return rows.gather(2, places), places


def _put(cache, slots, rows, old):
    """``cache[slots] = rows`` but for padding, without a look at the slots: what is written for padding is what the first row
    that is none writes there, too, or, if there is no such row, what its place holds already."""
    there = slots >= 0
    row = torch.where(there, torch.arange(slots.shape[0], device=slots.device), there.int().argmax())
    cache[slots[row].clamp(min=0)] = torch.where(there[row][:, None, None], rows[row], old[row])


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
