"""Gradients of keys and values on Hopper GPUs, warp-specialised: which calls ``backward_kernel`` takes, and its launches.

Heads wider than 128 go through ``wide_kernel``, in the same order of items. ``split``, which both kernels are given, cuts the
work of a tile of keys into several items, and that of a head into several launches.
"""

from kernels.common import gluon as common_gluon
from kernels.common.descriptors import Descriptors
from kernels.common.operator import launch
from kernels.flex_attention import problem
from kernels.flex_attention.hopper import backward_kernel, dealing, fit, wide_kernel
from kernels.flex_attention.problem import cdiv, columns, has_edge

if common_gluon.gluon is not None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

#: Items' keys and values in shared memory: of two, the next item's come while this one's gradients are stored.
KEPT, KEPT_TO = 2, 2048


def reason_not(p, tma):
    """Why this kernel cannot take the call, as text, or ``None``; tma: whether TMA can read the gradient of o."""
    why = fit.unfit(p, "backward_dkdv_hopper", "bwd_", 256, tma and p.tma("query", "key", "value"))
    BLOCK_M, BLOCK_N = tiles(p)
    if why is None and p.sparse and (p.SPARSE_N % BLOCK_N or p.SPARSE_M % BLOCK_M):
        return f"blocks of {p.SPARSE_M} x {p.SPARSE_N} are no multiples of {BLOCK_M} x {BLOCK_N}"
    return why


def wide(p):
    """Whether both groups own the same keys (``wide_kernel``)."""
    return max(p.D, p.Dv) > 128


def tiles(p):
    """Queries and keys of an inner step."""
    return options(p)["BLOCK_M"], fit.ROWS if wide(p) else fit.GROUPS * fit.ROWS


def options(p):
    """BLOCK_M and STAGES of the table."""
    return problem.table_options("backward_dkdv_hopper", p.key, p.device)


def _prepare(p, units, strides_of_do, STORE, lengths=None):
    """``(programs, sizes, items, compile-time arguments, how the tensors are read)``; lengths: of the items of a unit."""
    BLOCK_M, BLOCK_N = tiles(p)
    tiles_n = cdiv(p.N, BLOCK_N)
    items = units * tiles_n
    programs = min(items, dealing.multiprocessors(p.device))
    sizes = p.scale, p.unit, p.M, p.N, p.Hkv, p.G, tiles_n, p.shared
    order = dealing.order(units, tiles_n, 1, programs) if lengths is None else dealing.order_of(lengths, units, programs)
    constants = dict(STORE=STORE, **order, **compile_time(p, lengths is not None), num_warps=4, maxnreg=168)
    row_layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    rows = Descriptors(lambda r: TensorDescriptor(r, list(r.shape), list(r.stride()), [1, BLOCK_M], row_layout))
    kept = Descriptors(lambda ds: fit.descriptor(ds, [1, fit.ROWS, BLOCK_M]))
    return (programs,), sizes, items, constants, *map(fit.described, (BLOCK_M, BLOCK_M, fit.ROWS, fit.ROWS)), rows, kept


def launch_dkdv(p, x, do, rows, dk, dv, ds, first, count):
    """Launch the kernel for ``count`` (batch, key head) pairs from ``first`` on; ds: their workspace, or ``None``."""
    prepared = p.cached(_prepare, count, do.stride(), ds is not None)
    _launch(p, x, do, rows, dk, dv, ds, first, prepared, x.transposed, None)


def launch_split(p, x, do, rows, parts, ds, first, units, lists, split, lengths):
    """Launch it for the units of a ``dealing.Split``, which leave sums in ``parts``; lists: the band's ``transposed``."""
    prepared = p.cached(_prepare, units, do.stride(), True, lengths)
    _launch(p, x, do, rows, *parts, ds, first, prepared, lists, split)


def _launch(p, x, do, rows, dk, dv, ds, first, prepared, lists, split):
    programs, sizes, items, constants, queries, gradients, keys, values, row, kept = prepared
    strides = (*dk.stride(), *dv.stride()) if split is None else (0,) * 8
    launch(
        wide_kernel.attention_dkdv_wide_hopper_kernel if wide(p) else backward_kernel.attention_dkdv_hopper_kernel,
        programs,
        queries(x.query), gradients(do), keys(x.key), values(x.value), *map(row, rows), kept(ds), dk, dv,
        *lists, x.score_tables, x.mask_tables, split and split.given(), *sizes, first, items, *strides,
        **constants,
    )  # fmt: skip


def compile_time(p, split):
    """The kernel's compile-time arguments but STORE and the order of items."""
    BLOCK_M, BLOCK_N = tiles(p)
    return {
        **p.mods(),
        "D": p.D,
        "DV": p.Dv,
        **fit.tiles_of_blocks(p, BLOCK_M, BLOCK_N),
        "HAS_FULL": p.HAS_FULL,
        "SPARSE_M": p.SPARSE_M or 1,
        "EDGE_M": has_edge(p.M, p.SPARSE_M, BLOCK_M),
        "BLOCK_M": BLOCK_M,
        "BLOCK_D": columns(p.D),
        "BLOCK_DV": columns(p.Dv),
        "ROWS": fit.ROWS,
        "STAGES": options(p)["STAGES"],
        **({} if wide(p) else {"GROUPS": fit.GROUPS, "KEPT": kept(p, split)}),
    }


def kept(p, split):
    """Of how many items there are keys and values in shared memory; split: whether items are a split's.

    With heads above 64 it is one where the loop keeps more than the registers hold, which needs the L1 cache that two would
    take: in a split's kernel, and under a mask from KEPT_TO keys on. Without a mask the loop spills nothing; and documents'
    items are short, so what is not yet there when they begin is waited for often.
    """
    long = p.N > KEPT_TO and p.sparse and not p.documents
    return 1 if max(p.D, p.Dv) > 64 and (split or long) else KEPT
