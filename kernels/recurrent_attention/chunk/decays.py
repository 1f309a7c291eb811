"""What both passes of the chunked form begin with: what the gates of a call come to in each of its chunks.

In a chunk of C tokens Gamma_t is the sum of the log-decays from its first token to t. A gate a token makes the decay between
two tokens a C x C matrix, e^{Gamma_t - Gamma_s}. A gate for every key component does not factor so: there the scores

    A_ts = c sum_i q_t[i] k_s[i] e^{Gamma_t[i] - Gamma_s[i]}

are made here, level by level, and what follows sees decayed q and k, A, and no gate but e^{Gamma_C}.
"""

import dataclasses

import torch
import triton
import triton.language as tl

from kernels.common.math import LOG2_E, block, cdiv, strides
from kernels.common.sequences import locate_run
from kernels.recurrent_attention.chunk.cut import new_scores, of_scores
from kernels.recurrent_attention.chunk.levels import level_masks_kernel, scores_kernel
from kernels.recurrent_attention.chunk.rows import chunk_rows, load_rows, store_rows

TO_POWERS_OF_TWO = tl.constexpr(LOG2_E)  # log-decays are turned at once: e^x = 2^(x log2 e)
LOWEST = tl.constexpr(-150.0)  # a power of two below float32's smallest number


@triton.jit
def load_scalar_gates(
    g_base,
    stride_g_t,
    stride_g_h,
    gamma_ptr,
    stride_gamma,
    heads,
    H,
    where,
    USE_G: tl.constexpr,
    USE_GAMMA: tl.constexpr,
):
    """The log-decays g + gamma of a chunk's tokens for some heads, [C, heads], zero where there is none."""
    row, rows, exists = where
    mask = exists[:, None] & (heads < H)[None, :]
    gates = tl.zeros(mask.shape, tl.float32)
    if USE_G:
        offsets = (row + rows)[:, None] * stride_g_t + heads[None, :] * stride_g_h
        gates += tl.load(g_base + offsets, mask=mask, other=0.0).to(tl.float32)
    if USE_GAMMA:
        gamma = tl.load(gamma_ptr + heads * stride_gamma, mask=heads < H, other=0.0).to(tl.float32)
        gates += tl.where(mask, gamma[None, :], 0.0)
    return gates * TO_POWERS_OF_TWO


@triton.jit
def decay(difference, alive):
    """2^difference where no reset lies between, else 0."""
    return tl.exp2(tl.where(alive, difference, float("-inf")))


@triton.jit
def decay_matrix(
    gamma_ptr, resets_ptr, place, start, ROWS: tl.constexpr, C: tl.constexpr, GATED: tl.constexpr, COUNTED: tl.constexpr
):
    """M_ts = e^{Gamma_t - Gamma_s} for s <= t, else 0: of a chunk the rows t from ``start`` on, ROWS of them."""
    offs_t = start + tl.arange(0, ROWS)
    offs_s = tl.arange(0, C)
    alive = offs_s[None, :] <= offs_t[:, None]
    matrix = alive.to(tl.float32)
    if GATED:  # no early return: the compiler goes on into what follows one
        gamma_t, gamma_s = tl.load(gamma_ptr + place * C + offs_t), tl.load(gamma_ptr + place * C + offs_s)
        if COUNTED:
            resets_t, resets_s = tl.load(resets_ptr + place * C + offs_t), tl.load(resets_ptr + place * C + offs_s)
            alive &= resets_t[:, None] == resets_s[None, :]
        matrix = decay(gamma_t[:, None] - gamma_s[None, :], alive)
    return matrix


@triton.jit
def _scalar_decay_kernel(
    g_ptr, gamma_h_ptr, gamma_ptr, resets_ptr, from_start_ptr, to_end_ptr, chunk_decay_ptr, sequence_of_chunk_ptr, cu_ptr,
    places, T, H, stride_g_b, stride_g_t, stride_g_h, stride_gamma,
    C: tl.constexpr, BLOCK_H: tl.constexpr, USE_G: tl.constexpr, USE_GAMMA: tl.constexpr, COUNTED: tl.constexpr,
    PACKED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Of a chunk with a gate a token: Gamma_t, e^{Gamma_t}, e^{Gamma_C - Gamma_t}, e^{Gamma_C}, and the count of resets.

    A gate whose decay is zero, -inf or a mask's -1e9, erases the state. It adds nothing to Gamma but one to the count, and
    a factor between tokens whose counts differ is zero: no infinity is ever subtracted from another, and beside no large
    number does Gamma lose the digits of the gates that follow. Where numbers have 16 bits, counting is not worth the
    registers: the Gamma that is stored takes the gate as LOWEST, whose power of two is zero all the same.
    """
    place = tl.program_id(0)
    heads = tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)
    n, b, begin, L, first = locate_run(place, places, T, C, sequence_of_chunk_ptr, cu_ptr, PACKED)
    where = chunk_rows(begin, L, first, C, REVERSE)
    gates = load_scalar_gates(
        g_ptr + b * stride_g_b if USE_G else g_ptr, stride_g_t, stride_g_h, gamma_h_ptr, stride_gamma, heads, H, where,
        USE_G, USE_GAMMA,
    )  # fmt: skip
    reset = gates <= LOWEST
    gamma = tl.cumsum(tl.where(reset, 0.0, gates), 0)
    resets = tl.cumsum(reset.to(tl.int32), 0)
    offs_c = tl.arange(0, C)[:, None]
    gamma_C = tl.sum(tl.where(offs_c == C - 1, gamma, 0.0), 0)
    resets_C = tl.sum(tl.where(offs_c == C - 1, resets, 0), 0)
    places_h = place.to(tl.int64) * H + heads
    exists = heads < H
    offsets = places_h[None, :] * C + offs_c
    if COUNTED:
        tl.store(gamma_ptr + offsets, gamma, mask=exists[None, :])
        tl.store(resets_ptr + offsets, resets, mask=exists[None, :])
    else:
        tl.store(gamma_ptr + offsets, tl.cumsum(tl.maximum(gates, LOWEST), 0), mask=exists[None, :])
    tl.store(from_start_ptr + offsets, decay(gamma, resets == 0), mask=exists[None, :])
    to_end = decay(gamma_C[None, :] - gamma, resets == resets_C[None, :])
    tl.store(to_end_ptr + offsets, to_end, mask=exists[None, :])
    tl.store(chunk_decay_ptr + places_h, decay(gamma_C, resets_C == 0), mask=exists)


@triton.jit
def _vector_decay_kernel(
    q_ptr, k_ptr, g_ptr, gamma_h_ptr, gk_ptr, gamma_ptr, decayed_q_ptr, decayed_k_ptr, chunk_decay_ptr,
    sequence_of_chunk_ptr, cu_ptr, places, T, H, K, heads_per_k,
    stride_q_b, stride_q_t, stride_q_h, stride_q_k, stride_k_b, stride_k_t, stride_k_h, stride_k_k,
    stride_g_b, stride_g_t, stride_g_h, stride_gamma, stride_gk_b, stride_gk_t, stride_gk_h, stride_gk_k,
    C: tl.constexpr, BLOCK_K: tl.constexpr, USE_G: tl.constexpr, USE_GAMMA: tl.constexpr,
    PACKED: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of a chunk with a gate for every key component: Gamma_t, q_t e^{Gamma_t}, k_t e^{Gamma_C - Gamma_t}, e^{Gamma_C}.

    Gates below LOWEST, whose power of two is zero, count as LOWEST: then no difference is of infinities.
    """
    tiles_k = tl.cdiv(K, BLOCK_K)
    pid = tl.program_id(0)
    start_k = pid % tiles_k * BLOCK_K
    h = (pid // tiles_k % H).to(tl.int64)
    place = pid // tiles_k // H
    n, b, begin, L, first = locate_run(place, places, T, C, sequence_of_chunk_ptr, cu_ptr, PACKED)
    where = chunk_rows(begin, L, first, C, REVERSE)
    gk_base = gk_ptr + b * stride_gk_b + h * stride_gk_h
    gates = load_rows(gk_base, stride_gk_t, stride_gk_k, where, start_k, K, BLOCK_K, tl.float32, WIDE) * TO_POWERS_OF_TWO
    if USE_G or USE_GAMMA:
        gates += load_scalar_gates(
            g_ptr + b * stride_g_b if USE_G else g_ptr, stride_g_t, stride_g_h, gamma_h_ptr, stride_gamma,
            h + tl.arange(0, 1), H, where, USE_G, USE_GAMMA,
        )  # fmt: skip
    gates = tl.maximum(gates, LOWEST)
    gamma = tl.cumsum(gates, 0)
    gamma_C = tl.sum(gates, 0)
    head = (b * T * H + h) * K
    store_rows(gamma_ptr + head, H * K, where, start_k, K, gamma, BLOCK_K)
    q_base = q_ptr + b * stride_q_b + h * stride_q_h
    q = load_rows(q_base, stride_q_t, stride_q_k, where, start_k, K, BLOCK_K, tl.float32, WIDE)
    store_rows(decayed_q_ptr + head, H * K, where, start_k, K, q * tl.exp2(gamma), BLOCK_K)
    k_base = k_ptr + b * stride_k_b + h // heads_per_k * stride_k_h
    k = load_rows(k_base, stride_k_t, stride_k_k, where, start_k, K, BLOCK_K, tl.float32, WIDE)
    store_rows(decayed_k_ptr + head, H * K, where, start_k, K, k * tl.exp2(gamma_C[None, :] - gamma), BLOCK_K)
    offs_k = start_k + tl.arange(0, BLOCK_K)
    tl.store(chunk_decay_ptr + (place.to(tl.int64) * H + h) * K + offs_k, tl.exp2(gamma_C), mask=offs_k < K)


@dataclasses.dataclass(frozen=True)
class Decays:
    """What the gates come to in every chunk; what is not there is ``None``.

    One gate a token: gamma, resets, from_start, to_end [chunks, H, C] and chunk_decay [chunks, H].
    A gate for every key component: gamma [B, T, H, K] and chunk_decay [chunks, H, K], scores as ``new_scores`` has them, the
    levels' masks [levels, C, C], and q and k decayed.
    """

    gamma: torch.Tensor | None = None
    resets: torch.Tensor | None = None
    from_start: torch.Tensor | None = None
    to_end: torch.Tensor | None = None
    chunk_decay: torch.Tensor | None = None
    scores: torch.Tensor | None = None
    parted: torch.Tensor | None = None
    crossed: torch.Tensor | None = None
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None

    def switches(self):
        """What kernels are told of which there are."""
        return {"GATED": self.scalar(), "COUNTED": self.resets is not None, "VECTOR": self.vector()}

    def scalar(self):
        """Whether there is one gate a token."""
        return self.from_start is not None

    def vector(self):
        """Whether there is a gate for every key component."""
        return self.scores is not None


def prepare(p, at, x, scores=None):
    """Run the kernels that turn gates into decays, and those that make the scores unless they are given; ``p`` is the call's
    ``Cut``, ``at`` its ``Places``, ``x`` its ``Inputs``."""
    q, k, g, g_gamma, gk = x.q, x.k, x.gates.g, x.gates.g_gamma, x.gates.gk
    new = lambda *shape, dtype=torch.float32: torch.empty(*shape, dtype=dtype, device=q.device)  # noqa: E731
    places = p.chunks
    if gk is None:
        if g is None and g_gamma is None:
            return Decays(q=q, k=k)
        gamma, from_start, to_end = new(3, places, p.H, p.C)
        resets = new(places, p.H, p.C, dtype=torch.int32) if q.dtype == torch.float32 else None
        chunk_decay = new(places, p.H)
        BLOCK_H = block(min(16, p.H), least=1)

        def told():
            switches = {name: p.switches[name] for name in ("PACKED", "REVERSE")}
            options = {"C": p.C, "BLOCK_H": BLOCK_H, "COUNTED": resets is not None, **switches, **p.scalar_gates}
            numbers = places, p.T, p.H, *strides(g, 3), *strides(g_gamma, 1)
            return (places, cdiv(p.H, BLOCK_H)), numbers, options

        x.launch(
            _scalar_decay_kernel, told,
            g, g_gamma, gamma, resets, from_start, to_end, chunk_decay, at.chunks, at.cu_seqlens,
        )  # fmt: skip
        return Decays(gamma, resets, from_start, to_end, chunk_decay, q=q, k=k)

    stored = p.operands
    decayed_q, decayed_k = new(2, p.B, p.T, p.H, p.K, dtype=stored)
    gamma = new(p.B, p.T, p.H, p.K)
    chunk_decay = new(places, p.H, p.K)

    def told_of_decays():
        options = p.options("chunk_decay", without=("BLOCK_V", "DTYPE", "PRECISION"))
        numbers = places, p.T, p.H, p.K, p.H // k.shape[2]
        of_inputs = *q.stride(), *k.stride(), *strides(g, 3), *strides(g_gamma, 1), *gk.stride()
        return (places * p.H * cdiv(p.K, options["BLOCK_K"]),), (*numbers, *of_inputs), options | p.scalar_gates

    x.launch(
        _vector_decay_kernel, told_of_decays,
        q, k, g, g_gamma, gk, gamma, decayed_q, decayed_k, chunk_decay, at.chunks, at.cu_seqlens,
    )  # fmt: skip
    LEVELS = p.C.bit_length() - 1
    fine = torch.float16 if stored == torch.bfloat16 else stored  # as the operands that they multiply
    parted, crossed = new(2, LEVELS, p.C, p.C, dtype=fine)
    x.launch(level_masks_kernel, lambda: ((LEVELS,), (), {"C": p.C}), parted, crossed)
    if scores is None:
        scores = new_scores(q, p.C)
        planes = of_scores(scores)

        def told_of_scores():
            options = p.options("chunk_scores", without=("BLOCK_V",))
            numbers = places, p.T, p.H, p.K, p.H // k.shape[2], x.scale, *q.stride(), *k.stride()
            return (places * p.H,), numbers, options | {"LEVELS": LEVELS}

        x.launch(
            scores_kernel, told_of_scores, q, k, gamma, parted, *planes, at.chunks, at.cu_seqlens,
        )  # fmt: skip
    return Decays(
        gamma, chunk_decay=chunk_decay, scores=scores, parted=parted, crossed=crossed, q=decayed_q, k=decayed_k
    )
