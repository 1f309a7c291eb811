"""The dynamic convolution, one channel a lane: forward, backward, the state at both ends of a sequence, and one token's step.

    u[t] = sum_w k[t, w] X[t-W+1+w]        y[t] = act(u[t] + b) + r[t]        (X is x, with the state in front)

A program owns BLOCK channels of ROWS runs, each RUN consecutive tokens of one sequence, and walks along its runs with the
last W - 1 inputs in registers: x and the weights are read once. The gradients, with du = dy act'(u + b):

    dk[t, w] = du[t] X[t-W+1+w]                          an outer product: no reduction
    dX[j]    = sum_w du[j+W-1-w] k[j+W-1-w, w]           the W outputs that saw X[j]; j+W-1-w in the same sequence

The walk keeps W accumulators, one for each X[t-W+1] ... X[t]. Step t adds du[t] k[t, w] to accumulator w; then the oldest
is complete, is stored, and leaves. A run owns the gradients of its own tokens, and walks W - 1 steps further to complete its
last dx. States touch only the W - 1 times before a sequence and its last W - 1 tokens: ``ends_kernel`` has these sums.

``words`` has the same walks for several channels a lane.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.sequences import locate_run, sequence_span


class Strides(NamedTuple):
    """Of x, dy and residual [B, T, D]; of a weight for each token [B, T, D, W], else 0 for b and t."""

    b: int
    t: int
    d: int
    w: int = 0


class StateStrides(NamedTuple):
    """Of a state [N, D, W-1]."""

    n: int
    d: int
    i: int


@triton.jit
def activate(u, ACT: tl.constexpr):
    """act(u); ``None`` is the identity."""
    if ACT == "silu":
        u *= tl.sigmoid(u)
    return u


@triton.jit
def slope(u, ACT: tl.constexpr):
    """act'(u): of SiLU s (1 + u (1 - s)) with s = sigmoid(u)."""
    if ACT == "silu":
        s = tl.sigmoid(u)
        u = s * (1 + u * (1 - s))
    return u


@triton.jit
def load_float(at, mask):
    """Numbers in float32, 0 where there is none."""
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_taps(k_at, mask, stride_kw, W: tl.constexpr):
    """The W taps of a tile, as they are in memory."""
    k = ()
    for w in tl.static_range(W):
        k += (tl.load(k_at + w * stride_kw, mask=mask, other=0),)
    return k


@triton.jit
def load_step(
    dy_row, x_row, k_row, t, mask, own, dy_strides, x_strides, k_strides, W: tl.constexpr, ACT: tl.constexpr
):  # fmt: skip
    """dy, x and the taps of one time step, as they are in memory."""
    dy = tl.load(dy_row + t * dy_strides.t, mask=mask, other=0)
    # past the run's own steps x matters only to recompute u
    x = tl.load(x_row + t * x_strides.t, mask=mask if ACT is not None else mask & own, other=0)
    return dy, x, load_taps(k_row + t * k_strides.t, mask, k_strides.w, W)


@triton.jit
def window_before(n, first, L, offs_d, mask_d, x_row, stride_xt, state_ptr, state_strides, W: tl.constexpr):
    """X[t-W+1] ... X[t-1] of the runs that begin at t = first."""
    X = ()
    for w in tl.static_range(W - 1):
        j = first - (W - 1) + w
        X += (load_float(x_row + j * stride_xt, mask_d & (j >= 0) & (j < L)),)
    if state_ptr is not None:
        if tl.min(first) < W - 1:  # few runs begin that near to a sequence's first token: the others skip this
            with_state = ()
            for w in tl.static_range(W - 1):
                before = mask_d & (first + w < W - 1) & (first < L)
                slot = state_ptr + n * state_strides.n + offs_d * state_strides.d + (first + w) * state_strides.i
                with_state += (X[w] + load_float(slot, before),)
            X = with_state
    return X


@triton.jit
def convolve(k, X, W: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """u = sum_w k[t, w] X[t-W+1+w]."""
    u = tl.zeros([ROWS, BLOCK], tl.float32)
    for w in tl.static_range(W):
        u += k[w].to(tl.float32) * X[w]
    return u


@triton.jit
def conv_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, y_ptr,
    T, D, runs, tiles_d, x_strides, k_strides, stride_bias, residual_strides, state_strides,
    W: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y of ROWS runs; y is contiguous, tensors that are absent are ``None``."""
    pid = tl.program_id(0)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < D
    r = pid // tiles_d * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)

    x_row = x_ptr + row * x_strides.b + begin * x_strides.t + offs_d * x_strides.d
    k_row = k_ptr + row * k_strides.b + begin * k_strides.t + offs_d * k_strides.d
    y_row = y_ptr + (row * T + begin) * D + offs_d
    X = window_before(n, first, L, offs_d, mask_d, x_row, x_strides.t, state_ptr, state_strides, W)
    for step in range(RUN):
        t = first + step
        mask = mask_d & (t < L)
        X += (load_float(x_row + t * x_strides.t, mask),)
        u = convolve(load_taps(k_row + t * k_strides.t, mask, k_strides.w, W), X, W, ROWS, BLOCK)
        if bias_ptr is not None:
            u += load_float(bias_ptr + offs_d * stride_bias, mask_d)
        u = activate(u, ACT)
        if residual_ptr is not None:
            r_row = residual_ptr + row * residual_strides.b + begin * residual_strides.t + offs_d * residual_strides.d
            u += load_float(r_row + t * residual_strides.t, mask)
        tl.store(y_row + t * D, u.to(y_ptr.dtype.element_ty), mask=mask)
        X = X[1:]


@triton.jit(do_not_specialize=["T", "runs", "RUN", "tiles_d"])
def conv_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, dx_ptr, dk_ptr, dbias_ptr,
    T, D, runs, RUN, tiles_d, dy_strides, x_strides, k_strides, stride_bias, state_strides,
    W: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx, dk and this program's share of dbias, ``dbias[program]``; those that nobody wants are ``None``."""
    pid = tl.program_id(0)
    tile = pid // tiles_d
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < D
    r = tile * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)

    dy_row = dy_ptr + row * dy_strides.b + begin * dy_strides.t + offs_d * dy_strides.d
    x_row = x_ptr + row * x_strides.b + begin * x_strides.t + offs_d * x_strides.d
    k_row = k_ptr + row * k_strides.b + begin * k_strides.t + offs_d * k_strides.d
    out_row = (row * T + begin) * D + offs_d  # dx and dk are contiguous
    zero = tl.zeros([ROWS, BLOCK], tl.float32)
    X = window_before(n, first, L, offs_d, mask_d, x_row, x_strides.t, state_ptr, state_strides, W)
    dX = ()  # sums so far for X[t-W+1] ... X[t-1], in the same order
    for w in tl.static_range(W - 1):  # noqa: B007
        dX += (zero,)
    dbias = zero
    steps = RUN if dx_ptr is None else RUN + W - 1
    # A step is asked for one step before it is used: memory answers while the step before is computed.
    coming = load_step(dy_row, x_row, k_row, first, mask_d & (first < L), first < L,
                       dy_strides, x_strides, k_strides, W, ACT)  # fmt: skip
    for step in tl.range(steps, loop_unroll_factor=2):
        t = first + step
        mask = mask_d & (t < L)
        own = t < first + RUN
        dy, x, k = coming
        more = mask_d & (t + 1 < L) & (t + 1 < first + steps)
        coming = load_step(dy_row, x_row, k_row, t + 1, more, t + 1 < first + RUN,
                           dy_strides, x_strides, k_strides, W, ACT)  # fmt: skip
        X += (x.to(tl.float32),)
        du = dy.to(tl.float32)
        if ACT is not None:
            u = load_float(bias_ptr + offs_d * stride_bias, mask_d) if bias_ptr is not None else zero
            for w in tl.static_range(W):
                u += k[w].to(tl.float32) * X[w]
            du *= slope(u, ACT)
        dbias += tl.where(own, du, 0.0)
        if dk_ptr is not None:
            for w in tl.static_range(W):
                dk = (du * X[w]).to(dk_ptr.dtype.element_ty)
                tl.store(dk_ptr + (out_row + t * D) * W + w, dk, mask=mask & own)
        if dx_ptr is not None:
            shifted = ()
            for w in tl.static_range(W):
                # dX[t-W+1+w] += du[t] k[t, w]
                shifted += (du * k[w].to(tl.float32) + (dX[w] if w < W - 1 else 0.0),)
            j = t - (W - 1)
            complete = mask_d & (j >= first) & (j < L)
            tl.store(dx_ptr + out_row + j * D, shifted[0].to(dx_ptr.dtype.element_ty), mask=complete)
            dX = shifted[1:]
        X = X[1:]
    if dbias_ptr is not None:
        tl.store(dbias_ptr + tile.to(tl.int64) * D + offs_d, tl.sum(dbias, 0)[None, :], mask=mask_d)


@triton.jit
def final_state_kernel(
    x_ptr, state_ptr, cu_ptr, out_ptr,
    T, D, tiles_d, x_strides, state_strides, W: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slot i of sequence n holds X[L-(W-1)+i]: an input, or where the sequence is that short, the old state's slot L+i."""
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_i = tl.arange(0, SLOTS).to(tl.int64)[None, :]
    mask = (offs_d < D) & (offs_i < W - 1)
    b, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    j = L - (W - 1) + offs_i
    value = load_float(x_ptr + b * x_strides.b + (begin + j) * x_strides.t + offs_d * x_strides.d, mask & (j >= 0))
    if state_ptr is not None:
        at = state_ptr + n * state_strides.n + offs_d * state_strides.d + (L + offs_i) * state_strides.i
        value += load_float(at, mask & (j < 0))
    tl.store(out_ptr + (n * D + offs_d) * (W - 1) + offs_i, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def ends_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, dfinal_ptr, cu_ptr, out_ptr,
    T, D, tiles_d, dy_strides, x_strides, k_strides, stride_bias, state_strides, dfinal_strides,
    W: tl.constexpr, TAPS: tl.constexpr, ACT: tl.constexpr, FINAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dX[j] of W - 1 neighbouring times: before the sequence, the gradient of its initial state, [N, D, W-1]; or FINAL, its
    last tokens, a part of dx. dfinal adds where j >= L-(W-1): the final state is a copy of those times' inputs."""
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_w = tl.arange(0, TAPS).to(tl.int64)[None, :]  # taps of a token, and the times j
    mask_d = offs_d < D
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    j = offs_w - (W - 1) + (L if FINAL else 0)

    dX = tl.zeros([BLOCK, TAPS], tl.float32)
    for p in range(tl.maximum(L - (W - 1), 0) if FINAL else 0, L if FINAL else tl.minimum(L, W - 1)):
        t = begin + p
        du = load_float(dy_ptr + row * dy_strides.b + t * dy_strides.t + offs_d * dy_strides.d, mask_d)
        k_row = k_ptr + row * k_strides.b + t * k_strides.t + offs_d * k_strides.d
        if ACT is not None:
            i = p - (W - 1) + offs_w
            x_at = x_ptr + row * x_strides.b + (begin + i) * x_strides.t + offs_d * x_strides.d
            X = load_float(x_at, mask_d & (offs_w < W) & (i >= 0))
            if state_ptr is not None:
                slot = state_ptr + n * state_strides.n + offs_d * state_strides.d + (p + offs_w) * state_strides.i
                X += load_float(slot, mask_d & (i < 0))
            u = tl.sum(load_float(k_row + offs_w * k_strides.w, mask_d & (offs_w < W)) * X, 1)[:, None]
            if bias_ptr is not None:
                u += load_float(bias_ptr + offs_d * stride_bias, mask_d)
            du *= slope(u, ACT)
        # token p saw X[j] through its tap w = j - p + W - 1
        w = j - p + W - 1
        dX += du * load_float(k_row + w * k_strides.w, mask_d & (w >= 0) & (w < W))

    mask = mask_d & (offs_w < W - 1)
    if dfinal_ptr is not None:
        slot = j - (L - (W - 1))
        at = dfinal_ptr + n * dfinal_strides.n + offs_d * dfinal_strides.d + slot * dfinal_strides.i
        dX += load_float(at, mask & (slot >= 0))
    if FINAL:
        out_at = out_ptr + (row * T + begin + j) * D + offs_d
        mask = mask & (j >= 0)
    else:
        out_at = out_ptr + (n * D + offs_d) * (W - 1) + offs_w
    tl.store(out_at, dX.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def conv_step_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, slots_ptr, y_ptr,
    D, tiles_d, x_strides, k_strides, stride_bias, residual_strides, state_strides, stride_slots,
    W: tl.constexpr, KEPT: tl.constexpr, ACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token: u = sum_w k[w] [s_0 ... s_{W-2}, x]_w, and the state moves up by one, in place. It holds the last KEPT
    inputs: W - 1, or W, the first of which is read no more. A row whose slot is negative is padding: its y is 0."""
    pid = tl.program_id(0)
    b = (pid // tiles_d).to(tl.int64)
    offs_d = (pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(slots_ptr + b * stride_slots).to(tl.int64) if slots_ptr is not None else b
    mask = (offs_d < D) & (row >= 0)
    state_row = state_ptr + row * state_strides.n + offs_d * state_strides.d

    window = ()
    for w in tl.static_range(W - 1):
        window += (load_float(state_row + (w + KEPT - (W - 1)) * state_strides.i, mask),)
    window += (load_float(x_ptr + b * x_strides.b + offs_d * x_strides.d, mask),)

    u = tl.zeros([BLOCK], tl.float32)
    for w in tl.static_range(W):
        u += load_float(k_ptr + b * k_strides.b + offs_d * k_strides.d + w * k_strides.w, mask) * window[w]
    if bias_ptr is not None:
        u += load_float(bias_ptr + offs_d * stride_bias, mask)
    u = activate(u, ACT)
    if residual_ptr is not None:
        u += load_float(residual_ptr + b * residual_strides.b + offs_d * residual_strides.d, mask)
    tl.store(y_ptr + b * D + offs_d, u.to(y_ptr.dtype.element_ty), mask=offs_d < D)

    tl.debug_barrier()  # every slot has been read before any is overwritten, whichever threads own them
    for i in tl.static_range(KEPT):
        tl.store(state_row + i * state_strides.i, window[i + W - KEPT].to(state_ptr.dtype.element_ty), mask=mask)
