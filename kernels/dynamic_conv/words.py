"""Several channels as one memory word: why a weight with any number of taps can be read in full-width accesses.

``G`` neighbouring channels of ``x`` are one word of G elements. Their weights, ``G * W`` neighbouring elements, are ``W``
such words; the tap w of channel i is element ``i * W + w`` of them. So a thread that owns G channels reads and writes
nothing but whole words, whatever W is: no padding to a power of two, no exchange between threads.

The kernels are ``plain``'s, with G channels in each of their lanes.
"""

import triton
import triton.language as tl

from kernels.common.sequences import locate_run
from kernels.dynamic_conv.plain import activate, load_step, load_taps, slope


def channels_per_word(channel_tensors, weights):
    """How many channels one 64-bit word can hold for all these tensors at once, and the reason when it is 1.

    Args:
        channel_tensors: dict name -> ``Layout`` of a tensor whose last dimension is the channels.
        weights: dict name -> ``Layout`` of a tensor whose last two dimensions are channels and taps.

    Returns:
        ``(G, reason)``; with G > 1 every tensor is aligned, contiguous in its last dimensions and divisible into words.
    """
    tensors = {**channel_tensors, **weights}
    G = 8 // max(t.dtype.itemsize for t in tensors.values())
    for name, t in tensors.items():
        inner = 1 if name in channel_tensors else 2
        W = 1 if name in channel_tensors else t.shape[-1]
        D = t.shape[-inner]
        if D % G:
            return 1, f"the {D} channels do not divide into words of {G}"
        if (t.strides[-1] != 1 and t.shape[-1] != 1) or (inner == 2 and t.strides[-2] != W and D != 1):
            return 1, f"{name} has strides {tuple(t.strides)}, not contiguous in its last dimension{'s' * (inner - 1)}"
        if t.address % (G * t.dtype.itemsize) or any(s % G for s in t.strides[:-inner]):
            return 1, f"the rows of {name} do not all begin at a multiple of {G * t.dtype.itemsize} bytes"
    return G, f"{G} channels of {8 // G} bytes fill 64 bits"


def word_strides(tensor, G, inner=1):
    """Strides of a tensor with this ``Layout`` in words of G elements; ``inner`` dimensions at the end lie inside or across
    words."""
    if G == 1:
        return tensor.strides
    outer = tuple(s // G for s in tensor.strides[:-inner])
    return outer + ((1,) if inner == 1 else (tensor.shape[-1], 1))


@triton.jit
def as_words(ptr, G: tl.constexpr):
    """The same address, seen as a pointer to words of G elements."""
    if G == 1:
        return ptr
    elif G * ptr.dtype.element_ty.primitive_bitwidth == 64:
        return ptr.to(tl.pointer_type(tl.int64), bitcast=True)
    else:
        return ptr.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def lane(word, i: tl.constexpr, G: tl.constexpr, dtype: tl.constexpr):
    """Element i of a word, in float32."""
    if G == 1:
        return word.to(tl.float32)
    elif dtype == tl.bfloat16:  # the upper half of a float32's bits: one shift, or one mask
        half = (word >> (32 * (i // 2))).to(tl.int32)
        return (half & -65536 if i % 2 else half << 16).to(tl.float32, bitcast=True)
    elif dtype.primitive_bitwidth == 16:
        return (word >> (16 * i)).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
    else:
        return (word >> (32 * i)).to(tl.int32).to(dtype, bitcast=True)


@triton.jit
def pack(lanes, G: tl.constexpr, dtype: tl.constexpr):
    """The word that holds G float32 values, each rounded once to ``dtype``."""
    if G == 1:
        return lanes[0].to(dtype)
    elif dtype.primitive_bitwidth == 16:
        word = _bits16(lanes[0], dtype)
        for i in tl.static_range(1, G):
            word = word | (_bits16(lanes[i], dtype) << (16 * i))
        return word if G == 4 else word.to(tl.int32)
    else:
        low = lanes[0].to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        return low | (lanes[1].to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def _bits16(value, dtype: tl.constexpr):
    return value.to(dtype).to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF


@triton.jit
def store_side_by_side(ptr, words, mask, N: tl.constexpr, WIDTH: tl.constexpr):
    """Store N words [ROWS, BLOCK] each at ptr, ptr + 1, ...: ``ptr`` [ROWS, BLOCK] steps by N words along BLOCK.

    One store per word would write 8 bytes of every 32-byte sector at a time; L2 takes each of those pieces separately. As one
    tile [ROWS, BLOCK, N] the same words leave in whole sectors, after an exchange between threads. WIDTH is the power of two
    from N up.
    """
    for extra in tl.static_range(WIDTH - N):  # noqa: B007
        words += (words[0],)
    # tl.join adds a last dimension of two: pairing i with i + half first makes it the highest bit of the word's number
    for level in tl.static_range(8):
        if WIDTH >> level > 1:
            joined = ()
            for i in tl.static_range(WIDTH >> (level + 1)):
                joined += (tl.join(words[i], words[i + (WIDTH >> (level + 1))]),)
            words = joined
    tile = tl.reshape(words[0], [words[0].shape[0], words[0].shape[1], WIDTH])
    offs_n = tl.arange(0, WIDTH)[None, None, :]
    tl.store(ptr[:, :, None] + offs_n, tile, mask=mask[:, :, None] & (offs_n < N))


@triton.jit
def load_bias(bias_ptr, offs_d, mask_d, stride_bias, G: tl.constexpr):
    """The bias of a tile's channels in float32, one tensor for each channel of a word."""
    bias = ()
    for i in tl.static_range(G):
        bias += (tl.load(bias_ptr + (offs_d * G + i) * stride_bias, mask=mask_d, other=0.0).to(tl.float32),)
    return bias


@triton.jit
def words_before(
    n, first, L, offs_d, mask_d, x_row, stride_xt, dtype: tl.constexpr, state_ptr, state_strides,
    W: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """X[t-W+1] ... X[t-1] of the runs that begin at t = first, channel i of time w as element w * G + i."""
    X = ()
    for w in tl.static_range(W - 1):
        j = first - (W - 1) + w
        word = tl.load(x_row + j * stride_xt, mask=mask_d & (j >= 0) & (j < L), other=0)
        for i in tl.static_range(G):
            X += (lane(word, i, G, dtype),)
    if state_ptr is not None:
        if tl.min(first) < W - 1:  # few runs begin that near to a sequence's first token: the others skip this
            with_state = ()
            for w in tl.static_range(W - 1):
                before = mask_d & (first + w < W - 1) & (first < L)
                for i in tl.static_range(G):
                    at = state_ptr + n * state_strides.n + (offs_d * G + i) * state_strides.d + (first + w) * state_strides.i
                    with_state += (X[w * G + i] + tl.load(at, mask=before, other=0.0).to(tl.float32),)
            X = with_state
    return X


@triton.jit
def words_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, y_ptr,
    T, C, runs, tiles_d, x_strides, k_strides, stride_bias, residual_strides, state_strides,
    W: tl.constexpr, G: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of x, k and residual count words of G channels; C is the number of words in a row, D / G."""
    pid = tl.program_id(0)
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < C
    r = pid // tiles_d * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)

    x_row = as_words(x_ptr, G) + row * x_strides.b + begin * x_strides.t + offs_d * x_strides.d
    k_row = as_words(k_ptr, G) + row * k_strides.b + begin * k_strides.t + offs_d * k_strides.d
    y_row = as_words(y_ptr, G) + (row * T + begin) * C + offs_d
    if residual_ptr is not None:
        r_row = as_words(residual_ptr, G) + row * residual_strides.b
        r_row += begin * residual_strides.t + offs_d * residual_strides.d

    bias = load_bias(bias_ptr, offs_d, mask_d, stride_bias, G) if bias_ptr is not None else ()

    X = words_before(n, first, L, offs_d, mask_d, x_row, x_strides.t, x_ptr.dtype.element_ty,
                      state_ptr, state_strides, W, G)  # fmt: skip
    for step in range(RUN):
        t = first + step
        mask = mask_d & (t < L)
        x = tl.load(x_row + t * x_strides.t, mask=mask, other=0)
        k = load_taps(k_row + t * k_strides.t, mask, k_strides.w, W)
        if residual_ptr is not None:
            residual = tl.load(r_row + t * residual_strides.t, mask=mask, other=0)
        for i in tl.static_range(G):
            X += (lane(x, i, G, x_ptr.dtype.element_ty),)

        y = ()
        for i in tl.static_range(G):
            # u = sum_w k[t, w] X[t-W+1+w]
            u = tl.zeros([ROWS, BLOCK], tl.float32)
            for w in tl.static_range(W):
                u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_ptr.dtype.element_ty) * X[w * G + i]
            if bias_ptr is not None:
                u += bias[i]
            u = activate(u, ACT)
            if residual_ptr is not None:
                u += lane(residual, i, G, residual_ptr.dtype.element_ty)
            y += (u,)
        tl.store(y_row + t * C, pack(y, G, y_ptr.dtype.element_ty), mask=mask)
        X = X[G:]


@triton.jit(do_not_specialize=["T", "runs", "RUN", "tiles_d"])
def words_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, sequence_of_run_ptr, cu_ptr, dx_ptr, dk_ptr, dbias_ptr,
    T, C, runs, RUN, tiles_d, dy_strides, x_strides, k_strides, stride_bias, state_strides,
    W: tl.constexpr, TAPS: tl.constexpr, G: tl.constexpr, ACT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Strides of dy, x and k count words of G channels. This program writes its share of dbias to dbias[program]."""
    pid = tl.program_id(0)
    tile = pid // tiles_d
    offs_d = ((pid % tiles_d).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask_d = offs_d < C
    r = tile * ROWS + tl.arange(0, ROWS)[:, None]
    n, row, begin, L, first = locate_run(r, runs, T, RUN, sequence_of_run_ptr, cu_ptr, cu_ptr is not None)

    k_type: tl.constexpr = k_ptr.dtype.element_ty
    dy_row = as_words(dy_ptr, G) + row * dy_strides.b + begin * dy_strides.t + offs_d * dy_strides.d
    x_row = as_words(x_ptr, G) + row * x_strides.b + begin * x_strides.t + offs_d * x_strides.d
    k_row = as_words(k_ptr, G) + row * k_strides.b + begin * k_strides.t + offs_d * k_strides.d
    out_row = (row * T + begin) * C + offs_d  # dx and dk are contiguous

    bias = load_bias(bias_ptr, offs_d, mask_d, stride_bias, G) if ACT is not None and bias_ptr is not None else ()

    zero = tl.zeros([ROWS, BLOCK], tl.float32)
    X = words_before(n, first, L, offs_d, mask_d, x_row, x_strides.t, x_ptr.dtype.element_ty,
                      state_ptr, state_strides, W, G)  # fmt: skip
    dX = ()  # sums so far for X[t-W+1] ... X[t-1], in the same order
    for w in tl.static_range(W - 1):  # noqa: B007
        for i in tl.static_range(G):  # noqa: B007
            dX += (zero,)
    dbias_sum = ()
    for i in tl.static_range(G):  # noqa: B007
        dbias_sum += (zero,)

    steps = RUN + W - 1 if dx_ptr is not None else RUN
    # The words of a step are asked for one step before they are used: memory answers while the step before is computed.
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
        for i in tl.static_range(G):
            X += (lane(x, i, G, x_ptr.dtype.element_ty),)

        dk = ()
        dX_new = ()
        dbias_new = ()
        for i in tl.static_range(G):
            du = lane(dy, i, G, dy_ptr.dtype.element_ty)
            if ACT is not None:
                # du = dy act'(u), u recomputed
                u = bias[i] if bias_ptr is not None else zero
                for w in tl.static_range(W):
                    u += lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type) * X[w * G + i]
                du *= slope(u, ACT)
            for w in tl.static_range(W):
                dk += (du * X[w * G + i],)
                # dX[t-W+1+w] += du[t] k[t, w]
                dX_new += (du * lane(k[(i * W + w) // G], (i * W + w) % G, G, k_type),)
            dbias_new += (dbias_sum[i] + tl.where(own, du, 0.0),)
        dbias_sum = dbias_new

        if dk_ptr is not None:
            dk_at = as_words(dk_ptr, G) + (out_row + t * C) * W
            dk_words = ()
            for m in tl.static_range(W):
                dk_words += (pack(dk[m * G : (m + 1) * G], G, dk_ptr.dtype.element_ty),)
            store_side_by_side(dk_at, dk_words, mask & own, W, TAPS)

        if dx_ptr is not None:
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
        if dbias_ptr is not None:
            tl.store(dbias_ptr + offs_c, tl.sum(dbias_sum[i], 0)[None, :], mask=mask_d)
