"""What both passes of the chunked form begin with: what the gates of a call come to in each of its chunks.

In a chunk of C tokens Gamma_t is the sum of the log-decays from its first token to t. A gate a token makes the decay between
two tokens a C x C matrix, e^{Gamma_t - Gamma_s}. A gate for every key component does not factor so: there the scores

    A_ts = c sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]}

are made here, level by level, and what follows sees decayed q and k, A, and no gate but e^{Gamma_C}.
"""

import triton
import triton.language as tl

from kernels.common.math import LOG2_E
from kernels.recurrent_attention.chunk.rows import load_rows, locate_chunk, store_rows
from kernels.recurrent_attention.plain import head_at, own_at, zeros
from kernels.recurrent_attention.plain_backward import crossed_to_middle, parted, right_of_middle

TO_POWERS_OF_TWO = tl.constexpr(LOG2_E)  # log-decays are turned at once: e^x = 2^(x log2 e)
LOWEST = tl.constexpr(-150.0)  # a power of two below float32's smallest number


@triton.jit
def load_scalar_gates(gates, strides, b, heads, H, where):
    """The log-decays g + gamma of a chunk's tokens for some heads, [C, heads], zero where there is none."""
    row, rows, exists = where
    mask = exists[:, None] & (heads < H)[None, :]
    sums = tl.zeros(mask.shape, tl.float32)
    if gates.g is not None:
        offsets = (row + rows)[:, None] * strides.g.t + heads[None, :] * strides.g.h
        sums += tl.load(gates.g + b * strides.g.b + offsets, mask=mask, other=0.0).to(tl.float32)
    if gates.g_gamma is not None:
        gamma = tl.load(gates.g_gamma + heads * strides.g_gamma.h, mask=heads < H, other=0.0).to(tl.float32)
        sums += tl.where(mask, gamma[None, :], 0.0)
    return sums * TO_POWERS_OF_TWO


@triton.jit
def decay(difference, alive):
    """2^difference where no reset lies between, else 0."""
    return tl.exp2(tl.where(alive, difference, float("-inf")))


@triton.jit
def decay_matrix(decays, place, start, ROWS: tl.constexpr, C: tl.constexpr):
    """M_ts = e^{Gamma_t - Gamma_s} for s <= t, else 0: of a chunk the rows t from ``start`` on, ROWS of them."""
    offs_t = start + tl.arange(0, ROWS)
    offs_s = tl.arange(0, C)
    alive = offs_s[None, :] <= offs_t[:, None]
    matrix = alive.to(tl.float32)
    if decays.gamma is not None:  # no early return: the compiler goes on into what follows one
        gamma_t, gamma_s = tl.load(decays.gamma + place * C + offs_t), tl.load(decays.gamma + place * C + offs_s)
        if decays.resets is not None:
            resets_t = tl.load(decays.resets + place * C + offs_t)
            resets_s = tl.load(decays.resets + place * C + offs_s)
            alive &= resets_t[:, None] == resets_s[None, :]
        matrix = decay(gamma_t[:, None] - gamma_s[None, :], alive)
    return matrix


@triton.jit
def scalar_decay_kernel(gamma_ptr, decays, gates, packing, chunks, sizes, strides, TILE: tl.constexpr):
    """Of a chunk with a gate a token: Gamma_t, e^{Gamma_t}, e^{Gamma_C - Gamma_t}, e^{Gamma_C}, and the count of resets.

    A gate whose decay is zero, -inf or a mask's -1e9, erases the state. It adds nothing to Gamma but one to the count, and
    a factor between tokens whose counts differ is zero: no infinity is ever subtracted from another, and beside no large
    number does Gamma lose the digits of the gates that follow. Where numbers have 16 bits, counting is not worth the
    registers: the Gamma that is stored takes the gate as LOWEST, whose power of two is zero all the same.
    """
    H = sizes.H
    place = tl.program_id(0)
    heads = tl.program_id(1).to(tl.int64) * TILE.BLOCK_H + tl.arange(0, TILE.BLOCK_H)
    b, begin, L, first, where = locate_chunk(place, chunks, sizes.T, packing, TILE)
    sums = load_scalar_gates(gates, strides.gates, b, heads, H, where)
    reset = sums <= LOWEST
    gamma = tl.cumsum(tl.where(reset, 0.0, sums), 0)
    resets = tl.cumsum(reset.to(tl.int32), 0)
    offs_c = tl.arange(0, TILE.C)[:, None]
    gamma_C = tl.sum(tl.where(offs_c == TILE.C - 1, gamma, 0.0), 0)
    resets_C = tl.sum(tl.where(offs_c == TILE.C - 1, resets, 0), 0)
    places_h = place.to(tl.int64) * H + heads
    exists = heads < H
    offsets = places_h[None, :] * TILE.C + offs_c
    if decays.resets is not None:
        tl.store(gamma_ptr + offsets, gamma, mask=exists[None, :])
        tl.store(decays.resets + offsets, resets, mask=exists[None, :])
    else:
        tl.store(gamma_ptr + offsets, tl.cumsum(tl.maximum(sums, LOWEST), 0), mask=exists[None, :])
    tl.store(decays.from_start + offsets, decay(gamma, resets == 0), mask=exists[None, :])
    to_end = decay(gamma_C[None, :] - gamma, resets == resets_C[None, :])
    tl.store(decays.to_end + offsets, to_end, mask=exists[None, :])
    tl.store(decays.chunk_decay + places_h, decay(gamma_C, resets_C == 0), mask=exists)


@triton.jit
def vector_decay_kernel(
    q_ptr, k_ptr, gates, decays, q_out_ptr, k_out_ptr, packing, chunks, sizes, strides, TILE: tl.constexpr
):
    """Of a chunk with a gate for every key component: Gamma_t, q_t e^{Gamma_t}, k_t e^{Gamma_C - Gamma_t}, e^{Gamma_C}.

    Gates below LOWEST, whose power of two is zero, count as LOWEST: then no difference is of infinities.
    """
    T, H, K, V, heads_k, heads_v = sizes
    tiles_k = tl.cdiv(K, TILE.BLOCK_K)
    pid = tl.program_id(0)
    start_k = pid % tiles_k * TILE.BLOCK_K
    h = (pid // tiles_k % H).to(tl.int64)
    place = pid // tiles_k // H
    b, begin, L, first, where = locate_chunk(place, chunks, T, packing, TILE)
    gk_at = head_at(gates.gk, strides.gates.gk, b, h)
    sums = load_rows(gk_at, where, start_k, K, TILE.BLOCK_K, tl.float32, TILE.WIDE) * TO_POWERS_OF_TWO
    if gates.g is not None or gates.g_gamma is not None:
        sums += load_scalar_gates(gates, strides.gates, b, h + tl.arange(0, 1), H, where)
    sums = tl.maximum(sums, LOWEST)
    gamma = tl.cumsum(sums, 0)
    gamma_C = tl.sum(sums, 0)
    head = b * T * H + h
    store_rows(own_at(decays.gamma, head, H, K), where, start_k, K, gamma, TILE.BLOCK_K)
    q_at = head_at(q_ptr, strides.q, b, h)
    q = load_rows(q_at, where, start_k, K, TILE.BLOCK_K, tl.float32, TILE.WIDE) * tl.exp2(gamma)
    store_rows(own_at(q_out_ptr, head, H, K), where, start_k, K, q, TILE.BLOCK_K)
    k_at = head_at(k_ptr, strides.k, b, h // heads_k)
    k = load_rows(k_at, where, start_k, K, TILE.BLOCK_K, tl.float32, TILE.WIDE) * tl.exp2(gamma_C[None, :] - gamma)
    store_rows(own_at(k_out_ptr, head, H, K), where, start_k, K, k, TILE.BLOCK_K)
    offs_k = start_k + tl.arange(0, TILE.BLOCK_K)
    tl.store(decays.chunk_decay + (place.to(tl.int64) * H + h) * K + offs_k, tl.exp2(gamma_C), mask=offs_k < K)


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
