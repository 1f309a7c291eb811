"""What lesson 12 goes on with, made from notebooks/12_dynamic_conv_backward.ipynb: see this package."""

import triton
import triton.language as tl

from kernels.dynamic_conv.words import store_side_by_side


@triton.jit
def store_taps(ptr, taps, mask, W: tl.constexpr, WHOLE: tl.constexpr):
    if WHOLE:
        store_side_by_side(ptr, taps, mask, W, triton.next_power_of_2(W))
    else:
        for w in tl.static_range(W):
            tl.store(ptr + w, taps[w], mask=mask)


@triton.jit
def walk_back(
    dy_ptr, x_ptr, k_ptr, dx_ptr, dk_ptr, runs_ptr, D, RUN,
    W: tl.constexpr, WHOLE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    run_ptr = runs_ptr + tl.program_id(0)
    first = tl.load(run_ptr)
    begin = tl.load(run_ptr + tl.num_programs(0))
    end = tl.load(run_ptr + 2 * tl.num_programs(0))
    offs_d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask_d = offs_d < D

    X, dX = (), ()  # inputs t-W+1 ... t-1, and what their gradients have collected so far
    for w in tl.static_range(W - 1):
        j = first - (W - 1) + w
        inside = mask_d & (j >= begin)
        X += (tl.load(x_ptr + j * D + offs_d, mask=inside, other=0.0).to(tl.float32),)
        dX += (tl.zeros((1, BLOCK_D), tl.float32),)
    for step in range(RUN + W - 1):
        t = first + step
        j = t - (W - 1)
        here = t * D + offs_d
        mask = mask_d & (t < end)
        own = mask & (t < first + RUN)
        done = mask_d & (j >= first) & (j < end)
        dy = tl.load(dy_ptr + here, mask=mask, other=0.0).to(tl.float32)
        X += (tl.load(x_ptr + here, mask=own, other=0.0).to(tl.float32),)
        dX += (tl.zeros((1, BLOCK_D), tl.float32),)
        dk, sums = (), ()
        for w in tl.static_range(W):
            k = tl.load(k_ptr + here * W + w, mask=mask, other=0.0).to(tl.float32)
            dk += (dy * X[w],)
            sums += (dX[w] + dy * k,)
        store_taps(dk_ptr + here * W, dk, own, W, WHOLE)
        tl.store(dx_ptr + j * D + offs_d, sums[0], mask=done)
        X, dX = X[1:], sums[1:]
