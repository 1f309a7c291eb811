"""One weight for all tokens: forward, backward, and the sum of the weight gradient's parts.

Without weights to read, a token brings few bytes, and two things that hide behind a token's weights come to light. A loop
that asks for one token at a time keeps too few bytes on their way (Little's law: a Hopper's multiprocessor needs 32 to 64
kB), so these ask AHEAD tokens before they use one. And instructions count. The backward loop of per-token weights splits by
the time of du; here it is split by the time j of the input instead, with du of j ... j+W-1 at hand:

    dX[j]  = sum_s du[j+s] k[W-1-s]                      nothing is carried from step to step but du itself
    dk[w]  = sum_j du[j+W-1-w] X[j]                      the same products' partners: each is used once

A run owns its own inputs and reads W - 1 tokens of dy past its end, so no step asks whose a product is. Inputs before a
sequence's first token, its state, belong to the run that begins there. Each program keeps its sums of dk and of dbias in
registers to its end and writes them once, as columns [program, channel of a word and tap, word] that neighbouring threads
write side by side; ``sum_parts_kernel`` adds the programs' up in a fixed order.
"""

import triton
import triton.language as tl

from kernels.dynamic_conv.plain import activate, load_taps, locate, slope, token_at
from kernels.dynamic_conv.words import as_words, convolve_channel, lane, lanes, load_bias, pack, tap, window_before


@triton.jit
def load_token(at, stride, chunk, step: tl.constexpr, mask_d, end):
    """The words of a run's token chunk + step, zero from ``end`` on; ``at`` is the chunk's first."""
    return tl.load(at + step * stride, mask=mask_d & (chunk + step < end), other=0)


@triton.jit
def first_tokens(at, stride, mask_d, end, AHEAD: tl.constexpr):
    """The words of a run's first AHEAD tokens."""
    words = ()
    for i in tl.static_range(AHEAD):
        words += (load_token(at, stride, 0, i, mask_d, end),)
    return words


@triton.jit(do_not_specialize=["T", "D", "runs", "RUN", "tiles_d"])
def static_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, cuts, y_ptr, T, D, runs, RUN, tiles_d, strides, TILE: tl.constexpr
):
    """y of ROWS runs."""
    G: tl.constexpr = TILE.G
    AHEAD: tl.constexpr = TILE.AHEAD
    x_type: tl.constexpr = x_ptr.dtype.element_ty
    run = locate(T, D, runs, RUN, tiles_d, cuts, TILE)
    # times in a run are counted from its first, in 32 bits
    end = tl.minimum(tl.maximum(run.L - run.first, 0), RUN).to(tl.int32)
    one = tl.full((), 1, tl.int64)  # a few tokens times a stride may pass 2^31
    step_x, step_y = one * strides.x.t, one * D

    x_row = token_at(as_words(x_ptr, G), strides.x, run, run.begin)
    x_at = x_row + run.first * strides.x.t
    y_at = as_words(y_ptr, G) + (run.row * T + run.begin + run.first) * D + run.offs_d
    ahead_x = first_tokens(x_at, step_x, run.mask_d, end, AHEAD)
    if residual_ptr is not None:
        step_r = one * strides.residual.t
        r_at = token_at(as_words(residual_ptr, G), strides.residual, run, run.begin + run.first)
        ahead_r = first_tokens(r_at, step_r, run.mask_d, end, AHEAD)
    k = load_taps(as_words(k_ptr, TILE.KG) + run.offs_d * strides.k.d, run.mask_d, strides, TILE)
    bias = load_bias(bias_ptr, run, strides.bias, G)
    X = window_before(run, x_row, x_type, state_ptr, strides, TILE)

    for chunk in range(0, RUN, AHEAD):
        for step in tl.static_range(AHEAD):
            mask = run.mask_d & (chunk + step < end)
            X += lanes(ahead_x[0], G, x_type)
            ahead_x = ahead_x[1:] + (load_token(x_at, step_x, chunk, step + AHEAD, run.mask_d, end),)
            y = ()
            for i in tl.static_range(G):
                u = activate(convolve_channel(bias[i], k, X, i, k_ptr.dtype.element_ty, TILE), TILE)
                if residual_ptr is not None:
                    u += lane(ahead_r[0], i, G, residual_ptr.dtype.element_ty)
                y += (u,)
            if residual_ptr is not None:
                ahead_r = ahead_r[1:] + (load_token(r_at, step_r, chunk, step + AHEAD, run.mask_d, end),)
            tl.store(y_at + step * step_y, pack(y, G, y_ptr.dtype.element_ty), mask=mask)
            X = X[G:]
        x_at += AHEAD * step_x
        y_at += AHEAD * step_y
        if residual_ptr is not None:
            r_at += AHEAD * step_r


@triton.jit(do_not_specialize=["T", "D", "runs", "RUN", "tiles_d"])
def static_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, cuts, grads, T, D, runs, RUN, tiles_d, strides, TILE: tl.constexpr
):
    """dx, and this program's parts of dk and dbias, [programs, G (W and 1), D], taps before the bias: ``grads.k`` and
    ``grads.bias`` are both their beginning. RUN is a multiple of AHEAD."""
    W: tl.constexpr = TILE.W
    G: tl.constexpr = TILE.G
    AHEAD: tl.constexpr = TILE.AHEAD
    run = locate(T, D, runs, RUN, tiles_d, cuts, TILE)
    # tokens to the sequence's end, or beyond our reach
    left = tl.minimum(tl.maximum(run.L - run.first, 0), RUN + W).to(tl.int32)
    end = tl.minimum(left, RUN)
    one = tl.full((), 1, tl.int64)
    step_dy, step_x, step_dx = one * strides.dy.t, one * strides.x.t, one * D

    k_type: tl.constexpr = k_ptr.dtype.element_ty
    x_type: tl.constexpr = x_ptr.dtype.element_ty
    dy_type: tl.constexpr = dy_ptr.dtype.element_ty
    # Step j takes in du[j+W-1] and settles j. Only the activation asks for x as early as for du.
    EARLY: tl.constexpr = W - 1 if TILE.ACT is not None else 0
    x_end = left if TILE.ACT is not None else end
    x_row = token_at(as_words(x_ptr, G), strides.x, run, run.begin)
    x_at = x_row + run.first * strides.x.t
    dy_at = token_at(as_words(dy_ptr, G), strides.dy, run, run.begin + run.first)
    if grads.x is not None:
        dx_at = as_words(grads.x, G) + (run.row * T + run.begin + run.first) * D + run.offs_d
    ahead_dy = first_tokens(dy_at, step_dy, run.mask_d, left, AHEAD + W - 1)
    ahead_x = first_tokens(x_at, step_x, run.mask_d, x_end, AHEAD + EARLY)
    k = load_taps(as_words(k_ptr, TILE.KG) + run.offs_d * strides.k.d, run.mask_d, strides, TILE)
    bias = load_bias(bias_ptr, run, strides.bias, G)
    dk = (run.zero,) * (G * W)
    dbias = (run.zero,) * G

    X = ()
    if TILE.ACT is not None or state_ptr is not None:
        X = window_before(run, x_row, x_type, state_ptr, strides, TILE)
    dU = ()  # du of the W - 1 times from the run's first on
    for s in tl.static_range(W - 1):
        if TILE.ACT is not None:
            X += lanes(ahead_x[s], G, x_type)
        for i in tl.static_range(G):
            du = lane(ahead_dy[s], i, G, dy_type)
            if TILE.ACT is not None:
                du *= slope(convolve_channel(bias[i], k, X[s * G :], i, k_type, TILE), TILE)
            dU += (du,)
    if state_ptr is not None and grads.k is not None:
        # inputs before the sequence: time j = s - (W-1) + w < 0 is the window's s + w
        of_state = ()
        for i in tl.static_range(G):
            for w in tl.static_range(W):
                share = run.zero
                for s in tl.static_range(W - 1 - w):
                    share += dU[s * G + i] * X[(s + w) * G + i]
                of_state += (tl.where(run.first == 0, share, 0.0),)
        dk = of_state
    X = X[(W - 1) * G :] if TILE.ACT is not None else ()
    ahead_dy = ahead_dy[W - 1 :]
    ahead_x = ahead_x[EARLY:]

    for chunk in range(0, RUN, AHEAD):
        for step in tl.static_range(AHEAD):
            dy, x = ahead_dy[0], ahead_x[0]
            ahead_dy = ahead_dy[1:] + (load_token(dy_at, step_dy, chunk, step + AHEAD + W - 1, run.mask_d, left),)
            ahead_x = ahead_x[1:] + (load_token(x_at, step_x, chunk, step + AHEAD + EARLY, run.mask_d, x_end),)
            dx = ()
            sums = ()
            dbias_new = ()
            for i in tl.static_range(G):
                du = lane(dy, i, G, dy_type)
                X += (lane(x, i, G, x_type),)
                if TILE.ACT is not None:
                    du *= slope(convolve_channel(bias[i], k, X, i, k_type, TILE), TILE)
                dU += (du,)
                dXj = run.zero
                for w in tl.static_range(W):
                    later = dU[(W - 1 - w) * G + i]  # du[j+W-1-w], which saw X[j] through tap w
                    dXj += later * tap(k, i, w, k_type, TILE)
                    sums += (dk[i * W + w] + later * X[i],)
                dx += (dXj,)
                dbias_new += (dbias[i] + dU[i],)
            if grads.k is not None:
                dk = sums
            if grads.bias is not None:
                dbias = dbias_new
            if grads.x is not None:
                mask = run.mask_d & (chunk + step < end)
                tl.store(dx_at + step * step_dx, pack(dx, G, grads.x.dtype.element_ty), mask=mask)
            dU = dU[G:]
            X = X[G:]
        dy_at += AHEAD * step_dy
        x_at += AHEAD * step_x
        if grads.x is not None:
            dx_at += AHEAD * step_dx

    taps: tl.constexpr = G * W if grads.k is not None else 0
    columns: tl.constexpr = taps + G if grads.bias is not None else taps
    row = run.tile.to(tl.int64) * columns * D + run.offs_d
    for i in tl.static_range(taps):
        tl.store(grads.k + row + one * i * D, tl.sum(dk[i], 0)[None, :], mask=run.mask_d)
    if grads.bias is not None:
        for i in tl.static_range(G):
            tl.store(grads.bias + row + one * (taps + i) * D, tl.sum(dbias[i], 0)[None, :], mask=run.mask_d)


@triton.jit(do_not_specialize=["programs", "D"])
def sum_parts_kernel(parts_ptr, dk_ptr, dbias_ptr, programs, D, TILE: tl.constexpr):
    """dk and dbias of D words: the programs' parts, ROWS of them side by side, each in the order of the programs."""
    W: tl.constexpr = TILE.W
    G: tl.constexpr = TILE.G
    ROWS: tl.constexpr = TILE.ROWS
    BLOCK: tl.constexpr = TILE.BLOCK
    taps: tl.constexpr = G * W if dk_ptr is not None else 0
    columns = (taps + G if dbias_ptr is not None else taps) * D
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_r = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in tl.range(0, programs, ROWS, loop_unroll_factor=4):
        r = begin + offs_r
        at = parts_ptr + r.to(tl.int64) * columns + offs[None, :]
        total += tl.load(at, mask=(r < programs) & (offs[None, :] < columns), other=0.0)
    value = tl.sum(total, 0)
    column, word = offs // D, offs % D
    if dk_ptr is not None:
        at = dk_ptr + (word * G + column // W) * W + column % W
        tl.store(at, value.to(dk_ptr.dtype.element_ty), mask=column < taps)
    if dbias_ptr is not None:
        at = dbias_ptr + word * G + column - taps
        tl.store(at, value.to(dbias_ptr.dtype.element_ty), mask=(column >= taps) & (offs < columns))
