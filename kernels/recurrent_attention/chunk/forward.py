"""The chunked form, forward: C tokens at a time, so that everything but the decays is a matrix product.

With S the state that enters a chunk of C tokens, and Gamma and A as ``decays`` has them:

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T                              (the state that leaves it)
    o_t = c [ S^T (q_t e^{Gamma_t}) + sum_{s <= t} A_ts v_s ]

Only differences <= 0 are exponentiated.
"""

import torch
import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.common.math import cdiv, strides
from kernels.common.sequences import first_run, locate_run, sequence_span
from kernels.recurrent_attention.chunk.cut import Places
from kernels.recurrent_attention.chunk.decays import decay_matrix, prepare
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, store_rows
from kernels.recurrent_attention.chunk.stored import stored_outputs
from kernels.recurrent_attention.tiles import load_state, store_state


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
    for step in range(chunks):
        first = run_first + ((chunks - 1 - step) if COSTATE else step) * C
        place = (places + first // C) * H + h
        if EACH:
            store_state(each_ptr + place * K * V, offs_k, offs_v, K, V, S)
        where = chunk_rows(begin, L, first, C, REVERSE)
        x = load_rows(x_base, stride_x_t, stride_x_k, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        y = load_rows(y_base, stride_y_t, stride_y_v, where, start_v, V, BLOCK_V, DTYPE, WIDE)
        if VECTOR:  # x is decayed already
            whole = tl.load(chunk_decay_ptr + place * K + offs_k, mask=offs_k < K, other=0.0)
            S *= whole[:, None]
            total *= whole
        elif GATED:
            factor = tl.load(row_decay_ptr + place * C + tl.arange(0, C))
            y = (y * factor[:, None]).to(DTYPE)
            whole = tl.load(chunk_decay_ptr + place)
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
    elif COSTATES:
        walk_run(
            pid - walks, q_ptr, do_ptr, from_start_ptr, chunk_decay_ptr, costart_ptr, coeach_ptr, coend_ptr, corun_decay_ptr,
            sequence_of_run_ptr, cu_ptr, runs, T, RUN, H, K, V, 1, 1, scale,
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


@triton.jit
def _outputs_kernel(
    q_ptr, k_ptr, v_ptr, gamma_ptr, resets_ptr, from_start_ptr, to_end_ptr, scores_ptr, chunk_decay_ptr, start_ptr, o_ptr,
    end_ptr, sequence_of_run_ptr, cu_ptr, runs, T, RUN, H, K, V, heads_per_k, heads_per_v, scale,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_v_b, stride_v_t, stride_v_h, stride_v_v,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    GATED: tl.constexpr, COUNTED: tl.constexpr, VECTOR: tl.constexpr, ONE_RUN: tl.constexpr, START: tl.constexpr,
    END: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One run of one head for BLOCK_V value components: the state stays on chip from chunk to chunk."""
    tiles_v = tl.cdiv(V, BLOCK_V)
    pid = tl.program_id(0)
    start_v = pid % tiles_v * BLOCK_V
    h = (pid // tiles_v % H).to(tl.int64)
    r = pid // tiles_v // H
    n, b, begin, L, run_first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, PACKED)
    offs_c = tl.arange(0, C)
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = start_v + tl.arange(0, BLOCK_V)
    index = n if ONE_RUN else r.to(tl.int64)

    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if START:
        S = load_state(start_ptr + (index * H + h) * K * V, offs_k, offs_v, K, V).to(tl.float32)
    q_base = q_ptr + b * stride_q_b + h * stride_q_h
    k_base = k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h
    v_base = v_ptr + b * stride_v_b + h // heads_per_v * stride_v_h
    places = first_run(n, begin, T, C, PACKED)  # of the sequence's chunks
    chunks = tl.cdiv(tl.maximum(tl.minimum(L - run_first, RUN), 0), C).to(tl.int32)
    for step in range(chunks):
        first = run_first + step * C
        place = (places + first // C) * H + h
        where = chunk_rows(begin, L, first, C, REVERSE)
        q = load_rows(q_base, stride_q_t, stride_q_k, where, 0, K, BLOCK_K, DTYPE, WIDE)
        k = load_rows(k_base, stride_k_t, stride_k_k, where, 0, K, BLOCK_K, DTYPE, WIDE)
        v = load_rows(v_base, stride_v_t, stride_v_v, where, start_v, V, BLOCK_V, DTYPE, WIDE)
        if VECTOR:
            scores = load_rows(scores_ptr + (b * T * H + h) * C, H * C, 1, where, 0, C, C, DTYPE, False)
        else:
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            scores = (scores * decay_matrix(gamma_ptr, resets_ptr, place, C, GATED, COUNTED)).to(DTYPE)
        o = tl.dot(q, S.to(DTYPE), input_precision=PRECISION)
        decayed_v = v
        if VECTOR:  # q and k are decayed already, and the scores hold the scale
            o *= scale
            S *= tl.load(chunk_decay_ptr + place * K + offs_k, mask=offs_k < K, other=0.0)[:, None]
        elif GATED:
            o *= tl.load(from_start_ptr + place * C + offs_c)[:, None]
            S *= tl.load(chunk_decay_ptr + place)
            decayed_v = (v * tl.load(to_end_ptr + place * C + offs_c)[:, None]).to(DTYPE)
        o = tl.dot(scores, v, o, input_precision=PRECISION)
        S = tl.dot(tl.trans(k), decayed_v, S, input_precision=PRECISION)
        store_rows(o_ptr + (b * T * H + h) * V, H * V, where, start_v, V, o if VECTOR else o * scale, BLOCK_V)
    if END:
        if run_first == 0:
            store_state(end_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, S)


def walk(p, at, decays, v, start, end, each=None, back=None):
    """States of every sequence, and costates in the same launches: those entering the chunks, those leaving the sequences.

    Args:
        p: the call's ``Cut``.
        at: its ``Places``.
        decays: its ``Decays``; the state grows by the outer products of their k and v.
        v: [B, T, heads, V].
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
    k = decays.k
    q, do, scale, costart, coend = (None, None, 1.0, None, False) if back is None else back
    sides = 1 if back is None else 2

    def new(wanted, count, dtype=torch.float32):
        wanted = (wanted,) if sides == 1 else wanted
        made = [torch.empty(count, p.H, p.K, p.V, dtype=dtype, device=k.device) if want else None for want in wanted]
        return made if sides == 2 else [*made, None]

    starts = [None if state is None else state.contiguous() for state in (start, costart)]
    states = new((each is not None,) * 2 if sides == 2 else each is not None, p.chunks, each or torch.float32)
    finals = new((end, coend) if sides == 2 else end, p.N)

    def launch_walk(starts, states, ends, run_decays):
        launch(
            _states_kernel, (sides * p.runs * p.H * tiles,),
            k, v, q, do, decays.to_end, decays.from_start, decays.chunk_decay, *starts, *states, *ends, *run_decays,
            at.runs, at.cu_seqlens,
            p.runs, p.T, p.RUN, p.H, p.K, p.V, p.H // k.shape[2], p.H // v.shape[2], scale,
            *k.stride(), *v.stride(), *strides(q), *strides(do),
            outputs=[t for t in (*states, *ends, *run_decays) if t is not None],
            COSTATES=sides == 2, ONE_RUN=p.one_run, GATED=decays.scalar(), VECTOR=decays.vector(), **options,
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
    launch(
        _chain_kernel, (sides * p.N * p.H * tiles,),
        *run_states, *run_decays, *starts, *finals, at.cu_seqlens, p.T, p.RUN, p.H, p.K, p.V,
        outputs=[t for t in (*run_states, *finals) if t is not None],
        BLOCK_K=options["BLOCK_K"], BLOCK_V=options["BLOCK_V"], COSTATES=sides == 2, PACKED=at.cu_seqlens is not None,
    )  # fmt: skip
    if each is None:
        return run_states[0], finals[0], None, None
    launch_walk(run_states, states, none, none)
    return states[0], finals[0], states[1], finals[1]


def forward(p, x, want_final):
    """Launch the chunked forward pass.

    Args:
        p: the call's ``ChunkPlan``.
        x: its ``Inputs``.
        want_final: whether the final state is wanted.

    Returns:
        ``(o [B, T, H, V] in q's dtype, final state [N, H, K, V] float32 or None, scores)``; with gates on components the
        scores [B, T, H, C] are worth keeping for the backward pass, else they are ``None``.
    """
    p = p.reaching(x.q, x.k, x.v, x.gates.gk)
    at = Places(p, x.cu_seqlens)
    o = torch.empty(p.B, p.T, p.H, p.V, dtype=x.q.dtype, device=x.q.device)
    if p.T == 0 or p.H == 0:
        return o, p.untouched(x.initial_state) if want_final else None, None
    decays = prepare(p, at, x)
    q, k, v = decays.q, decays.k, x.v
    start = None if x.initial_state is None else x.initial_state.contiguous()
    if p.stored:
        states, final, *_ = walk(p, at, decays, v, start, want_final, p.operands)
        return stored_outputs(p, at, decays, v, states, x.scale, o.dtype), final, decays.scores
    final = None
    if not p.one_run:
        start, final, *_ = walk(p, at, decays, v, start, want_final)
    elif want_final:
        final = torch.empty(p.N, p.H, p.K, p.V, dtype=torch.float32, device=q.device)
    options = p.options("chunk_outputs")
    launch(
        _outputs_kernel, (p.runs * p.H * cdiv(p.V, options["BLOCK_V"]),),
        q, k, v, decays.gamma, decays.resets, decays.from_start, decays.to_end, decays.scores, decays.chunk_decay, start,
        o, final,
        at.runs, at.cu_seqlens,
        p.runs, p.T, p.RUN, p.H, p.K, p.V, p.H // k.shape[2], p.H // v.shape[2], x.scale,
        *q.stride(), *k.stride(), *v.stride(),
        outputs=(o,) if final is None else (o, final),
        ONE_RUN=p.one_run, START=start is not None, END=p.one_run and want_final,
        GATED=decays.scalar(), COUNTED=decays.resets is not None, VECTOR=decays.vector(), **options,
    )  # fmt: skip
    return o, final, decays.scores
