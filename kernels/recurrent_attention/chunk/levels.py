"""Scores of a chunk with a gate for every key component: level by level, each a matrix product.

A_ts = c sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]}
"""

import triton
import triton.language as tl

from kernels.recurrent_attention.chunk.rows import head_at, load_rows, locate_chunk, own_at, store_rows
from kernels.recurrent_attention.tiles import crossed_to_middle, parted, right_of_middle, zeros

# Two tokens s < t of a chunk of C = 2^n are parted by the edge in the middle of exactly one of its aligned blocks of
# 2, 4, ..., C tokens: the smallest that holds both. Measured from that edge both exponents, Gamma_t - Gamma_edge and
# Gamma_edge - Gamma_s, are <= 0, whatever the gates. So a level (a block size) is one matrix product of rows that are q
# behind the edge and k before it, of which the pairs in one block, on different sides, are kept.


@triton.jit
def level_of_rows(q, k, gamma, gamma_at, where, left, start_k, K, LEVEL, TILE: tl.constexpr):
    """The rows of a level with half-blocks of 2^LEVEL tokens, [C, BLOCK_K]: ``(q or k with its decay, the decay)``. The
    sequence's last token is the ``left``-th of the chunk, or behind it."""
    offs_c = tl.arange(0, TILE.C)
    behind = right_of_middle(offs_c, LEVEL)
    # The last token before the edge; behind a sequence's end Gamma would not grow, so its last token will do.
    edge = tl.minimum((offs_c >> LEVEL | 1) * (1 << LEVEL) - 1, left.to(tl.int32))
    at_edge = where[0], -edge if TILE.REVERSE else edge, where[2]
    gamma_edge = load_rows(gamma_at, at_edge, start_k, K, TILE.BLOCK_K, tl.float32)
    factor = tl.exp2((gamma - gamma_edge) * tl.where(behind, 1.0, -1.0)[:, None])
    return tl.where(behind[:, None], q, k).to(tl.float32) * factor, factor


@triton.jit
def over_its_unit(x, DTYPE: tl.constexpr):
    """``(x / unit, unit)``, float32, with the unit the power of two at or below x's largest magnitude; 1 unless DTYPE is
    bfloat16. What is divided by its unit fits into float16, whatever it was."""
    if DTYPE == tl.bfloat16:
        x = x.to(tl.float32)
        exponent = tl.max(tl.max(tl.abs(x), 1), 0).to(tl.int32, bitcast=True) >> 23
        exponent = tl.minimum(tl.maximum(exponent, 1), 253)  # the unit and its inverse are both normal numbers
        unit = (exponent << 23).to(tl.float32, bitcast=True)
        x *= ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    else:
        unit = 1.0
    return x, unit


@triton.jit
def level_masks_kernel(parted_ptr, crossed_ptr, TILE: tl.constexpr):
    """Ones and zeros for one level, [C, C] each; loading them is cheaper than comparing indices in every program.

    parted: the level parts tokens t and s, in either order.
    crossed: the gate in front of token t lies between token s and the edge of their half-block.
    """
    LEVEL = tl.program_id(0)
    t = tl.arange(0, TILE.C)[:, None]
    s = tl.arange(0, TILE.C)[None, :]
    offsets = (LEVEL * TILE.C + t) * TILE.C + s
    tl.store(parted_ptr + offsets, parted(s, t, LEVEL).to(parted_ptr.dtype.element_ty))
    tl.store(crossed_ptr + offsets, crossed_to_middle(t, s, LEVEL).to(crossed_ptr.dtype.element_ty))


@triton.jit
def load_mask(masks_ptr, LEVEL, C: tl.constexpr, DTYPE: tl.constexpr):
    """A level's mask."""
    offs_c = tl.arange(0, C)
    return tl.load(masks_ptr + (LEVEL * C + offs_c[:, None]) * C + offs_c[None, :]).to(DTYPE)


@triton.jit
def scores_kernel(q_ptr, k_ptr, decays, parted_ptr, packing, scale, chunks, sizes, strides, TILE: tl.constexpr):
    """A_ts = c sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]} of one chunk, level by level.

    Rows with their decays are no longer numbers that bfloat16 holds, and rounding them so was half of the error of o. Decays
    are at most 1: once q and k are divided by powers of two, rows fit into float16, whose rounding is eight times finer.
    What rounding the scores themselves leaves is stored, too: without it that would be half of the error of dv.
    """
    T, H, K, V, heads_k, heads_v = sizes
    C: tl.constexpr = TILE.C
    pid = tl.program_id(0)
    h = (pid % H).to(tl.int64)
    b, begin, L, first, where = locate_chunk(pid // H, chunks, T, packing, TILE)
    head = b * T * H + h
    q_at = head_at(q_ptr, strides.q, b, h)
    k_at = head_at(k_ptr, strides.k, b, h // heads_k)
    gamma_at = own_at(decays.gamma, head, H, K)
    t = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]
    FINE: tl.constexpr = tl.float16 if TILE.DTYPE == tl.bfloat16 else TILE.DTYPE
    scores = zeros(C, C)
    for start_k in tl.range(0, K, TILE.BLOCK_K, num_stages=1):
        q = load_rows(q_at, where, start_k, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
        k = load_rows(k_at, where, start_k, K, TILE.BLOCK_K, TILE.DTYPE, TILE.WIDE)
        gamma = load_rows(gamma_at, where, start_k, K, TILE.BLOCK_K, tl.float32)
        scores += tl.where(t == s, tl.sum(q.to(tl.float32) * k, 1)[:, None] * scale, 0.0)
        q, unit_q = over_its_unit(q, TILE.DTYPE)
        k, unit_k = over_its_unit(k, TILE.DTYPE)
        q, k = q.to(TILE.DTYPE), k.to(TILE.DTYPE)
        unit = unit_q * unit_k * scale
        for LEVEL in tl.range(TILE.LEVELS, num_stages=1):
            rows, factor = level_of_rows(q, k, gamma, gamma_at, where, L - 1 - first, start_k, K, LEVEL, TILE)
            rows = rows.to(FINE)
            product = tl.dot(rows, tl.trans(rows), input_precision=TILE.PRECISION)
            scores += product * load_mask(parted_ptr, LEVEL, C, tl.float32) * unit
    # a product of rows has the pair (t, s) at (s, t), too
    scores = tl.where(s <= t, scores, 0.0)
    store_rows(own_at(decays.scores, head, H, C), where, 0, C, scores, C)
    if decays.rest is not None:
        rest = scores - scores.to(TILE.DTYPE).to(tl.float32)
        store_rows(own_at(decays.rest, head, H, C), where, 0, C, rest, C)
