"""One weight for all tokens: forward, backward, and the sum of the weight gradient's parts.

Without weights to read, a token brings few bytes, and two things that hide behind a token's weights come to light. A walk
that asks for one token at a time keeps too few bytes on their way (Little's law: a Hopper's multiprocessor needs 32 to 64
kB), so these ask AHEAD tokens before they use one. And instructions count. The backward walk of per-token weights splits by
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

from kernels.common.sequences import locate_run
from kernels.dynamic_conv.plain import activate, load_taps, slope
from kernels.dynamic_conv.words import as_words, lane, load_bias, pack, words_before


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


@triton.jit(do_not_specialize=["T", "C", "runs", "RUN", "tiles_d"])
def static_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, y_ptr,
    T, C, runs, RUN, tiles_d, x_strides, k_strides, stride_bias, residual_strides, state_strides,
    W: tl.constexpr, G: tl.constexpr, ACT: tl.constexpr, AHEAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of x, k and residual count words of G channels; C is the number of words in a row, D / G."""
    pid = tl.program_id(0)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < C
    r = pid // tiles_d * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)
    end = tl.minimum(tl.maximum(L - first, 0), RUN).to(tl.int32)  # times in a run are counted from its first, in 32 bits
    one = tl.full((), 1, tl.int64)  # a few tokens times a stride may pass 2^31
    step_x, step_y = one * x_strides.t, one * C

    x_row = as_words(x_ptr, G) + row * x_strides.b + begin * x_strides.t + offs_d * x_strides.d
    x_at = x_row + first * x_strides.t
    y_at = as_words(y_ptr, G) + (row * T + begin + first) * C + offs_d
    ahead_x = first_tokens(x_at, step_x, mask_d, end, AHEAD)
    if residual_ptr is not None:
        step_r = one * residual_strides.t
        r_at = as_words(residual_ptr, G) + row * residual_strides.b
        r_at += (begin + first) * residual_strides.t + offs_d * residual_strides.d
        ahead_r = first_tokens(r_at, step_r, mask_d, end, AHEAD)
    k = load_taps(as_words(k_ptr, G) + offs_d * k_strides.d, mask_d, k_strides.w, W)
    bias = load_bias(bias_ptr, offs_d, mask_d, stride_bias, G) if bias_ptr is not None else ()
    X = words_before(n, first, L, offs_d, mask_d, x_row, x_strides.t, x_ptr.dtype.element_ty,
                      state_ptr, state_strides, W, G)  # fmt: skip

    for chunk in range(0, RUN, AHEAD):
        for step in tl.static_range(AHEAD):
            mask = mask_d & (chunk + step < end)
            for i in tl.static_range(G):
                X += (lane(ahead_x[0], i, G, x_ptr.dtype.element_ty),)
            ahead_x = ahead_x[1:] + (load_token(x_at, step_x, chunk, step + AHEAD, mask_d, end),)
            y = ()
            for i in tl.static_range(G):
                # u = sum_w k[w] X[t-W+1+w]
                u = bias[i] if bias_ptr is not None else tl.zeros([ROWS, BLOCK], tl.float32)
                for w in tl.static_range(W):
                    u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_ptr.dtype.element_ty) * X[w * G + i]
                u = activate(u, ACT)
                if residual_ptr is not None:
                    u += lane(ahead_r[0], i, G, residual_ptr.dtype.element_ty)
                y += (u,)
            if residual_ptr is not None:
                ahead_r = ahead_r[1:] + (load_token(r_at, step_r, chunk, step + AHEAD, mask_d, end),)
            tl.store(y_at + step * step_y, pack(y, G, y_ptr.dtype.element_ty), mask=mask)
            X = X[G:]
        x_at += AHEAD * step_x
        y_at += AHEAD * step_y
        if residual_ptr is not None:
            r_at += AHEAD * step_r


@triton.jit(do_not_specialize=["T", "C", "runs", "RUN", "tiles_d"])
def static_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, dx_ptr, parts_ptr,
    T, C, runs, RUN, tiles_d, dy_strides, x_strides, k_strides, stride_bias, state_strides,
    W: tl.constexpr, G: tl.constexpr, ACT: tl.constexpr, NEED_DK: tl.constexpr, NEED_DBIAS: tl.constexpr,
    AHEAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of dy, x and k count words of G channels; parts are [programs, G (W and 1), C], taps before the bias. RUN is a
    multiple of AHEAD."""
    pid = tl.program_id(0)
    tile = pid // tiles_d
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < C
    r = tile * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)
    left = tl.minimum(tl.maximum(L - first, 0), RUN + W).to(tl.int32)  # tokens to the sequence's end, or beyond our reach
    end = tl.minimum(left, RUN)
    one = tl.full((), 1, tl.int64)
    step_dy, step_x, step_dx = one * dy_strides.t, one * x_strides.t, one * C

    k_type: tl.constexpr = k_ptr.dtype.element_ty
    x_type: tl.constexpr = x_ptr.dtype.element_ty
    dy_type: tl.constexpr = dy_ptr.dtype.element_ty
    # Step j takes in du[j+W-1] and settles j. Only the activation asks for x as early as for du.
    EARLY: tl.constexpr = W - 1 if ACT is not None else 0
    x_end = left if ACT is not None else end
    x_row = as_words(x_ptr, G) + row * x_strides.b + begin * x_strides.t + offs_d * x_strides.d
    x_at = x_row + first * x_strides.t
    dy_at = as_words(dy_ptr, G) + row * dy_strides.b + (begin + first) * dy_strides.t + offs_d * dy_strides.d
    if dx_ptr is not None:
        dx_at = as_words(dx_ptr, G) + (row * T + begin + first) * C + offs_d
    ahead_dy = first_tokens(dy_at, step_dy, mask_d, left, AHEAD + W - 1)
    ahead_x = first_tokens(x_at, step_x, mask_d, x_end, AHEAD + EARLY)
    k = load_taps(as_words(k_ptr, G) + offs_d * k_strides.d, mask_d, k_strides.w, W)
    bias = load_bias(bias_ptr, offs_d, mask_d, stride_bias, G) if ACT is not None and bias_ptr is not None else ()
    zero = tl.zeros([ROWS, BLOCK], tl.float32)
    dk = ()
    dbias = ()
    for i in tl.static_range(G):  # noqa: B007
        dbias += (zero,)
        for w in tl.static_range(W):  # noqa: B007
            dk += (zero,)

    X = ()
    if ACT is not None or state_ptr is not None:
        X = words_before(n, first, L, offs_d, mask_d, x_row, x_strides.t, x_type,
                          state_ptr, state_strides, W, G)  # fmt: skip
    D = ()  # du of the W - 1 times from the run's first on
    for s in tl.static_range(W - 1):
        for i in tl.static_range(G):
            du = lane(ahead_dy[s], i, G, dy_type)
            if ACT is not None:
                X += (lane(ahead_x[s], i, G, x_type),)
                du *= _slope(X[s * G :], k, bias, i, zero, k_type, W, G, ACT)
            D += (du,)
    if state_ptr is not None and NEED_DK:
        # inputs before the sequence: time j = s - (W-1) + w < 0 is the window's s + w
        of_state = ()
        for i in tl.static_range(G):
            for w in tl.static_range(W):
                share = zero
                for s in tl.static_range(W - 1 - w):
                    share += D[s * G + i] * X[(s + w) * G + i]
                of_state += (tl.where(first == 0, share, 0.0),)
        dk = of_state
    X = X[(W - 1) * G :] if ACT is not None else ()
    ahead_dy = ahead_dy[W - 1 :]
    ahead_x = ahead_x[EARLY:]

    for chunk in range(0, RUN, AHEAD):
        for step in tl.static_range(AHEAD):
            dy = ahead_dy[0]
            x = ahead_x[0]
            ahead_dy = ahead_dy[1:] + (load_token(dy_at, step_dy, chunk, step + AHEAD + W - 1, mask_d, left),)
            ahead_x = ahead_x[1:] + (load_token(x_at, step_x, chunk, step + AHEAD + EARLY, mask_d, x_end),)
            dx = ()
            sums = ()
            dbias_new = ()
            for i in tl.static_range(G):
                du = lane(dy, i, G, dy_type)
                if ACT is not None:
                    X += (lane(x, i, G, x_type),)
                    du *= _slope(X, k, bias, i, zero, k_type, W, G, ACT)
                    Xj = X[i]
                else:
                    Xj = lane(x, i, G, x_type)
                D += (du,)
                dXj = zero
                for w in tl.static_range(W):
                    later = D[(W - 1 - w) * G + i]  # du[j+W-1-w], which saw X[j] through tap w
                    dXj += later * lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type)
                    sums += (dk[i * W + w] + later * Xj,)
                dx += (dXj,)
                dbias_new += (dbias[i] + D[i],)
            if NEED_DK:
                dk = sums
            if NEED_DBIAS:
                dbias = dbias_new
            if dx_ptr is not None:
                mask = mask_d & (chunk + step < end)
                tl.store(dx_at + step * step_dx, pack(dx, G, dx_ptr.dtype.element_ty), mask=mask)
            D = D[G:]
            X = X[G:] if ACT is not None else ()
        dy_at += AHEAD * step_dy
        x_at += AHEAD * step_x
        if dx_ptr is not None:
            dx_at += AHEAD * step_dx

    columns: tl.constexpr = G * (W * NEED_DK + NEED_DBIAS)
    if columns > 0:
        part = parts_ptr + tile.to(tl.int64) * columns * C + offs_d
        for i in tl.static_range(G):
            if NEED_DK:
                for w in tl.static_range(W):
                    tl.store(part + one * (i * W + w) * C, tl.sum(dk[i * W + w], 0)[None, :], mask=mask_d)
            if NEED_DBIAS:
                tl.store(part + one * (columns - G + i) * C, tl.sum(dbias[i], 0)[None, :], mask=mask_d)


@triton.jit
def _slope(X, k, bias, i: tl.constexpr, zero, k_type: tl.constexpr, W: tl.constexpr, G: tl.constexpr, ACT: tl.constexpr):
    """act'(u + b) of channel i, u recomputed from the window X that ends with its last input; no bias is an empty tuple."""
    u = zero if len(bias) == 0 else bias[i]
    for w in tl.static_range(W):
        u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type) * X[w * G + i]
    return slope(u, ACT)


@triton.jit(do_not_specialize=["programs", "C"])
def sum_parts_kernel(
    parts_ptr, dk_ptr, dbias_ptr,
    programs, C,
    W: tl.constexpr, G: tl.constexpr, NEED_DK: tl.constexpr, NEED_DBIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dk [D, W] and dbias [D]: the programs' parts, ROWS of them side by side, each in the order of the programs."""
    taps: tl.constexpr = G * W * NEED_DK
    columns = (taps + G * NEED_DBIAS) * C
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_r = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in tl.range(0, programs, ROWS, loop_unroll_factor=4):
        r = begin + offs_r
        at = parts_ptr + r.to(tl.int64) * columns + offs[None, :]
        total += tl.load(at, mask=(r < programs) & (offs[None, :] < columns), other=0.0)
    value = tl.sum(total, 0)
    column, word = offs // C, offs % C
    if NEED_DK:
        at = dk_ptr + (word * G + column // W) * W + column % W
        tl.store(at, value.to(dk_ptr.dtype.element_ty), mask=column < taps)
    if NEED_DBIAS:
        at = dbias_ptr + word * G + column - taps
        tl.store(at, value.to(dbias_ptr.dtype.element_ty), mask=(column >= taps) & (offs < columns))
