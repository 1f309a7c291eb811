"""The dynamic convolution: what its loops along time share, the state at both ends of a sequence, and one token's step.

    u[t] = sum_w k[t, w] X[t-W+1+w]        y[t] = act(u[t] + b) + r[t]        (X is x, with the state in front)

A program owns BLOCK channels of ROWS runs, each RUN consecutive tokens of one sequence, and loops over its runs' tokens with
the last W - 1 inputs in registers: x and the weights are read once. The gradients, with du = dy act'(u + b):

    dk[t, w] = du[t] X[t-W+1+w]                          an outer product: no reduction
    dX[j]    = sum_w du[j+W-1-w] k[j+W-1-w, w]           the W outputs that saw X[j]; j+W-1-w in the same sequence

The loop keeps W accumulators, one for each X[t-W+1] ... X[t]. Step t adds du[t] k[t, w] to accumulator w; then the oldest
is complete, is stored, and leaves. A run owns the gradients of its own tokens, and goes W - 1 steps further to complete its
last dx. States touch only the W - 1 times before a sequence and its last W - 1 tokens: ``ends_kernel`` has these sums.

The loops are in ``words``, and those of one weight for all tokens in ``static``. Tensors that a call doesn't have are
``None``; outputs are contiguous.
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
    G: int = 1  # channels in a word
    KG: int = 1  # weights in one of the weight's words
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
def load_taps(k_at, mask, strides, TILE: tl.constexpr):
    """The W taps of G channels, as they are in memory: G W / KG words."""
    k = ()
    for m in tl.static_range(TILE.G * TILE.W // TILE.KG):
        k += (tl.load(k_at + m * strides.k.w, mask=mask, other=0),)
    return k


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

    u = tl.zeros([BLOCK], tl.float32)
    for w in tl.static_range(W):
        u += load_float(k_ptr + b * strides.k.b + offs_d * strides.k.d + w * strides.k.w, mask) * window[w]
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
