"""The way token by token: what it takes, how long, and what its passes launch."""

from typing import NamedTuple

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


class RecurrencePlan(NamedTuple):
    """What the passes launch, without strides. A program owns some columns of one head's state, all of their rows; in the
    backward pass C tokens are a block."""

    N: int  # sequences
    group: int  # query heads that share a head of k and v
    walk: Launch
    states: Launch  # the walk that keeps states for the one back
    back: Launch
    pairs: Launch
    C: int
    parts: int  # tiles of columns on the way back, each with sums of its own
    kept: int  # states
    blocks: int

    def __str__(self):
        columns = self.walk.meta["BV"]
        tiles = cdiv(self.walk.meta["V"], columns)
        programs = "1 program" if tiles == 1 else f"{tiles} programs"
        return f"{programs} for each head of a sequence, {columns} columns of the state in each"

    forward = forward.forward
    backward = backward.backward


def plan(problem):
    """The ``RecurrencePlan`` of a problem."""
    p = problem
    B, T, H, K, V, N = p.sizes
    group = heads_per_kv(p.q, p.k)
    walk, states, back, pairs, C, EVERY = options_of(K, V, p.dtype, p.reverse, p.packed is not None, p.device)
    kept, blocks = count_runs(p.packed, N, T, C * EVERY), count_runs(p.packed, N, T, C)

    def walked(options, *more):
        tiles = cdiv(V, options["BV"])
        return Launch((N * H * tiles,), (T, H, group, tiles, *more), options)

    back = walked(back, B * T, blocks)
    pairs = Launch((blocks * H,), back.numbers, pairs)
    return RecurrencePlan(N, group, walked(walk), walked(states), back, pairs, C, cdiv(V, back.meta["BV"]), kept, blocks)


@remembered
def options_of(K, V, dtype, reverse, packed, device):
    """``(walk, states, back, pairs, C, EVERY)``: options of every kernel, for any number of tokens; C of these are a block of
    the backward pass, and the state is kept before every EVERY-th."""
    shared = {"REVERSE": reverse, "PACKED": packed}
    walk, states, back = (configured(name, K, V, dtype, device) for name in ("forward", "backward_states", "backward"))
    C, EVERY = back["C"], back["EVERY"]
    # 22 or 16 of float32's 24 bits; the interpreter has all of them, and knows only the first name
    precision = "tf32x3" if dtype == torch.float32 or runtime.interpreted else "bf16x3"
    blocks = shared | {"C": C, "PRECISION": precision}
    pairs = configuration("recurrent_attention", "backward_pairs", size_class(K, dtype), device)
    SLICE = pairs.pop("SLICE")
    pairs |= {"SLICE_K": min(SLICE, block(K)), "SLICE_V": min(SLICE, block(V)), "DIGITS": C.bit_length() - 1}
    pairs |= {"K": K, "V": V}
    return shared | walk, {"EVERY": EVERY} | blocks | states, blocks | back, blocks | pairs, C, EVERY


@remembered
def plan_step(q, k, v, dtype, device):
    """The ``Launch`` of one token's step, without strides, for tensors of these shapes."""
    B, H, K = q
    options = configured("step", K, v[2], dtype, device)
    tiles = cdiv(v[2], options["BV"])
    return Launch((B * H * tiles,), (H, heads_per_kv(q, k), tiles), options)


def size_class(K, dtype):
    """The key of a launch configuration: rows of the padded state, and bits per element of q, k and v."""
    return f"K{block(K)} {bits(dtype)}"


def configured(kernel, K, V, dtype, device):
    """Options of a kernel, for BV columns of the state: all, if none are set."""
    options = configuration("recurrent_attention", kernel, size_class(K, dtype), device)
    return options | {"K": K, "V": V, "BK": block(K), "BV": min(options.get("BV", block(V)), block(V))}
