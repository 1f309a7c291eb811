"""Gated recurrent attention, one token after the other: forward, one token's step, and backward.

    S_t = D_t * S_{t-1} + k_t v_t^T,        o_t = c S_t^T q_t,        D_t = exp(g_t + gamma + gk_t 1^T + 1 gv_t^T)

A program owns BV columns of one head's state, all K rows of them. A column of S needs no other column, so the sum over K
that makes o is complete within the program, and there are many programs. Tokens follow each other, so what counts is the
time of one step: the rows of token t + 1 are asked for before token t is computed, and addresses move on by one addition.

The backward pass is the same loop from the last token to the first, C tokens at a time, nothing subtracted.

Gamma and Phi are the log-decays of the state's rows and columns, summed from a block's first token on; S is the state that
enters the block, Z the costate (the gradient at the state) that enters it from behind. P_rs = do_r . v_s e^{Phi_r - Phi_s},
A_rs = c q_r e^{Gamma_r - Gamma_s} . k_s, and

    dq_r = c [ e^{Gamma_r} . S (do_r e^{Phi_r})                + sum_{s <= r} P_rs e^{Gamma_r - Gamma_s} . k_s ]
    dk_s = e^{Gamma_C - Gamma_s} . Z (v_s e^{Phi_C - Phi_s})    + sum_{r >= s} P_rs e^{Gamma_r - Gamma_s} . c q_r
    dv_s = e^{Phi_C - Phi_s} . Z^T (k_s e^{Gamma_C - Gamma_s})  + sum_{r >= s} A_rs e^{Phi_r - Phi_s} . do_r

The gradient of the gate at t is the sum over all paths that cross it, from a write at s < t to a read at r >= t. s and r may
each lie in the block or outside, which makes four sums. The published form takes the difference of two running sums instead,
and at a gate of -20 that difference has no right digit left.

Three kernels. ``states_kernel`` goes forward and keeps the state before every EVERY-th block. ``through_kernel`` goes back,
with BV columns of the costate in registers and the state advanced from the nearest that was kept: the terms through S and Z.
``pairs_kernel`` of ``pairs`` has a program for each block, and adds the pairs of tokens inside it. Sums over tiles of columns
have a fixed order.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.common.sequences import first_run, sequence_span
from kernels.recurrent_attention.tiles import load_state, store_state


class Through(NamedTuple):
    """What comes through the states at the blocks' edges: of dq / c, dk and dv; for gates also of o, and the paths that pass
    a whole block, for each row of the state (one number unless there is gk) and for each column."""

    dq: Any
    dk: Any
    dv: Any
    o: Any
    passing_k: Any
    passing_v: Any


class Parts(NamedTuple):
    """Partial sums: one for each tile of columns, of so many tokens, and of so many blocks."""

    tiles: int
    tokens: int
    blocks: int


@triton.jit
def row_at(ptr, strides, b, t, h, offs):
    """Where some components lie in a tensor [B, T, H, size]."""
    return ptr + b * strides.b + t * strides.t + h * strides.h + offs * strides.d


@triton.jit
def state_at(ptr, strides, n, h, offs_k, offs_v):
    """Where a tile lies in states [N, H, K, V]."""
    return ptr + n * strides.n + h * strides.h + offs_k[:, None] * strides.k + offs_v[None, :] * strides.v


@triton.jit
def load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v):
    """One token's rows and gates; a gate that is absent is 0."""
    q = tl.load(q_at, mask=mask_k, other=0.0)
    k = tl.load(k_at, mask=mask_k, other=0.0)
    v = tl.load(v_at, mask=mask_v, other=0.0)
    zero = tl.zeros([], tl.float32)
    g = tl.load(g_at) if g_at is not None else zero
    gk = tl.load(gk_at, mask=mask_k, other=0.0) if gk_at is not None else zero
    gv = tl.load(gv_at, mask=mask_v, other=0.0) if gv_at is not None else zero
    return q, k, v, g, gk, gv


@triton.jit
def decayed(S, g, gamma, gk, gv, gates):
    """D * S: the gates of a whole state and of its rows in one factor, those of its columns in another; ``gates`` says which
    there are."""
    if gates.gk is not None:
        S *= tl.exp(gk.to(tl.float32) + (g.to(tl.float32) + gamma))[:, None]
    elif gates.g is not None or gates.g_gamma is not None:
        S *= tl.exp(g.to(tl.float32) + gamma)
    if gates.gv is not None:
        S *= tl.exp(gv.to(tl.float32))[None, :]
    return S


@triton.jit
def recurrent_forward_kernel(
    q_ptr, k_ptr, v_ptr, gates, initial_ptr, cu_ptr, o_ptr, final_ptr,
    scale, T, H, group, tiles_v, q_strides, k_strides, v_strides, gate_strides, state_strides,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """A gate, a state or an output that does not exist is None; ``group`` query heads share a head of k and v."""
    pid = tl.program_id(0)
    nh = pid // tiles_v
    h = nh % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    row, begin, L = sequence_span((nh // H).to(tl.int64), T, cu_ptr, cu_ptr is not None)
    n = (nh // H).to(tl.int64)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V

    step = -1 if REVERSE else 1
    first = begin + (L - 1 if REVERSE else 0)
    q_at = row_at(q_ptr, q_strides, row, first, h, offs_k)
    k_at = row_at(k_ptr, k_strides, row, first, kv_head, offs_k)
    v_at = row_at(v_ptr, v_strides, row, first, kv_head, offs_v)
    o_at = o_ptr + ((row * T + first) * H + h) * V + offs_v
    g_at = None
    gk_at = None
    gv_at = None
    gamma = tl.zeros([], tl.float32)
    if gates.g is not None:
        g_at = gates.g + row * gate_strides.g.b + first * gate_strides.g.t + h * gate_strides.g.h
    if gates.g_gamma is not None:
        gamma = tl.load(gates.g_gamma + h * gate_strides.g_gamma.h).to(tl.float32)
    if gates.gk is not None:
        gk_at = row_at(gates.gk, gate_strides.gk, row, first, h, offs_k)
    if gates.gv is not None:
        gv_at = row_at(gates.gv, gate_strides.gv, row, first, h, offs_v)

    S = tl.zeros([BK, BV], tl.float32)
    mask_s = mask_k[:, None] & mask_v[None, :]
    if initial_ptr is not None:
        s_at = state_at(initial_ptr, state_strides, n, h, offs_k, offs_v)
        S = tl.load(s_at, mask=mask_s, other=0.0).to(tl.float32)

    if L > 0:
        q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)
        for t in range(L):
            q_t, k_t, v_t, g_t, gk_t, gv_t = q, k, v, g, gk, gv
            on = tl.where(t + 1 < L, step, 0)  # after the last token the last is loaded once more
            q_at += on * q_strides.t
            k_at += on * k_strides.t
            v_at += on * v_strides.t
            if gates.g is not None:
                g_at += on * gate_strides.g.t
            if gates.gk is not None:
                gk_at += on * gate_strides.gk.t
            if gates.gv is not None:
                gv_at += on * gate_strides.gv.t
            q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)

            S = decayed(S, g_t, gamma, gk_t, gv_t, gates)
            S += k_t.to(tl.float32)[:, None] * v_t.to(tl.float32)[None, :]
            o = tl.sum(q_t.to(tl.float32)[:, None] * S, 0) * scale
            tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=mask_v)
            o_at += step * H * V

    if final_ptr is not None:
        s_at = final_ptr + nh.to(tl.int64) * K * V + offs_k[:, None] * V + offs_v[None, :]
        tl.store(s_at, S, mask=mask_s)


@triton.jit
def recurrent_step_kernel(
    q_ptr, k_ptr, v_ptr, gates, state_ptr, slots_ptr, o_ptr,
    scale, H, group, tiles_v, q_strides, k_strides, v_strides, gate_strides, state_strides, stride_slots,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token: the state is read, decayed, written to, read by q, and stored where it was."""
    pid = tl.program_id(0)
    h = pid // tiles_v % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    b = (pid // tiles_v // H).to(tl.int64)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    g_at = None
    gk_at = None
    gv_at = None
    gamma = tl.zeros([], tl.float32)
    if gates.g is not None:
        g_at = gates.g + b * gate_strides.g.b + h * gate_strides.g.h
    if gates.g_gamma is not None:
        gamma = tl.load(gates.g_gamma + h * gate_strides.g_gamma.h).to(tl.float32)
    if gates.gk is not None:
        gk_at = row_at(gates.gk, gate_strides.gk, b, 0, h, offs_k)
    if gates.gv is not None:
        gv_at = row_at(gates.gv, gate_strides.gv, b, 0, h, offs_v)

    slot = tl.load(slots_ptr + b * stride_slots).to(tl.int64) if slots_ptr is not None else b
    there = slot >= 0  # else the row is padding
    s_at = state_at(state_ptr, state_strides, slot, h, offs_k, offs_v)
    mask_s = mask_k[:, None] & mask_v[None, :] & there
    S = tl.load(s_at, mask=mask_s, other=0.0)
    q, k, v, g, gk, gv = load_token(
        row_at(q_ptr, q_strides, b, 0, h, offs_k),
        row_at(k_ptr, k_strides, b, 0, kv_head, offs_k),
        row_at(v_ptr, v_strides, b, 0, kv_head, offs_v),
        g_at, gk_at, gv_at, mask_k, mask_v,
    )  # fmt: skip
    S = decayed(S, g, gamma, gk, gv, gates)
    S += k.to(tl.float32)[:, None] * v.to(tl.float32)[None, :]
    tl.store(s_at, S, mask=mask_s)
    o = tl.where(there, tl.sum(q.to(tl.float32)[:, None] * S, 0) * scale, 0.0)
    tl.store(o_ptr + (b * H + h) * V + offs_v, o.to(o_ptr.dtype.element_ty), mask=mask_v)


# Tiles of a block of tokens, one column a token, and the decays between its tokens. A decay is the exponential of a sum over
# the very gates that it spans. No sum is subtracted from another, so nothing cancels and nothing positive is exponentiated.
# Sums over some of the tokens are matrix products with zeros and ones.

# stands for gates below it, and for -inf: the exponential of any is 0, but 0 times this one is 0
LOWEST = tl.constexpr(-1e4)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """The matrix product of float32 tiles: in tensor cores, with as many of its operands' bits as PRECISION says."""
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def block_columns(begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr):
    """``(times, mask)``: time steps of the C tokens from ``first`` on, in the walk's direction, and which of them exist."""
    t = first + tl.arange(0, C)
    return begin + (L - 1 - t if REVERSE else t), t < L


@triton.jit
def load_columns(at, stride_t, times, mask_t, mask):
    """float32 [D, C]; ``at`` [D] points to the components of time 0."""
    tile = tl.load(at[:, None] + times[None, :] * stride_t, mask=mask[:, None] & mask_t[None, :], other=0.0)
    return tile.to(tl.float32)


@triton.jit
def store_columns(at, stride_t, times, mask_t, mask, tile):
    """The reverse of ``load_columns``."""
    at = at[:, None] + times[None, :] * stride_t
    tl.store(at, tile.to(at.dtype.element_ty), mask=mask[:, None] & mask_t[None, :])


@triton.jit
def load_scalar_gates(g_at, g_strides, gamma, times, mask_t):
    """Log-decays [C] from one gate a token; 0 where there is no token."""
    gates = tl.where(mask_t, gamma, 0.0)
    if g_at is not None:
        gates += tl.load(g_at + times * g_strides.t, mask=mask_t, other=0.0).to(tl.float32)
    return tl.maximum(gates, LOWEST)


@triton.jit
def load_gates(g_at, g_strides, gamma, gates_at, gates_strides, times, mask_t, mask):
    """Log-decays [D, C] from gates for components, and one a token for all of them; 0 where there is no token."""
    gates = load_columns(gates_at, gates_strides.t, times, mask_t, mask)
    return tl.maximum(gates + load_scalar_gates(g_at, g_strides, gamma, times, mask_t)[None, :], LOWEST)


@triton.jit
def decay(gates, crossed):
    """[D, C]: exp(sum of the gates u where crossed[u, t]). These sums have float32's bits, whatever other products have."""
    return tl.exp(tl.dot(gates, crossed.to(tl.float32), input_precision="tf32x3"))


@triton.jit
def decays_to_edges(
    g_at, g_strides, gamma, gates_at, gates_strides, mask, begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr
):  # fmt: skip
    """``(from_edge, to_edge, whole)``: decays from before the block to after token t, from there to its end, of all of it;
    [D, C], [D, C] and [D], or [1, C], [1, C] and [1]."""
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    if gates_at is not None:
        gates = load_gates(g_at, g_strides, gamma, gates_at, gates_strides, times, mask_t, mask)
        u = tl.arange(0, C)[:, None]
        t = tl.arange(0, C)[None, :]
        from_edge = decay(gates, u <= t)
        to_edge = decay(gates, u > t)
        whole = tl.exp(tl.sum(gates, 1))
    else:
        gates = load_scalar_gates(g_at, g_strides, gamma, times, mask_t)
        times, mask_t = block_columns(begin, L, first + 1, C, REVERSE)
        behind = load_scalar_gates(g_at, g_strides, gamma, times, mask_t & (tl.arange(0, C) < C - 1))
        from_edge = tl.exp(tl.cumsum(gates, 0))[None, :]
        to_edge = tl.exp(tl.cumsum(behind, 0, reverse=True))[None, :]
        whole = tl.exp(tl.sum(gates, 0))[None]
    return from_edge, to_edge, whole


@triton.jit
def decay_matrix(gates):
    """[C, C], from one gate a token [C]: exp(sum of gates s+1 ... r) for s <= r, else 0."""
    C: tl.constexpr = gates.shape[0]
    r = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]
    between = tl.cumsum(tl.where(r > s, gates[:, None], 0.0), 0)
    return tl.where(r >= s, tl.exp(between), 0.0)


@triton.jit
def sum_over(x, chosen, VECTOR: tl.constexpr, PRECISION: tl.constexpr):
    """sum_u x[:, u] over the u where chosen[u, t]: [D, C], or unless VECTOR over all components of x, too, [1, C]."""
    if VECTOR:
        sums = dot(x, chosen.to(tl.float32), PRECISION)
    else:
        sums = tl.sum(tl.where(chosen, tl.sum(x, 0)[:, None], 0.0), 0)[None, :]
    return sums


@triton.jit
def advance(
    S, k_at, k_strides, v_at, v_strides, g_at, gk_at, gv_at, gate_strides, gamma, mask_k, mask_v,
    begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state behind a block: e^{Gamma_C} . S . e^{Phi_C} + sum_s (k_s e^{Gamma_C - Gamma_s}) (v_s e^{Phi_C - Phi_s})^T."""
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    k = load_columns(k_at, k_strides.t, times, mask_t, mask_k)
    v = load_columns(v_at, v_strides.t, times, mask_t, mask_v)
    unused, to_edge, whole = decays_to_edges(
        g_at, gate_strides.g, gamma, gk_at, gate_strides.gk, mask_k, begin, L, first, C, REVERSE
    )
    S *= whole[:, None]
    k *= to_edge
    if gv_at is not None:
        unused, to_edge, whole = decays_to_edges(
            None, None, 0.0, gv_at, gate_strides.gv, mask_v, begin, L, first, C, REVERSE
        )
        S *= whole[None, :]
        v *= to_edge
    return S + dot(k, tl.trans(v), PRECISION)


@triton.jit
def states_kernel(
    k_ptr, v_ptr, gates, initial_ptr, cu_ptr, states_ptr,
    T, H, group, tiles_v, k_strides, v_strides, gate_strides, state_strides,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr,
    C: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """states[place, h]: the state before every EVERY-th block of C tokens."""
    pid = tl.program_id(0)
    h = pid // tiles_v % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    n = (pid // tiles_v // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = (pid % tiles_v).to(tl.int64) * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    k_at = row_at(k_ptr, k_strides, row, 0, kv_head, offs_k)
    v_at = row_at(v_ptr, v_strides, row, 0, kv_head, offs_v)
    g_at = None if gates.g is None else gates.g + row * gate_strides.g.b + h * gate_strides.g.h
    gk_at = None if gates.gk is None else row_at(gates.gk, gate_strides.gk, row, 0, h, offs_k)
    gv_at = None if gates.gv is None else row_at(gates.gv, gate_strides.gv, row, 0, h, offs_v)
    gamma = 0.0 if gates.g_gamma is None else tl.load(gates.g_gamma + h * gate_strides.g_gamma.h).to(tl.float32)

    S = tl.zeros([BK, BV], tl.float32)
    if initial_ptr is not None:
        at = state_at(initial_ptr, state_strides, n, h, offs_k, offs_v)
        S = tl.load(at, mask=mask_k[:, None] & mask_v[None, :], other=0.0).to(tl.float32)
    place = first_run(n, begin, T, C * EVERY, cu_ptr is not None)
    for checkpoint in range(tl.cdiv(L, C * EVERY)):
        store_state(states_ptr + ((place + checkpoint) * H + h) * K * V, offs_k, offs_v, K, V, S)
        for i in range(EVERY):
            S = advance(
                S, k_at, k_strides, v_at, v_strides, g_at, gk_at, gv_at, gate_strides, gamma,
                mask_k, mask_v, begin, L, (checkpoint * EVERY + i) * C, C, REVERSE, PRECISION,
            )  # fmt: skip


@triton.jit
def through_kernel(
    do_ptr, dfinal_ptr, q_ptr, k_ptr, v_ptr, gates, states_ptr, cu_ptr, through, dinitial_ptr,
    scale, T, H, group, parts, do_strides, dfinal_strides, q_strides, k_strides, v_strides, gate_strides,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr,
    C: tl.constexpr, EVERY: tl.constexpr, PRECISION: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The terms of dq / c, dk and dv through the states and costates at the blocks' edges, and the initial state's gradient.

    For gates also o as read from S, and the paths that pass a whole block: for each row of the state (passing_k; one number
    unless there is gk), for each column (passing_v). dq, dk and passing_k have a partial sum for each tile of columns.
    """
    pid = tl.program_id(0)
    tile = (pid % parts.tiles).to(tl.int64)
    h = pid // parts.tiles % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    n = (pid // parts.tiles // H).to(tl.int64)
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    offs_k = tl.arange(0, BK).to(tl.int64)
    offs_v = tile * BV + tl.arange(0, BV)
    mask_k = offs_k < K
    mask_v = offs_v < V
    q_at = row_at(q_ptr, q_strides, row, 0, h, offs_k)
    k_at = row_at(k_ptr, k_strides, row, 0, kv_head, offs_k)
    v_at = row_at(v_ptr, v_strides, row, 0, kv_head, offs_v)
    do_at = row_at(do_ptr, do_strides, row, 0, h, offs_v)
    g_at = None if gates.g is None else gates.g + row * gate_strides.g.b + h * gate_strides.g.h
    gk_at = None if gates.gk is None else row_at(gates.gk, gate_strides.gk, row, 0, h, offs_k)
    gv_at = None if gates.gv is None else row_at(gates.gv, gate_strides.gv, row, 0, h, offs_v)
    gamma = 0.0 if gates.g_gamma is None else tl.load(gates.g_gamma + h * gate_strides.g_gamma.h).to(tl.float32)
    head = row * T * H + h  # outputs are contiguous
    partial = tile * parts.tokens * H + head

    Z = tl.zeros([BK, BV], tl.float32)
    if dfinal_ptr is not None:
        at = state_at(dfinal_ptr, dfinal_strides, n, h, offs_k, offs_v)
        Z = tl.load(at, mask=mask_k[:, None] & mask_v[None, :], other=0.0).to(tl.float32)
    kept = first_run(n, begin, T, C * EVERY, cu_ptr is not None)
    place = first_run(n, begin, T, C, cu_ptr is not None)
    blocks = tl.cdiv(L, C)
    for back in tl.range(blocks, disable_licm=True):  # else every address in shared memory is kept in a register
        block = blocks - 1 - back
        S = load_state(states_ptr + ((kept + block // EVERY) * H + h) * K * V, offs_k, offs_v, K, V)
        for i in range(block // EVERY * EVERY, block):
            S = advance(
                S, k_at, k_strides, v_at, v_strides, g_at, gk_at, gv_at, gate_strides, gamma,
                mask_k, mask_v, begin, L, i * C, C, REVERSE, PRECISION,
            )  # fmt: skip

        first = block * C
        times, mask_t = block_columns(begin, L, first, C, REVERSE)
        q = load_columns(q_at, q_strides.t, times, mask_t, mask_k)
        k = load_columns(k_at, k_strides.t, times, mask_t, mask_k)
        v = load_columns(v_at, v_strides.t, times, mask_t, mask_v)
        do = load_columns(do_at, do_strides.t, times, mask_t, mask_v)
        q_from, k_to, whole = decays_to_edges(
            g_at, gate_strides.g, gamma, gk_at, gate_strides.gk, mask_k, begin, L, first, C, REVERSE
        )
        q *= q_from * scale
        k *= k_to
        Z_before = Z * whole[:, None]
        if gates.gv is not None:
            o_from, v_to, whole = decays_to_edges(
            None, None, 0.0, gv_at, gate_strides.gv, mask_v, begin, L, first, C, REVERSE
        )
            do *= o_from
            v *= v_to
            Z_before *= whole[None, :]

        store_columns(through.dq + partial * K + offs_k, H * K, times, mask_t, mask_k, q_from * dot(S, do, PRECISION))
        store_columns(through.dk + partial * K + offs_k, H * K, times, mask_t, mask_k, k_to * dot(Z, v, PRECISION))
        dv = dot(tl.trans(Z), k, PRECISION)
        if gates.gv is not None:
            dv *= v_to
        store_columns(through.dv + head * V + offs_v, H * V, times, mask_t, mask_v, dv)
        if through.passing_k is not None:
            passing = tl.sum(S * Z_before, 1)
            index = (tile * parts.blocks + place + block) * H + h
            if gates.gk is not None:
                tl.store(through.passing_k + index * K + offs_k, passing, mask=mask_k)
            else:
                tl.store(through.passing_k + index, tl.sum(passing, 0))
        if through.o is not None:
            o = o_from * dot(tl.trans(S), q, PRECISION)
            store_columns(through.o + head * V + offs_v, H * V, times, mask_t, mask_v, o)
            passing_v_at = through.passing_v + ((place + block) * H + h) * V + offs_v
            tl.store(passing_v_at, tl.sum(S * Z_before, 0), mask=mask_v)
        Z = Z_before + dot(q, tl.trans(do), PRECISION)

    if dinitial_ptr is not None:
        store_state(dinitial_ptr + (n * H + h) * K * V, offs_k, offs_v, K, V, Z)
