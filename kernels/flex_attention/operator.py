"""The public function: what may be asked, which kernels answer, and the launches of the plain ones.

A call goes from its checks through PyTorch's dispatcher (``register``) to ``forward`` or ``backward``, which look up the plan
of tensors with this layout and launch it. Mods travel as text (``specs``); ``flex_attention.explain`` prints the plan. Its
docstring is the one of record.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from kernels.common.checks import PLAIN, check_number, explains, public, refuse_parts, refuse_transforms, values_checked
from kernels.common.operator import launch, layout, register
from kernels.flex_attention import graphs, narrow, plain, plain_backward, specs
from kernels.flex_attention import options as options_of
from kernels.flex_attention.block_mask import BlockMask
from kernels.flex_attention.checks import LISTS, SLICED, check_mods, check_returns, check_tensors, listed
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.inputs import Inputs
from kernels.flex_attention.mods.bind import bind, source
from kernels.flex_attention.mods.extent import extent_of
from kernels.flex_attention.plan import BACKWARD, plan_of
from kernels.flex_attention.problem import like_strided

LN2 = math.log(2)
_NAMES = "query", "key", "value"


@public(casts=("query", "key", "value"))
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
        kernel_options: dict of BLOCK_M, BLOCK_N, num_warps, num_stages of the kernels for any GPU, which then run, whatever
            others would be faster; the same with the prefix ``bwd_`` for the backward pass, and ``fwd_`` is as none;
            DETERMINISTIC: gradients of captured tensors with the same bits every time, in two passes; default
            ``torch.are_deterministic_algorithms_enabled()``, all other results have the same bits every time anyway; and
            WORKSPACE: the most bytes that the backward pass may take for a while to keep ds, the gradients of the scores, or
            dq's sums in float32, for some heads or queries at a time: five matrix products then, not seven; up to a quarter
            more for sums of dk and dv in parts. Where ds of all blocks is larger, the first backward pass of a new mask
            waits for the GPU, to count those that are visited. 0: none, ds is computed twice. Default: up to 2 GiB on GPUs
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
    asked = score_mod, block_mask, scale, enable_gqa, kernel_options
    dynamo = torch.compiler.is_dynamo_compiling()
    if dynamo or not {type(query), type(key), type(value)} <= PLAIN:
        o, lse, top = (_recorded if dynamo else _of_subclasses)(query, key, value, *asked, want_top)
    else:
        if torch.jit.is_tracing():
            raise RuntimeError(
                "flex_attention cannot be recorded by torch.jit.trace, which would keep this call's result"
            )
        *arguments, spec = _arguments(query, key, value, *asked)
        o, lse, top = _attend(query, key, value, *arguments, want_top, spec)
    if return_aux is not None:
        return o, AuxOutput(lse * LN2 if return_aux.lse else None, top * LN2 if want_top else None)
    return (o, lse * LN2) if return_lse else o


def _of_subclasses(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, want_top):
    """``(o, lse, top)`` of tensors that may have no values."""
    asked = query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options
    if graphs.without_values(query, key, value):
        return _recorded(*asked, want_top)
    refuse_parts("flex_attention", asked[:3])
    *arguments, spec = _arguments(*asked)
    return _attend(query, key, value, *arguments, want_top, spec)


def _recorded(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options, want_top):
    """``(o, lse, top)`` of tensors without values, and of mods that a tracer writes down."""
    check_mods(score_mod, block_mask)
    record = graphs.traced if torch.compiler.is_dynamo_compiling() else graphs.recorded
    masked = block_mask is not None
    lists = tuple(name for name in LISTS if masked and getattr(block_mask, name) is not None)
    sizes = (tuple(block_mask.BLOCK_SIZE), tuple(block_mask.seq_lengths)) if masked else (None, None)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    options = tuple((kernel_options or {}).items())
    call = graphs.Call(scale, enable_gqa, options, want_top, *sizes, lists, (score_mod is not None, masked))
    return record((query, key, value), score_mod, block_mask, call)


graphs.attend.unrecorded = torch.compiler.disable(_of_subclasses)


def _arguments(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options):
    """What the operator takes behind query, key and value, but for ``want_top``: checked, and the mods compiled."""
    BLOCK_SIZE = seq_lengths = named = score = mask = None
    fits = block_mask is None or isinstance(block_mask, BlockMask) and callable(block_mask.mask_mod)
    fits = fits and (score_mod is None or callable(score_mod))
    if not fits or getattr(block_mask and block_mask.mask_mod, "__name__", "") == SLICED:
        check_mods(score_mod, block_mask)
    if block_mask is not None:
        BLOCK_SIZE, seq_lengths = tuple(block_mask.BLOCK_SIZE), block_mask.seq_lengths
        named = {name: t for name in LISTS if (t := getattr(block_mask, name)) is not None}
    check_tensors(query, key, value, enable_gqa, BLOCK_SIZE, seq_lengths, named)
    if scale is not None:
        check_number("scale", scale)
    options = {"DETERMINISTIC": torch.are_deterministic_algorithms_enabled()}
    if kernel_options is not None:
        options = options_of.checked(kernel_options)
    captured, numbers = [], ()
    if score_mod is not None:
        graded = torch.is_grad_enabled()
        gradient = graded and (query.requires_grad or key.requires_grad or value.requires_grad)
        score = bind(score_mod, "score_mod", query.device, gradient)
        if graded and not gradient and any(t.requires_grad for t in score.captured):
            score = bind(score_mod, "score_mod", query.device, True)
        captured, numbers = [*score.captured], score.numbers
    if block_mask is not None:
        mask = bind(block_mask.mask_mod, "mask_mod", query.device)
        captured += [
            t.detach() if t.requires_grad else t for t in mask.captured
        ]  # a mask's gradient is zero everywhere
        numbers = *numbers, *mask.numbers
    for t in captured:
        if t.is_neg():  # its strides are known to the compiled mod already
            raise ValueError(
                f"score_mod or mask_mod captures a tensor {list(t.shape)} that torch has yet to negate, needs t.resolve_neg()"
            )
    spec = specs.compiled(
        score and score.compiled, mask and mask.compiled, BLOCK_SIZE, tuple(named or ()), tuple(sorted(options.items()))
    )
    lists = [] if named is None else list(named.values())
    ints, floats = ([n for n in numbers if type(n) is kind] for kind in (int, float))
    return captured, lists, ints, floats, 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale), spec


@explains(flex_attention)
def explain(
    query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, return_aux
):  # fmt: skip
    """How ``flex_attention`` would run these arguments, and why, as text. Reads the mask's counts: waits for the GPU."""
    check_returns(return_lse, return_aux)
    arguments = _arguments(query, key, value, score_mod, block_mask, scale, enable_gqa, kernel_options)
    plan, _, _ = _resolved(query, key, value, *arguments)
    tensors = zip(_NAMES, (query, key, value), strict=True)
    copied = [name for name, t in tensors if plan.problem.tma(name) and not plain.fits_tma(t)]
    first = f"{', '.join(copied)}: copied to rows that TMA can read\n" if copied else ""
    return f"{first}{plan}\n{_blocks(plan.problem, block_mask)}"


def _blocks(p, block_mask):
    """``explain``'s line about the mask."""
    if block_mask is None:
        return "mask: none, every block of keys is visited and no mask code runs"
    blocks = [0 if t is None else int(t.sum()) for t in (block_mask.kv_num_blocks, block_mask.full_kv_num_blocks)]
    total = block_mask.kv_num_blocks.numel() * -(-p.N // block_mask.BLOCK_SIZE[1])
    return (
        f"mask: {total} blocks, {blocks[1]} full (no mask code), {blocks[0]} partial (mask mod runs), "
        f"{total - sum(blocks)} skipped"
    )


# Behind the dispatcher: tensors that have been checked, and what is launched for them.


def _resolved(query, key, value, captured, lists, ints, floats, scale, spec, learned=None):
    """``(plan, inputs, places)`` of the operator's arguments.

    learned: of the backward pass, for which captured tensors a gradient is wanted; places: of the score mod's among the
    captured tensors.
    """
    spec = specs.find(spec)
    score, mask, numbers = spec.score, spec.mask, ()
    places = range(0 if score is None else len(score.needs_grad))
    if spec.recorded is not None:
        score, mask, captured, numbers, places = spec.compiled_for(captured, ints, floats, query.device, learned or ())
    elif ints or floats:
        numbers = spec.numbers(ints, floats)
    at = 0 if score is None else len(score.number_kinds)
    of_score, of_mask = (captured[: len(places)], numbers[:at]), (captured[len(places) :], numbers[at:])
    extent = extent_of(mask, of_mask[1], query.shape, key.shape, value.shape) if of_mask[1] else None
    in_tf32 = query.dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision == "tf32"
    list_heads = lists[0].shape[1] if lists else 1
    further = query.device, scale, score, mask, spec, list_heads, in_tf32, extent
    plan = plan_of(layout(query), layout(key), layout(value), *further)
    callers, outputs, backward = (query, key, value), plan.problem.outputs, learned is not None
    if plan.unread(backward):  # copies take less than other kernels do
        copies = [plain.aligned(t) for t in callers]
        again = plan_of(*map(layout, copies), *further)
        if not again.unread(backward):
            plan, (query, key, value) = again, copies
    tables = []
    for mod, (tensors, given) in ((score, of_score), (mask, of_mask)):
        if mod is None:
            tables.append(())
        elif mod.direct is None:
            tables.append(mod.tables(tensors, given))
        else:
            tables.append((*[given[i] if is_number else tensors[i] for is_number, i in mod.direct], *mod.sizes))
    p, of_blocks = plan.problem, {}
    if p.sparse:
        named, seen = dict(zip(spec.lists, lists, strict=True)), values_checked(lists[0])
        for name, sizes in p.list_sizes.items():
            pair = named[f"{name}_num_blocks"], named[f"{name}_indices"]
            of_blocks[name] = listed(*pair, name, *sizes, seen)
    partial, full = of_blocks.get("kv"), of_blocks.get("full_kv")
    of_mods = *of_score, tables[0], of_mask[1], tables[1]
    x = Inputs(p, query, key, value, callers, outputs, *of_mods, of_blocks, partial, full)
    return plan, x, places


def forward(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    """``(o, lse, top)``, lse and top [B, Hq, M] float32 in base 2; a top that is not wanted is an empty tensor."""
    plan, x, _ = _resolved(query, key, value, captured, lists, ints, floats, scale, spec)
    p = plan.problem
    shape, strides = x.outputs
    o = torch.empty_strided(shape, strides, dtype=p.dtype, device=p.device)
    lse = torch.empty(shape[:3], dtype=torch.float32, device=p.device)
    top = torch.empty_like(lse) if want_top else None
    if plan.launch is None:
        plan.backend.forward(p, x, o, lse, top)
    else:
        kernel, grid, sizes, strides, meta = plan.launch
        T = meta["T"]
        if T.TMA:
            key, value = plain.tiled(key, T.BLOCK_N), plain.tiled(value, T.BLOCK_N)
        scores = plain.Scores(p.scale, p.unit, x.score_tables, x.mask_tables)
        extent = (x.extent,) if plan.backend is narrow else ()
        tensors = query, key, value, o, lse, top, x.partial, x.full, scores
        launch(kernel, grid, *tensors, *extent, sizes, strides, **meta)
    return o, lse, lse.new_empty(0) if top is None else top


def backward(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    """The gradients of query, key and value, each in its tensor's dtype and order of strides, and of what is captured."""
    refuse_transforms("flex_attention's backward pass", (do, dlse))
    known = specs.find(spec)
    if known.recorded is None and captured:  # a hook on saved tensors may give one back laid out in another way
        strides = [s for mod in (known.score, known.mask) if mod is not None for s in mod.strides]
        captured = [
            t if t.stride() == s else torch.empty_strided(t.shape, s, dtype=t.dtype, device=t.device).copy_(t)
            for t, s in zip(captured, strides, strict=True)
        ]
    plan, x, places = _resolved(query, key, value, captured, lists, ints, floats, scale, spec, needs[3:])
    learned = () if plan.problem.score is None else plan.problem.score.needs_grad
    need_captured = any(on and needs[3 + i] for i, on in zip(places, learned, strict=True))
    need_q, need_kv = needs[0], needs[1] or needs[2]
    hopper = hopper_backward if need_kv and plan.not_hopper_keys is None else None
    do = torch.zeros_like(o) if do is None else do
    outputs = plain_backward.Outputs(do if hopper is None else plain.aligned(do), dlse, o, lse.contiguous())
    if need_q and need_kv and not need_captured:
        grads = BACKWARD[plan.backward[0]].gradients(plan.problem, x, outputs, hopper)
    else:
        grads = plain_backward.gradients(plan.problem, x, outputs, hopper, (*needs[:3], need_captured))
    made = dict(zip(places, grads[3:], strict=False))
    for i, t in enumerate(captured):
        grad = made.get(i)
        if grad is not None:
            made[i] = _laid_out_as(t, grad)
        elif needs[3 + i]:
            made[i] = torch.zeros_like(t)  # nothing of it reaches the scores
    grads = [grad if need else None for grad, need in zip(grads[:3], needs[:3], strict=True)]
    return [*grads, *(made.get(i) for i in range(len(captured)))]


def _laid_out_as(t, grad):
    """``grad`` in memory as ``empty_like(t)`` is, which a compiled graph has been told by ``_fake_backward``."""
    if t.is_contiguous() and grad.is_contiguous():
        return grad
    like = torch.empty_like(t)
    return grad if grad.stride() == like.stride() else like.copy_(grad)


# As torch sees it: shapes and strides of what is returned. Its counter of floating-point operations is told two products
# forward, five backward, of the blocks visited.


def _fake(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    B, Hq, M, _ = query.shape
    lse = query.new_empty((B, Hq, M), dtype=torch.float32)
    o = like_strided(query, (B, Hq, M, value.shape[-1]))
    return o, lse, torch.empty_like(lse) if want_top else lse.new_empty(0)


def _fake_backward(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    made = [like_strided(t, t.shape) for t in (query, key, value)] + [torch.empty_like(t) for t in captured]
    return [t if need else None for t, need in zip(made, needs, strict=True)]


def _flops(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    return _products(query, key, lists, spec) * (query.shape[-1] + value.shape[-1])


def _backward_flops(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    scores = any((*needs[:2], *needs[3:]))
    q_side, v_side = 1 + needs[0] + needs[1], scores + needs[2]
    return _products(query, key, lists, spec) * (q_side * query.shape[-1] + v_side * value.shape[-1])


def _products(query, key, lists, spec):
    """Twice the pairs of queries and keys in blocks that are visited; in all, where the lists hold no numbers."""
    B, Hq, M, _ = query.shape
    spec, pairs = specs.find(spec), 2 * B * Hq * M * key.shape[2]
    named = dict(zip(spec.lists, lists, strict=True))
    counts = [named[name] for name in ("kv_num_blocks", "full_kv_num_blocks") if name in named]
    if not counts or any(is_fake(t) or t.is_meta for t in counts):
        return pairs
    blocks = counts[0].numel() * -(-key.shape[2] // spec.BLOCK_SIZE[1])
    return round(pairs * sum(int(t.sum()) for t in counts) / max(blocks, 1))


_attend = register(
    "flex_attention(Tensor query, Tensor key, Tensor value, Tensor[] captured, Tensor[] lists, SymInt[] ints, "
    "float[] floats, float scale, bool want_top, str spec) -> (Tensor o, Tensor lse, Tensor top)",
    forward,
    _fake,
    backward=backward,
    fake_backward=_fake_backward,
    gradients=(*_NAMES, "captured"),
    saved=(*_NAMES, "captured", "lists", "o", "lse"),
    constant=("top",),
    flops=_flops,
    backward_flops=_backward_flops,
)
graphs.attend.operator = _attend
flex_attention.source = source
