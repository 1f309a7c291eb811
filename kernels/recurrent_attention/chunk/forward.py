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
from kernels.recurrent_attention.chunk.rows import chunk_rows, head_at, load_rows, locate_chunk, own_at, store_rows
from kernels.recurrent_attention.tiles import load_state, store_state, zeros


@triton.jit
def outputs_kernel(
    q_ptr, k_ptr, v_ptr, decays, start_ptr, o_ptr, end_ptr, packing, scale, runs, sizes, strides, TILE: tl.constexpr
):
    """One run of one head for BLOCK_V value components: the state stays on chip from chunk to chunk."""
    T, H, K, V, heads_k, heads_v = sizes
    C: tl.constexpr = TILE.C
    VECTOR: tl.constexpr = decays.scores is not None
    tiles_v = tl.cdiv(V, TILE.BLOCK_V)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * TILE.BLOCK_V
    h = (pid // tiles_v % H).to(tl.int64)
    r = pid // tiles_v // H
    PACKED: tl.constexpr = packing.cu is not None
    n, b, begin, L, run_first = locate_run(r, runs.count, T, runs.size, packing.runs, packing.cu, PACKED)
    offs_c = tl.arange(0, C)
    offs_k = tl.arange(0, TILE.BLOCK_K)
    offs_v = start_v + tl.arange(0, TILE.BLOCK_V)
    index = n if TILE.ONE_RUN else r.to(tl.int64)

    S = zeros(TILE.BLOCK_K, TILE.BLOCK_V)
    if start_ptr is not None:
        S = load_state(start_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    q_at = head_at(q_ptr, strides.q, b, h)
    k_at = head_at(k_ptr, strides.k, b, h // heads_k)
    v_at = head_at(v_ptr, strides.v, b, h // heads_v)
    head = b * T * H + h
    places = first_run(n, begin, T, C, PACKED)  # of the sequence's chunks
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, runs.size), 0), C).to(tl.int32)
    for step in range(chunks):
        first = run_first + step * C
        place = (places + first // C) * H + h
        where = chunk_rows(begin, L, first, C, TILE.REVERSE)
        q = load_rows(q_at, where, 0, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
        k = load_rows(k_at, where, 0, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
        v = load_rows(v_at, where, start_v, V, TILE.BLOCK_V, TILE.DTYPE, TILE.WIDE)
        if VECTOR:
            scores = load_rows(own_at(decays.scores, head, H, C), where, 0, C, C, TILE.DTYPE)
        else:
            scores = tl.dot(q, tl.trans(k), input_precision=TILE.PRECISION)
            scores = (scores * decay_matrix(decays, place, 0, C, C)).to(TILE.DTYPE)
        o = tl.dot(q, S.to(TILE.DTYPE), input_precision=TILE.PRECISION)
        decayed_v = v
        if VECTOR:  # q and k are decayed already, and the scores hold the scale
            o *= scale
            S *= tl.load(decays.chunk_decay + place * K + offs_k, mask=offs_k < K, other=0.0)[:, None]
        elif decays.from_start is not None:
            o *= tl.load(decays.from_start + place * C + offs_c)[:, None]
            S *= tl.load(decays.chunk_decay + place)
            decayed_v = (v * tl.load(decays.to_end + place * C + offs_c)[:, None]).to(TILE.DTYPE)
        o = tl.dot(scores, v, o, input_precision=TILE.PRECISION)
        S = tl.dot(tl.trans(k), decayed_v, S, input_precision=TILE.PRECISION)
        store_rows(own_at(o_ptr, head, H, V), where, start_v, V, o if VECTOR else o * scale, TILE.BLOCK_V)
    if end_ptr is not None:
        if run_first == 0:
            store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def stored_outputs_kernel(
    q_ptr, k_ptr, v_ptr, decays, states_ptr, o_ptr, packing, scale, chunks, sizes, strides, TILE: tl.constexpr
):
    """BLOCK_V components of the outputs of ROWS tokens of a chunk of one head, from states that were stored: where a head's
    state does not fit into registers. K components are taken in blocks, so that K sets how long a program takes and no longer
    what it holds. With gates on components q comes decayed and the scores are made."""
    T, H, K, V, heads_k, heads_v = sizes
    C: tl.constexpr = TILE.C
    VECTOR: tl.constexpr = decays.scores is not None
    tiles_v = tl.cdiv(V, TILE.BLOCK_V)
    tiles = tiles_v * (C // TILE.ROWS)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * TILE.BLOCK_V
    start = pid % tiles // tiles_v * TILE.ROWS  # of the chunk's tokens
    place = (pid // tiles).to(tl.int64)  # of this chunk and head
    h = place % H
    b, begin, L, first, of_chunk = locate_chunk(pid // tiles // H, chunks, T, packing, TILE)
    row, rows, exists = of_chunk
    before = row, rows, exists & (tl.arange(0, C) < start + TILE.ROWS)  # whom a token here may look at
    where = chunk_rows(begin, L, first + start, TILE.ROWS, TILE.REVERSE)
    offs_v = start_v + tl.arange(0, TILE.BLOCK_V)
    q_at = head_at(q_ptr, strides.q, b, h)
    k_at = head_at(k_ptr, strides.k, b, h // heads_k)
    v_at = head_at(v_ptr, strides.v, b, h // heads_v)
    head = b * T * H + h

    A = zeros(TILE.ROWS, C)
    o = zeros(TILE.ROWS, TILE.BLOCK_V)
    for start_k in range(0, K, TILE.BLOCK_K):
        q = load_rows(q_at, where, start_k, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
        offs_k = start_k + tl.arange(0, TILE.BLOCK_K)
        S = load_state(states_ptr + place * K * V, offs_k, offs_v, K, V).to(TILE.DTYPE)
        o = tl.dot(q, S, o, input_precision=TILE.PRECISION)
        if not VECTOR:
            k = load_rows(k_at, before, start_k, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
            A = tl.dot(q, tl.trans(k), A, input_precision=TILE.PRECISION)
    v = load_rows(v_at, before, start_v, V, TILE.BLOCK_V, TILE.DTYPE, TILE.WIDE)
    if VECTOR:  # the scores hold the scale
        scores = load_rows(own_at(decays.scores, head, H, C), where, 0, C, C, TILE.DTYPE)
        o = tl.dot(scores, v, o * scale, input_precision=TILE.PRECISION)
    else:
        if decays.from_start is not None:
            o *= tl.load(decays.from_start + place * C + start + tl.arange(0, TILE.ROWS))[:, None]
        scores = (A * decay_matrix(decays, place, start, TILE.ROWS, C)).to(TILE.DTYPE)
        o = tl.dot(scores, v, o, input_precision=TILE.PRECISION) * scale
    store_rows(own_at(o_ptr, head, H, V), where, start_v, V, o, TILE.BLOCK_V)
