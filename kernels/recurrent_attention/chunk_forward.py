"""The chunked form, forward: C tokens at a time, so that everything but the decays is a matrix product.

Inside a chunk of C tokens let Gamma_t be the log-decays summed from its first token to t, and S the state that enters it:

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T                                     (the state that leaves it)
    o_t = c [ S^T (q_t e^{Gamma_t}) + sum_{s <= t} A_ts v_s ],    A_ts = sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]}

Only differences <= 0 are exponentiated. One gate a token makes the decay a C x C matrix; a gate for every key component does
not factor, so a first kernel writes A and the decayed q and k, and what follows sees no gate but e^{Gamma_C}.
"""

import dataclasses

import torch
import triton
import triton.language as tl

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.launch import launch
from kernels.common.sequences import cut_into_runs, locate_run, sequence_span


@triton.jit
def chunk_rows(begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr):
    """The batch row's time steps of the chunk whose first token is ``first``, and which of them exist."""
    t = first + tl.arange(0, C)
    if REVERSE:
        return begin + L - 1 - t, t < L
    return begin + t, t < L


@triton.jit
def load_rows(base, stride_t, stride_d, rows, exists, start, size, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """A tile [C, BLOCK] of one head: components ``start`` to ``start + BLOCK`` of ``size``, zero where there is none."""
    offs_d = start + tl.arange(0, BLOCK)
    mask = exists[:, None] & (offs_d < size)[None, :]
    return tl.load(base + rows[:, None] * stride_t + offs_d[None, :] * stride_d, mask=mask, other=0.0).to(DTYPE)


@triton.jit
def store_rows(base, stride_t, rows, exists, start, size, values, BLOCK: tl.constexpr):
    """The reverse of ``load_rows``, for a tensor whose last dimension is contiguous."""
    offs_d = start + tl.arange(0, BLOCK)
    mask = exists[:, None] & (offs_d < size)[None, :]
    tl.store(base + rows[:, None] * stride_t + offs_d[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def scalar_decay(
    g_ptr, gamma_ptr, stride_g_b, stride_g_t, stride_g_h, stride_gamma, b, h, rows, exists,
    C: tl.constexpr, USE_G: tl.constexpr, USE_GAMMA: tl.constexpr,
):  # fmt: skip
    """Gamma [C], its last value, and the same two for the count of resets.

    A gate of -inf erases the state. It adds nothing to Gamma but one to the count, and a factor between tokens whose
    counts differ is zero: no infinity is ever subtracted from another.
    """
    log_decay = tl.zeros([C], tl.float32)
    if USE_G:
        log_decay += tl.load(g_ptr + b * stride_g_b + h * stride_g_h + rows * stride_g_t, mask=exists, other=0.0).to(tl.float32)
    if USE_GAMMA:
        log_decay += tl.where(exists, tl.load(gamma_ptr + h * stride_gamma).to(tl.float32), 0.0)
    reset = log_decay == float("-inf")
    gamma = tl.cumsum(tl.where(reset, 0.0, log_decay), 0)
    resets = tl.cumsum(reset.to(tl.int32), 0)
    last = tl.arange(0, C) == C - 1
    return gamma, tl.sum(tl.where(last, gamma, 0.0), 0), resets, tl.sum(tl.where(last, resets, 0), 0)


@triton.jit
def decay(difference, alive):
    """e^difference where no reset lies between, else 0."""
    return tl.exp(tl.where(alive, difference, float("-inf")))


@triton.jit
def decay_matrix(gamma, resets, C: tl.constexpr, GATED: tl.constexpr):
    """M_ts = e^{Gamma_t - Gamma_s} for s <= t, else 0."""
    t = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]
    if GATED:
        return decay(gamma[:, None] - gamma[None, :], (s <= t) & (resets[:, None] == resets[None, :]))
    return (s <= t).to(tl.float32)


@triton.jit
def load_state(base, offs_k, offs_v, K, V):
    """A tile of a contiguous state [K, V]."""
    mask = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    return tl.load(base + offs_k[:, None] * V + offs_v[None, :], mask=mask, other=0.0)


@triton.jit
def store_state(base, offs_k, offs_v, K, V, values):
    """The reverse of ``load_state``."""
    mask = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    tl.store(base + offs_k[:, None] * V + offs_v[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def place_of_chunk(n, begin, first, T, C: tl.constexpr, PACKED: tl.constexpr):
    """Where the chunk lies in the list that ``cut_into_runs(cu_seqlens, N, T, C)`` makes."""
    if PACKED:
        return begin // C + n + first // C
    return n * tl.cdiv(T, C) + first // C


@triton.jit
def _states_kernel(
    x_ptr, y_ptr, g_ptr, gamma_ptr, chunk_decay_ptr, start_ptr, each_ptr, end_ptr, run_decay_ptr, sequence_of_run_ptr, cu_ptr,
    runs, T, RUN, H, K, V, heads_per_x, heads_per_y, scale,
    stride_x_b, stride_x_t, stride_x_h, stride_x_k, stride_y_b, stride_y_t, stride_y_h, stride_y_v,
    stride_g_b, stride_g_t, stride_g_h, stride_gamma,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, VECTOR: tl.constexpr, COSTATE: tl.constexpr, ONE_RUN: tl.constexpr,
    START: tl.constexpr, EACH: tl.constexpr, END: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Walk a tile of the state over one run of tokens, chunk by chunk.

    A state goes forward in time: S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T with x = k, y = v.
    A costate (the gradient at a state) goes back: the same with x = q, y = do and the factor c e^{Gamma_t}.
    ``each`` takes what enters every chunk in the walk's direction, ``end`` what leaves the run.
    """
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_v
    pid = tl.program_id(0)
    tile = pid % tiles
    h = (pid // tiles % H).to(tl.int64)
    r = pid // tiles // H
    n, b, begin, L, run_first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, PACKED)
    start_k = tile // tiles_v * BLOCK_K
    start_v = tile % tiles_v * BLOCK_V
    offs_k = start_k + tl.arange(0, BLOCK_K)
    offs_v = start_v + tl.arange(0, BLOCK_V)
    index = n if ONE_RUN else r.to(tl.int64)

    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if START:
        S = load_state(start_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    total = tl.zeros([BLOCK_K], tl.float32) + 1.0  # the decay of the whole run
    x_base = x_ptr + b * stride_x_b + h // heads_per_x * stride_x_h
    y_base = y_ptr + b * stride_y_b + h // heads_per_y * stride_y_h
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, RUN), 0), C).to(tl.int32)
    for step in range(chunks):
        first = run_first + ((chunks - 1 - step) if COSTATE else step) * C
        place = place_of_chunk(n, begin, first, T, C, PACKED)
        if EACH:
            store_state(each_ptr + (place * H + h) * K * V, offs_k, offs_v, K, V, S)
        rows, exists = chunk_rows(begin, L, first, C, REVERSE)
        x = load_rows(x_base, stride_x_t, stride_x_k, rows, exists, start_k, K, BLOCK_K, DTYPE)
        y = load_rows(y_base, stride_y_t, stride_y_v, rows, exists, start_v, V, BLOCK_V, DTYPE)
        if VECTOR:  # x is decayed already
            whole = tl.load(chunk_decay_ptr + (place * H + h) * K + offs_k, mask=offs_k < K, other=0.0)
            S *= whole[:, None]
            total *= whole
        elif USE_G or USE_GAMMA:
            gamma, gamma_C, resets, resets_C = scalar_decay(
                g_ptr, gamma_ptr, stride_g_b, stride_g_t, stride_g_h, stride_gamma, b, h, rows, exists, C, USE_G, USE_GAMMA
            )  # fmt: skip
            if COSTATE:
                factor = decay(gamma, resets == 0)
            else:
                factor = decay(gamma_C - gamma, resets == resets_C)
            y = (y * factor[:, None]).to(DTYPE)
            whole = decay(gamma_C, resets_C == 0)
            S *= whole
            total *= whole
        product = tl.dot(tl.trans(x), y, input_precision=PRECISION)
        S += product * scale if COSTATE else product
    if END:
        # An empty run leaves nothing behind, but the run of an empty sequence hands its state through.
        if (run_first == 0) | (run_first < L):
            store_state(end_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V, S)
            if not ONE_RUN:
                if start_v == 0:
                    tl.store(run_decay_ptr + (index * H + h) * K + offs_k, total, mask=offs_k < K)


@triton.jit
def _chain_kernel(
    runs_ptr, run_decay_ptr, start_ptr, end_ptr, cu_ptr, T, RUN, H, K, V,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, COSTATE: tl.constexpr,
    START: tl.constexpr, END: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Chain the runs of a sequence: replace what each run adds to the state by the state that enters the run."""
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_v
    pid = tl.program_id(0)
    tile = pid % tiles
    h = (pid // tiles % H).to(tl.int64)
    n = (pid // tiles // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    offs_k = tile // tiles_v * BLOCK_K + tl.arange(0, BLOCK_K)
    offs_v = tile % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if START:
        S = load_state(start_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    count = tl.cdiv(L, RUN).to(tl.int32)
    if PACKED:
        first_run = begin // RUN + n
    else:
        first_run = n * count
    for step in range(count):
        r = first_run + ((count - 1 - step) if COSTATE else step)
        run = runs_ptr + (r * H + h) * K * V
        added = load_state(run, offs_k, offs_v, K, V)
        store_state(run, offs_k, offs_v, K, V, S)
        S = S * tl.load(run_decay_ptr + (r * H + h) * K + offs_k, mask=offs_k < K, other=0.0)[:, None] + added
    if END:
        store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def _outputs_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, gamma_ptr, scores_ptr, chunk_decay_ptr, start_ptr, o_ptr, end_ptr, sequence_of_run_ptr, cu_ptr,
    runs, T, RUN, H, K, V, heads_per_k, heads_per_v, scale,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_v_b, stride_v_t, stride_v_h, stride_v_v, stride_g_b, stride_g_t, stride_g_h, stride_gamma,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, VECTOR: tl.constexpr, ONE_RUN: tl.constexpr,
    START: tl.constexpr, END: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """One run of one head for BLOCK_V value components: the state stays on chip from chunk to chunk."""
    tiles_v = tl.cdiv(V, BLOCK_V)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * BLOCK_V
    h = (pid // tiles_v % H).to(tl.int64)
    r = pid // tiles_v // H
    n, b, begin, L, run_first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, PACKED)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = start_v + tl.arange(0, BLOCK_V)
    index = n if ONE_RUN else r.to(tl.int64)
    GATED: tl.constexpr = USE_G or USE_GAMMA

    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if START:
        S = load_state(start_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    q_base = q_ptr + b * stride_q_b + h * stride_q_h
    k_base = k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h
    v_base = v_ptr + b * stride_v_b + h // heads_per_v * stride_v_h
    o_base = o_ptr + (b * T * H + h) * V
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, RUN), 0), C).to(tl.int32)
    for step in range(chunks):
        first = run_first + step * C
        rows, exists = chunk_rows(begin, L, first, C, REVERSE)
        q = load_rows(q_base, stride_q_t, stride_q_k, rows, exists, 0, K, BLOCK_K, DTYPE)
        k = load_rows(k_base, stride_k_t, stride_k_k, rows, exists, 0, K, BLOCK_K, DTYPE)
        v = load_rows(v_base, stride_v_t, stride_v_v, rows, exists, start_v, V, BLOCK_V, DTYPE)
        o = tl.dot(q, S.to(DTYPE), input_precision=PRECISION)
        if VECTOR:  # q and k are decayed already
            place = place_of_chunk(n, begin, first, T, C, PACKED)
            scores = load_rows(scores_ptr + (b * T * H + h) * C, H * C, 1, rows, exists, 0, C, C, DTYPE)
            S *= tl.load(chunk_decay_ptr + (place * H + h) * K + offs_k, mask=offs_k < K, other=0.0)[:, None]
            decayed_v = v
        else:
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            if GATED:
                gamma, gamma_C, resets, resets_C = scalar_decay(
                    g_ptr, gamma_ptr, stride_g_b, stride_g_t, stride_g_h, stride_gamma, b, h, rows, exists, C, USE_G, USE_GAMMA
                )  # fmt: skip
                scores *= decay_matrix(gamma, resets, C, True)
                o *= decay(gamma, resets == 0)[:, None]
                S *= decay(gamma_C, resets_C == 0)
                decayed_v = (v * decay(gamma_C - gamma, resets == resets_C)[:, None]).to(DTYPE)
            else:
                scores *= decay_matrix(0, 0, C, False)
                decayed_v = v
        o += tl.dot(scores.to(DTYPE), v, input_precision=PRECISION)
        S += tl.dot(tl.trans(k), decayed_v, input_precision=PRECISION)
        store_rows(o_base, H * V, rows, exists, start_v, V, o * scale, BLOCK_V)
    if END:
        if run_first == 0:
            store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def load_gates(
    g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, rows, exists, K,
    SIZE: tl.constexpr, BLOCK_K: tl.constexpr, USE_G: tl.constexpr, USE_GAMMA: tl.constexpr,
):  # fmt: skip
    """The log-decays g + gamma + g^k of some rows, [SIZE, BLOCK_K], zero where there is none."""
    gates = load_rows(gk_base, stride_gk_t, stride_gk_k, rows, exists, 0, K, BLOCK_K, tl.float32)
    scalar = tl.zeros([SIZE], tl.float32)
    if USE_G:
        scalar += tl.load(g_base + rows * stride_g_t, mask=exists, other=0.0).to(tl.float32)
    if USE_GAMMA:
        scalar += tl.where(exists, gamma, 0.0)
    return gates + scalar[:, None]


@triton.jit
def subchunk(
    g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, t0, K,
    SUB: tl.constexpr, BLOCK_K: tl.constexpr, USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The SUB tokens from t0 on: ``(rows, exists, to_here, to_end, whole)``.

    Log-decays [SUB, BLOCK_K] from before the sub-chunk's first token to after token t (to_here), from after token t to
    after its last (to_end), and of all of it (whole, [BLOCK_K]). Both are sums of their own, so a gate of -inf is no trouble.
    """
    offs = tl.arange(0, SUB)
    rows, exists = chunk_rows(begin, L, t0, SUB, REVERSE)
    gates = load_gates(
        g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, rows, exists, K, SIZE=SUB, BLOCK_K=BLOCK_K,
        USE_G=USE_G, USE_GAMMA=USE_GAMMA,
    )  # fmt: skip
    next_rows, next_exists = chunk_rows(begin, L, t0 + 1, SUB, REVERSE)
    next_gates = load_gates(
        g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, next_rows, next_exists & (offs < SUB - 1), K, SIZE=SUB,
        BLOCK_K=BLOCK_K, USE_G=USE_G, USE_GAMMA=USE_GAMMA,
    )  # fmt: skip
    return rows, exists, tl.cumsum(gates, 0), tl.cumsum(next_gates, 0, reverse=True), tl.sum(gates, 0)


@triton.jit
def _prepare_kernel(
    q_ptr, k_ptr, g_ptr, gamma_ptr, gk_ptr, decayed_q_ptr, decayed_k_ptr, scores_ptr, chunk_decay_ptr,
    sequence_of_chunk_ptr, cu_ptr, places, T, H, K, heads_per_k,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_g_b, stride_g_t, stride_g_h, stride_gamma, stride_gk_b, stride_gk_t, stride_gk_h, stride_gk_k,
    C: tl.constexpr, SUB: tl.constexpr, BLOCK_K: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """For gates on key components: q_t e^{Gamma_t}, k_s e^{Gamma_C - Gamma_s}, e^{Gamma_C} and A, SUB rows a program.

    A against an earlier sub-chunk is a matrix product, with the start of the own one as the point where the exponent is cut
    in two: (q_t e^{Gamma_t - Gamma_ref}) . (k_s e^{Gamma_ref - Gamma_s}), both exponents <= 0. Against the own: element-wise.
    """
    SUBS: tl.constexpr = C // SUB
    pid = tl.program_id(0)
    m = pid % SUBS
    h = (pid // SUBS % H).to(tl.int64)
    place = pid // SUBS // H
    n, b, begin, L, first = locate_run(place, places, T, C, sequence_of_chunk_ptr, cu_ptr, PACKED)
    offs_k = tl.arange(0, BLOCK_K)
    offs_t = tl.arange(0, SUB)
    offs_c = tl.arange(0, C)
    q_base = q_ptr + b * stride_q_b + h * stride_q_h
    k_base = k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h
    g_base = g_ptr + b * stride_g_b + h * stride_g_h if USE_G else g_ptr
    gk_base = gk_ptr + b * stride_gk_b + h * stride_gk_h
    gamma = tl.load(gamma_ptr + h * stride_gamma).to(tl.float32) if USE_GAMMA else 0.0

    t0 = first + m * SUB
    rows, exists, to_here, to_end, whole = subchunk(
        g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, t0, K, SUB, BLOCK_K, USE_G, USE_GAMMA, REVERSE
    )  # fmt: skip
    q = load_rows(q_base, stride_q_t, stride_q_k, rows, exists, 0, K, BLOCK_K, tl.float32)
    k = load_rows(k_base, stride_k_t, stride_k_k, rows, exists, 0, K, BLOCK_K, tl.float32)
    q_from_start = (q * tl.exp(to_here)).to(DTYPE)

    # Earlier sub-chunks, from the nearest back; ``before`` is the log-decay of what lies between.
    scores = tl.zeros([SUB, C], tl.float32)
    before = tl.zeros([BLOCK_K], tl.float32)
    for back in range(m):
        j = m - 1 - back
        rows_j, exists_j, to_here_j, to_end_j, whole_j = subchunk(
            g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, begin, L, first + j * SUB, K, SUB, BLOCK_K,
            USE_G, USE_GAMMA, REVERSE,
        )  # fmt: skip
        k_j = load_rows(k_base, stride_k_t, stride_k_k, rows_j, exists_j, 0, K, BLOCK_K, tl.float32)
        k_j = (k_j * tl.exp(to_end_j + before[None, :])).to(DTYPE)
        block = tl.dot(q_from_start, tl.trans(k_j), input_precision=PRECISION)
        scores += spread(block, j * SUB, SUB, C)
        before += whole_j
    # The own sub-chunk, s from last to first: ``between`` is sum of the gates s+1..t, grown by one gate a step.
    between = tl.zeros([SUB, BLOCK_K], tl.float32)
    for back in range(SUB):
        s = SUB - 1 - back
        row_s, exists_s = chunk_rows(begin, L, t0 + s, 1, REVERSE)
        k_s = load_rows(k_base, stride_k_t, stride_k_k, row_s, exists_s, 0, K, BLOCK_K, tl.float32)  # [1, BLOCK_K]
        row_s, exists_s = chunk_rows(begin, L, t0 + s + 1, 1, REVERSE)
        next_gate = load_gates(
            g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, row_s, exists_s, K, 1, BLOCK_K, USE_G, USE_GAMMA
        )  # fmt: skip
        between = tl.where((offs_t > s)[:, None], between + next_gate, 0.0)
        column = tl.sum(q * (k_s * tl.exp(between)), 1)
        column = tl.where(offs_t >= s, column, 0.0)
        scores = tl.where((offs_c == m * SUB + s)[None, :], column[:, None], scores)
    store_rows(scores_ptr + (b * T * H + h) * C, H * C, rows, exists, 0, C, scores, C)

    after = tl.zeros([BLOCK_K], tl.float32)
    for j in range(m + 1, SUBS):
        rows_j, exists_j = chunk_rows(begin, L, first + j * SUB, SUB, REVERSE)
        after += tl.sum(
            load_gates(
                g_base, stride_g_t, gamma, gk_base, stride_gk_t, stride_gk_k, rows_j, exists_j, K, SUB, BLOCK_K, USE_G, USE_GAMMA
            ), 0,
        )  # fmt: skip
    offset = (b * T * H + h) * K
    store_rows(decayed_q_ptr + offset, H * K, rows, exists, 0, K, q * tl.exp(to_here + before[None, :]), BLOCK_K)
    store_rows(decayed_k_ptr + offset, H * K, rows, exists, 0, K, k * tl.exp(to_end + after[None, :]), BLOCK_K)
    if m == 0:
        tl.store(chunk_decay_ptr + (place.to(tl.int64) * H + h) * K + offs_k, tl.exp(whole + after), mask=offs_k < K)


@triton.jit
def spread(block, start, SUB: tl.constexpr, C: tl.constexpr):
    """[SUB, C] with ``block`` [SUB, SUB] in the columns from ``start`` on, zero elsewhere."""
    tiled = tl.reshape(tl.broadcast_to(block[:, None, :], [SUB, C // SUB, SUB]), [SUB, C])
    offs_c = tl.arange(0, C)
    return tl.where(((offs_c >= start) & (offs_c < start + SUB))[None, :], tiled, 0.0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a call is cut: into chunks for the matrix products, and into runs of chunks that are walked side by side."""

    B: int
    T: int
    H: int
    K: int
    V: int
    N: int
    C: int
    RUN: int
    runs: int
    one_run: bool
    sequence_of_run: torch.Tensor | None
    cu_seqlens: torch.Tensor | None
    size_class: str
    device: torch.device
    switches: dict  # what every kernel is told about the gates, the packing and the numbers' format

    def options(self, kernel):
        """Constexpr arguments of ``kernel``: switches and what the table of configurations says."""
        options = configuration("recurrent_attention", kernel, self.size_class, self.device)
        tiles = {"BLOCK_K": block(self.K), "BLOCK_V": block(self.V)}
        tiles = {name: min(size, options.get(name, size)) for name, size in tiles.items()}
        return self.switches | {"C": self.C} | options | tiles

    def untouched(self, state):
        """A fp32 copy of the state that no token changed; zeros where there is none."""
        if state is None:
            return torch.zeros(self.N, self.H, self.K, self.V, dtype=torch.float32, device=self.device)
        return state.to(torch.float32, copy=True).contiguous()

    def chunks(self):
        """``(number of chunks, sequence of each or None)``."""
        return cut_into_runs(self.cu_seqlens, self.N, self.T, self.C)


def block(size):
    """The tile that holds a whole dimension: a power of two, and no less than a matrix product takes."""
    return max(16, triton.next_power_of_2(size))


def plan(q, v, g, g_gamma, gk, reverse, cu_seqlens):
    """Cut the call. A sequence is one run when there are heads enough to fill the GPU, else several, chained afterwards."""
    B, T, H, K = q.shape
    V = v.shape[-1]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    bits = "16-bit" if q.element_size() == 2 else "32-bit"
    size_class = f"K{block(K)} V{block(V)} {bits}"
    table = configuration("recurrent_attention", "chunk", size_class, q.device)
    C = table["C"]
    wanted = triton.cdiv(table["runs"], max(N * H if cu_seqlens is None else H, 1))  # runs a sequence, or a head
    RUN = max(triton.cdiv(triton.cdiv(T, wanted), C), 1) * C
    one_run = RUN >= T
    runs, sequence_of_run = cut_into_runs(cu_seqlens, N, T, RUN)
    half = q.dtype == torch.bfloat16 and not runtime.interpreted
    if q.dtype == torch.float32:
        precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    else:
        precision = "tf32"  # as many bits as float16 has, with float32's range for what sums up
    switches = {
        "DTYPE": tl.bfloat16 if half else tl.float32,
        "PRECISION": precision,
        "USE_G": g is not None,
        "USE_GAMMA": g_gamma is not None,
        "PACKED": cu_seqlens is not None,
        "REVERSE": reverse,
    }
    return Plan(B, T, H, K, V, N, C, RUN, runs, one_run, sequence_of_run, cu_seqlens, size_class, q.device, switches)


def strides(tensor, ndim=4):
    """The strides of a tensor, or zeros for one that is not there."""
    return tensor.stride() if tensor is not None else (0,) * ndim


def walk(p, x, y, g, g_gamma, chunk_decay, start, scale, *, costate, each, end):
    """States (or costates) of every sequence: those entering the chunks, those leaving the sequences, or both.

    Args:
        p: the call's ``Plan``.
        x, y: [B, T, heads, K] and [B, T, heads, V]; the state grows by their outer products.
        g, g_gamma: scalar gates, or ``None``.
        chunk_decay: [chunks, H, K], e^{Gamma_C} where x is decayed already, or ``None``.
        start: state [N, H, K, V] before the first token (after the last, for costates), or ``None``.
        scale: factor of the outer products of costates.
        costate: walk back in time.
        each: dtype of the states that enter the chunks, or ``None`` where they are not wanted.
        end: whether the states that leave the sequences are wanted.

    Returns:
        ``(states [chunks, H, K, V] or None, final [N, H, K, V] float32 or None)``.
    """
    options = p.options("chunk_states")
    tiles = triton.cdiv(p.K, options["BLOCK_K"]) * triton.cdiv(p.V, options["BLOCK_V"])
    start = None if start is None else start.contiguous()
    places, _ = p.chunks()
    states = None if each is None else torch.empty(places, p.H, p.K, p.V, dtype=each, device=x.device)
    final = torch.empty(p.N, p.H, p.K, p.V, dtype=torch.float32, device=x.device) if end else None
    vector = chunk_decay is not None

    def launch_walk(start, states, end, run_decay):
        launch(
            _states_kernel, (p.runs * p.H * tiles,),
            x, y, g, g_gamma, chunk_decay, start, states, end, run_decay, p.sequence_of_run, p.cu_seqlens,
            p.runs, p.T, p.RUN, p.H, p.K, p.V, p.H // x.shape[2], p.H // y.shape[2], scale,
            *strides(x), *strides(y), *strides(g, 3), *strides(g_gamma, 1),
            outputs=[t for t in (states, end, run_decay) if t is not None],
            VECTOR=vector, COSTATE=costate, ONE_RUN=p.one_run,
            START=start is not None, EACH=states is not None, END=end is not None, **options,
        )  # fmt: skip

    if p.one_run:
        launch_walk(start, states, final, None)
        return states, final
    run_states = torch.empty(p.runs, p.H, p.K, p.V, dtype=torch.float32, device=x.device)
    run_decay = torch.empty(p.runs, p.H, p.K, dtype=torch.float32, device=x.device)
    launch_walk(None, None, run_states, run_decay)
    launch(
        _chain_kernel, (p.N * p.H * tiles,),
        run_states, run_decay, start, final, p.cu_seqlens, p.T, p.RUN, p.H, p.K, p.V,
        outputs=[run_states] if final is None else [run_states, final],
        BLOCK_K=options["BLOCK_K"], BLOCK_V=options["BLOCK_V"], COSTATE=costate,
        START=start is not None, END=end, PACKED=p.cu_seqlens is not None,
    )  # fmt: skip
    if each is not None:
        launch_walk(run_states, states, None, None)
        return states, final
    return run_states, final


def prepare(p, q, k, g, g_gamma, gk):
    """Decayed q and k [B, T, H, K], scores A [B, T, H, C] and the chunks' decays [chunks, H, K], for gates on components."""
    options = p.options("chunk_prepare")
    options.pop("BLOCK_V")
    places, sequence_of_chunk = p.chunks()
    stored = torch.float32 if options["DTYPE"] == tl.float32 else torch.bfloat16
    decayed_q, decayed_k = torch.empty(2, p.B, p.T, p.H, p.K, dtype=stored, device=q.device)
    scores = torch.empty(p.B, p.T, p.H, p.C, dtype=stored, device=q.device)
    chunk_decay = torch.empty(places, p.H, p.K, dtype=torch.float32, device=q.device)
    launch(
        _prepare_kernel, (places * p.H * (p.C // options["SUB"]),),
        q, k, g, g_gamma, gk, decayed_q, decayed_k, scores, chunk_decay, sequence_of_chunk, p.cu_seqlens,
        places, p.T, p.H, p.K, p.H // k.shape[2],
        *strides(q), *strides(k), *strides(g, 3), *strides(g_gamma, 1), *strides(gk),
        outputs=(decayed_q, decayed_k, scores, chunk_decay), **options,
    )  # fmt: skip
    return decayed_q, decayed_k, scores, chunk_decay


def forward(q, k, v, g, g_gamma, gk, scale, initial_state, output_final_state, reverse, cu_seqlens):
    """Launch the chunked forward pass; the arguments are checked by the operator.

    Returns:
        ``(o [B, T, H, V] in q's dtype, final state [N, H, K, V] float32 or None)``.
    """
    p = plan(q, v, g, g_gamma, gk, reverse, cu_seqlens)
    o = torch.empty(p.B, p.T, p.H, p.V, dtype=q.dtype, device=q.device)
    if p.T == 0:
        return o, p.untouched(initial_state) if output_final_state else None
    scores = chunk_decay = None
    if gk is not None:
        q, k, scores, chunk_decay = prepare(p, q, k, g, g_gamma, gk)
        g = g_gamma = None
    start = None if initial_state is None else initial_state.contiguous()
    final = None
    if not p.one_run:
        start, final = walk(
            p, k, v, g, g_gamma, chunk_decay, start, 1.0, costate=False, each=None, end=output_final_state
        )
    elif output_final_state:
        final = torch.empty(p.N, p.H, p.K, p.V, dtype=torch.float32, device=q.device)
    options = p.options("chunk_outputs") | {"USE_G": g is not None, "USE_GAMMA": g_gamma is not None}
    launch(
        _outputs_kernel, (p.runs * p.H * triton.cdiv(p.V, options["BLOCK_V"]),),
        q, k, v, g, g_gamma, scores, chunk_decay, start, o, final, p.sequence_of_run, p.cu_seqlens,
        p.runs, p.T, p.RUN, p.H, p.K, p.V, p.H // k.shape[2], p.H // v.shape[2], scale,
        *strides(q), *strides(k), *strides(v), *strides(g, 3), *strides(g_gamma, 1),
        outputs=(o,) if final is None else (o, final),
        VECTOR=scores is not None, ONE_RUN=p.one_run, START=start is not None, END=p.one_run and output_final_state,
        **options,
    )  # fmt: skip
    return o, final
