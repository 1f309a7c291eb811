"""Backward pass: two kernels that recompute the probabilities from q, k and lse, and never meet on the same address.

With delta = sum_d o do - dlse (the rows' inner product of probabilities and their gradients, and the lse's own gradient):

    p  = 2^(t log2 e - lse)                the forward pass's probabilities, zero wherever the mask forbids
    dz = p (do v^T - delta)                through the softmax
    ds = f'(s) dz                          through the score mod; zero wherever z is minus infinity, whatever f' is there
    dq = c ds k,   dk = c ds^T q,   dv = p^T do

The first kernel owns queries and walks over keys: dq, and the sums of the captured tensors' gradients. The second owns keys
and walks over the queries of all heads that share them (and over the batch, where keys serve all of it): dk and dv, computed
transposed, so that keys are the rows of every tile. Each sum has one owner and one order: the same bits every time.
"""

import torch
import triton

from kernels.common.launch import launch
from kernels.flex_attention.hopper import backward as hopper_backward
from kernels.flex_attention.hopper.rows import rows_of
from kernels.flex_attention.portable.delta import delta_of
from kernels.flex_attention.portable.dkdv import launch_dkdv
from kernels.flex_attention.portable.dq import attention_dq_kernel
from kernels.flex_attention.portable.stored_ds import DS_MULTIPLE, dq_from_ds, heads_with_stored_ds
from kernels.flex_attention.portable.tiles import like_strided, sources


def backward(problem, do, dlse, query, key, value, o, lse, needs, need_learned):
    """Launch the backward pass.

    Args:
        problem: the forward pass's ``Problem``.
        do: gradient of o [B, Hq, M, Dv]; dlse: of the lse in base 2 [B, Hq, M], or ``None``.
        query, key, value, o, lse: as the forward pass was given and gave them.
        needs: three bools, whether the gradients of query, key and value are wanted.
        need_learned: whether those of the captured tensors are.

    Returns:
        a list: dq, dk, dv, each in its tensor's dtype and order of strides, ``None`` where not wanted; then the gradients of
        ``problem.score.learned``.
    """
    p = problem
    need_q, need_k, need_v = needs
    mods = {"SCORE_MOD": p.score_mod, "SCORE_GRADIENT": p.score_gradient, "MASK_MOD": p.mask_mod}
    groups, shared = key.shape[0] * p.Hkv, p.shared(key)
    stored = heads_with_stored_ds(p, groups, shared) if need_q and (need_k or need_v) and not need_learned else 0
    on_hopper = (need_k or need_v) and hopper_backward.reason_not(p, query, key, value, do) is None
    rows = rows_of(p, do, dlse, o, lse) if on_hopper else None
    delta = None
    if not on_hopper or need_learned or (need_q and not stored):
        delta = delta_of(p, do, dlse, o, lse)

    def queries(dq, sinks, PASS):
        meta = p.launch_options("backward_dq")
        tiles_m = p.tiles(p.M, p.SPARSE_M, meta["BLOCK_M"])
        meta["TMA"], (k, v) = sources(meta["TMA"], meta["BLOCK_N"], key, value)
        launch(
            attention_dq_kernel,
            (p.B * p.Hq * tiles_m,),
            query, k, v, do, lse, delta, dq, p.partial, p.full, p.score_tables, p.mask_tables, sinks,
            p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_m, p.shared(key),
            *query.stride(), *key.stride(), *value.stride(), *do.stride(), *dq.stride(),
            outputs=(dq,),
            SINKS=p.score.compiled.sinks if sinks else None, PASS=PASS,
            HAS_FULL=p.full is not None, **mods, **p.static(meta), **meta,
        )  # fmt: skip

    dq = like_strided(query, query.shape) if need_q or need_learned else None
    learned = []
    if need_learned:
        learned = p.score.gradients(sums_of_sinks(p, lambda sinks, PASS: queries(dq, sinks, PASS)))
    elif need_q and not stored:
        queries(dq, (), "add")

    dk = dv = None
    if need_k or need_v:
        dk, dv = like_strided(key, key.shape), like_strided(value, value.shape)
        ds, size = None, (0, 0)
        if stored:
            size = tuple(triton.cdiv(length, DS_MULTIPLE) * DS_MULTIPLE for length in (p.N, p.M))
            ds = torch.empty(min(stored, groups) * shared * p.G, *size, dtype=query.dtype, device=query.device)
        for first in range(0, groups, stored or max(groups, 1)):
            count = min(stored or groups, groups - first)
            if on_hopper:
                hopper_backward.launch_dkdv(p, query, key, value, do, rows, dk, dv, ds, first, count)
            else:
                launch_dkdv(p, query, key, value, do, lse, delta, dk, dv, ds, size, first, count, mods)
            if stored:
                dq_from_ds(p, ds, size, key, dq, first, count, shared)
    return [dq if need_q else None, dk if need_k else None, dv if need_v else None, *learned]


def sums_of_sinks(problem, run):
    """The sums that the score mod's sinks collect, float32, from one run that adds or two that count.

    Two runs: the first measures the largest addend of each sink; in the second every addend becomes a whole number of the
    smallest unit whose sums cannot overflow 64 bits, and integers can be added in any order.
    """
    p = problem
    shapes = p.score.compiled.sink_shapes
    new = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=p.device)  # noqa: E731
    if not shapes:
        run((), "add")
        return []
    if not p.options["DETERMINISTIC"]:
        sums = [new(shape, torch.float32) for shape in shapes]
        run(tuple((s, s, s) for s in sums), "add")
        return sums
    largest = new(len(shapes), torch.float32)
    run(tuple((largest[i],) * 3 for i in range(len(shapes))), "measure")
    addends = max(1, p.B * p.Hq * p.M * p.N)
    # 2^k with largest * addends * 2^k < 2^62; a power of two, so that scaling rounds nothing
    exponent = 62 - addends.bit_length() - torch.frexp(largest).exponent
    unit = torch.exp2(exponent.clamp(-126, 126).float())
    counts = [new(shape, torch.int64) for shape in shapes]
    infinite = [new(shape, torch.float32) for shape in shapes]  # the sum of addends that are not finite
    run(tuple((count, unit[i], infinite[i]) for i, count in enumerate(counts)), "count")
    return [(count.double() / unit[i]).float() + infinite[i] for i, count in enumerate(counts)]
