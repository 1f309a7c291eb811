"""What lesson 34 goes on with, made from notebooks/34_flex_attention_backward.ipynb: see this package."""

import triton
import triton.language as tl


def sink_backward(p, p_sink, dp, o, do, dlse):
    delta = (o * do).sum(1) - dlse
    dz = p * (dp - delta[:, None])
    dz_sink = -(p_sink * delta).sum()
    return dz, dz_sink


def causal_walk(J, M, BM, BN):
    first = J * BN // BM
    first_full = triton.cdiv((J + 1) * BN - 1, BM)
    end = triton.cdiv(M, BM)
    return first, first_full, end


@triton.jit
def to_query_bias(dz, h, m, n, sink_ptr):
    tl.atomic_add(sink_ptr + h // 2 * 64 + m, tl.sum(dz, 1)[:, None])
