"""Gated recurrent attention, one token after the other: forward, and one token's step.

    S_t = D_t * S_{t-1} + k_t v_t^T,        o_t = c S_t^T q_t,        D_t = exp(g_t + gamma + gk_t 1^T + 1 gv_t^T)

A program owns BV columns of one head's state, all K rows of them. A column of S needs no other column, so the sum over K
that makes o is complete within the program, and there are many programs. Tokens follow each other, so what counts is the
time of one step: the rows of token t + 1 are asked for before token t is computed, and addresses move on by one addition.
"""

from collections import namedtuple

import triton
import triton.language as tl

from kernels.common.sequences import sequence_span

#: What a kernel is compiled for: the K rows and V columns of a state, and those in a tile, BK and BV. Backward the tokens of
#: a block, C = 2^DIGITS, one state for EVERY few blocks, and the rows and columns of a slice.
Tile = namedtuple("Tile", "K V BK BV REVERSE C EVERY DIGITS SLICE_K SLICE_V PRECISION", defaults=(None,) * 9)

#: Tokens of a row, heads, how many of q share one of k, tiles of columns; backward also all rows' tokens and blocks, for each
#: of which there is a sum a tile.
Sizes = namedtuple("Sizes", "T H group tiles tokens blocks", defaults=(None, None))


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """float32; a tile's sizes are members of a tuple, which older versions of Triton take in no list."""
    return tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def load_state(base, offs_k, offs_v, K, V):
    """A tile of a contiguous state [K, V]."""
    mask = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    return tl.load(base + offs_k[:, None] * V + offs_v[None, :], mask=mask, other=0.0)


@triton.jit
def store_state(base, offs_k, offs_v, K, V, values):
    """The reverse of ``load_state``."""
    mask = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    tl.store(base + offs_k[:, None] * V + offs_v[None, :], values.to(base.dtype.element_ty), mask=mask)


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
def head_at(ptr, strides, b, h):
    """Where a head of a tensor [B, T, H, size] begins, and its strides along time and components."""
    return ptr + b * strides.b + h * strides.h, strides.t, strides.d


@triton.jit
def own_at(ptr, head, H, size):
    """The same of a contiguous tensor, whose head begins with row ``head``."""
    return ptr + head * size, H * size, 1


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
