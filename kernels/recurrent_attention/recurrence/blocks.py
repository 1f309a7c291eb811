"""Tiles of a block of tokens, one column a token, and the decays between its tokens.

A decay is the exponential of a sum over the very gates that it spans. No sum is subtracted from another, so nothing cancels
and nothing positive is exponentiated. Sums over some of the tokens are matrix products with zeros and ones.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(
    -1e4
)  # stands for gates below it, and for -inf: the exponential of any is 0, but 0 times this one is 0


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
def load_scalar_gates(g_at, stride_gt, gamma, times, mask_t):
    """Log-decays [C] from one gate a token; 0 where there is no token."""
    gates = tl.where(mask_t, gamma, 0.0)
    if g_at is not None:
        gates += tl.load(g_at + times * stride_gt, mask=mask_t, other=0.0).to(tl.float32)
    return tl.maximum(gates, LOWEST)


@triton.jit
def load_gates(g_at, stride_gt, gamma, gates_at, stride_gates_t, times, mask_t, mask):
    """Log-decays [D, C] from gates for components, and one a token for all of them; 0 where there is no token."""
    gates = load_columns(gates_at, stride_gates_t, times, mask_t, mask)
    return tl.maximum(gates + load_scalar_gates(g_at, stride_gt, gamma, times, mask_t)[None, :], LOWEST)


@triton.jit
def decay(gates, crossed):
    """[D, C]: exp(sum of the gates u where crossed[u, t]). These sums have float32's bits, whatever other products have."""
    return tl.exp(tl.dot(gates, crossed.to(tl.float32), input_precision="tf32x3"))


@triton.jit
def decays_to_edges(
    g_at, stride_gt, gamma, gates_at, stride_gates_t, mask, begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr
):  # fmt: skip
    """``(from_edge, to_edge, whole)``: decays from before the block to after token t, from there to its end, of all of it;
    [D, C], [D, C] and [D], or [1, C], [1, C] and [1]."""
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    if gates_at is not None:
        gates = load_gates(g_at, stride_gt, gamma, gates_at, stride_gates_t, times, mask_t, mask)
        u = tl.arange(0, C)[:, None]
        t = tl.arange(0, C)[None, :]
        from_edge = decay(gates, u <= t)
        to_edge = decay(gates, u > t)
        whole = tl.exp(tl.sum(gates, 1))
    else:
        gates = load_scalar_gates(g_at, stride_gt, gamma, times, mask_t)
        times, mask_t = block_columns(begin, L, first + 1, C, REVERSE)
        behind = load_scalar_gates(g_at, stride_gt, gamma, times, mask_t & (tl.arange(0, C) < C - 1))
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
