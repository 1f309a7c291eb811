"""The rows' delta, which both backward passes need: in a file of its own because each pass keeps it in another shape."""

import triton
import triton.language as tl

from kernels.flex_attention.portable.forward import load_rows, source_of


@triton.jit
def delta_of_rows(
    o_ptr, do_ptr, dlse_ptr, b, h, m0, M,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_db, stride_dh, stride_dm, stride_dd,
    stride_lb, stride_lh, stride_lm,
    HAS_DLSE: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """sum_d o do - dlse / ln 2 of rows m0 ... m0 + BLOCK_M - 1, zero from M on; the kernels' lse counts in base 2."""
    o_source = source_of(o_ptr, b, h, stride_ob, stride_oh, stride_om, stride_od, False)
    do_source = source_of(do_ptr, b, h, stride_db, stride_dh, stride_dm, stride_dd, False)
    o = load_rows(o_source, m0, M, DV, True, False, BLOCK_M, BLOCK_DV)
    do = load_rows(do_source, m0, M, DV, True, False, BLOCK_M, BLOCK_DV)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    if HAS_DLSE:
        m = m0 + tl.arange(0, BLOCK_M)
        dlse = tl.load(dlse_ptr + b * stride_lb + h * stride_lh + m * stride_lm, mask=m < M, other=0.0)
        delta -= dlse * 1.4426950408889634
    return delta
