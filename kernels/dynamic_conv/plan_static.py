"""The launches of the walks that share one weight among all tokens (``static``), forward and backward."""

from kernels.common.configs import configuration
from kernels.common.math import cdiv
from kernels.common.plan import Launch, strides
from kernels.common.sequences import count_runs
from kernels.dynamic_conv.classes import pop_run, size_class
from kernels.dynamic_conv.words import channels_per_word, word_strides

SUM_TILE = {"ROWS": 16, "BLOCK": 32, "num_warps": 4}  # of the partial sums' columns


def _numbers(tensors, weight, G):
    """Strides of the tensors [B, T, D] in words of G channels, and the weight's [D, W]."""
    return (*(s for t in tensors for s in word_strides(t, G)), *word_strides(weight, G, inner=2)[-2:])


def _walk(kernel, tensors, weight, packed, T, B, device):
    """``(G, reason, options, RUN, runs, tiles, tiles_d, times)`` of a walk over these tensors."""
    D, W = weight.shape
    G, reason = channels_per_word(tensors, {"weight": weight})
    options = configuration("dynamic_conv", kernel, size_class(W, weight.dtype), device)
    if options["G"] < G:
        G, reason = options["G"], f"the table of configurations says so for {W} taps, whose window lives in registers"
    del options["G"]
    RUN, times = pop_run(options, T, B, packed, D // G, W, device)
    RUN = cdiv(RUN, options["AHEAD"]) * options["AHEAD"]
    runs = count_runs(packed, B if packed is None else packed, T, RUN)
    return G, reason, options, RUN, runs, cdiv(runs, options["ROWS"]), cdiv(D // G, options["BLOCK"]), times


def forward_walk(x, weight, bias, residual, state, activation, packed, device):
    """``(G, reason, RUN, runs, Launch)``; arguments as ``plan_forward``'s."""
    B, T, D = x.shape
    tensors = {"x": x} | ({} if residual is None else {"residual": residual})
    G, reason, options, RUN, runs, tiles, tiles_d, _ = _walk("static forward", tensors, weight, packed, T, B, device)
    numbers = (
        T, D // G, runs, RUN, tiles_d, *_numbers((x,), weight, G), *strides(bias, 1),
        *((0, 0, 0) if residual is None else word_strides(residual, G)), *strides(state, 3),
    )  # fmt: skip
    W = weight.shape[-1]
    meta = {
        "W": W, "G": G, "SILU": activation == "silu", "HAS_BIAS": bias is not None,
        "HAS_RESIDUAL": residual is not None, "HAS_STATE": state is not None and W > 1, "PACKED": packed is not None,
    }  # fmt: skip
    return G, reason, RUN, runs, Launch((tiles * tiles_d,), numbers, meta | options)


def backward_walk(dy, x, weight, bias, state, activation, packed, needs, device):
    """``(parts, RUN, runs, walk, sum of parts, times)``: ``parts`` is the partial sums' shape, [programs, columns], the sum's
    launch ``None`` where they have none; arguments as ``plan_backward``'s."""
    B, T, D = x.shape
    W = weight.shape[-1]
    need_x, need_weight, need_bias, _ = needs
    G, _, options, RUN, runs, tiles, tiles_d, times = _walk(
        "static backward", {"x": x, "dy": dy}, weight, packed, T, B, device
    )
    numbers = (
        T, D // G, runs, RUN, tiles_d, *_numbers((dy, x), weight, G), *strides(bias, 1), *strides(state, 3),
    )  # fmt: skip
    sums = {"W": W, "G": G, "NEED_DK": need_weight, "NEED_DBIAS": need_bias}
    meta = sums | {
        "SILU": activation == "silu", "HAS_BIAS": bias is not None, "HAS_STATE": state is not None,
        "PACKED": packed is not None, "NEED_DX": need_x,
    }  # fmt: skip
    parts = tiles, D * (W * need_weight + need_bias)
    total = Launch((cdiv(parts[1], SUM_TILE["BLOCK"]),), (tiles, D // G), sums | SUM_TILE) if parts[1] else None
    return parts, RUN, runs, Launch((tiles * tiles_d,), numbers, meta | options), total, times
