"""The zoo: score mods and mask mods as ordinary readable functions, each with the paper it comes from.

A mask mod says whether query ``q_idx`` of batch ``b`` and head ``h`` may see key ``kv_idx``; a score mod changes the score.
Both are written for one query and one key, on tensors without dimensions; what they index comes from outside.
Those that need a parameter are made by a function of that parameter.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
import torch.nn.attention.flex_attention as torch_flex
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import noop_mask

__all__ = [
    "Mod",
    "activation",
    "alibi",
    "alibi_slopes",
    "and_masks",
    "batched",
    "block_diffusion",
    "causal",
    "causal_score",
    "dilated_sliding_window",
    "document",
    "global_and_window",
    "graph_distance",
    "head_scale",
    "jagged",
    "learned_alibi",
    "natten",
    "noop_mask",
    "or_masks",
    "prefix",
    "prefix_causal",
    "relative_bias",
    "relative_table",
    "sandwich",
    "shared_prefix",
    "sliding_window",
    "softcap",
    "temperature",
    "tree",
    "vision_cross",
    "with_offset",
]


AnyMod = Callable[..., Tensor]  # of four or five tensors without dimensions
_P = ParamSpec("_P")


class Mod:
    """A mod that knows how it was made: unlike a function inside a function it can be pickled, so a ``BlockMask`` that holds
    it can be stored, and sent to another process. It is called as the function that it wraps."""

    def __init__(self, function: AnyMod, factory: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.__wrapped__ = wrapped = function.__wrapped__ if isinstance(function, Mod) else function
        # Not functools.update_wrapper, which a program that torch 2.11 compiles cannot call.
        self.__name__, self.__qualname__, self.__doc__ = wrapped.__name__, wrapped.__qualname__, wrapped.__doc__
        self.made_by = factory, args, kwargs

    def __call__(self, *args: Tensor) -> Tensor:
        """The wrapped function's value."""
        return self.__wrapped__(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, self.made_by


def _made(factory: Callable[_P, AnyMod]) -> Callable[_P, Mod]:
    """A factory of mods whose products are ``Mod``."""

    @functools.wraps(factory)
    def make(*args: _P.args, **kwargs: _P.kwargs) -> Mod:
        return Mod(factory(*args, **kwargs), factory.__name__, args, kwargs)

    return make


def _remake(factory, args, kwargs):
    return globals()[factory](*args, **kwargs)


# Mask mods.


@_made
def and_masks(*mask_mods: AnyMod) -> AnyMod:
    """What all of ``mask_mods`` allow."""
    return torch_flex.and_masks(*mask_mods)


@_made
def or_masks(*mask_mods: AnyMod) -> AnyMod:
    """What any of ``mask_mods`` allows."""
    return torch_flex.or_masks(*mask_mods)


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """A query sees itself and what came before."""
    return q_idx >= kv_idx


@_made
def sliding_window(window: int) -> AnyMod:
    """Causal, and at most ``window`` keys back: ``window + 1`` keys in all (Beltagy et al., 2020)."""

    def inside(b, h, q_idx, kv_idx):
        return q_idx - kv_idx <= window

    return and_masks(inside, causal)


@_made
def prefix(length: int) -> AnyMod:
    """The first ``length`` keys, for every query."""

    def in_prefix(b, h, q_idx, kv_idx):
        return kv_idx < length

    return in_prefix


@_made
def prefix_causal(length: int) -> AnyMod:
    """A prefix that sees itself in both directions, causal after it (Raffel et al., 2020)."""
    return or_masks(prefix(length), causal)


@_made
def document(ids: Tensor, inner: AnyMod | None = None) -> AnyMod:
    """Packed documents: ``ids`` [T] or [B, T], one integer a token; tokens see their own document, by ``inner`` if given.

    ``inner`` gets the positions in the packed sequence; causal is the same there as within a document.
    """

    def same_document(b, h, q_idx, kv_idx):
        return ids[q_idx] == ids[kv_idx]

    def same_document_of_row(b, h, q_idx, kv_idx):
        return ids[b, q_idx] == ids[b, kv_idx]

    same_document = same_document if ids.ndim == 1 else same_document_of_row
    return same_document if inner is None else and_masks(same_document, inner)


@_made
def dilated_sliding_window(window: int, dilation: int) -> AnyMod:
    """Every ``dilation``-th key within ``window`` to either side (Hassani and Shi, 2022)."""

    def dilated(b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).abs()
        return (distance <= window) & (distance % dilation == 0)

    return dilated


@_made
def global_and_window(is_global: Tensor, window: int) -> AnyMod:
    """Longformer: a window to either side, and tokens marked in ``is_global`` (bool [T]) see and are seen by all."""

    def local(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() <= window

    def marked(b, h, q_idx, kv_idx):
        return is_global[q_idx] | is_global[kv_idx]

    return or_masks(local, marked)


@_made
def natten(width: int, height: int, kernel: int) -> AnyMod:
    """Neighbourhood attention on a ``height`` x ``width`` canvas: a ``kernel`` x ``kernel`` window kept inside it
    (Hassani et al., 2023)."""
    half = kernel // 2

    def neighbours(b, h, q_idx, kv_idx):
        y = (q_idx // width).clamp(half, height - 1 - half)
        x = (q_idx % width).clamp(half, width - 1 - half)
        return ((y - kv_idx // width).abs() <= half) & ((x - kv_idx % width).abs() <= half)

    return neighbours


@_made
def block_diffusion(length: int, block: int) -> AnyMod:
    """Training mask of block diffusion (Arriola et al., 2025): noised tokens [0, length), clean ones [length, 2 length)."""

    def noised_and_clean(b, h, q_idx, kv_idx):
        q_noised, kv_noised = q_idx < length, kv_idx < length
        q_block, kv_block = q_idx % length // block, kv_idx % length // block
        own = (q_block == kv_block) & (q_noised == kv_noised)
        clean_before = (q_block > kv_block) & q_noised & ~kv_noised
        clean_causal = (q_block >= kv_block) & ~q_noised & ~kv_noised
        return own | clean_before | clean_causal

    return noised_and_clean


@_made
def jagged(lengths: Tensor) -> AnyMod:
    """Row b holds ``lengths[b]`` tokens, the rest is padding; queries in the padding see nothing."""

    def inside(b, h, q_idx, kv_idx):
        return (q_idx < lengths[b]) & (kv_idx < lengths[b])

    return inside


@_made
def shared_prefix(ids: Tensor, offsets: Tensor, prefix_of: Tensor) -> AnyMod:
    """Packed answers that share their prompt: document d also sees all of document ``prefix_of[d]``.

    ``ids`` [T] gives a token's document, ``offsets`` [documents + 1] where each begins; a prompt is its own prefix.
    """

    def prompt_and_self(b, h, q_idx, kv_idx):
        mine = ids[q_idx]
        prompt = prefix_of[mine]
        own = (kv_idx >= offsets[mine]) & (kv_idx <= q_idx)
        return own | ((mine != prompt) & (kv_idx >= offsets[prompt]) & (kv_idx < offsets[prompt + 1]))

    return prompt_and_self


@_made
def tree(prefix_length: int, ancestors: Tensor) -> AnyMod:
    """Verifying a tree of drafted tokens: the prefix, and in the tree the query's ``ancestors`` (bool [nodes, nodes])."""
    nodes = ancestors.shape[0]

    def prefix_and_ancestors(b, h, q_idx, kv_idx):
        node = (kv_idx - prefix_length).clamp(0, nodes - 1)
        return (kv_idx < prefix_length) | ancestors[q_idx, node]

    return prefix_and_ancestors


@_made
def vision_cross(intervals: Tensor, image_tokens: int) -> AnyMod:
    """Flamingo: keys are images of ``image_tokens`` each; text tokens ``intervals[i]`` (start, end) see image i."""

    def sees_its_image(b, h, q_idx, kv_idx):
        start_and_end = intervals[kv_idx // image_tokens]
        return (q_idx >= start_and_end[0]) & (q_idx < start_and_end[1])

    return sees_its_image


@_made
def batched(inner: AnyMod, size: int) -> AnyMod:
    """``inner`` within consecutive groups of ``size`` tokens, nothing between groups."""

    def within_group(b, h, q_idx, kv_idx):
        same = q_idx // size == kv_idx // size
        return same & inner(b, h, q_idx % size, kv_idx % size)

    return within_group


@_made
def with_offset(inner: AnyMod, offset: int | Tensor) -> AnyMod:
    """``inner``, a mask mod or a score mod, for queries of which the first stands at position ``offset``.

    M queries at the end of N keys, as behind a cache, have ``offset = N - M`` (aligned at the bottom right).
    Where there are more queries than keys that is below zero, and the first queries come before every key. A tensor
    without dimensions may be another at every replay of a CUDA graph.
    """
    count = len(inspect.signature(inner).parameters)
    if count not in (4, 5):
        needs = "(b, h, q_idx, kv_idx), before them the score in a score mod"
        raise ValueError(f"inner takes {count} arguments, needs {needs}")

    def mask_from_offset(b, h, q_idx, kv_idx):
        return inner(b, h, q_idx + offset, kv_idx)

    def score_from_offset(score, b, h, q_idx, kv_idx):
        return inner(score, b, h, q_idx + offset, kv_idx)

    return mask_from_offset if count == 4 else score_from_offset


# Score mods.


def causal_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Causal as a score mod: right, but no block is skipped."""
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def alibi_slopes(heads: int, device: torch.device | str | None = None) -> Tensor:
    """The fixed slopes of ALiBi, [heads]: 2^(-8 (h+1) / heads)."""
    return torch.exp2(-8 * torch.arange(1, heads + 1, device=device) / heads)


@_made
def alibi(heads: int) -> AnyMod:
    """A penalty that grows with distance, steeper from head to head (Press et al., 2021); no table needed."""

    def distance_penalty(score, b, h, q_idx, kv_idx):
        return score + (kv_idx - q_idx) * torch.exp2(-8.0 * (h + 1) / heads)

    return distance_penalty


@_made
def learned_alibi(slopes: Tensor) -> AnyMod:
    """ALiBi with ``slopes`` [heads] from outside, which may require a gradient."""

    def distance_penalty(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return distance_penalty


@_made
def softcap(cap: float) -> AnyMod:
    """Scores squeezed into (-cap, cap) (Gemma 2)."""

    def squeezed(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return squeezed


@_made
def relative_bias(bias: Tensor) -> AnyMod:
    """A dense additive bias, ``bias`` [heads, M, N]."""

    def plus_bias(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx, kv_idx]

    return plus_bias


@_made
def relative_table(table: Tensor) -> AnyMod:
    """A learnable bias by distance, ``table`` [heads, 2 length - 1] (Raffel et al., 2020, without the buckets)."""
    length = (table.shape[-1] + 1) // 2

    def plus_bias(score, b, h, q_idx, kv_idx):
        return score + table[h, kv_idx - q_idx + length - 1]

    return plus_bias


@_made
def sandwich(heads: int, length: int, dim: int = 128, device: torch.device | str | None = None) -> AnyMod:
    """The position-position part of sinusoidal embeddings, divided head by head (Chi et al., 2023)."""
    frequency = 10000 ** (-torch.arange(0, dim, 2, device=device) / dim)
    cosines = torch.cos(torch.arange(length, device=device)[:, None] * frequency).sum(-1)
    ratio = heads / (8 * torch.arange(1, heads + 1, device=device))

    def plus_cosines(score, b, h, q_idx, kv_idx):
        return score + cosines[(q_idx - kv_idx).abs()] * ratio[h]

    return plus_cosines


@_made
def graph_distance(bias: Tensor, distances: Tensor) -> AnyMod:
    """Graphormer: a learnable ``bias`` [heads, buckets] by the distance of two nodes, ``distances`` [B, M, N]
    (Ying et al., 2021)."""

    def plus_bias(score, b, h, q_idx, kv_idx):
        return score + bias[h, distances[b, q_idx, kv_idx]]

    return plus_bias


@_made
def head_scale(scales: Tensor) -> AnyMod:
    """A factor for each head, ``scales`` [heads]."""

    def scaled(score, b, h, q_idx, kv_idx):
        return score * scales[h]

    return scaled


@_made
def temperature(t: Tensor) -> AnyMod:
    """One learnable number ``t`` without dimensions that divides every score."""

    def cooled(score, b, h, q_idx, kv_idx):
        return score / t

    return cooled


@_made
def activation(function: Callable[[Tensor], Tensor] = F.gelu, offset: float = 1.0) -> AnyMod:
    """Softmax replaced: log(function(s) + offset), so that the softmax's numerator is function(s) + offset.

    With o and lse of ``flex_attention``, ``o * lse.exp()[..., None] - offset * v.sum(2)`` is the sum of function(s) v.
    """

    def log_of_activation(score, b, h, q_idx, kv_idx):
        return torch.log(function(score) + offset)

    return log_of_activation
