"""Sequences packed end to end along time, described by ``cu_seqlens`` (cumulative lengths, [N+1])."""

import torch
import triton
import triton.language as tl

from kernels.common.checks import values_checked
from kernels.common.gpu import multiprocessors
from kernels.common.math import cdiv
from kernels.common.operator import launch


@triton.jit(do_not_specialize=["N", "T"])
def _clear_outside_kernel(cu_ptr, outputs, sizes, N, T, BLOCK: tl.constexpr):
    """Zeros in the rows, ``size`` elements each, of tokens before cu[0] and from cu[N] to T - 1, by all programs."""
    before = tl.load(cu_ptr).to(tl.int64)
    behind = tl.load(cu_ptr + N).to(tl.int64)
    own = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for o in tl.static_range(len(outputs)):
        zero = tl.zeros([BLOCK], outputs[o].dtype.element_ty)
        for i in range(tl.cdiv(before * sizes[o], step)):
            offs = i * step + own
            tl.store(outputs[o] + offs, zero, mask=offs < before * sizes[o])
        for i in range(tl.cdiv((T - behind) * sizes[o], step)):
            offs = i * step + own
            tl.store(outputs[o] + behind * sizes[o] + offs, zero, mask=offs < (T - behind) * sizes[o])


def clear_outside(cu_seqlens, T, *outputs):
    """Zeros in the rows of tokens that lie in no sequence, before the first or behind the last.

    Args:
        cu_seqlens: [N+1] on the device, or ``None``, where there are no such tokens.
        T: tokens along time.
        outputs: contiguous tensors [1, T, ...], or ``None``.
    """
    outputs = tuple(t for t in outputs if t is not None and t.numel())
    if cu_seqlens is None or not outputs or cu_seqlens.device.type == "cpu" and _cover(cu_seqlens, T):
        return
    sizes = tuple(t.numel() // T for t in outputs)
    grid = (2 * multiprocessors(cu_seqlens.device),)
    launch(_clear_outside_kernel, grid, cu_seqlens, outputs, sizes, cu_seqlens.shape[0] - 1, T, BLOCK=2048)


def without_outside(tensor, cu_seqlens):
    """``tensor`` [1, T, ...] with zeros in the rows of tokens that lie in no sequence, and a gradient that is zero there."""
    if cu_seqlens is None or values_checked(cu_seqlens) and _cover(cu_seqlens, tensor.shape[1]):
        return tensor
    token = torch.arange(tensor.shape[1], device=tensor.device)
    inside = (token >= cu_seqlens[0]) & (token < cu_seqlens[-1])
    return torch.where(inside.view(1, -1, *[1] * (tensor.ndim - 2)), tensor, 0)


def _cover(cu_seqlens, T):
    """Whether sequences hold all tokens, by values on the CPU."""
    return cu_seqlens[0].item() == 0 and cu_seqlens[-1].item() == T


# Packed time is cut into runs of RUN tokens that never cross a sequence's end. Sequence n owns the places of a common list
# that begin at cu[n] // RUN + n: it has at most cu[n+1] // RUN - cu[n] // RUN + 1 runs, so places never collide, their number
# T // RUN + N is known without reading cu, and nothing waits for the GPU. A place whose run begins past the end is empty.


@triton.jit
def _sequence_of_run_kernel(cu_ptr, out_ptr, N, RUN, places, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offs_r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # Bisection for the last n whose places begin at or before r.
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.zeros([BLOCK], tl.int32) + N
    for _ in range(STEPS):
        middle = (low + high) // 2
        begins = tl.load(cu_ptr + middle, mask=middle < N, other=0).to(tl.int64) // RUN + middle
        searching = high - low > 1
        low = tl.where(searching & (begins <= offs_r), middle, low)
        high = tl.where(searching & (begins > offs_r), middle, high)
    tl.store(out_ptr + offs_r, low, mask=offs_r < places)


def count_runs(packed, N, T, RUN):
    """How many runs of RUN consecutive tokens N sequences are cut into; a sequence's last run may be shorter.

    Args:
        packed: ``None`` where they have T tokens each; else they lie end to end along T tokens.
        N: number of sequences.
        T: tokens along time.
        RUN: tokens in a run.
    """
    if packed is None:
        return N * cdiv(T, RUN)
    return T // RUN + N if N else 0


def find_sequences(N, runs, RUN):
    """``(kernel, grid, arguments)`` of the launch, with ``cu_seqlens`` and an int32 tensor [runs], that writes the sequence
    of each of ``count_runs``' runs."""
    BLOCK = 1024
    sizes = {"N": N, "RUN": RUN, "places": runs, "STEPS": max(N, 1).bit_length(), "BLOCK": BLOCK}
    return _sequence_of_run_kernel, (cdiv(runs, BLOCK),), sizes


def sequence_of_runs(cu_seqlens, runs, RUN):
    """The sequence of each of ``count_runs``' runs of packed sequences, int32 [runs]; ``None`` where ``cu_seqlens`` is."""
    if cu_seqlens is None:
        return None
    out = torch.empty(runs, dtype=torch.int32, device=cu_seqlens.device)
    kernel, grid, sizes = find_sequences(cu_seqlens.shape[0] - 1, runs, RUN)
    launch(kernel, grid, cu_seqlens, out, **sizes)
    return out


@triton.jit
def locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, PACKED: tl.constexpr):
    """Where run r lies: ``(n, row, begin, L, first)``: its sequence, which is L tokens of batch row ``row`` from token
    ``begin`` on, and its own first token, counted from there. ``first >= L`` where there is no such run."""
    if PACKED:
        n = tl.load(sequence_of_run_ptr + r, mask=r < runs, other=0).to(tl.int64)
        begin = tl.load(cu_ptr + n).to(tl.int64)
        first = (r - (begin // RUN + n)) * RUN
        # below 0 lies what comes before the first sequence; no run, even there, has a token less than a length so negative
        L = tl.where((r < runs) & (first >= 0), tl.load(cu_ptr + n + 1).to(tl.int64) - begin, -(1 << 40))
        return n, n * 0, begin, L, first
    else:
        per_sequence = tl.cdiv(T, RUN)  # r is 32-bit: GPUs have no 64-bit division, they run a routine for it
        n = tl.where(r < runs, r // per_sequence, 0).to(tl.int64)
        return n, n, n * 0, tl.where(r < runs, T, 0), (r % per_sequence).to(tl.int64) * RUN


@triton.jit
def first_run(n, begin, T, RUN, PACKED: tl.constexpr):
    """Where sequence n's runs begin in the list of ``sequence_of_runs``; ``begin`` is the sequence's first token."""
    if PACKED:
        place = begin // RUN + n
    else:
        place = n * tl.cdiv(T, RUN)
    return place


@triton.jit
def sequence_span(n, T, cu_ptr, PACKED: tl.constexpr):
    """Where sequence n lies: ``(batch row, first token, length)``."""
    if PACKED:
        begin = tl.load(cu_ptr + n).to(tl.int64)
        return n * 0, begin, tl.load(cu_ptr + n + 1).to(tl.int64) - begin
    else:
        return n, n * 0, T
