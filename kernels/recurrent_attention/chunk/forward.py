"""The chunked form, forward: C tokens at a time, so that everything but the decays is a matrix product.

With S the state that enters a chunk of C tokens, and Gamma and A as ``decays`` has them:

    S' = e^{Gamma_C} . S + sum_s (k_s e^{Gamma_C - Gamma_s}) v_s^T                              (the state that leaves it)
    o_t = c [ S^T (q_t e^{Gamma_t}) + sum_{s <= t} A_ts v_s ]

Only differences <= 0 are exponentiated.
"""

import torch
import triton
import triton.language as tl

from kernels.common.math import cdiv
from kernels.common.sequences import clear_outside, first_run, locate_run
from kernels.recurrent_attention.chunk.cut import Places, of_scores
from kernels.recurrent_attention.chunk.decays import decay_matrix, prepare
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, store_rows
from kernels.recurrent_attention.chunk.states import walk
from kernels.recurrent_attention.chunk.stored import stored_outputs
from kernels.recurrent_attention.tiles import load_state, store_state


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
            scores = (scores * decay_matrix(gamma_ptr, resets_ptr, place, 0, C, C, GATED, COUNTED)).to(DTYPE)
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


def forward(p, x, want_final):
    """Launch the chunked forward pass.

    Args:
        p: the pass's ``Cut``.
        x: its ``Inputs``.
        want_final: whether the final state is wanted.

    Returns:
        ``(o [B, T, H, V] in q's dtype, final state [N, H, K, V] float32 or None, scores)``; with gates on components the
        scores, as ``new_scores`` has them, are worth keeping for the backward pass, else they are ``None``.
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
        states, final, *_ = walk(p, at, x, decays, start, want_final, p.operands)
        stored_outputs(p, at, x, decays, states, o)
        clear_outside(x.cu_seqlens, p.T, o)
        return o, final, decays.scores
    final = None
    if not p.one_run:
        start, final, *_ = walk(p, at, x, decays, start, want_final)
    elif want_final:
        final = torch.empty(p.N, p.H, p.K, p.V, dtype=torch.float32, device=q.device)

    def told():
        options = p.options("chunk_outputs") | decays.switches()
        options |= {"ONE_RUN": p.one_run, "START": start is not None, "END": p.one_run and want_final}
        sizes = p.runs, p.T, p.RUN, p.H, p.K, p.V, p.H // k.shape[2], p.H // v.shape[2], x.scale
        grid = (p.runs * p.H * cdiv(p.V, options["BLOCK_V"]),)
        return grid, (*sizes, *q.stride(), *k.stride(), *v.stride()), options

    x.launch(
        _outputs_kernel, told,
        q, k, v, decays.gamma, decays.resets, decays.from_start, decays.to_end, of_scores(decays.scores)[0],
        decays.chunk_decay, start, o, final, at.runs, at.cu_seqlens,
    )  # fmt: skip
    clear_outside(x.cu_seqlens, p.T, o)
    return o, final, decays.scores
