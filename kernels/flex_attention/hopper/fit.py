"""Which calls the Hopper kernels take, and how they are given tensors: as descriptors, from which TMA copies tiles."""

import torch
import triton

from kernels.common.gpu import is_cuda_architecture
from kernels.flex_attention import problem
from kernels.flex_attention.portable.tiles import fits_copy_engine

if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8):
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
else:  # ``unfit`` says so
    gluon = None

GROUPS = 2
ROWS = 64  # queries of a group of four warps: the rows of one matrix instruction
BLOCK_M = GROUPS * ROWS


def unfit(p, kernel, prefix, *tensors):
    """Why the Hopper version of ``kernel`` cannot take the call whatever its blocks, as text, or ``None``."""
    if p.options.keys() & {prefix + name for name in problem.OPTIONS}:
        return "kernel_options ask for tiles or warps of their own"
    if gluon is None:
        return f"Triton is {triton.__version__}, needs 3.8 for Gluon's copy engine"
    if not is_cuda_architecture(p.device, 9):
        return "the GPU is not a Hopper"
    if p.dtype.itemsize != 2:
        return f"{p.dtype} has no 16-bit matrix instruction"
    if max(p.D, p.Dv) > 128:
        return f"heads of {max(p.D, p.Dv)} do not fit the registers"
    if not problem.table_options(kernel, p.key, p.device)["STAGES"]:
        return f"for {p.key} the plain kernel is faster"
    if not all(map(fits_copy_engine, tensors)):
        return "the copy engine cannot read these strides"
    return None


def columns(D):
    """Columns of a tile: a head, filled up with zeros."""
    return max(16, triton.next_power_of_2(D))


def described(x, rows):
    """x [B, H, ., D] as the copy engine reads it, in tiles of ``rows``."""
    tile = [1, 1, rows, columns(x.shape[-1])]
    layout = gl.NVMMASharedLayout.get_default_for(tile, element(x))
    return TensorDescriptor(x, list(x.shape), list(x.stride()), tile, layout)


def element(x):
    """The type of a tensor's elements, in Gluon's terms."""
    return gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
