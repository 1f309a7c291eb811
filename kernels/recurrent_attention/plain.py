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

from collections import namedtuple

import triton
import triton.language as tl

from kernels.common.sequences import first_run, sequence_span
from kernels.recurrent_attention.tiles import load_state, store_state, zeros

#: What a kernel is compiled for: the K rows and V columns of a state, and those in a tile, BK and BV. Backward the tokens of
#: a block, C = 2^DIGITS, one state for EVERY few blocks, and the rows and columns of a slice.
Tile = namedtuple("Tile", "K V BK BV REVERSE C EVERY DIGITS SLICE_K SLICE_V PRECISION", defaults=(None,) * 9)

#: Tokens of a row, heads, how many of q share one of k, tiles of columns; backward also all rows' tokens and blocks, for each
#: of which there is a sum a tile.
Sizes = namedtuple("Sizes", "T H group tiles tokens blocks", defaults=(None, None))

#: What comes through the states at the blocks' edges: of dq / c, dk and dv; for gates also of o, and the paths that pass a
#: whole block, for each row of the state (one number unless there is gk) and for each column. The initial state's gradient.
Through = namedtuple("Through", "dq dk dv o passing_k passing_v dinitial")

#: In a kernel, the gates of one side of a head's state: one a token (where they begin, the step in time), a number that all
#: tokens have, and one a component (``columns_at``).
SideGates = namedtuple("SideGates", "g gamma components")


@triton.jit
def own_tile(sizes, TILE: tl.constexpr):
    """A program's sequence, head, head of k and v, tile of columns; its rows and columns, and which of them exist."""
    pid = tl.program_id(0)
    n = (pid // sizes.tiles // sizes.H).to(tl.int64)
    h = pid // sizes.tiles % sizes.H
    tile = (pid % sizes.tiles).to(tl.int64)
    offs_k = tl.arange(0, TILE.BK).to(tl.int64)
    offs_v = tile * TILE.BV + tl.arange(0, TILE.BV)
    return n, h.to(tl.int64), (h // sizes.group).to(tl.int64), tile, offs_k, offs_v, offs_k < TILE.K, offs_v < TILE.V


@triton.jit
def row_at(ptr, strides, b, t, h, offs):
    """Where some components lie in a tensor [B, T, H, size]."""
    return ptr + b * strides.b + t * strides.t + h * strides.h + offs * strides.d


@triton.jit
def state_at(ptr, strides, n, h, offs_k, offs_v):
    """Where a tile lies in states [N, H, K, V]."""
    return ptr + n * strides.n + h * strides.h + offs_k[:, None] * strides.k + offs_v[None, :] * strides.v


@triton.jit
def begin_state(ptr, strides, n, h, offs_k, offs_v, TILE: tl.constexpr):
    """The tile of a state that a loop begins with; zeros where there is none."""
    S = zeros(TILE.BK, TILE.BV)
    if ptr is not None:
        mask = (offs_k < TILE.K)[:, None] & (offs_v < TILE.V)[None, :]
        S = tl.load(state_at(ptr, strides, n, h, offs_k, offs_v), mask=mask, other=0.0).to(tl.float32)
    return S


@triton.jit
def load_gamma(gates, strides, h):
    """The gate that all tokens of a head have, 0 if there is none."""
    gamma = tl.zeros([], tl.float32)
    if gates.g_gamma is not None:
        gamma = tl.load(gates.g_gamma + h * strides.gates.g_gamma.h).to(tl.float32)
    return gamma


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
    q_ptr, k_ptr, v_ptr, gates, initial_ptr, cu_ptr, o_ptr, final_ptr, scale, sizes, strides, TILE: tl.constexpr
):
    """A gate, a state or an output that does not exist is None; ``group`` query heads share a head of k and v."""
    n, h, kv_head, tile, offs_k, offs_v, mask_k, mask_v = own_tile(sizes, TILE)
    row, begin, L = sequence_span(n, sizes.T, cu_ptr, cu_ptr is not None)
    step = -1 if TILE.REVERSE else 1
    first = begin + (L - 1 if TILE.REVERSE else 0)
    q_at = row_at(q_ptr, strides.q, row, first, h, offs_k)
    k_at = row_at(k_ptr, strides.k, row, first, kv_head, offs_k)
    v_at = row_at(v_ptr, strides.v, row, first, kv_head, offs_v)
    o_at = o_ptr + ((row * sizes.T + first) * sizes.H + h) * TILE.V + offs_v
    g_at = None if gates.g is None else row_at(gates.g, strides.gates.g, row, first, h, 0)
    gk_at = None if gates.gk is None else row_at(gates.gk, strides.gates.gk, row, first, h, offs_k)
    gv_at = None if gates.gv is None else row_at(gates.gv, strides.gates.gv, row, first, h, offs_v)
    gamma = load_gamma(gates, strides, h)
    S = begin_state(initial_ptr, strides.state, n, h, offs_k, offs_v, TILE)

    if L > 0:
        q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)
        for t in range(L):
            q_t, k_t, v_t, g_t, gk_t, gv_t = q, k, v, g, gk, gv
            on = tl.where(t + 1 < L, step, 0)  # after the last token the last is loaded once more
            q_at += on * strides.q.t
            k_at += on * strides.k.t
            v_at += on * strides.v.t
            if gates.g is not None:
                g_at += on * strides.gates.g.t
            if gates.gk is not None:
                gk_at += on * strides.gates.gk.t
            if gates.gv is not None:
                gv_at += on * strides.gates.gv.t
            q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)

            S = decayed(S, g_t, gamma, gk_t, gv_t, gates)
            S += k_t.to(tl.float32)[:, None] * v_t.to(tl.float32)[None, :]
            o = tl.sum(q_t.to(tl.float32)[:, None] * S, 0) * scale
            tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=mask_v)
            o_at += step * sizes.H * TILE.V

    if final_ptr is not None:
        nh = (tl.program_id(0) // sizes.tiles).to(tl.int64)
        store_state(final_ptr + nh * TILE.K * TILE.V, offs_k, offs_v, TILE.K, TILE.V, S)


@triton.jit
def recurrent_step_kernel(
    q_ptr, k_ptr, v_ptr, gates, state_ptr, slots_ptr, o_ptr, scale, sizes, strides, stride_slots, TILE: tl.constexpr
):
    """One token: the state is read, decayed, written to, read by q, and stored where it was."""
    b, h, kv_head, tile, offs_k, offs_v, mask_k, mask_v = own_tile(sizes, TILE)
    q_at = row_at(q_ptr, strides.q, b, 0, h, offs_k)
    k_at = row_at(k_ptr, strides.k, b, 0, kv_head, offs_k)
    v_at = row_at(v_ptr, strides.v, b, 0, kv_head, offs_v)
    g_at = None if gates.g is None else row_at(gates.g, strides.gates.g, b, 0, h, 0)
    gk_at = None if gates.gk is None else row_at(gates.gk, strides.gates.gk, b, 0, h, offs_k)
    gv_at = None if gates.gv is None else row_at(gates.gv, strides.gates.gv, b, 0, h, offs_v)

    slot = tl.load(slots_ptr + b * stride_slots).to(tl.int64) if slots_ptr is not None else b
    there = slot >= 0  # else the row is padding
    s_at = state_at(state_ptr, strides.state, slot, h, offs_k, offs_v)
    mask_s = mask_k[:, None] & mask_v[None, :] & there
    S = tl.load(s_at, mask=mask_s, other=0.0)
    q, k, v, g, gk, gv = load_token(q_at, k_at, v_at, g_at, gk_at, gv_at, mask_k, mask_v)
    S = decayed(S, g, load_gamma(gates, strides, h), gk, gv, gates)
    S += k.to(tl.float32)[:, None] * v.to(tl.float32)[None, :]
    tl.store(s_at, S, mask=mask_s)
    o = tl.where(there, tl.sum(q.to(tl.float32)[:, None] * S, 0) * scale, 0.0)
    tl.store(o_ptr + (b * sizes.H + h) * TILE.V + offs_v, o.to(o_ptr.dtype.element_ty), mask=mask_v)


# Tiles of a block of tokens, one column a token, and the decays between its tokens. A decay is the exponential of a sum over
# the very gates that it spans. No sum is subtracted from another, so nothing cancels and nothing positive is exponentiated.
# Sums over some of the tokens are matrix products with zeros and ones.

# stands for gates below it, and for -inf: the exponential of any is 0, but 0 times this one is 0
LOWEST = tl.constexpr(-1e4)


@triton.jit
def dot(a, b, TILE: tl.constexpr):
    """The matrix product of float32 tiles: in tensor cores, with as many of its operands' bits as PRECISION says."""
    return tl.dot(a, b, input_precision=TILE.PRECISION)


@triton.jit
def block_columns(begin, L, first, TILE: tl.constexpr):
    """``(times, mask)``: time steps of the C tokens from ``first`` on, in the loop's direction, and which of them exist."""
    t = first + tl.arange(0, TILE.C)
    return begin + (L - 1 - t if TILE.REVERSE else t), t < L


@triton.jit
def columns_at(ptr, strides, b, h, offs, mask):
    """Where the columns of a head's tokens lie: some components at time 0, a step in time, and which components exist."""
    return ptr + b * strides.b + h * strides.h + offs * strides.d, strides.t, mask


@triton.jit
def own_columns(ptr, head, H, D, offs, mask):
    """The same of a contiguous tensor [B, T, H, D], whose head begins with row ``head``."""
    return ptr + head * D + offs, H * D, mask


@triton.jit
def load_columns(at, tokens):
    """float32 [D, C] of a block's ``tokens``, zeros where there is none."""
    base, step, mask = at
    times, mask_t = tokens
    mask = mask[:, None] & mask_t[None, :]
    return tl.load(base[:, None] + times[None, :] * step, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_columns(at, tokens, tile):
    """The reverse of ``load_columns``."""
    base, step, mask = at
    times, mask_t = tokens
    base = base[:, None] + times[None, :] * step
    tl.store(base, tile.to(base.dtype.element_ty), mask=mask[:, None] & mask_t[None, :])


@triton.jit
def load_scalar_gates(gates, tokens):
    """Log-decays [C] from one gate a token; 0 where there is no token."""
    times, mask_t = tokens
    sums = tl.where(mask_t, gates.gamma, 0.0)
    if gates.g is not None:
        base, step = gates.g
        sums += tl.load(base + times * step, mask=mask_t, other=0.0).to(tl.float32)
    return tl.maximum(sums, LOWEST)


@triton.jit
def load_gates(gates, tokens):
    """Log-decays [D, C] from gates for components, and one a token for all of them; 0 where there is no token."""
    components = load_columns(gates.components, tokens)
    return tl.maximum(components + load_scalar_gates(gates, tokens)[None, :], LOWEST)


@triton.jit
def decay(gates, crossed):
    """[D, C]: exp(sum of the gates u where crossed[u, t]). These sums have float32's bits, whatever other products have."""
    return tl.exp(tl.dot(gates, crossed.to(tl.float32), input_precision="tf32x3"))


@triton.jit
def decays_to_edges(gates, begin, L, first, TILE: tl.constexpr):
    """``(from_edge, to_edge, whole)``: decays from before the block to after token t, from there to its end, of all of it;
    [D, C], [D, C] and [D], or [1, C], [1, C] and [1]."""
    tokens = block_columns(begin, L, first, TILE)
    t = tl.arange(0, TILE.C)
    if gates.components is not None:
        x = load_gates(gates, tokens)
        from_edge = decay(x, t[:, None] <= t[None, :])
        to_edge = decay(x, t[:, None] > t[None, :])
        whole = tl.exp(tl.sum(x, 1))
    else:
        x = load_scalar_gates(gates, tokens)
        times, exists = block_columns(begin, L, first + 1, TILE)
        behind = load_scalar_gates(gates, (times, exists & (t < TILE.C - 1)))
        from_edge = tl.exp(tl.cumsum(x, 0))[None, :]
        to_edge = tl.exp(tl.cumsum(behind, 0, reverse=True))[None, :]
        whole = tl.exp(tl.sum(x, 0))[None]
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
def advance(S, k_at, v_at, rows, columns, begin, L, first, TILE: tl.constexpr):
    """The state behind a block: e^{Gamma_C} . S . e^{Phi_C} + sum_s (k_s e^{Gamma_C - Gamma_s}) (v_s e^{Phi_C - Phi_s})^T."""
    tokens = block_columns(begin, L, first, TILE)
    k = load_columns(k_at, tokens)
    v = load_columns(v_at, tokens)
    unused, to_edge, whole = decays_to_edges(rows, begin, L, first, TILE)
    S *= whole[:, None]
    k *= to_edge
    if columns.components is not None:
        unused, to_edge, whole = decays_to_edges(columns, begin, L, first, TILE)
        S *= whole[None, :]
        v *= to_edge
    return S + dot(k, tl.trans(v), TILE)


@triton.jit
def states_kernel(k_ptr, v_ptr, gates, initial_ptr, cu_ptr, states_ptr, sizes, strides, TILE: tl.constexpr):
    """states[place, h]: the state before every EVERY-th block of C tokens."""
    n, h, kv_head, tile, offs_k, offs_v, mask_k, mask_v = own_tile(sizes, TILE)
    row, begin, L = sequence_span(n, sizes.T, cu_ptr, cu_ptr is not None)
    k_at = columns_at(k_ptr, strides.k, row, kv_head, offs_k, mask_k)
    v_at = columns_at(v_ptr, strides.v, row, kv_head, offs_v, mask_v)
    of = strides.gates
    g_at = None if gates.g is None else (gates.g + row * of.g.b + h * of.g.h, of.g.t)
    gk_at = None if gates.gk is None else columns_at(gates.gk, of.gk, row, h, offs_k, mask_k)
    gv_at = None if gates.gv is None else columns_at(gates.gv, of.gv, row, h, offs_v, mask_v)
    rows = SideGates(g_at, load_gamma(gates, strides, h), gk_at)
    columns = SideGates(None, 0.0, gv_at)

    S = begin_state(initial_ptr, strides.state, n, h, offs_k, offs_v, TILE)
    place = first_run(n, begin, sizes.T, TILE.C * TILE.EVERY, cu_ptr is not None)
    for checkpoint in range(tl.cdiv(L, TILE.C * TILE.EVERY)):
        base = states_ptr + ((place + checkpoint) * sizes.H + h) * TILE.K * TILE.V
        store_state(base, offs_k, offs_v, TILE.K, TILE.V, S)
        for i in range(TILE.EVERY):
            S = advance(S, k_at, v_at, rows, columns, begin, L, (checkpoint * TILE.EVERY + i) * TILE.C, TILE)


@triton.jit
def through_kernel(
    do_ptr, dfinal_ptr, q_ptr, k_ptr, v_ptr, gates, S_ptr, cu_ptr, through, scale, sizes, strides, TILE: tl.constexpr
):
    """The terms of dq / c, dk and dv through the states and costates at the blocks' edges, and the initial state's gradient.

    For gates also o as read from S, and the paths that pass a whole block: for each row of the state (passing_k; one number
    unless there is gk), for each column (passing_v). dq, dk and passing_k have a partial sum for each tile of columns.
    """
    T, H = sizes.T, sizes.H
    K: tl.constexpr = TILE.K
    V: tl.constexpr = TILE.V
    n, h, kv_head, tile, offs_k, offs_v, mask_k, mask_v = own_tile(sizes, TILE)
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    q_at = columns_at(q_ptr, strides.q, row, h, offs_k, mask_k)
    k_at = columns_at(k_ptr, strides.k, row, kv_head, offs_k, mask_k)
    v_at = columns_at(v_ptr, strides.v, row, kv_head, offs_v, mask_v)
    do_at = columns_at(do_ptr, strides.do, row, h, offs_v, mask_v)
    of = strides.gates
    g_at = None if gates.g is None else (gates.g + row * of.g.b + h * of.g.h, of.g.t)
    gk_at = None if gates.gk is None else columns_at(gates.gk, of.gk, row, h, offs_k, mask_k)
    gv_at = None if gates.gv is None else columns_at(gates.gv, of.gv, row, h, offs_v, mask_v)
    rows = SideGates(g_at, load_gamma(gates, strides, h), gk_at)
    columns = SideGates(None, 0.0, gv_at)
    head = row * T * H + h
    partial = tile * sizes.tokens * H + head

    Z = begin_state(dfinal_ptr, strides.state, n, h, offs_k, offs_v, TILE)
    kept = first_run(n, begin, T, TILE.C * TILE.EVERY, cu_ptr is not None)
    place = first_run(n, begin, T, TILE.C, cu_ptr is not None)
    blocks = tl.cdiv(L, TILE.C)
    for back in tl.range(blocks, disable_licm=True):  # else every address in shared memory is kept in a register
        block = blocks - 1 - back
        S = load_state(S_ptr + ((kept + block // TILE.EVERY) * H + h) * K * V, offs_k, offs_v, K, V)
        for i in range(block // TILE.EVERY * TILE.EVERY, block):
            S = advance(S, k_at, v_at, rows, columns, begin, L, i * TILE.C, TILE)

        first = block * TILE.C
        tokens = block_columns(begin, L, first, TILE)
        q = load_columns(q_at, tokens)
        k = load_columns(k_at, tokens)
        v = load_columns(v_at, tokens)
        do = load_columns(do_at, tokens)
        q_from, k_to, whole = decays_to_edges(rows, begin, L, first, TILE)
        q *= q_from * scale
        k *= k_to
        Z_before = Z * whole[:, None]
        if gates.gv is not None:
            o_from, v_to, whole = decays_to_edges(columns, begin, L, first, TILE)
            do *= o_from
            v *= v_to
            Z_before *= whole[None, :]

        dq = q_from * dot(S, do, TILE)
        store_columns(own_columns(through.dq, partial, H, K, offs_k, mask_k), tokens, dq)
        dk = k_to * dot(Z, v, TILE)
        store_columns(own_columns(through.dk, partial, H, K, offs_k, mask_k), tokens, dk)
        dv = dot(tl.trans(Z), k, TILE)
        if gates.gv is not None:
            dv *= v_to
        store_columns(own_columns(through.dv, head, H, V, offs_v, mask_v), tokens, dv)
        if through.passing_k is not None:
            passing = tl.sum(S * Z_before, 1)
            index = (tile * sizes.blocks + place + block) * H + h
            if gates.gk is not None:
                tl.store(through.passing_k + index * K + offs_k, passing, mask=mask_k)
            else:
                tl.store(through.passing_k + index, tl.sum(passing, 0))
        if through.o is not None:
            o = o_from * dot(tl.trans(S), q, TILE)
            store_columns(own_columns(through.o, head, H, V, offs_v, mask_v), tokens, o)
            index = (place + block) * H + h
            tl.store(through.passing_v + index * V + offs_v, tl.sum(S * Z_before, 0), mask=mask_v)
        Z = Z_before + dot(q, tl.trans(do), TILE)

    if through.dinitial is not None:
        store_state(through.dinitial + (n * H + h) * K * V, offs_k, offs_v, K, V, Z)
