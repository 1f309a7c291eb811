"""The states that enter every chunk or run, forward, and their gradients, backward: tiles of a state walk along time.

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T

A sequence of several runs is walked twice: for what each run adds, which is chained, and from the states that this gives.
"""

import torch
import triton
import triton.language as tl

from kernels.common.math import cdiv, strides
from kernels.common.sequences import first_run, locate_run, sequence_span
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows
from kernels.recurrent_attention.tiles import load_state, store_state


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
    pid, x_ptr, y_ptr, row_decay_ptr, chunk_decay_ptr, start_ptr, each_ptr, end_ptr, run_decay_ptr, sequence_of_run_ptr,
    cu_ptr, runs, T, RUN, H, K, V, heads_per_x, heads_per_y, scale,
    stride_x_b, stride_x_t, stride_x_h, stride_x_k, stride_y_b, stride_y_t, stride_y_h, stride_y_v,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    GATED: tl.constexpr, VECTOR: tl.constexpr, COSTATE: tl.constexpr, ONE_RUN: tl.constexpr, START: tl.constexpr,
    EACH: tl.constexpr, END: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Walk a tile of the state over one run of tokens, chunk by chunk.

    A state goes forward in time: S' = e^{Gamma_C} . S + sum_s k_s (v_s e^{Gamma_C - Gamma_s})^T with x = k, y = v.
    A costate (the gradient at a state) goes back: the same with x = q, y = do and the factor c e^{Gamma_t}.
    ``each`` takes what enters every chunk in the walk's direction, ``end`` what leaves the run.
    """
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_v
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
    places = first_run(n, begin, T, C, PACKED)  # of the sequence's chunks
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, RUN), 0), C).to(tl.int32)
    towards = -C if COSTATE else C
    # A chunk's decay is asked for a step ahead: there is no product between its load and its use to wait behind. A walk of
    # one gate a token that stores nothing on its way was measured to be faster without.
    AHEAD: tl.constexpr = EACH or VECTOR
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
        if EACH:
            store_state(each_ptr + place * K * V, offs_k, offs_v, K, V, S)
        where = chunk_rows(begin, L, first, C, REVERSE)
        x = load_rows(x_base, stride_x_t, stride_x_k, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        y = load_rows(y_base, stride_y_t, stride_y_v, where, start_v, V, BLOCK_V, DTYPE, WIDE)
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
    if END:
        # An empty run leaves nothing behind, but the run of an empty sequence hands its state through.
        if (run_first == 0) | (run_first < L):
            store_state(end_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V, S)
            if not ONE_RUN:
                if start_v == 0:
                    tl.store(run_decay_ptr + (index * H + h) * K + offs_k, total, mask=offs_k < K)


@triton.jit
def _states_kernel(
    k_ptr, v_ptr, q_ptr, do_ptr, to_end_ptr, from_start_ptr, chunk_decay_ptr, start_ptr, costart_ptr, each_ptr, coeach_ptr,
    end_ptr, coend_ptr, run_decay_ptr, corun_decay_ptr, sequence_of_run_ptr, cu_ptr,
    runs, T, RUN, H, K, V, heads_per_k, heads_per_v, scale,
    stride_k_b, stride_k_t, stride_k_h, stride_k_k, stride_v_b, stride_v_t, stride_v_h, stride_v_v,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_do_b, stride_do_t, stride_do_h, stride_do_v,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    GATED: tl.constexpr, VECTOR: tl.constexpr, COSTATES: tl.constexpr, ONE_RUN: tl.constexpr,
    PACKED: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The walk of the states and, with COSTATES, of the costates beside it: the second half of the programs. A pointer that
    is None is a state that is not given, or one that is not wanted."""
    pid = tl.program_id(0)
    walks = tl.num_programs(0) // 2 if COSTATES else tl.num_programs(0)
    if pid < walks:
        walk_run(
            pid, k_ptr, v_ptr, to_end_ptr, chunk_decay_ptr, start_ptr, each_ptr, end_ptr, run_decay_ptr,
            sequence_of_run_ptr, cu_ptr, runs, T, RUN, H, K, V, heads_per_k, heads_per_v, 1.0,
            stride_k_b, stride_k_t, stride_k_h, stride_k_k, stride_v_b, stride_v_t, stride_v_h, stride_v_v,
            C, BLOCK_K, BLOCK_V, DTYPE, PRECISION, GATED, VECTOR, False, ONE_RUN, start_ptr is not None,
            each_ptr is not None, end_ptr is not None, PACKED, REVERSE, WIDE,
        )  # fmt: skip
    # Not elif: one behind the other the two loops' pipelines are the same shared memory, as branches each has its own, and
    # half as many programs fit.
    if COSTATES:
        if pid >= walks:
            walk_run(
                pid - walks, q_ptr, do_ptr, from_start_ptr, chunk_decay_ptr, costart_ptr, coeach_ptr, coend_ptr,
                corun_decay_ptr, sequence_of_run_ptr, cu_ptr, runs, T, RUN, H, K, V, 1, 1, scale,
                stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_do_b, stride_do_t, stride_do_h, stride_do_v,
                C, BLOCK_K, BLOCK_V, DTYPE, PRECISION, GATED, VECTOR, True, ONE_RUN, costart_ptr is not None,
                coeach_ptr is not None, coend_ptr is not None, PACKED, REVERSE, WIDE,
            )  # fmt: skip


@triton.jit
def chain_runs(
    pid, runs_ptr, run_decay_ptr, start_ptr, end_ptr, cu_ptr, T, RUN, H, K, V,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, COSTATE: tl.constexpr,
    START: tl.constexpr, END: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Chain the runs of a sequence: replace what each run adds to the state by the state that enters the run."""
    tiles_v = tl.cdiv(V, BLOCK_V)
    tiles = tl.cdiv(K, BLOCK_K) * tiles_v
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
    run = first_run(n, begin, T, RUN, PACKED)
    for step in range(count):
        r = run + ((count - 1 - step) if COSTATE else step)
        entering = runs_ptr + (r * H + h) * K * V
        added = load_state(entering, offs_k, offs_v, K, V)
        store_state(entering, offs_k, offs_v, K, V, S)
        S = S * tl.load(run_decay_ptr + (r * H + h) * K + offs_k, mask=offs_k < K, other=0.0)[:, None] + added
    if END:
        store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


@triton.jit
def _chain_kernel(
    runs_ptr, coruns_ptr, run_decay_ptr, corun_decay_ptr, start_ptr, costart_ptr, end_ptr, coend_ptr, cu_ptr,
    T, RUN, H, K, V, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, COSTATES: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The chains of the states and, with COSTATES, of the costates beside them: the second half of the programs."""
    pid = tl.program_id(0)
    chains = tl.num_programs(0) // 2 if COSTATES else tl.num_programs(0)
    if pid < chains:
        chain_runs(pid, runs_ptr, run_decay_ptr, start_ptr, end_ptr, cu_ptr, T, RUN, H, K, V, BLOCK_K, BLOCK_V, False,
                   start_ptr is not None, end_ptr is not None, PACKED)  # fmt: skip
    elif COSTATES:
        chain_runs(pid - chains, coruns_ptr, corun_decay_ptr, costart_ptr, coend_ptr, cu_ptr, T, RUN, H, K, V, BLOCK_K,
                   BLOCK_V, True, costart_ptr is not None, coend_ptr is not None, PACKED)  # fmt: skip


def walk(p, at, x, decays, start, end, each=None, back=None):
    """States of every sequence, and costates in the same launches: those entering the chunks, those leaving the sequences.

    Args:
        p: the call's ``Cut``.
        at: its ``Places``.
        x: its ``Inputs``.
        decays: its ``Decays``; the state grows by the outer products of their k and v.
        start: state [N, H, K, V] before the first token, or ``None``.
        end: whether the states that leave the sequences are wanted.
        each: dtype of the states that enter the chunks, or ``None`` where they are not wanted.
        back: the same of the costates, ``(q, do, scale, state's gradient behind the last token or None, end)``, or ``None``.

    Returns:
        ``(states, final, costates, cofinal)``: [chunks, H, K, V] and [N, H, K, V] float32, ``None`` where not wanted. Without
        ``each``, where a sequence is several runs, states [runs, H, K, V] are those that enter the runs.
    """
    options = p.options("chunk_states")
    tiles = cdiv(p.K, options["BLOCK_K"]) * cdiv(p.V, options["BLOCK_V"])
    k, v = decays.k, x.v
    q, do, scale, costart, coend = (None, None, 1.0, None, False) if back is None else back
    sides = 1 if back is None else 2

    def new(wanted, count, dtype=torch.float32):
        wanted = (wanted,) if sides == 1 else wanted
        made = [torch.empty(count, p.H, p.K, p.V, dtype=dtype, device=k.device) if want else None for want in wanted]
        return made if sides == 2 else [*made, None]

    starts = [None if state is None else state.contiguous() for state in (start, costart)]
    states = new((each is not None,) * 2 if sides == 2 else each is not None, p.chunks, each or torch.float32)
    finals = new((end, coend) if sides == 2 else end, p.N)

    def told():
        gated = {"GATED": decays.scalar(), "VECTOR": decays.vector()}
        sizes = p.runs, p.T, p.RUN, p.H, p.K, p.V, p.H // k.shape[2], p.H // v.shape[2], scale
        numbers = *sizes, *k.stride(), *v.stride(), *strides(q), *strides(do)
        meta = {"COSTATES": sides == 2, "ONE_RUN": p.one_run, **gated, **options}
        return (sides * p.runs * p.H * tiles,), numbers, meta

    def launch_walk(starts, states, ends, run_decays):
        x.launch(
            _states_kernel, told,
            k, v, q, do, decays.to_end, decays.from_start, decays.chunk_decay, *starts, *states, *ends, *run_decays,
            at.runs, at.cu_seqlens,
            which=run_decays is none,
        )  # fmt: skip

    none = None, None
    if p.one_run:
        launch_walk(starts, states, finals, none)
        return states[0], finals[0], states[1], finals[1]
    run_states = new((True, True) if sides == 2 else True, p.runs)
    run_decays = [
        None if t is None else torch.empty(p.runs, p.H, p.K, dtype=torch.float32, device=k.device) for t in run_states
    ]
    launch_walk(none, none, run_states, run_decays)

    def told_of_chains():
        meta = {name: options[name] for name in ("BLOCK_K", "BLOCK_V")}
        meta |= {"COSTATES": sides == 2, "PACKED": at.cu_seqlens is not None}
        return (sides * p.N * p.H * tiles,), (p.T, p.RUN, p.H, p.K, p.V), meta

    x.launch(
        _chain_kernel, told_of_chains, *run_states, *run_decays, *starts, *finals, at.cu_seqlens,
    )  # fmt: skip
    if each is None:
        return run_states[0], finals[0], None, None
    launch_walk(run_states, states, none, none)
    return states[0], finals[0], states[1], finals[1]
