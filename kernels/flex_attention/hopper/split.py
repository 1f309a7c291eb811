"""The backward pass in more, smaller items: where tiles of keys are too few, or too unequal, for the GPU, or ds too large.

Three cuts, each with an order of sums that is fixed (``parts``):

    head splits    the heads of queries that read one key head are shared out among items
    query splits   so are every head's tiles of queries
    bands          a launch has some heads, or some queries of one head: as many as the workspace holds ds of

The workspace holds ds of the launch that runs; ``stored_ds`` multiplies it with the keys before the next one begins.
"""

from kernels.flex_attention import block_mask as masks
from kernels.flex_attention import stored_ds
from kernels.flex_attention.checks import listed
from kernels.flex_attention.hopper import backward, cost, fused, parts, visits
from kernels.flex_attention.hopper.rows import rows_of
from kernels.flex_attention.hopper.scheduler import Split
from kernels.flex_attention.plain_backward import new_gradients
from kernels.flex_attention.problem import cdiv


def reason_not(p, tma):
    """Why neither a cut nor the kernel of all gradients is for the call, as text, or ``None``."""
    return None if tma and p.cached(cost.cut) is not None else fused.reason_not(p, tma)


def gradients(p, x, outputs, hopper):
    """dq, dk and dv."""
    rows, grads, cut = rows_of(p, *outputs), new_gradients(x), p.cached(cost.cut)
    if cut is None:
        fused.gradients_of(p, x, outputs.do, rows, *grads)
    else:
        gradients_of(p, x, outputs.do, rows, *grads, cut)
    return grads


def gradients_of(p, x, do, rows, dq, dk, dv, cut):
    """All three gradients by a ``cost.Cut``; rows: of ``rows.rows_of``."""
    if cut.way == "counters":
        fused.gradients_of(p, x, do, rows, dq, dk, dv, cut.head_splits)
        return
    pairs, each = p.Bkv * p.Hkv, p.shared * p.G
    ds = stored_ds.workspace(p, x.query, cut.pairs * cut.heads, cut.columns)
    sums = parts.sums(cut.pairs * cut.splits, p, x.query.device)
    for first in range(0, pairs, cut.pairs):
        count = min(cut.pairs, pairs - first)
        fresh = 1
        for begin in range(0, each, cut.heads):
            heads = min(cut.heads, each - begin)
            for band in reversed(range(0, p.M, cut.columns)):  # under a causal mask the last one visits all keys
                stop = min(band + cut.columns, p.M)
                split = Split(begin, heads, cut.head_splits, cut.query_splits, band, stop, fresh)
                part = backward.Part(split, lists_of_band(p, x, band, stop), p.cached(cost.lengths, cut, band))
                backward.launch_dkdv(p, x, do, rows, sums, ds, (first, count), part)
                stored_ds.dq_from_ds(p, x, ds, dq, first, count, split)
                fresh = 0
        parts.add_up(p, sums, cut.splits, dk, dv, first, count)


def lists_of_band(p, x, band, stop):
    """``Inputs.transposed`` with no other blocks of queries than those of band ... stop - 1."""
    if not p.sparse or (band == 0 and stop == p.M):
        return x.transposed
    return visits.kept(p, x, (band, stop), lambda: tuple(_cut(p, lists, band, stop) for lists in x.transposed))


def _cut(p, lists, band, stop):
    if lists is None:
        return None
    begin, end = band // p.SPARSE_M, cdiv(stop, p.SPARSE_M)
    num_blocks, indices = masks.ordered_lists(masks.dense_blocks(lists[0], lists[1], end)[..., begin:])
    return listed(num_blocks, indices + begin)
