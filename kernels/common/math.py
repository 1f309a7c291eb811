"""Numbers that every operator needs: log2 e, blocks that cover a dimension, bits of a dtype."""

import math

LOG2_E = math.log2(math.e)  # e^x = 2^(x log2 e): GPUs have an instruction for powers of two


def block(size, least=16):
    """The tile that holds a whole dimension: a power of two, and no less than a matrix product takes."""
    return max(least, 1 << max(0, size - 1).bit_length())


def cdiv(size, tile):
    """How many tiles cover a size. (Triton's own does the same inside a kernel; on the host it takes a microsecond.)"""
    return -(-size // tile)


def bits(dtype):
    """The part of a shape class that says how long a number is: ``"16-bit"``."""
    return f"{8 * dtype.itemsize}-bit"
