"""Tiles of a block of tokens, one column a token, and the decays between its tokens.

Each decay is the exponential of a sum over the very gates it spans. No sum is subtracted from another, so nothing cancels,
nothing positive is exponentiated, and a gate of -inf needs no care: every decay across it is 0.
"""

import triton
import triton.language as tl


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
def load_log_decay(g_at, stride_gt, gamma, gates_at, stride_gates_t, times, mask_t, mask):
    """Log-decays [D, C], or [1, C] where components have no gates of their own; 0 where there is no token."""
    log_decay = tl.where(mask_t, gamma, 0.0)[None, :]
    if g_at is not None:
        log_decay += tl.load(g_at + times * stride_gt, mask=mask_t, other=0.0).to(tl.float32)[None, :]
    if gates_at is not None:
        log_decay += load_columns(gates_at, stride_gates_t, times, mask_t, mask)
    return log_decay


@triton.jit
def load_log_decays(
    g_at, stride_gt, gamma, gates_at, stride_gates_t, mask, begin, L, first, C: tl.constexpr, REVERSE: tl.constexpr
):  # fmt: skip
    """``(here, after)``: the log-decays of a block's tokens, and those of their followers in the block, 0 for its last."""
    times, mask_t = block_columns(begin, L, first, C, REVERSE)
    here = load_log_decay(g_at, stride_gt, gamma, gates_at, stride_gates_t, times, mask_t, mask)
    times, mask_t = block_columns(begin, L, first + 1, C, REVERSE)
    mask_t &= tl.arange(0, C) < C - 1
    return here, load_log_decay(g_at, stride_gt, gamma, gates_at, stride_gates_t, times, mask_t, mask)


@triton.jit
def decays_to_edges(here, after):
    """``(from_edge, to_edge, whole)``: decays from before the block to after token t, from there to its end, of all of it."""
    return tl.exp(tl.cumsum(here, 1)), tl.exp(tl.cumsum(after, 1, reverse=True)), tl.exp(tl.sum(here, 1))


@triton.jit
def decays_to_middle(here, after, DIGIT: tl.constexpr):
    """For tokens cut into pairs of halves of 2^DIGIT, the decay between each token and its pair's middle.

    For a token of the right half that is from the half's start to after the token, of the left half from after it to the end.
    So a left s and a right r of one pair are exp(sum of gates s+1 ... r) = decay[s] decay[r] apart.
    """
    C: tl.constexpr = here.shape[1]
    HALF: tl.constexpr = 1 << DIGIT
    t = tl.arange(0, C)[None, :]
    right = t // HALF % 2 == 1
    here = tl.where(right, here, 0.0)
    if HALF > 1:
        after = tl.where(right | (t % HALF == HALF - 1), 0.0, after)
        halves: tl.constexpr = [here.shape[0], C // HALF, HALF]
        sums = tl.cumsum(tl.reshape(here, halves), 2) + tl.cumsum(tl.reshape(after, halves), 2, reverse=True)
        here = tl.reshape(sums, here.shape)
    return tl.exp(here)


@triton.jit
def decay_matrix(here):
    """[C, C], from one gate a token [1, C]: exp(sum of gates s+1 ... r) for s <= r, else 0."""
    C: tl.constexpr = here.shape[1]
    r = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]
    between = tl.cumsum(tl.where(r > s, tl.trans(here), 0.0), 0)
    return tl.where(r >= s, tl.exp(between), 0.0)


@triton.jit
def sum_over_paths(x, crossed, VECTOR: tl.constexpr, PRECISION: tl.constexpr):
    """sum_u x[:, u] over the u where crossed[u, t]: [D, C] for gates on components, else over all components, too, [1, C]."""
    if VECTOR:
        sums = tl.dot(x, crossed.to(tl.float32), input_precision=PRECISION)
    else:
        sums = tl.sum(tl.where(crossed, tl.sum(x, 0)[:, None], 0.0), 0)[None, :]
    return sums
