"""The ways that a call can go, token by token or chunk by chunk, and the choice between them.

Both passes and ``explain`` read the plan that the chosen way remembers for the call's ``Problem``.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.common.configs import declare
from kernels.common.launch import launch_anew
from kernels.common.plan import choose, remembered
from kernels.common.precision import matmul_in_tf32
from kernels.recurrent_attention.chunk import way as chunk
from kernels.recurrent_attention.gates import Gates
from kernels.recurrent_attention.recurrence import forward as recurrence_forward
from kernels.recurrent_attention.recurrence import way as recurrence

WAYS = {"recurrent": recurrence, "chunk": chunk}

_SIZES = [f"K{2**n} {bits}-bit" for n in range(4, 31) for bits in (16, 32)]
declare(
    "recurrent_attention",
    dict.fromkeys(
        (
            "forward", "step", "backward", "backward_states", "backward_pairs",
            "chunk", "chunk_outputs", "chunk_stored_outputs", "chunk_states", "chunk_gradients", "chunk_inside",
            "chunk_decay", "chunk_scores",
        ),
        _SIZES,
    ),
)  # fmt: skip


class Inputs(NamedTuple):
    """What a call is given, and how it launches; ``scale`` is a number."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Gates
    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    scale: float
    reverse: bool
    launch: Callable = launch_anew


class Problem(NamedTuple):
    """Everything that the choice and a way's plan depend on; of q, k and v the shapes."""

    q: torch.Size
    k: torch.Size
    v: torch.Size
    dtype: torch.dtype
    gates: tuple[str, ...]  # which there are
    packed: int | None  # how many sequences, if they are
    reverse: bool
    tf32: bool  # whether float32 products of chunks may be made of TF32
    device: torch.device

    @property
    def sizes(self):
        """``(B, T, H, K, V, N)``."""
        return (*self.q, self.v[3], self.q[0] if self.packed is None else self.packed)


def chosen(mode, q, k, v, gates):
    """The ``Choice`` of ``mode``, ``"auto"`` or a way by name.

    Raises:
        ValueError: ``mode`` cannot take the gates.
    """
    problem = Problem(q.shape, k.shape, v.shape, q.dtype, gates.given(), None, False, False, q.device)
    if mode == "chunk" and (reason := chunk.reason_not(problem)):
        lacking = ", ".join(name for name in problem.gates if name in chunk.WITHOUT)
        raise ValueError(f"mode is 'chunk', needs to be 'recurrent' with {lacking}: {reason}")
    return choose(WAYS, problem, mode)


def planned(x, mode):
    """The plan of ``Inputs`` by a way."""
    q, k, v, gates, _, cu_seqlens, _, reverse, _ = x
    given = tuple([gate is not None for gate in gates])
    packed = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    tf32 = mode == "chunk" and q.dtype == torch.float32 and matmul_in_tf32()
    return _planned(mode, q.shape, k.shape, v.shape, q.dtype, given, packed, reverse, tf32, q.device)


@remembered
def _planned(mode, q, k, v, dtype, given, *rest):
    names = tuple(itertools.compress(Gates._fields, given))
    return WAYS[mode].plan(Problem(q, k, v, dtype, names, *rest))


def forward(q, k, v, *rest, launches=launch_anew):
    """``(o, final state, scores)``, ``None`` where there is none; the scores are for the backward pass of chunk mode."""
    *gates, initial_state, cu_seqlens, scale, output_final_state, reverse, mode = rest
    x = Inputs(q, k, v, Gates(*gates), initial_state, cu_seqlens, scale, reverse, launches)
    return planned(x, mode).forward(x, output_final_state)


def backward(do, dfinal, q, k, v, *rest, launches=launch_anew):
    """The gradients of q, k, v, the gates and the initial state, ``None`` where ``needs`` says so."""
    *gates, initial_state, cu_seqlens, scores, scale, final, reverse, mode, needs = rest
    x = Inputs(q, k, v, Gates(*gates), initial_state, cu_seqlens, scale, reverse, launches)
    if do is None:  # only the final state was used
        do = q.new_zeros(()).expand(*q.shape[:3], v.shape[-1])
    scores = None if scores is None or not scores.numel() else scores
    return planned(x, mode).backward(x, do, dfinal if final else None, scores, needs)


def step(q, k, v, state, *rest):
    """One token: the new ``o``; ``state`` is updated."""
    *gates, slots, scale = rest
    plan = recurrence.plan_step(q.shape, k.shape, v.shape, q.dtype, q.device)
    return recurrence_forward.step(plan, q, k, v, state, gates, slots, scale)
