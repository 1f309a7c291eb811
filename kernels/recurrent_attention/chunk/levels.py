"""Scores of a chunk with a gate for every key component: level by level, each a matrix product.

    A_ts = c sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]}
"""

import triton
import triton.language as tl

from kernels.common.sequences import locate_run
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, store_rows
from kernels.recurrent_attention.tiles import crossed_to_middle, parted, right_of_middle

# Two tokens s < t of a chunk of C = 2^n are parted by the edge in the middle of exactly one of its aligned blocks of
# 2, 4, ..., C tokens: the smallest that holds both. Measured from that edge both exponents, Gamma_t - Gamma_edge and
# Gamma_edge - Gamma_s, are <= 0, whatever the gates. So a level (a block size) is one matrix product of rows that are q
# behind the edge and k before it, of which the pairs in one block, on different sides, are kept.


@triton.jit
def level_of_rows(
    q, k, gamma, gamma_base, stride_gamma_t, begin, L, first, start_k, K, LEVEL,
    C: tl.constexpr, BLOCK_K: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The rows of a level with half-blocks of 2^LEVEL tokens, [C, BLOCK_K]: ``(q or k with its decay, the decay)``."""
    offs_c = tl.arange(0, C)
    behind = right_of_middle(offs_c, LEVEL)
    # The last token before the edge; behind a sequence's end Gamma would not grow, so its last token will do.
    edge = tl.minimum((offs_c >> LEVEL | 1) * (1 << LEVEL) - 1, (L - 1 - first).to(tl.int32))
    row, rows, exists = chunk_rows(begin, L, first, C, REVERSE)
    rows = -edge if REVERSE else edge
    gamma_edge = load_rows(gamma_base, stride_gamma_t, 1, (row, rows, exists), start_k, K, BLOCK_K, tl.float32, False)
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
def level_masks_kernel(parted_ptr, crossed_ptr, C: tl.constexpr):
    """Ones and zeros for one level, [C, C] each; loading them is cheaper than comparing indices in every program.

    parted: the level parts tokens t and s, in either order.
    crossed: the gate in front of token t lies between token s and the edge of their half-block.
    """
    LEVEL = tl.program_id(0)
    t = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]
    offsets = (LEVEL * C + t) * C + s
    tl.store(parted_ptr + offsets, parted(s, t, LEVEL).to(parted_ptr.dtype.element_ty))
    tl.store(crossed_ptr + offsets, crossed_to_middle(t, s, LEVEL).to(crossed_ptr.dtype.element_ty))


@triton.jit
def load_mask(masks_ptr, LEVEL, C: tl.constexpr, DTYPE: tl.constexpr):
    """A level's mask."""
    offs_c = tl.arange(0, C)
    return tl.load(masks_ptr + (LEVEL * C + offs_c[:, None]) * C + offs_c[None, :]).to(DTYPE)


@triton.jit
def scores_kernel(
    q_ptr, k_ptr, gamma_ptr, parted_ptr, scores_ptr, rest_ptr, sequence_of_chunk_ptr, cu_ptr,
    scale, places, T, H, K, heads_per_k, q_strides, k_strides,
    C: tl.constexpr, LEVELS: tl.constexpr, BLOCK_K: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A_ts = c sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]} of one chunk, level by level.

    Rows with their decays are no longer numbers that bfloat16 holds, and rounding them so was half of the error of o. Decays
    are at most 1: once q and k are divided by powers of two, rows fit into float16, whose rounding is eight times finer.
    What rounding the scores themselves leaves is stored, too: without it that would be half of the error of dv.
    """
    pid = tl.program_id(0)
    h = (pid % H).to(tl.int64)
    n, b, begin, L, first = locate_run(pid // H, places, T, C, sequence_of_chunk_ptr, cu_ptr, cu_ptr is not None)
    where = chunk_rows(begin, L, first, C, REVERSE)
    head = b * T * H + h
    q_base = q_ptr + b * q_strides.b + h * q_strides.h
    k_base = k_ptr + b * k_strides.b + h // heads_per_k * k_strides.h
    t = tl.arange(0, C)[:, None]
    s = tl.arange(0, C)[None, :]
    FINE: tl.constexpr = tl.float16 if DTYPE == tl.bfloat16 else DTYPE
    scores = tl.zeros([C, C], tl.float32)
    for start_k in tl.range(0, K, BLOCK_K, num_stages=1):
        q = load_rows(q_base, q_strides.t, q_strides.d, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        k = load_rows(k_base, k_strides.t, k_strides.d, where, start_k, K, BLOCK_K, DTYPE, WIDE)
        gamma = load_rows(gamma_ptr + head * K, H * K, 1, where, start_k, K, BLOCK_K, tl.float32, False)
        scores += tl.where(t == s, tl.sum(q.to(tl.float32) * k, 1)[:, None] * scale, 0.0)
        q, unit_q = over_its_unit(q, DTYPE)
        k, unit_k = over_its_unit(k, DTYPE)
        q, k = q.to(DTYPE), k.to(DTYPE)
        unit = unit_q * unit_k * scale
        for LEVEL in tl.range(LEVELS, num_stages=1):
            rows, factor = level_of_rows(
                q, k, gamma, gamma_ptr + head * K, H * K, begin, L, first, start_k, K, LEVEL, C, BLOCK_K, REVERSE
            )  # fmt: skip
            rows = rows.to(FINE)
            product = tl.dot(rows, tl.trans(rows), input_precision=PRECISION)
            scores += product * load_mask(parted_ptr, LEVEL, C, tl.float32) * unit
    # a product of rows has the pair (t, s) at (s, t), too
    scores = tl.where(s <= t, scores, 0.0)
    store_rows(scores_ptr + head * C, H * C, where, 0, C, scores, C)
    if rest_ptr is not None:
        store_rows(rest_ptr + head * C, H * C, where, 0, C, scores - scores.to(DTYPE).to(tl.float32), C)
