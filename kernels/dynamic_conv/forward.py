"""Forward pass: y[t] = act(sum_w k[t, w] X[t-W+1+w] + b) + r, the final state, and the one-token step.

A program owns a tile of [ROWS, BLOCK]: BLOCK words of channels (see ``words``) and ROWS runs of RUN consecutive tokens of
one sequence. It walks along its runs with the last W - 1 inputs in registers, so that x and the weights are read once.
"""

import triton
import triton.language as tl

from kernels.common.sequences import locate_run, sequence_span
from kernels.dynamic_conv.words import as_words, lane, pack


@triton.jit
def load_taps(k_at, mask, stride_kw, W: tl.constexpr):
    """The W words of weights of a tile."""
    k = ()
    for m in tl.static_range(W):
        k += (tl.load(k_at + m * stride_kw, mask=mask, other=0),)
    return k


@triton.jit
def load_bias(bias_ptr, offs_d, mask_d, stride_bias, G: tl.constexpr):
    """The bias of a tile's channels in float32, one tensor for each channel of a word."""
    bias = ()
    for i in tl.static_range(G):
        bias += (tl.load(bias_ptr + (offs_d * G + i) * stride_bias, mask=mask_d, other=0.0).to(tl.float32),)
    return bias


@triton.jit
def window_before(
    n, first, L, offs_d, mask_d, x_row, stride_xt, dtype: tl.constexpr, state_ptr, stride_sn, stride_sd, stride_si,
    W: tl.constexpr, G: tl.constexpr, HAS_STATE: tl.constexpr,
):  # fmt: skip
    """X[t-W+1] ... X[t-1] of the runs that begin at t = first, channel i of time w as element w * G + i."""
    X = ()
    for w in tl.static_range(W - 1):
        j = first - (W - 1) + w
        word = tl.load(x_row + j * stride_xt, mask=mask_d & (j >= 0) & (j < L), other=0)
        for i in tl.static_range(G):
            X += (lane(word, i, G, dtype),)
    if HAS_STATE:
        if tl.min(first) < W - 1:  # few runs begin that near to a sequence's first token: the others skip this
            with_state = ()
            for w in tl.static_range(W - 1):
                before = mask_d & (first + w < W - 1) & (first < L)
                for i in tl.static_range(G):
                    slot = state_ptr + n * stride_sn + (offs_d * G + i) * stride_sd + (first + w) * stride_si
                    with_state += (X[w * G + i] + tl.load(slot, mask=before, other=0.0).to(tl.float32),)
            X = with_state
    return X


@triton.jit
def conv_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, y_ptr,
    T, C, runs, tiles_d,
    stride_xb, stride_xt, stride_xd,
    stride_kb, stride_kt, stride_kd, stride_kw,
    stride_bias,
    stride_rb, stride_rt, stride_rd,
    stride_sn, stride_sd, stride_si,
    W: tl.constexpr, G: tl.constexpr, SILU: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
    ROWS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of x, k and residual count words of G channels; C is the number of words in a row, D / G."""
    pid = tl.program_id(0)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < C
    r = pid // tiles_d * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, PACKED)

    x_row = as_words(x_ptr, G) + row * stride_xb + begin * stride_xt + offs_d * stride_xd
    k_row = as_words(k_ptr, G) + row * stride_kb + begin * stride_kt + offs_d * stride_kd
    y_row = as_words(y_ptr, G) + (row * T + begin) * C + offs_d
    if HAS_RESIDUAL:
        r_row = as_words(residual_ptr, G) + row * stride_rb + begin * stride_rt + offs_d * stride_rd

    bias = load_bias(bias_ptr, offs_d, mask_d, stride_bias, G) if HAS_BIAS else ()

    X = window_before(n, first, L, offs_d, mask_d, x_row, stride_xt, x_ptr.dtype.element_ty,
                      state_ptr, stride_sn, stride_sd, stride_si, W, G, HAS_STATE)  # fmt: skip
    for step in range(RUN):
        t = first + step
        mask = mask_d & (t < L)
        x = tl.load(x_row + t * stride_xt, mask=mask, other=0)
        k = load_taps(k_row + t * stride_kt, mask, stride_kw, W)
        if HAS_RESIDUAL:
            residual = tl.load(r_row + t * stride_rt, mask=mask, other=0)
        for i in tl.static_range(G):
            X += (lane(x, i, G, x_ptr.dtype.element_ty),)

        y = ()
        for i in tl.static_range(G):
            # u = sum_w k[t, w] X[t-W+1+w]
            u = tl.zeros([ROWS, BLOCK], tl.float32)
            for w in tl.static_range(W):
                u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_ptr.dtype.element_ty) * X[w * G + i]
            if HAS_BIAS:
                u += bias[i]
            if SILU:
                u *= tl.sigmoid(u)
            if HAS_RESIDUAL:
                u += lane(residual, i, G, residual_ptr.dtype.element_ty)
            y += (u,)
        tl.store(y_row + t * C, pack(y, G, y_ptr.dtype.element_ty), mask=mask)
        X = X[G:]


@triton.jit
def final_state_kernel(
    x_ptr, state_ptr, cu_ptr, out_ptr,
    T, D, tiles_d,
    stride_xb, stride_xt, stride_xd,
    stride_sn, stride_sd, stride_si,
    W: tl.constexpr, SLOTS: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slot i of sequence n holds X[L-(W-1)+i]: an input, or where the sequence is that short, the old state's slot L+i."""
    pid = tl.program_id(0)
    n = (pid // tiles_d).to(tl.int64)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_i = tl.arange(0, SLOTS).to(tl.int64)[None, :]
    mask = (offs_d < D) & (offs_i < W - 1)
    b, begin, L = sequence_span(n, T, cu_ptr, PACKED)
    j = L - (W - 1) + offs_i
    x_at = x_ptr + b * stride_xb + (begin + j) * stride_xt + offs_d * stride_xd
    value = tl.load(x_at, mask=mask & (j >= 0), other=0.0).to(tl.float32)
    if HAS_STATE:
        state_at = state_ptr + n * stride_sn + offs_d * stride_sd + (L + offs_i) * stride_si
        value += tl.load(state_at, mask=mask & (j < 0), other=0.0).to(tl.float32)
    out_at = out_ptr + (n * D + offs_d) * (W - 1) + offs_i
    tl.store(out_at, value.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def conv_step_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, slots_ptr, y_ptr,
    D, tiles_d,
    stride_xb, stride_xd,
    stride_kb, stride_kd, stride_kw,
    stride_bias, stride_rb, stride_rd, stride_sn, stride_sd, stride_si, stride_slots,
    W: tl.constexpr, KEPT: tl.constexpr, SILU: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token: u = sum_w k[w] [s_0 ... s_{W-2}, x]_w, and the state moves up by one, in place. It holds the last KEPT
    inputs: W - 1, or W, the first of which is read no more. A row whose slot is negative is padding: its y is 0."""
    pid = tl.program_id(0)
    b = (pid // tiles_d).to(tl.int64)
    offs_d = (pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(slots_ptr + b * stride_slots).to(tl.int64) if HAS_SLOTS else b
    mask = (offs_d < D) & (row >= 0)
    state_row = state_ptr + row * stride_sn + offs_d * stride_sd

    window = ()
    for w in tl.static_range(W - 1):
        window += (tl.load(state_row + (w + KEPT - (W - 1)) * stride_si, mask=mask, other=0.0).to(tl.float32),)
    window += (tl.load(x_ptr + b * stride_xb + offs_d * stride_xd, mask=mask, other=0.0).to(tl.float32),)

    u = tl.zeros([BLOCK], tl.float32)
    for w in tl.static_range(W):
        k = tl.load(k_ptr + b * stride_kb + offs_d * stride_kd + w * stride_kw, mask=mask, other=0.0)
        u += k.to(tl.float32) * window[w]
    if HAS_BIAS:
        u += tl.load(bias_ptr + offs_d * stride_bias, mask=mask, other=0.0).to(tl.float32)
    if SILU:
        u *= tl.sigmoid(u)
    if HAS_RESIDUAL:
        u += tl.load(residual_ptr + b * stride_rb + offs_d * stride_rd, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + b * D + offs_d, u.to(y_ptr.dtype.element_ty), mask=offs_d < D)

    tl.debug_barrier()  # every slot has been read before any is overwritten, whichever threads own them
    for i in tl.static_range(KEPT):
        tl.store(state_row + i * stride_si, window[i + W - KEPT].to(state_ptr.dtype.element_ty), mask=mask)
