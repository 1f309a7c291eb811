"""The public function: validates, compiles the mods, and calls the operator. Its docstring is the one of record."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from kernels.common.checks import autocast, check_number, explains, nothing_looks_on, public
from kernels.common.plan import remembered
from kernels.common.precision import matmul_in_tf32
from kernels.flex_attention import alike, graphs, specs
from kernels.flex_attention import options as options_of
from kernels.flex_attention import problem as problems
from kernels.flex_attention.block_mask import BlockMask
from kernels.flex_attention.checks import LISTS, check_block_mask, check_mods, check_returns, check_shapes
from kernels.flex_attention.mods.bind import bind, source
from kernels.flex_attention.mods.reach import breadth_of
from kernels.flex_attention.plan import Plan
from kernels.flex_attention.registered import OPERATOR, problem_of

LN2 = math.log(2)


@public
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
    mask are traced, differentiated and compiled here. Inside ``torch.compile(fullgraph=True)`` and ``torch.export`` it is one
    registered operator, whatever the mods capture. Products of 16-bit inputs are summed in float32, everything else is
    float32. Differentiable once in query, key, value, in the tensors that ``score_mod`` captures, and through the lse. A row
    without an allowed key has o = 0, lse = minus infinity and no gradient.

    From 16-bit inputs the gradients of a row's scores are off by one number, which rounding o leaves, as in torch's. It adds
    up where a captured tensor stands before what is alike for a row's likely keys, such as a slope before a long distance.

    Args:
        query: [B, Hq, M, D], float32, float16 or bfloat16; any strides, any sizes but D = 0.
        key: [B or 1, Hkv, N, D]; with ``enable_gqa`` Hq may be a multiple G Hkv: query head h reads key head h // G.
        value: [B or 1, Hkv, N, Dv].
        score_mod: ``f(score, b, h, q_idx, kv_idx)`` on tensors without dimensions, or ``None``. ``score`` is float32.
            An index into a captured tensor must lie inside it, negative ones counted from the end, also for masked pairs of
            a block that is visited. b, h, q_idx and kv_idx alone are checked; what is computed from them is not, and reads,
            or in the backward pass adds to, other memory where it lies outside.
        block_mask: a ``BlockMask`` made for (M, N), its batch 1 or B, its heads 1 or Hq; or ``None``: all keys. A block
            listed behind the last key holds none; a GPU's lists are looked at only if torch cut them, or ``KERNELS_CHECK=1``.
            In a CUDA graph the forward pass reads the mask's lists at every replay, the backward pass may visit the blocks
            that were listed when it was captured: after the lists are changed in place, capture it again.
        scale: c; 1 / sqrt(D) if ``None``.
        enable_gqa: whether Hq and Hkv may differ.
        return_lse: return ``(o, lse)``.
        kernel_options: dict of BLOCK_M, BLOCK_N, num_warps, num_stages; the same with the prefix ``bwd_`` for the backward
            pass, and ``fwd_`` is as none; DETERMINISTIC: gradients of captured tensors with the same bits every time, in two
            passes; default ``torch.are_deterministic_algorithms_enabled()``, all other results have the same bits every time
            anyway; and WORKSPACE: the most bytes that the backward pass may take for a while to keep ds, the gradients of
            the scores, or dq's sums in float32, for some heads or queries at a time: five matrix products then, not seven;
            up to an eighth more for sums of dk and dv in parts. 0: none, ds is computed twice. Default: up to 2 GiB on GPUs
            where it is faster. torch's other options are ignored, each with one warning.
        return_aux: an ``AuxRequest``: return ``(o, AuxOutput)`` with the lse, the largest logit of each row, or both.

    Returns:
        o [B, Hq, M, Dv] in query's dtype and order of strides; lse and max_scores are float32 [B, Hq, M].

    Raises:
        ValueError: an argument does not fit; a mod cannot be compiled (``ModError``, which shows the user's line).
        RuntimeError: a second derivative, forward mode or a transform of ``torch.func`` is asked for.

    ``flex_attention.source(score_mod, mask_mod)`` is the generated Triton text, ``flex_attention.explain(...)`` with the same
    arguments says what would run and why.

    Source: Dong et al., 2024, arXiv:2412.05496; Dao, 2023, arXiv:2307.08691.
    """
    want_top = False
    if return_lse or return_aux is not None:
        check_returns(return_lse, return_aux)
        want_top = return_aux is not None and return_aux.max_scores
    seen = torch.compiler.is_compiling() or not nothing_looks_on((query, key, value))
    query, key, value = autocast(query, key, value)
    unusual = seen or score_mod is not None or block_mask is not None or kernel_options
    made = None if unusual else alike.plain_outputs(query, key, value, scale, enable_gqa, want_top)
    if made is None:
        attend = _watched if seen else _attended
        made = attend(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, want_top, seen)
    o, lse, top = made
    if return_aux is not None:
        return o, AuxOutput(lse * LN2 if return_aux.lse else None, top * LN2 if want_top else None)
    return (o, lse * LN2) if return_lse else o


def _watched(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, want_top, seen=True):
    """``(o, lse, top)`` where somebody looks on: a tracer, a mode, or a tensor that isn't a plain one."""
    dynamo = torch.compiler.is_dynamo_compiling()
    if not dynamo and torch._C._get_tracing_state() is not None:
        raise RuntimeError("flex_attention cannot be recorded by torch.jit.trace, which would keep this call's result")
    if not dynamo and not graphs.without_values(query, key, value):
        query, key, value = (t.resolve_neg() if isinstance(t, Tensor) and t.is_neg() else t for t in (query, key, value))
        return _attended(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, want_top)
    check_mods(score_mod, block_mask)
    tracing = graphs.traced if dynamo else graphs.recorded
    lists = () if block_mask is None else tuple(name for name in LISTS if getattr(block_mask, name) is not None)
    options = tuple((kernel_options or {}).items())
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return tracing(query, key, value, score_mod, block_mask, scale, enable_gqa, options, want_top, lists)


def _attended(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, want_top, seen=True):
    """``(o, lse, top)`` of tensors with values; ``seen``: whether somebody looks on."""
    asked = scale
    spec, captured, lists, ints, floats, scale = _call(
        query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options
    )  # fmt: skip
    given = query, key, value, captured, lists, ints, floats
    made = alike.outputs(spec, *given, want_top) if not seen and (query.is_cuda or query.is_cpu) else None
    if made is None:
        return OPERATOR(*given, scale, want_top, spec)
    if score_mod is None and block_mask is None and not kernel_options:
        alike.keep(query, key, value, asked, enable_gqa, spec)
    return made


graphs.attend.unrecorded = torch.compiler.disable(_watched)


# What is asked for.


@remembered
def _checked_before(known_by):
    """Where the ``Spec`` of a call is kept: empty before its check."""
    return []


def _call(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options):
    """``(spec, captured, lists, ints, floats, scale)`` of a checked call."""
    try:
        known_by, score, mask = _known_by(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
        kept = _checked_before(known_by)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # the checks say what is wrong, in their order
        kept = []
    if kept:
        spec = kept[0]
    else:
        spec, score, mask = _checked(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
        kept.append(spec)
    if score is None and mask is None and block_mask is None:
        return spec, [], [], [], [], spec.scale
    captured = numbers = ()  # the score mod's first
    if score is not None:
        captured, numbers = score.captured, score.numbers
    if mask is not None:  # a mask's gradient is zero everywhere
        captured = *captured, *(t.detach() if t.requires_grad else t for t in mask.captured)
        numbers = *numbers, *mask.numbers
    for t in captured:
        if t.is_neg():  # its strides are known to the compiled mod already
            raise ValueError(
                f"score_mod or mask_mod captures a tensor {list(t.shape)} that torch has yet to negate, needs t.resolve_neg()"
            )
    lists = [] if block_mask is None else [getattr(block_mask, name) for name in spec.lists]
    ints = [n for n in numbers if type(n) is int]
    return spec, list(captured), lists, ints, [n for n in numbers if type(n) is float], spec.scale


def _bound(query, key, value, score_mod, block_mask):
    """The mods as ``BoundMod``, ``None`` where there is none."""
    score = mask = None
    if score_mod is not None:
        graded = torch.is_grad_enabled()
        gradient = graded and (query.requires_grad or key.requires_grad or value.requires_grad)
        score = bind(score_mod, "score_mod", query.device, gradient)
        if graded and not gradient and any(t.requires_grad for t in score.captured):
            score = bind(score_mod, "score_mod", query.device, True)
    if block_mask is not None:
        mask = bind(block_mask.mask_mod, "mask_mod", query.device)
    return score, mask


def _known_by(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options):
    """``(all that a check or a plan looks at, bound score mod, bound mask)``."""
    score, mask = _bound(query, key, value, score_mod, block_mask)
    dtype, device = query.dtype, query.device
    known_by = (
        query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride(), dtype, key.dtype, value.dtype,
        device, key.device, value.device, query.data_ptr() % 16, key.data_ptr() % 16, value.data_ptr() % 16,
        type(scale), scale, enable_gqa, dtype == torch.float32 and matmul_in_tf32(), problems.table_options,
        tuple(kernel_options.items()) if kernel_options else None, torch.are_deterministic_algorithms_enabled(),
        None if score is None else score.compiled, None if mask is None else mask.compiled,
    )  # fmt: skip
    if block_mask is None:
        return known_by, score, mask
    b, seen = block_mask, []
    for t in (
        b.kv_num_blocks, b.kv_indices, b.full_kv_num_blocks, b.full_kv_indices,
        b.q_num_blocks, b.q_indices, b.full_q_num_blocks, b.full_q_indices,
    ):  # fmt: skip
        seen += (None,) if t is None else (t.shape, t.device)
    if mask.numbers:
        seen.append(breadth_of(mask.compiled, mask.numbers, query.shape, key.shape, value.shape))
    return (known_by, b.BLOCK_SIZE, b.seq_lengths, *seen), score, mask


def _checked(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options):
    """``(spec of a problem, bound score mod, bound mask)``, or the error that says what does not fit."""
    check_shapes(query, key, value, enable_gqa)
    (B, Hq, M, D), N = query.shape, key.shape[2]
    check_number("scale", scale)
    check_mods(score_mod, block_mask)
    options = options_of.checked(kernel_options)
    if block_mask is not None:
        check_block_mask(block_mask, B, Hq, M, N, query.device)
    score, mask = _bound(query, key, value, score_mod, block_mask)
    compiled = [None if mod is None else mod.compiled for mod in (score, mask)]
    lists = () if block_mask is None else tuple(name for name in LISTS if getattr(block_mask, name) is not None)
    spec = specs.compiled(*compiled, None if block_mask is None else tuple(block_mask.BLOCK_SIZE), lists, options)
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    p = None
    if nothing_looks_on((query, key, value)):
        numbers = () if mask is None else mask.numbers
        p = problem_of(query, key, value, *compiled, numbers, spec, [getattr(block_mask, name) for name in lists], scale)
    return spec.of_call(p, scale), score, mask


@explains(flex_attention)
def explain(
    query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux
):  # fmt: skip
    """How ``flex_attention`` would run these arguments, and why, as text. Reads the mask's counts: waits for the GPU."""
    check_returns(return_lse, return_aux)
    query, key, value = autocast(query, key, value)
    spec, *_ = _call(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
    return f"{spec.problem.remember(Plan)}\n{_blocks(spec.problem, block_mask)}"


def _blocks(p, block_mask):
    """``explain``'s line about the mask."""
    if block_mask is None:
        return "mask: none, every block of keys is visited and no mask code runs"
    blocks = [0 if t is None else int(t.sum()) for t in (block_mask.kv_num_blocks, block_mask.full_kv_num_blocks)]
    total = block_mask.kv_num_blocks.numel() * -(-p.N // block_mask.BLOCK_SIZE[1])
    return (
        f"mask: of {total} blocks {blocks[1]} are full (no mask code), {blocks[0]} partial (the mask mod runs), "
        f"{total - sum(blocks)} are skipped"
    )


flex_attention.source = source
