"""The registered operator: what PyTorch sees of a call, and how it finds its plan."""

import torch
from torch._subclasses.fake_tensor import is_fake

from kernels.common.checks import refuse_transforms
from kernels.common.operator import Operator
from kernels.common.plan import remembered
from kernels.common.precision import matmul_in_tf32
from kernels.flex_attention import problem as problems
from kernels.flex_attention import specs
from kernels.flex_attention.checks import check_captured, check_lists, check_shapes
from kernels.flex_attention.inputs import Inputs
from kernels.flex_attention.mods.reach import breadth_of
from kernels.flex_attention.plan import Plan
from kernels.flex_attention.portable.tiles import like_strided, steps_fit_tma
from kernels.flex_attention.problem import Problem


def _forward(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    p, x, _ = _resolved(query, key, value, captured, lists, ints, floats, scale, spec)
    return p.remember(Plan).forward(x, want_top)


def _backward(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    captured = _as_compiled(specs.find(spec), captured)
    p, x, places = _resolved(query, key, value, captured, lists, ints, floats, scale, spec, needs[3:])
    lse = lse.contiguous()
    do = torch.zeros_like(o) if do is None else do
    refuse_transforms("flex_attention's backward pass", (do,))
    wanted = [on and needs[3 + i] for i, on in zip(places, () if p.score is None else p.score.learned, strict=True)]
    grads = p.remember(Plan).backward(x, do, dlse, o, lse, needs[:3], any(wanted))
    made = dict(zip(places, grads[3:], strict=False))
    for i, t in enumerate(captured):
        grad = made.get(i)
        if grad is not None:
            made[i] = _laid_out_as(t, grad)
        elif needs[3 + i]:
            made[i] = torch.zeros_like(t)  # nothing of it reaches the scores
    return [*grads[:3], *(made.get(i) for i in range(len(captured)))]


def _as_compiled(spec, captured):
    """``captured`` as the mods' texts were made for it: a hook on saved tensors may give it back laid out in another way."""
    if spec.score is None and spec.mask is None:  # or they are compiled for the tensors that they meet
        return captured
    strides = [s for mod in (spec.score, spec.mask) if mod is not None for s in mod.strides]
    if [t.stride() for t in captured] == strides:
        return captured
    return [
        t if t.stride() == s else torch.empty_strided(t.shape, s, dtype=t.dtype, device=t.device).copy_(t)
        for t, s in zip(captured, strides, strict=True)
    ]


def _laid_out_as(t, grad):
    """``grad`` in memory as ``empty_like(t)`` is, which a compiled graph has been told by ``_fake_backward``."""
    if t.is_contiguous() and grad.is_contiguous():
        return grad
    like = torch.empty_like(t)
    return grad if grad.stride() == like.stride() else like.copy_(grad)


def _fake(query, key, value, captured, lists, ints, floats, scale, want_top, spec):
    B, Hq, M, _ = query.shape
    lse = query.new_empty((B, Hq, M), dtype=torch.float32)
    return like_strided(query, (B, Hq, M, value.shape[-1])), lse, torch.empty_like(lse) if want_top else None


def _fake_backward(do, dlse, query, key, value, captured, lists, o, lse, ints, floats, scale, want_top, spec, needs):
    made = [like_strided(t, t.shape) for t in (query, key, value)] + [torch.empty_like(t) for t in captured]
    return [t if need else None for t, need in zip(made, needs, strict=True)]


OPERATOR = Operator(
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


# What torch's counter of floating-point operations is told: two products forward, five backward, of the blocks visited.


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


OPERATOR.counts(_flops, _backward_flops)


def attend_unchecked(spec, query, key, value, captured, lists, ints, floats, scale, enable_gqa, want_top, seq_lengths):
    """The operator's outputs, for ``graphs``, whose arguments nobody has checked."""
    check_shapes(query, key, value, enable_gqa)
    if spec.BLOCK_SIZE is not None:
        named = dict(zip(spec.lists, lists, strict=True))
        check_lists(spec.BLOCK_SIZE, seq_lengths, named, *query.shape[:3], key.shape[2], query.device)
    return OPERATOR(query, key, value, captured, lists, ints, floats, scale, want_top, spec)


def _resolved(query, key, value, captured, lists, ints, floats, scale, spec, learned=()):
    """``(problem, inputs, places)`` of the operator's arguments; learned: which captured tensors want a gradient."""
    spec = specs.find(spec)
    bound = spec.bound(captured, ints, floats, query.device, learned)
    p = spec.problem
    if p is None or not p.was_made_for(query, key, value):
        of_mask = bound.numbers[len(bound.score.number_kinds) if bound.score else 0 :]
        p = problem_of(query, key, value, bound.score, bound.mask, of_mask, spec, lists, scale)
    return p, Inputs(p, query, key, value, bound.captured, lists, bound.numbers), bound.places


def problem_of(query, key, value, score, mask, mask_numbers, spec, lists, scale):
    """The ``Problem``, remembered by all that it, and a plan, depend on."""
    tensors = query, key, value
    return _problem(
        *(t.shape for t in tensors), *(t.stride() for t in tensors), *(t.data_ptr() % 16 == 0 for t in tensors),
        query.dtype, query.device, scale, score, mask, spec, lists[0].shape[1] if lists else 1,
        "ieee" if query.dtype == torch.float32 and not matmul_in_tf32() else "tf32", problems.table_options,
        breadth_of(mask, mask_numbers, *(t.shape for t in tensors)),
    )  # fmt: skip


@remembered
def _problem(
    query, key, value, q_strides, k_strides, v_strides, q_aligned, k_aligned, v_aligned,
    dtype, device, scale, score, mask, spec, list_heads, precision, table_options, breadth,
):  # fmt: skip
    (B, Hq, M, D), (Bkv, Hkv, N, _) = query, key
    for name, mod in (("score_mod", score), ("block_mask.mask_mod", mask)):
        if mod is not None:
            check_captured(name, mod, {"b": B, "h": Hq, "q_idx": M, "kv_idx": N})
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
        spec.BLOCK_SIZE, spec.lists, list_heads, spec.options, precision, breadth,
    )  # fmt: skip
