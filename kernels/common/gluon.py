"""Gluon behind its version gate, and what kernels for TMA say about a tensor: element types, layouts, descriptors.

``gluon`` is ``None`` where Triton is older than what the kernels are written for; ``reason_not`` says so.
"""

import torch
import triton

NEEDS = (3, 8)  # the first Triton with TMA's im2col, and with warp specialisation as the kernels use it
CLUSTERS = (3, 9)  # the first in which clusters have run, with atomics in specialised warps
VERSION = tuple(map(int, triton.__version__.split(".")[:2]))

if VERSION >= NEEDS:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
else:
    gluon = None


def reason_not(what):
    """Why there is no Gluon for ``what``, such as ``"im2col copies"``, as text, or ``None``."""
    if gluon is not None:
        return None
    return f"Triton is {triton.__version__}, needs {'.'.join(map(str, NEEDS))} for Gluon's {what}"


def has_inline_asm():
    """Whether there is inline assembly that isn't element by element: since Triton 3.9."""
    return gluon is not None and hasattr(gl, "inline_asm")


def element(dtype):
    """A 16-bit torch dtype in Gluon's terms."""
    return gl.bfloat16 if dtype == torch.bfloat16 else gl.float16


def has_clusters():
    """Whether Gluon's kernels may be clusters of multiprocessors."""
    return gluon is not None and VERSION >= CLUSTERS


def shared_layout(tile, dtype, cga=None):
    """The layout of a tile in shared memory that TMA writes and the tensor cores read.

    cga: which part of it is in which multiprocessor of a cluster, in Gluon's bases: by ``((0, 1),)`` the second one has the
    other half of the columns, by ``((0, 0),)`` the same.
    """
    bases = cga and [list(basis) for basis in cga]
    return gl.NVMMASharedLayout.get_default_for(list(tile), element(dtype), cga_layout=bases)


def describe(x, tile, layout=None):
    """The descriptor of ``x`` in tiles; ``layout``: what ``shared_layout`` gave for them, where it is at hand."""
    layout = shared_layout(tile, x.dtype) if layout is None else layout
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(tile), layout)


def fits_tma(x):
    """Whether TMA can read ``x``: its last dimension side by side, all else a multiple of 16 bytes apart."""
    size = x.element_size()
    steps = [step for length, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if length > 1]
    adjacent = x.stride(-1) == 1 or x.shape[-1] == 1
    return adjacent and x.data_ptr() % 16 == 0 and all(step > 0 and step * size % 16 == 0 for step in steps)
