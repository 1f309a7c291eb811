"""Backward pass of weights per token: dx, dweight, dbias in one walk along time, and the gradients where states enter, leave.

With du = dy act'(u + b), and X the input with its state in front:

    dk[t, w] = du[t] X[t-W+1+w]                          an outer product: no reduction
    dX[j]    = sum_w du[j+W-1-w] k[j+W-1-w, w]           the W outputs that saw X[j]; j+W-1-w in the same sequence

The walk keeps W accumulators, one for each X[t-W+1] ... X[t]. Step t adds du[t] k[t, w] to accumulator w; then the
oldest is complete, is stored, and leaves. A run of RUN tokens owns the gradients of its own tokens; it walks W - 1 steps
further to complete its last dx. So dy, x and k are read once (a little more at the ends of runs), dx and dk written once.

States touch only the W - 1 times before a sequence and its last W - 1 tokens. A second, tiny kernel has the same sum for
these, with the final state's gradient added, so that the walk need not know of them.
"""

import triton
import triton.language as tl

from kernels.common.sequences import locate_run, sequence_span
from kernels.dynamic_conv.forward import load_bias, load_taps, window_before
from kernels.dynamic_conv.words import as_words, lane, pack, store_side_by_side


@triton.jit
def silu_derivative(u):
    """s (1 + u (1 - s)) with s = sigmoid(u)."""
    s = tl.sigmoid(u)
    return s * (1 + u * (1 - s))


@triton.jit
def load_step(
    dy_row, x_row, k_row, t, mask, own, stride_dyt, stride_xt, stride_kt, stride_kw, W: tl.constexpr, SILU: tl.constexpr
):  # fmt: skip
    """The words of one time step: dy, x, and k's W."""
    dy = tl.load(dy_row + t * stride_dyt, mask=mask, other=0)
    # past the run's own steps x matters only to recompute u
    x = tl.load(x_row + t * stride_xt, mask=mask if SILU else mask & own, other=0)
    return dy, x, load_taps(k_row + t * stride_kt, mask, stride_kw, W)


@triton.jit(do_not_specialize=["T", "runs", "RUN", "tiles_d"])
def conv_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, dx_ptr, dk_ptr, dbias_ptr,
    T, C, runs, RUN, tiles_d,
    stride_dyb, stride_dyt, stride_dyd,
    stride_xb, stride_xt, stride_xd,
    stride_kb, stride_kt, stride_kd, stride_kw,
    stride_bias,
    stride_sn, stride_sd, stride_si,
    W: tl.constexpr, TAPS: tl.constexpr, G: tl.constexpr, SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DK: tl.constexpr, NEED_DBIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of dy, x and k count words of G channels. This program writes its share of dbias to dbias[program]."""
    pid = tl.program_id(0)
    tile = pid // tiles_d
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < C
    r = tile * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, PACKED)

    k_type: tl.constexpr = k_ptr.dtype.element_ty
    dy_row = as_words(dy_ptr, G) + row * stride_dyb + begin * stride_dyt + offs_d * stride_dyd
    x_row = as_words(x_ptr, G) + row * stride_xb + begin * stride_xt + offs_d * stride_xd
    k_row = as_words(k_ptr, G) + row * stride_kb + begin * stride_kt + offs_d * stride_kd
    out_row = (row * T + begin) * C + offs_d  # dx and dk are contiguous

    bias = load_bias(bias_ptr, offs_d, mask_d, stride_bias, G) if SILU and HAS_BIAS else ()

    zero = tl.zeros([ROWS, BLOCK], tl.float32)
    X = window_before(n, first, L, offs_d, mask_d, x_row, stride_xt, x_ptr.dtype.element_ty,
                      state_ptr, stride_sn, stride_sd, stride_si, W, G, HAS_STATE)  # fmt: skip
    dX = ()  # sums so far for X[t-W+1] ... X[t-1], in the same order
    for w in tl.static_range(W - 1):  # noqa: B007
        for i in tl.static_range(G):  # noqa: B007
            dX += (zero,)
    dbias_sum = ()
    for i in tl.static_range(G):  # noqa: B007
        dbias_sum += (zero,)

    steps = RUN + W - 1 if NEED_DX else RUN
    # The words of a step are asked for one step before they are used: memory answers while the step before is computed.
    coming = load_step(dy_row, x_row, k_row, first, mask_d & (first < L), first < L,
                       stride_dyt, stride_xt, stride_kt, stride_kw, W, SILU)  # fmt: skip
    for step in tl.range(steps, loop_unroll_factor=2):
        t = first + step
        mask = mask_d & (t < L)
        own = t < first + RUN
        dy, x, k = coming
        more = mask_d & (t + 1 < L) & (t + 1 < first + steps)
        coming = load_step(dy_row, x_row, k_row, t + 1, more, t + 1 < first + RUN,
                           stride_dyt, stride_xt, stride_kt, stride_kw, W, SILU)  # fmt: skip
        for i in tl.static_range(G):
            X += (lane(x, i, G, x_ptr.dtype.element_ty),)

        dk = ()
        dX_new = ()
        dbias_new = ()
        for i in tl.static_range(G):
            du = lane(dy, i, G, dy_ptr.dtype.element_ty)
            if SILU:
                # du = dy act'(u), u recomputed
                u = bias[i] if HAS_BIAS else zero
                for w in tl.static_range(W):
                    u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type) * X[w * G + i]
                du *= silu_derivative(u)
            for w in tl.static_range(W):
                dk += (du * X[w * G + i],)
                # dX[t-W+1+w] += du[t] k[t, w]
                dX_new += (du * lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type),)
            dbias_new += (dbias_sum[i] + tl.where(own, du, 0.0),)
        dbias_sum = dbias_new

        if NEED_DK:
            dk_at = as_words(dk_ptr, G) + (out_row + t * C) * W
            dk_words = ()
            for m in tl.static_range(W):
                dk_words += (pack(dk[m * G : (m + 1) * G], G, dk_ptr.dtype.element_ty),)
            store_side_by_side(dk_at, dk_words, mask & own, W, TAPS)

        if NEED_DX:
            # shares are ordered channel, tap; dX is ordered time, channel, so that the oldest time leaves in one piece
            shifted = ()
            for w in tl.static_range(W):
                for i in tl.static_range(G):
                    shifted += (dX_new[i * W + w] + (dX[w * G + i] if w < W - 1 else 0.0),)
            j = t - (W - 1)
            complete = mask_d & (j >= first) & (j < L)
            tl.store(
                as_words(dx_ptr, G) + out_row + j * C, pack(shifted[:G], G, dx_ptr.dtype.element_ty), mask=complete
            )
            dX = shifted[G:]
        X = X[G:]

    for i in tl.static_range(G):
        offs_c = tile.to(tl.int64) * C * G + offs_d * G + i
        if NEED_DBIAS:
            tl.store(dbias_ptr + offs_c, tl.sum(dbias_sum[i], 0)[None, :], mask=mask_d)


@triton.jit
def ends_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, dfinal_ptr, cu_ptr, out_ptr,
    T, D, tiles_d,
    stride_dyb, stride_dyt, stride_dyd,
    stride_xb, stride_xt, stride_xd,
    stride_kb, stride_kt, stride_kd, stride_kw,
    stride_bias,
    stride_sn, stride_sd, stride_si,
    stride_fn, stride_fd, stride_fi,
    W: tl.constexpr, TAPS: tl.constexpr, SILU: tl.constexpr, FINAL: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DFINAL: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dX[j] of W - 1 neighbouring times: before the sequence, the gradient of its initial state, [N, D, W-1]; or FINAL, its
    last tokens, a part of dx. dfinal adds where j >= L-(W-1): the final state is a copy of those times' inputs."""
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_w = tl.arange(0, TAPS).to(tl.int64)[None, :]  # taps of a token, and the times j
    mask_d = offs_d < D
    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    j = offs_w - (W - 1) + (L if FINAL else 0)

    dX = tl.zeros([BLOCK, TAPS], tl.float32)
    first = tl.maximum(L - (W - 1), 0) if FINAL else 0
    last = L if FINAL else tl.minimum(L, W - 1)
    for p in range(first, last):
        t = begin + p
        du = tl.load(dy_ptr + row * stride_dyb + t * stride_dyt + offs_d * stride_dyd, mask=mask_d, other=0.0)
        du = du.to(tl.float32)
        k_row = k_ptr + row * stride_kb + t * stride_kt + offs_d * stride_kd
        if SILU:
            i = p - (W - 1) + offs_w
            x_at = x_ptr + row * stride_xb + (begin + i) * stride_xt + offs_d * stride_xd
            X = tl.load(x_at, mask=mask_d & (offs_w < W) & (i >= 0), other=0.0).to(tl.float32)
            if HAS_STATE:
                slot = state_ptr + n * stride_sn + offs_d * stride_sd + (p + offs_w) * stride_si
                X += tl.load(slot, mask=mask_d & (i < 0), other=0.0).to(tl.float32)
            k = tl.load(k_row + offs_w * stride_kw, mask=mask_d & (offs_w < W), other=0.0).to(tl.float32)
            u = tl.sum(k * X, 1)[:, None]
            if HAS_BIAS:
                u += tl.load(bias_ptr + offs_d * stride_bias, mask=mask_d, other=0.0).to(tl.float32)
            du *= silu_derivative(u)
        # token p saw X[j] through its tap w = j - p + W - 1
        w = j - p + W - 1
        dX += du * tl.load(k_row + w * stride_kw, mask=mask_d & (w >= 0) & (w < W), other=0.0).to(tl.float32)

    mask = mask_d & (offs_w < W - 1)
    if HAS_DFINAL:
        slot = j - (L - (W - 1))
        at = dfinal_ptr + n * stride_fn + offs_d * stride_fd + slot * stride_fi
        dX += tl.load(at, mask=mask & (slot >= 0), other=0.0).to(tl.float32)
    if FINAL:
        out_at = out_ptr + (row * T + begin + j) * D + offs_d
        mask = mask & (j >= 0)
    else:
        out_at = out_ptr + (n * D + offs_d) * (W - 1) + offs_w
    tl.store(out_at, dX.to(out_ptr.dtype.element_ty), mask=mask)
