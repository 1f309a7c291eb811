"""Several channels as one memory word: why a weight with any number of taps can be read in full-width accesses.

``G`` neighbouring channels of ``x`` are one word of G elements. Their weights, ``G * W`` neighbouring elements, are ``W``
such words; the tap w of channel i is element ``i * W + w`` of them. So a thread that owns G channels reads and writes
nothing but whole words, whatever W is: no padding to a power of two, no exchange between threads.

The loops are the ones that ``plain`` describes, with G channels in each of their lanes: D and the strides of x, dy and
residual count words of G. Those of the weight have KG elements: where rows of x begin at odd addresses, G is 1, and the
weights of one channel may be whole words still. One channel a lane, one weight a word serves every other layout.
"""

import math

import triton
import triton.language as tl

from kernels.dynamic_conv.plain import activate, load_float, load_taps, locate, slope, state_at, token_at


def channels_per_word(tensors, weight, most):
    """How many channels one word can hold for all these tensors at once, and how many weights one of the weight's words.

    Rows that begin at odd addresses leave x one channel a word. W weights of a channel may be whole words all the same.

    Args:
        tensors: dict name -> ``Layout`` of a tensor whose last dimension is the channels.
        weight: ``Layout`` of the weight, whose last two dimensions are channels and taps.
        most: elements that fill 64 bits, or fewer; a power of two.

    Returns:
        ``(G, KG, reason)``, the reason why G is no more than 1 or what it is; with G > 1 every tensor is aligned, contiguous
        in its last dimensions and divisible into words; KG divides G W.
    """
    D, W = weight.shape[-2:]
    G, reason = math.gcd(most, D), f"the {D} channels do not divide into words of {most}"
    rows = [_rows_begin(name, t, 1, most) for name, t in tensors.items()] + [_rows_begin("weight", weight, 2, most)]
    for begin, why in rows:
        if math.gcd(G, begin) < G:
            G, reason = math.gcd(G, begin), why
    if G > 1:
        size = max(t.dtype.itemsize for t in (*tensors.values(), weight))
        reason = f"{G} channels of {size} bytes fill {8 * G * size} bits"
    return G, math.gcd(G * W, begin), reason


def _rows_begin(name, t, inner, most):
    """``(elements, why)``: a row of ``inner`` dimensions begins at a multiple of so many elements, and why not of ``most``;
    at any where it is not contiguous."""
    steps = zip(t.strides[-inner:], (t.shape[-1], 1)[-inner:], t.shape[-inner:], strict=True)
    if any(stride != step and size != 1 for stride, step, size in steps):
        return 1, f"{name} has strides {tuple(t.strides)}, not contiguous in its last dimension{'s' * (inner - 1)}"
    why = f"the rows of {name} do not all begin at a multiple of {most * t.dtype.itemsize} bytes"
    return math.gcd(most, t.address // t.dtype.itemsize, *t.strides[:-inner]), why


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
def lanes(word, G: tl.constexpr, dtype: tl.constexpr):
    """All G elements."""
    elements = ()
    for i in tl.static_range(G):
        elements += (lane(word, i, G, dtype),)
    return elements


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
def load_bias(bias_ptr, run, stride, G: tl.constexpr):
    """The bias of a tile's channels in float32, one tensor for each channel of a word; zeros where there is none."""
    bias = ()
    for i in tl.static_range(G):
        # one element an access: the compiler would lay out the whole loop for a wider one
        if bias_ptr is not None:
            at = tl.max_contiguous(bias_ptr + (run.offs_d * G + i) * stride, (1, 1))
            bias += (load_float(at, run.mask_d),)
        else:
            bias += (run.zero,)
    return bias


@triton.jit
def window_before(run, x_row, dtype: tl.constexpr, state_ptr, strides, TILE: tl.constexpr):
    """X[t-W+1] ... X[t-1] of the runs that begin at t = first, channel i of time w as element w * G + i: inputs, and the
    state's slots where it begins before its sequence does."""
    W: tl.constexpr = TILE.W
    G: tl.constexpr = TILE.G
    X = ()
    for w in tl.static_range(W - 1):
        j = run.first - (W - 1) + w
        word = tl.load(x_row + j * strides.x.t, mask=run.mask_d & (j >= 0) & (j < run.L), other=0)
        X += lanes(word, G, dtype)
    if state_ptr is not None:
        if tl.min(run.first) < W - 1:  # few runs begin that near to a sequence's first token: the others skip this
            window = ()
            for w in tl.static_range(W - 1):
                before = run.mask_d & (run.first + w < W - 1) & (run.first < run.L)
                for i in tl.static_range(G):
                    at = state_at(state_ptr, strides.state, run.n, run.offs_d * G + i, run.first + w)
                    window += (X[w * G + i] + load_float(at, before),)
            X = window
    return X


@triton.jit
def load_step(dy_row, x_row, k_row, t, mask, own, strides, TILE: tl.constexpr):
    """dy, x and the taps of one time step, as they are in memory."""
    dy = tl.load(dy_row + t * strides.dy.t, mask=mask, other=0)
    # past the run's own steps x matters only to recompute u
    x = tl.load(x_row + t * strides.x.t, mask=mask if TILE.ACT is not None else mask & own, other=0)
    return dy, x, load_taps(k_row + t * strides.k.t, mask, strides, TILE)


@triton.jit
def tap(k, i: tl.constexpr, w: tl.constexpr, dtype: tl.constexpr, TILE: tl.constexpr):
    """k[w] of channel i in float32, from the words of G channels' taps."""
    n: tl.constexpr = i * TILE.W + w
    return lane(k[n // TILE.KG], n % TILE.KG, TILE.KG, dtype)


@triton.jit
def convolve_channel(u, k, X, i: tl.constexpr, dtype: tl.constexpr, TILE: tl.constexpr):
    """u + sum_w k[w] X[t-W+1+w] of channel i."""
    W: tl.constexpr = TILE.W
    for w in tl.static_range(W):
        u += tap(k, i, w, dtype, TILE) * X[w * TILE.G + i]
    return u


@triton.jit
def words_forward_kernel(
    x_ptr, k_ptr, bias_ptr, residual_ptr, state_ptr, cuts, y_ptr, T, D, runs, tiles_d, strides, TILE: tl.constexpr
):
    """y of ROWS runs."""
    G: tl.constexpr = TILE.G
    x_type: tl.constexpr = x_ptr.dtype.element_ty
    run = locate(T, D, runs, TILE.RUN, tiles_d, cuts, TILE)
    x_row = token_at(as_words(x_ptr, G), strides.x, run, run.begin)
    k_row = token_at(as_words(k_ptr, TILE.KG), strides.k, run, run.begin)
    y_row = as_words(y_ptr, G) + (run.row * T + run.begin) * D + run.offs_d
    if residual_ptr is not None:
        r_row = token_at(as_words(residual_ptr, G), strides.residual, run, run.begin)
    bias = load_bias(bias_ptr, run, strides.bias, G)

    X = window_before(run, x_row, x_type, state_ptr, strides, TILE)
    for step in range(TILE.RUN):
        t = run.first + step
        mask = run.mask_d & (t < run.L)
        x = tl.load(x_row + t * strides.x.t, mask=mask, other=0)
        k = load_taps(k_row + t * strides.k.t, mask, strides, TILE)
        if residual_ptr is not None:
            residual = tl.load(r_row + t * strides.residual.t, mask=mask, other=0)
        X += lanes(x, G, x_type)

        y = ()
        for i in tl.static_range(G):
            u = convolve_channel(run.zero, k, X, i, k_ptr.dtype.element_ty, TILE)
            if bias_ptr is not None:
                u += bias[i]
            u = activate(u, TILE)
            if residual_ptr is not None:
                u += lane(residual, i, G, residual_ptr.dtype.element_ty)
            y += (u,)
        tl.store(y_row + t * D, pack(y, G, y_ptr.dtype.element_ty), mask=mask)
        X = X[G:]


@triton.jit(do_not_specialize=["T", "runs", "RUN", "tiles_d"])
def words_backward_kernel(
    dy_ptr, x_ptr, k_ptr, bias_ptr, state_ptr, cuts, grads, T, D, runs, RUN, tiles_d, strides, TILE: tl.constexpr
):
    """dx, dk and this program's share of dbias, ``grads.bias[program]``."""
    W: tl.constexpr = TILE.W
    G: tl.constexpr = TILE.G
    KG: tl.constexpr = TILE.KG
    N: tl.constexpr = G * W // KG  # words of a lane's weights
    x_type: tl.constexpr = x_ptr.dtype.element_ty
    k_type: tl.constexpr = k_ptr.dtype.element_ty
    run = locate(T, D, runs, RUN, tiles_d, cuts, TILE)
    dy_row = token_at(as_words(dy_ptr, G), strides.dy, run, run.begin)
    x_row = token_at(as_words(x_ptr, G), strides.x, run, run.begin)
    k_row = token_at(as_words(k_ptr, TILE.KG), strides.k, run, run.begin)
    out_row = (run.row * T + run.begin) * D + run.offs_d  # of dx and dk
    bias = load_bias(bias_ptr, run, strides.bias, G)

    X = window_before(run, x_row, x_type, state_ptr, strides, TILE)
    dX = (run.zero,) * ((W - 1) * G)  # sums so far for X[t-W+1] ... X[t-1], in the same order
    dbias = (run.zero,) * G
    steps = RUN + W - 1 if grads.x is not None else RUN
    # The words of a step are asked for one step before they are used: memory answers while the step before is computed.
    some = run.first < run.L
    coming = load_step(dy_row, x_row, k_row, run.first, run.mask_d & some, some, strides, TILE)
    for step in tl.range(steps, loop_unroll_factor=2):
        t = run.first + step
        mask = run.mask_d & (t < run.L)
        own = t < run.first + RUN
        dy, x, k = coming
        more = run.mask_d & (t + 1 < run.L) & (t + 1 < run.first + steps)
        coming = load_step(dy_row, x_row, k_row, t + 1, more, t + 1 < run.first + RUN, strides, TILE)
        X += lanes(x, G, x_type)

        dk = ()
        dX_new = ()
        dbias_new = ()
        for i in tl.static_range(G):
            du = lane(dy, i, G, dy_ptr.dtype.element_ty)
            if TILE.ACT is not None:
                du *= slope(convolve_channel(bias[i], k, X, i, k_type, TILE), TILE)
            for w in tl.static_range(W):
                dk += (du * X[w * G + i],)
                dX_new += (du * tap(k, i, w, k_type, TILE),)  # dX[t-W+1+w] += du[t] k[t, w]
            dbias_new += (dbias[i] + tl.where(own, du, 0.0),)
        dbias = dbias_new

        if grads.k is not None:
            dk_at = as_words(grads.k, KG) + (out_row + t * D) * N
            dk_words = ()
            for m in tl.static_range(N):
                dk_words += (pack(dk[m * KG : (m + 1) * KG], KG, grads.k.dtype.element_ty),)
            if KG > 1:
                store_side_by_side(dk_at, dk_words, mask & own, N, triton.next_power_of_2(N))
            else:
                for m in tl.static_range(N):
                    tl.store(dk_at + m, dk_words[m], mask=mask & own)

        if grads.x is not None:
            # shares are ordered channel, tap; dX is ordered time, channel, so that the oldest time leaves in one piece
            shifted = ()
            for w in tl.static_range(W):
                for i in tl.static_range(G):
                    shifted += (dX_new[i * W + w] + (dX[w * G + i] if w < W - 1 else 0.0),)
            j = t - (W - 1)
            complete = run.mask_d & (j >= run.first) & (j < run.L)
            dx_at = as_words(grads.x, G) + out_row + j * D
            tl.store(dx_at, pack(shifted[:G], G, grads.x.dtype.element_ty), mask=complete)
            dX = shifted[G:]
        X = X[G:]

    if grads.bias is not None:
        for i in tl.static_range(G):
            offs_c = run.tile.to(tl.int64) * D * G + run.offs_d * G + i
            tl.store(grads.bias + offs_c, tl.sum(dbias[i], 0)[None, :], mask=run.mask_d)
