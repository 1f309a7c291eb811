"""All gradients in the keys' kernel, where one of its tiles holds all keys: nothing of a row of queries is left to others.

Of a longer sequence each tile of keys has a part of dq, and needs delta, a sum over the row: two more kernels, and memory
for what they hand on. A short one ends before the host has launched them.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flex_attention.plain import Strides, head_of, load_rows, store_rows
from kernels.flex_attention.plain_backward import (
    Rows,
    delta_of_tiles,
    gradients_of_tile,
    launch_dkdv,
    load_dlse,
    load_lse,
    new_gradients,
)


class Beside(NamedTuple):
    """What this kernel has beside the keys': o and dlse, if any, of which it sums delta, and dq, which it stores. Their
    strides are not in tuples of their own: Triton 3.6 loses a stride of 1 that is so deep inside."""

    o_ptr: Any
    dq_ptr: Any
    ob: int
    oh: int
    om: int
    od: int
    qb: int
    qh: int
    qm: int
    qd: int
    lb: int
    lh: int
    lm: int
    dlse_ptr: Any


@triton.jit
def short_tile(
    dk, dv, m0, m_end, own, heads, at, beside, scores, sizes, mods, T, EDGE: tl.constexpr, MASK_MOD: tl.constexpr
):
    """``plain_backward.dkdv_tile`` with delta summed here, and dq = c ds k over all keys there are."""
    k, v, n0 = own
    b, h, _n = at
    queries, gradients, lse_at, _delta_at, _slot = heads
    q = load_rows(queries, m0, m_end, T.D, EDGE, False, T.BLOCK_M, T.BLOCK_D)
    do = load_rows(gradients, m0, m_end, T.DV, EDGE, False, T.BLOCK_M, T.BLOCK_DV)
    o_rows = head_of(beside.o_ptr, b, h, Strides(beside.ob, beside.oh, beside.om, beside.od), False)
    o = load_rows(o_rows, m0, m_end, T.DV, True, False, T.BLOCK_M, T.BLOCK_DV)
    m = m0 + tl.arange(0, T.BLOCK_M)
    lse = load_lse(lse_at, m, m_end, True)
    dlse = load_dlse(beside.dlse_ptr, b, h, m, m_end, Strides(beside.lb, beside.lh, beside.lm))
    delta = delta_of_tiles(o, do, dlse)
    dk, dv, ds = gradients_of_tile(
        dk, dv, k, v, q, do, lse, delta, m0, m_end, at, scores, sizes, mods, T, EDGE, MASK_MOD
    )
    ds = tl.where((n0 + tl.arange(0, T.BLOCK_N) < sizes.N)[:, None], ds, 0.0).to(k.dtype)
    dq = tl.dot(tl.trans(ds), k, input_precision=T.PRECISION) * scores.scale
    store_rows(dq, beside.dq_ptr, b, h, m0, m_end, Strides(beside.qb, beside.qh, beside.qm, beside.qd), T.D)
    return dk, dv


def reason_not(p, tma):
    """Why this kernel is not for the call, as text, or ``None``."""
    if not p.short("backward_dkdv", p.shared * p.G * p.M):
        return "the call is not short"
    tiles = p.tiles(p.N, p.SPARSE_N, p.launch_options("backward_dkdv")["BLOCK_N"])
    return None if tiles == 1 else f"its keys are {tiles} tiles"


def gradients(p, x, outputs, hopper):
    """dq, dk and dv."""
    do, dlse, o, lse = outputs
    dq, dk, dv = grads = new_gradients(x)
    if p.sparse:
        dq.zero_()  # the kernel never comes to queries that are in none of the mask's blocks
    beside = Beside(o, dq, *o.stride(), *dq.stride(), *((0, 0, 0) if dlse is None else dlse.stride()), dlse)
    launch_dkdv(p, x, Rows(do, lse, None), dk, dv, short_tile, beside)
    return grads
