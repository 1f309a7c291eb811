"""What several kernels do with a tile in registers: take a transposed one's logits, store one where TMA cannot."""

from kernels.common import gluon as common_gluon
from kernels.flex_attention.plain import logits

if common_gluon.gluon is not None:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl

    @gluon.jit
    def store_rows(x, ptr, b, h, m0, M, D: gl.constexpr, stride_b, stride_h, stride_m, stride_d):
        """Rows m0 ... of one head."""
        layout: gl.constexpr = x.type.layout
        offs_m = m0 + gl.arange(0, x.shape[0], gl.SliceLayout(1, layout))
        offs_d = gl.arange(0, x.shape[1], gl.SliceLayout(0, layout))
        base = ptr + b.to(gl.int64) * stride_b + h.to(gl.int64) * stride_h
        at = gl.expand_dims(offs_m.to(gl.int64) * stride_m, 1) + gl.expand_dims(offs_d.to(gl.int64) * stride_d, 0)
        mask = gl.expand_dims(offs_m < M, 1) & gl.expand_dims(offs_d < D, 0)
        gl.store(base + at, x.to(ptr.dtype.element_ty), mask=mask)

    @gluon.jit
    def transposed_logits(
        s, m0, offs_m, M, scale, b, h, n, score_tables, mask_tables,
        SCORE_MOD: gl.constexpr, MASK_MOD: gl.constexpr, EDGE_M: gl.constexpr,
    ):  # fmt: skip
        """``plain.logits`` of scores [keys, queries m0 ...], and the queries: for one behind the end, the last."""
        m = gl.expand_dims(m0 + offs_m, 0)
        inside = None
        if EDGE_M:
            inside = m < M
            m = gl.minimum(m, M - 1)
        return logits(s, scale, b, h, m, n, inside, score_tables, mask_tables, SCORE_MOD, MASK_MOD), m
