"""The chunked form, forward: C tokens at a time, so that everything but the decays is a matrix product.

With S the state that enters a chunk of C tokens, and Gamma and A as ``decays`` has them:

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T                              (the state that leaves it)
    o_t = c [ S^T (q_t e^{Gamma_t}) + sum_{s <= t} A_ts v_s ]

Only differences <= 0 are exponentiated.
"""

import triton
import triton.language as tl

from kernels.common.sequences import first_run, locate_run
from kernels.recurrent_attention.chunk.decays import decay_matrix
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, store_rows
from kernels.recurrent_attention.tiles import load_state, store_state


@triton.jit
def outputs_kernel(
    q_ptr, k_ptr, v_ptr, decays, start_ptr, o_ptr, end_ptr, sequence_of_run_ptr, cu_ptr,
    scale, runs, T, RUN, H, K, V, heads_per_k, heads_per_v, q_strides, k_strides, v_strides,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    ONE_RUN: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One run of one head for BLOCK_V value components: the state stays on chip from chunk to chunk."""
    VECTOR: tl.constexpr = decays.scores is not None
    tiles_v = tl.cdiv(V, BLOCK_V)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * BLOCK_V
    h = (pid // tiles_v % H).to(tl.int64)
    r = pid // tiles_v // H
    n, b, begin, L, run_first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)
    offs_c = tl.arange(0, C)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = start_v + tl.arange(0, BLOCK_V)
    index = n if ONE_RUN else r.to(tl.int64)

    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if start_ptr is not None:
        S = load_state(start_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    q_base = q_ptr + b * q_strides.b + h * q_strides.h
    k_base = k_ptr + b * k_strides.b + h // heads_per_k * k_strides.h
    v_base = v_ptr + b * v_strides.b + h // heads_per_v * v_strides.h
    places = first_run(n, begin, T, C, cu_ptr is not None)  # of the sequence's chunks
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, RUN), 0), C).to(tl.int32)
    for step in range(chunks):
        first = run_first + step * C
        place = (places + first // C) * H + h
        where = chunk_rows(begin, L, first, C, REVERSE)
        q = load_rows(q_base, q_strides.t, q_strides.d, where, 0, K, BLOCK_K, DTYPE, WIDE)
        k = load_rows(k_base, k_strides.t, k_strides.d, where, 0, K, BLOCK_K, DTYPE, WIDE)
        v = load_rows(v_base, v_strides.t, v_strides.d, where, start_v, V, BLOCK_V, DTYPE, WIDE)
        if VECTOR:
            scores = load_rows(decays.scores + (b * T * H + h) * C, H * C, 1, where, 0, C, C, DTYPE, False)
        else:
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            scores = (scores * decay_matrix(decays, place, 0, C, C)).to(DTYPE)
        o = tl.dot(q, S.to(DTYPE), input_precision=PRECISION)
        decayed_v = v
        if VECTOR:  # q and k are decayed already, and the scores hold the scale
            o *= scale
            S *= tl.load(decays.chunk_decay + place * K + offs_k, mask=offs_k < K, other=0.0)[:, None]
        elif decays.from_start is not None:
            o *= tl.load(decays.from_start + place * C + offs_c)[:, None]
            S *= tl.load(decays.chunk_decay + place)
            decayed_v = (v * tl.load(decays.to_end + place * C + offs_c)[:, None]).to(DTYPE)
        o = tl.dot(scores, v, o, input_precision=PRECISION)
        S = tl.dot(tl.trans(k), decayed_v, S, input_precision=PRECISION)
        store_rows(o_ptr + (b * T * H + h) * V, H * V, where, start_v, V, o if VECTOR else o * scale, BLOCK_V)
    if end_ptr is not None:
        if run_first == 0:
            store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def stored_outputs_kernel(
    q_ptr, k_ptr, v_ptr, decays, states_ptr, o_ptr, sequence_of_chunk_ptr, cu_ptr,
    scale, places, T, H, K, V, heads_per_k, heads_per_v, q_strides, k_strides, v_strides,
    C: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """BLOCK_V components of the outputs of ROWS tokens of a chunk of one head, from states that were stored: where a head's
    state does not fit into registers. K components are taken in blocks, so that K sets how long a program takes and no longer
    what it holds. With gates on components q comes decayed and the scores are made."""
    VECTOR: tl.constexpr = decays.scores is not None
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tiles_v * (C // ROWS)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * BLOCK_V
    start = pid % tiles // tiles_v * ROWS  # of the chunk's tokens
    place = (pid // tiles).to(tl.int64)  # of this chunk and head
    h = place % H
    n, b, begin, L, first = locate_run(pid // tiles // H, places, T, C, sequence_of_chunk_ptr, cu_ptr, cu_ptr is not None)
    where = chunk_rows(begin, L, first + start, ROWS, REVERSE)
    row, rows, exists = chunk_rows(begin, L, first, C, REVERSE)
    before = row, rows, exists & (tl.arange(0, C) < start + ROWS)  # whom a token here may look at
    offs_v = start_v + tl.arange(0, BLOCK_V)
    q_base = q_ptr + b * q_strides.b + h * q_strides.h
    k_base = k_ptr + b * k_strides.b + h // heads_per_k * k_strides.h
    v_base = v_ptr + b * v_strides.b + h // heads_per_v * v_strides.h
    head = b * T * H + h

    A = tl.zeros([ROWS, C], tl.float32)
    o = tl.zeros([ROWS, BLOCK_V], tl.float32)
    for start_k in range(0, K, BLOCK_K):
        q = load_rows(q_base, q_strides.t, q_strides.d, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        S = load_state(states_ptr + place * K * V, start_k + tl.arange(0, BLOCK_K), offs_v, K, V).to(DTYPE)
        o = tl.dot(q, S, o, input_precision=PRECISION)
        if not VECTOR:
            k = load_rows(k_base, k_strides.t, k_strides.d, before, start_k, K, BLOCK_K, DTYPE, WIDE)
            A = tl.dot(q, tl.trans(k), A, input_precision=PRECISION)
    v = load_rows(v_base, v_strides.t, v_strides.d, before, start_v, V, BLOCK_V, DTYPE, WIDE)
    if VECTOR:  # the scores hold the scale
        scores = load_rows(decays.scores + head * C, H * C, 1, where, 0, C, C, DTYPE, False)
        o = tl.dot(scores, v, o * scale, input_precision=PRECISION)
    else:
        if decays.from_start is not None:
            o *= tl.load(decays.from_start + place * C + start + tl.arange(0, ROWS))[:, None]
        scores = (A * decay_matrix(decays, place, start, ROWS, C)).to(DTYPE)
        o = tl.dot(scores, v, o, input_precision=PRECISION) * scale
    store_rows(o_ptr + head * V, H * V, where, start_v, V, o, BLOCK_V)
