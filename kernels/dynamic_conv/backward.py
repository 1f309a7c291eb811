"""Backward pass: dx, dweight and dbias in one walk along time, and the gradient of the initial state.

With du = dy act'(u + b), and X the input with its state in front:

    dk[t, w] = du[t] X[t-W+1+w]                          an outer product: no reduction
    dX[j]    = sum_w du[j+W-1-w] k[j+W-1-w, w]           the W outputs that saw X[j]; j+W-1-w in the same sequence

The walk keeps W accumulators, one for each X[t-W+1] ... X[t]. Step t adds du[t] k[t, w] to accumulator w; then the
oldest is complete, is stored, and leaves. A run of RUN steps owns the gradients of its own tokens; it walks W - 1 steps
further to complete its last dx. So dy, x and k are read once (a little more at the ends of runs), dx and dk written once.
"""

import torch
import triton
import triton.language as tl

from kernels.common.configs import configuration
from kernels.common.launch import launch
from kernels.common.sequences import locate_tokens
from kernels.dynamic_conv.forward import (
    load_taps,
    position,
    sequence,
    sequence_span,
    size_class,
    strides,
    window_at_sequence_start,
    window_before,
)
from kernels.dynamic_conv.words import as_words, channels_per_word, lane, pack, store_side_by_side, word_strides


@triton.jit
def load_step(
    dy_row, x_row, k_row, k_static, t, mask, own, stride_dyt, stride_xt, stride_kt, stride_kw,
    W: tl.constexpr, SILU: tl.constexpr, STATIC: tl.constexpr,
):  # fmt: skip
    """The words of one time step: dy, x, and k's W unless all tokens share them."""
    dy = tl.load(dy_row + t * stride_dyt, mask=mask, other=0)
    # past the run's own steps x matters only to recompute u
    x = tl.load(x_row + t * stride_xt, mask=mask if SILU else mask & own, other=0)
    return dy, x, k_static if STATIC else load_taps(k_row + t * stride_kt, mask, stride_kw, W)


@triton.jit
def conv_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, dfinal_ptr, sequence_ptr, position_ptr, cu_ptr, dx_ptr, dk_ptr, dbias_ptr,
    T, C, tiles_t, tiles_d,
    stride_dyb, stride_dyt, stride_dyd,
    stride_xb, stride_xt, stride_xd,
    stride_kb, stride_kt, stride_kd, stride_kw,
    stride_bias,
    stride_sn, stride_sd, stride_si,
    stride_fn, stride_fd, stride_fi,
    W: tl.constexpr, TAPS: tl.constexpr, G: tl.constexpr, SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DFINAL: tl.constexpr, PACKED: tl.constexpr,
    NEED_DX: tl.constexpr, NEED_DK: tl.constexpr, NEED_DBIAS: tl.constexpr, STATIC: tl.constexpr,
    ROWS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of dy, x and k count words of G channels. STATIC: k is one [D, W] for all tokens, and this program writes
    its share of the gradient to dk[program]; dbias likewise."""
    pid = tl.program_id(0)
    tile = (pid // tiles_d).to(tl.int64)
    b = tile // tiles_t
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    first = (tile % tiles_t * ROWS + tl.arange(0, ROWS)[:, None]) * RUN
    mask_d = offs_d < C

    k_type: tl.constexpr = k_ptr.dtype.element_ty
    dy_row = as_words(dy_ptr, G) + b * stride_dyb + offs_d * stride_dyd
    x_row = as_words(x_ptr, G) + b * stride_xb + offs_d * stride_xd
    k_row = as_words(k_ptr, G) + b * stride_kb + offs_d * stride_kd

    bias = ()
    if SILU and HAS_BIAS:
        for i in tl.static_range(G):
            bias += (tl.load(bias_ptr + (offs_d * G + i) * stride_bias, mask=mask_d, other=0.0).to(tl.float32),)

    zero = tl.zeros([ROWS, BLOCK], tl.float32)
    X = window_before(first, b, T, offs_d, mask_d, x_row, stride_xt, x_ptr.dtype.element_ty, sequence_ptr, position_ptr,
                      state_ptr, stride_sn, stride_sd, stride_si, W, G, HAS_STATE, PACKED)  # fmt: skip
    dX = ()  # sums so far for X[t-W+1] ... X[t-1], in the same order
    for w in tl.static_range(W - 1):  # noqa: B007
        for i in tl.static_range(G):  # noqa: B007
            dX += (zero,)
    dk_sum = ()
    dbias_sum = ()
    for i in tl.static_range(G):
        dbias_sum += (zero,)
        for w in tl.static_range(W):
            dk_sum += (zero,)

    STEPS: tl.constexpr = RUN + W - 1 if NEED_DX else RUN
    k_static = load_taps(k_row, mask_d, stride_kw, W) if STATIC else ()
    # The words of a step are asked for one step before they are used: memory answers while the step before is computed.
    coming = load_step(dy_row, x_row, k_row, k_static, first, mask_d & (first < T), True,
                       stride_dyt, stride_xt, stride_kt, stride_kw, W, SILU, STATIC)  # fmt: skip
    for step in tl.range(STEPS, loop_unroll_factor=2):
        t = first + step
        mask = mask_d & (t < T)
        own = step < RUN
        dy, x, k = coming
        coming = load_step(dy_row, x_row, k_row, k_static, t + 1, mask_d & (t + 1 < T) & (step + 1 < STEPS), step + 1 < RUN,
                           stride_dyt, stride_xt, stride_kt, stride_kw, W, SILU, STATIC)  # fmt: skip
        if PACKED:
            p = position(t, T, position_ptr, PACKED)
            X = window_at_sequence_start(X, t, p, b, T, offs_d, mask, sequence_ptr, state_ptr,
                                         stride_sn, stride_sd, stride_si, W, G, HAS_STATE)  # fmt: skip
        for i in tl.static_range(G):
            X += (lane(x, i, G, x_ptr.dtype.element_ty),)

        dk = ()
        dX_new = ()
        dbias_new = ()
        for i in tl.static_range(G):
            du = lane(dy, i, G, dy_ptr.dtype.element_ty)
            if SILU:
                # du = dy s (1 + u (1 - s)), s = sigmoid(u), u recomputed
                u = bias[i] if HAS_BIAS else zero
                for w in tl.static_range(W):
                    u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type) * X[w * G + i]
                s = tl.sigmoid(u)
                du *= s * (1 + u * (1 - s))
            for w in tl.static_range(W):
                dk += (du * X[w * G + i],)
                # dX[t-W+1+w] += du[t] k[t, w], where t-W+1+w lies in t's sequence
                share = du * lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type)
                if PACKED:
                    share = tl.where(p + w >= W - 1, share, 0.0)
                dX_new += (share,)
            dbias_new += (dbias_sum[i] + tl.where(own, du, 0.0),)
        dbias_sum = dbias_new

        if NEED_DK:
            if STATIC:
                sums = ()
                for f in tl.static_range(G * W):
                    sums += (dk_sum[f] + tl.where(own, dk[f], 0.0),)
                dk_sum = sums
            else:
                dk_at = as_words(dk_ptr, G) + ((b * T + t) * C + offs_d) * W
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
            complete = mask_d & (j >= first) & (j < T)
            done = shifted[:G]
            if HAS_DFINAL:
                # the final state is a copy of the last W - 1 inputs: its gradient adds to theirs
                ended = tl.min(p) < W - 1 if PACKED else tl.max(t) >= T
                if ended:  # t is no longer in the sequence of some j = t - (W - 1): that one is among its last
                    n = sequence(j, b, T, sequence_ptr, PACKED)
                    row, begin, L = sequence_span(n, T, cu_ptr, PACKED)
                    slot = j - begin - (L - (W - 1))
                    last = ()
                    for i in tl.static_range(G):
                        at = dfinal_ptr + n * stride_fn + (offs_d * G + i) * stride_fd + slot * stride_fi
                        last += (done[i] + tl.load(at, mask=complete & (slot >= 0), other=0.0).to(tl.float32),)
                    done = last
            dx_at = as_words(dx_ptr, G) + (b * T + j) * C + offs_d
            tl.store(dx_at, pack(done, G, dx_ptr.dtype.element_ty), mask=complete)
            dX = shifted[G:]
        X = X[G:]

    for i in tl.static_range(G):
        offs_c = tile * C * G + offs_d * G + i
        if NEED_DBIAS:
            tl.store(dbias_ptr + offs_c, tl.sum(dbias_sum[i], 0)[None, :], mask=mask_d)
        if NEED_DK and STATIC:
            for w in tl.static_range(W):
                tl.store(dk_ptr + offs_c * W + w, tl.sum(dk_sum[i * W + w], 0)[None, :], mask=mask_d)


@triton.jit
def initial_state_grad_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, dfinal_ptr, cu_ptr, dstate_ptr,
    T, D, tiles_d,
    stride_dyb, stride_dyt, stride_dyd,
    stride_xb, stride_xt, stride_xd,
    stride_kb, stride_kt, stride_kd, stride_kw,
    stride_bias,
    stride_sn, stride_sd, stride_si,
    stride_fn, stride_fd, stride_fi,
    W: tl.constexpr, TAPS: tl.constexpr, SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_DFINAL: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ds[i] = sum_{p <= i, p < L} du[p] k[p, i-p], plus dfinal[i-L] where the sequence is too short to push slot i out."""
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_w = tl.arange(0, TAPS).to(tl.int64)[None, :]  # taps of a token, and slots of the state
    mask_d = offs_d < D
    b, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    state_row = state_ptr + n * stride_sn + offs_d * stride_sd

    ds = tl.zeros([BLOCK, TAPS], tl.float32)
    for p in range(tl.minimum(L, W - 1)):
        t = begin + p
        du = tl.load(dy_ptr + b * stride_dyb + t * stride_dyt + offs_d * stride_dyd, mask=mask_d, other=0.0)
        du = du.to(tl.float32)
        k_row = k_ptr + b * stride_kb + t * stride_kt + offs_d * stride_kd
        if SILU:
            j = p - (W - 1) + offs_w
            x_at = x_ptr + b * stride_xb + (begin + j) * stride_xt + offs_d * stride_xd
            X = tl.load(x_at, mask=mask_d & (offs_w < W) & (j >= 0), other=0.0).to(tl.float32)
            before = tl.load(state_row + (p + offs_w) * stride_si, mask=mask_d & (j < 0), other=0.0)
            k = tl.load(k_row + offs_w * stride_kw, mask=mask_d & (offs_w < W), other=0.0).to(tl.float32)
            u = tl.sum(k * (X + before.to(tl.float32)), 1)[:, None]
            if HAS_BIAS:
                u += tl.load(bias_ptr + offs_d * stride_bias, mask=mask_d, other=0.0).to(tl.float32)
            s = tl.sigmoid(u)
            du *= s * (1 + u * (1 - s))
        seen = mask_d & (offs_w >= p) & (offs_w < W - 1)
        ds += du * tl.load(k_row + (offs_w - p) * stride_kw, mask=seen, other=0.0).to(tl.float32)

    mask = mask_d & (offs_w < W - 1)
    if HAS_DFINAL:
        at = dfinal_ptr + n * stride_fn + offs_d * stride_fd + (offs_w - L) * stride_fi
        ds += tl.load(at, mask=mask & (offs_w >= L), other=0.0).to(tl.float32)
    tl.store(dstate_ptr + (n * D + offs_d) * (W - 1) + offs_w, ds.to(dstate_ptr.dtype.element_ty), mask=mask)


def backward(dy, dfinal, x, weight, bias, activation, initial_state, cu_seqlens, needs):
    """Launch the backward pass.

    Args:
        dy: gradient of y, [B, T, D].
        dfinal: gradient of the final state, [N, D, W-1], or ``None``.
        x, weight, bias, activation, initial_state, cu_seqlens: as ``dynamic_conv`` was given them.
        needs: four bools, whether the gradients of x, weight, bias and initial_state are wanted.

    Returns:
        ``(dx, dweight, dbias, dinitial_state)``, each in its tensor's dtype, ``None`` where not wanted.
    """
    B, T, D = x.shape
    W = weight.shape[-1]
    need_x, need_weight, need_bias, need_state = needs
    k = weight.expand(B, T, D, W)
    static = weight.ndim == 2
    packed = cu_seqlens is not None
    silu = activation == "silu"
    dfinal = None if W == 1 else dfinal
    state = None if W == 1 else initial_state
    dx = torch.empty(B, T, D, dtype=x.dtype, device=x.device) if need_x else None
    dk = dbias = dstate = None

    words = {"x": x, "dy": dy} | ({} if dx is None else {"dx": dx})
    G, _ = channels_per_word(words, {"weight": k})
    options = configuration("dynamic_conv", "backward", size_class(weight), x.device)
    G = min(G, options.pop("G"))
    C = D // G
    tiles_t = triton.cdiv(T, options["ROWS"] * options["RUN"])
    tiles_d = triton.cdiv(C, options["BLOCK"])
    if need_weight:
        shape = (B * tiles_t, D, W) if static else (B, T, D, W)
        dk = torch.empty(shape, dtype=torch.float32 if static else weight.dtype, device=x.device)
    if need_bias:
        dbias = torch.empty(B * tiles_t, D, dtype=torch.float32, device=x.device)
    if need_x or need_weight or need_bias:
        launch(
            conv_backward_kernel,
            (B * tiles_t * tiles_d,),
            dy, x, k, bias, state, dfinal,
            *locate_tokens(cu_seqlens, T), cu_seqlens, dx, dk, dbias,
            T, C, tiles_t, tiles_d,
            *word_strides(dy, G), *word_strides(x, G), *word_strides(k, G, inner=2),
            *strides(bias, 1), *strides(state, 3), *strides(dfinal, 3),
            outputs=(dx, dk, dbias),
            W=W, TAPS=triton.next_power_of_2(W), G=G, SILU=silu,
            HAS_BIAS=bias is not None, HAS_STATE=state is not None, HAS_DFINAL=dfinal is not None, PACKED=packed,
            NEED_DX=dx is not None, NEED_DK=dk is not None, NEED_DBIAS=dbias is not None, STATIC=static,
            **options,
        )  # fmt: skip
    if dk is not None and static:
        dk = dk.sum(0).to(weight.dtype)  # the same order every time: deterministic
    if dbias is not None:
        dbias = dbias.sum(0).to(bias.dtype)

    if need_state:
        dstate = torch.empty(initial_state.shape, dtype=initial_state.dtype, device=x.device)
        BLOCK = 64
        tiles_d = triton.cdiv(D, BLOCK) if W > 1 else 0
        launch(
            initial_state_grad_kernel,
            (initial_state.shape[0] * tiles_d,),
            dy, x, k, bias, state, dfinal, cu_seqlens, dstate,
            T, D, tiles_d,
            *dy.stride(), *x.stride(), *k.stride(), *strides(bias, 1), *strides(state, 3), *strides(dfinal, 3),
            outputs=(dstate,),
            W=W, TAPS=triton.next_power_of_2(W), SILU=silu,
            HAS_BIAS=bias is not None, HAS_DFINAL=dfinal is not None, PACKED=packed, BLOCK=BLOCK,
        )  # fmt: skip
    return dx, dk, dbias, dstate
