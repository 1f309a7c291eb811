"""The rows' delta, which both backward passes need: in a file of its own because each pass keeps it in another shape."""

import triton
import triton.language as tl

from kernels.flex_attention.portable.tiles import Strides, load_rows, source_of
from kernels.flex_attention.problem import cdiv, columns


@triton.jit
def delta_of_rows(
    o_ptr, do_ptr, dlse_ptr, b, h, m0, M, o_strides, do_strides, dlse_strides,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """``delta_of_tiles`` of rows m0 ... m0 + BLOCK_M - 1, zero from M on."""
    o_source = source_of(o_ptr, b, h, o_strides.b, o_strides.h, o_strides.n, o_strides.d, False)
    do_source = source_of(do_ptr, b, h, do_strides.b, do_strides.h, do_strides.n, do_strides.d, False)
    o = load_rows(o_source, m0, M, DV, True, False, BLOCK_M, BLOCK_DV)
    do = load_rows(do_source, m0, M, DV, True, False, BLOCK_M, BLOCK_DV)
    dlse = 0.0
    if dlse_ptr is not None:
        m = m0 + tl.arange(0, BLOCK_M)
        at = dlse_ptr + b * dlse_strides.b + h * dlse_strides.h + m * dlse_strides.n
        dlse = tl.load(at, mask=m < M, other=0.0)
    return delta_of_tiles(o, do, dlse)


@triton.jit
def delta_of_tiles(o, do, dlse):
    """sum_d o do - dlse / ln 2, in float32; the kernels' lse counts in base 2."""
    return tl.sum(o.to(tl.float32) * do.to(tl.float32), 1) - dlse * 1.4426950408889634


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, dlse_ptr, delta_ptr, M, H, o_strides, do_strides, dlse_strides,
    DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """delta [B, H, M], in float32."""
    tiles = tl.cdiv(M, BLOCK_M)
    pid = tl.program_id(0)
    m0 = (pid % tiles).to(tl.int64) * BLOCK_M
    bh = (pid // tiles).to(tl.int64)
    b, h = bh // H, bh % H
    offs_m = tl.arange(0, BLOCK_M)
    delta = delta_of_rows(
        o_ptr, do_ptr, dlse_ptr, b, h, m0, M, o_strides, do_strides, dlse_strides, DV, BLOCK_M, BLOCK_DV
    )
    mask = m0 + offs_m < M
    tl.store(delta_ptr + bh * M + m0 + offs_m, delta, mask=mask)


@triton.jit
def load_lse_and_delta(lse_base, delta_base, m, end, EDGE: tl.constexpr):
    """Of queries m."""
    if EDGE:
        delta = tl.load(delta_base + m, mask=m < end, other=0.0)
    else:
        delta = tl.load(delta_base + m)
    return load_lse(lse_base, m, end, EDGE), delta


@triton.jit
def load_lse(lse_base, m, end, EDGE: tl.constexpr):
    """Of queries m, such that p = 2^(x - lse) is 0 where there is no row (lse = inf) or no key (x = -inf, lse = 0)."""
    if EDGE:
        lse = tl.load(lse_base + m, mask=m < end, other=float("inf"))
    else:
        lse = tl.load(lse_base + m)
    return tl.where(lse == float("-inf"), 0.0, lse)


def prepared(p):
    """``(programs, compile-time arguments)`` of ``delta_kernel``."""
    BLOCK_M = 64
    return (p.B * p.Hq * cdiv(p.M, BLOCK_M),), {"DV": p.Dv, "BLOCK_M": BLOCK_M, "BLOCK_DV": columns(p.Dv)}


def strides_of_rows(o, do, dlse):
    """What kernels that call ``delta_of_rows`` are told of its tensors."""
    return Strides(*o.stride()), Strides(*do.stride()), Strides(0, 0, 0) if dlse is None else Strides(*dlse.stride())
