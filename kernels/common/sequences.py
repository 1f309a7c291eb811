"""Sequences packed end to end along time, described by ``cu_seqlens`` (cumulative lengths, [N+1])."""

import torch
import triton
import triton.language as tl

from kernels.common.launch import launch
from kernels.common.validate import check_tensor, values_checked


def check_cu_seqlens(cu_seqlens, B, T, like):
    """Raise ``ValueError`` unless ``cu_seqlens`` [N+1] splits T time steps of a single batch row; return N.

    Args:
        cu_seqlens: int32 or int64 [N+1], or ``None`` for one sequence per batch row. Equal neighbours are empty sequences.
        B: batch size, which must be 1 with ``cu_seqlens``.
        T: number of time steps.
        like: ``(name, tensor)`` whose device ``cu_seqlens`` must share.

    Returns:
        N, the number of sequences.
    """
    if cu_seqlens is None:
        return B
    check_tensor("cu_seqlens", cu_seqlens, (None,), "[N+1]", dtypes=(torch.int32, torch.int64), like=like)
    if cu_seqlens.shape[0] == 0:
        raise ValueError("cu_seqlens has shape [0], needs [N+1] with at least the leading 0")
    if B != 1:
        raise ValueError(f"cu_seqlens needs a batch of 1, because sequences lie end to end along time; got B = {B}")
    if values_checked(cu_seqlens):
        values = cu_seqlens.tolist()
        if values[0] != 0 or values[-1] != T or any(a > b for a, b in zip(values[:-1], values[1:], strict=True)):
            raise ValueError(f"cu_seqlens is {_shorten(values)}, needs to start at 0, never fall and end at T = {T}")
    return cu_seqlens.shape[0] - 1


def _shorten(values):
    return str(values) if len(values) <= 12 else f"[{', '.join(map(str, values[:6]))}, ..., {values[-1]}]"


@triton.jit
def _locate_tokens_kernel(cu_ptr, sequence_ptr, position_ptr, T, N, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offs_t = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs_t < T
    # Bisection for the last n with cu[n] <= t: of several sequences that begin at t, all but that one are empty.
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.zeros([BLOCK], tl.int32) + N
    for _ in range(STEPS):
        middle = (low + high) // 2
        begins_before = tl.load(cu_ptr + middle, mask=middle < N, other=0) <= offs_t
        searching = high - low > 1
        low = tl.where(searching & begins_before, middle, low)
        high = tl.where(searching & (begins_before == 0), middle, high)
    begin = tl.load(cu_ptr + low, mask=mask, other=0)
    tl.store(sequence_ptr + offs_t, low, mask=mask)
    tl.store(position_ptr + offs_t, (offs_t - begin).to(tl.int32), mask=mask)


def locate_tokens(cu_seqlens, T):
    """Which sequence each packed token belongs to and its place there; the GPU is not waited for.

    Args:
        cu_seqlens: contiguous int [N+1], or ``None``.
        T: number of tokens.

    Returns:
        ``(sequence, position)``, each int32 [T]; ``(None, None)`` without ``cu_seqlens``.
    """
    if cu_seqlens is None:
        return None, None
    N = cu_seqlens.shape[0] - 1
    sequence, position = (torch.empty(T, dtype=torch.int32, device=cu_seqlens.device) for _ in range(2))
    BLOCK = 1024
    launch(
        _locate_tokens_kernel,
        (triton.cdiv(T, BLOCK),),
        cu_seqlens,
        sequence,
        position,
        T,
        N,
        outputs=(sequence, position),
        STEPS=max(N, 1).bit_length(),
        BLOCK=BLOCK,
    )
    return sequence, position
