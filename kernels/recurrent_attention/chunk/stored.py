"""Outputs where a head's state does not fit into registers: every chunk by itself, from the states that a walk has stored.

    o_t = c [ S^T (q_t e^{Gamma_t}) + sum_{s <= t} A_ts v_s ]

K components are taken in blocks, so that K sets how long a program takes and no longer what it holds.
"""

import triton
import triton.language as tl

from kernels.common.math import cdiv
from kernels.common.sequences import locate_run
from kernels.recurrent_attention.chunk.cut import of_scores
from kernels.recurrent_attention.chunk.decays import decay_matrix
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, store_rows
from kernels.recurrent_attention.tiles import load_state


@triton.jit
def _stored_outputs_kernel(
    q_ptr, k_ptr, v_ptr, gamma_ptr, resets_ptr, from_start_ptr, scores_ptr, states_ptr, o_ptr, sequence_of_chunk_ptr, cu_ptr,
    places, T, H, K, V, heads_per_k, heads_per_v, scale,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_v_b, stride_v_t, stride_v_h, stride_v_v,
    C: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    GATED: tl.constexpr, COUNTED: tl.constexpr, VECTOR: tl.constexpr,
    PACKED: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """BLOCK_V components of the outputs of ROWS tokens of a chunk of one head. With VECTOR, q comes decayed and the scores
    are made."""
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tiles_v * (C // ROWS)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * BLOCK_V
    start = pid % tiles // tiles_v * ROWS  # of the chunk's tokens
    place = (pid // tiles).to(tl.int64)  # of this chunk and head
    h = place % H
    n, b, begin, L, first = locate_run(pid // tiles // H, places, T, C, sequence_of_chunk_ptr, cu_ptr, PACKED)
    where = chunk_rows(begin, L, first + start, ROWS, REVERSE)
    row, rows, exists = chunk_rows(begin, L, first, C, REVERSE)
    before = row, rows, exists & (tl.arange(0, C) < start + ROWS)  # whom a token here may look at
    offs_v = start_v + tl.arange(0, BLOCK_V)
    q_base = q_ptr + b * stride_q_b + h * stride_q_h
    k_base = k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h
    v_base = v_ptr + b * stride_v_b + h // heads_per_v * stride_v_h
    head = b * T * H + h

    A = tl.zeros([ROWS, C], tl.float32)
    o = tl.zeros([ROWS, BLOCK_V], tl.float32)
    for start_k in range(0, K, BLOCK_K):
        q = load_rows(q_base, stride_q_t, stride_q_k, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        S = load_state(states_ptr + place * K * V, start_k + tl.arange(0, BLOCK_K), offs_v, K, V).to(DTYPE)
        o = tl.dot(q, S, o, input_precision=PRECISION)
        if not VECTOR:
            k = load_rows(k_base, stride_k_t, stride_k_k, before, start_k, K, BLOCK_K, DTYPE, WIDE)
            A = tl.dot(q, tl.trans(k), A, input_precision=PRECISION)
    v = load_rows(v_base, stride_v_t, stride_v_v, before, start_v, V, BLOCK_V, DTYPE, WIDE)
    if VECTOR:  # the scores hold the scale
        scores = load_rows(scores_ptr + head * C, H * C, 1, where, 0, C, C, DTYPE, False)
        o = tl.dot(scores, v, o * scale, input_precision=PRECISION)
    else:
        if GATED:
            o *= tl.load(from_start_ptr + place * C + start + tl.arange(0, ROWS))[:, None]
        scores = (A * decay_matrix(gamma_ptr, resets_ptr, place, start, ROWS, C, GATED, COUNTED)).to(DTYPE)
        o = tl.dot(scores, v, o, input_precision=PRECISION) * scale
    store_rows(o_ptr + head * V, H * V, where, start_v, V, o, BLOCK_V)


def stored_outputs(p, at, x, decays, states, o):
    """``o`` [B, T, H, V], filled.

    Args:
        p: the call's ``Cut``.
        at: its ``Places``.
        x: its ``Inputs``.
        decays: its ``Decays``.
        states: what enters every chunk, [chunks, H, K, V].
        o: where the outputs go.
    """
    q, k, v, (scores, _) = decays.q, decays.k, x.v, of_scores(decays.scores)

    def told():
        options = p.options("chunk_stored_outputs") | decays.switches()
        options |= {"ROWS": min(options.get("ROWS", p.C), p.C)}
        sizes = p.chunks, p.T, p.H, p.K, p.V, p.H // k.shape[2], p.H // v.shape[2], x.scale
        grid = (p.chunks * p.H * (p.C // options["ROWS"]) * cdiv(p.V, options["BLOCK_V"]),)
        return grid, (*sizes, *q.stride(), *k.stride(), *v.stride()), options

    x.launch(
        _stored_outputs_kernel, told,
        q, k, v, decays.gamma, decays.resets, decays.from_start, scores, states, o, at.chunks, at.cu_seqlens,
    )  # fmt: skip
    return o
