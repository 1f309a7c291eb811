"""The backward pass of gated recurrent attention, as ``plain`` has its forward pass.

It is the same loop from the last token to the first, C tokens at a time, nothing subtracted.

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
``pairs_kernel`` has a program for each block, and adds the pairs of tokens inside it. Sums over tiles of columns have a
fixed order.

Inside a block each pair of tokens exchanges something without a state between them. Rows and columns of the state play one
part: q reads and k writes along its rows, do reads and v writes along its columns. Along one side a reader r and a writer
s <= r exchange w_rs, the product of the two, decayed, along the other side:

    dread_r = sum_{s <= r} w_rs decay_rs . write_s            dwrite_s = sum_{r >= s} w_rs decay_rs . read_r

With a gate for each component decay_rs must be cut in a decay of r's and one of s's, neither above 1. The numbers r and s
first differ in one binary digit: of the aligned 2, 4, 8 or 16 tokens that hold both, s lies left of the middle and r right,
and decay_rs = (from s to the middle) (from the middle to r). So all the pairs of a digit are one matrix product.
"""

from collections import namedtuple

import triton
import triton.language as tl

from kernels.common.sequences import first_run, locate_run, sequence_span
from kernels.recurrent_attention.plain import (
    begin_state,
    head_at,
    load_gamma,
    load_state,
    own_at,
    own_tile,
    store_state,
    zeros,
)

#: What comes through the states at the blocks' edges: of dq / c, dk and dv; for gates also of o, and the paths that pass a
#: whole block, for each row of the state (one number unless there is gk) and for each column. The initial state's gradient.
Through = namedtuple("Through", "dq dk dv o passing_k passing_v dinitial")

#: In a kernel, the gates of one side of a head's state: one a token (``head_at``), a number that all tokens have, and one a
#: component (``head_at``).
SideGates = namedtuple("SideGates", "g gamma components")

#: Where gradients go, ``None`` for those not wanted; dg stands for g and g_gamma.
Gradients = namedtuple("Gradients", "dq dk dv dg dgk dgv")

#: Something about the reads, the writes and the gates of one side of a head's state.
Side = namedtuple("Side", "reads writes gates")

# Two tokens of a block of 2^n are parted by the middle of exactly one of its aligned blocks of 2, 4, ..., 2^n tokens: the
# smallest that holds both.


@triton.jit
def right_of_middle(token, digit):
    """Whether a token lies in the right half of its aligned 2^(digit+1) tokens."""
    return (token >> digit) % 2 == 1


@triton.jit
def parted(a, b, digit):
    """Whether the middle of an aligned 2^(digit+1) tokens lies between the two, in either order."""
    return (a >> digit) ^ (b >> digit) == 1


@triton.jit
def crossed_to_middle(gate, token, digit):
    """Which gates lie between a token and the middle: on its side, up to its own if it is right, behind it if left."""
    return (gate >> digit == token >> digit) & (right_of_middle(token, digit) == (gate <= token))


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
def load_columns(at, of, tokens):
    """float32 [D, C] of a block's ``tokens``, the components ``of`` (their numbers, and which exist) of a head that begins
    ``at`` (``head_at``); zeros where there is none."""
    base, stride_t, stride_d = at
    offs, mask = of
    times, mask_t = tokens
    mask = mask[:, None] & mask_t[None, :]
    offsets = offs[:, None] * stride_d + times[None, :] * stride_t
    return tl.load(base + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_columns(at, of, tokens, tile):
    """The reverse of ``load_columns``."""
    base, stride_t, stride_d = at
    offs, mask = of
    times, mask_t = tokens
    offsets = offs[:, None] * stride_d + times[None, :] * stride_t
    tl.store(base + offsets, tile.to(base.dtype.element_ty), mask=mask[:, None] & mask_t[None, :])


@triton.jit
def load_scalar_gates(gates, tokens):
    """Log-decays [C] from one gate a token; 0 where there is no token."""
    times, mask_t = tokens
    sums = tl.where(mask_t, gates.gamma, 0.0)
    if gates.g is not None:
        base, stride_t, stride_d = gates.g
        sums += tl.load(base + times * stride_t, mask=mask_t, other=0.0).to(tl.float32)
    return tl.maximum(sums, LOWEST)


@triton.jit
def load_gates(gates, of, tokens):
    """Log-decays [D, C] from gates for components, and one a token for all of them; 0 where there is no token."""
    components = load_columns(gates.components, of, tokens)
    return tl.maximum(components + load_scalar_gates(gates, tokens)[None, :], LOWEST)


@triton.jit
def decay(gates, crossed):
    """[D, C]: exp(sum of the gates u where crossed[u, t]). These sums have float32's bits, whatever other products have."""
    return tl.exp(tl.dot(gates, crossed.to(tl.float32), input_precision="tf32x3"))


@triton.jit
def decays_to_edges(gates, of, begin, L, first, TILE: tl.constexpr):
    """``(from_edge, to_edge, whole)``: decays from before the block to after token t, from there to its end, of all of it;
    [D, C], [D, C] and [D], or [1, C], [1, C] and [1]."""
    tokens = block_columns(begin, L, first, TILE)
    t = tl.arange(0, TILE.C)
    if gates.components is not None:
        x = load_gates(gates, of, tokens)
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
def sides_of(q_ptr, k_ptr, v_ptr, do_ptr, gates, strides, b, h, kv_head):
    """The sides of a head's state: its rows, which q reads and k writes, and its columns, which do reads and v writes."""
    of = strides.gates
    g = head_at(gates.g, of.g, b, h) if gates.g is not None else None
    gk = head_at(gates.gk, of.gk, b, h) if gates.gk is not None else None
    gv = head_at(gates.gv, of.gv, b, h) if gates.gv is not None else None
    q = head_at(q_ptr, strides.q, b, h) if q_ptr is not None else None
    do = head_at(do_ptr, strides.do, b, h) if do_ptr is not None else None
    rows = Side(q, head_at(k_ptr, strides.k, b, kv_head), SideGates(g, load_gamma(gates, strides, h), gk))
    return rows, Side(do, head_at(v_ptr, strides.v, b, kv_head), SideGates(None, 0.0, gv))


@triton.jit
def advance(S, rows, columns, of_k, of_v, begin, L, first, TILE: tl.constexpr):
    """The state behind a block: e^{Gamma_C} . S . e^{Phi_C} + sum_s (k_s e^{Gamma_C - Gamma_s}) (v_s e^{Phi_C - Phi_s})^T."""
    tokens = block_columns(begin, L, first, TILE)
    k = load_columns(rows.writes, of_k, tokens)
    v = load_columns(columns.writes, of_v, tokens)
    unused, to_edge, whole = decays_to_edges(rows.gates, of_k, begin, L, first, TILE)
    S *= whole[:, None]
    k *= to_edge
    if columns.gates.components is not None:
        unused, to_edge, whole = decays_to_edges(columns.gates, of_v, begin, L, first, TILE)
        S *= whole[None, :]
        v *= to_edge
    return S + dot(k, tl.trans(v), TILE)


@triton.jit
def states_kernel(k_ptr, v_ptr, gates, initial_ptr, cu_ptr, states_ptr, sizes, strides, TILE: tl.constexpr):
    """states[place, h]: the state before every EVERY-th block of C tokens."""
    n, h, kv_head, tile, offs_k, offs_v, mask_k, mask_v = own_tile(sizes, TILE)
    row, begin, L = sequence_span(n, sizes.T, cu_ptr, cu_ptr is not None)
    rows, columns = sides_of(None, k_ptr, v_ptr, None, gates, strides, row, h, kv_head)
    S = begin_state(initial_ptr, strides.state, n, h, offs_k, offs_v, TILE)
    place = first_run(n, begin, sizes.T, TILE.C * TILE.EVERY, cu_ptr is not None)
    for checkpoint in range(tl.cdiv(L, TILE.C * TILE.EVERY)):
        base = states_ptr + ((place + checkpoint) * sizes.H + h) * TILE.K * TILE.V
        store_state(base, offs_k, offs_v, TILE.K, TILE.V, S)
        for i in range(TILE.EVERY):
            first = (checkpoint * TILE.EVERY + i) * TILE.C
            S = advance(S, rows, columns, (offs_k, mask_k), (offs_v, mask_v), begin, L, first, TILE)


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
    rows, columns = sides_of(q_ptr, k_ptr, v_ptr, do_ptr, gates, strides, row, h, kv_head)
    of_k, of_v = (offs_k, mask_k), (offs_v, mask_v)
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
            S = advance(S, rows, columns, of_k, of_v, begin, L, i * TILE.C, TILE)

        first = block * TILE.C
        tokens = block_columns(begin, L, first, TILE)
        q = load_columns(rows.reads, of_k, tokens)
        k = load_columns(rows.writes, of_k, tokens)
        v = load_columns(columns.writes, of_v, tokens)
        do = load_columns(columns.reads, of_v, tokens)
        q_from, k_to, whole = decays_to_edges(rows.gates, of_k, begin, L, first, TILE)
        q *= q_from * scale
        k *= k_to
        Z_before = Z * whole[:, None]
        if gates.gv is not None:
            o_from, v_to, whole = decays_to_edges(columns.gates, of_v, begin, L, first, TILE)
            do *= o_from
            v *= v_to
            Z_before *= whole[None, :]

        dq = q_from * dot(S, do, TILE)
        store_columns(own_at(through.dq, partial, H, K), of_k, tokens, dq)
        dk = k_to * dot(Z, v, TILE)
        store_columns(own_at(through.dk, partial, H, K), of_k, tokens, dk)
        dv = dot(tl.trans(Z), k, TILE)
        if gates.gv is not None:
            dv *= v_to
        store_columns(own_at(through.dv, head, H, V), of_v, tokens, dv)
        if through.passing_k is not None:
            passing = tl.sum(S * Z_before, 1)
            index = (tile * sizes.blocks + place + block) * H + h
            if gates.gk is not None:
                tl.store(through.passing_k + index * K + offs_k, passing, mask=mask_k)
            else:
                tl.store(through.passing_k + index, tl.sum(passing, 0))
        if through.o is not None:
            o = o_from * dot(tl.trans(S), q, TILE)
            store_columns(own_at(through.o, head, H, V), of_v, tokens, o)
            index = (place + block) * H + h
            tl.store(through.passing_v + index * V + offs_v, tl.sum(S * Z_before, 0), mask=mask_v)
        Z = Z_before + dot(q, tl.trans(do), TILE)

    if through.dinitial is not None:
        store_state(through.dinitial + (n * H + h) * K * V, offs_k, offs_v, K, V, Z)


@triton.jit
def sum_over(x, chosen, VECTOR: tl.constexpr, TILE: tl.constexpr):
    """sum_u x[:, u] over the u where chosen[u, t]: [D, C], or unless VECTOR over all components of x, too, [1, C]."""
    if VECTOR:
        sums = dot(x, chosen.to(tl.float32), TILE)
    else:
        sums = tl.sum(tl.where(chosen, tl.sum(x, 0)[:, None], 0.0), 0)[None, :]
    return sums


@triton.jit
def pair_products(side, tokens, TILE: tl.constexpr, COLUMNS: tl.constexpr):
    """read_r . write_s with the gates of components between them, as a symmetric [C, C]: r is the later of the two."""
    D: tl.constexpr = TILE.V if COLUMNS else TILE.K
    SLICE: tl.constexpr = TILE.SLICE_V if COLUMNS else TILE.SLICE_K
    u = tl.arange(0, TILE.C)[:, None]
    t = tl.arange(0, TILE.C)[None, :]
    products = zeros(TILE.C, TILE.C)
    for start in range(0, D, SLICE):
        offs = start + tl.arange(0, SLICE).to(tl.int64)
        of = offs, offs < D
        reads, writes = load_columns(side.reads, of, tokens), load_columns(side.writes, of, tokens)
        if side.gates.components is None:
            products += dot(tl.trans(reads), writes, TILE)
        else:
            gates = load_gates(side.gates, of, tokens)
            products += tl.where(u == t, tl.sum(reads * writes, 0)[None, :], 0.0)
            for digit in range(TILE.DIGITS):
                x = tl.where(right_of_middle(t, digit), reads, writes) * decay(gates, crossed_to_middle(u, t, digit))
                products += tl.where(parted(u, t, digit), dot(tl.trans(x), x, TILE), 0.0)
    if side.gates.components is None:
        products = tl.where(u >= t, products, tl.trans(products))
    return products


@triton.jit
def finish_side(
    side, tokens, weights, scale, through, grads, head, place, sizes, TILE: tl.constexpr, COLUMNS: tl.constexpr
):
    """Add the pairs to what came through states and store it. Returns the sum over components of the gradients of this side's
    gates where they are wanted, [1, C]; without gates for components it lacks what passes the block, and the pairs."""
    D: tl.constexpr = TILE.V if COLUMNS else TILE.K
    SLICE: tl.constexpr = TILE.SLICE_V if COLUMNS else TILE.SLICE_K
    GATES: tl.constexpr = through.gates is not None
    H = sizes.H
    u = tl.arange(0, TILE.C)[:, None]
    t = tl.arange(0, TILE.C)[None, :]
    dgate = zeros(1, TILE.C)
    for start in range(0, D, SLICE):
        offs = start + tl.arange(0, SLICE).to(tl.int64)
        of = offs, offs < D
        reads, writes = load_columns(side.reads, of, tokens), load_columns(side.writes, of, tokens)
        reads *= scale
        dreads = zeros(SLICE, TILE.C)
        dwrites = zeros(SLICE, TILE.C)
        dgates = zeros(SLICE, TILE.C)
        partial = head
        passing = place
        for tile in range(1 if COLUMNS else sizes.tiles):  # noqa: B007
            if through.reads is not None:
                dreads += load_columns(own_at(through.reads, partial, H, D), of, tokens)
            dwrites += load_columns(own_at(through.writes, partial, H, D), of, tokens)
            if GATES and side.gates.components is not None:
                dgates += tl.load(through.gates + passing * D + offs, mask=of[1], other=0.0)[:, None]
            partial += sizes.tokens * H
            passing += sizes.blocks * H

        if side.gates.components is None:
            if GATES:
                dgate += sum_over(reads * dreads, u >= t, False, TILE)
                dgate += sum_over(writes * dwrites, u < t, False, TILE)
            dreads += dot(writes, tl.where(u <= t, weights, 0.0), TILE)
            dwrites += dot(reads, tl.where(u >= t, weights, 0.0), TILE)
        else:
            gates = load_gates(side.gates, of, tokens)
            if GATES:
                dgates += sum_over(reads * dreads, u >= t, True, TILE)
                dgates += sum_over(writes * dwrites, u < t, True, TILE)
            itself = tl.sum(tl.where(u == t, weights, 0.0), 0)[None, :]
            dreads += itself * writes
            dwrites += itself * reads
            for digit in range(TILE.DIGITS):
                right = right_of_middle(t, digit)
                to_middle = decay(gates, crossed_to_middle(u, t, digit))
                x = tl.where(right, reads, writes)
                dx = to_middle * dot(x * to_middle, tl.where(parted(u, t, digit), weights, 0.0), TILE)
                dreads += tl.where(right, dx, 0.0)
                dwrites += tl.where(right, 0.0, dx)
                if GATES:
                    dgates += sum_over(x * dx, crossed_to_middle(t, u, digit), True, TILE)
            if GATES:
                dgate += tl.sum(dgates, 0)[None, :]
            if grads.gates is not None:
                store_columns(own_at(grads.gates, head, H, D), of, tokens, dgates)

        if grads.reads is not None:
            store_columns(own_at(grads.reads, head, H, D), of, tokens, dreads * scale)
        if grads.writes is not None:
            store_columns(own_at(grads.writes, head, H, D), of, tokens, dwrites)
    return dgate


@triton.jit
def pairs_kernel(
    do_ptr, q_ptr, k_ptr, v_ptr, gates, sequence_ptr, cu_ptr, through, grads, scale, sizes, strides, TILE: tl.constexpr
):
    """One block of one head: ``grads`` from what came ``through`` the states, and its pairs."""
    pid = tl.program_id(0)
    T, H, blocks = sizes.T, sizes.H, sizes.blocks
    h = pid % H
    kv_head = (h // sizes.group).to(tl.int64)
    h = h.to(tl.int64)
    n, row, begin, L, first = locate_run(pid // H, blocks, T, TILE.C, sequence_ptr, cu_ptr, cu_ptr is not None)
    tokens = block_columns(begin, L, first, TILE)
    u = tl.arange(0, TILE.C)[:, None]
    t = tl.arange(0, TILE.C)[None, :]
    head = row * T * H + h
    place = (pid // H).to(tl.int64) * H + h
    rows, columns = sides_of(q_ptr, k_ptr, v_ptr, do_ptr, gates, strides, row, h, kv_head)
    A = scale * pair_products(rows, tokens, TILE, False)
    P = pair_products(columns, tokens, TILE, True)
    if gates.gk is None:
        M = decay_matrix(load_scalar_gates(rows.gates, tokens))
        M = tl.where(u >= t, M, tl.trans(M))
        A *= M
        paths = tl.where(u > t, A * P, 0.0)  # [r, s]
        P *= M

    of_rows = Side(through.dq, through.dk, through.passing_k)
    to_rows = Side(grads.dq, grads.dk, grads.dgk)
    dg = finish_side(rows, tokens, P, scale, of_rows, to_rows, head, place, sizes, TILE, False)
    if grads.dg is not None:
        if gates.gk is None:
            passing = place
            for tile in range(sizes.tiles):  # noqa: B007
                dg += tl.load(through.passing_k + passing)
                passing += blocks * H
            paths = dot((u <= t).to(tl.float32), paths, TILE)  # [gate, s]: over the r from the gate on
            dg += tl.sum(tl.where(u > t, paths, 0.0), 1)[None, :]  # and over the s before it
        tl.store(grads.dg + head + tokens[0] * H, tl.sum(dg, 0), mask=tokens[1])
    of_columns = Side(through.o, through.dv, through.passing_v)
    to_columns = Side(None, grads.dv, grads.dgv)
    finish_side(columns, tokens, A, 1.0, of_columns, to_columns, head, place, sizes, TILE, True)
