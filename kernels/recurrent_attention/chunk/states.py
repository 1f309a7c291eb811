"""The states that enter every chunk or run, forward, and their gradients, backward: tiles of a state walk along time.

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T

A sequence of several runs is walked twice: for what each run adds, which is chained, and from the states that this gives.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.common.sequences import first_run, locate_run, sequence_span
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows
from kernels.recurrent_attention.tiles import load_state, store_state


class Walked(NamedTuple):
    """What a walk of states begins with, what it leaves on its way, before each chunk, and at its end; how it decays."""

    start: Any = None
    each: Any = None
    end: Any = None
    run_decay: Any = None


@triton.jit
def chunk_decay_of(chunk_decay_ptr, place, offs_k, K, exists, GATED: tl.constexpr, VECTOR: tl.constexpr):
    """e^{Gamma_C} of a chunk of a head, or of each of its key components; without gates, or where it does not exist, 1."""
    if VECTOR:
        whole = tl.load(chunk_decay_ptr + place * K + offs_k, mask=exists & (offs_k < K), other=1.0)
    elif GATED:
        whole = tl.load(chunk_decay_ptr + place, mask=exists, other=1.0)
    else:
        whole = 1.0
    return whole


@triton.jit
def walk_run(
    pid, x_ptr, y_ptr, row_decay_ptr, chunk_decay_ptr, walked, sequence_of_run_ptr, cu_ptr,
    runs, T, RUN, H, K, V, heads_per_x, heads_per_y, scale, x_strides, y_strides,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    GATED: tl.constexpr, VECTOR: tl.constexpr, COSTATE: tl.constexpr, ONE_RUN: tl.constexpr, REVERSE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Walk a tile of the state over one run of tokens, chunk by chunk.

    A state goes forward in time: S' = e^{Gamma_C} . S + sum_s k_s (v_s e^{Gamma_C - Gamma_s})^T with x = k, y = v.
    A costate (the gradient at a state) goes back: the same with x = q, y = do and the factor c e^{Gamma_t}.
    """
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_v
    tile = pid % tiles
    h = (pid // tiles % H).to(tl.int64)
    r = pid // tiles // H
    n, b, begin, L, run_first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)
    start_k = tile // tiles_v * BLOCK_K
    start_v = tile % tiles_v * BLOCK_V
    offs_k = start_k + tl.arange(0, BLOCK_K)
    offs_v = start_v + tl.arange(0, BLOCK_V)
    index = n if ONE_RUN else r.to(tl.int64)

    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if walked.start is not None:
        S = load_state(walked.start + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    total = tl.zeros([BLOCK_K], tl.float32) + 1.0  # the decay of the whole run
    x_base = x_ptr + b * x_strides.b + h // heads_per_x * x_strides.h
    y_base = y_ptr + b * y_strides.b + h // heads_per_y * y_strides.h
    places = first_run(n, begin, T, C, cu_ptr is not None)  # of the sequence's chunks
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, RUN), 0), C).to(tl.int32)
    towards = -C if COSTATE else C
    # A chunk's decay is asked for a step ahead: there is no product between its load and its use to wait behind. A walk of
    # one gate a token that stores nothing on its way was measured to be faster without.
    AHEAD: tl.constexpr = walked.each is not None or VECTOR
    first = run_first + ((chunks - 1) * C if COSTATE else 0)
    if AHEAD:
        coming = chunk_decay_of(chunk_decay_ptr, (places + first // C) * H + h, offs_k, K, chunks > 0, GATED, VECTOR)
    for step in range(chunks):
        if not AHEAD:
            first = run_first + ((chunks - 1 - step) if COSTATE else step) * C
        place = (places + first // C) * H + h
        if AHEAD:
            whole = coming
            after = (places + (first + towards) // C) * H + h
            coming = chunk_decay_of(chunk_decay_ptr, after, offs_k, K, step + 1 < chunks, GATED, VECTOR)
        if walked.each is not None:
            store_state(walked.each + place * K * V, offs_k, offs_v, K, V, S)
        where = chunk_rows(begin, L, first, C, REVERSE)
        x = load_rows(x_base, x_strides.t, x_strides.d, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        y = load_rows(y_base, y_strides.t, y_strides.d, where, start_v, V, BLOCK_V, DTYPE, WIDE)
        if VECTOR:  # x is decayed already
            S *= whole[:, None]
            total *= whole
        elif GATED:
            factor = tl.load(row_decay_ptr + place * C + tl.arange(0, C))
            y = (y * factor[:, None]).to(DTYPE)
            if not AHEAD:
                whole = tl.load(chunk_decay_ptr + place)
            S *= whole
            total *= whole
        product = tl.dot(tl.trans(x), y, input_precision=PRECISION)
        S += product * scale if COSTATE else product
        if AHEAD:
            first += towards
    if walked.end is not None:
        # An empty run leaves nothing behind, but the run of an empty sequence hands its state through.
        if (run_first == 0) | (run_first < L):
            store_state(walked.end + (index * H + h) * K * V, offs_k, offs_v, K, V, S)
            if not ONE_RUN:
                if start_v == 0:
                    tl.store(walked.run_decay + (index * H + h) * K + offs_k, total, mask=offs_k < K)


@triton.jit
def states_kernel(
    k_ptr, v_ptr, q_ptr, do_ptr, decays, states, costates, sequence_of_run_ptr, cu_ptr,
    scale, runs, T, RUN, H, K, V, heads_per_k, heads_per_v, k_strides, v_strides, q_strides, do_strides,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    ONE_RUN: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The walk of the states and, with q, of the costates beside it: the second half of the programs."""
    COSTATES: tl.constexpr = q_ptr is not None
    GATED: tl.constexpr = decays.from_start is not None
    VECTOR: tl.constexpr = decays.scores is not None
    pid = tl.program_id(0)
    walks = tl.num_programs(0) // 2 if COSTATES else tl.num_programs(0)
    if pid < walks:
        walk_run(
            pid, k_ptr, v_ptr, decays.to_end, decays.chunk_decay, states, sequence_of_run_ptr, cu_ptr,
            runs, T, RUN, H, K, V, heads_per_k, heads_per_v, 1.0, k_strides, v_strides,
            C, BLOCK_K, BLOCK_V, DTYPE, PRECISION, GATED, VECTOR, False, ONE_RUN, REVERSE, WIDE,
        )  # fmt: skip
    # Not elif: one behind the other the two loops' pipelines are the same shared memory, as branches each has its own, and
    # half as many programs fit.
    if COSTATES:
        if pid >= walks:
            walk_run(
                pid - walks, q_ptr, do_ptr, decays.from_start, decays.chunk_decay, costates, sequence_of_run_ptr, cu_ptr,
                runs, T, RUN, H, K, V, 1, 1, scale, q_strides, do_strides,
                C, BLOCK_K, BLOCK_V, DTYPE, PRECISION, GATED, VECTOR, True, ONE_RUN, REVERSE, WIDE,
            )  # fmt: skip


@triton.jit
def chain_runs(
    pid, runs_ptr, run_decay_ptr, start_ptr, end_ptr, cu_ptr, T, RUN, H, K, V,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, COSTATE: tl.constexpr,
):  # fmt: skip
    """Chain the runs of a sequence: replace what each run adds to the state by the state that enters the run."""
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_v
    tile = pid % tiles
    h = (pid // tiles % H).to(tl.int64)
    n = (pid // tiles // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    offs_k = tile // tiles_v * BLOCK_K + tl.arange(0, BLOCK_K)
    offs_v = tile % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if start_ptr is not None:
        S = load_state(start_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    count = tl.cdiv(L, RUN).to(tl.int32)
    run = first_run(n, begin, T, RUN, cu_ptr is not None)
    for step in range(count):
        r = run + ((count - 1 - step) if COSTATE else step)
        entering = runs_ptr + (r * H + h) * K * V
        added = load_state(entering, offs_k, offs_v, K, V)
        store_state(entering, offs_k, offs_v, K, V, S)
        S = S * tl.load(run_decay_ptr + (r * H + h) * K + offs_k, mask=offs_k < K, other=0.0)[:, None] + added
    if end_ptr is not None:
        store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def chain_kernel(
    runs_ptr, coruns_ptr, run_decay_ptr, corun_decay_ptr, start_ptr, costart_ptr, end_ptr, coend_ptr, cu_ptr,
    T, RUN, H, K, V, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The chains of the states and, where they are given, of the costates beside them: the second half of the programs."""
    COSTATES: tl.constexpr = coruns_ptr is not None
    pid = tl.program_id(0)
    chains = tl.num_programs(0) // 2 if COSTATES else tl.num_programs(0)
    if pid < chains:
        chain_runs(pid, runs_ptr, run_decay_ptr, start_ptr, end_ptr, cu_ptr, T, RUN, H, K, V, BLOCK_K, BLOCK_V, False)
    elif COSTATES:
        chain_runs(
            pid - chains, coruns_ptr, corun_decay_ptr, costart_ptr, coend_ptr, cu_ptr, T, RUN, H, K, V, BLOCK_K, BLOCK_V, True
        )  # fmt: skip
