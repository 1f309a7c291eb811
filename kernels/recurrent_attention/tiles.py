"""What both modes share on the device: tiles of a state, and which half of its block a token lies in."""

import triton
import triton.language as tl


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """float32; a tile's sizes are members of a tuple, which older versions of Triton take in no list."""
    return tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def load_state(base, offs_k, offs_v, K, V):
    """A tile of a contiguous state [K, V]."""
    mask = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    return tl.load(base + offs_k[:, None] * V + offs_v[None, :], mask=mask, other=0.0)


@triton.jit
def store_state(base, offs_k, offs_v, K, V, values):
    """The reverse of ``load_state``."""
    mask = (offs_k < K)[:, None] & (offs_v < V)[None, :]
    tl.store(base + offs_k[:, None] * V + offs_v[None, :], values.to(base.dtype.element_ty), mask=mask)


# Two tokens of a block of 2^n are parted by the middle of exactly one of its aligned blocks of 2, 4, ..., 2^n tokens: the
# smallest that holds both.


@triton.jit
def right_of_middle(token, digit):
    """Whether a token lies in the right half of its aligned 2^(digit+1) tokens."""
    return (token >> digit) % 2 == 1


@triton.jit
def parted(a, b, digit):
    """Whether the middle of an aligned 2^(digit+1) tokens lies between the two, in either order."""
    return (a >> digit) ^ (b >> digit) == 1


@triton.jit
def crossed_to_middle(gate, token, digit):
    """Which gates lie between a token and the middle: on its side, up to its own if it is right, behind it if left."""
    return (gate >> digit == token >> digit) & (right_of_middle(token, digit) == (gate <= token))
