"""Which calls the Hopper kernels take, and descriptors of tensors, from which TMA copies tiles."""

from kernels.common import gluon
from kernels.common.descriptors import Descriptors
from kernels.common.gpu import is_cuda_architecture
from kernels.flex_attention import problem
from kernels.flex_attention.problem import columns

if gluon.gluon is not None:
    from triton.experimental.gluon import language as gl

GROUPS = 2
ROWS = 64  # queries of a group of four warps: the rows of one matrix instruction
BLOCK_M = GROUPS * ROWS

NO_TMA = "TMA cannot read these strides"


def unfit(p, kernel, prefix, most, tma, faster="the plain kernel"):
    """Why the Hopper version of ``kernel``, for heads up to ``most``, cannot take the call whatever its blocks, as text, or
    ``None``; tma: whether TMA can read its tensors; faster: what is, where the table has no stages."""
    if p.options.keys() & {prefix + name for name in problem.OPTIONS}:
        return "kernel_options ask for tiles or warps of their own"
    if why := gluon.reason_not("TMA"):
        return why
    if not is_cuda_architecture(p.device, 9):
        return "the GPU is not a Hopper"
    if p.dtype.itemsize != 2:
        return f"{p.dtype} has no 16-bit matrix instruction"
    if max(p.D, p.Dv) > most:
        return f"heads of {max(p.D, p.Dv)} do not fit the registers"
    if not problem.table_options(kernel, p.key, p.device)["STAGES"]:
        return f"for {p.key} {faster} is faster"
    if not tma:
        return NO_TMA
    return None


def tiles_of_blocks(p, BLOCK_M, BLOCK_N):
    """How many of a kernel's tiles a block of the mask is long."""
    return {"TILES_M": max(1, p.SPARSE_M // BLOCK_M), "TILES_N": max(1, p.SPARSE_N // BLOCK_N)}


def described(rows, width=None):
    """Describes tensors [B, H, ., D] that TMA moves in tiles of ``rows`` and ``width`` columns, or all."""
    return Descriptors(lambda x: descriptor(x, [1, 1, rows, width or columns(x.shape[-1])]))


def descriptor(x, tile):
    """x as TMA moves its tiles, swizzled for the matrix instructions."""
    return gluon.describe(x, tile)


def described_rows(BLOCK_M):
    """Describes lse and delta, [B Hq, .] in float32, of which TMA moves BLOCK_M numbers."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return Descriptors(lambda x: gluon.describe(x, [1, BLOCK_M], layout))


def descs(described, tensors):
    """A kernel's ``Descs`` of its tensors by what describes each, ``None`` for none."""
    return described._make(None if t is None else how(t) for how, t in zip(described, tensors, strict=True))
