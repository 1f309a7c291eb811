"""The public function: validates, compiles the mods, and calls the operator. Its docstring is the one of record."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from kernels.common.operator import Operator, autocast, nothing_looks_on, public, refuse_transforms
from kernels.common.plan import remembered
from kernels.common.precision import matmul_in_tf32
from kernels.common.validate import check_number, check_tensor, same_device
from kernels.flex_attention import graphs, specs
from kernels.flex_attention import options as options_of
from kernels.flex_attention import problem as problems
from kernels.flex_attention.block_mask import BlockMask
from kernels.flex_attention.mods.bind import bind, source
from kernels.flex_attention.plan import Plan
from kernels.flex_attention.portable.tiles import like_strided, steps_fit_tma
from kernels.flex_attention.problem import LISTS, Inputs, Problem

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
    _check_returns(return_lse, return_aux)
    want_top = return_aux is not None and return_aux.max_scores
    query, key, value = autocast(query, key, value)
    tracing = graphs.traced if torch.compiler.is_dynamo_compiling() else graphs.recorded
    if tracing is graphs.traced or graphs.without_values(query, key, value):
        lists = () if block_mask is None else tuple(name for name in LISTS if getattr(block_mask, name) is not None)
        options = tuple((kernel_options or {}).items())
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
        o, lse, top = tracing(query, key, value, score_mod, block_mask, scale, enable_gqa, options, want_top, lists)
    else:
        spec, *inputs = _call(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
        o, lse, top = _OPERATOR(query, key, value, *inputs, want_top, spec)
    if return_aux is not None:
        return o, AuxOutput(lse * LN2 if return_aux.lse else None, top * LN2 if want_top else None)
    return (o, lse * LN2) if return_lse else o


# The operator.


def _forward(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    p, x, _ = _resolved(query, key, value, captured, lists, ints, floats, scale, spec)
    return p.remember(Plan).forward(x, want_top)


def _backward(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    p, x, places = _resolved(query, key, value, captured, lists, ints, floats, scale, spec, needs[3:])
    do = torch.zeros_like(o) if do is None else do
    refuse_transforms("flex_attention's backward pass", (do,))
    wanted = [on and needs[3 + i] for i, on in zip(places, () if p.score is None else p.score.learned, strict=True)]
    grads = p.remember(Plan).backward(x, do, dlse, o, lse, needs[:3], any(wanted))
    made = dict(zip(places, grads[3:], strict=False))
    for i, t in enumerate(captured):
        grad = made.get(i)
        made[i] = torch.zeros_like(t) if grad is None and needs[3 + i] else grad  # nothing of it reaches the scores
    return [*grads[:3], *(made[i] for i in range(len(captured)))]


def _fake(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    B, Hq, M, _ = query.shape
    lse = query.new_empty((B, Hq, M), dtype=torch.float32)
    return like_strided(query, (B, Hq, M, value.shape[-1])), lse, torch.empty_like(lse) if want_top else None


def _fake_backward(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    made = [like_strided(t, t.shape) for t in (query, key, value)] + [torch.empty_like(t) for t in captured]
    return [t if need else None for t, need in zip(made, needs, strict=True)]


_OPERATOR = Operator(
    "flex_attention(Tensor query, Tensor key, Tensor value, Tensor[] captured, Tensor[] lists, SymInt[] ints, "
    "float[] floats, float scale, bool want_top, str spec) -> (Tensor o, Tensor lse, Tensor top)",
    _forward,
    _fake,
    backward=_backward,
    fake_backward=_fake_backward,
    gradients=("query", "key", "value", "captured"),
    saved=("query", "key", "value", "captured", "lists", "o", "lse"),
    constant=("top",),
)


def attend_with_spec(spec, query, key, value, captured, lists, ints, floats, scale, enable_gqa, want_top, seq_lengths):
    """The operator's outputs, for ``graphs``, whose arguments nobody has checked."""
    check_shapes(query, key, value, enable_gqa)
    if spec.BLOCK_SIZE is not None:
        named = dict(zip(spec.lists, lists, strict=True))
        check_lists(spec.BLOCK_SIZE, seq_lengths, named, *query.shape[:3], key.shape[2], query.device)
    return _OPERATOR(query, key, value, captured, lists, ints, floats, scale, want_top, spec)


def _resolved(query, key, value, captured, lists, ints, floats, scale, spec, learned=()):
    """``(problem, inputs, places)`` of the operator's arguments; learned: which captured tensors want a gradient."""
    spec = specs.find(spec)
    bound = spec.bound(captured, ints, floats, query.device, learned)
    p = spec.problem
    if p is None:
        p = problem_of(query, key, value, bound.score, bound.mask, spec, lists, scale)
    return p, Inputs(p, query, key, value, bound.captured, lists, bound.numbers), bound.places


def problem_of(query, key, value, score, mask, spec, lists, scale):
    """The ``Problem``, remembered by all that it, and a plan, depend on."""
    tensors = query, key, value
    return _problem(
        *(t.shape for t in tensors), *(t.stride() for t in tensors), *(t.data_ptr() % 16 == 0 for t in tensors),
        query.dtype, query.device, scale, score, mask, spec, lists[0].shape[1] if lists else 1,
        "ieee" if query.dtype == torch.float32 and not matmul_in_tf32() else "tf32", problems.table_options,
    )  # fmt: skip


@remembered
def _problem(
    query, key, value, q_strides, k_strides, v_strides, q_aligned, k_aligned, v_aligned,
    dtype, device, scale, score, mask, spec, list_heads, precision, table_options,
):  # fmt: skip
    (B, Hq, M, D), (Bkv, Hkv, N, _) = query, key
    for name, mod in (("score_mod", score), ("block_mask.mask_mod", mask)):
        if mod is not None:
            _check_captured(name, mod, {"b": B, "h": Hq, "q_idx": M, "kv_idx": N})
    layouts = {
        name: (strides, aligned and steps_fit_tma(shape, strides, dtype.itemsize))
        for name, shape, strides, aligned in (
            ("query", query, q_strides, q_aligned),
            ("key", key, k_strides, k_aligned),
            ("value", value, v_strides, v_aligned),
        )
    }
    return Problem(
        B, Hq, Hkv, Bkv, M, N, D, value[-1], dtype, device, layouts, scale, score, mask,
        spec.BLOCK_SIZE, spec.lists, list_heads, spec.options, precision,
    )  # fmt: skip


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
    except (AttributeError, TypeError, ValueError):  # the checks say what is wrong, in their order
        kept = []
    if kept:
        spec = kept[0]
    else:
        spec, score, mask = _checked(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
        kept.append(spec)
    captured = numbers = ()  # the score mod's first
    if score is not None:
        captured, numbers = score.captured, score.numbers
    if mask is not None:  # a mask's gradient is zero everywhere
        captured = *captured, *(t.detach() if t.requires_grad else t for t in mask.captured)
        numbers = *numbers, *mask.numbers
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
    b = block_mask
    lists = b.kv_num_blocks, b.kv_indices, b.full_kv_num_blocks, b.full_kv_indices
    known = [None if t is None else (t.shape, t.device) for t in lists]
    rest = b.BLOCK_SIZE, b.seq_lengths, b.q_num_blocks is None, b.full_q_num_blocks is None
    return (known_by, *known, *rest), score, mask


def _check_returns(return_lse, return_aux):
    if return_lse and return_aux is not None:
        raise ValueError("return_lse and return_aux are both given, need one: return_aux=AuxRequest(lse=True)")
    if return_aux is not None and not isinstance(return_aux, AuxRequest):
        raise ValueError(f"return_aux is {return_aux!r}, needs an AuxRequest")


def check_shapes(query, key, value, enable_gqa):
    """Raise ``ValueError`` unless the three fit each other."""
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


def _checked(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options):
    """``(spec of a problem, bound score mod, bound mask)``, or the error that says what does not fit."""
    check_shapes(query, key, value, enable_gqa)
    (B, Hq, M, D), N = query.shape, key.shape[2]
    check_number("scale", scale)
    for name, mod in (("score_mod", score_mod), ("block_mask.mask_mod", getattr(block_mask, "mask_mod", None))):
        if mod is not None and not callable(mod):
            raise ValueError(f"{name} is {mod!r}, needs a function")
    options = options_of.checked(kernel_options)
    if block_mask is not None:
        _check_block_mask(block_mask, B, Hq, M, N, query.device)
    score, mask = _bound(query, key, value, score_mod, block_mask)
    compiled = [None if mod is None else mod.compiled for mod in (score, mask)]
    lists = () if block_mask is None else tuple(name for name in LISTS if getattr(block_mask, name) is not None)
    spec = specs.register(*compiled, None if block_mask is None else tuple(block_mask.BLOCK_SIZE), lists, options)
    scale = 1 / math.sqrt(D) if scale is None else float(scale)
    p = None
    if nothing_looks_on((query, key, value)):
        p = problem_of(query, key, value, *compiled, spec, [getattr(block_mask, name) for name in lists], scale)
    return spec.of_call(p, scale), score, mask


def _check_captured(name, mod, sizes):
    for argument, least in mod.bounds.items():
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
    lists = {name: getattr(block_mask, name) for name in LISTS}
    check_lists(block_mask.BLOCK_SIZE, block_mask.seq_lengths, lists, B, Hq, M, N, device)


def check_lists(BLOCK_SIZE, seq_lengths, lists, B, Hq, M, N, device):
    """Raise ``ValueError`` unless a block mask's lists, by their names, fit the call."""
    if tuple(seq_lengths) != (M, N):
        raise ValueError(
            f"block_mask was made for {seq_lengths[0]} queries and {seq_lengths[1]} keys, needs "
            f"{M} and {N}: make another, or cut it with block_mask._adjust({M}, {N})"
        )
    rows = -(-M // BLOCK_SIZE[0])
    for name, tensor in lists.items():
        if tensor is None or name.removeprefix("full_").startswith("q"):  # lists of queries that do not fit are made again
            continue
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
flex_attention.explain = explain
