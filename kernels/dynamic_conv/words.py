"""Several channels as one memory word: why a weight with any number of taps can be read in full-width accesses.

``G`` neighbouring channels of ``x`` are one word of G elements. Their weights, ``G * W`` neighbouring elements, are ``W``
such words; the tap w of channel i is element ``i * W + w`` of them. So a thread that owns G channels reads and writes
nothing but whole words, whatever W is: no padding to a power of two, no exchange between threads.
"""

import triton
import triton.language as tl


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
