"""The ways that a call can go, token by token or chunk by chunk, and the choice between them.

A call has no one Plan here, because a pass is several launches, sized one by one. Its passes and ``describe`` read the same
remembered sizes, ``recurrence.plan`` or ``cut.plan``, each by the tensors that it is given.
"""

from typing import NamedTuple

from kernels.common.configs import declare
from kernels.common.plan import choose
from kernels.recurrent_attention.chunk import backward as chunk_backward
from kernels.recurrent_attention.chunk import cut as chunk
from kernels.recurrent_attention.chunk import forward as chunk_forward
from kernels.recurrent_attention.recurrence import backward as recurrent_backward
from kernels.recurrent_attention.recurrence import forward as recurrence

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


class Problem(NamedTuple):
    """What the choice depends on: tokens along time, and whether gates act on values."""

    T: int
    gates_on_values: bool


def chosen(mode, q, gv):
    """The ``Choice`` of ``mode``, ``"auto"`` or a way by name.

    Raises:
        ValueError: ``mode`` cannot take the gates.
    """
    problem = Problem(q.shape[1], gv is not None)
    if mode == "chunk" and problem.gates_on_values:
        raise ValueError("mode is 'chunk', needs to be 'recurrent' with gv: chunks have no form for a gate on values")
    return choose(WAYS, problem, mode)


def forward(q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scale, output_final_state, reverse, mode):
    """``(o, final state, scores)``, ``None`` where there is none; the scores are for the backward pass of chunk mode."""
    rest = (scale, initial_state, output_final_state, reverse, cu_seqlens)
    if mode == "chunk":
        return chunk_forward.forward(q, k, v, g, g_gamma, gk, *rest)
    return *recurrence.forward(q, k, v, g, g_gamma, gk, gv, *rest), None


def backward(do, dfinal, q, k, v, g, g_gamma, gk, gv, initial_state, cu_seqlens, scores, scale, final, reverse, mode, needs):
    """The gradients of q, k, v, the four gates and the initial state, ``None`` where ``needs`` says so."""
    if do is None:  # only the final state was used
        do = q.new_zeros(()).expand(*q.shape[:3], v.shape[-1])
    if not final:
        dfinal = None
    if mode == "chunk":
        scores = None if scores is None or not scores.numel() else scores
        needs = [*needs[:6], needs[7]]
        *grads, dinitial = chunk_backward.backward(
            do, dfinal, q, k, v, g, g_gamma, gk, scale, initial_state, reverse, cu_seqlens, needs, scores
        )
        return *grads, None, dinitial
    return recurrent_backward.backward(
        do, dfinal, q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, needs
    )


def step(q, k, v, state, g, g_gamma, gk, gv, slots, scale):
    """One token: the new ``o``; ``state`` is updated."""
    return recurrence.step(q, k, v, state, g, g_gamma, gk, gv, scale, slots)


def describe(q, k, v, g, g_gamma, gk, gv, reverse, cu_seqlens, mode):
    """What the forward pass of a way launches, in words."""
    if mode == "chunk":
        return str(chunk.cut_of((q, k, v, gk), g, g_gamma, reverse, cu_seqlens)[0])
    options, tiles = recurrence.configured("forward", q, v)
    programs = "1 program" if tiles == 1 else f"{tiles} programs"
    return f"{programs} for each head of a sequence, {options['BV']} columns of the state in each"
