"""What lesson 11 goes on with, made from notebooks/11_dynamic_conv_fast.ipynb: see this package."""

import triton
import triton.language as tl


@triton.jit
def as_words(ptr):  # the same address, of 64-bit words
    return ptr.to(tl.pointer_type(tl.int64), bitcast=True)


@triton.jit
def pack(parts, dtype: tl.constexpr):  # four float32 numbers, each rounded once, as a word
    word = 0
    for place in tl.static_range(4):
        bits = parts[place].to(dtype).to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
        word = word | (bits << (16 * place))
    return word


@triton.jit
def part(word, place: tl.constexpr, dtype: tl.constexpr):  # one of a word's four numbers, in float32
    return (word >> (16 * place)).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def walk(
    x_ptr, k_ptr, y_ptr, T, C,
    W: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    offs_c = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    first = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None] * RUN  # where the runs begin
    row = tl.program_id(2).to(tl.int64) * T * C + offs_c  # the words of the sequence's token 0
    x_row, k_row, y_row = as_words(x_ptr) + row, as_words(k_ptr) + row * W, as_words(y_ptr) + row

    X = ()  # the window, oldest first: the W - 1 words before the run
    for w in tl.static_range(W - 1):
        j = first - (W - 1) + w
        X += (tl.load(x_row + j * C, mask=(offs_c < C) & (j >= 0) & (j < T), other=0),)
    for step in range(RUN):
        t = first + step
        mask = (offs_c < C) & (t < T)
        X += (tl.load(x_row + t * C, mask=mask, other=0),)
        k = ()
        for m in tl.static_range(W):
            k += (tl.load(k_row + t * C * W + m, mask=mask, other=0),)
        y = ()
        for i in tl.static_range(4):
            acc = 0.0
            for w in tl.static_range(W):
                acc += part(k[(i * W + w) // 4], (i * W + w) % 4, dtype) * part(X[w], i, dtype)
            y += (acc,)
        tl.store(y_row + t * C, pack(y, dtype), mask=mask)
        X = X[1:]
