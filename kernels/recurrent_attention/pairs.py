"""The part of the backward pass inside a block of C tokens: what each pair of tokens exchanges without a state between them.

Rows and columns of the state play one part: q reads and k writes along its rows, do reads and v writes along its columns.
Along one side a reader r and a writer s <= r exchange w_rs, the product of the two, decayed, along the other side:

    dread_r = sum_{s <= r} w_rs decay_rs . write_s            dwrite_s = sum_{r >= s} w_rs decay_rs . read_r

With a gate for each component decay_rs must be cut in a decay of r's and one of s's, neither above 1. The numbers r and s
first differ in one binary digit: of the aligned 2, 4, 8 or 16 tokens that hold both, s lies left of the middle and r right,
and decay_rs = (from s to the middle) (from the middle to r). So all the pairs of a digit are one matrix product.
"""

from collections import namedtuple

import triton
import triton.language as tl

from kernels.common.sequences import locate_run
from kernels.recurrent_attention.plain import (
    SideGates,
    block_columns,
    decay,
    decay_matrix,
    dot,
    load_columns,
    load_gamma,
    load_gates,
    load_scalar_gates,
    own_columns,
    store_columns,
)
from kernels.recurrent_attention.tiles import crossed_to_middle, parted, right_of_middle, zeros

#: Where gradients go, ``None`` for those not wanted; dg stands for g and g_gamma.
Gradients = namedtuple("Gradients", "dq dk dv dg dgk dgv")

#: Something about the reads, the writes and the gates of one side of a head's state.
Side = namedtuple("Side", "reads writes gates")


@triton.jit
def slice_at(at, offs, mask):
    """Where some components of a head's tokens lie, as ``columns_at`` has it; ``at``: where the head begins, its strides."""
    base, strides = at
    return base + offs * strides.d, strides.t, mask


@triton.jit
def load_slice(side, offs, mask, tokens):
    """``(reads, writes)``: float32 [SLICE, C] tiles."""
    return load_columns(slice_at(side.reads, offs, mask), tokens), load_columns(
        slice_at(side.writes, offs, mask), tokens
    )


@triton.jit
def load_slice_gates(side, offs, mask, tokens):
    """Log-decays [SLICE, C] of a side that has gates for components."""
    gates = SideGates(side.gates.g, side.gates.gamma, slice_at(side.gates.components, offs, mask))
    return load_gates(gates, tokens)


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
        reads, writes = load_slice(side, offs, offs < D, tokens)
        if side.gates.components is None:
            products += dot(tl.trans(reads), writes, TILE)
        else:
            gates = load_slice_gates(side, offs, offs < D, tokens)
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
        mask = offs < D
        reads, writes = load_slice(side, offs, mask, tokens)
        reads *= scale
        dreads = zeros(SLICE, TILE.C)
        dwrites = zeros(SLICE, TILE.C)
        dgates = zeros(SLICE, TILE.C)
        partial = head
        passing = place
        for tile in range(1 if COLUMNS else sizes.tiles):  # noqa: B007
            if through.reads is not None:
                dreads += load_columns(own_columns(through.reads, partial, H, D, offs, mask), tokens)
            dwrites += load_columns(own_columns(through.writes, partial, H, D, offs, mask), tokens)
            if GATES and side.gates.components is not None:
                dgates += tl.load(through.gates + passing * D + offs, mask=mask, other=0.0)[:, None]
            partial += sizes.tokens * H
            passing += sizes.blocks * H

        if side.gates.components is None:
            if GATES:
                dgate += sum_over(reads * dreads, u >= t, False, TILE)
                dgate += sum_over(writes * dwrites, u < t, False, TILE)
            dreads += dot(writes, tl.where(u <= t, weights, 0.0), TILE)
            dwrites += dot(reads, tl.where(u >= t, weights, 0.0), TILE)
        else:
            gates = load_slice_gates(side, offs, mask, tokens)
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
                store_columns(own_columns(grads.gates, head, H, D, offs, mask), tokens, dgates)

        if grads.reads is not None:
            store_columns(own_columns(grads.reads, head, H, D, offs, mask), tokens, dreads * scale)
        if grads.writes is not None:
            store_columns(own_columns(grads.writes, head, H, D, offs, mask), tokens, dwrites)
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
    q_at = q_ptr + row * strides.q.b + h * strides.q.h, strides.q
    k_at = k_ptr + row * strides.k.b + kv_head * strides.k.h, strides.k
    v_at = v_ptr + row * strides.v.b + kv_head * strides.v.h, strides.v
    do_at = do_ptr + row * strides.do.b + h * strides.do.h, strides.do
    of = strides.gates
    g_at = None if gates.g is None else (gates.g + row * of.g.b + h * of.g.h, of.g.t)
    gk_at = None if gates.gk is None else (gates.gk + row * of.gk.b + h * of.gk.h, of.gk)
    gv_at = None if gates.gv is None else (gates.gv + row * of.gv.b + h * of.gv.h, of.gv)
    decays = SideGates(g_at, load_gamma(gates, strides, h), gk_at)
    rows = Side(q_at, k_at, decays)
    columns = Side(do_at, v_at, SideGates(None, 0.0, gv_at))

    A = scale * pair_products(rows, tokens, TILE, False)
    P = pair_products(columns, tokens, TILE, True)
    if gates.gk is None:
        M = decay_matrix(load_scalar_gates(decays, tokens))
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
