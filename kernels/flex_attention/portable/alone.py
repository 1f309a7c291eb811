"""All gradients in the keys' kernel, where one of its tiles holds all keys: nothing of a row of queries is left to others.

Of a longer sequence each tile of keys has a part of dq, and needs delta, a sum over the row: two more kernels, and memory
for what they hand on. A short one ends before the host has launched them.
"""

import triton
import triton.language as tl

from kernels.flex_attention.portable.delta import delta_of_tiles, load_lse
from kernels.flex_attention.portable.tiles import load_rows, source_of


@triton.jit
def rows_alone(o_ptr, dlse_ptr, dq_ptr, strides, b, h, N):
    """A head's ``(o, (address, steps) of dq, (address, step) of dlse, number of keys)``; ``()`` for no dlse."""
    o_source = source_of(o_ptr, b, h, strides[0], strides[1], strides[2], strides[3], False)
    dq_base = dq_ptr + b.to(tl.int64) * strides[4] + h.to(tl.int64) * strides[5]
    if dlse_ptr is None:
        dlse = ()
    else:
        dlse = dlse_ptr + b.to(tl.int64) * strides[8] + h.to(tl.int64) * strides[9], strides[10]
    return o_source, (dq_base, strides[6], strides[7]), dlse, N


@triton.jit
def load_lse_and_sum_delta(
    lse_base, alone, do, m0, m_end, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr
):  # fmt: skip
    """``load_lse_and_delta`` where nobody has summed delta before."""
    m = m0 + tl.arange(0, BLOCK_M)
    o = load_rows(alone[0], m0, m_end, DV, True, False, BLOCK_M, BLOCK_DV)
    dlse = 0.0
    if len(alone[2]) > 0:
        dlse = tl.load(alone[2][0] + m.to(tl.int64) * alone[2][1], mask=m < m_end, other=0.0)
    return load_lse(lse_base, m, m_end, True), delta_of_tiles(o, do, dlse)


@triton.jit
def store_dq(
    ds, k, alone, scale, n0, m0, m_end, D: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq of a tile of queries: ds k, over all keys there are."""
    ds = tl.where((n0 + tl.arange(0, BLOCK_N) < alone[3])[:, None], ds, 0.0).to(k.dtype)
    dq = tl.dot(tl.trans(ds), k, input_precision=PRECISION) * scale
    m, d = m0 + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    at = alone[1][0] + m.to(tl.int64)[:, None] * alone[1][1] + d.to(tl.int64)[None, :] * alone[1][2]
    tl.store(at, dq.to(at.dtype.element_ty), mask=(m < m_end)[:, None] & (d < D)[None, :])


def strides_of_alone(o, dlse, dq):
    """What ``rows_alone`` is told of its tensors; ``None`` where the kernel is one of several."""
    return None if dq is None else (*o.stride(), *dq.stride(), *((0, 0, 0) if dlse is None else dlse.stride()))


def fits(p):
    """Whether the call is short, and all its keys are one tile."""
    walked = p.shared * p.G * p.M
    return p.short("backward_dkdv", walked) and p.tiles(p.N, p.SPARSE_N, p.launch_options("backward_dkdv")["BLOCK_N"]) == 1
