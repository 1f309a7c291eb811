"""The dynamic convolution, one channel a lane: forward, backward, the state at both ends of a sequence, and one token's step.

    u[t] = sum_w k[t, w] X[t-W+1+w]        y[t] = act(u[t] + b) + r[t]        (X is x, with the state in front)

A program owns BLOCK channels of ROWS runs, each RUN consecutive tokens of one sequence, and loops over its runs' tokens with
the last W - 1 inputs in registers: x and the weights are read once. The gradients, with du = dy act'(u + b):

    dk[t, w] = du[t] X[t-W+1+w]                          an outer product: no reduction
    dX[j]    = sum_w du[j+W-1-w] k[j+W-1-w, w]           the W outputs that saw X[j]; j+W-1-w in the same sequence

The loop keeps W accumulators, one for each X[t-W+1] ... X[t]. Step t adds du[t] k[t, w] to accumulator w; then the oldest
is complete, is stored, and leaves. A run owns the gradients of its own tokens, and goes W - 1 steps further to complete its
last dx. States touch only the W - 1 times before a sequence and its last W - 1 tokens: ``ends_kernel`` has these sums.

``words`` has the same loops for several channels a lane. Tensors that a call doesn't have are ``None``; outputs are
contiguous.
"""

from typing import Any, NamedTuple

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


class AllStrides(NamedTuple):
    """Of a kernel's inputs; ``None`` for one that is absent."""

    x: Strides
    k: Strides | None = None
    bias: int | None = None
    state: StateStrides | None = None
    residual: Strides | None = None
    dy: Strides | None = None
    dfinal: StateStrides | None = None
    slots: int | None = None


class Tile(NamedTuple):
    """What a kernel is compiled for: W taps, the activation, and a program's tile, BLOCK words of G channels by ROWS runs."""

    W: int
    ACT: str | None
    BLOCK: int
    ROWS: int = 1
    RUN: int | None = None  # tokens in a run, where it is no argument of its own
    G: int = 1
    AHEAD: int = 1  # tokens that are read before the first of them is used
    KEPT: int = 0  # inputs that a state holds
    FINAL: bool = False  # at the sequences' last tokens, or before their first


class Cuts(NamedTuple):
    """Where packed time is cut: ``cu_seqlens``, and the sequence of each run."""

    cu: Any
    sequence: Any


class Gradients(NamedTuple):
    """Of x, of the weight, and of the bias the programs' shares; ``None`` where nobody wants it."""

    x: Any
    k: Any
    bias: Any


class Run(NamedTuple):
    """Where a program works: on some channels of ROWS runs, each from token ``first`` on of sequence n, which is L tokens of
    batch row ``row`` from its token ``begin`` on. ``tile`` numbers these runs; ``zero`` is a tile of zeros."""

    tile: Any
    offs_d: Any
    mask_d: Any
    n: Any
    row: Any
    begin: Any
    L: Any
    first: Any
    zero: Any


@triton.jit
def locate(T, D, runs, RUN, tiles_d, cuts, TILE: tl.constexpr):
    """The ``Run`` of this program, of so many runs, and tiles of the D channels."""
    ROWS: tl.constexpr = TILE.ROWS
    BLOCK: tl.constexpr = TILE.BLOCK
    pid = tl.program_id(0)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < D
    tile = pid // tiles_d
    r = tile * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, cuts.sequence, cuts.cu, cuts.cu is not None)
    return Run(tile, offs_d, mask_d, n, row, begin, L, first, tl.zeros([ROWS, BLOCK], tl.float32))


@triton.jit
def token_at(ptr, strides, run, t):
    """Where the channels of token t of the program's batch row lie."""
    return ptr + run.row * strides.b + t * strides.t + run.offs_d * strides.d


@triton.jit
def state_at(ptr, strides, n, offs_d, i):
    """Where slot i of some channels lies in states [N, D, W-1]."""
    return ptr + n * strides.n + offs_d * strides.d + i * strides.i


@triton.jit
def activate(u, TILE: tl.constexpr):
    """act(u); ``None`` is the identity."""
    if TILE.ACT == "silu":
        u *= tl.sigmoid(u)
    return u


@triton.jit
def slope(u, TILE: tl.constexpr):
    """act'(u): of SiLU s (1 + u (1 - s)) with s = sigmoid(u)."""
    if TILE.ACT == "silu":
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
def load_step(dy_row, x_row, k_row, t, mask, own, strides, TILE: tl.constexpr):
    """dy, x and the taps of one time step, as they are in memory."""
    dy = tl.load(dy_row + t * strides.dy.t, mask=mask, other=0)
    # past the run's own steps x matters only to recompute u
    x = tl.load(x_row + t * strides.x.t, mask=mask if TILE.ACT is not None else mask & own, other=0)
    return dy, x, load_taps(k_row + t * strides.k.t, mask, strides.k.w, TILE.W)


@triton.jit
def window_before(run, x_row, state_ptr, strides, W: tl.constexpr):
    """X[t-W+1] ... X[t-1] of the runs that begin at t = first."""
    X = ()
    for w in tl.static_range(W - 1):
        j = run.first - (W - 1) + w
        X += (load_float(x_row + j * strides.x.t, run.mask_d & (j >= 0) & (j < run.L)),)
    return with_state(X, run, state_ptr, strides.state, W, 1)


@triton.jit
def with_state(X, run, state_ptr, strides, W: tl.constexpr, G: tl.constexpr):
    """The same window of G channels a lane, and the state's slots where it begins before its sequence does."""
    if state_ptr is not None:
        if tl.min(run.first) < W - 1:  # few runs begin that near to a sequence's first token: the others skip this
            window = ()
            for w in tl.static_range(W - 1):
                before = run.mask_d & (run.first + w < W - 1) & (run.first < run.L)
                for i in tl.static_range(G):
                    at = state_at(state_ptr, strides, run.n, run.offs_d * G + i, run.first + w)
                    window += (X[w * G + i] + load_float(at, before),)
            X = window
    return X


@triton.jit
def convolve(u, k, X, W: tl.constexpr):
    """u + sum_w k[t, w] X[t-W+1+w]."""
    for w in tl.static_range(W):
        u += k[w].to(tl.float32) * X[w]
    return u


@triton.jit
def conv_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, cuts, y_ptr, T, D, runs, tiles_d, strides, TILE: tl.constexpr
):
    """y of ROWS runs."""
    W: tl.constexpr = TILE.W
    run = locate(T, D, runs, TILE.RUN, tiles_d, cuts, TILE)
    x_row = token_at(x_ptr, strides.x, run, run.begin)
    k_row = token_at(k_ptr, strides.k, run, run.begin)
    y_row = y_ptr + (run.row * T + run.begin) * D + run.offs_d
    X = window_before(run, x_row, state_ptr, strides, W)
    for step in range(TILE.RUN):
        t = run.first + step
        mask = run.mask_d & (t < run.L)
        X += (load_float(x_row + t * strides.x.t, mask),)
        u = convolve(run.zero, load_taps(k_row + t * strides.k.t, mask, strides.k.w, W), X, W)
        if bias_ptr is not None:
            u += load_float(bias_ptr + run.offs_d * strides.bias, run.mask_d)
        u = activate(u, TILE)
        if residual_ptr is not None:
            u += load_float(token_at(residual_ptr, strides.residual, run, run.begin) + t * strides.residual.t, mask)
        tl.store(y_row + t * D, u.to(y_ptr.dtype.element_ty), mask=mask)
        X = X[1:]


@triton.jit(do_not_specialize=["T", "runs", "RUN", "tiles_d"])
def conv_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, cuts, grads, T, D, runs, RUN, tiles_d, strides, TILE: tl.constexpr
):
    """dx, dk and this program's share of dbias, ``grads.bias[program]``."""
    W: tl.constexpr = TILE.W
    run = locate(T, D, runs, RUN, tiles_d, cuts, TILE)
    dy_row = token_at(dy_ptr, strides.dy, run, run.begin)
    x_row = token_at(x_ptr, strides.x, run, run.begin)
    k_row = token_at(k_ptr, strides.k, run, run.begin)
    out_row = (run.row * T + run.begin) * D + run.offs_d  # of dx and dk
    X = window_before(run, x_row, state_ptr, strides, W)
    dX = (run.zero,) * (W - 1)  # sums so far for X[t-W+1] ... X[t-1], in the same order
    dbias = run.zero
    steps = RUN if grads.x is None else RUN + W - 1
    # A step is asked for one step before it is used: memory answers while the step before is computed.
    some = run.first < run.L
    coming = load_step(dy_row, x_row, k_row, run.first, run.mask_d & some, some, strides, TILE)
    for step in tl.range(steps, loop_unroll_factor=2):
        t = run.first + step
        mask = run.mask_d & (t < run.L)
        own = t < run.first + RUN
        dy, x, k = coming
        more = run.mask_d & (t + 1 < run.L) & (t + 1 < run.first + steps)
        coming = load_step(dy_row, x_row, k_row, t + 1, more, t + 1 < run.first + RUN, strides, TILE)
        X += (x.to(tl.float32),)
        du = dy.to(tl.float32)
        if TILE.ACT is not None:
            b = load_float(bias_ptr + run.offs_d * strides.bias, run.mask_d) if bias_ptr is not None else run.zero
            du *= slope(convolve(b, k, X, W), TILE)
        dbias += tl.where(own, du, 0.0)
        if grads.k is not None:
            for w in tl.static_range(W):
                dk = (du * X[w]).to(grads.k.dtype.element_ty)
                tl.store(grads.k + (out_row + t * D) * W + w, dk, mask=mask & own)
        if grads.x is not None:
            shifted = ()
            for w in tl.static_range(W):
                # dX[t-W+1+w] += du[t] k[t, w]
                shifted += (du * k[w].to(tl.float32) + (dX[w] if w < W - 1 else 0.0),)
            j = t - (W - 1)
            complete = run.mask_d & (j >= run.first) & (j < run.L)
            tl.store(grads.x + out_row + j * D, shifted[0].to(grads.x.dtype.element_ty), mask=complete)
            dX = shifted[1:]
        X = X[1:]
    if grads.bias is not None:
        tl.store(grads.bias + run.tile.to(tl.int64) * D + run.offs_d, tl.sum(dbias, 0)[None, :], mask=run.mask_d)


@triton.jit
def final_state_kernel(x_ptr, state_ptr, cu_ptr, out_ptr, T, D, tiles_d, strides, TILE: tl.constexpr):
    """Slot i of sequence n holds X[L-(W-1)+i]: an input, or where the sequence is that short, the old state's slot L+i."""
    W: tl.constexpr = TILE.W
    SLOTS: tl.constexpr = triton.next_power_of_2(W - 1)
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * TILE.BLOCK + tl.arange(0, TILE.BLOCK))[:, None]
    offs_i = tl.arange(0, SLOTS).to(tl.int64)[None, :]
    mask = (offs_d < D) & (offs_i < W - 1)
    b, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    j = L - (W - 1) + offs_i
    value = load_float(x_ptr + b * strides.x.b + (begin + j) * strides.x.t + offs_d * strides.x.d, mask & (j >= 0))
    if state_ptr is not None:
        value += load_float(state_at(state_ptr, strides.state, n, offs_d, L + offs_i), mask & (j < 0))
    tl.store(out_ptr + (n * D + offs_d) * (W - 1) + offs_i, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def ends_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, dfinal_ptr, cu_ptr, out_ptr, T, D, tiles_d, strides, TILE: tl.constexpr
):
    """dX[j] of W - 1 neighbouring times: before the sequence, the gradient of its initial state, [N, D, W-1]; or FINAL, its
    last tokens, a part of dx. dfinal adds where j >= L-(W-1): the final state is a copy of those times' inputs."""
    W: tl.constexpr = TILE.W
    BLOCK: tl.constexpr = TILE.BLOCK
    TAPS: tl.constexpr = triton.next_power_of_2(W)
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_w = tl.arange(0, TAPS).to(tl.int64)[None, :]  # taps of a token, and the times j
    mask_d = offs_d < D
    row, begin, L = sequence_span(n, T, cu_ptr, cu_ptr is not None)
    j = offs_w - (W - 1) + (L if TILE.FINAL else 0)

    dX = tl.zeros([BLOCK, TAPS], tl.float32)
    for p in range(tl.maximum(L - (W - 1), 0) if TILE.FINAL else 0, L if TILE.FINAL else tl.minimum(L, W - 1)):
        t = begin + p
        du = load_float(dy_ptr + row * strides.dy.b + t * strides.dy.t + offs_d * strides.dy.d, mask_d)
        k_row = k_ptr + row * strides.k.b + t * strides.k.t + offs_d * strides.k.d
        if TILE.ACT is not None:
            i = p - (W - 1) + offs_w
            x_at = x_ptr + row * strides.x.b + (begin + i) * strides.x.t + offs_d * strides.x.d
            X = load_float(x_at, mask_d & (offs_w < W) & (i >= 0))
            if state_ptr is not None:
                X += load_float(state_at(state_ptr, strides.state, n, offs_d, p + offs_w), mask_d & (i < 0))
            u = tl.sum(load_float(k_row + offs_w * strides.k.w, mask_d & (offs_w < W)) * X, 1)[:, None]
            if bias_ptr is not None:
                u += load_float(bias_ptr + offs_d * strides.bias, mask_d)
            du *= slope(u, TILE)
        # token p saw X[j] through its tap w = j - p + W - 1
        w = j - p + W - 1
        dX += du * load_float(k_row + w * strides.k.w, mask_d & (w >= 0) & (w < W))

    mask = mask_d & (offs_w < W - 1)
    if dfinal_ptr is not None:
        slot = j - (L - (W - 1))
        dX += load_float(state_at(dfinal_ptr, strides.dfinal, n, offs_d, slot), mask & (slot >= 0))
    if TILE.FINAL:
        out_at = out_ptr + (row * T + begin + j) * D + offs_d
        mask = mask & (j >= 0)
    else:
        out_at = out_ptr + (n * D + offs_d) * (W - 1) + offs_w
    tl.store(out_at, dX.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def conv_step_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, slots_ptr, y_ptr, D, tiles_d, strides, TILE: tl.constexpr
):
    """One token: u = sum_w k[w] [s_0 ... s_{W-2}, x]_w, and the state moves up by one, in place. It holds the last KEPT
    inputs: W - 1, or W, the first of which is read no more. A row whose slot is negative is padding: its y is 0."""
    W: tl.constexpr = TILE.W
    KEPT: tl.constexpr = TILE.KEPT
    BLOCK: tl.constexpr = TILE.BLOCK
    pid = tl.program_id(0)
    b = (pid // tiles_d).to(tl.int64)
    offs_d = (pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(slots_ptr + b * strides.slots).to(tl.int64) if slots_ptr is not None else b
    mask = (offs_d < D) & (row >= 0)

    window = ()
    for w in tl.static_range(W - 1):
        window += (load_float(state_at(state_ptr, strides.state, row, offs_d, w + KEPT - (W - 1)), mask),)
    window += (load_float(x_ptr + b * strides.x.b + offs_d * strides.x.d, mask),)

    k = load_taps(k_ptr + b * strides.k.b + offs_d * strides.k.d, mask, strides.k.w, W)
    u = convolve(tl.zeros([BLOCK], tl.float32), k, window, W)
    if bias_ptr is not None:
        u += load_float(bias_ptr + offs_d * strides.bias, mask)
    u = activate(u, TILE)
    if residual_ptr is not None:
        u += load_float(residual_ptr + b * strides.residual.b + offs_d * strides.residual.d, mask)
    tl.store(y_ptr + b * D + offs_d, u.to(y_ptr.dtype.element_ty), mask=offs_d < D)

    tl.debug_barrier()  # every slot has been read before any is overwritten, whichever threads own them
    for i in tl.static_range(KEPT):
        at = state_at(state_ptr, strides.state, row, offs_d, i)
        tl.store(at, window[i + W - KEPT].to(state_ptr.dtype.element_ty), mask=mask)
