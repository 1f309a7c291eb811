"""The way token by token: what it takes, how long, and what its passes launch."""

from dataclasses import dataclass

import torch

from kernels import runtime
from kernels.common.configs import configuration
from kernels.common.math import bits, block, cdiv
from kernels.common.plan import Cost, Launch, remembered
from kernels.common.sequences import count_runs
from kernels.recurrent_attention.recurrence import backward, forward
from kernels.recurrent_attention.tiles import heads_per_kv


def reason_not(problem):
    """Why the recurrence cannot take a problem: it takes every one."""
    return None


def cost(problem):
    """A step a token."""
    return Cost(problem.q[1], "matrix products over chunks of tokens are faster than one token after the other")


@dataclass(frozen=True)
class RecurrencePlan:
    """What the passes launch, without strides. A program owns some columns of one head's state, all of their rows; in the
    backward pass C tokens are a block."""

    N: int  # sequences
    group: int  # query heads that share a head of k and v
    walk: Launch
    states: Launch  # the walk that keeps states for the one back
    back: Launch
    pairs: Launch
    tiles_back: int  # tiles of columns on the way back
    C: int
    kept: int  # states
    blocks: int

    def __str__(self):
        tiles, columns = self.walk.numbers[-1], self.walk.meta["BV"]
        programs = "1 program" if tiles == 1 else f"{tiles} programs"
        return f"{programs} for each head of a sequence, {columns} columns of the state in each"

    forward = forward.forward
    backward = backward.backward


def plan(problem):
    """The ``RecurrencePlan`` of a problem."""
    p = problem
    B, T, H, K, V, N = p.sizes
    group = heads_per_kv(p.q, p.k)
    of = K, V, p.dtype, p.device
    shared = {"REVERSE": p.reverse, "PACKED": p.packed is not None}
    options, tiles = configured("forward", *of)
    walk = Launch((N * H * tiles,), (T, H, group, tiles), shared | options)

    options, tiles_back = configured("backward", *of)
    C, EVERY = options["C"], options["EVERY"]
    # 22 or 16 of float32's 24 bits; the interpreter has all of them, and knows only the first name
    shared |= {"C": C, "PRECISION": "tf32x3" if p.dtype == torch.float32 or runtime.interpreted else "bf16x3"}
    kept, blocks = (count_runs(p.packed, N, T, tokens) for tokens in (C * EVERY, C))
    numbers = T, H, group, tiles_back, B * T, blocks
    back = Launch((N * H * tiles_back,), numbers, shared | options)
    options, tiles = configured("backward_states", *of)
    states = Launch((N * H * tiles,), (T, H, group, tiles), {"EVERY": EVERY} | shared | options)
    options = configuration("recurrent_attention", "backward_pairs", size_class(K, p.dtype), p.device)
    SLICE = options.pop("SLICE")
    options |= {"SLICE_K": min(SLICE, block(K)), "SLICE_V": min(SLICE, block(V)), "DIGITS": C.bit_length() - 1}
    pairs = Launch((blocks * H,), numbers, {"K": K, "V": V} | shared | options)
    return RecurrencePlan(N, group, walk, states, back, pairs, tiles_back, C, kept, blocks)


@remembered
def plan_step(q, k, v, dtype, device):
    """The ``Launch`` of one token's step, without strides, for tensors of these shapes."""
    B, H, K = q
    options, tiles = configured("step", K, v[2], dtype, device)
    return Launch((B * H * tiles,), (H, heads_per_kv(q, k), tiles), options)


def size_class(K, dtype):
    """The key of a launch configuration: rows of the padded state, and bits per element of q, k and v."""
    return f"K{block(K)} {bits(dtype)}"


@remembered
def configured(kernel, K, V, dtype, device):
    """``(options, tiles)``: arguments of a kernel for BV columns of the state (all, if none are set), and how many such."""
    options = configuration("recurrent_attention", kernel, size_class(K, dtype), device)
    options |= {"K": K, "V": V, "BK": block(K), "BV": min(options.get("BV", block(V)), block(V))}
    return options, cdiv(V, options["BV"])
