"""The part of the backward pass inside a block of C tokens: what each pair of tokens exchanges without a state between them.

Rows and columns of the state play one part: q reads and k writes along its rows, do reads and v writes along its columns.
Along one side a reader r and a writer s <= r exchange w_rs, the product of the two, decayed, along the other side:

    dread_r = sum_{s <= r} w_rs decay_rs . write_s            dwrite_s = sum_{r >= s} w_rs decay_rs . read_r

With a gate for each component decay_rs must be cut in a decay of r's and one of s's, neither above 1. The numbers r and s
first differ in one binary digit: of the aligned 2, 4, 8 or 16 tokens that hold both, s lies left of the middle and r right,
and decay_rs = (from s to the middle) (from the middle to r). So all the pairs of a digit are one matrix product.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.common.sequences import locate_run
from kernels.recurrent_attention.plain import (
    block_columns,
    decay,
    decay_matrix,
    dot,
    load_columns,
    load_gates,
    load_scalar_gates,
    store_columns,
    sum_over,
)
from kernels.recurrent_attention.tiles import crossed_to_middle, parted, right_of_middle


class Gradients(NamedTuple):
    """Where gradients go, ``None`` for those not wanted; dg stands for g and g_gamma."""

    dq: Any
    dk: Any
    dv: Any
    dg: Any
    dgk: Any
    dgv: Any


@triton.jit
def load_side(side, start, D, times, mask_t, SLICE: tl.constexpr):
    """``(reads, writes, offs, mask)``: float32 [SLICE, C] tiles of the components from ``start`` on. A side is where a head's
    reads begin and their strides, and the same of its writes."""
    read_at, read_strides, write_at, write_strides = side
    offs = start + tl.arange(0, SLICE).to(tl.int64)
    mask = offs < D
    reads = load_columns(read_at + offs * read_strides.d, read_strides.t, times, mask_t, mask)
    writes = load_columns(write_at + offs * write_strides.d, write_strides.t, times, mask_t, mask)
    return reads, writes, offs, mask


@triton.jit
def pair_products(
    side, g_at, g_strides, gamma, gates_at, gates_strides, times, mask_t,
    D: tl.constexpr, C: tl.constexpr, DIGITS: tl.constexpr, SLICE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """read_r . write_s with the gates of components between them, as a symmetric [C, C]: r is the later of the two."""
    u = tl.arange(0, C)[:, None]
    t = tl.arange(0, C)[None, :]
    products = tl.zeros([C, C], tl.float32)
    for start in range(0, D, SLICE):
        reads, writes, offs, mask = load_side(side, start, D, times, mask_t, SLICE)
        if gates_at is None:
            products += dot(tl.trans(reads), writes, PRECISION)
        else:
            at = gates_at + offs * gates_strides.d
            gates = load_gates(g_at, g_strides, gamma, at, gates_strides, times, mask_t, mask)
            products += tl.where(u == t, tl.sum(reads * writes, 0)[None, :], 0.0)
            for digit in range(DIGITS):
                x = tl.where(right_of_middle(t, digit), reads, writes) * decay(gates, crossed_to_middle(u, t, digit))
                products += tl.where(parted(u, t, digit), dot(tl.trans(x), x, PRECISION), 0.0)
    if gates_at is None:
        products = tl.where(u >= t, products, tl.trans(products))
    return products


@triton.jit
def finish_side(
    side, g_at, g_strides, gamma, gates_at, gates_strides, times, mask_t,
    weights, scale, dread_through, dwrite_through, passing_ptr, dread_ptr, dwrite_ptr, dgates_ptr,
    head, place, tiles, heads, place_heads, H,
    D: tl.constexpr, C: tl.constexpr, DIGITS: tl.constexpr, SLICE: tl.constexpr, PRECISION: tl.constexpr,
    GATES: tl.constexpr,
):  # fmt: skip
    """Add the pairs to what came through states and store it. With GATES returns the sum over components of the gradients
    of this side's gates, [1, C]; without gates for components, that is without what passes the block, and without pairs."""
    u = tl.arange(0, C)[:, None]
    t = tl.arange(0, C)[None, :]
    dgate = tl.zeros([1, C], tl.float32)
    for start in range(0, D, SLICE):
        reads, writes, offs, mask = load_side(side, start, D, times, mask_t, SLICE)
        reads *= scale
        dreads = tl.zeros([SLICE, C], tl.float32)
        dwrites = tl.zeros([SLICE, C], tl.float32)
        dgates = tl.zeros([SLICE, C], tl.float32)
        partial = head
        passing = place
        for tile in range(tiles):  # noqa: B007
            if dread_through is not None:
                dreads += load_columns(dread_through + partial * D + offs, H * D, times, mask_t, mask)
            dwrites += load_columns(dwrite_through + partial * D + offs, H * D, times, mask_t, mask)
            if GATES and gates_at is not None:
                dgates += tl.load(passing_ptr + passing * D + offs, mask=mask, other=0.0)[:, None]
            partial += heads
            passing += place_heads

        if gates_at is None:
            if GATES:
                dgate += sum_over(reads * dreads, u >= t, False, PRECISION)
                dgate += sum_over(writes * dwrites, u < t, False, PRECISION)
            dreads += dot(writes, tl.where(u <= t, weights, 0.0), PRECISION)
            dwrites += dot(reads, tl.where(u >= t, weights, 0.0), PRECISION)
        else:
            at = gates_at + offs * gates_strides.d
            gates = load_gates(g_at, g_strides, gamma, at, gates_strides, times, mask_t, mask)
            if GATES:
                dgates += sum_over(reads * dreads, u >= t, True, PRECISION)
                dgates += sum_over(writes * dwrites, u < t, True, PRECISION)
            itself = tl.sum(tl.where(u == t, weights, 0.0), 0)[None, :]
            dreads += itself * writes
            dwrites += itself * reads
            for digit in range(DIGITS):
                right = right_of_middle(t, digit)
                to_middle = decay(gates, crossed_to_middle(u, t, digit))
                x = tl.where(right, reads, writes)
                dx = to_middle * dot(x * to_middle, tl.where(parted(u, t, digit), weights, 0.0), PRECISION)
                dreads += tl.where(right, dx, 0.0)
                dwrites += tl.where(right, 0.0, dx)
                if GATES:
                    dgates += sum_over(x * dx, crossed_to_middle(t, u, digit), True, PRECISION)
            if GATES:
                dgate += tl.sum(dgates, 0)[None, :]
            if dgates_ptr is not None:
                store_columns(dgates_ptr + head * D + offs, H * D, times, mask_t, mask, dgates)

        if dread_ptr is not None:
            store_columns(dread_ptr + head * D + offs, H * D, times, mask_t, mask, dreads * scale)
        if dwrite_ptr is not None:
            store_columns(dwrite_ptr + head * D + offs, H * D, times, mask_t, mask, dwrites)
    return dgate


@triton.jit
def pairs_kernel(
    do_ptr, q_ptr, k_ptr, v_ptr, gates, sequence_of_block_ptr, cu_ptr, through, grads,
    scale, T, H, group, parts, do_strides, q_strides, k_strides, v_strides, gate_strides,
    K: tl.constexpr, V: tl.constexpr, REVERSE: tl.constexpr,
    C: tl.constexpr, DIGITS: tl.constexpr, PRECISION: tl.constexpr, SLICE_K: tl.constexpr, SLICE_V: tl.constexpr,
):  # fmt: skip
    """One block of one head: ``grads`` from what came ``through`` the states, and its pairs."""
    pid = tl.program_id(0)
    h = pid % H
    kv_head = (h // group).to(tl.int64)
    h = h.to(tl.int64)
    n, row, begin, L, first = locate_run(pid // H, parts.blocks, T, C, sequence_of_block_ptr, cu_ptr, cu_ptr is not None)
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    u = tl.arange(0, C)[:, None]
    t = tl.arange(0, C)[None, :]
    head = row * T * H + h
    place = (pid // H).to(tl.int64) * H + h
    q_at = q_ptr + row * q_strides.b + h * q_strides.h
    k_at = k_ptr + row * k_strides.b + kv_head * k_strides.h
    v_at = v_ptr + row * v_strides.b + kv_head * v_strides.h
    do_at = do_ptr + row * do_strides.b + h * do_strides.h
    g_at = None if gates.g is None else gates.g + row * gate_strides.g.b + h * gate_strides.g.h
    gk_at = None if gates.gk is None else gates.gk + row * gate_strides.gk.b + h * gate_strides.gk.h
    gv_at = None if gates.gv is None else gates.gv + row * gate_strides.gv.b + h * gate_strides.gv.h
    gamma = 0.0 if gates.g_gamma is None else tl.load(gates.g_gamma + h * gate_strides.g_gamma.h).to(tl.float32)
    rows = q_at, q_strides, k_at, k_strides
    columns = do_at, do_strides, v_at, v_strides

    A = scale * pair_products(
        rows, g_at, gate_strides.g, gamma, gk_at, gate_strides.gk, times, mask_t, K, C, DIGITS, SLICE_K, PRECISION
    )
    P = pair_products(
        columns, None, None, 0.0, gv_at, gate_strides.gv, times, mask_t, V, C, DIGITS, SLICE_V, PRECISION
    )
    if gates.gk is None:
        M = decay_matrix(load_scalar_gates(g_at, gate_strides.g, gamma, times, mask_t))
        M = tl.where(u >= t, M, tl.trans(M))
        A *= M
        paths = tl.where(u > t, A * P, 0.0)  # [r, s]
        P *= M

    dg = finish_side(
        rows, g_at, gate_strides.g, gamma, gk_at, gate_strides.gk, times, mask_t,
        P, scale, through.dq, through.dk, through.passing_k, grads.dq, grads.dk, grads.dgk,
        head, place, parts.tiles, parts.tokens * H, parts.blocks * H, H, K, C, DIGITS, SLICE_K, PRECISION,
        grads.dg is not None or grads.dgk is not None,
    )  # fmt: skip
    if grads.dg is not None:
        if gates.gk is None:
            for tile in range(parts.tiles):  # noqa: B007
                dg += tl.load(through.passing_k + place)
                place += parts.blocks * H
            paths = dot((u <= t).to(tl.float32), paths, PRECISION)  # [gate, s]: over the r from the gate on
            dg += tl.sum(tl.where(u > t, paths, 0.0), 1)[None, :]  # and over the s before it
        tl.store(grads.dg + head + times * H, tl.sum(dg, 0), mask=mask_t)
    finish_side(
        columns, None, None, 0.0, gv_at, gate_strides.gv, times, mask_t,
        A, 1.0, through.o, through.dv, through.passing_v, None, grads.dv, grads.dgv,
        head, (pid // H).to(tl.int64) * H + h, 1, 0, 0, H, V, C, DIGITS, SLICE_V, PRECISION,
        grads.dgv is not None,
    )  # fmt: skip
