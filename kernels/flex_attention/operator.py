"""The public function: validates, compiles the mods, chooses, wires autograd. Its docstring is the one of record."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from kernels.common.operator import autocast, once_differentiable, public, refuse_transforms
from kernels.common.validate import check_number, check_tensor, same_device
from kernels.flex_attention import options as options_of
from kernels.flex_attention.block_mask import BlockMask
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper import fit
from kernels.flex_attention.hopper import forward as hopper
from kernels.flex_attention.mods.bind import bind, source
from kernels.flex_attention.portable import backward as backward_pass
from kernels.flex_attention.portable import decoding, stored_ds
from kernels.flex_attention.portable import forward as forward_pass
from kernels.flex_attention.problem import Problem

LN2 = math.log(2)


@public
@torch.compiler.disable
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]:
    """Attention with any function of score and position, skipping the blocks that a mask leaves out.

    .. math::
        z_{mn} = f(c\\, q_m \\cdot k_n, b, h, m, n) \\text{ where the mask allows, else } -\\infty, \\qquad
        \\ell_m = \\log \\sum_n e^{z_{mn}}, \\qquad o_m = \\sum_n e^{z_{mn} - \\ell_m} v_n

    The signature of ``torch.nn.attention.flex_attention.flex_attention``, without ``torch.compile``: ``score_mod`` and the
    mask are traced, differentiated and compiled here. Products of 16-bit inputs are summed in float32, everything else is
    float32. Differentiable once in query, key, value, in the tensors that ``score_mod`` captures, and through the lse. A row
    without an allowed key has o = 0, lse = minus infinity and no gradient.

    Args:
        query: [B, Hq, M, D], float32, float16 or bfloat16; any strides, any sizes.
        key: [B or 1, Hkv, N, D]; with ``enable_gqa`` Hq may be a multiple G Hkv: query head h reads key head h // G.
        value: [B or 1, Hkv, N, Dv].
        score_mod: ``f(score, b, h, q_idx, kv_idx)`` on tensors without dimensions, or ``None``. ``score`` is float32.
        block_mask: a ``BlockMask`` made for (M, N), its batch 1 or B, its heads 1 or Hq; or ``None``: all keys.
        scale: c; 1 / sqrt(D) if ``None``.
        enable_gqa: whether Hq and Hkv may differ.
        return_lse: return ``(o, lse)``.
        kernel_options: dict of BLOCK_M, BLOCK_N, num_warps, num_stages, the same with the prefix ``bwd_`` for the backward
            pass; DETERMINISTIC: gradients of captured tensors with the same bits every time, in two passes; default
            ``torch.are_deterministic_algorithms_enabled()``, all other results have the same bits every time anyway; and
            WORKSPACE: the most bytes that the backward pass may take for a while to keep ds, the gradients of the scores,
            for some heads at a time: five matrix products then, not seven. 0: none, ds is computed twice. Default: up to
            2 GiB on GPUs where it is faster. torch's other options are ignored, each with one warning.
        return_aux: an ``AuxRequest``: return ``(o, AuxOutput)`` with the lse, the largest logit of each row, or both.

    Returns:
        o [B, Hq, M, Dv] in query's dtype and order of strides; lse and max_scores are float32 [B, Hq, M].

    Raises:
        ValueError: an argument does not fit; a mod cannot be compiled (``ModError``, which shows the user's line).

    ``flex_attention.source(score_mod, mask_mod)`` is the generated Triton text, ``flex_attention.explain(...)`` with the same
    arguments says what would run and why.

    Source: Dong et al., 2024, arXiv:2412.05496; Dao, 2023, arXiv:2307.08691.
    """
    if torch.jit.is_tracing():
        raise RuntimeError("flex_attention cannot be recorded by torch.jit.trace, which would keep this call's result")
    query, key, value = autocast(query, key, value)
    problem = _problem(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
    _check_returns(return_lse, return_aux)
    want_top = return_aux is not None and return_aux.max_scores
    learned = [] if problem.score is None else problem.score.learned
    o, lse, top = _Attention.apply(problem, want_top, query, key, value, *learned)
    if return_aux is not None:
        return o, AuxOutput(lse * LN2 if return_aux.lse else None, top * LN2 if want_top else None)
    return (o, lse * LN2) if return_lse else o


class _Attention(torch.autograd.Function):
    """Arguments: problem, whether row maxima are wanted, query, key, value, captured tensors that get a gradient."""

    @staticmethod
    def forward(ctx, problem, want_top, query, key, value, *learned):
        splits, pack, _ = decoding.choose(problem)
        if splits:
            o, lse, top = decoding.decode(problem, query, key, value, splits, pack, want_top)
        elif hopper.reason_not(problem, query, key, value) is None:
            o, lse, top = hopper.forward(problem, query, key, value, want_top)
        else:
            o, lse, top = forward_pass.forward(problem, query, key, value, want_top)
        ctx.problem, others = problem.parted()
        ctx.save_for_backward(query, key, value, o, lse, *others)
        ctx.set_materialize_grads(False)
        if top is not None:
            ctx.mark_non_differentiable(top)
        return o, lse, top

    @staticmethod
    def backward(ctx, do, dlse, dtop):
        query, key, value, o, lse, *others = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do
        refuse_transforms("flex_attention's backward pass", (do,))
        problem, needs = ctx.problem.with_tensors(others), ctx.needs_input_grad[2:]
        with torch.no_grad():
            grads = backward_pass.backward(problem, do, dlse, query, key, value, o, lse, needs[:3], any(needs[3:]))
        return None, None, *once_differentiable("flex_attention", grads, (query, key, value, do, dlse))


def _check_returns(return_lse, return_aux):
    if return_lse and return_aux is not None:
        raise ValueError("return_lse and return_aux are both given, need one: return_aux=AuxRequest(lse=True)")
    if return_aux is not None and not isinstance(return_aux, AuxRequest):
        raise ValueError(f"return_aux is {return_aux!r}, needs an AuxRequest")


def _problem(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options):
    """The checked call."""
    check_tensor("query", query, (None, None, None, None), "[B, Hq, M, D]")
    B, Hq, M, D = query.shape
    same = {"dtypes": (query.dtype,), "like": ("query", query)}
    check_tensor("key", key, (None, None, None, D), "[B or 1, Hkv, N, D]", **same)
    Bkv, Hkv, N, _ = key.shape
    check_tensor("value", value, (Bkv, Hkv, N, None), "[B or 1, Hkv, N, Dv]", **same)
    if Bkv not in (1, B):
        raise ValueError(f"key has a batch of {Bkv}, needs 1 or {B}, the batch of query")
    if D == 0:
        raise ValueError("query has a head dimension of 0, needs at least 1")
    if Hq != Hkv and not enable_gqa:
        raise ValueError(f"key has {Hkv} heads, needs {Hq}, those of query; with enable_gqa=True a divisor of {Hq}")
    if (Hkv == 0) != (Hq == 0) or (Hkv and Hq % Hkv):
        raise ValueError(f"key has {Hkv} heads, needs a divisor of {Hq}, the heads of query")
    check_number("scale", scale)
    for name, mod in (("score_mod", score_mod), ("block_mask.mask_mod", getattr(block_mask, "mask_mod", None))):
        if mod is not None and not callable(mod):
            raise ValueError(f"{name} is {mod!r}, needs a function")
    options = options_of.checked(kernel_options)
    if block_mask is not None:
        _check_block_mask(block_mask, B, Hq, M, N, query.device)
    gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    score = mask = None
    if score_mod is not None:
        score = bind(score_mod, "score_mod", query.device, gradient)
        if torch.is_grad_enabled() and not gradient and any(t.requires_grad for t in score.captured):
            score = bind(score_mod, "score_mod", query.device, True)
    if block_mask is not None:
        mask = bind(block_mask.mask_mod, "mask_mod", query.device)
    for name, mod in (("score_mod", score), ("block_mask.mask_mod", mask)):
        if mod is not None:
            _check_captured(name, mod, {"b": B, "h": Hq, "q_idx": M, "kv_idx": N})
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    return Problem(
        B, Hq, Hkv, M, N, D, value.shape[-1], query.dtype, query.device, scale, score, mask, block_mask, options
    )


def _check_captured(name, mod, sizes):
    for argument, least in mod.compiled.bounds.items():
        if least < sizes[argument]:
            raise ValueError(
                f"{name} indexes a captured dimension of size {least} with {argument}, needs {sizes[argument]}: "
                f"{argument} goes up to {sizes[argument] - 1}"
            )


def _check_block_mask(block_mask, B, Hq, M, N, device):
    if not isinstance(block_mask, BlockMask):
        raise ValueError(f"block_mask is {type(block_mask).__name__}, needs a BlockMask or None")
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise ValueError(
            "block_mask was sliced and lost its mask_mod, needs one for the part that is left: "
            "set block_mask.mask_mod, with the positions shifted by where the part begins"
        )
    if tuple(block_mask.seq_lengths) != (M, N):
        raise ValueError(
            f"block_mask was made for {block_mask.seq_lengths[0]} queries and {block_mask.seq_lengths[1]} keys, needs "
            f"{M} and {N}: make another, or cut it with block_mask._adjust({M}, {N})"
        )
    lists = {name: getattr(block_mask, name) for name in ("kv_num_blocks", "kv_indices")}
    if block_mask.full_kv_num_blocks is not None:
        lists |= {name: getattr(block_mask, name) for name in ("full_kv_num_blocks", "full_kv_indices")}
    rows = -(-M // block_mask.BLOCK_SIZE[0])
    for name, tensor in lists.items():
        legend = "[B or 1, Hq or 1, blocks of queries, ...]"
        if (
            tensor.ndim != 3 + name.endswith("indices")
            or tensor.shape[0] not in (1, B)
            or tensor.shape[1] not in (1, Hq)
        ):
            raise ValueError(
                f"block_mask.{name} has shape {list(tensor.shape)}, needs {legend} with B = {B}, Hq = {Hq}"
            )
        if tensor.shape[2] < rows:
            raise ValueError(f"block_mask.{name} has {tensor.shape[2]} blocks of queries, needs {rows} for {M} queries")
        if not same_device(tensor.device, device):
            raise ValueError(f"block_mask is on {tensor.device}, needs {device}, the device of query")


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> str:
    """How ``flex_attention`` would run these arguments, and why, as text. Reads the mask's counts: waits for the GPU."""
    _check_returns(return_lse, return_aux)
    query, key, value = autocast(query, key, value)
    p = _problem(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
    splits, _, reason = decoding.choose(p)
    way = f"{'decoding' if splits else 'one program a tile of queries'}: {reason}"
    stored = stored_ds.heads_with_stored_ds(p, key.shape[0] * p.Hkv, p.shared(key))
    dq = "backward_dq_from_ds" if stored else "backward_dq"
    lines = [way]

    def says(kernel, why_plain=None, tiles=None):
        if tiles and why_plain is None:
            lines.append(f"{kernel}: warp-specialised for Hopper, tiles of {tiles[0]} x {tiles[1]}")
            return
        if tiles:
            lines.append(f"{kernel}: the kernel for any GPU, because {why_plain}")
        lines.append(f"{kernel}: {', '.join(f'{k} {v}' for k, v in p.launch_options(kernel).items())}")

    if splits:
        says("decoding")
    else:
        tiles = fit.BLOCK_M, hopper.options(p)["BLOCK_N"]
        says("forward", hopper.reason_not(p, query, key, value), tiles)
    tiles = hopper_backward.options(p)["BLOCK_M"], hopper_backward.BLOCK_N
    says("backward_dkdv", hopper_backward.reason_not(p, query, key, value, query), tiles)  # o's gradient lies as query
    says(dq)
    if stored:
        lines.append(f"dq: ds of {stored} key heads at a time fits the workspace, five matrix products in all")
    else:
        lines.append("dq: ds does not fit the workspace and is computed again, seven matrix products in all")
    if p.score_mod is None:
        lines.append("score: no code runs, the scale is folded into the exponent")
    else:
        lines.append(
            "score: " + ("a negative or zero scale" if p.score is None else "the score mod runs in every tile")
        )
    if block_mask is None:
        lines.append("mask: none, every block of keys is visited and no mask code runs")
    else:
        blocks = [0 if t is None else int(t.sum()) for t in (block_mask.kv_num_blocks, block_mask.full_kv_num_blocks)]
        total = block_mask.kv_num_blocks.numel() * -(-p.N // block_mask.BLOCK_SIZE[1])
        lines.append(
            f"mask: of {total} blocks {blocks[1]} are full (no mask code), {blocks[0]} partial (the mask mod runs), "
            f"{total - sum(blocks)} are skipped"
        )
    return "\n".join(lines)


flex_attention.source = source
flex_attention.explain = explain
