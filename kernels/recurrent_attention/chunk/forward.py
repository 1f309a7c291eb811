"""The chunked form, forward: C tokens at a time, so that everything but the decays is a matrix product.

With S the state that enters a chunk of C tokens, and Gamma and A as ``decays`` has them:

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T                              (the state that leaves it)
    o_t = c [ S^T (q_t e^{Gamma_t}) + sum_{s <= t} A_ts v_s ]

Only differences <= 0 are exponentiated.

The states that enter every chunk or run come first, with their gradients, which the backward pass has: loops over time of
tiles of a state. A sequence of several runs has two loops: for what each run adds, which is chained, and from the states that
this gives.
"""

import triton
import triton.language as tl

from kernels.common.sequences import first_run, locate_run, sequence_span
from kernels.recurrent_attention.chunk.decays import decay_matrix
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, locate_chunk, store_rows
from kernels.recurrent_attention.plain import head_at, load_state, own_at, store_state, zeros


@triton.jit
def chunk_decay_of(decays, place, offs_k, K, exists):
    """e^{Gamma_C} of a chunk of a head, or of each of its key components; without gates, or where it does not exist, 1."""
    if decays.scores is not None:
        whole = tl.load(decays.chunk_decay + place * K + offs_k, mask=exists & (offs_k < K), other=1.0)
    elif decays.from_start is not None:
        whole = tl.load(decays.chunk_decay + place, mask=exists, other=1.0)
    else:
        whole = 1.0
    return whole


@triton.jit
def own_state_tile(pid, sizes, TILE: tl.constexpr):
    """``(sequence or run, head, first key and value component)`` of a program."""
    tiles_v = tl.cdiv(sizes.V, TILE.BLOCK_V)
    tiles = tl.cdiv(sizes.K, TILE.BLOCK_K) * tiles_v
    tile = pid % tiles
    h = (pid // tiles % sizes.H).to(tl.int64)
    return pid // tiles // sizes.H, h, tile // tiles_v * TILE.BLOCK_K, tile % tiles_v * TILE.BLOCK_V


@triton.jit
def loop_over_run(
    pid, x_ptr, y_ptr, decays, states, packing, scale, runs, sizes, strides, TILE: tl.constexpr, COSTATE: tl.constexpr
):
    """A tile of the state over one run of tokens, chunk by chunk.

    A state goes forward in time: S' = e^{Gamma_C} . S + sum_s k_s (v_s e^{Gamma_C - Gamma_s})^T with x = k, y = v.
    A costate (the gradient at a state) goes back: the same with x = q, y = do and the factor c e^{Gamma_t}.
    """
    T, H, K, V, heads_k, heads_v = sizes
    C: tl.constexpr = TILE.C
    BLOCK_K: tl.constexpr = TILE.BLOCK_K
    VECTOR: tl.constexpr = decays.scores is not None
    PACKED: tl.constexpr = packing.cu is not None
    r, h, start_k, start_v = own_state_tile(pid, sizes, TILE)
    n, b, begin, L, run_first = locate_run(r, runs.count, T, runs.size, packing.runs, packing.cu, PACKED)
    offs_k = start_k + tl.arange(0, TILE.BLOCK_K)
    offs_v = start_v + tl.arange(0, TILE.BLOCK_V)
    index = n if TILE.ONE_RUN else r.to(tl.int64)

    S = zeros(TILE.BLOCK_K, TILE.BLOCK_V)
    if states.start is not None:
        S = load_state(states.start + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    total = tl.zeros([BLOCK_K], tl.float32) + 1.0  # the decay of the whole run
    x_at = head_at(x_ptr, strides.q, b, h) if COSTATE else head_at(x_ptr, strides.k, b, h // heads_k)
    y_at = head_at(y_ptr, strides.do, b, h) if COSTATE else head_at(y_ptr, strides.v, b, h // heads_v)
    places = first_run(n, begin, T, C, PACKED)  # of the sequence's chunks
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, runs.size), 0), C).to(tl.int32)
    towards = -C if COSTATE else C
    # A chunk's decay is asked for a step ahead: there is no product between its load and its use to wait behind. A loop of
    # one gate a token that stores nothing on its way was measured to be faster without.
    AHEAD: tl.constexpr = states.each is not None or VECTOR
    first = run_first + ((chunks - 1) * C if COSTATE else 0)
    if AHEAD:
        coming = chunk_decay_of(decays, (places + first // C) * H + h, offs_k, K, chunks > 0)
    for step in range(chunks):
        if not AHEAD:
            first = run_first + ((chunks - 1 - step) if COSTATE else step) * C
        place = (places + first // C) * H + h
        if AHEAD:
            whole = coming
            after = (places + (first + towards) // C) * H + h
            coming = chunk_decay_of(decays, after, offs_k, K, step + 1 < chunks)
        if states.each is not None:
            store_state(states.each + place * K * V, offs_k, offs_v, K, V, S)
        where = chunk_rows(begin, L, first, C, TILE.REVERSE)
        x = load_rows(x_at, where, start_k, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
        y = load_rows(y_at, where, start_v, V, TILE.BLOCK_V, TILE.DTYPE, TILE.WIDE)
        if VECTOR:  # x is decayed already
            S *= whole[:, None]
            total *= whole
        elif decays.from_start is not None:
            factor_ptr = decays.from_start if COSTATE else decays.to_end
            factor = tl.load(factor_ptr + place * C + tl.arange(0, C))
            y = (y * factor[:, None]).to(TILE.DTYPE)
            if not AHEAD:
                whole = tl.load(decays.chunk_decay + place)
            S *= whole
            total *= whole
        product = tl.dot(tl.trans(x), y, input_precision=TILE.PRECISION)
        S += product * scale if COSTATE else product
        if AHEAD:
            first += towards
    if states.end is not None:
        # An empty run leaves nothing behind, but the run of an empty sequence hands its state through.
        if (run_first == 0) | (run_first < L):
            store_state(states.end + (index * H + h) * K * V, offs_k, offs_v, K, V, S)
            if not TILE.ONE_RUN:
                if start_v == 0:
                    tl.store(states.run_decay + (index * H + h) * K + offs_k, total, mask=offs_k < K)


@triton.jit
def states_kernel(
    k_ptr, v_ptr, q_ptr, do_ptr, decays, states, costates, packing, scale, runs, sizes, strides, TILE: tl.constexpr
):
    """The loop of the states and, with q, of the costates beside it: the second half of the programs."""
    COSTATES: tl.constexpr = q_ptr is not None
    pid = tl.program_id(0)
    half = tl.num_programs(0) // 2 if COSTATES else tl.num_programs(0)
    if pid < half:
        loop_over_run(pid, k_ptr, v_ptr, decays, states, packing, scale, runs, sizes, strides, TILE, False)
    # Not elif: one behind the other the two loops' pipelines are the same shared memory, as branches each has its own, and
    # half as many programs fit.
    if COSTATES:
        if pid >= half:
            loop_over_run(pid - half, q_ptr, do_ptr, decays, costates, packing, scale, runs, sizes, strides, TILE, True)


@triton.jit
def chain_runs(pid, runs_ptr, states, cu_ptr, RUN, sizes, TILE: tl.constexpr, COSTATE: tl.constexpr):
    """Chain the runs of a sequence: replace what each run adds to the state by the state that enters the run."""
    T, H, K, V, heads_k, heads_v = sizes
    n, h, start_k, start_v = own_state_tile(pid, sizes, TILE)
    n = n.to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    offs_k = start_k + tl.arange(0, TILE.BLOCK_K)
    offs_v = start_v + tl.arange(0, TILE.BLOCK_V)
    S = zeros(TILE.BLOCK_K, TILE.BLOCK_V)
    if states.start is not None:
        S = load_state(states.start + (n * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    count = tl.cdiv(L, RUN).to(tl.int32)
    run = first_run(n, begin, T, RUN, cu_ptr is not None)
    for step in range(count):
        r = run + ((count - 1 - step) if COSTATE else step)
        entering = runs_ptr + (r * H + h) * K * V
        added = load_state(entering, offs_k, offs_v, K, V)
        store_state(entering, offs_k, offs_v, K, V, S)
        S = S * tl.load(states.run_decay + (r * H + h) * K + offs_k, mask=offs_k < K, other=0.0)[:, None] + added
    if states.end is not None:
        store_state(states.end + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def chain_kernel(runs_ptr, coruns_ptr, states, costates, cu_ptr, RUN, sizes, TILE: tl.constexpr):
    """The chains of the states and, where they are given, of the costates beside them: the second half of the programs."""
    COSTATES: tl.constexpr = coruns_ptr is not None
    pid = tl.program_id(0)
    chains = tl.num_programs(0) // 2 if COSTATES else tl.num_programs(0)
    if pid < chains:
        chain_runs(pid, runs_ptr, states, cu_ptr, RUN, sizes, TILE, False)
    elif COSTATES:
        chain_runs(pid - chains, coruns_ptr, costates, cu_ptr, RUN, sizes, TILE, True)


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
